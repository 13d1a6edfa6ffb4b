"""What the trainings of a sweep came to: a line for each in a file, of which tables and figures are made."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fastmoco.journal import append
from fastmoco.notation import read as read_value
from fastmoco.recipe import Recipe

PLAIN = "online"  # the encoder that a run folder holds, with the statistics that training left
KNN, CACHED, LINEAR = "knn20/top1", "cached/top1", "linear/top1"  # the numbers that people look for
BAD = ("diverged", "collapsing", "learning rate too high", "not learning yet")  # verdicts; slow data harms no one
_KINDS = {int: "seed images seen jobs", str: "row base data names pixels", dict: "circumstances"}  # besides numbers
WORDS = {KNN: "kNN", CACHED: "cached linear", LINEAR: "linear"}


@dataclass(frozen=True)
class Finding:
    """One training: what was trained on what, how long it took, and what the encoder is worth."""

    recipe: Recipe
    seed: int
    row: str  # by which it was asked for; rows of other tables may mean the same recipe
    base: str
    data: str
    images: int
    names: str  # a digest of what the images are called
    seen: int  # images in all epochs
    seconds: float  # of training, compilation included
    first_step: float  # seconds from the start of the process until then
    images_per_second: float  # the median of the lines of its log
    jobs: int  # trainings that shared the device: with more than one, times are no measure of speed
    results: Mapping[str, Mapping[str, float]]  # by which encoder it is: online, or "target, recalibrated"
    curve: tuple[tuple[float, float, float], ...]  # epoch, seconds of training, kNN top-1
    circumstances: Mapping[str, Any]  # device, versions, commit, command
    pixels: str = ""  # a digest of what some images hold; older findings have none

    def on(self, images: int, names: str, pixels: str) -> bool:
        """Whether it was trained on that set, as far as is known."""
        return (self.images, self.names) == (images, names) and (self.pixels == pixels or not self.pixels or not pixels)

    @property
    def trouble(self) -> str:
        """The training's last verdict in a word, if it was a bad one; older findings have none."""
        word = str(self.circumstances.get("verdict", "")).partition(":")[0]
        return word if word in BAD else ""

    def score(self, name: str, encoder: str = PLAIN) -> float | None:
        """A number such as linear/top1, if it was asked for."""
        return self.results.get(encoder, {}).get(name)


def read(paths: Iterable[Path]) -> list[Finding]:
    """All findings of some files, as they stand there."""
    return [each for path in paths for each in _read(path)]


def add(path: Path, finding: Finding) -> None:
    """One more line, on the disk at once."""
    append(path, spell(finding))


def spell(finding: Finding) -> str:
    """A finding as a line."""
    return json.dumps({**asdict(finding), "recipe": repr(finding.recipe)})


def _read(path: Path) -> list[Finding]:
    found, faults = [], []
    for number, line in _lines(path):
        try:
            found.append(_parse(line))
        except ValueError as error:
            faults.append(f"{path}, line {number} is no finding of a sweep: {error}")
    if faults:  # a file of which no line is one may well be of use as it is
        raise ValueError(
            f"{faults[0]}; {'remove the line' if found else 'give a file that `fastmoco sweep` has written'}"
        )
    return found


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text("utf-8-sig")  # some editors put a mark before the first line
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text, so it holds no findings of a sweep; give another file") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; give another file") from None
    return [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _parse(line: str) -> Finding:
    try:
        known = json.loads(line)
        if not isinstance(known, dict):
            raise ValueError(f"it is a {type(known).__name__}")
        recipe = read_value(known["recipe"])
        if not isinstance(recipe, Recipe):
            raise ValueError(f"its recipe is a {type(recipe).__name__}")
        known = {"pixels": "", **known}
        known = {field.name: known[field.name] for field in fields(Finding)}
        for kind, names in _KINDS.items():
            for name in names.split():
                if not isinstance(known[name], kind) or isinstance(known[name], bool):
                    raise ValueError(f"its {name} is {known[name]!r}")
        _refuse_evaluations(known["circumstances"].get("evaluations", []))
        times = {name: _number(known[name]) for name in ("seconds", "first_step", "images_per_second")}
        results = {
            encoder: {name: _percent(value) for name, value in scores.items()}
            for encoder, scores in known["results"].items()
        }
        if not all(isinstance(point, list) and len(point) == 3 for point in known["curve"]):
            raise ValueError("its curve is not of epoch, seconds and kNN")
        curve = tuple((_number(epoch), _number(seconds), _percent(top1)) for epoch, seconds, top1 in known["curve"])
        if times["images_per_second"] <= 0:
            raise ValueError("its images_per_second are not above 0")
        return Finding(**{**known, **times, "recipe": recipe, "results": results, "curve": curve})
    except KeyError as error:
        raise ValueError(f"it has no {error}") from None
    except json.JSONDecodeError:
        raise ValueError("it is no JSON") from None
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _refuse_evaluations(names: object) -> None:
    """What a sweep goes by, unlike the other circumstances; older findings do not tell."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"its evaluations are {names!r}")


def _percent(value: object) -> float:
    if not 0 <= (number := _number(value)) <= 100:
        raise ValueError(f"{value!r} is no percentage")
    return number


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)
