"""Sets that have a name: torchvision's, which are downloaded on request, and one that is drawn."""

import http.client
import tarfile
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np

from fastmoco import shards
from fastmoco.folders import find_folder
from fastmoco.images import Pixels, Source, describe, put_together

IMAGENETTE = (9469, 3925)  # images to learn from and held out: with fewer, the archive was not unpacked to its end


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

    return put_together(read(True), read(False))


def _find_stl10(download: bool) -> Source:
    from torchvision import datasets

    def read(split: str) -> Pixels:
        loaded = _load("stl10", partial(datasets.STL10, split=split), download)
        pixels = np.ascontiguousarray(loaded.data.transpose(0, 2, 3, 1))
        return Pixels(pixels, array("q", loaded.labels.tolist()), tuple(loaded.classes), f"stl10/{split}")

    train, labelled, val = read("train+unlabeled"), read("train"), read("test")
    train.labels = None  # most of them are -1
    return Source(train, labelled, val, describe(train, labelled, val))


def _find_imagenette(download: bool) -> Source:
    from torchvision import datasets

    _load("imagenette", partial(datasets.Imagenette, size="160px"), download)
    path = str(shards.store() / "imagenette2-160")
    source = find_folder(path)
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

    return put_together(read("train"), read("val"))


NAMED: dict[str, Callable[[bool], Source]] = {
    "shapes": _find_shapes,
    "cifar10": partial(_find_cifar, "cifar10"),
    "cifar100": partial(_find_cifar, "cifar100"),
    "stl10": _find_stl10,
    "imagenette": _find_imagenette,
}
