"""Whole images, as they are shown to an encoder."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from PIL.Image import Image
from torch import Tensor

from fastmoco.album import collect, middle
from fastmoco.augment import normalise
from fastmoco.distributed import share
from fastmoco.images import Images

BLOCK = 256  # images that pass an encoder at once, if they are not large
PIXELS = 2**25  # that pass it at once at most
ROOM = 2**30  # bytes of pixels that a gallery keeps

Block = tuple[list[int], UInt8[Tensor, "b 3 size size"]]


@dataclass(frozen=True)
class Frame:
    """How a whole image is shown to an encoder: which part of its middle, at how many pixels."""

    size: int
    part: float = 1.0

    def __call__(self, image: Image) -> UInt8[Tensor, "3 {self.size} {self.size}"]:
        return middle(image, self.size, self.part)


class Gallery:
    """Whole images in blocks, as often as they are asked for; read once where their pixels fit into memory.

    Each rank shows its own of the blocks, and these are the same however many ranks there are.
    """

    def __init__(self, images: Images, frame: Frame, threads: int) -> None:
        self.images, self.frame, self.threads = images, frame, threads
        self.bad: dict[int, str] = {}  # those that could not be read, and why; they are left out
        self._kept: list[Block] = []

    def __len__(self) -> int:
        return len(self.images)

    @property
    def block(self) -> int:
        """How many images are shown at once."""
        return max(1, min(BLOCK, PIXELS // self.frame.size**2))

    def __iter__(self) -> Iterator[Block]:
        if self._kept:
            yield from self._kept
            return
        mine = share(len(self), self.block)
        keep = 3 * self.frame.size**2 * len(mine) <= ROOM
        places = [list(mine[start : start + self.block]) for start in range(0, len(mine), self.block)]
        blocks: list[Block] = []
        with ThreadPoolExecutor(1) as pool:  # the next block is read while the device is at this one
            waiting = [pool.submit(self._read, index) for index in places[:1]]
            for place in range(len(places)):
                block = waiting.pop().result()
                waiting = [pool.submit(self._read, index) for index in places[place + 1 : place + 2]]
                if keep:
                    blocks.append(block)
                yield block
        self._kept = blocks

    def _read(self, index: list[int]) -> Block:
        album = collect(self.images, index, self.threads, self.frame)
        assert album is not None, "there is no limit"
        self.bad |= {number: reason for number, reason in album.bad.items() if number in index}
        good = [number not in album.bad for number in index]
        return [number for number, fine in zip(index, good, strict=True) if fine], album.pixels[torch.tensor(good)]


def show(pixels: UInt8[Tensor, "b 3 h w"], device: torch.device) -> Float[Tensor, "b 3 h w"]:
    """Pixels as an encoder takes them, on its device."""
    x = normalise(pixels.to(device, non_blocking=True).float() / 255)
    return x.contiguous(memory_format=torch.channels_last)


def labels_of(images: Images) -> Int64[Tensor, " n"]:
    """One number per image; -1 where there are none."""
    return torch.tensor([-1] * len(images) if images.labels is None else list(images.labels))
