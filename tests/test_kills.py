"""A training that is killed again and again, at any moment, is in the end the training that was not."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import warm
from pictures import TINY, paint, records, trace

import fastmoco

SOURCE = Path(fastmoco.__file__).parents[1]
STREAM = ("--loader", "stream", "--workers", "1")
LONG = (*STREAM, "--epochs", "10")


def command(images, out, *more):
    return [
        *("-m", "fastmoco", "pretrain", str(images), "--recipe", "pocket/shapes", "--out", str(out)),
        *("--epochs", "6", "--batch", "8", "--log-every", "1", "--save-every", "2", "--knn-every", "3"),
        *("--device", "cpu", "--set", *TINY, *more),
    ]


def start(images, out, *more):
    """With all that a process does until it trains."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *command(images, out, *more)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def begin(images, out, *more):
    """With its imports behind it."""
    return warm.Python(command(images, out, *more))


def finish(images, out, *more):
    process = begin(images, out, *more)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 0, said
    return said


def judged(folder):
    return [line for line in records(folder) if "val/knn_top1" in line]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return paint(tmp_path_factory.mktemp("images"), 64, classes=2)


@pytest.fixture(scope="module")
def whole(images, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    finish(images, out, *STREAM)
    assert len(trace(out)) == 48
    return out


@pytest.fixture(scope="module")
def long(images, tmp_path_factory):
    out = tmp_path_factory.mktemp("long") / "run"
    finish(images, out, *LONG)
    assert len(trace(out)) == 80
    return out


def alike(one, other):
    assert trace(one) == trace(other)
    assert judged(one) == judged(other)
    ours, theirs = (torch.load(path / "checkpoints" / "last.pt", weights_only=True) for path in (one, other))
    assert all(value.equal(theirs["learner"][name]) for name, value in ours["learner"].items())


def wait_for_a_moment(process, metrics, rng):
    """Any moment: now and then while it starts, else up to half a second after it has made a step."""
    if rng.random() < 0.25:
        time.sleep(rng.uniform(0.2, 3))
        return
    before = metrics.stat().st_size if metrics.exists() else 0
    while process.poll() is None and (metrics.stat().st_size if metrics.exists() else 0) <= before:
        time.sleep(0.01)
    time.sleep(rng.uniform(0, 0.5))


def kill_until_done(images, out, number, rng, most, start, words):
    """Send a signal at a random moment, and start again, until the training is done or has been killed so often."""
    kills = 0
    while kills < most:
        process = start(images, out, *words)
        wait_for_a_moment(process, out / "metrics.jsonl", rng)
        if process.poll() is not None:
            process.communicate(timeout=60)
            break
        os.kill(process.pid, number)
        said = process.communicate(timeout=60)[1]
        kills += 1
        if number == signal.SIGTERM and process.returncode != 0:
            # Before the first step is done there is nothing to finish, and the signal ends the run by itself.
            assert process.returncode in (128 + signal.SIGTERM, -signal.SIGTERM), said
        elif number == signal.SIGKILL and process.returncode != 0:
            assert process.returncode == -signal.SIGKILL, said
    finish(images, out, *words)
    return kills


@pytest.mark.parametrize(
    "number",  # of SIGTERM test_torchrun.py has a quicker test
    [pytest.param(signal.SIGKILL, id="SIGKILL"), pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow)],
)
def test_two_kills_leave_no_trace(images, whole, tmp_path, number):
    assert kill_until_done(images, tmp_path / "run", number, random.Random(0), 2, begin, STREAM) > 0
    alike(tmp_path / "run", whole)


DIE = """
import os, signal, sys
from pathlib import Path

left = int(sys.argv.pop(1))
sync, rename = os.fsync, Path.replace

def die(call):
    def dying(*parts):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*parts)
    return dying

os.fsync, Path.replace = die(sync), die(rename)
from fastmoco.cli import main
main()
"""


def die_while_saving(images, out, moment, *more):
    """Killed at the n-th time that something is forced to the disk or given its name."""
    arguments = command(images, out, *STREAM, *more, "--workers", "0")[2:]
    process = warm.Python(["-c", DIE, moment, *arguments])
    said = process.communicate(timeout=120)[1]
    assert process.returncode in (0, -signal.SIGKILL), said
    return process.returncode != 0


def test_kills_during_a_save_leave_no_trace(images, whole, tmp_path):
    for moment in (3, 9, 13, 15):
        assert die_while_saving(images, tmp_path / "run", moment)
    finish(images, tmp_path / "run", *STREAM)
    alike(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_kill_at_any_moment_of_a_save_leaves_no_trace(images, long, tmp_path):
    kills = sum(die_while_saving(images, tmp_path / "run", moment, *LONG) for moment in range(1, 31))
    assert kills > 20  # by then it may be done
    finish(images, tmp_path / "run", *LONG)
    alike(tmp_path / "run", long)


def test_ctrl_c_in_a_terminal_reaches_the_workers_too_and_loses_nothing(images, whole, tmp_path):
    process = begin(images, tmp_path / "run", *STREAM, "--workers", "2")
    wait_for(lambda: (tmp_path / "run" / "checkpoints" / "last.pt").exists())
    os.killpg(process.pid, signal.SIGINT)  # the workers, too, as a terminal does
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert "stopped by SIGINT at step" in said
    assert "Traceback" not in said
    finish(images, tmp_path / "run", *STREAM)
    alike(tmp_path / "run", whole)


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_twenty_kills_leave_no_trace(images, long, tmp_path, number):
    rng, kills = random.Random(1), 0
    for attempt in range(20):
        kills += kill_until_done(images, tmp_path / f"run-{attempt}", number, rng, 20 - kills, start, LONG)
        alike(tmp_path / f"run-{attempt}", long)
        if kills >= 20:
            break
    assert kills >= 20
