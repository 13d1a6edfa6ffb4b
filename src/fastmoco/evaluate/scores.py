"""How often scores are right."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor


def top1(scores: Float[Tensor, "q classes"], labels: Int[Tensor, " q"]) -> float:
    """How many are right, in percent; of equal scores the first counts."""
    return top(1, scores, labels)


def top(k: int, scores: Float[Tensor, "q classes"], labels: Int[Tensor, " q"]) -> float:
    """How many have their label among the k highest scores, in percent; of equal scores the first counts."""
    own = scores.gather(1, labels.long()[:, None])
    place = torch.arange(scores.shape[1], device=scores.device)
    # By what is surely below, since no comparison with NaN holds: such a score is not right.
    below = (scores < own) | ((scores == own) & (place >= labels[:, None]))
    return 100 * ((~below).sum(1) < k).double().mean().item()


def tops(name: str, scores: Float[Tensor, "q classes"], labels: Int[Tensor, " q"]) -> Iterator[tuple[str, float]]:
    """Top-1 and top-5 under their names."""
    for k in (1, 5):
        yield f"{name}/top{k}", top(k, scores, labels)
