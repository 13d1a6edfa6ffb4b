"""What sweeps have found on a set of images: a file that they look into before they train, and add to after it."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastmoco.trials.crew import Task
from fastmoco.trials.job import FILE

if TYPE_CHECKING:
    from fastmoco.recipe import Recipe
    from fastmoco.trials.findings import Finding


@dataclass(frozen=True)
class Ledger:
    """The findings on a set of images, in a file that sweeps add to."""

    path: Path
    images: int
    names: str
    pixels: str = ""

    def findings(self) -> "list[Finding]":
        return list(filter(self._fits, self._all()))

    def _fits(self, finding: "Finding") -> bool:
        return finding.on(self.images, self.names, self.pixels)

    def alike(self, recipe: "Recipe", seed: int) -> "list[Finding]":
        """The findings of what computes the same, the last one first."""
        from fastmoco.alike import plain

        return [each for each in self.findings() if each.seed == seed and plain(each.recipe) == plain(recipe)][::-1]

    def find(self, recipe: "Recipe", seed: int) -> "Finding | None":
        return next(iter(self.alike(recipe, seed)), None)

    def known(self, task: Task) -> "Finding | None":
        """The finding of a task in the file, if it has all that is asked for."""
        return next((each for each in self.alike(task.recipe, task.job.seed) if _enough(each, task)), None)

    def collect(self, task: Task) -> "Finding | None":
        """The finding of a task with all that is asked for; one that its run folder has is added to the file."""
        known, file = self.known(task), task.folder / FILE
        if known is not None or not file.exists():
            return known
        found = next(filter(self._fits, _left(file)), None)
        if found is None or (found.recipe, found.seed) != (task.recipe, task.job.seed) or not _enough(found, task):
            return None
        self._put(found, task)
        return found

    def _put(self, finding: "Finding", task: Task) -> None:
        """Add it, unless another sweep has; it replaces one of the same training that knew less."""
        from fastmoco.checkpoint import write
        from fastmoco.lock import in_turn
        from fastmoco.trials.findings import spell

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with in_turn(self.path):
            if self.known(task) is not None:
                return
            older = next((each for each in self.alike(task.recipe, task.job.seed) if _told(each, finding)), None)
            lines = [line for line in self.path.read_text().splitlines() if line.strip()] if self.path.exists() else []
            kept = [line for line, each in zip(lines, self._all(), strict=True) if each != older]
            text = "".join(f"{line}\n" for line in (*kept, spell(finding)))
            write(self.path, lambda file: file.write(text.encode()))

    def _all(self) -> "list[Finding]":
        return _read(self.path, _state(self.path)) if self.path.exists() else []


def _left(file: Path) -> "list[Finding]":
    """What a trial has left in its run folder; what cannot be read it makes again, of what else is there."""
    from fastmoco.trials.findings import read

    try:
        return read([file])
    except ValueError:
        return []


def _enough(finding: "Finding", task: Task) -> bool:
    return {*task.job.evaluations} <= {*finding.circumstances.get("evaluations", ())}


def _told(older: "Finding", finding: "Finding") -> bool:
    """Whether a finding tells of all that an older one of its recipe and seed does, which then can go.

    One without pixels counts for any set of its names, and so is found; but may be of another set. It goes only if it
    is the same run, evaluated further, which has the same times and curve. Else both stay, and readers take the last.
    """
    same_run = (older.seconds, older.first_step, older.curve) == (finding.seconds, finding.first_step, finding.curve)
    return older.pixels == finding.pixels or (not older.pixels and same_run)


def _state(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_mtime_ns, state.st_size


@functools.lru_cache(maxsize=1)
def _read(path: Path, state: tuple[int, int]) -> "list[Finding]":
    """All findings of a file; a sweep asks often, and it changes seldom."""
    from fastmoco.trials.findings import read

    return read([path])
