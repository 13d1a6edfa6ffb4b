"""A recipe is all that makes a row of the paper, and nothing about machines: a table of views, a target, a contrast."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from fastmoco import encoder, heads, kinds
from fastmoco.contrast import Contrast, InfoNCE
from fastmoco.heads import MLP
from fastmoco.optim import SGD, Optim, Schedule
from fastmoco.pairs import OtherViews, Pairs, meetings
from fastmoco.protocols import Linear, Protocol
from fastmoco.samples import IMAGE, MOST, PROJECTION, STAGES, Group, Plan, Seen
from fastmoco.steps import Encode, MontageEncodeDivide, Nearest, Path, Predict, Step
from fastmoco.target import Momentum, Target

Side = Literal["online", "target"]
SIDES: tuple[Side, ...] = get_args(Side)


@dataclass(frozen=True)
class Augment:
    """How a crop is changed; each number is a probability or a strength. The default is SimSiam's recipe."""

    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)  # brightness, contrast, saturation, hue
    jitter_p: float = 0.8
    grey_p: float = 0.2
    blur_p: float = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarise_p: float = 0.0
    flip_p: float = 0.5

    def __post_init__(self) -> None:
        kinds.check(self)
        for name in ("jitter_p", "grey_p", "blur_p", "solarise_p", "flip_p"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is not a probability; use a number from 0 to 1")
        if not 0 < self.blur_sigma[0] <= self.blur_sigma[1] or min(self.jitter) < 0:
            raise ValueError(
                f"blur_sigma={self.blur_sigma}, jitter={self.jitter}: use a rising range, and no negatives"
            )


@dataclass(frozen=True)
class View:
    """One row of the table of views: `count` crops that pass a network as one stack and share batch statistics."""

    size: int = 224
    count: int = 1
    scale: tuple[float, float] = (0.2, 1.0)  # of the image's area
    augment: Augment = field(default_factory=Augment)
    online: Path = ()  # empty: the online branch does not see this view
    target: Path = ()  # likewise
    # SimSiam resizes bilinearly, the official Fast-MoCo code bicubically.
    resize: Literal["bicubic", "bilinear"] = "bicubic"

    def __post_init__(self) -> None:
        kinds.check(self)
        if not 1 <= self.size <= MOST or not 1 <= self.count <= MOST:
            raise ValueError(f"View(size={self.size}, count={self.count}): use 1 to {MOST:,} pixels and crops")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(
                f"scale={self.scale} is no range of areas; use two numbers from above 0 to 1, the smaller first"
            )
        if not self.online and not self.target:
            raise ValueError(f"a view of {self.size} px is on no path; give it an online or a target path")


@dataclass(frozen=True)
class Recipe:
    views: tuple[View, ...]
    target: Target = field(default_factory=Momentum)
    contrast: Contrast = field(default_factory=InfoNCE)
    pairs: Pairs = field(default_factory=OtherViews)
    encoder: str = "resnet50"
    projector: MLP = heads.projector
    predictor: MLP = heads.predictor
    support: int = 0  # vectors in the support set; Nearest needs some
    optim: Optim = field(default_factory=SGD)
    schedule: Schedule = field(default_factory=Schedule)
    clip: float = 1.0  # of the global norm of the gradient; 0 clips nothing
    epochs: int = 100
    batch: int = 512  # over all processes
    evaluation: Protocol = field(default_factory=Linear)

    def __post_init__(self) -> None:
        kinds.check(self)
        encoder.check(self.encoder)
        if self.epochs < 1 or self.batch < 2:
            raise ValueError(f"epochs={self.epochs}, batch={self.batch}: use 1 epoch or more and a batch of 2 or more")
        if self.optim.lr <= 0 or self.clip < 0:
            raise ValueError(
                f"optim.lr={self.optim.lr}, clip={self.clip}: use a positive rate, and a clip of 0 or more"
            )
        if self.schedule.warmup > self.epochs:
            raise ValueError(
                f"schedule.warmup={self.schedule.warmup:g} is longer than epochs={self.epochs}; change one"
            )
        self._check_sides()
        self._check_networks()

    def samples(self) -> tuple[Seen, ...]:
        """What each sample of an image has seen."""
        return tuple(seen for plan in self.plans("online") for seen in plan.seen)

    def targets(self) -> tuple[Seen, ...]:
        """What each target of an image has seen."""
        return tuple(seen for plan in self.plans("target") for seen in plan.seen)

    def meetings(self) -> list[Group]:
        """For each target, the samples that meet it."""
        return meetings(self.pairs, self.samples(), self.targets())

    def plans(self, side: Side) -> list[Plan]:
        """What each view's path on one side makes, known without tensors."""
        ends = []
        for number, (view, seen) in enumerate(zip(self.views, self.seen(), strict=True)):
            path = view.online if side == "online" else view.target
            if path:
                ends.append(_walk(path, Plan(seen, IMAGE, view.size, view.size), f"view {number}, {side} path"))
        return ends

    def seen(self) -> list[tuple[Seen, ...]]:
        """What the crops of each view have seen, before any step: themselves, numbered over the whole table."""
        number = itertools.count()
        return [tuple(frozenset({next(number)}) for _ in range(view.count)) for view in self.views]

    def size(self) -> int:
        """Pixels of the largest views; a whole image is shown at this size, too."""
        return max(view.size for view in self.views)

    def uses(self, kind: type[Step]) -> bool:
        """Whether a step of this kind is on any path."""
        return any(isinstance(step, kind) for view in self.views for step in (*view.online, *view.target))

    def _check_sides(self) -> None:
        ends = {side: {plan.stage for plan in self.plans(side)} for side in SIDES}
        for side, stages in ends.items():
            if not stages:
                raise ValueError(
                    f"no view has a path on the {side} side, so there is nothing to contrast; give one to a view"
                )
            if len(stages) > 1 or min(stages) < PROJECTION:
                names = ", ".join(STAGES[stage] for stage in sorted(stages))
                raise ValueError(f"{side} paths end at: {names}; all must end at one place, projection or later")
        if any(isinstance(step, Predict) for view in self.views for step in view.target):
            raise ValueError("Predict is in a target path, but the target branch has no predictor (Eq. 1); take it out")
        met = self.meetings()
        for number, group in enumerate(met):
            if not group:
                raise ValueError(f"target {number} meets no sample; add a view, or change pairs")
        alone = set(range(len(self.samples()))).difference(*met)
        if alone:
            raise ValueError(f"sample {min(alone)} meets no target; add a view, or change pairs")

    def _check_networks(self) -> None:
        cut = [
            step
            for view in self.views
            for step in (*view.online, *view.target)
            if isinstance(step, MontageEncodeDivide) or (isinstance(step, Encode) and step != Encode())
        ]
        if cut and encoder.whole_only(self.encoder):
            raise ValueError(
                f"{cut[0]} stops inside the encoder, which {self.encoder} cannot do; use a torchvision ResNet"
            )
        if self.uses(Predict) and self.predictor.widths[-1] != self.projector.widths[-1]:
            raise ValueError(
                f"predictor.widths={self.predictor.widths}, projector.widths={self.projector.widths}: "
                "a prediction meets a projection, so both must end with the same width"
            )
        if self.uses(Nearest) != (self.support > 0) or not 0 <= self.support <= 10**9:
            raise ValueError(
                f"support={self.support}: Nearest needs a support set, such as 65536, and only Nearest does"
            )


def _walk(path: Path, plan: Plan, where: str) -> Plan:
    for step in path:
        try:
            plan = step.plan(plan)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    return plan


@dataclass(frozen=True)
class Row:
    """A recipe and what the paper reports of it. Names of numbers are as in `metrics.jsonl`: `linear/top1`."""

    recipe: Recipe
    paper: Mapping[str, float] = field(default_factory=dict)
    samples: int | None = None  # per image, where the paper gives them
