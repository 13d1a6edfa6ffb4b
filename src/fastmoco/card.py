"""The model card of an exported encoder: what its run folder knows, and nothing about the machine that made it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastmoco.augment import MEAN, STD
from fastmoco.journal import kept
from fastmoco.kinds import brief
from fastmoco.pretrained import Pretrained
from fastmoco.run import read_field, read_recipe
from fastmoco.weights import digest

Lines = Sequence[Mapping[str, Any]]  # of metrics.jsonl


def describe(found: Pretrained, branch: str, loading: str, library: str) -> str:
    """The text of the card; `loading` are the lines that load the encoder in the library."""
    front = ["---", f"library_name: {library}", "pipeline_tag: image-feature-extraction", "tags:"]
    front += [*(f"- {tag}" for tag in ("self-supervised-learning", "contrastive-learning", "fastmoco")), "---"]
    side = ", momentum copy" if branch == "target" else ""
    parts = [
        [
            *front,
            "",
            f"# {found.name}{side}",
            "",
            f"An encoder of images: embeddings of {found.encoder.width} numbers.",
        ],
        ["## How to load it", "", "```python", loading, "```", "", _input(found)],
    ]
    if found.folder:
        # What came after a checkpoint of the way is none of its own.
        lines = kept(found.folder / "metrics.jsonl", *([found.step] if found.step >= 0 else []))
        numbers = _numbers(found.folder, lines, branch, digest(found.encoder.net))
        parts += [["## Training", "", *_training(found.folder, lines)], numbers]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _input(found: Pretrained) -> str:
    return (
        f"It takes RGB images, usually of {found.size} px, with pixels from 0 to 1 that are normalised by "
        f"mean {MEAN} and deviation {STD}."
    )


def _training(folder: Path, lines: Lines) -> Iterator[str]:
    """A line for each thing that is known of a run."""
    epochs, about = read_field(folder, "epochs"), _read(folder / "run.json")
    about = about if isinstance(about, dict) else {}
    images = about.get("images")
    done = max((line.get("epoch", 0.0) for line in lines), default=0.0)
    known = {
        "recipe": _row(about.get("row")),
        "data": " ".join(filter(None, (_last(about.get("data")), f"({images:,} images)" if _number(images) else ""))),
        "epochs": str(epochs) if done >= epochs else f"{done:g} of {epochs}",
        "batch": str(read_field(folder, "batch")),
        "seed": str(about.get("seed", "")),
        "versions": ", ".join(f"{name} {about[name]}" for name in ("fastmoco", "torch", "python") if name in about),
    }
    yield "Pre-trained without labels by `fastmoco`, which has the methods of the paper"
    yield "[Fast-MoCo](https://arxiv.org/abs/2207.08220); the recipe says which."
    yield ""
    yield from (f"- {name}: {value}" for name, value in known.items() if value)
    yield from ("", "```python", _recipe(folder), "```")


def _recipe(folder: Path) -> str:
    """Briefly, or as it stands there if it has parts of a user's own."""
    try:
        return brief(read_recipe(folder))
    except ValueError:
        return (folder / "recipe.py").read_text().strip()


def _numbers(folder: Path, lines: Lines, branch: str, known: str) -> list[str]:
    """A table of all that was measured: by the training itself, and by later evaluations."""
    found = []
    newest = {name: line for line in lines for name in line}
    for name in sorted(name for name in newest if name.startswith("val/") and _number(newest[name][name])):
        found.append(f"| {name} | step {newest[name]['step']:,} of the training | {newest[name][name]:.4g} |")
    records = _read(folder / "results.json")
    for record in records if isinstance(records, list) else []:
        # Of another branch, another step or recalibrated weights there may be records too.
        if isinstance(record, dict) and record.get("digest") == known and record.get("evaluation") != "gain":
            place = ", ".join(filter(None, (_last(record.get("data")), str(record.get("settings", "")))))
            results = record.get("results")
            for name, value in results.items() if isinstance(results, dict) else ():
                if _number(value):
                    found.append(f"| {name} | {place} | {value:.4g} |")
    note = ["Those of the training are of the online branch.", ""] if branch == "target" else []
    return ["## Results", "", *note, "| number | of | value |", "|---|---|---|", *found] if found else []


def _read(file: Path) -> Any:
    """What a JSON file holds, or None where there is none that can be read: a card says what is known."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def _last(path: object) -> str:
    """The last name of a path, as the folders before it are the user's own affair."""
    return Path(path).name if isinstance(path, str) else ""


def _row(name: object) -> str:
    """The name of a row, which is no path unless it is of the user's own file."""
    return _last(name) if not isinstance(name, str) or ".py:" in name else name


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
