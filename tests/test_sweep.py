"""Sweeps: what is trained, what is not trained again, and what becomes of it when something comes between."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import warm
from pictures import paint, records, trace
from PIL import Image

import fastmoco
from fastmoco import album, assess, cli, meeting, run, train
from fastmoco.exam import Terms
from fastmoco.images import fingerprint
from fastmoco.lock import alone, in_turn
from fastmoco.recipes import find
from fastmoco.sweep import sweep
from fastmoco.transfer import carry
from fastmoco.trials import crew, trial, watch
from fastmoco.trials.findings import Finding, add, read
from fastmoco.trials.job import TAKEN, Entry, Job, Means, Sweep, corner
from fastmoco.trials.job import read as read_job
from fastmoco.trials.ledger import Ledger

SOURCE = Path(fastmoco.__file__).parents[1]
OWN = """
from dataclasses import replace

from fastmoco import methods
from fastmoco.heads import MLP
from fastmoco.optim import Schedule
from fastmoco.protocols import Linear
from fastmoco.recipes import pocket

_heads = {"projector": MLP((16, 16), last="norm"), "predictor": MLP((8, 16))}
_short = {"epochs": 2, "batch": 8, "schedule": Schedule(warmup=0.0), "evaluation": Linear(epochs=4)}
tiny = replace(pocket.shapes.recipe, views=methods.both(methods.patches, size=16), **_heads, **_short)
"""
ROWS = """
from fastmoco.recipes.table4b import fast_moco, mocov3
from fastmoco.recipes.table7 import simsiam
"""
# A trial that trains nothing: it writes down that it was begun, and does as plan.json says.
STUB = """
import json, os, signal, sys, time
from pathlib import Path

job, here = json.loads(sys.argv[1]), Path(__file__).parent
sweep, entry = job["sweep"], job["entry"]
name = entry["row"].rpartition(":")[2]
plan = json.loads((here / "plan.json").read_text())
with (here / "begun.txt").open("a") as file:
    file.write(f"{name} {job['seed']}\\n")
act = plan["acts"].get(name)
if act == "fail":
    sys.exit("fastmoco: it cannot be")
if act == "vanish":
    os.kill(os.getpid(), signal.SIGKILL)
if act == "taken":
    sys.exit(75)
if act == "signal":
    os.kill(os.getppid(), signal.SIGTERM)
if act in ("wait", "signal"):
    time.sleep(60)
if act == "meet":
    (here / f"here-{os.getpid()}").touch()
    end = time.monotonic() + 20
    while len(list(here.glob("here-*"))) < 2:
        if time.monotonic() > end:
            sys.exit("fastmoco: no one came")
        time.sleep(0.01)
folder = Path(job["folder"])
folder.mkdir(parents=True, exist_ok=True)
known = {each: {**job, **sweep, **entry}[each] for each in ("row", "base", "seed", "data", "images", "jobs", "pixels")}
known["base"] = known["base"].rpartition("/")[2]  # as a trial does
circumstances = {"evaluations": job["evaluations"], "command": sweep["command"]}
recipe = plan["recipes"][name]
if act == "last":
    recipe = recipe.replace("epochs=2, batch=8", f"epochs={entry['epochs']}, batch=8")
finding = {**plan["finding"], **known, "recipe": recipe, "circumstances": circumstances}
(folder / "finding.json").write_text(json.dumps(finding) + "\\n")
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images") / "images"
    paint(folder / "train", 24, classes=2)
    paint(folder / "val", 8, classes=2)
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with my.py, a base, and rows.py, three rows."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    Path("my.py").write_text(OWN)
    Path("rows.py").write_text(ROWS)
    return folder


def tiny():
    return find("my.py:tiny").recipe


def carried(row):
    return carry(find(f"rows.py:{row}").recipe, tiny())


def example(images, **changes):
    known = fingerprint(fastmoco.data.find(str(images)).train)
    usual = Finding(
        *(carried("mocov3"), 0, "rows.py:mocov3", "my.py:tiny", "images", known["images"], known["names"]),
        *(48, 2.0, 1.0, 24.0, 1),  # seen, seconds, first step, images a second, jobs
        results={"online": {"knn20/top1": 75.0}},
        curve=((1.0, 1.0, 50.0),),
        circumstances={"evaluations": ["knn", "cached"]},
    )
    return replace(usual, **changes)


@pytest.fixture
def stub(place, images, monkeypatch):
    """Trials that only pretend; call it with what some of them do."""
    (place / "stub.py").write_text(STUB)
    finding = {**asdict(example(images)), "recipe": ""}
    monkeypatch.setattr(crew, "PROGRAM", (sys.executable, str(place / "stub.py")))
    monkeypatch.setattr(crew, "TICK", 0.01)

    def plan(**acts):
        known = {row: repr(carried(row)) for row in ("fast_moco", "mocov3", "simsiam")}
        known["table4b/fast_moco"] = known["fast_moco"]
        (place / "plan.json").write_text(json.dumps({"acts": acts, "recipes": known, "finding": finding}))
        (place / "begun.txt").write_text("")

    plan()
    return plan


def begun():
    return Path("begun.txt").read_text().splitlines()


def go(images, *what, **options):
    settings = {"recipe_base": "my.py:tiny", "data": str(images), "seeds": 1, "device": "cpu", "workers": 0, **options}
    sweep(what or ("rows.py",), **settings)


def found():
    return read([Path("runs/findings/images.jsonl")])


def test_every_row_is_trained_once_with_every_seed_and_has_a_record(stub, images, capsys):
    go(images, seeds=2, first_seed=5)
    assert begun() == [f"{row} {seed}" for seed in (5, 6) for row in ("fast_moco", "mocov3", "simsiam")]
    assert [(each.row, each.seed) for each in found()] == [
        (f"rows.py:{row}", seed) for seed in (5, 6) for row in ("fast_moco", "mocov3", "simsiam")
    ]
    assert all(each.recipe == carried(each.row.partition(":")[2]) for each in found())
    out = capsys.readouterr().out
    assert "6 of 6  rows.py:simsiam, seed 6: kNN 75.0 %, 0:0" in out
    assert ["rows.py:mocov3", "75.0", "±", "0.0", "2"] in [line.split() for line in out.splitlines()]
    command = "fastmoco sweep rows.py --recipe-base=my.py:tiny --data=images --seeds=2 --first-seed=5 --device=cpu"
    assert found()[0].circumstances["command"] == f"{command} --workers=0"


def test_what_has_a_record_is_not_trained_again(stub, images, capsys):
    go(images, "rows.py:mocov3")
    stub()
    go(images)
    assert begun() == ["fast_moco 0", "simsiam 0"]
    assert "trainings: 3, with a record: 1\n" in capsys.readouterr().out
    stub()
    go(images, out="elsewhere")
    assert begun() == []
    assert len(found()) == 3


def test_other_images_or_epochs_are_other_trainings(stub, images, tmp_path):
    go(images, "rows.py:mocov3")
    other = paint(tmp_path / "more" / "images", 30, classes=2)
    for data, options in ((other, {}), (images, {"epochs": (3,)}), (images, {"set": ("optim.lr=0.3",)})):
        stub()
        with pytest.raises(ValueError, match="1 failed"):  # what the stub leaves is not a finding of this
            go(data, "rows.py:mocov3", **options)
        assert begun() == ["mocov3 0"]
    assert len(found()) == 1


def test_several_lengths_are_so_many_trainings_of_each_row(stub, images, capsys):
    stub(mocov3="last", simsiam="last")
    lengths = (2, 3, 2, 1)
    go(images, "rows.py:mocov3", "rows.py:simsiam", epochs=lengths)
    assert begun() == ["mocov3 0", "simsiam 0"] * 3
    assert [each.recipe for each in found()] == [
        replace(carried(row), epochs=epochs) for epochs in (2, 3, 1) for row in ("mocov3", "simsiam")
    ]
    out = capsys.readouterr().out
    assert "6 of 6  rows.py:simsiam, 1 epoch, seed 0: kNN" in out
    assert ["rows.py:mocov3,", "3", "epochs", "75.0", "1"] in [line.split() for line in out.splitlines()]
    assert "--epochs 2 3 2 1 " in found()[0].circumstances["command"]
    stub()
    go(images, "rows.py:mocov3", epochs=(3,))
    assert begun() == []


def test_a_finding_in_its_run_folder_is_only_added(stub, images):
    go(images, "rows.py:mocov3")
    Path("runs/findings/images.jsonl").unlink()
    stub()
    go(images, "rows.py:mocov3")
    assert begun() == []
    assert [each.row for each in found()] == ["rows.py:mocov3"]


def test_a_damaged_finding_in_a_run_folder_is_made_again_and_ends_no_other(stub, images):
    go(images)
    file = next(Path("runs/sweep-images").glob("*mocov3*/finding.json"))
    for damage in ("", "{", "7\n"):
        stub()
        file.write_text(damage)
        Path("runs/findings/images.jsonl").unlink()
        go(images)
        assert begun() == ["mocov3 0"]
        assert len(found()) == 3


def test_more_evaluations_take_the_place_of_fewer(stub, images):
    go(images)
    before = found()
    stub()
    for path in Path("runs/sweep-images").glob("rows-py-mocov3-*-seed0"):
        path.rename("old")
    go(images, "rows.py:mocov3", evaluate=("linear",))
    assert begun() == ["mocov3 0"]
    assert [each for each in found() if each in before] == [each for each in before if each.row != "rows.py:mocov3"]
    assert found()[-1].circumstances["evaluations"] == ["linear", "knn", "cached"]
    assert len(found()) == 3


def test_rows_that_mean_the_same_recipe_are_trained_once(stub, images, capsys):
    Path("rows.py").write_text(ROWS + "again = fast_moco\n")
    go(images, "rows.py", "table4a/fast_moco", "rows.py:mocov3")
    assert begun() == ["fast_moco 0", "mocov3 0", "simsiam 0"]
    out = capsys.readouterr().out
    assert "once only: rows.py:again is rows.py:fast_moco here" in out
    assert "once only: table4a/fast_moco is rows.py:fast_moco here" in out


def test_rows_that_compute_the_same_are_trained_once_and_have_one_record(stub, images, capsys):
    go(images, "rows.py:fast_moco", "text/samples_6")
    assert begun() == ["fast_moco 0"]
    assert "once only: text/samples_6 is rows.py:fast_moco here" in capsys.readouterr().out
    go(images, "text/samples_6", "figure3b/m1_n1", dry_run=True)
    assert "trainings: 2, with a record: 1\n2 of 2  figure3b/m1_n1, seed 0\n" in capsys.readouterr().out
    go(images, "text/samples_6")
    assert re.search(r"^text/samples_6 +75\.0 .* 1$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("whole", [False, True], ids=["name", "whole path"])
def test_one_more_evaluation_of_what_computes_the_same_is_made_in_its_run_folder(stub, images, capsys, whole):
    base = f"{Path('my.py').resolve() if whole else 'my.py'}:tiny"  # of which a record keeps the end
    go(images, "table4b/fast_moco", recipe_base=base)
    go(images, "text/samples_6", recipe_base=base, evaluate=("knn", "linear"), dry_run=True)
    assert capsys.readouterr().out.endswith("1 of 1  table4b/fast_moco, seed 0 has a record that lacks linear\n")


def test_a_file_that_a_record_names_is_not_run(stub, images, tmp_path):
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n" + ROWS)
    add(Path("runs/findings/images.jsonl"), replace(example(images), row=f"{evil}:mocov3"))
    go(images, "figure3b/m1_n1", evaluate=("linear",), dry_run=True)
    assert not (tmp_path / "ran").exists()


def test_of_findings_that_compute_the_same_any_that_has_all_is_enough(stub, images, capsys):
    again = replace(example(images), recipe=carry(find("figure3b/m1_n1").recipe, tiny()), row="figure3b/m1_n1")
    more = {"evaluations": ["knn", "cached", "linear"]}
    for each in (replace(again, circumstances=more), example(images)):
        add(Path("runs/findings/images.jsonl"), each)
    go(images, "rows.py:mocov3", evaluate=("linear",))
    assert begun() == []


def test_a_link_to_the_records_stays_one_and_the_file_behind_it_keeps_its_mode(stub, images):
    Path("kept").mkdir()
    real, link = Path("kept/all.jsonl"), Path("link.jsonl")
    real.touch(0o600)
    link.symlink_to(real)
    go(images, "rows.py:mocov3", records="link.jsonl")
    assert link.readlink() == real
    assert [each.row for each in read([real])] == ["rows.py:mocov3"]
    assert real.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in real.parent.iterdir()) == ["all.jsonl"]


def test_a_place_that_only_looks_like_a_folder_is_refused_before_anything_is_trained(stub, images, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(run.tempfile, "TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r"runs/findings cannot be written to: .*; give another --records"):
        go(images)
    assert begun() == []


def test_rows_that_cannot_be_carried_are_left_out_and_told(stub, images, capsys):
    go(images, "text/adamw", "rows.py:mocov3", "figure3a/stage1_2")
    assert begun() == ["mocov3 0"]
    out = capsys.readouterr().out
    assert "left out: text/adamw in my.py:tiny: AdamW is part of this row" in out
    assert "left out: figure3a/stage1_2 in my.py:tiny: " in out


def test_a_row_that_fails_does_not_stop_the_others(stub, images, capsys):
    stub(mocov3="fail")
    with pytest.raises(ValueError, match=r"1 failed: rows\.py:mocov3, seed 0; the same command tries them again"):
        go(images)
    assert begun() == ["fast_moco 0", "mocov3 0", "simsiam 0"]
    assert "2 of 3  rows.py:mocov3, seed 0 failed: it cannot be" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"1 failed: rows\.py:mocov3, seed 0"):
        go(images, "rows.py:mocov3", records="other.jsonl")
    assert "\nno training has a score, and no findings yet\n" in capsys.readouterr().out
    stub()
    go(images)
    assert begun() == ["mocov3 0"]


def test_two_at_once_share_the_device_and_say_so(stub, images):
    stub(fast_moco="meet", mocov3="meet")
    go(images, jobs=2)
    assert {each.row for each in found()} == {"rows.py:fast_moco", "rows.py:mocov3", "rows.py:simsiam"}
    assert {each.jobs for each in found()} == {2}


def test_those_of_other_sweeps_count_as_well_if_they_are_told(stub, images):
    go(images, beside=3)
    assert {each.jobs for each in found()} == {4}


def test_trainings_that_share_a_machine_have_their_part_of_its_cores(monkeypatch):
    monkeypatch.setattr("fastmoco.launch.cores", lambda: 16)
    assert crew._threads(1) == {}, "one that is alone has all that torch takes"
    assert crew._threads(4) == {"OMP_NUM_THREADS": "4"}
    assert crew._threads(100) == {"OMP_NUM_THREADS": "1"}


def test_what_another_sweep_is_at_is_left_to_it(stub, images, capsys):
    stub(mocov3="taken")
    go(images)
    assert [each.row for each in found()] == ["rows.py:fast_moco", "rows.py:simsiam"]
    assert "at work in another process: rows.py:mocov3, seed 0" in capsys.readouterr().out


def test_what_another_sweep_has_done_by_the_end_is_not_said_to_be_at_work(stub, images, capsys, monkeypatch):
    note = crew.Outcome.note

    def meanwhile(*given):
        add(Path("runs/findings/images.jsonl"), example(images))
        return note(*given)

    stub(mocov3="taken", fast_moco="taken")
    monkeypatch.setattr(crew.Outcome, "note", meanwhile)
    go(images)
    assert capsys.readouterr().out.splitlines()[-1] == "at work in another process: rows.py:fast_moco, seed 0"


def test_what_another_sweep_has_made_in_the_meantime_is_not_begun(stub, images, capsys, monkeypatch):
    begin = crew.Crew.begin

    def meanwhile(self, task):
        add(Path("runs/findings/images.jsonl"), example(images))
        begin(self, task)

    monkeypatch.setattr(crew.Crew, "begin", meanwhile)
    go(images, "rows.py:fast_moco", "rows.py:mocov3")
    assert begun() == ["fast_moco 0"]
    assert "rows.py:mocov3, seed 0 has a record by now" in capsys.readouterr().out


def test_no_row_begins_that_would_end_too_late(stub, images, capsys, monkeypatch):
    monkeypatch.setattr(crew.Pace, "expect", lambda self, task: 1e6 if self.spent else 0.0)
    go(images, minutes=60.0)
    assert begun() == ["fast_moco 0"]
    assert "left: rows.py:mocov3, seed 0; rows.py:simsiam, seed 0; the same command goes on" in (
        capsys.readouterr().out
    )


def test_the_time_of_a_row_is_judged_by_itself_or_by_the_slowest(place, images):
    pace = crew.Pace()
    rows = ("mocov3", "fast_moco", "simsiam")
    fast, slow, other = (crew.Task(job(images, row), carried(row), "") for row in rows)
    assert fast.seen == 48
    assert pace.expect(fast) == 0
    pace.note(fast, 10.0, example(images, images_per_second=48 / 4))  # 4 s of training, and 6 s of other things
    pace.note(slow, 30.0, example(images, images_per_second=48 / 25))
    assert [round(pace.expect(task), 6) for task in (fast, slow, other)] == [10, 30, 30]
    longer = replace(fast, recipe=replace(fast.recipe, epochs=4))
    assert pace.expect(longer) == pytest.approx(2 * 25 + 5), "what else there is to do is not more"
    pace = crew.Pace()
    pace.note(fast, 3.0, example(images, images_per_second=48 / 4))  # one that went on, and its seconds are not known
    assert pace.expect(fast) == 4


def test_at_the_end_of_the_time_what_is_at_work_is_stopped(stub, images, capsys):
    stub(mocov3="wait")
    go(images, "rows.py:mocov3", minutes=0.3 / 60)
    said = capsys.readouterr().out
    assert "the time is over; 1 at work save what they have\n" in said
    assert "left: rows.py:mocov3, seed 0; the same command goes on" in said
    stub()
    go(images, "rows.py:mocov3")
    assert begun() == ["mocov3 0"]


def test_a_signal_stops_the_rows_and_the_sweep(stub, images, capsys):
    stub(mocov3="signal")
    with pytest.raises(KeyboardInterrupt) as stopped:
        go(images)
    assert stopped.value.args == (signal.SIGTERM,)
    assert begun() == ["fast_moco 0", "mocov3 0"]
    assert "stopped by SIGTERM with 2 left; the same command goes on" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_dry_run_only_lists(stub, images, capsys):
    go(images, "rows.py:mocov3")
    go(images, dry_run=True)
    assert begun() == ["mocov3 0"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["1 of 3  rows.py:fast_moco, seed 0", "3 of 3  rows.py:simsiam, seed 0"]


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ("kept", "kept is a folder; give a file for --records"),
        (os.devnull, f"{os.devnull} is no file that can be written; give another --records"),
    ],
)
def test_a_dry_run_refuses_what_the_sweep_would(stub, images, records, reason, dry):
    Path("kept").mkdir()
    with pytest.raises(ValueError, match=f"^{reason}$"):
        go(images, records=records, dry_run=dry)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "nothing to sweep; give tables or rows"),
        (("table4a", "--recipe-base", "pocket/shape"), "--recipe-base: unknown row 'pocket/shape'"),
        (("tabel4a", "--recipe-base", "pocket/shapes"), "unknown table 'tabel4a'; the nearest known: table4a"),
        (("text/adamw", "--recipe-base", "pocket/shapes"), "no row of text/adamw can be carried to pocket/shapes"),
        (("table4a", "--recipe-base", "pocket/photos"), "--data: say which images"),
        (("table4a", "--recipe-base", "pocket/shapes", "--data", "absent"), "no such folder, list or set 'absent'"),
        (("table4a", "--recipe-base", "pocket/shapes", "--data", "loose"), "loose has no labels"),
        (("table4a", "--recipe-base", "pocket/shapes", "--seeds", "0"), "--seeds 0: use 1 or more"),
        (("table4a", "--recipe-base", "pocket/shapes", "--jobs", "0"), "--jobs 0: use 1 or more"),
        (("table4a", "--recipe-base", "pocket/shapes", "--minutes", "0"), "--minutes 0: use a positive time"),
        (("table4a", "--recipe-base", "pocket/shapes", "--knn-every", "0"), "--knn-every 0: use 1 or more"),
        (("table4a", "--recipe-base", "pocket/shapes", "--evaluate", "semi"), "semi"),
        (("table4a", "--recipe-base", "pocket/shapes", "--set", "optim.rl=1"), "unknown SGD field 'rl'"),
        (("table4a", "--recipe-base", "pocket/shapes", "--records", "my.py"), "my.py, line 2 is no finding of a sweep"),
        (
            ("table4a", "--recipe-base", "pocket/shapes", "--records", os.devnull),
            f"{os.devnull} is no file that can be",
        ),
        (("table4a", "--recipe-base", "pocket/shapes", "--first-seed", "-1"), "--first-seed -1: use a whole number"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(words, reason, place, monkeypatch, capsys):
    paint(place / "loose", 4)
    monkeypatch.setattr(sys, "argv", ["fastmoco", "sweep", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert reason in err
    assert len(err.splitlines()) == 1
    assert sorted(path.name for path in place.iterdir()) == ["loose", "my.py", "rows.py"]


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("pocket/shapes", "shapes"),
        ("pocket/imagenette_mocov3", "imagenette"),
        ("pocket/imagenette_long_mocov3", "imagenette"),
        ("pocket/photos", ""),
        ("my.py:a", ""),
    ],
)
def test_a_pocket_row_says_which_set_it_is_for(base, name):
    from fastmoco.sweep import _suited

    assert _suited(base, ["pocket/cifar10"]) == name
    assert _suited("", [base]) == name
    assert _suited("", [base, "pocket/cifar10"]) == ""


def job(images, row="mocov3", evaluations=("knn", "cached", "linear", "encoders"), epochs=2, jobs=1, commit="abc"):
    means = Means(device="cpu", workers=0)
    common = Sweep(str(images), 24, pixels="", knn_every=0, jobs=jobs, commit=commit, command="a sweep", means=means)
    entry = Entry(f"rows.py:{row}", "my.py:tiny", epochs, batch=None, settings=())
    return Job(common, entry, seed=0, folder="run", evaluations=evaluations)


def test_a_trial_leaves_a_finding_with_all_that_was_asked_for(place, images, monkeypatch):
    made = trial.run(read_job(job(images).spell()))
    assert read([Path("run/finding.json")]) == [made]
    lines = [line for line in records(Path("run")) if "train/loss" in line]
    judged = [line for line in records(Path("run")) if "val/knn_top1" in line]
    assert [line["step"] for line in lines] == [3, 6]
    assert made.curve == tuple(
        (each["step"] / 3, line["perf/seconds"], each["val/knn_top1"]) for each, line in zip(judged, lines, strict=True)
    )
    assert made.seconds == lines[-1]["perf/seconds"]
    assert made.images_per_second == lines[-1]["perf/images_per_second"], "the other has the first step"
    assert (made.recipe, made.seen, made.data, made.images) == (carried("mocov3"), 48, "images", 24)
    encoders = ("online", "online, recalibrated", "target", "target, recalibrated")
    assert tuple(made.results) == encoders
    names = {"knn20/top1", "knn200/top1", "cached/top1"}
    assert set(made.results["online"]) == names | {"probe/top1", "linear/top1"}
    assert all(set(made.results[each]) == names for each in encoders[1:])
    assert made.results["online"]["probe/top1"] == judged[-1]["val/linear_top1"]
    told = [made.circumstances[name] for name in ("commit", "command", "precision", "compiled", "recorded", "loader")]
    assert told == ["abc", "a sweep", "float32", False, False, "resident"]
    assert made.circumstances["verdict"] == "starting: 2 of the 3 log lines that a verdict needs"
    evaluated = json.loads(Path("run/trial.json").read_text())
    assert [(each["branch"], each["recalibrated"]) for each in evaluated[3::2]] == [
        ("online", True),
        ("target", False),
        ("target", True),
    ]
    assert made.results["target"]["cached/top1"] == evaluated[6]["results"]["linear/top1"]
    assert not Path("run/store").exists()
    assert [path.name for path in Path("run/checkpoints").iterdir()] == ["last.pt"]
    assert not list(Path(os.environ["FASTMOCO_DATA"]).glob("features/*"))


def test_a_trial_collects_images_once_for_all_evaluations_and_finds_the_same_to_the_last_bit(
    place, images, monkeypatch
):
    reads, read_one = [], album.read
    monkeypatch.setattr(album, "read", lambda some, index: reads.append(some.name(index)) or read_one(some, index))
    monkeypatch.setattr(trial, "shutil", SimpleNamespace(rmtree=lambda path: path))  # embeddings are to be compared
    made, left = {}, {}
    for room in (0, trial.ROOM):
        reads.clear()
        monkeypatch.setattr(trial, "ROOM", room)
        found = trial.run(replace(job(images, epochs=1), folder=f"run-{room}"))
        made[room] = (found.results, found.curve[0][2], trace(Path(f"run-{room}")))
        left[room] = {path.name: path.read_bytes() for path in Path(f"run-{room}/store/features").iterdir()}
    # To learn from as they are, and to judge by as an encoder is shown them.
    assert Counter(Path(name).parts[-3] for name in reads) == {"train": 2 * 24, "val": 8}
    assert len(set(reads)) == 24 + 8
    assert made[0] == made[room]
    assert left[0] == left[room]
    assert len(left[0]) == 4 * 3, "to learn from, to be tested by, and crops, for each of four encoders"


def test_without_labels_rows_are_trained_if_no_evaluation_is_asked_for(stub, images, capsys):
    paint(Path("loose"), 24)
    with pytest.raises(
        ValueError, match=r"loose has no labels, which .*; or give --evaluate without a value, to train only$"
    ):
        go("loose", dry_run=True)
    go("loose", evaluate=(), dry_run=True)
    assert capsys.readouterr().out.splitlines()[-1] == "3 of 3  rows.py:simsiam, seed 0"
    made = trial.run(read_job(job("loose", evaluations=()).spell()))
    assert (made.results, made.curve) == ({"online": {}}, ())
    assert read([Path("run/finding.json")]) == [made]


def test_without_a_momentum_branch_there_are_two_encoders(place, images):
    made = trial.run(job(images, "simsiam", evaluations=("encoders",), epochs=1))
    assert set(made.results) == {"online", "online, recalibrated"}


def test_a_trial_that_was_stopped_between_two_evaluations_makes_none_of_them_again(place, images, monkeypatch):
    short = job(images, evaluations=("knn", "cached"), epochs=1)
    knn, linear, calls = assess.knn, assess.linear, []

    def die(*given, **options):
        raise MemoryError("a kill")

    monkeypatch.setattr(assess, "linear", die)
    with pytest.raises(MemoryError, match="a kill"):
        trial.run(short)
    assert not Path("run/finding.json").exists()
    steps = trace(Path("run"))
    monkeypatch.setattr(assess, "knn", lambda *given, **options: calls.append("knn") or knn(*given, **options))
    monkeypatch.setattr(assess, "linear", lambda *given, **options: calls.append("linear") or linear(*given, **options))
    monkeypatch.setattr(train.Training, "_advance", die)
    made = trial.run(short)
    assert calls == ["linear"]
    assert trace(Path("run")) == steps
    kept = json.loads(Path("run/trial.json").read_text())
    assert [each["evaluation"] for each in kept] == ["knn", "linear"]
    assert made.score("knn20/top1") == kept[0]["results"]["knn20/top1"]
    calls.clear()
    trial.run(replace(short, evaluations=("knn", "linear")))  # which is not the cached one
    assert calls == ["linear"]


def test_what_is_damaged_in_a_run_folder_of_a_sweep_is_to_be_removed_and_made_again(place, images, monkeypatch, capsys):
    asked = job(images, evaluations=("knn",))
    monkeypatch.setattr(sys, "argv", ["trial", asked.spell()])

    def refused():
        with pytest.raises(SystemExit):
            trial.main()
        return capsys.readouterr().err.splitlines()[-1]

    trial.main()
    Path("run/trial.json").write_text("")
    words = "so nothing can be added; remove it, and the same command makes it again"
    assert refused() == f"fastmoco: run/trial.json is no results file, {words}"
    Path("run/trial.json").unlink()
    signed = corner(Path("run")) / "trained.jsonl"
    for damaged in ("", signed.read_text()[:-40]):
        signed.write_text(damaged)
        words = f"{signed} does not tell who trained; remove run, and the same command makes it again"
        assert refused() == f"fastmoco: {words}"
    signed.write_text('{"jobs": 1}')
    Path("run/metrics.jsonl").write_text("")
    words = "run/metrics.jsonl has lost its beginning; remove run, and the same command makes it again"
    assert refused() == f"fastmoco: {words}"
    Path("run/checkpoints/last.pt").write_bytes(b"")
    words = "can be read; remove run, and the same command makes it again"
    assert refused() == f"fastmoco: no checkpoint in run/checkpoints {words}"
    shutil.rmtree("run")
    with monkeypatch.context() as patch:
        patch.setattr("fastmoco.meter.Meter.broken", lambda self: True)
        assert refused().endswith("; begin anew with a lower --set optim.lr")
    shutil.rmtree("run")
    trial.main()
    assert len(read([Path("run/finding.json")])) == 1


def test_an_evaluation_by_hand_is_not_taken_for_it(place, images):
    short = job(images, evaluations=("linear",), epochs=1)
    trial.run(replace(short, evaluations=()))
    assess.linear("run", str(images), lr=1e-9, terms=Terms(device="cpu", workers=0))
    made = trial.run(short)
    (kept,) = json.loads(Path("run/trial.json").read_text())
    assert made.score("linear/top1") == kept["results"]["linear/top1"]
    assert "lr=1e-09" not in kept["settings"]


def test_a_finding_tells_of_those_who_trained_and_not_of_who_evaluated_later(place, images):
    assert trial.run(job(images, evaluations=("knn",), epochs=1, jobs=4, commit="trained")).jobs == 4
    made = trial.run(job(images, evaluations=("knn", "cached"), epochs=1, commit="later"))
    assert (made.jobs, made.circumstances["commit"]) == (4, "trained")
    assert made.circumstances["evaluations"] == ["knn", "cached"]


def test_of_several_who_trained_all_are_told_and_the_most_that_shared_a_device(place, images, monkeypatch):
    advance = train.Training._advance

    def stop(self, batch):
        if self.step == 4:
            raise KeyboardInterrupt
        advance(self, batch)

    monkeypatch.setattr(train.Training, "_advance", stop)
    with pytest.raises(KeyboardInterrupt):
        trial.run(job(images, evaluations=("knn",), jobs=3, commit="first"))
    signed = corner(Path("run")) / "trained.jsonl"
    whole = signed.read_text()
    signed.write_text(whole + whole[:-40])  # a full disk has cut off one that then came no further
    monkeypatch.setattr(train.Training, "_advance", advance)
    made = trial.run(job(images, evaluations=("knn",), commit="second"))
    assert (made.jobs, made.circumstances["commit"]) == (3, "first, second")


def test_those_who_trained_in_a_folder_that_was_removed_are_not_told(place, images):
    trial.run(job(images, evaluations=("knn",), epochs=1, jobs=3, commit="first"))
    shutil.rmtree("run")
    made = trial.run(job(images, evaluations=("knn",), epochs=1, commit="second"))
    assert (made.jobs, made.circumstances["commit"]) == (1, "second")


def test_a_store_that_a_kill_has_left_is_no_obstacle(place, images):
    short = job(images, evaluations=("knn",), epochs=1)
    Path("run/store/unfinished").mkdir(parents=True)
    (Path(os.environ["FASTMOCO_DATA"]) / "unfinished").mkdir(parents=True)
    with pytest.raises(ValueError, match="holds 'store'"):  # of no training
        trial.run(short)
    shutil.rmtree("run")
    trial.run(replace(short, evaluations=()))
    Path("run/store/unfinished").mkdir(parents=True)
    assert trial.run(short).score("knn20/top1") is not None
    assert not Path("run/store").exists()
    assert (Path(os.environ["FASTMOCO_DATA"]) / "unfinished").is_dir()


def test_a_training_ends_with_the_sweep_that_has_begun_it(monkeypatch):
    monkeypatch.setattr(meeting, "__parent__", -1)
    assert not meeting.orphaned(), "what people start in the background goes on"
    monkeypatch.setenv(meeting.CHILD, "sweep")
    assert meeting.orphaned()


def test_sweeps_that_add_to_one_file_at_once_lose_nothing(place, images):
    code = """
import sys
from dataclasses import replace
from pathlib import Path
from fastmoco.trials.crew import Task
from fastmoco.trials.findings import read
from fastmoco.trials.job import read as read_job
from fastmoco.trials.ledger import Ledger

job = replace(read_job(sys.argv[2]), evaluations=("knn",))
(example,) = read([Path("example.jsonl")])
ledger = Ledger(Path("all.jsonl"), example.images, example.names)
for seed in range(int(sys.argv[1]), 60, 3):
    ledger._put(replace(example, seed=seed), Task(replace(job, seed=seed), example.recipe, ""))
"""
    add(Path("example.jsonl"), example(images))
    three = [warm.Python(["-c", code, first, job(images).spell()]) for first in "012"]
    said = [each.communicate(timeout=120) for each in three]
    assert [each.returncode for each in three] == [0, 0, 0], said
    assert sorted(each.seed for each in read([Path("all.jsonl")])) == list(range(60))
    assert not [*Path().glob(".*.lock")], "what only processes need is not left among what people keep"


def test_what_goes_wrong_while_a_file_is_held_leaves_no_lock(place):
    def fail():
        assert Path(".all.jsonl.lock").exists()
        raise KeyError

    with pytest.raises(KeyError), in_turn(Path("all.jsonl")):
        fail()
    assert not Path(".all.jsonl.lock").exists()
    Path(".all.jsonl.lock").symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic link"), in_turn(Path("all.jsonl")):
        pass
    assert not Path("elsewhere").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
def test_a_file_system_without_locks_is_done_without(tmp_path, monkeypatch, capsys, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.lockf", refuse)
    for lock, left in ((in_turn(tmp_path / "all.jsonl"), []), (alone(tmp_path, "busy"), [".lock"])):
        if number == errno.EIO:  # is something else
            with pytest.raises(OSError, match=os.strerror(number)), lock:
                pass
        else:
            with lock:
                (tmp_path / "all.jsonl").touch()
            assert sorted(path.name for path in tmp_path.iterdir()) == [*left, "all.jsonl"]
    said = f"{tmp_path} cannot be locked here; see that no other process works in it\n"
    assert capsys.readouterr().err == (said if number == errno.ENOLCK else "")


def test_a_set_of_the_same_names_in_another_size_has_no_record_yet(stub, images, tmp_path, capsys):
    stub()
    flags = {"records": "all.jsonl"}  # by default each has a file of its own
    go(images, "rows.py:mocov3", **flags)
    for change, known in ((None, 1), (16, 0), (None, 1)):
        other = tmp_path / f"size-{change}" / images.name
        shutil.copytree(images, other, dirs_exist_ok=True)
        for path in other.rglob("*.png") if change else ():
            Image.open(path).resize((change, change)).save(path)
        capsys.readouterr()
        go(other, "rows.py:mocov3", dry_run=True, **flags)
        assert f"trainings: 1, with a record: {known}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("older", "stays"),
    [
        ({"pixels": "mine", "seconds": 9.0}, False),
        ({"pixels": ""}, False),  # the same run, evaluated further
        ({"pixels": "", "seconds": 9.0}, True),  # another run, perhaps on other images
        ({"pixels": "other"}, True),
    ],
)
def test_a_record_that_may_be_of_other_images_stays(place, images, older, stays):
    less = example(images, circumstances={"evaluations": ["knn"]}, **older)
    more = example(images, pixels="mine")
    file, task = Path("all.jsonl"), crew.Task(job(images, evaluations=("knn", "cached")), more.recipe, "")
    add(file, less)
    add(task.folder / "finding.json", more)
    ledger = Ledger(file, more.images, more.names, "mine")
    assert ledger.known(task) is None
    assert ledger.collect(task) == ledger.known(task) == more
    assert read([file]) == [less] * stays + [more]


def test_a_failure_is_told_by_its_own_words_and_not_by_those_of_an_earlier_try(stub, images, capsys):
    stub(mocov3="fail")
    with pytest.raises(ValueError, match="1 failed"):
        go(images, "rows.py:mocov3")
    stub(mocov3="vanish")
    capsys.readouterr()
    with pytest.raises(ValueError, match="1 failed"):
        go(images, "rows.py:mocov3")
    assert "failed: it ended by SIGKILL" in capsys.readouterr().out


@pytest.mark.parametrize("jobs", [2, 1])
def test_on_a_terminal_several_at_once_have_one_line_that_is_gone_before_anything_is_printed(
    stub, images, monkeypatch, capsys, jobs
):
    stub(mocov3="fail")
    monkeypatch.setattr(watch, "OFTEN", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", sys.stderr)  # so that their order is seen
    with pytest.raises(ValueError, match="1 failed"):
        go(images, "rows.py:mocov3", "rows.py:simsiam", "rows.py:fast_moco", jobs=jobs)
    shown = capsys.readouterr().err
    assert ("rows.py:simsiam seed 0 epoch 0/2" in shown) == (jobs == 2), "one alone shows its own"
    for line in shown.split("\n"):
        kept = line.rpartition("\x1b[2K")[2]
        assert "epoch 0/2" not in kept, "it is not left there"
        assert jobs == 1 or kept == line or kept == "" or kept[0].isdigit(), kept


def test_without_a_terminal_a_line_tells_now_and_then_how_far_they_are(stub, images, monkeypatch, capsys):
    go(images, "rows.py:mocov3")
    assert capsys.readouterr().err == "", "it was soon done"
    monkeypatch.setattr(watch, "SELDOM", 0.0)
    go(images, "rows.py:simsiam")
    assert capsys.readouterr().err.splitlines()[0] == "rows.py:simsiam seed 0 epoch 0/2"


def test_while_others_are_at_work_a_sweep_waits_for_them_though_nothing_more_fits(stub, images, monkeypatch):
    stub(fast_moco="meet", mocov3="meet")
    monkeypatch.setattr(crew.Pace, "expect", lambda self, task: 1e6 if self.spent or task.words[8] == "s" else 0.0)
    go(images, jobs=2, minutes=60.0)
    assert {each.row for each in found()} == {"rows.py:fast_moco", "rows.py:mocov3"}


def test_a_trial_that_another_process_is_at_is_not_begun(place, images):
    lock = corner(Path("run")) / ".lock"
    code = f"import fcntl; f = open({str(lock)!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        done = subprocess.run([*crew.PROGRAM, job(images).spell()], capture_output=True)
        other.communicate(b"\n")
    assert (done.returncode, done.stderr) == (TAKEN, b"")
    assert not Path("run").exists()


def test_a_record_is_looked_up_again_when_its_file_has_changed(place, images):
    one, two = example(images), example(images, seed=1)
    ledger = Ledger(Path("a.jsonl"), one.images, one.names)
    assert ledger.findings() == []
    add(Path("a.jsonl"), one)
    assert ledger.findings() == [one]
    add(Path("a.jsonl"), two)
    add(Path("a.jsonl"), replace(one, names="others"))
    assert ledger.findings() == [one, two]
    assert ledger.find(two.recipe, 1) == two
    assert ledger.find(tiny(), 1) is None


def test_the_command_trains_and_goes_on_after_a_kill(place, images):
    """With real trainings: one of two is killed, and the same command makes only that one."""
    words = ["rows.py:fast_moco", "rows.py:mocov3", "--recipe-base", "my.py:tiny", "--data", str(images)]
    words += ["--seeds", "1", "--jobs", "2", "--device", "cpu", "--workers", "0", "--epochs", "1", "--evaluate", "knn"]
    kill = """
import sys
from fastmoco import command
from fastmoco.trials import trial
def die(*given, **options):
    import os, signal
    path = pretrain(*given, **options)
    if "mocov3" in str(path):
        os.kill(os.getpid(), signal.SIGKILL)
pretrain, command.pretrain = command.pretrain, die
sys.argv = ["trial", *sys.argv[1:]]
trial.main()
"""
    Path("killed.py").write_text(kill)
    start = (
        "import sys; from fastmoco import cli; from fastmoco.trials import crew; "
        "crew.PROGRAM = (sys.executable, 'killed.py'); "
        "sys.argv = ['fastmoco', 'sweep', *sys.argv[1:]]; cli.main()"
    )
    first = warm.Python(["-c", start, *words])
    out, said = first.communicate(timeout=300)
    assert first.returncode == 2, said
    assert (
        "rows.py:mocov3, 1 epoch, seed 0 failed: it ended by SIGKILL; its log is runs/sweep-images/rows-py-mocov3-"
        in out
    )
    assert said == "fastmoco: 1 failed: rows.py:mocov3, 1 epoch, seed 0; the same command tries them again\n"
    (run,) = (path for path in Path("runs/sweep-images").glob("rows-py-mocov3-*") if path.is_dir())
    steps, (made,) = trace(run), found()
    again = warm.Python(["-m", "fastmoco", "sweep", *words])
    out, said = again.communicate(timeout=300)
    assert (again.returncode, said) == (0, "")
    assert "trainings: 2, with a record: 1\n" in out
    assert trace(run) == steps
    assert found()[0] == made
    assert {each.row for each in found()} == {"rows.py:fast_moco", "rows.py:mocov3"}
    assert all(0 <= each.score("knn20/top1") <= 100 for each in found())


def test_a_process_that_does_not_end_when_it_is_asked_to_is_killed(place, images, monkeypatch):
    (place / "deaf.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(60)\n"
    )
    monkeypatch.setattr(crew, "PROGRAM", (sys.executable, str(place / "deaf.py")))
    monkeypatch.setattr(crew, "PATIENCE", 0.1)
    task = crew.Task(job(images), tiny(), "")
    with crew.Crew(live=False) as deaf:
        deaf.begin(task)
        for _ in range(1000):
            if task.log.read_text():
                break
            time.sleep(0.02)
        deaf.stop()
        assert [code for _, code, _ in deaf.ended()] == [-signal.SIGKILL]


def test_a_trial_sees_the_sets_of_the_store_and_has_embeddings_of_its_own(tmp_path, monkeypatch):
    store, folder = tmp_path / "store", tmp_path / "run"
    for name in ("cifar10", "features"):
        (store / name).mkdir(parents=True)
        (store / name / "file").touch()
    folder.mkdir()
    monkeypatch.setenv("FASTMOCO_DATA", str(store))
    with trial._own_store(folder):
        own = Path(os.environ["FASTMOCO_DATA"])
        assert [each.name for each in own.iterdir()] == ["cifar10"]
        assert (own / "cifar10" / "file").exists()
        (own / "features").mkdir()
    assert os.environ["FASTMOCO_DATA"] == str(store)
    assert not own.exists()
    assert (store / "features" / "file").exists()


def test_a_judgement_has_the_seconds_of_its_step_though_it_was_written_first():
    lines = [
        {"step": 20, "val/knn_top1": 60.0},
        {"step": 20, "perf/seconds": 9.0},
        {"step": 10, "perf/seconds": 4.0},
        {"step": 10, "val/knn_top1": 50.0},
    ]
    assert trial._curve(lines, per_epoch=10.0) == ((1.0, 4.0, 50.0), (2.0, 9.0, 60.0))
