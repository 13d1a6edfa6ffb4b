"""What sweeps have found on a set of images: a file that they look into before they train, and add to after it."""

import contextlib
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastmoco.trials.crew import Task
from fastmoco.trials.trial import FILE, corner

if TYPE_CHECKING:
    from fastmoco.recipe import Recipe
    from fastmoco.trials.findings import Finding


@dataclass(frozen=True)
class Ledger:
    """The findings on a set of images, in a file that sweeps add to."""

    path: Path
    images: int
    names: str

    def findings(self) -> "list[Finding]":
        if not self.path.exists():
            return []
        found = _read(self.path, _state(self.path))
        return list(filter(self._fits, found))

    def _fits(self, finding: "Finding") -> bool:
        return (finding.images, finding.names) == (self.images, self.names)

    def find(self, recipe: "Recipe", seed: int) -> "Finding | None":
        return next((each for each in self.findings() if each.seed == seed and each.recipe == recipe), None)

    def collect(self, task: Task) -> "Finding | None":
        """The finding of a task with all that is asked for; one that its run folder has is added to the file."""
        from fastmoco.lock import alone
        from fastmoco.trials.findings import read

        older, file = self.find(task.recipe, task.job.seed), task.folder / FILE
        if older is not None and _enough(older, task):
            return older
        found = next(filter(self._fits, read([file])), None) if file.exists() else None
        if found is None or (found.recipe, found.seed) != (task.recipe, task.job.seed) or not _enough(found, task):
            return None
        with contextlib.suppress(ValueError), alone(corner(task.folder), "another sweep is adding it"):
            self._put(found, task)
        return found

    def _put(self, finding: "Finding", task: Task) -> None:
        """Add it, unless another sweep has; one of the same training that knew less makes room."""
        from fastmoco.checkpoint import write
        from fastmoco.trials.findings import add

        older = self.find(task.recipe, task.job.seed)
        if older is not None and _enough(older, task):
            return
        if older is not None:
            lines = [line for line in self.path.read_text().splitlines() if line.strip()]
            pairs = zip(lines, _read(self.path, _state(self.path)), strict=True)
            text = "".join(f"{line}\n" for line, each in pairs if each != older)
            write(self.path, lambda file: file.write(text.encode()))
        add(self.path, finding)


def _enough(finding: "Finding", task: Task) -> bool:
    return {*task.job.evaluations} <= {*finding.circumstances.get("evaluations", ())}


def _state(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_mtime_ns, state.st_size


@functools.lru_cache(maxsize=1)
def _read(path: Path, state: tuple[int, int]) -> "list[Finding]":
    """All findings of a file; a sweep asks often, and it changes seldom."""
    from fastmoco.trials.findings import read

    return read([path])
