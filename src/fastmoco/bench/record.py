"""What a benchmark leaves: a table for people, and a JSON record with all that a number needs to be believed."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fastmoco import __version__
from fastmoco.bench.clock import Contender
from fastmoco.checkpoint import write
from fastmoco.flags import to_write
from fastmoco.printing import print_table


def conclude(
    bench: str,
    contenders: Sequence[Contender],
    device: torch.device,
    about: Mapping[str, Any],
    out: str,
    commit: str = "",
) -> dict[str, Any]:
    """Show how the first contender, which is ours, stands beside the others, and write it down if there is a file."""
    record = {
        "bench": bench,
        **circumstances(device, commit),
        **about,
        "rows": [_row(each, contenders[0]) for each in contenders],
    }
    print(f"\n{record['hardware']}, {record['cores']} cores, torch {record['torch']}")
    print("  ".join(f"{name} {value}" for name, value in about.items() if isinstance(value, str | int | float)))
    print_table(
        ["", ">ms", ">img/s", ">peak GiB", ">ours is"],
        [_cells(row) for row in record["rows"]],
    )
    if out:
        save(to_write(out), record)
        print(f"the record is in {out}")
    return record


def circumstances(device: torch.device, commit: str = "") -> dict[str, Any]:
    """The hardware, the versions and the commit of this tree, unless it is given: a copy may know nothing of git."""
    program = Path(sys.argv[0]).stem
    return {
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "fastmoco": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "python": platform.python_version(),
        "commit": commit or commit_here(),
        "command": " ".join(["fastmoco" if program == "__main__" else program, *map(near, sys.argv[1:])]),
    }


def save(path: Path, record: Mapping[str, Any]) -> None:
    """Whole, or not at all: a measurement may be stopped at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=2) + "\n"
    write(path, lambda file: file.write(text.encode()))


def _row(contender: Contender, ours: Contender) -> dict[str, Any]:
    seconds = contender.seconds
    return {
        "name": contender.name,
        "milliseconds": round(1e3 * seconds, 4),
        "rounds_milliseconds": [round(1e3 * each, 4) for each in contender.rounds],
        **({"images_per_second": round(contender.images / seconds, 2)} if contender.images else {}),
        **({"peak_gib": round(contender.peak / 2**30, 3)} if contender.peak else {}),
        "first_seconds": round(contender.first, 2),
        # By how much ours is faster, by time an image where they differ in how many they take.
        "ratio": round(_pace(contender) / _pace(ours), 4),
    }


def _pace(contender: Contender) -> float:
    """Seconds of an image, or of a piece."""
    return contender.seconds / max(1, contender.images)


def _cells(row: Mapping[str, Any]) -> list[str]:
    rate, peak = row.get("images_per_second"), row.get("peak_gib")
    return [
        row["name"],
        f"{row['milliseconds']:,.2f}",
        "" if rate is None else f"{rate:,.0f}",
        "" if peak is None else f"{peak:.1f}",
        f"{row['ratio']:.2f} x",
    ]


def near(word: str) -> str:
    """A word of a command without the folders of this machine, which tell others nothing."""
    flag, equals, value = word.rpartition("=")
    return f"{flag}{equals}{Path(value).name}" if Path(value).is_absolute() else word


def commit_here() -> str:
    """Of this tree, and whether it was changed since."""

    def git(*words: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # or it is installed somewhere in a tree of other things
        changed = git("status", "--porcelain", "--", ".", "..")
        return git("rev-parse", "--short", "HEAD") + (", changed" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
