"""What is asked of a sample and its target, for a whole stack of samples against one target at a time, in float32."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


@runtime_checkable
class Contrast(Protocol):
    def __call__(
        self, samples: Float[Tensor, "s b d"], target: Float[Tensor, "n d"], own: Int[Tensor, " b"]
    ) -> Float[Tensor, " s"]:
        """The loss of each sample, averaged over the batch. Row `own[i]` of the gathered target is that of image i."""

    def chance(self, batch: int) -> float:
        """The loss of embeddings that know nothing."""


@dataclass(frozen=True)
class InfoNCE:
    """Eq. 2. The negatives are the targets of the other images, of the same view as the positive."""

    tau: float = 1.0

    def __post_init__(self) -> None:
        if not self.tau > 0:
            raise ValueError(f"tau={self.tau} is not a temperature; use a positive number, such as 1.0 or 0.2")

    def __call__(
        self, samples: Float[Tensor, "s b d"], target: Float[Tensor, "n d"], own: Int[Tensor, " b"]
    ) -> Float[Tensor, " s"]:
        with torch.autocast(samples.device.type, enabled=False):
            logits = unit(samples) @ unit(target).T / self.tau
            labels = own.expand(len(samples), -1)
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels).mean(1)

    def chance(self, batch: int) -> float:
        return math.log(batch)


@dataclass(frozen=True)
class Cosine:
    """BYOL and SimSiam: minus the cosine between a sample and its own target, without negatives."""

    def __call__(
        self, samples: Float[Tensor, "s b d"], target: Float[Tensor, "n d"], own: Int[Tensor, " b"]
    ) -> Float[Tensor, " s"]:
        with torch.autocast(samples.device.type, enabled=False):
            return -(unit(samples) * unit(target[own])).sum(-1).mean(1)

    def chance(self, batch: int) -> float:
        return 0.0


def unit(x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    """In float32 at least: logits of half precision would blur the contrast."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)
