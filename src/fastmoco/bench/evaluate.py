"""kNN and cached linear evaluation, from embeddings to numbers, beside plain loops that do the same."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import torch.nn.functional as F
from torch import nn

from fastmoco.bench.clock import Contender, compete, enter
from fastmoco.bench.record import conclude, save
from fastmoco.evaluate.features import Features
from fastmoco.evaluate.feeds import Embeddings
from fastmoco.evaluate.fit import Classifier, Course, cosine, draws, fit
from fastmoco.evaluate.knn import COUNTS, TEMPERATURE, votes
from fastmoco.evaluate.linear import course, suited
from fastmoco.evaluate.scores import top1
from fastmoco.protocols import Linear
from fastmoco.spread import say

BLOCK = 256  # queries that a plain search asks at once
RATE, MOMENTUM = 0.1, 0.9  # of plain SGD
NEAR = 0.1  # points: by so much may rounding move a top-1 of thousands of queries
ROUNDS = 3
SLICE = 2**16  # embeddings that are moved to their centres at once

Tops = dict[str, float]


@dataclass(frozen=True)
class Task:
    """Embeddings to learn from and to be tested by."""

    train: Features
    test: Features
    classes: int

    @property
    def device(self) -> torch.device:
        return self.train.x.device


def measure(
    images: int,
    queries: int,
    width: int,
    classes: int,
    epochs: int,
    device: torch.device,
    seconds: float,
    out: str,
    commit: str = "",
) -> dict[str, Any]:
    """Seconds and memory of both evaluations, on drawn embeddings; those who do the same must find the same."""
    for name, value in {"images": images, "queries": queries, "classes": classes, "epochs": epochs}.items():
        if value < 1:
            raise ValueError(f"--{name} {value}: use 1 or more")
    if width < 2:
        raise ValueError(f"--width {width}: use 2 or more, such as 2048")
    say(f"drawing {images:,} embeddings of width {width:,}, {classes:,} classes, and {queries:,} queries on {device}")
    task = draw(images, queries, width, classes, device)
    found: dict[str, Tops] = {}
    # Linear first: kNN leaves the lengths of the bank changed.
    linear = _race("linear", _learners(task, epochs), found, images * epochs, device, seconds, rounds=1)
    knn = _race("knn", _searchers(task), found, queries, device, seconds, ROUNDS)
    _agree(found, queries)
    sizes = {"images": images, "queries": queries, "width": width, "classes": classes, "epochs": epochs}
    record = conclude("evaluate", knn, device, {**sizes, **found["knn, fastmoco"]}, "", commit)
    other = conclude("evaluate", linear, device, {**sizes, **found["linear, fastmoco"]}, "", commit)
    record |= {"top1": found, "rows": record["rows"] + other["rows"]}
    if out:
        save(Path(out), record)
        say(f"the record is in {out}")
    return record


def draw(images: int, queries: int, width: int, classes: int, device: torch.device) -> Task:
    """A centre for each class, and noise that lets some neighbours be of another one, whatever the width."""
    generator = torch.Generator(device).manual_seed(0)
    # Cosines to the own class are higher than others by this many times their spread, which is 1 / sqrt(width).
    apart = math.sqrt(1.3 / math.sqrt(width))
    centres = apart * torch.randn(classes, width, generator=generator, device=device)

    def some(count: int) -> Features:
        labels = torch.randint(classes, (count,), generator=generator, device=device)
        x = torch.randn(count, width, generator=generator, device=device)
        for part, label in zip(torch.split(x, SLICE), torch.split(labels, SLICE), strict=True):
            part += centres[label]
        return Features(x, torch.arange(count), labels)

    return Task(some(images), some(queries), classes)


def _race(
    what: str,
    ways: dict[str, Callable[[], Tops]],
    found: dict[str, Tops],
    images: int,
    device: torch.device,
    seconds: float,
    rounds: int,
) -> list[Contender]:
    """Let each do the whole once, then all of them in turn; what each has found is noted."""
    contenders = []
    for name, way in ways.items():

        def make(name: str = f"{what}, {name}", way: Callable[[], Tops] = way) -> Callable[[], None]:
            def work() -> None:
                found[name] = way()

            return work

        say(f"{what}: {name}")
        contenders.append(enter(f"{what}, {name}", make, device, images, warm=0))
        say(f"{what}: {name}, {contenders[-1].first:.2f} s at first, {found[f'{what}, {name}']}")
    say(f"{what}: all in turn")
    compete(contenders, device, seconds, rounds)
    return contenders


def _agree(found: dict[str, Tops], queries: int) -> None:
    """Rounding may move one query of few, and hardly more of many."""
    near = max(NEAR, 100 / queries)
    for ours, theirs in (
        ("knn, fastmoco", "knn, plain"),
        ("knn, fastmoco", "knn, plain, anew for each k"),
        ("linear, fastmoco by SGD", "linear, plain by SGD"),
    ):
        for name, value in found[ours].items():
            assert abs(value - found[theirs][name]) <= near, f"{name}: {ours} {value}, {theirs} {found[theirs][name]}"


def _searchers(task: Task) -> dict[str, Callable[[], Tops]]:
    def ours() -> Tops:
        train, test = task.train, task.test
        scores = votes(test.x, train.x, train.labels, task.classes, COUNTS, spend=True)
        return {f"knn{k}_top1": top1(each, test.labels) for k, each in zip(COUNTS, scores, strict=True)}

    def plain() -> Tops:
        return _search(task, COUNTS)

    def anew() -> Tops:
        return {name: value for k in COUNTS for name, value in _search(task, (k,)).items()}

    return {"fastmoco": ours, "plain": plain, "plain, anew for each k": anew}


def _search(task: Task, counts: Sequence[int]) -> Tops:
    """As scripts usually do it: a product and torch's topk for some queries at a time, votes by scatter_add."""
    bank, labels = F.normalize(task.train.x), task.train.labels
    right = {k: torch.zeros((), dtype=torch.long, device=task.device) for k in counts}
    for start in range(0, len(task.test.x), BLOCK):
        asked, truth = (each[start : start + BLOCK] for each in (task.test.x, task.test.labels))
        cosines, nearest = (F.normalize(asked) @ bank.T).topk(min(max(counts), len(bank)))
        weights, chosen = (cosines / TEMPERATURE).exp(), labels[nearest]
        for k in counts:
            scores = asked.new_zeros(len(asked), task.classes).scatter_add_(1, chosen[:, :k], weights[:, :k])
            right[k] += (scores.argmax(1) == truth).sum()
    return {f"knn{k}_top1": 100 * count.item() / len(task.test.x) for k, count in right.items()}


def _learners(task: Task, epochs: int) -> dict[str, Callable[[], Tops]]:
    protocol = suited(Linear(epochs), len(task.train.x))
    paper, sgd = course(protocol), Course("SGD", epochs, protocol.batch, _sgd, cosine)
    return {
        "fastmoco": lambda: _fit(task, paper),
        "fastmoco by SGD": lambda: _fit(task, sgd),
        "plain by SGD": lambda: _loop(task, sgd),
    }


def _fit(task: Task, plan: Course) -> Tops:
    classifier, feed = _classifier(task), _feed(task, plan)
    known = uuid4().hex  # so that none goes on where one before was stopped
    fit(classifier, feed, plan, bf16=False, what="linear classifier", known=known)
    return _tested(task, classifier.head)


def _loop(task: Task, plan: Course) -> Tops:
    """As scripts usually do it, on the same batches."""
    classifier, feed = _classifier(task), _feed(task, plan)
    optimizer = plan.optimizer(classifier)
    for step, (x, labels) in enumerate(feed.since(0)):
        for group in optimizer.param_groups:
            group["lr"] = RATE * plan.rate(step / feed.draws.steps)
        loss = F.cross_entropy(classifier.head(x), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return _tested(task, classifier.head)


def _sgd(classifier: Classifier) -> torch.optim.Optimizer:
    return torch.optim.SGD(classifier.head.parameters(), RATE, MOMENTUM)


def _classifier(task: Task) -> Classifier:
    return Classifier(nn.Identity(), task.train.x.shape[1], task.classes, frozen=True, seed=0).to(task.device)


def _feed(task: Task, plan: Course) -> Embeddings:
    return Embeddings([task.train], draws(plan, len(task.train.x), seed=0))


@torch.no_grad()
def _tested(task: Task, head: nn.Module) -> Tops:
    return {"linear_top1": top1(head(task.test.x), task.test.labels)}
