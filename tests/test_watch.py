"""The line that tells how far several trainings at once are."""

import json
from dataclasses import replace

import pytest

from fastmoco.recipes import find
from fastmoco.trials.crew import Task
from fastmoco.trials.job import Entry, Job, Means, Sweep
from fastmoco.trials.watch import state

RECIPE = replace(find("pocket/shapes").recipe, batch=10, epochs=100)
SWEEP = Sweep("shapes", 40, pixels="", knn_every=0, jobs=2, commit="", command="", means=Means())


@pytest.fixture
def task(tmp_path):
    """A training of 100 epochs of 40 images in batches of 10, so that it has 400 steps."""

    def make(row, seed=0, logged=()):
        folder = tmp_path / f"{row.replace('/', '-')}-{seed}"
        folder.mkdir()
        lines = [{"step": step, "epoch": step / 4, "perf/images_per_second": rate} for step, rate in logged]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        entry = Entry(row, base="", epochs=None, batch=None, settings=())
        return Task(Job(SWEEP, entry, seed, str(folder), evaluations=()), RECIPE, "1 of 2")

    return make


def test_all_have_a_rate_and_a_time_and_each_has_its_epochs(task):
    working = [task("table4b/mocov3", 1, [(100, 10.0), (200, 15.0)]), task("my.py:own", logged=[(40, 25.0)])]
    # 2,000 and 3,600 images of them are left, and 4,000 of one that has not begun, at 40 a second.
    assert state(working, [task("table7/byol")]) == (
        "40 img/s  about 4:00 of training left  mocov3 seed 1 epoch 50/100, my.py:own seed 0 epoch 10/100"
    )


def test_a_judgement_on_the_way_is_no_end(task):
    one = task("table4b/mocov3", logged=[(200, 16.0)])
    with (one.folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 200, "val/knn_top1": 70.0}) + "\n")
    assert state([one], []) == "16 img/s  about 2:05 of training left  mocov3 seed 0 epoch 50/100"


def test_one_that_is_judged_has_no_rate_any_more(task):
    working = [task("table4b/mocov3", logged=[(200, 16.0)]), task("table7/byol", logged=[(400, 99.0)])]
    judged = "byol seed 0 is judged after 100 epochs"
    assert state(working, []) == f"16 img/s  about 2:05 of training left  mocov3 seed 0 epoch 50/100, {judged}"
    assert state(working[1:], [task("table7/nnclr")]) == judged


@pytest.mark.parametrize("rates", [(), [(4, float("nan"))], [(4, 0.0)]])
def test_while_one_has_no_rate_nothing_is_told_of_time(task, rates):
    working = [task("table4b/mocov3", logged=[(200, 16.0)]), task("table7/byol", logged=rates)]
    assert state(working, []) == f"mocov3 seed 0 epoch 50/100, byol seed 0 epoch {len(rates)}/100"


def test_a_log_that_is_not_there_is_one_that_has_not_begun(task):
    begun = task("table4b/mocov3")
    (begun.folder / "metrics.jsonl").unlink()
    assert state([begun], []) == "mocov3 seed 0 epoch 0/100"
