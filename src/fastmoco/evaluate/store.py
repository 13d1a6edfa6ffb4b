"""What evaluations keep on the disk, so that it need not be made twice, and by what it is known again."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

import PIL
import torch
from torch import Tensor

from fastmoco import shards
from fastmoco.checkpoint import write
from fastmoco.distributed import agree, leads
from fastmoco.line import Line
from fastmoco.lock import in_turn

MOST = 2**34  # bytes of embeddings that are kept on the disk: those of ImageNet by a ResNet-50 are 10 GiB
FORMAT = 1  # of what is kept; a change in how images are decoded, cut, shown or embedded makes all of it anew

Tensors = dict[str, Tensor]

_told: set[str] = set()  # what this process has said that it does not keep


def maker() -> str:
    """By which version something was made of images: another Pillow may decode and resize them otherwise."""
    return f"format {FORMAT}, Pillow {PIL.__version__}"


def remembered(
    make: Callable[[], Tensors], *known: str, stale: Callable[[Tensors], bool] = lambda found: False
) -> Tensors:
    """What was made before, from the disk, if all by which it is known again is the same and it is not `stale`."""
    name = hashlib.sha256("\n".join((maker(), *known)).encode()).hexdigest()[:24]
    path = shards.store() / "features" / f"{name}.pt"
    found = _recall(path)
    if found is not None and stale(found):
        found = None
    if agree(True if found is None else None) is None and found is not None:
        return found
    made = make()  # by all ranks, if only one of them has no such file
    if leads() and sum(value.nbytes for value in made.values()) <= MOST:
        keep("embeddings are", functools.partial(_store, path, made), Line())
    return made


def keep(what: str, write_it: Callable[[], object], line: Line) -> bool:
    """Write what saves time later. What cannot be written is no reason to lose the work, but one to tell of it."""
    try:
        write_it()
    except OSError as error:
        if what not in _told:
            _told.add(what)
            reason = f"{error.filename}: {error.strerror}" if error.filename else error
            line.say(f"{what} not kept for the next time: {reason}")
        return False
    return True


def _recall(path: Path) -> Tensors | None:
    """What a file holds. One that is absent or damaged is made anew, whatever its reader says of it."""
    try:
        found: Tensors = torch.load(path, mmap=True, weights_only=True)
        return found
    except Exception:
        return None


def _store(path: Path, made: Tensors) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_turn(path):  # with another evaluation that asks for the same
        write(path, lambda file: torch.save(made, file))  # which streams: safetensors would copy it all
