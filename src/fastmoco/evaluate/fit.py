"""Train a classifier on labelled images: the one loop of linear, semi-supervised and fine-tuning evaluations."""

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fastmoco import checkpoint, shards
from fastmoco.draws import Draws
from fastmoco.evaluate.features import Features, labels_of
from fastmoco.evaluate.progress import Progress
from fastmoco.images import Images
from fastmoco.interrupts import Interrupts
from fastmoco.loader import choose
from fastmoco.recipe import Augment, View
from fastmoco.steps import Encode

NOT_ASKED = -100  # stands for the label of an image that could not be read; torch's loss leaves it out
SECONDS = 60.0  # from one checkpoint of a long fit to the next

Example = tuple[Float[Tensor, " b *shape"], Int64[Tensor, " b"]]


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


@runtime_checkable
class Feed(Protocol):
    """What a classifier learns from: examples from any step on."""

    draws: Draws

    def since(self, step: int) -> Generator[Example, None, None]:
        """To be closed, which ends what it has started."""


class Pictures:
    """Labelled images, cropped and flipped anew in every epoch."""

    def __init__(self, images: Images, draws: Draws, device: torch.device, workers: int) -> None:
        self.draws = draws
        self.device = device
        self.labels = labels_of(images)
        self.loader = choose(images, draws, device, way="auto", workers=workers, compile=False)
        self.bad: dict[int, str] = {}  # those that could not be read, and why

    def since(self, step: int) -> Generator[Example, None, None]:
        with closing(self.loader.since(step)) as batches:
            for batch in batches:
                labels = self.labels[batch.index]
                self.bad |= batch.bad
                if batch.bad:  # another image is in the place of such a one, and its label is not this one
                    labels[torch.isin(batch.index, torch.tensor(list(batch.bad)))] = NOT_ASKED
                views = self.loader.views(batch)[0][0]
                yield views.contiguous(memory_format=torch.channels_last), labels.to(self.device, non_blocking=True)


class Embeddings:
    """Embeddings that were extracted once, of one or of several looks at each image, which take turns by epoch."""

    def __init__(self, looks: list[Features], draws: Draws) -> None:
        self.draws = draws
        self.looks = looks

    def since(self, step: int) -> Generator[Example, None, None]:
        for number in range(step, self.draws.steps):
            look = self.looks[number // self.draws.per_epoch % len(self.looks)]
            index = self.draws.index(number).to(look.x.device)
            yield look.x[index], look.labels[index]


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

    `known` is by what the weights and the images are known again.
    """
    device, steps, batch = classifier.head.weight.device, feed.draws.steps, feed.draws.batch
    optimizer = course.optimizer(classifier)
    full = [group["lr"] for group in optimizer.param_groups]
    words = "\n".join((known, course.known, repr(feed.draws)))
    folder = shards.store() / "unfinished" / hashlib.sha256(words.encode()).hexdigest()[:24]
    step = _resume(folder, classifier, optimizer)
    saved = time.monotonic()
    with (
        closing(feed.since(step)) as examples,
        Interrupts() as interrupts,
        Progress(what, steps * batch, step * batch) as progress,
    ):
        for x, labels in examples:
            for group, rate in zip(optimizer.param_groups, full, strict=True):
                group["lr"] = rate * course.rate(step / steps)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                scores = classifier(x)
            # A mean over none would not be a number.
            asked = (labels != NOT_ASKED).sum().clamp(min=1)
            loss = F.cross_entropy(scores.float(), labels, ignore_index=NOT_ASKED, reduction="sum") / asked
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            step += 1
            progress.add(batch)
            interrupts.hold()
            if interrupts.halt() or time.monotonic() - saved > SECONDS:
                _save(folder, step, classifier, optimizer)
                saved = time.monotonic()
            if interrupts.asked is not None:
                progress.say(f"stopped by {interrupts.asked.name}; the same command goes on")
                raise KeyboardInterrupt(int(interrupts.asked))
    shutil.rmtree(folder, ignore_errors=True)
    if not all(weight.isfinite().all() for weight in classifier.parameters()):
        raise FloatingPointError(f"{what}: the weights are not finite any more; use a lower --lr")


def _save(folder: Path, step: int, classifier: Classifier, optimizer: torch.optim.Optimizer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    learnt = classifier.head if classifier.frozen else classifier
    state = {"step": step, "learnt": learnt.state_dict(), "optimizer": optimizer.state_dict()}
    checkpoint.save(folder, state)


def _resume(folder: Path, classifier: Classifier, optimizer: torch.optim.Optimizer) -> int:
    """The step from which a fit goes on."""
    if not folder.exists():
        return 0
    try:
        state = checkpoint.newest(folder, lambda text: None)
    except ValueError:  # damaged, and no more lost than time
        return 0
    if state is None:
        return 0
    (classifier.head if classifier.frozen else classifier).load_state_dict(state["learnt"])
    optimizer.load_state_dict(state["optimizer"])
    step: int = state["step"]
    return step
