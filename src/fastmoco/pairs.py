"""Which sample meets which target."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fastmoco.samples import Group, Seen


@runtime_checkable
class Pairs(Protocol):
    def meet(self, sample: Seen, target: Seen) -> bool: ...


@dataclass(frozen=True)
class OtherViews:
    """A sample never meets a target that it has seen."""

    def meet(self, sample: Seen, target: Seen) -> bool:
        return not sample & target


@dataclass(frozen=True)
class SameView:
    """The paper's counter-example: a sample meets only the targets that it has seen."""

    def meet(self, sample: Seen, target: Seen) -> bool:
        return bool(sample & target)


def meetings(pairs: Pairs, samples: Sequence[Seen], targets: Sequence[Seen]) -> list[Group]:
    """For each target, the samples that meet it."""
    return [tuple(i for i, sample in enumerate(samples) if pairs.meet(sample, target)) for target in targets]
