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
class Job:
    """What is trained on what, how it is judged, and for whom."""

    folder: str  # of the run
    row: str
    base: str
    epochs: int | None
    batch: int | None
    settings: Sequence[str]
    seed: int
    data: str
    images: int
    evaluations: Sequence[str]  # knn, cached, linear, encoders
    knn_every: int  # 0: ten times in all
    jobs: int  # that share the device
    commit: str
    command: str  # the sweep's
    means: Means
    pixels: str = ""  # a digest of some of the images

    @property
    def title(self) -> str:
        """The row, and its length if that was asked for."""
        return self.row if self.epochs is None else f"{self.row}, {length(self.epochs)}"

    def recipe(self) -> "Recipe":
        from fastmoco.command import compose

        return compose(self.row, self.settings, self.epochs, self.batch, "", None, self.base)

    def spell(self) -> str:
        return json.dumps(asdict(self))


def read(text: str) -> Job:
    """The job that `spell` wrote."""
    known = json.loads(text)
    return Job(**{**known, "means": Means(**known["means"])})


def corner(folder: Path) -> Path:
    """Where the lock of a trial lies: not in its run folder, which has one of its own that training takes."""
    place = folder.parent / ".trials" / folder.name
    place.mkdir(parents=True, exist_ok=True)
    return place
