"""What flows along a path: samples that remember the views they have seen, and their plan before there are tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Seen = frozenset[int]  # views, numbered crop by crop over the whole table
Group = tuple[int, ...]  # members of a new sample, as positions in a stack

# How far along a path a stack is. An encoder has four stages, as a ResNet does, and then pools.
IMAGE, LAST_MAP, EMBEDDING, PROJECTION, PREDICTION = 0, 4, 5, 6, 7
STAGES = ("image", *(f"stage-{k} map" for k in range(1, 5)), "embedding", "projection", "prediction")

MOST = 20_000  # samples of an image; no machine holds more, and a slip of the pen soon asks for them


@dataclass(frozen=True)
class Samples:
    """S samples of each of B images. `grid` is m when each m*m in a row are the patches of one view, else 1."""

    x: Float[Tensor, "s b *shape"]
    seen: tuple[Seen, ...]
    grid: int = 1

    def __post_init__(self) -> None:
        assert len(self.x) == len(self.seen), (
            f"{len(self.x)} samples, of which {len(self.seen)} know what they have seen"
        )

    def through(self, module: Callable[[Tensor], Tensor]) -> "Samples":
        """One pass of the whole stack, so that its samples share batch statistics."""
        y = module(self.x.flatten(0, 1))
        return Samples(y.reshape(*self.x.shape[:2], *y.shape[1:]), self.seen, self.grid)

    def regroup(self, x: Float[Tensor, "g b *shape"], groups: Sequence[Group], grid: int = 1) -> "Samples":
        """New samples: each has seen whatever the members of its group have seen."""
        return Samples(x, unite(self.seen, groups), grid)

    def detach(self) -> "Samples":
        return Samples(self.x.detach(), self.seen, self.grid)


@dataclass(frozen=True)
class Plan:
    """`Samples` without tensors: enough to count samples and pairs, and to refuse a path that cannot work."""

    seen: tuple[Seen, ...]
    stage: int
    height: int
    width: int
    grid: int = 1

    def require(self, step: object, *stages: int) -> None:
        if self.stage not in stages:
            wanted = " or ".join(STAGES[stage] for stage in stages)
            raise ValueError(
                f"{step} needs {wanted} samples, and here they are {STAGES[self.stage]} samples; move the step"
            )


def unite(seen: Sequence[Seen], groups: Sequence[Group]) -> tuple[Seen, ...]:
    return tuple(frozenset().union(*(seen[member] for member in group)) for group in groups)


def join(stacks: Sequence[Samples]) -> Samples:
    """Stacks that ended at the same place, as one stack."""
    return Samples(torch.cat([stack.x for stack in stacks]), tuple(seen for stack in stacks for seen in stack.seen))
