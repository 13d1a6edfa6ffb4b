"""Read images, whatever their files are like: one of them, or all of a set at once."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int64, UInt8
from PIL.Image import Image, Resampling, new
from torch import Tensor

from fastmoco.checkpoint import write
from fastmoco.crop import pixels
from fastmoco.decode import why
from fastmoco.distributed import leads, tell
from fastmoco.images import Images
from fastmoco.randomness import key
from fastmoco.shelf import SHELF

MOST_BAD = 0.05  # of a set may be unreadable
ATTEMPTS = 20  # to find an image that can be read; with a tenth of a set unreadable, all fail once in 10**20


def read(images: Images, index: int) -> tuple[Image, dict[int, str]]:
    """An image, or another in its place, chosen by its index alone; and those that could not be read, with reasons."""
    bad: dict[int, str] = {}
    for attempt in range(ATTEMPTS):
        other = int(key(index, attempt)) % len(images) if attempt else index
        try:
            return images.read(other), bad
        except Exception as error:  # a decoder can fail in any way on a file that is not what it says
            bad[other] = why(error)
    return new("RGB", (1, 1)), bad  # so many in a row are too many in all, and end the training


def too_many(bad: int, read: int, images: int) -> bool:
    """Whether a set has too many unreadable images to go on, as far as `read` of its images tell."""
    # A share of few images is no share, so at least a thousand are read, or all, before it is judged.
    return bad > MOST_BAD * min(images, max(read, 1000))


@dataclass(frozen=True)
class Album:
    """Many images in one tensor, each in the upper left corner."""

    pixels: UInt8[Tensor, "n 3 h w"]
    sizes: Int64[Tensor, "n 2"]  # width, height
    bad: dict[int, str]  # those that could not be read, and why; another is in their place


def collect(
    images: Images,
    index: Sequence[int],
    threads: int,
    make: Callable[[Image], Tensor] = pixels,
    seen: Callable[[int], None] = lambda count: None,
    most: float = math.inf,
) -> Album | None:
    """Read these images, and keep what `make` makes of each; None if that takes more than `most` bytes.

    What is on the shelf is not read again. Decoders let other threads run, so threads are enough.
    """

    section = SHELF.section(images, make)

    def turn(number: int) -> tuple[Tensor, dict[int, str]]:
        known = section.find(number)
        if known is not None:
            return known, {}
        image, bad = read(images, number)
        return make(image), bad

    found: list[Tensor] = []
    bad: dict[int, str] = {}
    width = height = 0
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for count, (image, unread) in enumerate(pool.map(turn, index)):
            found.append(image)
            bad |= unread
            seen(count + 1)
            width, height = max(width, image.shape[2]), max(height, image.shape[1])
            if len(index) * 3 * width * height > most:
                pool.shutdown(cancel_futures=True)
                return None
    for number, image in zip(index, found, strict=True):
        if number not in bad:  # in whose place is another
            section.keep(number, image)
    sizes = torch.tensor([[image.shape[2], image.shape[1]] for image in found])
    album = torch.zeros(len(found), 3, height, width, dtype=torch.uint8)
    for place, image in enumerate(found):
        album[place, :, : image.shape[1], : image.shape[2]] = image
    return Album(album, sizes, bad)


def shown(size: int) -> float:
    """The part of an image's short side that is shown by default: ImageNet's custom from 224 px on."""
    return 7 / 8 if size >= 224 else 1.0


def middle(image: Image, size: int, part: float = 1.0) -> UInt8[Tensor, "3 size size"]:
    """The square in the middle of an image, of this part of its short side: how an encoder is shown a whole image.

    With 224 and 0.875 it is ImageNet's custom, the short side resized to 256 and the middle 224 cut, in one go.
    """
    side = part * min(image.size)
    # Moved by whole pixels of the result, or a square that needs no resizing would be blurred.
    left, upper = (round((extent - side) / 2 * size / side) * side / size for extent in image.size)
    box = (left, upper, min(left + side, image.width), min(upper + side, image.height))
    return pixels(image.resize((size, size), Resampling.BICUBIC, box=box))


class Unreadable:
    """The images of a set that could not be read, listed in a file with the reason.

    What an earlier attempt has listed is tried again if there is something left to read: it may have been mended.
    """

    def __init__(self, images: Images, path: Path, again: bool = True) -> None:
        self.images = images
        self.path = path
        self.reasons: dict[str, str] = tell(self._still if again else self._read)

    def _read(self) -> dict[str, str]:
        lines = self.path.read_text(errors="surrogateescape").splitlines() if self.path.exists() else []
        return dict(line.split("\t", 1) for line in lines if "\t" in line)

    def _still(self) -> dict[str, str]:
        known = self._read()
        if not known:
            return {}
        listed = [index for index in range(len(self.images)) if self._name(index) in known]
        mended = {self._name(index) for index in listed if index not in read(self.images, index)[1]}
        still = {name: reason for name, reason in known.items() if name not in mended}
        if mended:
            self._write(still)
        return still

    def _write(self, reasons: Mapping[str, str]) -> None:
        text = "".join(f"{name}\t{reason}\n" for name, reason in sorted(reasons.items()))
        write(self.path, lambda file: file.write(text.encode(errors="surrogateescape")))
        if not reasons:
            self.path.unlink()

    def new(self, bad: Mapping[int, str]) -> dict[int, str]:
        """Those that are not in the list."""
        return {index: reason for index, reason in bad.items() if self._name(index) not in self.reasons}

    def _name(self, index: int) -> str:
        return " ".join(self.images.name(index).split())

    def add(self, bad: Mapping[int, str], read: int) -> None:
        """Note the unreadable images of a batch, now that `read` of the set were read; too many end the training."""
        if self.new(bad):
            self.reasons |= {self._name(index): reason for index, reason in bad.items()}
            if leads():
                self._write(self.reasons)
        if too_many(len(self.reasons), read, len(self.images)):
            raise ValueError(
                f"{len(self.reasons):,} of {min(read, len(self.images)):,} images cannot be read, "
                f"more than {MOST_BAD:.0%}; they are listed in {self.path}; mend or remove them"
            )
