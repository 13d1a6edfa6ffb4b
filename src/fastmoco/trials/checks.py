"""What would fail in hours, or in every training, is told before any of them begins."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastmoco.trials.job import Entry, Means
from fastmoco.trials.ledger import Ledger

if TYPE_CHECKING:
    from fastmoco.recipe import Recipe


def refuse_flags(
    what: Sequence[str], seeds: int, jobs: int, beside: int, minutes: float | None, knn_every: int | None
) -> None:
    """Flags that mean nothing."""
    if not all(what) or not what:
        raise ValueError("nothing to sweep; give tables or rows, such as table4a or table4b/mocov3")
    for name, value in (("seeds", seeds), ("jobs", jobs), ("knn-every", 1 if knn_every is None else knn_every)):
        if value < 1:
            raise ValueError(f"--{name} {value}: use 1 or more")
    if beside < 0:
        raise ValueError(f"--beside {beside}: use 0 or more")
    if minutes is not None and not minutes > 0:
        raise ValueError(f"--minutes {minutes:g}: use a positive time")


def refuse_means(means: Means, first_seed: int) -> None:
    """A device that is not there. A GPU that is there is left to the trainings: this process does not need it."""
    import torch

    from fastmoco.machine import absent, settle
    from fastmoco.run import check

    check(first_seed, means.workers or 0, "--first-seed")
    if means.device != "auto" or not torch.cuda.is_available():
        try:
            wanted = torch.device("cpu" if means.device == "auto" else means.device)
        except RuntimeError:
            wanted = None
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if wanted is None or (wanted.type == "cuda" and (wanted.index or 0) >= there):
            raise ValueError(absent(means.device))
        if wanted.type != "cuda":
            settle(means.device, means.precision, means.compile, means.workers)


def refuse_own_parts(recipes: "Mapping[Entry, Recipe]") -> None:
    """What a report could not read: records are text, and no user's file is run for them."""
    from fastmoco.notation import read

    for entry, recipe in recipes.items():
        try:
            read(repr(recipe))
        except ValueError as error:
            reason = str(error).partition(";")[0]
            raise ValueError(f"{entry.row} has a part of your own, {reason}; train it by `fastmoco pretrain`") from None


def refuse_misfits(recipes: "Mapping[Entry, Recipe]", ledger: Ledger) -> None:
    """Sets that are too small, and records that cannot be added to; nothing is written."""
    from fastmoco.run import refuse_large_batch

    for entry, recipe in recipes.items():
        try:
            refuse_large_batch(recipe.batch, ledger.images)
        except ValueError as error:
            raise ValueError(f"{entry.row}: {error}") from None
    if ledger.path.is_dir():
        raise ValueError(f"{ledger.path} is a folder; give a file for --records")
    if ledger.path.exists() and not (ledger.path.is_file() and os.access(ledger.path, os.W_OK)):
        raise ValueError(f"{ledger.path} is no file that can be written; give another --records")
    ledger.findings()  # or the file is something else


def refuse_room(ledger: Ledger, out: Path) -> None:
    """Places that cannot be written."""
    from fastmoco.run import room

    for place, flag in ((ledger.path.parent, "--records"), (out, "--out")):
        room(place, flag)
