"""From what a user names to images by index: a tree, a list, tar shards, or a set that has a name."""

import http.client
import io
import os
import re
import tarfile
import warnings
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, final, runtime_checkable

import numpy as np
import PIL.Image
from jaxtyping import Shaped, UInt8
from PIL.Image import Image

from fastmoco import shards

VAL = ("val", "valid", "validation")
IMAGENETTE = (9469, 3925)  # images to learn from and held out: fewer are an archive that was not unpacked to its end
_PIL = re.compile(r"PIL\.")
_KNOWN = ", ".join(ending[1:].decode() for ending in shards.ENDINGS)


@runtime_checkable
class Images(Protocol):
    """Images by index. Reading one may raise anything: the caller counts and replaces what cannot be read."""

    labels: Sequence[int] | None  # one class number per image, or None
    classes: tuple[str, ...]

    def __len__(self) -> int: ...

    def read(self, index: int) -> Image: ...  # RGB

    def name(self, index: int) -> str: ...  # a path, shards-000.tar/a/b.jpg, cifar10/train/17


@dataclass(frozen=True)
class Source:
    train: Images  # what is learnt from; labels are never used for it
    labelled: Images | None  # images with labels for evaluation: `train` itself where it has labels
    val: Images | None  # held-out images with labels
    words: str  # one phrase for people


def find(data: str, download: bool = False) -> Source:
    """The images that a user means by a path or a name."""
    if data in NAMED:
        return NAMED[data](download)
    path = os.path.expanduser(data)
    if os.path.isdir(path):
        return _find_folder(path)
    if os.path.isfile(path):
        return _source(_find_file(path))
    if next(shards.expand(path)) != path:
        return _source(_read_shards(shards.expand(path), data))
    raise ValueError(
        f"no such folder, list or set {data!r}; give a folder of images, a text list of paths, .tar shards, "
        f"or one of {', '.join(NAMED)}"
    )


def decode(content: bytes) -> Image:
    """The first frame of an encoded image, as RGB."""
    _hush()
    image: Image = PIL.Image.open(io.BytesIO(content))
    image.load()
    if image.mode == "I" or image.mode.startswith("I;16"):
        # PIL would turn all above 255 white.
        image = PIL.Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    return image.convert("RGB")


def _hush() -> None:
    """Silence what PIL remarks on: a palette, metadata, many pixels. No one could act on it, a million times over."""
    # For the whole process, since threads that decode at the same time would undo each other's filters.
    remarks = (UserWarning, PIL.Image.DecompressionBombWarning)
    if [tuple(each) for each in warnings.filters[:2]] != [("ignore", None, each, _PIL, 0) for each in remarks]:
        for each in reversed(remarks):
            warnings.filterwarnings("ignore", category=each, module=_PIL.pattern)


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

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> Image:
        with open(self._path(index), "rb") as file:
            return decode(file.read())

    def name(self, index: int) -> str:
        return shards.show(self._path(index))

    def _path(self, index: int) -> bytes:
        return os.path.join(self.root, bytes(self.paths[index]))


@final
@dataclass(eq=False)
class Shards:
    """Images in tar shards."""

    index: shards.Index
    labels: Sequence[int] | None
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.index)

    def read(self, index: int) -> Image:
        return decode(self.index.fetch(index))

    def name(self, index: int) -> str:
        return self.index.name(index)


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

    def read(self, index: int) -> Image:
        return PIL.Image.fromarray(self.pixels[index])

    def name(self, index: int) -> str:
        return f"{self.origin}/{index}"


def _source(train: Images, val: Images | None = None) -> Source:
    """Put together, with val's classes numbered as train's."""
    labelled = None if train.labels is None else train
    if labelled is None or val is None or val.labels is None:
        return Source(train, labelled, None, _describe(train, labelled, None))
    numbers = {name: number for number, name in enumerate(train.classes)}
    strange = [name for name in val.classes if name not in numbers]
    if strange:
        raise ValueError(f"held-out class {strange[0]!r} is not among the classes to learn from; rename or remove it")
    val.labels = array("q", (numbers[val.classes[label]] for label in val.labels))
    val.classes = train.classes
    return Source(train, labelled, val, _describe(train, labelled, val))


def _describe(train: Images, labelled: Images | None, val: Images | None) -> str:
    words = f"{len(train):,} image{'s' * (len(train) != 1)}"
    if labelled is None:
        return f"{words} without labels"
    if labelled is not train:
        words += f", {len(labelled):,} of them with labels"
    words += f" in {len(labelled.classes):,} classes"
    return words if val is None else f"{words}, {len(val):,} held out"


def _find_file(path: str) -> Images:
    if path.lower().endswith((".tar", *shards.COMPRESSED)):
        return _read_shards([path], path)
    if shards.is_image(os.fsencode(path)):
        raise ValueError(f"{path!r} is one image; give a folder of images, or a text list of paths")
    return _read_list(path)


def _find_folder(path: str) -> Source:
    train = _read_folder(os.path.join(path, "train"))
    if train is None:
        train = _read_folder(path)
        if train is None:
            raise ValueError(f"no images in {path!r}; known endings: {_KNOWN}, or tar for shards")
        return _source(train)
    place = next((each for each in (os.path.join(path, name) for name in VAL) if os.path.isdir(each)), None)
    return _source(train, _read_folder(place, train.classes) if place else None)


def _read_folder(path: str, known: tuple[str, ...] = ()) -> Images | None:
    """A tree of images, or else shards, or else nothing; `known` are the classes that others have."""
    if not os.path.isdir(path):
        return None
    root = os.fsencode(path)
    paths = sorted(_walk(root))
    if paths:
        labels, classes = _number_folders(paths, known)
        return Files(root, np.array(paths), labels, classes)
    names = sorted(os.listdir(root))
    for endings in ((".tar",), shards.COMPRESSED):  # the second only to be refused
        tars = [os.fsdecode(os.path.join(root, name)) for name in names if os.fsdecode(name).lower().endswith(endings)]
        if tars:
            return _read_shards(tars, path)
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
    if (len(names) >= 2 and len(paths) >= 2 * len(names)) or set(classes) <= set(known):
        numbers = {name: number for number, name in enumerate(names)}
        return array("q", (numbers[folder] for folder in folders)), classes
    return None, ()


def _number(labels: Sequence[int]) -> tuple[Sequence[int] | None, tuple[str, ...]]:
    """Classes by the numbers that someone gave them; a single one tells nothing apart."""
    values = sorted(set(labels))
    if len(values) < 2:
        return None, ()
    numbers = {value: number for number, value in enumerate(values)}
    return array("q", (numbers[label] for label in labels)), tuple(str(value) for value in values)


def _read_shards(paths: Iterator[str] | list[str], data: str) -> Shards:
    index = shards.build(paths)
    if not len(index):
        raise ValueError(f"no images in the shards {data!r}; known endings: {_KNOWN}")
    labels, classes = (None, ()) if index.labels is None else _number(index.labels.tolist())
    return Shards(index, labels, classes)


def _read_list(path: str) -> Files:
    with open(path, "rb") as file:
        if b"\0" in file.read(2**16):
            raise ValueError(
                f"{path!r} is no text; give a list with one path a line, a folder of images, or .tar shards"
            )
        file.seek(0)
        text = file.read().removeprefix(b"\xef\xbb\xbf")  # some editors of Windows put it there
    lines = [line.strip() for line in text.split(b"\n")]
    lines = [line for line in lines if line and not line.startswith(b"#")]
    if not lines:
        raise ValueError(f"the list {path!r} names no images; write one path a line")
    root = os.path.dirname(os.fsencode(path))

    def exist(names: list[bytes]) -> int:
        return sum(os.path.isfile(os.path.join(root, name)) for name in names[:100])

    whole = exist(lines)
    ends = [re.fullmatch(rb"(.*\S)\s+(-?\d{1,18})", line) for line in lines]
    split = [(end[1], int(end[2])) for end in ends if end]
    # "holiday 2.jpg 3" has a label and "holiday 2" may be a name: the files themselves decide.
    if len(split) == len(lines) and exist([name for name, _ in split]) > whole:
        labels, classes = _number([label for _, label in split])
        return Files(root, np.array([name for name, _ in split]), labels, classes)
    if not whole:
        raise ValueError(
            f"none of the first {min(100, len(lines))} files named in {path!r} exists, such as "
            f"{shards.show(lines[0][:200])!r}; paths are absolute, or relative to the folder of the list"
        )
    return Files(root, np.array(lines), None, ())


def _load(name: str, make: Callable[..., Any], download: bool) -> Any:
    """A torchvision set from the store; from the network only if asked to and if it is not there."""
    root = str(shards.store())
    failures = (OSError, RuntimeError, EOFError, tarfile.TarError, http.client.HTTPException)
    try:
        return make(root, download=False)
    except failures:
        if not download:
            raise ValueError(f"{name} is not in {root!r}, or not all of it; add --download to fetch it") from None
    try:
        return make(root, download=True)
    except failures as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"cannot download {name} to {root!r}: {reason}; try again, or put it there by hand") from None


def _find_cifar(name: Literal["cifar10", "cifar100"], download: bool) -> Source:
    from torchvision import datasets

    make = datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100

    def read(train: bool) -> Pixels:
        loaded = _load(name, partial(make, train=train), download)
        split = "train" if train else "test"
        pixels = np.ascontiguousarray(loaded.data)
        return Pixels(pixels, array("q", loaded.targets), tuple(loaded.classes), f"{name}/{split}")

    return _source(read(True), read(False))


def _find_stl10(download: bool) -> Source:
    from torchvision import datasets

    def read(split: str) -> Pixels:
        loaded = _load("stl10", partial(datasets.STL10, split=split), download)
        pixels = np.ascontiguousarray(loaded.data.transpose(0, 2, 3, 1))
        return Pixels(pixels, array("q", loaded.labels.tolist()), tuple(loaded.classes), f"stl10/{split}")

    train, labelled, val = read("train+unlabeled"), read("train"), read("test")
    train.labels = None  # most of them are -1
    return Source(train, labelled, val, _describe(train, labelled, val))


def _find_imagenette(download: bool) -> Source:
    from torchvision import datasets

    _load("imagenette", partial(datasets.Imagenette, size="160px"), download)
    path = str(shards.store() / "imagenette2-160")
    source = _find_folder(path)
    counts = len(source.train), len(source.val) if source.val else 0
    if counts != IMAGENETTE:
        raise ValueError(
            f"{path!r} has {sum(counts):,} images rather than {sum(IMAGENETTE):,}; remove it and add --download"
        )
    return source


def _find_shapes(download: bool) -> Source:
    from fastmoco.shapes import CLASSES, draw

    def read(split: Literal["train", "val"]) -> Pixels:
        images, labels = draw(split)
        return Pixels(images.permute(0, 2, 3, 1).contiguous().numpy(), array("q", labels), CLASSES, f"shapes/{split}")

    return _source(read("train"), read("val"))


NAMED: dict[str, Callable[[bool], Source]] = {
    "shapes": _find_shapes,
    "cifar10": partial(_find_cifar, "cifar10"),
    "cifar100": partial(_find_cifar, "cifar100"),
    "stl10": _find_stl10,
    "imagenette": _find_imagenette,
}
