"""Numbers over seeds: their mean and spread, their order, and whether that is the order of other numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev

SEEDS = 3  # from which on a spread says how clear a difference is


@dataclass(frozen=True)
class Score:
    """A mean, and the standard deviation (n - 1) that one value does not have."""

    mean: float
    spread: float | None
    count: int

    def text(self, digits: int = 1, sign: bool = False, of: int | None = None) -> str:
        """With its count where that is not the number of seeds told beside it."""
        mean = f"{round(self.mean, digits) + 0.0:{'+' if sign else ''},.{digits}f}"  # + 0.0: there is no -0.0
        spread = "" if self.spread is None else f" ± {self.spread:,.{digits}f}"
        return mean + spread + (f" (n = {self.count})" if of not in (None, self.count) else "")


def score(values: Iterable[float | None]) -> Score | None:
    """Of those values that there are."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Score(fmean(known), stdev(known) if len(known) > 1 else None, len(known))


def ranks(values: Sequence[float]) -> list[int]:
    """1 is the largest; equal values share the better rank."""
    return [1 + sum(other > value for other in values) for value in values]


@dataclass(frozen=True)
class Agreement:
    """Of the pairs of rows that differ in the paper and here: how many there are, and how many stand in its order here.

    A pair is clear if its means are further apart than the larger of its two standard deviations. That of two seeds may
    be next to nothing by chance, so it takes three of each.
    """

    pairs: int
    agree: int
    clear: int
    clear_agree: int
    unsure: int  # pairs of which one has too few seeds to say how clear they are

    def text(self) -> str:
        """In a sentence or two."""
        said = f"{self.agree} of {self.pairs} pairs of rows stand in the paper's order"
        if self.clear:
            apart = "whose means here differ by more than the larger of their standard deviations"
            if self.clear == 1:
                said += f"; so does the one {apart}" if self.clear_agree else f"; the one {apart} does not"
            else:
                said += f"; of the {self.clear} {apart}, {self.clear_agree} do{'es' * (self.clear_agree == 1)}"
        elif self.unsure < self.pairs:
            said += "; no two means here differ by more than the larger of their standard deviations"
        said += "."
        few = "all" if self.unsure == self.pairs else str(self.unsure)
        return (
            f"{said} Of the pairs, {few} ha{'s' if few == '1' else 've'} a row of one seed or two, too few to tell."
            if self.unsure
            else said
        )


def agreement(paper: Sequence[float], here: Sequence[Score]) -> Agreement:
    """Kendall's count of pairs; those with the same number, in the paper or here, are left out."""
    told = [
        ((one - other) * (mine.mean - yours.mean) > 0, _clear(mine, yours))
        for (one, mine), (other, yours) in combinations(zip(paper, here, strict=True), 2)
        if one != other and mine.mean != yours.mean
    ]
    return Agreement(
        pairs=len(told),
        agree=sum(agree for agree, _ in told),
        clear=sum(clear is True for _, clear in told),
        clear_agree=sum(agree and clear is True for agree, clear in told),
        unsure=sum(clear is None for _, clear in told),
    )


def _clear(one: Score, other: Score) -> bool | None:
    if one.spread is None or other.spread is None or min(one.count, other.count) < SEEDS:
        return None
    return abs(one.mean - other.mean) > max(one.spread, other.spread)


def length(number: int | None) -> str:
    """So many epochs, in words."""
    return f"{number} epoch{'s' * (number != 1)}"
