"""Weighted nearest neighbours: what features are worth without any training."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int64
from torch import Tensor

from fastmoco.distributed import concatenate, share
from fastmoco.evaluate.features import finite
from fastmoco.evaluate.scores import tops
from fastmoco.evaluate.subject import Answers, Subject

COUNTS = (20, 200)  # neighbours that vote
TEMPERATURE = 0.07
ROOM = 2**32  # bytes of cosines that are held at once
MOST = 1024  # queries that are asked at once, if their cosines have room
TILE = 256  # of so many rows a GPU makes a product without waste
WORTH = 8  # a bank this many times larger than the best groups makes it worth looking for them
GROUP = 64  # cosines of which the highest stands for all; near the root of bank / neighbours, of ImageNet's 80


def evaluate(subject: Subject) -> Answers:
    """Top-1 and top-5 of the held-out images by the votes of their nearest among the others; nothing is trained."""
    bank, queries = subject.features()
    found = votes(queries.x, bank.x, bank.labels, subject.classes, COUNTS, spend=True)
    for k, scores in zip(COUNTS, found, strict=True):
        yield from tops(f"knn{k}", scores, queries.labels)


def vote(
    queries: Float[Tensor, "q d"],
    bank: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    classes: int,
    k: int = 20,
    temperature: float = TEMPERATURE,
    own: bool = False,
    block: int | None = None,
) -> Float[Tensor, "q {classes}"]:
    """For each query the votes of its k nearest by cosine, in proportion to exp(cosine / temperature); their sum is 1.

    With `own` the queries are the bank itself, and an image is not its own neighbour.
    """
    return votes(queries, bank, labels, classes, (k,), temperature, own, block)[0]


@torch.no_grad()
def votes(
    queries: Float[Tensor, "q d"],
    bank: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    classes: int,
    counts: Sequence[int],
    temperature: float = TEMPERATURE,
    own: bool = False,
    block: int | None = None,
    spend: bool = False,
) -> list[Float[Tensor, "q {classes}"]]:
    """The votes of the nearest for each count of them, by one search. With `spend` the bank's lengths are lost.

    Cosines are held for `block` queries at a time. Ranks, of which each has all features, share the blocks.
    """
    ks = [min(k, len(bank) - own) for k in counts]
    if min(ks) < 1:
        raise ValueError(
            f"k={min(ks)} of {len(bank)} images: no neighbour can vote; use k of 1 or more, and more images"
        )
    if not (finite(queries) and finite(bank)):
        raise ValueError("features are not finite, so nothing is near; the training has diverged")
    assert not (own and spend), "the queries would be spent with the bank"
    block = block or _block(len(bank))
    found = [[queries.new_zeros(0, classes, dtype=torch.float)] for _ in ks]
    with torch.autocast(bank.device.type, enabled=False):
        bank = _unit(bank.float(), spend)  # a copy of ImageNet's would be 10 GB
        mine = share(len(queries), block)
        # The last group is filled up with what is never near.
        room = bank.new_full((min(block, len(mine)), -(-len(bank) // GROUP) * GROUP), -torch.inf)
        for start in mine[::block]:
            asked = _unit(queries[start : start + block].float())
            cosines = room[: len(asked)]
            torch.mm(asked, bank.T, out=cosines[:, : len(bank)])
            if own:
                cosines[:, start : len(bank)].fill_diagonal_(-torch.inf)
            nearest = _nearest(cosines, max(ks))
            for k, parts in zip(ks, found, strict=True):
                parts.append(_count(cosines, nearest[:, :k], labels, classes, temperature))
    return [concatenate(torch.cat(parts)) for parts in found]


def _unit(x: Float[Tensor, "n d"], spend: bool = False) -> Float[Tensor, "n d"]:
    """Rows of length 1, in the same memory with `spend`.

    From about 1e19 on, squares are beyond float32 and a row would become 0, so it is made smaller first.
    """
    huge = torch.linalg.vector_norm(x, dim=1).isinf().nonzero()[:, 0]
    if len(huge):
        x = x if spend else x.clone()
        x[huge] /= x[huge].abs().amax(1, keepdim=True)
    return F.normalize(x, out=x if spend else None)


def _block(bank: int) -> int:
    """Queries at once: as many as have room, and whole tiles of them. Ranks need the same, so only the bank counts."""
    most = ROOM // (4 * bank)
    return max(1, min(MOST, most // TILE * TILE or most))


def _count(
    cosines: Float[Tensor, "q n"],
    nearest: Int64[Tensor, "q k"],
    labels: Int[Tensor, " bank"],
    classes: int,
    temperature: float,
) -> Float[Tensor, "q {classes}"]:
    nearest = nearest.sort(1).values
    weights = (cosines.gather(1, nearest) / temperature).softmax(1)
    chosen = labels[nearest].long()
    if not weights.is_cuda:
        return weights.new_zeros(len(weights), classes).scatter_add_(1, chosen, weights)
    return _add(weights, chosen, classes)


def _add(
    weights: Float[Tensor, "q k"], chosen: Int64[Tensor, "q k"], classes: int, room: int = ROOM // 8
) -> Float[Tensor, "q {classes}"]:
    """The weights of each class, as a product: a GPU would add in no fixed order. As many rows at once as have room."""
    kinds = torch.arange(classes, device=chosen.device)
    rows = max(1, room // (5 * classes * chosen.shape[1]))
    parts = zip(torch.split(weights, rows), torch.split(chosen, rows), strict=True)
    return torch.cat([(weight[:, None] @ (own[..., None] == kinds).float()).squeeze(1) for weight, own in parts])


def _nearest(cosines: Float[Tensor, "q n"], k: int) -> Int64[Tensor, "q {k}"]:
    """The places of the k highest of each row, the highest first; of equals the first.

    Whole groups are left out first: if k groups come before another, by their highest cosine or with an equal one that
    is further to the left, then so do k cosines come before each of the other's, and none of its is among the k.
    """
    every = torch.arange(cosines.shape[1], device=cosines.device).expand_as(cosines)
    if cosines.shape[1] <= WORTH * k * GROUP:  # few would be left out
        values, places = cosines.topk(min(k + 1, cosines.shape[1]))
        tied = (values[:, 1:] == values[:, :-1]).any(1).nonzero()[:, 0]  # rare: only there topk had a choice
        places[tied, :k] = _first(cosines[tied], every[: len(tied)], k)
        return places[:, :k]
    highest = cosines.view(len(cosines), -1, GROUP).amax(2)
    groups = _first(highest, every[:, : highest.shape[1]], k)
    places = (groups[..., None] * GROUP + every[:, None, :GROUP]).flatten(1)
    return _first(cosines.gather(1, places), places, k)


def _first(values: Float[Tensor, "q m"], places: Int64[Tensor, "q m"], k: int) -> Int64[Tensor, "q {k}"]:
    """The places of the k highest values of each row, the highest first; of equals the lowest place.

    topk alone may take any of equals, so it is asked for integers of which no two are equal: the value's bits, which
    rise as values do once those below zero are turned round, and then the place.
    """
    bits = (values + 0.0).view(torch.int32)  # there are two zeros, and the sum makes them one
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = (rising.long() << 32) - places
    return -keys.topk(k).values & 0xFFFFFFFF
