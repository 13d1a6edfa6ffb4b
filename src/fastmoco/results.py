"""What evaluations found: a table for people, and records that are added to a file."""

import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fastmoco import __version__
from fastmoco.checkpoint import write
from fastmoco.lock import in_turn
from fastmoco.printing import print_table

FILE = "results.json"


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file; none if there is no file yet. One that is something else is refused, and stays."""
    if not path.exists():
        return []
    try:
        records = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path} cannot be added to: {error.strerror}; give another --out") from None
    except ValueError:
        raise ValueError(f"{path} is no results file, so nothing can be added; give another --out") from None
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError(f"{path} holds no list of records, so nothing can be added; give another --out")
    return records


def add(path: Path, record: Mapping[str, Any]) -> None:
    """One more record, with what made it. What was there stays."""
    versions = {"fastmoco": __version__, "torch": torch.__version__, "python": platform.python_version()}
    new = {**record, **versions, "when": time.strftime("%Y-%m-%d %H:%M:%S%z")}
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_turn(path):  # with other evaluations that end now
        records = [*read(path), new]
        write(path, lambda file: file.write((json.dumps(records, indent=1) + "\n").encode()))


def show(results: Mapping[str, float]) -> None:
    """Top-1 and top-5 side by side; other numbers below."""
    names = dict.fromkeys(name.rpartition("/top")[0] for name in results if "/top" in name)
    lines = [[name, *(f"{results[f'{name}/top{k}']:.2f}" for k in (1, 5))] for name in names]
    if lines:
        print_table(["", ">top-1", ">top-5"], lines)
    for name, value in results.items():
        if "/top" not in name:
            print(f"{name} {value:g}")
