"""Checkpoints that a kill, a full disk or a damaged file cannot lose, and that run no code when they are read."""

import contextlib
import itertools
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

State = dict[str, Any]

ANEW = "give another --out, or --fresh"  # what a training advises where its folder cannot be gone on with
FORMAT = 1  # of the checkpoints; a reader refuses what it does not know


def save(folder: Path, state: Mapping[str, Any], keep: bool = False) -> None:
    """Replace last.pt, and leave the one before as previous.pt; `keep` leaves this one for good under its step."""
    folder.mkdir(exist_ok=True)
    last, previous = folder / "last.pt", folder / "previous.pt"

    def settle(fresh: Path) -> None:
        if keep:
            _link(fresh, folder / f"step-{state['step']:08d}.pt")
        if last.exists():
            last.replace(previous)
        fresh.replace(last)

    write(last, lambda file: torch.save({"format": FORMAT, **state}, file), settle)


def _link(path: Path, other: Path) -> None:
    other.unlink(missing_ok=True)
    try:
        os.link(path, other)
    except OSError:  # a file system without links
        shutil.copyfile(path, other)


def write(path: Path, fill: Callable[[BinaryIO], object], settle: Callable[[Path], object] | None = None) -> None:
    """A file that is whole or absent: written aside, on the disk, and only then given its name; it keeps its mode."""
    fresh = path.with_name(f".{path.name}.part")
    try:
        fresh.unlink(missing_ok=True)
        with fresh.open("xb") as file:  # a new file: a link that someone put there is not followed
            with contextlib.suppress(OSError):  # there was none before, or the disk knows no permissions
                shutil.copymode(path, fresh)
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        settle(fresh) if settle else fresh.replace(path)
        _sync(path.parent)
    except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into a RuntimeError
        fresh.unlink(missing_ok=True)
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        reason = getattr(cause, "strerror", None) or " ".join(str(cause).split())[:120]
        raise OSError(f"cannot write {path}: {reason}; what was there before is intact") from None


def generators(device: torch.device) -> State:
    """The states of torch's generators: what is drawn during a step comes from them."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"rng": torch.get_rng_state(), "cuda_rng": cuda}


def restore_generators(state: Mapping[str, Any], device: torch.device) -> None:
    """As `generators` found them; a run that has changed its device keeps those of the new one."""
    torch.set_rng_state(state["rng"])
    if device.type == "cuda" and state["cuda_rng"] is not None:
        torch.cuda.set_rng_state(state["cuda_rng"], device)


def newest(folder: Path, say: Callable[[str], None]) -> State | None:
    """The newest checkpoint that is whole, or None where there is none at all."""
    kept = sorted(folder.glob("step-*.pt"), reverse=True)
    found = [path for path in (folder / "last.pt", folder / "previous.pt", *kept) if path.exists()]
    for place, path in enumerate(found):
        try:
            state = _read(path)
        except ValueError as error:
            say(str(error))
        else:
            for damaged in found[:place]:  # out of the way, or the next save would put one in the place of a good one
                damaged.replace(damaged.with_name(f"{damaged.name}.damaged"))
            if path != found[0] or path.name != "last.pt":
                say(f"going on from {path.name}, step {state['step']:,}")
            return state
    if found:
        raise ValueError(f"no checkpoint in {folder} can be read; {ANEW}")
    return None


def load(path: Path) -> State:
    """One checkpoint, or a line that says why not. Code in it is refused, not run."""
    try:
        return _read(path)
    except ValueError as error:
        before = path.with_name("previous.pt")
        fix = f"give {before}, the one before" if before.is_file() and before != path else "give another"
        raise ValueError(f"{error}; {fix}") from None


def _read(path: Path) -> State:
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch itself does not compare checksums
        if damaged:
            raise ValueError(f"{path} is damaged: its checksums differ")
        state: State = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise PermissionError(f"{path} holds more than numbers, and was not run: {_name(error)}") from None
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path} is damaged: {error}") from None
    except Exception as error:  # whatever a reader of damaged files can raise
        raise ValueError(f"{path} is damaged: {' '.join(str(error).split())[:120]}") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this version of fastmoco")
    return state


def _name(error: Exception) -> str:
    """What torch found in a file that it would have had to run."""
    words = str(error).split()
    return next((word for after, word in itertools.pairwise(words) if after == "GLOBAL"), "unknown code")


def _sync(folder: Path) -> None:
    """A new name is on the disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
