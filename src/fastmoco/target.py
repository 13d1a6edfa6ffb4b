"""Where targets come from: a slowly moving copy of the online branch, or the online branch itself without gradient."""

import copy
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fastmoco.branch import Branch


@runtime_checkable
class Target(Protocol):
    def copy(self, online: Branch) -> Branch | None:
        """The branch that makes the targets, or None if that is the online branch."""

    def update(self, online: Branch, target: Branch) -> None:
        """Bring the target branch up to date after an optimiser step."""


@dataclass(frozen=True)
class Momentum:
    """Eq. 1: an exponential moving average of encoder and projector."""

    alpha: float = 0.99

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha={self.alpha} is not a momentum; use a number from 0 to 1, such as 0.99")

    def copy(self, online: Branch) -> Branch:
        # The paper does not say how the target starts; the official code draws it anew. We copy, as MoCo v3 does.
        return Branch(copy.deepcopy(online.encoder), copy.deepcopy(online.projector)).requires_grad_(False)

    @torch.no_grad()
    def update(self, online: Branch, target: Branch) -> None:
        """Parameters only: the target normalises by its own batches and keeps its own running statistics."""
        sources: list[Tensor] = [*online.encoder.parameters(), *online.projector.parameters()]
        moving: list[Tensor] = [*target.encoder.parameters(), *target.projector.parameters()]
        torch._foreach_lerp_(moving, sources, 1 - self.alpha)  # one call for all of them


@dataclass(frozen=True)
class StopGradient:
    """SimSiam: the online branch is its own target."""

    def copy(self, online: Branch) -> None:
        return None

    def update(self, online: Branch, target: Branch) -> None:
        """The optimiser has moved it."""
