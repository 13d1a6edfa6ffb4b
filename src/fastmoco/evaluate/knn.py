"""Weighted nearest neighbours: what features are worth without any training."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


@torch.no_grad()
def vote(
    queries: Float[Tensor, "q d"],
    bank: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    classes: int,
    k: int = 20,
    temperature: float = 0.07,
    own: bool = False,
    block: int = 256,
) -> Float[Tensor, "q {classes}"]:
    """For each query the votes of its k nearest by cosine, each in proportion to exp(cosine / temperature), in all 1.

    With `own` the queries are the bank itself, and an image is not its own neighbour. Similarities are held for `block`
    queries at a time.
    """
    k = min(k, len(bank) - own)
    if k < 1:
        raise ValueError(f"k={k} of {len(bank)} images: no neighbour can vote; use k of 1 or more, and more images")
    if not (queries.isfinite().all() and bank.isfinite().all()):
        raise ValueError("features are not finite, so nothing is near; the training has diverged")
    with torch.autocast(bank.device.type, enabled=False):
        bank = F.normalize(bank.float())
        votes = [queries.new_zeros(0, classes, dtype=torch.float)]
        for start in range(0, len(queries), block):
            cosines = F.normalize(queries[start : start + block].float()) @ bank.T
            if own:
                cosines[:, start:].fill_diagonal_(-torch.inf)
            nearest = _nearest(cosines, k)
            weights = (cosines.gather(1, nearest) / temperature).softmax(1)
            # Not scatter_add: on a GPU it adds in no fixed order.
            votes.append((weights[:, None] @ F.one_hot(labels[nearest].long(), classes).float()).squeeze(1))
    return torch.cat(votes)


def top1(scores: Float[Tensor, "q classes"], labels: Int[Tensor, " q"]) -> float:
    """How many are right, in percent; of equal scores the first counts."""
    return 100 * (scores.argmax(1) == labels).double().mean().item()


def _nearest(cosines: Float[Tensor, "q n"], k: int) -> Int[Tensor, "q {k}"]:
    """The k highest places of each row in rising order. Of equals the first; topk alone may take any of them."""
    last = cosines.topk(k).values[:, -1:]
    nearer, tied = cosines > last, cosines == last
    chosen = nearer | (tied & (tied.cumsum(1) <= k - nearer.sum(1, keepdim=True)))
    return chosen.nonzero()[:, 1].view(-1, k)
