"""The loop against the same steps written out by hand."""

import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
from pictures import TINY, paint, records, trace

import fastmoco
from fastmoco import train
from fastmoco.album import collect
from fastmoco.data import find
from fastmoco.draws import Draws
from fastmoco.evaluate.judge import Judge
from fastmoco.learner import Learner
from fastmoco.loader import Resident
from fastmoco.notation import read

SOURCE = str(Path(fastmoco.__file__).parents[1])


def test_the_loop_is_these_steps(tmp_path):
    images = paint(tmp_path / "images", 40, classes=2)
    options = {"epochs": 2, "batch": 8, "log_every": 1, "knn_every": 1, "workers": 0, "device": "cpu"}
    settings = (*TINY[:-1], "schedule.warmup=1", "clip=0.5", "optim.lr=0.1", "optim.weight_decay=0.0001")
    out = fastmoco.pretrain(str(images), recipe="pocket/shapes", out=str(tmp_path / "a"), set=settings, **options)
    recipe = read((out / "recipe.py").read_text())

    torch.manual_seed(0)
    learner = Learner(recipe).to(memory_format=torch.channels_last)
    groups = [
        [*learner.online.encoder.parameters(), *learner.online.projector.parameters()],
        [*learner.online.predictor.parameters()],
    ]
    optimizer = torch.optim.SGD([{"params": group} for group in groups], lr=0.1, momentum=0.9, weight_decay=1e-4)
    images = find(str(images)).train
    loader = Resident(
        collect(images, range(40), 1),
        Draws(recipe.views, recipe.batch, recipe.epochs, 0, 40),
        torch.device("cpu"),
        compile=False,
    )
    part = [0.25, 0.4375, 0.625, 0.8125, 1.0] + [(1 + torch.tensor(torch.pi * k / 5).cos()) / 2 for k in range(1, 6)]
    clipped = 0
    for step, batch in enumerate(islice(loader.since(0), 10)):
        optimizer.param_groups[0]["lr"] = 0.1 * float(part[step])  # and the predictor's stays
        loss = learner(loader.views(batch))
        optimizer.zero_grad()
        loss.backward()
        weights = [*groups[0], *groups[1]]
        norm = torch.stack([weight.grad.norm() for weight in weights]).norm()
        clipped += norm > 0.5
        for weight in weights:
            weight.grad.mul_((0.5 / norm).clamp(max=1))
        optimizer.step()
        with torch.no_grad():  # Eq. 1
            for name in ("encoder", "projector"):
                ours, theirs = (getattr(branch, name).parameters() for branch in (learner.online, learner.momentum))
                for source, moving in zip(ours, theirs, strict=True):
                    moving.copy_(0.99 * moving + 0.01 * source)
        line = next(line for line in records(out) if line["step"] == step + 1 and "train/loss" in line)
        assert line["train/loss"] == pytest.approx(loss.item(), abs=2e-4)
        assert line["train/grad_norm"] == pytest.approx(norm.item(), rel=0.02)
    assert clipped > 3
    saved = torch.load(out / "checkpoints" / "last.pt", weights_only=True)["learner"]
    for name, value in learner.state_dict().items():
        torch.testing.assert_close(saved[name], value, atol=2e-3, rtol=0.02, msg=name)


def in_a_process(code, tmp_path):
    paint(tmp_path / "images", 40)
    text = f"""
import fastmoco, os, signal, threading, time
from fastmoco import train
options = dict(recipe="pocket/shapes", out="run", set={TINY!r}, epochs=50, batch=8, loader="stream", workers=2)
advance = train.Training._advance
{code}
fastmoco.pretrain("images", device="cpu", **options)
"""
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment
    )


FAIL = """
def failing(self, batch):
    advance(self, batch)
    if self.step == 3:
        {fault}
train.Training._advance = failing
"""


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise ValueError('a mistake')", "ValueError: a mistake"),
        ("os.kill(os.getpid(), signal.SIGINT)", "KeyboardInterrupt"),
        (
            "import multiprocessing; os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL); time.sleep(1)",
            "a worker that reads images has died",
        ),
    ],
)
def test_a_training_with_workers_ends_when_it_fails(fault, words, tmp_path):
    """In a script, whose last exception keeps everything alive that it has passed."""
    done = in_a_process(FAIL.format(fault=fault), tmp_path)
    assert done.returncode != 0
    assert words in done.stderr


def test_those_to_keep_are_written_and_kept(tmp_path):
    options = {"recipe": "pocket/shapes", "set": TINY, "epochs": 1, "batch": 8, "device": "cpu", "workers": 0}
    out = fastmoco.pretrain(str(paint(tmp_path / "images", 40)), out=str(tmp_path / "a"), keep_every=2, **options)
    kept = sorted(path.name for path in (out / "checkpoints").glob("step-*"))
    assert kept == ["step-00000002.pt", "step-00000004.pt"]


def test_a_checkpoint_of_before_steps_were_recorded_goes_on_bit_by_bit(tmp_path, monkeypatch):
    """Its optimiser was not fused, and said so; its rates were those of the step that it was written at."""
    images = str(paint(tmp_path / "images", 40))
    options = {"recipe": "pocket/shapes", "set": TINY, "epochs": 1, "batch": 8, "device": "cpu", "workers": 0}
    options |= {"log_every": 1, "save_every": 2}
    whole = fastmoco.pretrain(images, out=str(tmp_path / "whole"), **options)
    advance = train.Training._advance

    def stop(self, batch):
        advance(self, batch)
        if self.step == 3:
            raise ValueError("a stop")

    monkeypatch.setattr(train.Training, "_advance", stop)
    with pytest.raises(ValueError, match="a stop"):
        fastmoco.pretrain(images, out=str(tmp_path / "stopped"), **options)
    monkeypatch.setattr(train.Training, "_advance", advance)
    path = tmp_path / "stopped" / "checkpoints" / "last.pt"
    state = torch.load(path, weights_only=True)
    assert state["step"] == 2
    for group in state["optimizer"]["param_groups"]:
        group |= {"fused": None, "lr": 0.5}
    torch.save(state, path)
    assert trace(fastmoco.pretrain(images, out=str(tmp_path / "stopped"), **options)) == trace(whole)


def test_a_training_that_is_past_its_best_says_so_at_its_end(tmp_path, monkeypatch, capsys):
    answers = iter([80.0, 75.0, 20.0])
    monkeypatch.setattr(Judge, "neighbours", lambda *_: {"val/knn_top1": next(answers), "val/images": 40})
    monkeypatch.setattr(Judge, "all", lambda *_: {**Judge.neighbours(), "val/linear_top1": 1.0})
    images = paint(tmp_path / "images", 16, classes=2)
    options = {"epochs": 3, "batch": 8, "log_every": 1, "knn_every": 1, "workers": 0, "device": "cpu"}
    fastmoco.pretrain(str(images), recipe="pocket/shapes", out=str(tmp_path / "a"), set=TINY, **options)
    said = "kNN was 80.0 % after epoch 1 and is 20.0 % now: fewer epochs, or smaller crops by"
    assert said in capsys.readouterr().err


def test_a_training_whose_target_branch_is_the_one_to_take_says_so_at_its_end(tmp_path, monkeypatch, capsys):
    numbers = {"val/knn_top1": 10.0, "val/linear_top1": 1.0, "val/target_knn_top1": 90.0, "val/images": 40}
    monkeypatch.setattr(Judge, "all", lambda *_: numbers)
    images = paint(tmp_path / "images", 16, classes=2)
    options = {"epochs": 1, "batch": 8, "knn_every": 1, "workers": 0, "device": "cpu"}
    said = "but kNN of its target branch is 90.0 %, and of this one 10.0 %: better take fastmoco.load("
    for _ in range(2):  # the second time it is done before
        fastmoco.pretrain(str(images), recipe="pocket/shapes", out=str(tmp_path / "a"), set=TINY, **options)
        _, found, rest = capsys.readouterr().err.partition(said)
        assert found
        assert rest.startswith(f'{str(tmp_path / "a")!r}, branch="target"), and --branch target in `fastmoco evaluate`')


def test_no_one_is_advised_to_do_what_is_done_already(tmp_path, monkeypatch, capsys):
    draw = Resident._draw

    def dawdle(loader, step):
        time.sleep(0.3)
        return draw(loader, step)

    monkeypatch.setattr(Resident, "_draw", dawdle)
    images = paint(tmp_path / "images", 40)
    options = {"epochs": 1, "batch": 8, "log_every": 1, "workers": 0, "device": "cpu", "set": TINY}
    for _ in range(2):  # the second time it is done before
        fastmoco.pretrain(str(images), recipe="pocket/shapes", out=str(tmp_path / "a"), **options)
        told = capsys.readouterr().err
        assert (
            "% waiting for draws; a larger --batch, in a new training, waits less\n"
            in told.partition(" of training: ")[2]
        )
        assert "--loader resident" not in told
