"""Where and with what a number was measured. A record without this is no record."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]


def circumstances(device: torch.device, commit: str = "") -> dict[str, object]:
    """The hardware, the versions and the commit of this tree, unless it is given: a copy may know nothing of git."""
    return {
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "python": platform.python_version(),
        "commit": commit or _commit(),
        "command": " ".join(["python", *map(_near, sys.argv)]),
    }


def write(path: Path, record: dict[str, object]) -> None:
    """Whole, or not at all: a measurement may be stopped at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(json.dumps(record, indent=2) + "\n")
    aside.replace(path)


def _near(word: str) -> str:
    """Where files lay on a machine tells nothing."""
    return Path(word).name if word.startswith("/") else word


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "src")
        return git("rev-parse", "--short", "HEAD") + (", changed" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
