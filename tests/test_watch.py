"""The line that tells how far several trainings at once are."""

import json
from dataclasses import replace

import pytest

from fastmoco.recipes import find
from fastmoco.trials import watch
from fastmoco.trials.crew import Task
from fastmoco.trials.job import Job, Means
from fastmoco.trials.watch import Watch, state

RECIPE = replace(find("pocket/shapes").recipe, batch=10, epochs=100)


@pytest.fixture
def task(tmp_path):
    """A training of 100 epochs of 40 images in batches of 10, so that it has 400 steps."""

    def make(row, seed=0, logged=()):
        folder = tmp_path / f"{row.replace('/', '-')}-{seed}"
        folder.mkdir()
        lines = [{"step": step, "epoch": step / 4, "perf/images_per_second": rate} for step, rate in logged]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        job = Job(str(folder), row, "", None, None, (), seed, "", 40, (), 0, 2, "", "", Means())
        return Task(job, RECIPE, "1 of 2")

    return make


def test_each_has_its_epochs_and_all_have_a_rate_and_a_time(task):
    working = [task("table4b/mocov3", 1, [(100, 10.0), (200, 15.0)]), task("my.py:own", logged=[(40, 25.0)])]
    # 2,000 and 3,600 images of them are left, and 4,000 of one that has not begun, at 40 a second.
    assert state(working, [task("table7/byol")]) == (
        "mocov3:1 50/100, my.py:own:0 10/100  40 img/s  about 4:00 of training left"
    )


def test_a_judgement_is_no_end_and_has_no_rate(task):
    one = task("table4b/mocov3", logged=[(200, 16.0)])
    with (one.folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 200, "val/knn_top1": 70.0}) + "\n")
    assert state([one], []) == "mocov3:0 50/100  16 img/s  about 2:05 of training left"


def test_before_the_first_step_and_after_the_last_nothing_is_told_of_time(task):
    begun = task("table4b/mocov3")
    assert state([begun], []) == "mocov3:0 0/100"
    (begun.folder / "metrics.jsonl").unlink()
    assert state([begun], []) == "mocov3:0 0/100"
    assert state([task("table7/nnclr", logged=[(400, 20.0)])], []) == "nnclr:0 is judged"


def test_it_is_one_line_that_fits_the_terminal_and_is_taken_away(task, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(watch, "OFTEN", 0.0)
    line = Watch(live=True)
    line.show([task("table4b/mocov3", logged=[(200, 16.0)])], [])
    line.erase()
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "\r\x1b[2Kmocov3:0 50/100  16\r\x1b[2K")


def test_nothing_is_shown_to_a_file_or_twice_within_a_second(task, capsys):
    one = task("table4b/mocov3")
    for live in (False, True):
        line = Watch(live)
        line.show([one], [])
        line.show([one], [])
    assert capsys.readouterr().err.count("mocov3") == 1
