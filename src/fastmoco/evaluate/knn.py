"""Weighted nearest neighbours: what features are worth without any training."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fastmoco.distributed import concatenate, share
from fastmoco.evaluate.scores import tops
from fastmoco.evaluate.subject import Answers, Subject

COUNTS = (20, 200)  # neighbours that vote


def evaluate(subject: Subject) -> Answers:
    """Top-1 and top-5 of the held-out images by the votes of their nearest among the others; nothing is trained."""
    bank, queries = subject.features()
    for k in COUNTS:
        yield from tops(f"knn{k}", vote(queries.x, bank.x, bank.labels, subject.classes, k), queries.labels)


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
    queries at a time. Ranks, of which each has all features, share the blocks.
    """
    k = min(k, len(bank) - own)
    if k < 1:
        raise ValueError(f"k={k} of {len(bank)} images: no neighbour can vote; use k of 1 or more, and more images")
    if not (queries.isfinite().all() and bank.isfinite().all()):
        raise ValueError("features are not finite, so nothing is near; the training has diverged")
    with torch.autocast(bank.device.type, enabled=False):
        bank = F.normalize(bank.float())
        votes = [queries.new_zeros(0, classes, dtype=torch.float)]
        mine = share(len(queries), block)
        for start in mine[::block]:
            cosines = F.normalize(queries[start : start + block].float()) @ bank.T
            if own:
                cosines[:, start:].fill_diagonal_(-torch.inf)
            nearest = _nearest(cosines, k)
            weights = (cosines.gather(1, nearest) / temperature).softmax(1)
            # Not scatter_add: on a GPU it adds in no fixed order.
            votes.append((weights[:, None] @ F.one_hot(labels[nearest].long(), classes).float()).squeeze(1))
    return concatenate(torch.cat(votes))


def _nearest(cosines: Float[Tensor, "q n"], k: int) -> Int[Tensor, "q {k}"]:
    """The k highest places of each row in rising order. Of equals the first; topk alone may take any of them."""
    if k == cosines.shape[1]:
        return torch.arange(k, device=cosines.device).expand(len(cosines), k)
    values, places = cosines.topk(k + 1)
    nearest = places[:, :k].sort(1).values
    for row in (values[:, k - 1] == values[:, k]).nonzero()[:, 0].tolist():  # rare: only there topk had a choice
        nearer = (cosines[row] > values[row, k]).nonzero()[:, 0]
        tied = (cosines[row] == values[row, k]).nonzero()[: k - len(nearer), 0]
        nearest[row] = torch.cat([nearer, tied]).sort().values
    return nearest
