"""What a training tells of itself: numbers, a line for people with the verdict, and at the end where the encoder is."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from fastmoco import health
from fastmoco.album import Unreadable
from fastmoco.draws import Draws
from fastmoco.journal import Journal, clock, kept
from fastmoco.meter import Meter
from fastmoco.recipe import Recipe
from fastmoco.weights import snippet


class Commentary:
    """It reads the meter, and writes into the journal."""

    def __init__(self, recipe: Recipe, draws: Draws, meter: Meter, journal: Journal, resident: bool) -> None:
        self.recipe, self.draws, self.meter, self.journal = recipe, draws, meter, journal
        self.resident = resident  # whether no file is read, as far as that is known

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """A line of numbers for the records, and one of words for people."""
        self.journal.record(step, {"epoch": step / self.draws.per_epoch, **values})
        self.show(step)
        self.journal.note(f"{self._line(step)}  {self._verdict()}")

    def show(self, step: int) -> None:
        """On a terminal the verdict is one word, as the line may be short."""
        word, _, evidence = self._verdict().partition(": ")
        line = self.journal.line
        line.show(self._line(step) if line.live or word == "healthy" else f"{self._line(step)}  {evidence}")

    def conclude(self, step: int, path: Path, unreadable: Unreadable) -> None:
        """What became of it, where the encoder is, and how it is used."""
        words = self._verdict()
        words = "too short for a verdict" if words.startswith("starting") else words
        if unreadable.reasons:
            self.journal.say(f"{len(unreadable.reasons)} images could not be read; see {unreadable.path}")
        self.journal.say(f"done in {clock(self.meter.seconds)} of training: {words}")
        records = kept(path.parent / "metrics.jsonl", step)
        if peak := health.peak(records, step):
            earlier, best, last = peak
            self.journal.say(
                f"kNN was {best:.1f} % after epoch {earlier // self.draws.per_epoch} and is {last:.1f} % now: "
                "fewer epochs, or smaller crops by views.*.scale, may do better on these images"
            )
        how, folder = snippet(path, self.recipe.encoder), str(path.parent)
        self.journal.say(f"the encoder is in {path}; to load it:\n\n{how}\n\nor fastmoco.load({folder!r})")
        if ahead := health.outrun(records):
            target, online = ahead
            self.journal.say(
                f"but kNN of its target branch is {target:.1f} %, and of this one {online:.1f} %: better take "
                f'fastmoco.load({folder!r}, branch="target"), and --branch target in `fastmoco evaluate` and `export`'
            )

    def _line(self, step: int) -> str:
        values = self.meter.read(self.recipe.batch)
        left = (self.draws.steps - step) * self.recipe.batch / max(values["perf/images_per_second"], 1e-9)
        knn = self.journal.last("val/knn_top1")
        parts = [
            f"epoch {-(-step // self.draws.per_epoch)}/{self.recipe.epochs}",
            f"loss {values['train/loss']:.3f} (chance {self.recipe.contrast.chance(self.recipe.batch):.3f})",
            self._verdict().partition(":")[0],
            *([] if knn is None else [f"kNN {knn:.1f} %"]),
            f"{values['perf/images_per_second']:,.0f} img/s",
            f"{clock(left)} left",
            f"wait {100 * values['perf/data_wait']:.0f} %",
        ]
        return "  ".join(parts)

    def _verdict(self) -> str:
        return verdict(self.journal.recent, self.recipe, self.resident)


def verdict(lines: Iterable[Mapping[str, float | int]], recipe: Recipe, resident: bool) -> str:
    """How a training of a recipe is, by its records."""
    logged = [line for line in lines if "train/loss" in line]
    chance, width = recipe.contrast.chance(recipe.batch), recipe.projector.widths[-1]
    return health.verdict(logged, chance, recipe.batch, width, resident)
