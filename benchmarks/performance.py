"""The tables of docs/performance.md and of the README, from the records: no number there is typed.

python benchmarks/performance.py            # prints them
python benchmarks/performance.py --write    # puts them into the documents
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastmoco import documents
from fastmoco.documents import table

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "benchmarks" / "records"
DOCUMENT, README = ROOT / "docs" / "performance.md", ROOT / "README.md"
IMAGENET, EPOCHS = 1_281_167, 100

Record = dict[str, Any]


def read(name: str) -> Record:
    record: Record = json.loads((RECORDS / f"{name}.json").read_text())
    return record


def origin(name: str) -> str:
    """Where a table comes from."""
    record = read(name)
    hardware = (
        record["hardware"] if record["cuda"] else f"{record['cores']} cores of a CPU, {record['threads']} threads"
    )
    return f"`{name}.json`: {hardware}, torch {record['torch']}, commit {record['commit']}."


def contenders(name: str) -> str:
    """The rows of a bench; the last column is how many times as long one takes as ours."""
    rows = read(name)["rows"]
    memory = any("peak_gib" in row for row in rows)
    head = ["", "ms", "images/s", *(["peak GiB"] if memory else []), "times ours"]
    lines = [
        [
            row["name"],
            f"{row['milliseconds']:,.2f}",
            f"{row['images_per_second']:,.0f}" if "images_per_second" in row else "",
            *([f"{row['peak_gib']:.1f}" if "peak_gib" in row else ""] if memory else []),
            f"{row['ratio']:.2f}",
        ]
        for row in rows
    ]
    return "\n".join([*table(head, lines), "", origin(name)])


def training(name: str) -> str:
    record = read(name)
    said = (
        f"{record['encoder']}, {record['size']} px, batch {record['batch']}, {record['workers']} workers. "
        f"{_by_the_wall(record)}"
        f"Of the step alone: {record['share_of_step']:.1%}. Waiting for data: {record['data_wait']:.1%}. "
        f"First step: {record['first_step_seconds']:.0f} s after the start of the process."
    )
    return f"{contenders(name)}\n\n{said}"


def whole(record: Record) -> float:
    """Images a second of a training. Where a log line's clock stopped while it was written, by the wall clock."""
    wall = record.get("wall_clock")
    return float(record["rows"][0]["images_per_second"] if wall is None else _rate(record, wall))


def _rate(record: Record, wall: dict[str, int]) -> float:
    return wall["steps"] * record["batch"] / wall["seconds"]


def _by_the_wall(record: Record) -> str:
    wall = record.get("wall_clock")
    if wall is None:
        return ""
    return f"By the wall clock {wall['steps']:,} steps in {wall['seconds']} s: {_rate(record, wall):,.0f} images/s. "


def first_step(name: str) -> str:
    return f"First step: {read(name)['first_step_seconds']:.0f} s after the start of the process. {origin(name)}"


def evaluation(name: str) -> str:
    record = read(name)
    lines = [
        [row["name"], f"{row['milliseconds'] / 1e3:,.1f}", f"{row['peak_gib']:.1f}", f"{row['ratio']:.2f}"]
        for row in record["rows"]
    ]
    said = (
        f"{record['images']:,} features of width {record['width']:,}, {record['queries']:,} queries, "
        f"{record['classes']:,} classes, {record['epochs']} epochs of the linear classifier."
    )
    head = ["", "seconds", "peak GiB beyond the features", "times ours"]
    return "\n".join([*table(head, lines), "", f"{said} {origin(name)}"])


def apart(name: str) -> str:
    """A step by stage, and by kind of kernel; all that is bound by memory as one kind."""
    record = read(name)
    stages = [[stage, f"{share:.1%}"] for stage, share in record["stages"].items()]
    kinds: dict[str, list[float]] = {}
    for kind, each in record["kinds"].items():
        kind = "batch norm, activations, sums" if kind.startswith("batch norm") else kind
        known = kinds.setdefault(kind, [0.0, 0])
        kinds[kind] = [known[0] + each["milliseconds"], known[1] + each["kernels"]]
    lines = [[kind, f"{spent:.1f}", f"{count:,.0f}"] for kind, (spent, count) in kinds.items()]
    whole = sum(spent for spent, _ in kinds.values())
    parts = [*table(["stage", "share"], stages), "", *table(["kind of kernel", "ms", "kernels"], lines)]
    return "\n".join([*parts, "", f"{whole:.1f} ms in all. {origin(name)}"])


def costs() -> str:
    """100 epochs of ImageNet, from rates that were measured."""
    one = whole(read("train-jpeg-h200"))
    grouped = {rate["batch"]: rate["images_per_second"] for rate in read("rates-h200-synchronised")["rates"]}
    lines = [["1", "256", f"{one:,.0f}", hours(one), "measured end to end"]]
    for batch in (64, 256):
        rate = 8 * grouped[batch]
        lines.append(
            ["8", f"{8 * batch:,}", f"{rate:,.0f}", hours(rate), "8 times one with norms over ranks; no network"]
        )
    names = ("train-jpeg-h200", "rates-h200-synchronised")
    origins = " ".join(f"`{name}.json`, commit {read(name)['commit']}." for name in names)
    return "\n".join([*table(["H200s", "batch in all", "images/s", "hours", "how"], lines), "", origins])


def summary() -> str:
    """What the README tells."""
    step, train, small = read("step-h200"), read("train-jpeg-h200"), read("train-imagenette-h200")
    ours, mocov3 = (next(row for row in step["rows"] if row["name"].startswith(name)) for name in ("ours", "MoCo v3"))
    official = next(row for row in step["rows"] if row["name"] == "as the official code")
    lines = [
        ["a step of ResNet-50, 224 px, batch 256", f"{ours['images_per_second']:,.0f} images/s"],
        ["the same, computed as the official code does", f"{official['images_per_second']:,.0f} images/s"],
        [
            "patches, over MoCo v3 computed the same way",
            f"{ours['milliseconds'] / mocov3['milliseconds'] - 1:.1%} more time",
        ],
        ["end to end from JPEG files, 16 workers", f"{whole(train):,.0f} images/s"],
        ["end to end, ResNet-18, Imagenette at 128 px", f"{whole(small):,.0f} images/s"],
    ]
    return "\n".join(table([step["hardware"], ""], lines))


def hours(rate: float) -> str:
    return f"{EPOCHS * IMAGENET / rate / 3600:.1f}"


TABLES: dict[str, Callable[[], str]] = {
    "step": lambda: contenders("step-h200"),
    "jpeg": lambda: training("train-jpeg-h200"),
    "imagenette": lambda: training("train-imagenette-h200"),
    "cold": lambda: first_step("train-imagenette-h200-cold"),
    "augment": lambda: contenders("augment-h200"),
    "apart": lambda: apart("profile-h200"),
    "evaluate": lambda: evaluation("evaluate-h200"),
    "costs": costs,
    "cpu step": lambda: contenders("step-cpu"),
    "cpu compiled": lambda: contenders("step-cpu-compiled"),
    "cpu train": lambda: training("train-cpu"),
    "cpu loader": lambda: contenders("loader-cpu"),
}


PLACES: dict[Path, dict[str, Callable[[], str]]] = {DOCUMENT: TABLES, README: {"speed": summary}}


def fill(path: Path) -> str:
    """A document with each table in its place."""
    document, makers = path.read_text(), PLACES[path]
    missing = set(makers) - set(documents.places(document, list(makers), path.name))
    assert not missing, f"{path.name} has no place for {missing}"
    return documents.fill(document, makers, path.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md and README.md")
    if parser.parse_args().write:
        for path in PLACES:
            path.write_text(fill(path))
    else:
        print("\n\n".join(f"{name}\n\n{make()}" for places in PLACES.values() for name, make in places.items()))


if __name__ == "__main__":
    main()
