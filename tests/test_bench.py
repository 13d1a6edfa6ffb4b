"""The clock of benchmarks, what they leave, and the commands that measure steps and whole trainings."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pictures import TINY, paint

import fastmoco
from fastmoco import __version__, cli, methods
from fastmoco.bench import clock, record, step
from fastmoco.bench.clock import Contender
from fastmoco.contrast import InfoNCE
from fastmoco.engine import Gear
from fastmoco.recipes import rows
from fastmoco.target import Momentum

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SOURCE = str(Path(fastmoco.__file__).parents[1])
SMALL = ["--recipe", "pocket/shapes", "--batch", "8", "--device", "cpu", "--set", *TINY]


def contender(name, rounds, images=0, peak=0):
    return Contender(name, lambda: None, images, first=1.234, peak=peak, rounds=rounds)


class Watch:
    """A clock that only work moves on."""

    def __init__(self, monkeypatch):
        self.now, self.done = 0.0, []
        monkeypatch.setattr(clock.time, "perf_counter", lambda: self.now)

    def work(self, name, seconds):
        def piece():
            self.now += seconds
            self.done.append(name)

        return piece


def test_contenders_take_turns_in_rounds_of_about_the_same_time(monkeypatch):
    watch = Watch(monkeypatch)
    quick, slow = contender("quick", []), contender("slow", [])
    quick.work, slow.work = watch.work("quick", 0.25), watch.work("slow", 1.5)
    clock.compete([quick, slow], CPU, seconds=3.0, rounds=2)
    assert watch.done == ["quick", "slow", *2 * ([*12 * ["quick"], *2 * ["slow"]])]
    assert quick.rounds == [0.25, 0.25]
    assert slow.rounds == [1.5, 1.5]


def test_a_piece_longer_than_a_round_is_done_once(monkeypatch):
    watch = Watch(monkeypatch)
    slow = contender("slow", [])
    slow.work = watch.work("slow", 10.0)
    clock.compete([slow], CPU, seconds=0.1, rounds=3)
    assert len(watch.done) == 4
    assert slow.rounds == [10.0] * 3


def test_the_first_piece_is_timed_with_what_makes_it_and_is_in_no_round(monkeypatch):
    watch = Watch(monkeypatch)

    def make():
        watch.now += 5.0
        return watch.work("piece", 2.0)

    made = clock.enter("a", make, CPU, images=3, warm=4)
    assert (made.name, made.images, made.first, made.peak, made.rounds) == ("a", 3, 7.0, 0, [])
    assert watch.done == ["piece"] * 5


def test_the_usual_round_is_the_median():
    assert contender("a", [3.0, 1.0, 100.0]).seconds == 3.0


def test_ratios_are_by_the_piece_or_by_the_image(capsys):
    ours = contender("ours", [0.2, 0.1, 0.4], images=10)
    few, many = contender("few", [0.1], images=2), contender("many", [0.2], images=40, peak=3 * 2**29)
    rows = record.conclude("a", [ours, few, many], CPU, {}, "")["rows"]
    assert [row["ratio"] for row in rows] == [1.0, 2.5, 0.25]
    assert [row["images_per_second"] for row in rows] == [50.0, 20.0, 200.0]
    assert [row["milliseconds"] for row in rows] == [200.0, 100.0, 200.0]
    assert rows[0]["rounds_milliseconds"] == [200.0, 100.0, 400.0]
    assert [row.get("peak_gib") for row in rows] == [None, None, 1.5]
    assert rows[0]["first_seconds"] == 1.23
    shown = capsys.readouterr().out
    for words in ("ours", "few", "many", "2.50 x", "0.25 x", "1.5"):
        assert words in shown
    pieces = record.conclude("a", [contender("ours", [0.5]), contender("other", [1.5])], CPU, {}, "")["rows"]
    assert [row["ratio"] for row in pieces] == [1.0, 3.0]
    assert not any("images_per_second" in row for row in pieces)


def test_the_record_has_all_that_a_number_needs_to_be_believed(tmp_path, monkeypatch):
    words = [
        "/opt/here/bin/fastmoco",
        "bench",
        "a",
        "/home/me/photos",
        "--out=/home/me/a.json",
        "--set",
        "optim.lr=0.1",
    ]
    monkeypatch.setattr(sys, "argv", words)
    path = tmp_path / "new" / "folder" / "a.json"
    made = record.conclude("a", [contender("ours", [1.0, 2.0])], CPU, {"size": 32}, str(path), commit="abc123")
    assert json.loads(path.read_text()) == made
    assert made["command"] == "fastmoco bench a photos --out=a.json --set optim.lr=0.1"
    assert (made["bench"], made["size"], made["commit"]) == ("a", 32, "abc123")
    assert (made["fastmoco"], made["torch"], made["cuda"]) == (__version__, torch.__version__, None)
    assert made["python"] == sys.version.split()[0]
    assert made["hardware"] == os.uname().machine
    assert (made["cores"], made["threads"]) == (os.cpu_count(), torch.get_num_threads())
    assert [path.name for path in path.parent.iterdir()] == ["a.json"]


def test_the_commit_is_gits_or_unknown(monkeypatch):
    answers = {"ls-files": "__init__.py\n", "status": " M a.py\n", "rev-parse": "abc1234\n"}

    def git(words, **options):
        return subprocess.CompletedProcess(words, 0, stdout=answers[words[1]])

    monkeypatch.setattr(record.subprocess, "run", git)
    assert record.circumstances(CPU)["commit"] == "abc1234, changed"
    answers["status"] = ""
    assert record.circumstances(CPU)["commit"] == "abc1234"
    assert record.circumstances(CPU, "given")["commit"] == "given"

    def absent(words, **options):
        raise FileNotFoundError("git")

    monkeypatch.setattr(record.subprocess, "run", absent)
    assert record.circumstances(CPU)["commit"] == "unknown"


def test_the_commit_of_a_tree_that_it_is_only_installed_in_is_not_its_own(tmp_path, monkeypatch):
    def git(*words):
        named = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *named, *words], cwd=tmp_path, check=True, capture_output=True)

    package = tmp_path / "site" / "bench"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / ".gitignore").write_text("site\n")
    git("init")
    git("add", ".gitignore")
    git("commit", "-m", "theirs")
    monkeypatch.setattr(record, "__file__", str(package / "record.py"))
    assert record.commit_here() == "unknown"
    git("add", "-f", "site")
    git("commit", "-m", "ours")
    assert len(record.commit_here()) >= 7


@pytest.mark.parametrize("name", list(rows()))
def test_every_row_meets_mocov3_with_the_same_networks_and_batch(name):
    recipe = rows()[name].recipe
    found = step.contest(recipe, Gear(CPU))
    assert next(iter(found)) == "ours"
    assert found["ours"] == (recipe, Gear(CPU))
    assert found[step.OFFICIAL] == (recipe, Gear(CPU, channels_last=False))
    plain, gear = found.get("MoCo v3, the same way", (recipe, Gear(CPU)))
    assert [view.online for view in plain.views] == [methods.encode] * 2
    assert [view.target for view in plain.views] == [methods.whole] * 2
    assert isinstance(plain.target, Momentum)
    assert isinstance(plain.contrast, InfoNCE)
    assert gear == Gear(CPU)
    kept = ("encoder", "projector", "predictor", "batch", "optim")
    assert [getattr(plain, each) for each in kept] == [getattr(recipe, each) for each in kept]


def test_what_makes_ours_fast_is_taken_away_step_by_step():
    gear = Gear(GPU, bf16=True, compile=True, graph=True)
    found = step.contest(methods.fast_moco, gear)
    gears = {name: how for name, (_, how) in found.items()}
    assert gears == {
        "ours": gear,
        "MoCo v3, the same way": gear,
        "not recorded": replace(gear, graph=False),
        "not compiled": replace(gear, graph=False, compile=False),
        "as the official code": Gear(GPU, channels_last=False),
    }
    assert {recipe for name, (recipe, _) in found.items() if "v3" not in name} == {methods.fast_moco}


def test_an_exact_step_is_exact_and_leaves_the_precision_as_it_was(monkeypatch):
    seen = []
    monkeypatch.setattr(step.Engine, "step", lambda *given: seen.append(torch.get_float32_matmul_precision()))
    recipe = rows()["pocket/shapes"].recipe
    torch.set_float32_matmul_precision("high")
    try:
        step.stepping(recipe, Gear(CPU), exact=True)([])
        step.stepping(recipe, Gear(CPU))([])
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == ["highest", "high"]


def command(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["fastmoco", *map(str, words)])
    cli.main()


def test_the_command_measures_a_step(tmp_path, monkeypatch, capsys):
    out, real = tmp_path / "step.json", tmp_path / "new" / "real.json"
    out.symlink_to(real)  # which stays one
    command(monkeypatch, "bench", "step", "--seconds", "0.01", "--out", out, "--commit", "abc", *SMALL)
    made = json.loads(real.read_text())
    assert [row["name"] for row in made["rows"]] == ["ours", "MoCo v3, the same way", "as the official code"]
    for row in made["rows"]:
        assert len(row["rounds_milliseconds"]) == 5
        assert all(0 < each < math.inf for each in row["rounds_milliseconds"])
        assert row["images_per_second"] == pytest.approx(8e3 / row["milliseconds"], rel=0.01)
    known = {"bench": "step", "recipe": "pocket/shapes", "encoder": "timm/test_resnet", "size": 16, "batch": 8}
    known |= {"samples": 12, "precision": "float32", "compiled": False, "recorded": False, "commit": "abc"}
    assert {name: made[name] for name in known} == known
    assert str(tmp_path) not in out.read_text()
    assert f"the record is in {out}" in capsys.readouterr().out


def test_a_recipe_of_ones_own_is_told_without_its_folder(tmp_path, monkeypatch):
    own = tmp_path / "my.py"
    own.write_text("from fastmoco.recipes import find\nmine = find('pocket/shapes').recipe\n")
    words = [f"{own}:mine" if word == "pocket/shapes" else word for word in SMALL]
    command(monkeypatch, "bench", "step", "--seconds", "0.01", f"--out={tmp_path / 'a.json'}", *words)
    assert json.loads((tmp_path / "a.json").read_text())["recipe"] == "my.py:mine"
    assert str(tmp_path) not in (tmp_path / "a.json").read_text()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["step", "--seconds", "0"], "--seconds 0: use a positive time"),
        (["step", "--seconds", "nan"], "--seconds nan: use a positive time"),
        (["step", "--recipe", "pocket/shape"], "unknown row 'pocket/shape'; the nearest known: pocket/shapes"),
        (["step", "--batch", "0"], "batch=0"),
        (["step", "--graph", "on", "--device", "cpu"], "--graph on: it needs a GPU"),
        (["step", "--device", "laptop"], "--device laptop: not on this machine"),
        (["step", "--second", "1"], "--second"),
        (["augment", "--seconds", "-1"], "--seconds -1: use a positive time"),
        (["augment", "--size", "0"], "--size 0: use 1 or more"),
        (["loader", "images", "--batch", "0"], "--batch 0: use 1 or more"),
        (["evaluate", "--images", "0"], "--images 0: use 1 or more"),
        (["train"], "DATA"),
        (["train", "missing"], "no such folder, list or set 'missing'"),
        (["train", "images", "--seconds", "0"], "--seconds 0: use a positive time"),
        (["train", "images", "--recipe", "no/row"], "unknown row 'no/row'"),
        (["train", "images", "--batch", "64"], "batch 64 is larger than the 12 images; use --batch 8"),
        (["train", "images", "--log-every", "0", "--batch", "8"], "--log-every 0: use 1 step or more"),
        (["train", "images", "--decode", "gpu", "--batch", "8", "--device", "cpu"], "--decode gpu needs a GPU"),
        (["train", "images", "--recipe", "table4a/encode_only"], "a plain loop makes two views of one size"),
        (["train", "images", "--recipe", "table1/mocov3"], "a plain loop does not solarise"),
        (["stop"], "unknown command 'bench stop'; the nearest known: bench step"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line_with_exit_2_and_leaves_nothing(words, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    paint(tmp_path / "images", 12)
    with pytest.raises(SystemExit) as end:
        command(monkeypatch, "bench", *words)
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("fastmoco: ")
    assert told.count("\n") == 1
    assert reason in told
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


@pytest.fixture
def short():
    """Where temporary files go: workers have sockets there, whose names must not be long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@contextmanager
def started(folder, short, *words):
    """A training that is measured, in a process group of its own, which ends with the test however that ends."""
    paint(folder / "images", 24)
    verb = ["bench", "train", str(folder / "images"), "--loader", "stream", "--workers", "2", "--log-every", "2"]
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "TMPDIR": str(short)}
    with subprocess.Popen(
        [sys.executable, "-m", "fastmoco", *verb, *SMALL, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
        start_new_session=True,
    ) as bench:
        try:
            yield bench
        except BaseException:
            os.killpg(bench.pid, signal.SIGKILL)
            raise


def left(group):
    """Whether any process of the group is still there."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True


def test_the_command_measures_a_training_and_its_step(tmp_path, short):
    with started(tmp_path, short, "--seconds", "1", "--out", str(tmp_path / "a" / "train.json")) as bench:
        said, complaints = bench.communicate(timeout=100)
    assert bench.returncode == 0, complaints
    made = json.loads((tmp_path / "a" / "train.json").read_text())
    assert [row["name"] for row in made["rows"]] == ["ours, end to end", "the step alone", "a plain loop"]
    ours, alone, plain = made["rows"]
    assert 0 <= made["data_wait"] <= 1
    assert made["share_of_step"] == pytest.approx(alone["milliseconds"] / ours["milliseconds"], rel=0.01)
    assert made["first_step_seconds"] == pytest.approx(ours["first_seconds"], abs=0.1)
    assert ours["first_seconds"] > 0
    assert plain["ratio"] == pytest.approx(plain["milliseconds"] / ours["milliseconds"], rel=0.01)
    assert (made["bench"], made["data"], made["workers"], made["batch"]) == ("train", "images", 2, 8)
    assert str(tmp_path) not in json.dumps(made)
    assert "the record is in" in said
    assert not left(bench.pid)
    assert [path.name for path in short.iterdir() if not path.name.startswith("torchinductor")] == []


@pytest.mark.parametrize(
    ("waited", "stop"),
    [("metrics.jsonl", os.killpg), ("run.json", os.kill)],
    ids=["all processes, while there are lines", "one process, while it starts"],
)
def test_ctrl_c_ends_a_measurement_and_leaves_nothing(waited, stop, tmp_path, short):
    with started(tmp_path, short, "--seconds", "500", "--out", str(tmp_path / "train.json")) as bench:
        while not any(path.stat().st_size for path in short.rglob(waited)):
            assert bench.poll() is None, bench.stderr.read()
            time.sleep(0.02)
        stop(bench.pid, signal.SIGINT)
        _, complaints = bench.communicate(timeout=100)
    assert bench.returncode == 130
    assert "Traceback" not in complaints
    assert not left(bench.pid)
    assert [path.name for path in short.iterdir() if not path.name.startswith("torchinductor")] == []
    assert not (tmp_path / "train.json").exists()


def test_only_the_official_way_is_computed_in_full_precision(monkeypatch):
    exact = {}
    names = iter(step.contest(methods.fast_moco, Gear(CPU)))

    def working(recipe, gear, full=False):
        exact[next(names)] = full
        return lambda: lambda: None

    monkeypatch.setattr(step, "working", working)
    step.measure(methods.fast_moco, Gear(CPU), 0.001, "", {})
    assert exact == {"ours": False, "MoCo v3, the same way": False, "as the official code": True}


@pytest.mark.parametrize("out", [".", "a/b/c.json", "/dev/null/a.json"])
def test_a_record_that_cannot_be_written_is_refused_before_anything_is_measured(out, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(step, "measure", lambda *given: pytest.fail("measured") if out != "a/b/c.json" else {})
    monkeypatch.setattr(sys, "argv", ["fastmoco", "bench", "step", "--device", "cpu", "--out", out])
    if out == "a/b/c.json":
        cli.main()
        return
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert f"--out {out} cannot be written; give a file" in capsys.readouterr().err
