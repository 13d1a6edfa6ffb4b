"""Train a classifier on labelled images: the one loop of linear, semi-supervised and fine-tuning evaluations."""

import contextlib
import functools
import hashlib
import math
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fastmoco import checkpoint, shards
from fastmoco.distributed import agree, leads, parallel, tell, total
from fastmoco.draws import Draws
from fastmoco.evaluate.feeds import NOT_ASKED, Feed
from fastmoco.evaluate.progress import Progress
from fastmoco.evaluate.store import keep
from fastmoco.interrupts import Interrupts
from fastmoco.lock import in_turn
from fastmoco.meeting import orphaned
from fastmoco.norm import synchronise
from fastmoco.recipe import Augment, View
from fastmoco.steps import Encode

SECONDS = 60.0  # from one checkpoint of a long fit to the next


class Classifier(nn.Module):
    """An encoder and a linear head, N(0, 0.01) at first as in MoCo. A frozen encoder stays in eval mode."""

    def __init__(self, encoder: nn.Module, width: int, classes: int, frozen: bool, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.frozen = frozen
        self.head = nn.Linear(width, classes)
        nn.init.normal_(self.head.weight, std=0.01, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(self.head.bias)
        self.train()

    def forward(self, x: Float[Tensor, " b *shape"]) -> Float[Tensor, "b classes"]:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            embedding = self.encoder(x)
        scores: Tensor = self.head(embedding)
        return scores

    def train(self, mode: bool = True) -> "Classifier":
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self


@dataclass(frozen=True)
class Course:
    """How a classifier is trained. `known` says it in words, so that a fit that was stopped is known again."""

    known: str
    epochs: int
    batch: int
    optimizer: Callable[[Classifier], torch.optim.Optimizer]  # the rate of each group is its full one
    rate: Callable[[float], float]  # the part of the full rates, after this part of all steps


def draws(course: Course, images: int, seed: int, size: int = 224) -> Draws:
    """The draws of a course: the crops and flips of all linear evaluations. A batch is no larger than the set."""
    plain = Augment(jitter_p=0.0, grey_p=0.0, blur_p=0.0)
    view = View(size, scale=(0.08, 1.0), augment=plain, online=(Encode(),))
    return Draws((view,), min(course.batch, images), course.epochs, seed, images, fill=True)


def cosine(done: float) -> float:
    """Half a cosine to zero."""
    return (1 + math.cos(math.pi * done)) / 2


def fit(classifier: Classifier, feed: Feed, course: Course, *, bf16: bool, what: str, known: str) -> None:
    """Train a classifier to the end of its course. A stop loses nothing: the same call goes on.

    `known` is by what the weights and the images are known again. Of a frozen classifier the head is trained, on
    embeddings. Every rank does all of it, unless the feed has parts of batches for them.
    """
    device, steps, batch, ranks = classifier.head.weight.device, feed.draws.steps, feed.draws.batch, feed.draws.world
    if ranks > 1:
        synchronise(classifier, device)
    optimizer = course.optimizer(classifier)
    full = [group["lr"] for group in optimizer.param_groups]
    words = "\n".join((known, course.known, repr(feed.draws)))
    folder = shards.store() / "unfinished" / hashlib.sha256(words.encode()).hexdigest()[:24]
    step = _resume(folder, classifier, optimizer)
    network = parallel(classifier) if ranks > 1 else classifier.head if classifier.frozen else classifier
    assert network is not None, "parts of batches are for a group"
    saved, kept = time.monotonic(), False
    with (
        closing(feed.since(step)) as examples,
        Interrupts() as interrupts,
        Progress(what, steps * batch, step * batch) as progress,
    ):
        for x, labels in examples:
            for group, rate in zip(optimizer.param_groups, full, strict=True):
                group["lr"] = rate * course.rate(step / steps)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16 and not classifier.frozen):
                scores = network(x)
            optimizer.zero_grad()
            torch.autograd.backward(_loss(scores.float(), labels, ranks))
            optimizer.step()
            step += 1
            progress.add(batch)
            interrupts.hold()
            stop = _stop(interrupts)
            if leads() and (stop or time.monotonic() - saved > SECONDS):
                save = functools.partial(_save, folder, step, classifier, optimizer)
                kept = keep("an unfinished classifier is", save, progress.line)
                saved = time.monotonic()
            if stop is not None:
                agree(None)  # that it is saved: a launcher ends all ranks as soon as one has ended
                progress.line.say(f"stopped by {stop.name}; the same command {'goes on' if kept else 'begins anew'}")
                raise KeyboardInterrupt(int(stop))
    if leads() and os.path.exists(folder):
        with contextlib.suppress(OSError), in_turn(folder):  # what was learnt matters more than what is left behind
            shutil.rmtree(folder, ignore_errors=True)
    if not tell(lambda: all(bool(weight.isfinite().all()) for weight in classifier.parameters())):
        raise FloatingPointError(f"{what}: the weights are not finite any more; use a lower --lr")


def _loss(scores: Float[Tensor, "b classes"], labels: Int64[Tensor, " b"], ranks: int) -> Float[Tensor, ""]:
    """The mean over all images of the batch that are asked, once gradients are averaged over so many ranks."""
    asked = (labels != NOT_ASKED).sum()
    asked = (total(asked) if ranks > 1 else asked).clamp(min=1)  # a mean over none would not be a number
    return F.cross_entropy(scores, labels, ignore_index=NOT_ASKED, reduction="sum") * ranks / asked


def _stop(interrupts: Interrupts) -> signal.Signals | None:
    """The signal that asks any rank to stop: all have to at the same step."""
    heard = agree(interrupts.asked or (signal.SIGTERM if orphaned() else None))
    return next(filter(None, heard or ()), None)


def _save(folder: Path, step: int, classifier: Classifier, optimizer: torch.optim.Optimizer) -> None:
    learnt = classifier.head if classifier.frozen else classifier
    state = {
        "step": step,
        "learnt": learnt.state_dict(),
        "optimizer": optimizer.state_dict(),
        # An encoder that learns may draw, to drop some of what it makes.
        **checkpoint.generators(classifier.head.weight.device),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with in_turn(folder):  # with the same evaluation in another process
        folder.mkdir(exist_ok=True)
        checkpoint.save(folder, state)


def _resume(folder: Path, classifier: Classifier, optimizer: torch.optim.Optimizer) -> int:
    """The step from which a fit goes on, as far as rank 0 knows."""
    state = tell(lambda: _newest(folder))
    if state is None:
        return 0
    (classifier.head if classifier.frozen else classifier).load_state_dict(state["learnt"])
    optimizer.load_state_dict(state["optimizer"])
    if "rng" in state:  # which earlier versions did not keep
        checkpoint.restore_generators(state, classifier.head.weight.device)
    step: int = state["step"]
    return step


def _newest(folder: Path) -> checkpoint.State | None:
    try:
        return checkpoint.newest(folder, lambda text: None) if os.path.exists(folder) else None
    except ValueError:  # damaged, and no more lost than time
        return None
