"""Did pre-training help? An encoder beside others, by a linear probe and by fine-tuning, with more and fewer labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Int64

from fastmoco.evaluate import finetune
from fastmoco.evaluate.probe import probe
from fastmoco.evaluate.scores import top1
from fastmoco.evaluate.subject import Subject
from fastmoco.images import Part
from fastmoco.parts import by_fraction
from fastmoco.protocols import Finetune

PERCENTS = (1.0, 5.0, 20.0, 100.0)  # of the labels
Method = Literal["linear", "finetune"]
METHODS: tuple[Method, ...] = ("linear", "finetune")


@dataclass(frozen=True)
class Trial:
    """One number of the table, before it is known."""

    encoder: str  # random init, this encoder, ImageNet
    method: Method
    labels: float  # in percent
    seed: int


def trials(encoders: Sequence[str], seeds: Sequence[int], percents: Sequence[float] = PERCENTS) -> list[Trial]:
    """All of the table, the quick ones first."""
    return [
        Trial(encoder, method, percent, seed)
        for method in METHODS
        for percent in percents
        for encoder in encoders
        for seed in seeds
    ]


def labelled(subject: Subject, trial: Trial) -> Int64[np.ndarray, " part"]:
    """The images whose labels a trial may use. They depend on its seed alone, so encoders share them."""
    return by_fraction(subject.train, trial.labels / 100, trial.seed)


def measure(subject: Subject, trial: Trial, protocol: Finetune) -> float:
    """Top-1 of the held-out images."""
    index = labelled(subject, trial)
    if trial.method == "finetune":
        part = replace(subject, train=Part(subject.train, index), seed=trial.seed)
        return dict(finetune.evaluate(part, protocol))["finetune/top1"]
    train, test = subject.features()
    chosen = np.isin(train.index.numpy(), index)
    scores = probe(train.x[chosen], train.labels[chosen], test.x, subject.classes, trial.seed)
    return top1(scores, test.labels)
