"""Which images of a labelled set are used: those of a list, an even part of each class, or all but the held-out."""

import gzip
import lzma
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64

from fastmoco import shards
from fastmoco.images import Images, Part, Source
from fastmoco.randomness import key


def by_list(images: Images, path: str) -> Int64[np.ndarray, " part"]:
    """The images that a text file names, one a line, by file name or with folders; a list may name more than there are.

    The text may be compressed, as .xz or .gz.
    """
    lines = _read(path)
    wanted = {name for line in lines for name in _spellings(line)}
    places: dict[str, list[int]] = {}
    for place in range(len(images)):
        for name in _endings(images.name(place)):
            if name in wanted:
                places.setdefault(name, []).append(place)
    found = {place for line in lines for place in _choose(line, images, places)}
    if not found:
        raise ValueError(
            f"none of the {len(lines):,} names in {path!r} is in the set, such as {lines[0][:200]!r}; "
            f"an image there is {images.name(0)!r}, so write one such name a line, with folders or without"
        )
    return np.array(sorted(found), np.int64)


def by_fraction(images: Images, fraction: float, seed: int) -> Int64[np.ndarray, " part"]:
    """So much of each class, and at least one image of it. A larger part of the same seed holds a smaller one."""
    if not 0 < fraction <= 1:
        raise ValueError(f"a part of {fraction:g} of the images: use a number above 0 and up to 1, such as 0.1")
    if images.labels is None:
        raise ValueError("a part of each class: the images have no labels; put them into class folders")
    keys = key(seed, torch.arange(len(images))).numpy()
    groups = _by_class(images.labels, len(images.classes), keys)
    return np.sort(np.concatenate([group[: max(1, round(fraction * len(group)))] for group in groups]))


def hold_out(
    labels: Sequence[int], classes: int, every: int = 5
) -> tuple[Int64[np.ndarray, " rest"], Int64[np.ndarray, " held"]]:
    """Two parts of a set that has no held-out images: of each class, since its classes may come in turn."""
    assert every > 1, "nothing would be left"
    groups = _by_class(labels, classes, np.arange(len(labels)))
    held = np.sort(np.concatenate([group[every - 1 :: every] for group in groups]))
    return np.delete(np.arange(len(labels)), held), held


def split(source: Source, data: str) -> tuple[Images, Images, str]:
    """Labelled images to learn from and held-out ones, and what to say of them."""
    if source.labelled is None or source.labelled.labels is None:
        usual = "; put its images into class folders, or give a list with a class number after each path"
        reason = f": {source.lack}" if source.lack else usual
        raise ValueError(f"{data} has no labels, which an evaluation needs{reason}")
    train, words = source.labelled, source.words
    if source.val is not None:
        assert source.val.labels is not None
        assert train.labels is not None
        absent = [train.classes[number] for number in sorted(set(train.labels) - set(source.val.labels))]
        if absent:
            words += f", none of class {absent[0]!r}" + (f" and {len(absent) - 1} more" if len(absent) > 1 else "")
        return train, source.val, words
    assert train.labels is not None
    if source.unlabelled is not None:
        raise ValueError(
            f"{data}: its held-out images are in no folder that is called like a class, such as {train.classes[0]!r}; "
            "sort them, or move them away"
        )
    rest, held = hold_out(train.labels, len(train.classes))
    if not len(held):
        raise ValueError(f"{data} has no val/ folder, and no class of five images or more to hold one out of; add some")
    return Part(train, rest), Part(train, held), f"{words}; no val/, so every fifth of each class is held out"


def take(train: Images, labels: str, seed: int) -> Images:
    """A part of the labelled images: of each class, or by a list."""
    hint = "use a part above 0 and up to 1, such as 0.01, or a list of files"
    if not labels:
        raise ValueError(f"--labels '': {hint}")
    try:
        fraction = float(labels)
    except ValueError:
        if not Path(labels).is_file():
            raise ValueError(f"--labels {labels}: no such list; give a file, or a part such as 0.01") from None
        return Part(train, by_list(train, labels))
    if not 0 < fraction <= 1:
        raise ValueError(f"--labels {labels}: {hint}")
    return train if fraction == 1 else Part(train, by_fraction(train, fraction, seed))


def _by_class(
    labels: Sequence[int], classes: int, keys: Int64[np.ndarray, " images"]
) -> list[Int64[np.ndarray, " members"]]:
    """The places of each class, in the order of their keys; of equal keys the first place first."""
    numbers = np.array(labels, np.int64)
    order = np.lexsort((keys, numbers))
    return np.split(order, np.bincount(numbers, minlength=classes).cumsum()[:-1])


def _read(path: str) -> list[str]:
    unpack = {".xz": lzma.decompress, ".gz": gzip.decompress}.get(path[-3:].lower(), bytes)
    try:
        text = unpack(Path(path).read_bytes()).removeprefix(b"\xef\xbb\xbf")  # some editors of Windows put it there
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read the list {path!r}: {reason}; give a text file with one name a line") from None
    lines = [line.strip() for line in shards.show(text).split("\n")]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise ValueError(f"the list {path!r} names no images; write one name a line")
    return lines


def _spellings(line: str) -> Iterator[str]:
    """The names that a line may mean: all of it, or what is before a label."""
    name = line.removeprefix("./")
    yield name
    if end := re.fullmatch(r"(.*\S)\s+-?\d+", name):
        yield end[1]


def _endings(name: str) -> Iterator[str]:
    """A path, then without its first folder, and so on to the name of the file."""
    yield name
    while "/" in name:
        name = name.partition("/")[2]
        yield name


def _choose(line: str, images: Images, places: Mapping[str, list[int]]) -> list[int]:
    """The place of the one image that a line means, if there is one."""
    for name in _spellings(line):
        fitting = places.get(name, [])
        if len(fitting) > 1:
            first, second = images.name(fitting[0]), images.name(fitting[1])
            raise ValueError(f"{name!r} in the list is {first!r} and {second!r}; write its folder in front of it")
        if fitting:
            return fitting
    return []
