"""One training of a sweep, as its process is told of it, and where it leaves what."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastmoco.flags import Switch
from fastmoco.trials.tally import length

if TYPE_CHECKING:
    from fastmoco.recipe import Recipe

FINDINGS = "runs/findings"  # where sweeps keep what they find, and reports look for it
FILE = "finding.json"  # in the run folder, when all is done
TAKEN = 75  # the exit code where another process is at this training


@dataclass(frozen=True)
class Means:
    """With what all trainings of a sweep are computed; nothing here changes what is learnt, beyond rounding."""

    device: str = "auto"
    precision: Literal["auto", "bf16", "float32"] = "auto"
    compile: Switch = "auto"
    graph: Switch = "auto"
    workers: int | None = None


@dataclass(frozen=True)
class Sweep:
    """What all trainings of a sweep have in common, beside what is trained."""

    data: str
    images: int
    pixels: str  # a digest of some of the images
    knn_every: int  # 0: ten times in all
    jobs: int  # that share the device
    commit: str
    command: str
    means: Means


@dataclass(frozen=True)
class Entry:
    """What is trained, with whichever seed: a row, and what the flags make of it."""

    row: str
    base: str
    epochs: int | None
    batch: int | None
    settings: Sequence[str]

    @property
    def title(self) -> str:
        """The row, and its length if that was asked for."""
        return self.row if self.epochs is None else f"{self.row}, {length(self.epochs)}"

    def recipe(self) -> "Recipe":
        from fastmoco.compose import compose

        return compose(self.row, self.settings, self.epochs, self.batch, "", None, self.base)


@dataclass(frozen=True)
class Job:
    """An entry of a sweep with a seed, where it is trained, and how it is judged."""

    sweep: Sweep
    entry: Entry
    seed: int
    folder: str  # of the run
    evaluations: Sequence[str]  # knn, cached, linear, encoders

    def spell(self) -> str:
        return json.dumps(asdict(self))


def read(text: str) -> Job:
    """The job that `spell` wrote."""
    known = json.loads(text)
    sweep, entry = known.pop("sweep"), known.pop("entry")
    means = Means(**sweep.pop("means"))
    return Job(Sweep(**sweep, means=means), Entry(**entry), **known)


def corner(folder: Path) -> Path:
    """Where the lock of a trial lies: not in its run folder, which has one of its own that training takes."""
    place = folder.parent / ".trials" / folder.name
    place.mkdir(parents=True, exist_ok=True)
    return place
