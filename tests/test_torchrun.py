"""Whole trainings under torchrun, on this machine alone: several ranks, two nodes, stops and kills."""

import json
import os
import signal
import time
from itertools import chain
from pathlib import Path

import pytest
import warm
from pictures import TINY, paint, records, trace

TORCHRUN = ("-m", "torch.distributed.run")
SECONDS = 300  # for any of these, on a busy machine

# `fastmoco` itself, but each rank writes down which images it took, and something happens to one of them.
SCRIPT = """
import json, os, runpy, signal
from fastmoco import distributed, train

rank, first = int(os.environ.get("RANK", 0)), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
advance, stop, kill = train.Training._advance, int(os.environ.get("STOP", 0)), int(os.environ.get("KILL", 0))

def noting(self, batch):
    with open(f"{os.environ['NOTES']}-{distributed.rank()}", "a") as file:
        file.write(json.dumps([self.step, distributed.world(), batch.index.tolist()]) + "\\n")
    advance(self, batch)
    last = distributed.rank() == distributed.world() - 1
    if last and self.step == stop:
        os.kill(os.getpid(), signal.SIGTERM)
    if last and self.step == kill and first:
        os.kill(os.getpid(), signal.SIGKILL)

train.Training._advance = noting
runpy.run_module("fastmoco", run_name="__main__")
"""


def flags(images, out, *more):
    return [
        *("pretrain", str(images), "--recipe", "pocket/shapes", "--out", str(out), "--epochs", "2", "--batch", "8"),
        *("--log-every", "1", "--save-every", "3", "--device", "cpu", "--loader", "stream", "--workers", "1"),
        *("--set", *TINY, *more),
    ]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = paint(tmp_path_factory.mktemp("images"), 64, classes=2)
    sorted(folder.rglob("*.png"))[40].write_text("no image")
    return folder


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "noting.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def alone(images, script, tmp_path_factory):
    """The same training on one process."""
    folder = tmp_path_factory.mktemp("alone")
    finish([script, *flags(images, folder / "run")], folder)
    assert len(trace(folder / "run")) == 16
    return folder


def start(words, folder, **environment):
    """A process that begins warm; the ranks that it starts do not."""
    return warm.Python(words, NOTES=str(folder / "notes"), **environment)


def finish(words, folder, code=0, **environment):
    process = start(words, folder, **environment)
    said = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == code, said
    return said


def finish_together(number, words, folder, code=0):
    """Ranks that begin warm; what they say, one after another."""
    group = warm.group(number, words, NOTES=str(folder / "notes"))
    said = "".join(rank.communicate(timeout=SECONDS)[1] for rank in group)
    assert [rank.returncode for rank in group] == [code] * number, said
    return said


def ranks(number, *more):
    return [*TORCHRUN, "--standalone", f"--nproc-per-node={number}", *more]


def taken(folder):
    """The images of each step, in the order of ranks, and on how many ranks; a step that was made twice counts once."""
    found = {}
    for path in sorted(folder.glob("notes-*")):
        for step, world, index in map(json.loads, path.read_text().splitlines()):
            found.setdefault((step, world), {})[path.name] = index
    return {step: [*chain(*parts.values())] for (step, _), parts in sorted(found.items())}


def close(ours, theirs, rel=2e-4):
    assert [step for step, _ in ours] == [step for step, _ in theirs]
    for (step, loss), (_, other) in zip(ours, theirs, strict=True):
        assert loss == pytest.approx(other, rel=rel), step


def orphans(path):
    """Processes that have to do with a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(path) in (process / "cmdline").read_text():
                found.append(process.name)
        except OSError:  # it has just ended
            continue
    return found


def no_orphans(path):
    end = time.monotonic() + 60  # a worker looks for its parent every few seconds
    while orphans(path):
        assert time.monotonic() < end, orphans(path)
        time.sleep(0.2)


def test_two_nodes_are_one_process(tmp_path):
    """Two agents with one rendezvous on loopback, a rank each, on the drawn set."""
    code = """
import runpy
from fastmoco import shapes
shapes.COUNTS["train"] = 1000
runpy.run_module("fastmoco", run_name="__main__")
"""
    (tmp_path / "fewer.py").write_text(code)
    heads = ("projector.widths=(32, 32)", "predictor.widths=(16, 32)")
    settings = ("views.*.size=16", *heads, "schedule.warmup=0", "optim.lr=0.001")  # a higher one magnifies rounding
    command = [
        *(str(tmp_path / "fewer.py"), "pretrain", "shapes", "--epochs", "1", "--batch", "100", "--log-every", "1"),
        *("--device", "cpu", "--set", *settings),
    ]
    finish([*command, "--out", str(tmp_path / "one")], tmp_path)
    meet = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=two", "--local-addr=127.0.0.1")
    port = free_port()
    nodes = [
        start(
            [*TORCHRUN, *meet, f"--rdzv-endpoint=127.0.0.1:{port}", *command, "--out", str(tmp_path / "two")], tmp_path
        )
        for _ in range(2)
    ]
    said = [node.communicate(timeout=SECONDS)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert len(trace(tmp_path / "two")) == 10
    close(trace(tmp_path / "two"), trace(tmp_path / "one"), rel=2e-5)  # as small a part as the rate is of others'
    ours, theirs = ([line for line in records(tmp_path / run) if "val/knn_top1" in line] for run in ("two", "one"))
    assert ours[-1]["val/knn_top1"] == pytest.approx(theirs[-1]["val/knn_top1"], abs=0.5)
    assert sorted("the encoder is in" in text for text in said) == [False, True], "one rank speaks"
    assert {"perf/peer_wait", "perf/communication", "perf/overlap"} <= records(tmp_path / "two")[8].keys()


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_rank_that_is_killed_leaves_no_trace(images, script, alone, tmp_path):
    command = [*ranks(2, "--max-restarts=1"), str(script), *flags(images, tmp_path / "run")]
    said = finish(command, tmp_path, KILL="8")
    close(trace(tmp_path / "run"), trace(alone / "run"))
    told = (tmp_path / "run" / "train.log").read_text()
    assert told.count("another process of this run has ended") == 1
    assert told.count("resumed at step 6 of 16") == 1
    assert "restart 1 by torchrun, as a process had ended; resumed at step 6 of 16" in said
    assert "Traceback" not in said
    no_orphans(tmp_path)


@pytest.mark.slow
def test_devices_start_again_after_a_kill(images, alone, tmp_path):
    words = flags(images, tmp_path / "run", "--devices", "2", "--workers", "0")
    process = start(["-m", "fastmoco", *words], tmp_path)
    wait_for(lambda: len(trace(tmp_path / "run")) > 4 if (tmp_path / "run" / "metrics.jsonl").exists() else False)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    said = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 0, said
    assert said.count("was ended by SIGKILL; starting again") == 1
    assert "was ended by SIGKILL; resumed at step" in (tmp_path / "run" / "train.log").read_text()
    assert "Traceback" not in said
    close(trace(tmp_path / "run"), trace(alone / "run"))
    no_orphans(tmp_path)


def test_without_their_launcher_they_stop(images, tmp_path):
    words = flags(images, tmp_path / "run", "--devices", "2", "--epochs", "1000")
    process = start(["-m", "fastmoco", *words], tmp_path)
    wait_for(lambda: len(trace(tmp_path / "run")) > 1 if (tmp_path / "run" / "metrics.jsonl").exists() else False)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=SECONDS)
    no_orphans(tmp_path)
    assert "stopped by SIGTERM at step" in (tmp_path / "run" / "train.log").read_text()


def children(pid):
    """Those that a launcher has started: the ranks."""
    found = [path.parent for path in Path("/proc").glob("[0-9]*/stat")]
    return sorted(int(path.name) for path in found if parent(path) == pid)


def parent(path):
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has just ended
        return None


def wait_for(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_number_of_ranks_goes_on_where_another_stopped(images, script, alone, tmp_path, number):
    arguments = [str(script), *flags(images, tmp_path / "run")]
    said = finish([*ranks(2), *arguments], tmp_path, code=1, STOP="5")
    assert said.count("stopped by SIGTERM at step 5; the same command goes on") == 1, said
    finish(arguments, tmp_path, code=143, STOP="9")
    finish_together(number, arguments, tmp_path)
    assert taken(tmp_path) == taken(alone)
    unreadable = [(folder / "run" / "bad_images.txt").read_text() for folder in (tmp_path, alone)]
    assert unreadable[0] == unreadable[1]
    assert unreadable[0].count("\n") == 1
    assert sorted(taken(alone)) == list(range(16))
    close(trace(tmp_path / "run"), trace(alone / "run"))


def test_a_mistake_is_one_line(images, tmp_path):
    """Of all ranks, and of one that cannot see what the others see; and --devices does not try it again."""
    words = ["-m", "fastmoco", *flags(tmp_path / "nothing", tmp_path / "run"), "--devices", "2"]
    said = finish(words, tmp_path, code=2)
    assert said.startswith(f"fastmoco: no such folder, list or set '{tmp_path / 'nothing'}'")
    assert said.count("\n") == 1
    said = finish_together(2, ["-m", "fastmoco", *flags(images, tmp_path / "run"), "--batch", "7"], tmp_path, code=2)
    told = [line for line in said.splitlines() if line.startswith("fastmoco:")]
    assert told == ["fastmoco: batch 7 does not divide among 2 processes; use --batch 6 or --batch 8"]
    code = (
        "import os, runpy; from fastmoco import data; find = data.find\n"
        "data.find = lambda name, *more: find(name + '-not-here' * int(os.environ['RANK']), *more)\n"
        "runpy.run_module('fastmoco', run_name='__main__')"
    )
    (tmp_path / "blind.py").write_text(code)
    said = finish_together(2, [tmp_path / "blind.py", *flags(images, tmp_path / "run")], tmp_path, code=2)
    told = [line for line in said.splitlines() if line.startswith("fastmoco:")]
    assert len(told) == 1
    assert told[0].startswith("fastmoco: rank 1: ")
    assert "-not-here" in told[0]
    assert not (tmp_path / "run").exists()
