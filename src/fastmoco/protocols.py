"""The paper's evaluation protocols as values (section 4.2 and the appendix)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Bound = tuple[Callable[[int | float], bool], str]  # whether a value fits, and what would

_COUNT: Bound = (lambda value: value >= 1, "use 1 or more")
_PART: Bound = (lambda value: 0 < value <= 1, "use a part above 0 and up to 1")
_BOUNDS: dict[str, Bound] = {
    "epochs": _COUNT,
    "batch": _COUNT,
    # Beyond, weights overflow at once.
    "lr": (lambda value: 0 < value < 1e9, "use a rate above 0 and below 1e9, such as 0.1"),
    "encoder_lr": (lambda value: 0 <= value < 1e9, "use a rate from 0 to below 1e9"),
    "fraction": _PART,
    "decay": _PART,
}


def check(values: Mapping[str, int | float], flags: bool = False) -> None:
    """Refuse what no protocol can have, by the name of the value or of its flag."""
    for name, value in values.items():
        fits, words = _BOUNDS[name]
        if not fits(value):
            raise ValueError(f"--{name.replace('_', '-')} {value}: {words}" if flags else f"{name}={value}: {words}")


@dataclass(frozen=True)
class Linear:
    """Table 6: a linear classifier on the frozen encoder, by LARS, without weight decay as in SimSiam."""

    epochs: int = 90
    lr: float = 0.8  # absolute, for this batch
    batch: int = 4096

    def __post_init__(self) -> None:
        check({"epochs": self.epochs, "batch": self.batch, "lr": self.lr})


@dataclass(frozen=True)
class Semi:
    """Table 2: fine-tuning on a part of the labels, SGD with Nesterov 0.9, the rate x0.2 at 60 % and 80 %."""

    fraction: float
    epochs: int
    lr: float  # of the classifier, as printed in the paper
    encoder_lr: float
    batch: int = 256

    def __post_init__(self) -> None:
        check({"epochs": self.epochs, "batch": self.batch, "lr": self.lr})
        check({"fraction": self.fraction, "encoder_lr": self.encoder_lr})


@dataclass(frozen=True)
class Detect:
    """Table 3: R50-C4 with all weights fine-tuned, the rate x0.1 at the milestones."""

    dataset: Literal["voc", "coco"]
    iterations: int
    milestones: tuple[int, ...]
    lr: float = 1e-2  # of the heads
    encoder_lr: float = 1e-3
    batch: int = 16
    trials: int = 1


@dataclass(frozen=True)
class Finetune:
    """All weights on a labelled set, small or large. The paper has no such evaluation: these values are ours.

    AdamW, a warm-up and a cosine, no label smoothing. Each stage of the encoder has `decay` of the rate of the next.
    """

    epochs: int = 30
    steps: int = 500  # at least: a small set is passed more often
    lr: float = 1e-3
    decay: float = 0.75
    weight_decay: float = 0.05
    warmup: float = 0.1  # of all steps
    batch: int = 64

    def __post_init__(self) -> None:
        check({"epochs": self.epochs, "batch": self.batch, "lr": self.lr, "decay": self.decay})
        if not 0 <= self.warmup < 1 or self.weight_decay < 0 or self.steps < 0:
            raise ValueError(
                f"warmup={self.warmup}, weight_decay={self.weight_decay}, steps={self.steps}: "
                "use a part from 0 to below 1, and 0 or more"
            )


linear_100 = Linear()
linear_20 = Linear(epochs=10, lr=1.6)  # after 20 epochs of pre-training
semi_1 = Semi(0.01, epochs=60, lr=5e2, encoder_lr=0.0)
semi_10 = Semi(0.10, epochs=20, lr=5e2, encoder_lr=1e-6)
voc = Detect("voc", 24_000, (18_000, 22_000), trials=3)
coco = Detect("coco", 90_000, (60_000, 80_000))  # the 1x schedule

Protocol = Linear | Semi | Detect
