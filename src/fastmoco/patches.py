"""Cut views into patches, put patches together, and choose which patches go together. Patches are in reading order."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

from fastmoco.samples import MOST, Group


def divide(x: Float[Tensor, "s b c height width"], m: int) -> Float[Tensor, "patches b c h w"]:
    """Each of S views as an m x m grid of patches: (S m m, B, C, H/m, W/m)."""
    s, b, c, height, width = x.shape
    parts = x.reshape(s, b, c, m, height // m, m, width // m)
    return parts.permute(0, 3, 5, 1, 2, 4, 6).flatten(0, 2)


def stitch(
    x: Float[Tensor, "s b c h w"], groups: Sequence[Group], rows: int, columns: int
) -> Float[Tensor, "g b c height width"]:
    """Each group of patches or maps laid out as rows x columns, in reading order."""
    _, b, c, h, w = x.shape
    parts = take(x, [member for group in groups for member in group]).reshape(-1, rows, columns, b, c, h, w)
    return parts.permute(0, 3, 4, 1, 5, 2, 6).flatten(5, 6).flatten(3, 4)


def take(x: Float[Tensor, " s *shape"], places: Sequence[int]) -> Float[Tensor, " g *shape"]:
    """The samples at these places of a stack. An index tensor would make a GPU wait, and add gradients in any order."""
    if list(places) == list(range(len(x))):
        return x
    samples = x.unbind()
    return torch.stack([samples[place] for place in places])


@cache
def tiles(count: int, grid: int, rows: int, columns: int) -> tuple[Group, ...]:
    """Groups that fill rows x columns tiles: neighbours where patches have a place, in order where not."""
    height, width = (grid, grid) if grid > 1 else (rows, columns)
    if height % rows or width % columns:
        raise ValueError(f"a {height}x{width} grid of patches does not divide into {rows}x{columns} tiles")
    if count % (height * width):
        raise ValueError(f"{count} patches do not fill {rows}x{columns} tiles; use a multiple of {height * width}")
    return tuple(
        tuple(block + (top + row) * width + left + column for row in range(rows) for column in range(columns))
        for block in range(0, count, height * width)
        for top in range(0, height, rows)
        for left in range(0, width, columns)
    )


@cache
def subsets(patches: int, n: int, grid: int, count: int | None = None) -> tuple[Group, ...]:
    """All n-subsets of the patches, or `count` of them in which every patch takes part equally often."""
    if not 1 <= n <= patches:
        raise ValueError(f"n={n} patches cannot be chosen from {patches}; use n from 1 to {patches}")
    total = math.comb(patches, n)
    if total > MOST:
        raise ValueError(f"n={n} of {patches} patches have more than {MOST:,} subsets; use fewer patches")
    everything = tuple(combinations(range(patches), n))
    if count is None:
        return everything
    unit = patches // math.gcd(patches, n)
    if not 1 <= count <= total or count % unit:
        raise ValueError(
            f"count={count}: no choice of {count} out of {total} subsets uses each of {patches} patches equally often; "
            f"use a multiple of {unit} up to {total}"
        )
    return _balance(sorted(everything, key=lambda group: _spread(group, grid))[:count], patches)


@cache
def ring(patches: int, grid: int) -> tuple[Group, ...]:
    """Ordered pairs in which every patch is first once and second once, neighbours where the grid allows it."""
    rows = [range(start, min(start + grid, patches)) for start in range(0, patches, grid)]
    snake = [patch for number, row in enumerate(rows) for patch in (reversed(row) if number % 2 else row)]
    return tuple(zip(snake, snake[1:] + snake[:1], strict=True))


def _spread(group: Group, grid: int) -> int:
    """How far apart the members of a group are on their grid, so that neighbours can be chosen first."""
    places = [divmod(member, grid) for member in group]
    return sum((a - c) ** 2 + (b - d) ** 2 for (a, b), (c, d) in combinations(places, 2))


def _balance(groups: list[Group], patches: int) -> tuple[Group, ...]:
    """Swap members until every patch is used equally often.

    If patch u is used more often than v, more groups hold u without v than v without u, so at least one of them can
    trade u for v and become a group not yet chosen. Each trade lessens the imbalance, so this ends.
    """
    chosen, taken = list(groups), set(groups)
    used = Counter(member for group in groups for member in group)
    while True:
        u, v = (most(range(patches), key=lambda patch: used[patch]) for most in (max, min))
        if used[u] == used[v]:
            return tuple(sorted(chosen))
        for place, group in enumerate(chosen):
            traded = tuple(sorted({*group, v} - {u}))
            if u in group and v not in group and traded not in taken:
                chosen[place] = traded
                taken ^= {group, traded}
                used.update({u: -1, v: 1})
                break
