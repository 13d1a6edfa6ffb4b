"""Images by index, wherever they lie, and what is known of a whole set."""

import contextlib
import hashlib
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os.path import commonpath
from typing import Protocol, final, runtime_checkable

import numpy as np
import PIL.Image
from jaxtyping import Int64, Shaped, UInt8
from PIL.Image import Image

from fastmoco import shards
from fastmoco.decode import decode


@runtime_checkable
class Images(Protocol):
    """Images by index. Reading one may raise anything: the caller counts and replaces what cannot be read."""

    labels: Sequence[int] | None  # one class number per image, or None
    classes: tuple[str, ...]

    def __len__(self) -> int: ...

    def read(self, index: int) -> Image: ...  # RGB

    def name(self, index: int) -> str: ...  # a path, shards-000.tar/a/b.jpg, cifar10/train/17

    def stamp(self) -> str: ...  # another when the images or their labels have changed; the same if the set was moved


@runtime_checkable
class Filed(Protocol):
    """Images that can also be had as encoded files, which may be decoded in part, or elsewhere."""

    def fetch(self, index: int) -> bytes | Image: ...  # the image itself where there is no file of it


@dataclass(frozen=True)
class Source:
    train: Images  # what is learnt from; labels are never used for it
    labelled: Images | None  # images with labels for evaluation: `train` itself where it has labels
    val: Images | None  # held-out images with labels
    words: str  # one phrase for people
    unlabelled: Images | None = None  # held-out images without labels, which judge nothing
    lack: str = ""  # why `train` has no labels, and what to do about it, where that can be told


def put_together(train: Images, val: Images | None = None) -> Source:
    """Put together, with val's classes numbered as train's."""
    labelled = None if train.labels is None else train
    if labelled is None or val is None or val.labels is None:
        words = describe(train, labelled, None)
        if labelled is not None and val is not None:
            words += f"; {len(val):,} apart from them have no labels and judge nothing"
        return Source(train, labelled, None, words, val, train.lack if isinstance(train, Files | Shards) else "")
    numbers = {name: number for number, name in enumerate(train.classes)}
    strange = [name for name in val.classes if name not in numbers]
    if strange:
        raise ValueError(f"held-out class {strange[0]!r} is not among the classes to learn from; rename or remove it")
    val.labels = array("q", (numbers[val.classes[label]] for label in val.labels))
    val.classes = train.classes
    return Source(train, labelled, val, describe(train, labelled, val))


def describe(train: Images, labelled: Images | None, val: Images | None) -> str:
    words = f"{len(train):,} image{'s' * (len(train) != 1)}"
    if labelled is None:
        return f"{words} without labels"
    if labelled is not train:
        words += f", {len(labelled):,} of them with labels"
    words += f" in {len(labelled.classes):,} classes"
    return words if val is None else f"{words}, {len(val):,} held out"


def _brief(images: Images) -> str:
    """How a set shows itself, without every path and label."""
    words = describe(images, None if images.labels is None else images, None)
    first = f", the first is {images.name(0)!r}" if len(images) else ""
    return f"<{type(images).__name__}: {words}{first}>"


def fingerprint(images: Images) -> dict[str, str | int]:
    """By what a set is known again, wherever it lies: how many images it has, and what some of them are called."""
    some = range(0, len(images), -(-len(images) // 1000))
    names = [images.name(index) for index in some]
    # A list may name files either way, and have no common folder; of "." the folder has no name.
    apart = len({os.path.isabs(name) for name in names}) > 1 or any(name.startswith("./") for name in names)
    names = [(os.path.abspath if apart else os.path.normpath)(name) for name in names]
    above = len(commonpath([os.path.dirname(name) for name in names]))
    text = "\n".join(name[above:] for name in names)
    return {"images": len(images), "names": hashlib.sha256(text.encode()).hexdigest()[:12]}


def glance(images: Images) -> str:
    """What three of its images hold, in few letters: sets of one name are often made in several sizes."""
    seen = hashlib.sha256()
    for index in sorted({0, len(images) // 2, len(images) - 1}):
        with contextlib.suppress(OSError, ValueError):  # one that cannot be read is told of elsewhere
            content = fetch(images, index)
            seen.update(content if isinstance(content, bytes) else content.tobytes())
    return seen.hexdigest()[:12]


def fetch(images: Images, index: int) -> bytes | Image:
    """An image as its file holds it, or else the image itself."""
    return images.fetch(index) if isinstance(images, Filed) else images.read(index)


def _digest(labels: Sequence[int] | None, classes: tuple[str, ...], *arrays: Shaped[np.ndarray, "..."]) -> str:
    """One word for all of this; the shape of each array keeps it apart from the next."""
    found = hashlib.sha256(repr((labels is None, classes)).encode())
    for each in (np.array([] if labels is None else labels, np.int64), *arrays):
        found.update(f"{each.dtype} {each.shape}\n".encode())
        found.update(np.ascontiguousarray(each).reshape(-1).view(np.uint8).data)
    return found.hexdigest()[:16]


def _state(path: bytes) -> tuple[int, int]:
    """Size and time of change; a file that is not there, or out of reach, has a state too."""
    try:
        state = os.stat(path)
    except OSError:
        return -1, -1
    return state.st_size, state.st_mtime_ns


# Lists of paths and labels would be copied page by page into every forked worker, as reading them counts references.
# An array of the standard library is the one sequence of integers that neither does that nor loses its type.


@final
@dataclass(eq=False)
class Files:
    """Images in files below a folder, or anywhere if paths are absolute."""

    root: bytes
    paths: Shaped[np.ndarray, " images"]  # as bytes of fixed width
    labels: Sequence[int] | None
    classes: tuple[str, ...]
    lack: str = ""  # as in Source

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return _brief(self)

    def read(self, index: int) -> Image:
        return decode(self.fetch(index))

    def fetch(self, index: int) -> bytes:
        try:
            with open(self._path(index), "rb") as file:
                return file.read()
        except OSError as error:  # which would name the file again, and as bytes
            raise type(error)(error.strerror) from None

    def name(self, index: int) -> str:
        return shards.show(self._path(index))

    def stamp(self) -> str:
        return _digest(self.labels, self.classes, self.paths, self._states)

    @cached_property
    def _states(self) -> Int64[np.ndarray, "images 2"]:
        """As they were when first asked for: evaluations ask often, and a set may have a million files on a network."""
        return np.array([_state(self._path(index)) for index in range(len(self))], np.int64)

    def _path(self, index: int) -> bytes:
        return os.path.join(self.root, bytes(self.paths[index]))


@final
@dataclass(eq=False)
class Shards:
    """Images in tar shards."""

    index: shards.Index
    labels: Sequence[int] | None
    classes: tuple[str, ...]
    lack: str = ""  # as in Source

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return _brief(self)

    def read(self, index: int) -> Image:
        return decode(self.fetch(index))

    def fetch(self, index: int) -> bytes:
        return self.index.fetch(index)

    def name(self, index: int) -> str:
        return self.index.name(index)

    def stamp(self) -> str:
        index = self.index
        return _digest(self.labels, self.classes, index.stamps, index.shards, index.names, index.offsets, index.sizes)


@final
@dataclass(eq=False)
class Pixels:
    """Images that are in memory already."""

    pixels: UInt8[np.ndarray, "images height width 3"]
    labels: Sequence[int] | None
    classes: tuple[str, ...]
    origin: str  # such as cifar10/train

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        return _brief(self)

    def read(self, index: int) -> Image:
        return PIL.Image.fromarray(self.pixels[index])

    def name(self, index: int) -> str:
        return f"{self.origin}/{index}"

    def stamp(self) -> str:
        return _digest(self.labels, self.classes, self.pixels)


@final
@dataclass(eq=False)
class Part:
    """Some images of a set, with its classes."""

    images: Images
    index: Int64[np.ndarray, " part"]  # their places in the set
    labels: Sequence[int] | None = field(init=False)
    classes: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        assert ((self.index >= 0) & (self.index < len(self.images))).all(), "a place outside the set"
        labels = self.images.labels
        self.labels = None if labels is None else array("q", np.array(labels, np.int64)[self.index].tolist())
        self.classes = self.images.classes

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return _brief(self)

    def read(self, index: int) -> Image:
        return self.images.read(int(self.index[index]))

    def fetch(self, index: int) -> bytes | Image:
        return fetch(self.images, int(self.index[index]))

    def name(self, index: int) -> str:
        return self.images.name(int(self.index[index]))

    def stamp(self) -> str:
        return _digest(self.labels, self.classes, np.array([self.images.stamp()], np.bytes_), self.index)
