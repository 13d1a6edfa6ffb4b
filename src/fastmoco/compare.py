"""`fastmoco evaluate gain`: whether pre-training has helped, as a table and a figure."""

import contextlib
import functools
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastmoco import __version__
from fastmoco.exam import USUAL, Exam, Shared, conclude, latest, prepare, see
from fastmoco.flags import Float, Int, Labelled, Records, Weights, given
from fastmoco.spread import say, spread

if TYPE_CHECKING:
    from fastmoco.evaluate.gain import Trial
    from fastmoco.evaluate.subject import Subject
    from fastmoco.protocols import Finetune

Record = dict[str, Any]
RANDOM, THIS, IMAGENET = "random init", "this encoder", "ImageNet"


@spread("evaluate gain", latest)
def gain(
    weights: Weights,
    data: Labelled,
    *,
    seeds: int = 3,
    epochs: Int = None,
    lr: Float = None,
    out: Records = "",
    terms: Shared = USUAL,
) -> dict[str, float]:
    """Did pre-training help? This encoder beside random weights and, where they can be had, ImageNet's.

    By a linear probe and by fine-tuning, with 1, 5, 20 and 100 % of the labels. Each number is kept in gain.jsonl,
    beside the results, so the same command goes on where it was stopped; gain-DATA.md is the table, gain-DATA.png
    the figure.

    Args:
        seeds: how often each is repeated, from --seed on, with other labels, another order and other random weights.
        epochs: epochs of fine-tuning; by default 30, and at least 500 steps.
        lr: the learning rate of fine-tuning, the same for all; 0.001 by default.
    """
    from fastmoco.distributed import tell
    from fastmoco.protocols import Finetune, check

    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: use 1 or more")
    flags = given({"epochs": epochs, "lr": lr})
    check(flags, flags=True)
    protocol = replace(Finetune() if epochs is None else Finetune(steps=0), **flags)
    exam = prepare(weights, data, out, terms)
    chosen = range(terms.seed, terms.seed + seeds)
    try:
        records = _measure(exam, _subjects(exam, chosen), chosen, protocol)
    except KeyboardInterrupt as stop:
        if not stop.args:  # else a fine-tuning has told it
            say("stopped; the same command goes on")
        raise
    over = f"mean and standard deviation of {seeds} seeds" if seeds > 1 else "one seed"
    tell(lambda: _draw(exam, records, over))
    means = [
        (f"{encoder}/{method}/{share:g}%", mean)
        for encoder, method, points in _averages(records)
        for share, mean, _ in points
    ]
    return conclude(exam, "gain", f"{protocol}, {seeds} seeds", means)


def _draw(exam: Exam, records: Sequence[Record], over: str) -> None:
    """The table, on standard output and in a file, and the figure."""
    from fastmoco import plots
    from fastmoco.checkpoint import write
    from fastmoco.printing import print_table

    columns, lines = tabulate(records)
    print_table(columns, lines)
    rows = ([column.removeprefix(">") for column in columns], ["---"] * len(columns), *lines)
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    data = Path(exam.data)
    name = data.name if data.is_dir() else data.stem  # a folder has no ending: plants.2020 is not plants.2021
    table, figure = (exam.out.parent / f"gain-{name or 'data'}.{kind}" for kind in ("md", "png"))
    write(table, lambda file: file.write(text.encode()))
    plots.gain(records, figure, f"Did pre-training help? {exam.found.name} on {data.name}")
    print(f"top-1 in percent, {over}; in {table} and {figure}")


def tabulate(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """A column for each share of the labels, a line for each method and encoder."""
    from fastmoco.plots import PANELS

    shares = {
        share: f"{share:g} % of labels, {_count(share, records)}" for share in {each["labels"] for each in records}
    }
    lines = [
        [PANELS[method], encoder, *(_spell(mean, spread) for _, mean, spread in points)]
        for encoder, method, points in _averages(records)
    ]
    return ["", "encoder", *(f">{shares[share]}" for share in sorted(shares))], lines


def _count(share: float, records: Sequence[Record]) -> str:
    """How many labels were used; where some images cannot be read, seeds may differ in it."""
    counts = {record["images"] for record in records if record["labels"] == share}
    return " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))


def _spell(mean: float, spread: float) -> str:
    return f"{mean:.1f}" if math.isnan(spread) else f"{mean:.1f} ± {spread:.1f}"


def _averages(records: Sequence[Record]) -> Iterator[tuple[str, str, list[tuple[float, float, float]]]]:
    from fastmoco.plots import average

    for method, encoder in dict.fromkeys((record["method"], record["encoder"]) for record in records):
        alike = [each for each in records if (each["method"], each["encoder"]) == (method, encoder)]
        yield encoder, method, average(alike)


def _subjects(exam: Exam, seeds: range) -> "dict[str, dict[int, Subject]]":
    """For each kind of weights, and each seed, the same images with another encoder."""
    from fastmoco.encoder import RESNETS

    def put(weights: str, seed: int) -> "Subject":
        size = exam.subject.frame.size
        sight = see(weights, replace(exam.terms, encoder="", branch="online", seed=seed, size=size))
        if exam.terms.recalibrate:
            sight.recalibrate(exam.subject.train)
        return replace(exam.subject, encoder=sight.found.encoder)

    name = exam.found.name
    found = {
        RANDOM: {seed: put(f"random/{name}", seed) for seed in seeds},
        THIS: dict.fromkeys(seeds, exam.subject),
    }
    if name in RESNETS:
        try:
            found[IMAGENET] = dict.fromkeys(seeds, put(f"torchvision/{name}", 0))
        except ValueError as error:
            say(f"without ImageNet's weights: {error}")
    return found


def _measure(exam: Exam, subjects: "dict[str, dict[int, Subject]]", seeds: range, protocol: "Finetune") -> list[Record]:
    """Every number of the table; those that are in the file already are not made again."""
    from fastmoco.distributed import tell
    from fastmoco.evaluate.gain import measure, trials
    from fastmoco.evaluate.store import maker
    from fastmoco.plots import PANELS

    path = exam.out.parent / "gain.jsonl"
    kept = tell(lambda: _read(path))
    about = {"weights": exam.weights, "data": exam.data, "size": exam.subject.frame.size, "fastmoco": __version__}
    todo = trials(list(subjects), seeds)
    records = []
    for number, trial in enumerate(todo, start=1):
        subject = subjects[trial.encoder][trial.seed]
        # Lower rates are for stages that have learnt something: random weights get the full rate everywhere.
        value = replace(protocol, decay=1.0) if trial.encoder == RANDOM else protocol
        course = str(value) if trial.method == "finetune" else ""
        words = (maker(), str(trial), course, subject.known, subject.test.images.stamp(), str(subject.frame))
        known = tell(functools.partial(_known, words))
        if known not in kept:
            found = {"top1": measure(subject, trial, value), "images": _used(subject, trial)}
            record = {**asdict(trial), **found, **about, "settings": course or "probe", "known": known}
            kept[known] = tell(functools.partial(_append, path, record))
        records.append(kept[known])
        told = f"{PANELS[trial.method]}, {trial.labels:g} % of labels, {trial.encoder}, seed {trial.seed}"
        say(f"{number}/{len(todo)}  {told}: {kept[known]['top1']:.1f}")
    return records


def _used(subject: "Subject", trial: "Trial") -> int:
    """How many labels a trial has learnt from: those of images that could be read."""
    from fastmoco.evaluate.gain import labelled

    index = labelled(subject, trial).tolist()
    used = sum(subject.train.name(place) not in subject.unread for place in index)
    if not used:
        raise ValueError(
            f"{trial.labels:g} % of labels, seed {trial.seed}: none of these images can be read, such as "
            f"{subject.train.name(index[0])}; mend or remove them"
        )
    return used


def _known(words: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, Record]:
    """The numbers of earlier calls. A line that was cut off by a kill is not one."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            record = json.loads(line)
            found[record["known"]] = record
    return found


def _append(path: Path, record: Record) -> Record:
    from fastmoco.journal import append

    append(path, json.dumps(record))
    return record
