"""Trees of images, lists of paths and tar shards, as a user has them."""

import os
import re
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from fastmoco import shards
from fastmoco.images import Files, Images, Shards, Source, put_together

VAL = ("val", "valid", "validation")
_KNOWN = ", ".join(ending[1:].decode() for ending in shards.ENDINGS)


def find_file(path: str) -> Images:
    if path.lower().endswith((".tar", *shards.COMPRESSED)):
        return read_shards([path], path)
    if shards.is_image(os.fsencode(path)):
        raise ValueError(f"{path!r} is one image; give a folder of images, or a text list of paths")
    return _read_list(path)


def find_folder(path: str) -> Source:
    train = None if _is_class(path) else _read_folder(os.path.join(path, "train"))
    held = [name for name in VAL if os.path.isdir(os.path.join(path, name))]
    if train is None and held and os.path.isdir(os.path.join(path, "train")):
        raise ValueError(f"no images in {os.path.join(path, 'train')!r}, though there is {held[0]}/; fill or remove it")
    if train is None:
        train = _read_folder(path)
        if train is None:
            raise ValueError(f"no images in {path!r}; known endings: {_KNOWN}, or tar for shards")
        return put_together(train)
    place = next((each for each in (os.path.join(path, name) for name in VAL) if os.path.isdir(each)), None)
    names = _read_names(os.path.join(path, "train"))  # for held-out shards that have none of their own
    return put_together(train, _read_folder(place, train.classes, names) if place else None)


def _is_class(path: str) -> bool:
    """Whether train/ is a class beside bus/ and car/, and no part: all hold images themselves, and there is no val/."""
    if not _holds_images(os.path.join(path, "train")) or any(os.path.isdir(os.path.join(path, name)) for name in VAL):
        return False
    others = (name for name in os.listdir(path) if name not in ("train", "test") and not name.startswith("."))
    return any(_holds_images(os.path.join(path, name)) for name in others)


def _holds_images(path: str) -> bool:
    """Whether it is a folder with images in itself, not further down."""
    try:
        with os.scandir(os.fsencode(path)) as scan:
            return any(shards.is_image(entry.name) and not entry.name.startswith(b".") for entry in scan)
    except OSError:  # no folder, or not ours to look into
        return False


def _read_folder(path: str, known: tuple[str, ...] = (), names: Sequence[str] = ()) -> Images | None:
    """A tree of images, or else shards, or else None; `known` and `names` are the classes of another part."""
    if not os.path.isdir(path):
        return None
    root = os.fsencode(path)
    paths = sorted(_walk(root))
    if paths:
        labels, classes = _number_folders(paths, known)
        return Files(root, np.array(paths), labels, classes, "" if labels else _explain(paths))
    files = [os.fsdecode(name) for name in sorted(os.listdir(root))]
    for endings in ((".tar",), shards.COMPRESSED):  # the second only to be refused
        tars = [os.path.join(path, file) for file in files if file.lower().endswith(endings)]
        if tars:
            return read_shards(tars, path, _read_names(path) or names, known)
    return None


def _walk(root: bytes, inside: bytes = b"", above: tuple[tuple[int, int], ...] = ()) -> Iterator[bytes]:
    """Paths of images relative to the root. Links are followed, but not into a folder that we are in."""
    place = os.path.join(root, inside)
    try:
        state = os.stat(place)
        if (state.st_dev, state.st_ino) in above:
            return
        with os.scandir(place) as scan:
            entries = [entry for entry in scan if not entry.name.startswith(b".")]
    except OSError as error:
        raise ValueError(
            f"cannot list {shards.show(place)!r}: {error.strerror}; make it readable, or move it"
        ) from None
    for entry in entries:
        path = os.path.join(inside, entry.name)
        if _leads_to_folder(entry):
            yield from _walk(root, path, (*above, (state.st_dev, state.st_ino)))
        # A link that leads nowhere is an image that cannot be read; a pipe or a socket is none.
        elif shards.is_image(entry.name) and (entry.is_symlink() or entry.is_file()):
            yield path


def _leads_to_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _number_folders(paths: list[bytes], known: tuple[str, ...]) -> tuple[Sequence[int] | None, tuple[str, ...]]:
    """Classes by first-level folder, if the folders look like classes or are those that others have."""
    if any(b"/" not in path for path in paths):
        return None, ()
    folders = [path.partition(b"/")[0] for path in paths]
    names = sorted(set(folders))
    classes = tuple(shards.show(name) for name in names)
    if (len(names) >= 2 and len(paths) >= 2 * len(names)) or set(classes) & set(known):
        numbers = {name: number for number, name in enumerate(names)}
        return array("q", (numbers[folder] for folder in folders)), classes
    return None, ()


def _explain(paths: list[bytes]) -> str:
    """Why a tree is not one of class folders; nothing where no one would have thought so."""
    loose = [path for path in paths if b"/" not in path]
    folders = {path.partition(b"/")[0] for path in paths}
    if len(loose) == len(paths):
        return ""
    if loose:
        some = f"{len(loose):,} of {len(paths):,}, such as {shards.show(loose[0])!r}"
        return f"images in no class folder: {some}; move them into one, or away"
    if len(folders) == 1:
        only = shards.show(min(folders))
        return f"all are in one folder, {only!r}; make one for each class, or give it itself if those are in it"
    return f"{len(paths):,} images in {len(folders):,} folders: classes need two images on average; add some"


def _number(
    labels: Sequence[int], names: Sequence[str] = (), known: tuple[str, ...] = ()
) -> tuple[Sequence[int] | None, tuple[str, ...]]:
    """Classes by the numbers that someone gave them; a single one tells nothing apart, unless others have it."""
    values = sorted(set(labels))
    classes = tuple(names[value] if 0 <= value < len(names) else str(value) for value in values)
    if len(values) < 2 and not set(classes) & set(known):
        return None, ()
    numbers = {value: number for number, value in enumerate(values)}
    return array("q", (numbers[label] for label in labels)), classes


def _read_names(path: str) -> list[str]:
    """The names of classes beside shards: line n is that of class n, counted from 0."""
    try:
        with open(os.path.join(path, "classes.txt"), "rb") as file:
            names = shards.show(file.read()).splitlines()
    except OSError:
        return []
    return names if len(set(names)) == len(names) else []


def read_shards(
    paths: Iterator[str] | list[str], data: str, names: Sequence[str] = (), known: tuple[str, ...] = ()
) -> Shards:
    index = shards.build(paths)
    if not len(index):
        raise ValueError(f"no images in the shards {data!r}; known endings: {_KNOWN}")
    if index.labels is None:
        lack = "not every image has a .cls member beside it, with the number of its class; pack the shards with them"
        return Shards(index, None, (), lack)
    labels, classes = _number(index.labels.tolist(), names, known)
    return Shards(index, labels, classes, "" if labels else "all .cls members are alike; give two classes or more")


def _read_list(path: str) -> Files:
    with open(path, "rb") as file:
        if b"\0" in file.read(2**16):
            raise ValueError(
                f"{path!r} is no text; give a list with one path a line, a folder of images, or .tar shards"
            )
        file.seek(0)
        text = file.read().removeprefix(b"\xef\xbb\xbf")  # some editors of Windows put it there
    every = [line.strip() for line in text.split(b"\n")]
    lines = [line for line in every if line and not line.startswith(b"#")]
    if not lines:
        raise ValueError(f"the list {path!r} names no images; write one path a line")
    root = os.path.dirname(os.fsencode(path))

    def exist(names: list[bytes]) -> int:
        return sum(os.path.isfile(os.path.join(root, name)) for name in names[:100])

    ends = [re.fullmatch(rb"(.*\S)\s+(-?\d{1,18})", line) for line in lines]
    names = [end[1] if end else line for end, line in zip(ends, lines, strict=True)]
    # "holiday 2.jpg 3" has a label and "holiday 2" may be a name: the files themselves decide.
    ended = [(end[1], line) for end, line in zip(ends, lines, strict=True) if end]
    if exist([name for name, _ in ended]) > exist([line for _, line in ended]):
        without = [line for end, line in zip(ends, lines, strict=True) if not end]
        if without:
            some = f"{len(without):,} of {len(lines):,}, such as line {every.index(without[0]) + 1:,}"
            return Files(root, np.array(names), None, (), f"lines without a class number: {some}; add it to them")
        numbers = [int(end[2]) for end in ends if end]
        labels, classes = _number(numbers)
        lack = "" if labels else f"every line has class number {numbers[0]}; give two classes or more"
        return Files(root, np.array(names), labels, classes, lack)
    if not exist(lines):
        raise ValueError(
            f"none of the first {min(100, len(lines))} files named in {path!r} exists, such as "
            f"{shards.show(lines[0][:200])!r}; paths are absolute, or relative to the folder of the list"
        )
    return Files(root, np.array(lines), None, ())
