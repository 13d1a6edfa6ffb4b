"""Optimisers and the schedule of the learning rate, as values of a recipe. Rates are absolute, for its batch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SGD:
    """Weight decay on everything, norms and biases included, as in the official code."""

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        _check(self.momentum, self.weight_decay)


@dataclass(frozen=True)
class AdamW:
    """The paper does not say which values; we take MoCo v3's for ViT, 1.5e-4 x batch / 256 at batch 512."""

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        _check(max(self.betas), self.weight_decay)


@dataclass(frozen=True)
class LARS:
    """As MoCo v3: neither adaptation nor weight decay for norms and biases. 0.6 x batch / 256 at batch 4096."""

    lr: float = 9.6
    momentum: float = 0.9
    weight_decay: float = 1e-6
    trust: float = 1e-3

    def __post_init__(self) -> None:
        _check(self.momentum, self.weight_decay)


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up, then half a cosine per iteration to exactly zero."""

    warmup: float = 1.0  # epochs
    start: float = 0.25  # of the full rate, at the first iteration: 0.025 of 0.1, and 0.0375 of 0.15
    # The paper does not say; we keep the predictor at the full rate throughout, as the official code and SimSiam do.
    predictor: Literal["constant", "scheduled"] = "constant"

    def __post_init__(self) -> None:
        if self.warmup < 0 or not 0 <= self.start <= 1:
            raise ValueError(
                f"warmup={self.warmup}, start={self.start}: use 0 epochs or more, and a part of the rate from 0 to 1"
            )


Optim = SGD | AdamW | LARS


def _check(momentum: float, weight_decay: float) -> None:
    if not 0 <= momentum < 1 or weight_decay < 0:
        raise ValueError(f"momentum={momentum}, weight_decay={weight_decay}: use 0 to below 1, and 0 or more")
