"""Batches of views, through workers that read files or from the whole set on the device: one face, two ways.

A batch is a pure function of (seed, step): the workers, their number and a restart change nothing.
"""

import math
import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed import ReduceOp

from fastmoco.album import Album, collect, read
from fastmoco.augment import Look, change, normalise
from fastmoco.crop import resample
from fastmoco.cuts import Batch as Batch
from fastmoco.cuts import Cuts, working
from fastmoco.distributed import local_world, total
from fastmoco.draws import Draws
from fastmoco.images import Images
from fastmoco.nvjpeg import Decoder
from fastmoco.recipe import View

Way = Literal["auto", "stream", "resident"]
Decode = Literal["cpu", "gpu"]


@runtime_checkable
class Loader(Protocol):
    """The one face: batches from any step on, and their views on the device, ready for a learner."""

    words: str  # for people: which way, and why

    def since(self, step: int, every: int = 1) -> Generator[Batch, None, None]:
        """Every `every`-th step only, from `step` on. To be closed, which ends what it has started."""

    def views(self, batch: Batch) -> list[Float[Tensor, "_ b 3 _ _"]]: ...


class Stream:
    """Workers read the images of each step. They, or the device, decode and cut them; the device does the rest."""

    def __init__(
        self, images: Images, draws: Draws, device: torch.device, workers: int, compile: bool, decode: Decode = "cpu"
    ) -> None:
        self.cuts = Cuts(images, draws, leave=decode == "gpu")
        self.device = device
        self.workers = workers
        self.decoder = Decoder(self.cuts, device) if decode == "gpu" else None
        self.finish = _compiled(finish, compile)
        self.words = f"stream: files are read by {workers} workers" if workers else "stream: files are read in turn"
        self.words += ", and decoded by the GPU" if self.decoder else ""

    def since(self, step: int, every: int = 1) -> Generator[Batch, None, None]:
        steps = range(step, self.cuts.draws.steps, every)
        with working(self.cuts, steps, self.workers, pin=self.device.type == "cuda") as batches:
            yield from ahead(map(self.decoder, batches)) if self.decoder else batches

    def views(self, batch: Batch) -> list[Float[Tensor, "_ b 3 _ _"]]:
        return [
            self.finish(crops.to(self.device, non_blocking=True), look.to(self.device), view)
            for crops, look, view in zip(batch.parts, batch.looks, self.cuts.draws.views, strict=True)
        ]


class Resident:
    """The whole set lies on the device as 8-bit pixels, and crops are cut there."""

    def __init__(self, album: Album, draws: Draws, device: torch.device, compile: bool) -> None:
        self.pixels = album.pixels.to(device)
        self.sizes = album.sizes
        self.bad = album.bad
        self.draws = draws
        self.device = device
        self.finish = _compiled(cut_and_finish, compile)
        self.words = f"resident: the whole set is on the device, {self.pixels.nbytes / 2**20:,.0f} MiB"

    def since(self, step: int, every: int = 1) -> Generator[Batch, None, None]:
        batches = map(self._draw, range(step, self.draws.steps, every))
        # On a CPU, threads that draw would only take its cores from the networks.
        # Pinned: other memory would be copied only when the GPU has nothing left to do.
        yield from ahead(map(Batch.pin_memory, batches)) if self.device.type == "cuda" else batches

    def _draw(self, step: int) -> Batch:
        index = self.draws.index(step)
        where = self.draws.boxes(step, index, self.sizes[index])
        counts = [view.count for view in self.draws.views]
        return Batch(index, self.draws.looks(step), list(torch.split(where, counts)), self.bad, len(self.pixels))

    def views(self, batch: Batch) -> list[Float[Tensor, "_ b 3 _ _"]]:
        images = self.pixels[batch.index.to(self.device, non_blocking=True)]
        return [
            self.finish(images, where.to(self.device, non_blocking=True), look.to(self.device), view)
            for where, look, view in zip(batch.parts, batch.looks, self.draws.views, strict=True)
        ]


def choose(
    images: Images,
    draws: Draws,
    device: torch.device,
    *,
    way: Way,
    workers: int,
    compile: bool,
    decode: Decode = "cpu",
    seen: Callable[[int], None] = lambda count: None,
) -> Loader:
    """Resident where the whole set fits and crops are quicker there, else stream; `decode` is for the latter."""
    if decode == "gpu" and device.type != "cuda":
        raise ValueError(f"--decode gpu needs a GPU, and the device is {device.type}; leave it out")
    room = math.inf if way == "resident" else _room(images, device) if way == "auto" else 0.0
    room = total(torch.tensor(room, dtype=torch.float64), ReduceOp.MIN).item()  # of the rank that has least
    if room:
        album = collect(images, range(len(images)), max(1, workers), seen=seen, most=room)
        if album is not None:
            return Resident(album, draws, device, compile)
    return Stream(images, draws, device, workers, compile, decode)


def _room(images: Images, device: torch.device) -> float:
    """How many bytes a resident set may take; none if some images tell that it would take more, or be slow."""
    some = range(0, len(images), max(1, len(images) // 64))
    sizes = [read(images, index)[0].size for index in some]
    width, height = max(size[0] for size in sizes), max(size[1] for size in sizes)
    need = 3 * width * height * len(images)
    try:
        host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / local_world()
    except ValueError:  # not on macOS
        host = 2**32
    if device.type == "cuda":
        room = min(torch.cuda.mem_get_info(device)[0], host) / 4
    else:  # PIL cuts a crop of a larger image sooner than two matrix products do
        room = host / 8 if max(width, height) <= 64 else 0.0
    return room if need < room else 0.0


def ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The next batch is made while the device is at this one."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, batches, None)
        while (batch := waiting.result()) is not None:
            waiting = pool.submit(next, batches, None)
            yield batch


def finish(crops: Tensor, look: Look, view: View) -> Float[Tensor, "count b 3 size size"]:
    """From 8-bit crops to what a network sees."""
    # In one memory format, whatever came in: sums depend on the order, and the same numbers must come out.
    crops = crops.to(torch.float, memory_format=torch.contiguous_format)
    return normalise(change(crops / 255, look, view.augment))


def cut_and_finish(images: Tensor, where: Tensor, look: Look, view: View) -> Float[Tensor, "count b 3 size size"]:
    """From whole 8-bit images to what a network sees."""
    return normalise(change(torch.stack([resample(images, box, view) for box in where]), look, view.augment))


def _compiled(function: Callable[..., Tensor], compile: bool) -> Callable[..., Tensor]:
    return torch.compile(function, dynamic=False) if compile else function
