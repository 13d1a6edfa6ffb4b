"""Ways to merge the embeddings of several patches into one (Eq. 4, and section 5.5 on combination methods)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fastmoco.distributed import rank, world
from fastmoco.patches import ring, subsets, tiles
from fastmoco.samples import Group


@runtime_checkable
class Merge(Protocol):
    def groups(self, patches: int, n: int, grid: int, count: int | None) -> tuple[Group, ...]:
        """Which patches go together; raises ValueError if this cannot be."""

    def __call__(self, members: Sequence[Float[Tensor, "g b d"]]) -> Float[Tensor, "g b d"]:
        """The first members of all groups, then the second ones, and so on, as one stack."""


@dataclass(frozen=True)
class Mean:
    """Eq. 4: the plain average."""

    def groups(self, patches: int, n: int, grid: int, count: int | None) -> tuple[Group, ...]:
        return subsets(patches, n, grid, count)

    def __call__(self, members: Sequence[Float[Tensor, "g b d"]]) -> Float[Tensor, "g b d"]:
        return reduce(torch.add, members) / len(members)


@dataclass(frozen=True)
class Tiles:
    """Eq. 4 for just those patches that `Stitch(rows, columns)` would put together."""

    rows: int
    columns: int

    def groups(self, patches: int, n: int, grid: int, count: int | None) -> tuple[Group, ...]:
        if n != self.rows * self.columns:
            raise ValueError(f"n={n}: {self} is of n={self.rows * self.columns} patches")
        if count is not None:
            raise ValueError(f"count={count}: {self} says which patches go together; leave count out")
        return tiles(patches, grid, self.rows, self.columns)

    def __call__(self, members: Sequence[Float[Tensor, "g b d"]]) -> Float[Tensor, "g b d"]:
        return Mean()(members)


@dataclass(frozen=True)
class Max:
    """Eq. 8: the largest value of each channel."""

    def groups(self, patches: int, n: int, grid: int, count: int | None) -> tuple[Group, ...]:
        return subsets(patches, n, grid, count)

    def __call__(self, members: Sequence[Float[Tensor, "g b d"]]) -> Float[Tensor, "g b d"]:
        return reduce(torch.maximum, members)


@dataclass(frozen=True)
class Weighted:
    """Eq. 7: gamma for the first of two patches and 1 - gamma for the second.

    Every patch is first exactly once, so that gamma -> 1 gives the patches themselves (Figure 4a).
    """

    gamma: float

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma={self.gamma} is not a weight; use a number from 0 to 1")

    def groups(self, patches: int, n: int, grid: int, count: int | None) -> tuple[Group, ...]:
        if n != 2 or patches < 2:
            raise ValueError(f"a weighted average is of n=2 patches, not of n={n} from {patches}")
        if count not in (None, patches):
            raise ValueError(
                f"count={count}: a weighted average makes one sample per patch, {patches} here; leave count out"
            )
        return ring(patches, grid)

    def __call__(self, members: Sequence[Float[Tensor, "g b d"]]) -> Float[Tensor, "g b d"]:
        first, second = members
        return self.gamma * first + (1 - self.gamma) * second


@dataclass(frozen=True)
class Beta:
    """Eq. 7 with gamma drawn from Beta(alpha, alpha) (Figure 4b)."""

    alpha: float

    def __post_init__(self) -> None:
        if not self.alpha >= 0.1:  # or many Gamma draws are float32's least number, and their weights 0.5
            raise ValueError(f"alpha={self.alpha}: Beta weights cannot be drawn for it; use 0.1 or more")

    def groups(self, patches: int, n: int, grid: int, count: int | None) -> tuple[Group, ...]:
        if n != 2:
            raise ValueError(f"Beta weights are for n=2 patches, not for n={n}")
        # The paper does not say which pairs get random weights; we take all, since neither patch is the first one here.
        return subsets(patches, n, grid, count)

    def __call__(self, members: Sequence[Float[Tensor, "g b d"]]) -> Float[Tensor, "g b d"]:
        first, second = members
        # The paper does not say how often gamma is drawn; we draw one for every combination of every image.
        # Drawn for the images of all ranks, of which each takes its own: the draws are those of one process.
        images = first.shape[1]
        alpha = torch.full((len(first), images * world(), 1), self.alpha, device=first.device)
        # A share of two Gamma draws is a Beta draw. Where there are shapes but no values, torch 2.11 draws neither.
        source = torch.distributions.Gamma(alpha, torch.ones_like(alpha), validate_args=False)
        draws: Tensor = alpha.expand(2, *alpha.shape) if first.is_meta else source.sample((2,))
        gamma = (draws[0] / draws.sum(0))[:, rank() * images :][:, :images]
        return gamma * first + (1 - gamma) * second
