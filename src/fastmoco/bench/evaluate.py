"""kNN and cached linear evaluation, from embeddings to numbers, beside plain loops that do the same."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import torch
import torch.nn.functional as F
from torch import nn

from fastmoco.bench.clock import Contender, enter, finish, free, most, taken
from fastmoco.bench.record import conclude, save
from fastmoco.evaluate.features import Features
from fastmoco.evaluate.feeds import Embeddings
from fastmoco.evaluate.fit import Classifier, Course, cosine, draws, fit
from fastmoco.evaluate.knn import COUNTS, TEMPERATURE, votes
from fastmoco.evaluate.linear import course, suited
from fastmoco.evaluate.scores import top1
from fastmoco.flags import to_write
from fastmoco.protocols import Linear
from fastmoco.spread import say

BLOCK = 256  # queries that a plain search asks at once
RATE, MOMENTUM = 0.1, 0.9  # of plain SGD
NEAR = 0.1  # points: by so much may rounding move a top-1 of thousands of queries
ROUNDS, LONG = 3, 2.0  # an evaluation that takes more seconds than this is measured once
FEW = 50  # times fewer embeddings are enough to warm up with
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

    def small(self) -> "Task":
        """The first of them, enough to warm up with."""
        return Task(_some(self.train), _some(self.test), self.classes)


Way = Callable[[Task], Tops]


def measure(
    images: int,
    queries: int,
    width: int,
    classes: int,
    epochs: int,
    device: torch.device,
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
    linear = _race(
        "linear", {"ours": partial(_fit, epochs=epochs), "plain": partial(_loop, epochs=epochs)}, task, found
    )
    knn = _race("knn", {"ours": _votes, "plain": _search}, task, found)
    _agree(found, queries)
    sizes = {"images": images, "queries": queries, "width": width, "classes": classes, "epochs": epochs}
    record = conclude("evaluate", knn, device, {**sizes, **found["knn, ours"]}, "", commit)
    other = conclude("evaluate", linear, device, {**sizes, **found["linear, ours"]}, "", commit)
    record |= {"top1": found, "rows": record["rows"] + other["rows"]}
    if out:
        save(to_write(out), record)
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


def _some(features: Features) -> Features:
    count = -(-len(features.x) // FEW)
    return Features(features.x[:count].clone(), features.index[:count], features.labels[:count])


def _race(what: str, ways: Mapping[str, Way], task: Task, found: dict[str, Tops]) -> list[Contender]:
    """Each has warmed up with a few embeddings; then they do the whole in turn, and what each finds is noted."""
    small, contenders = task.small(), []
    for name, way in ways.items():
        say(f"{what}: {name}")
        contenders.append(enter(f"{what}, {name}", partial(partial, way, small), task.device, warm=0))
    for number in range(ROUNDS):
        for contender, way in zip(contenders, ways.values(), strict=True):
            if number and contender.rounds[0] > LONG:
                continue
            free(task.device)
            there, begun = taken(task.device), time.perf_counter()
            found[contender.name] = way(task)
            finish(task.device)
            contender.rounds.append(time.perf_counter() - begun)
            contender.peak = most(task.device) - there
            say(f"{contender.name}: {contender.rounds[-1]:.2f} s, {found[contender.name]}")
    return contenders


def _agree(found: dict[str, Tops], queries: int) -> None:
    """Rounding may move one query of few, and hardly more of many. The two classifiers are not learnt alike."""
    near = max(NEAR, 100 / queries)
    for name, value in found["knn, ours"].items():
        other = found["knn, plain"][name]
        assert abs(value - other) <= near, f"{name}: ours {value}, plain {other}"


def _votes(task: Task) -> Tops:
    train, test = task.train, task.test
    scores = votes(test.x, train.x, train.labels, task.classes, COUNTS, spend=True)
    return {f"knn{k}_top1": top1(each, test.labels) for k, each in zip(COUNTS, scores, strict=True)}


def _search(task: Task) -> Tops:
    """As scripts usually do it: a product and torch's topk for some queries at a time, votes by scatter_add."""
    bank, labels = F.normalize(task.train.x), task.train.labels
    right = {k: torch.zeros((), dtype=torch.long, device=task.device) for k in COUNTS}
    for start in range(0, len(task.test.x), BLOCK):
        asked, truth = (each[start : start + BLOCK] for each in (task.test.x, task.test.labels))
        cosines, nearest = (F.normalize(asked) @ bank.T).topk(min(max(COUNTS), len(bank)))
        weights, chosen = (cosines / TEMPERATURE).exp(), labels[nearest]
        for k in COUNTS:
            scores = asked.new_zeros(len(asked), task.classes).scatter_add_(1, chosen[:, :k], weights[:, :k])
            right[k] += (scores.argmax(1) == truth).sum()
    return {f"knn{k}_top1": 100 * count.item() / len(task.test.x) for k, count in right.items()}


def _fit(task: Task, epochs: int) -> Tops:
    """The paper's protocol, by LARS."""
    plan = course(suited(Linear(epochs), len(task.train.x)))
    classifier, feed = _classifier(task), _feed(task, plan)
    known = uuid4().hex  # so that none goes on where one before was stopped
    fit(classifier, feed, plan, bf16=False, what="linear classifier", known=known)
    return _tested(task, classifier.head)


def _loop(task: Task, epochs: int) -> Tops:
    """A plain loop by SGD, on the same batches."""
    plan = Course("SGD", epochs, suited(Linear(epochs), len(task.train.x)).batch, _sgd, cosine)
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
