"""Batches of views, through workers that read files or from the whole set on the device: one face, two ways.

A batch is a pure function of (seed, step): the workers, their number and a restart change nothing.
"""

import math
import os
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributed import ReduceOp
from torch.utils.data import DataLoader, Dataset

from fastmoco.album import Album, collect, read
from fastmoco.augment import Look, change, normalise
from fastmoco.crop import cut, resample
from fastmoco.distributed import local_world, total
from fastmoco.draws import Draws
from fastmoco.images import Images
from fastmoco.recipe import View

Way = Literal["auto", "stream", "resident"]


@dataclass
class Batch:
    """What is known of a batch before the device has made its views."""

    index: Int64[Tensor, " b"]  # of its images, those of this rank
    looks: list[Look]  # one for each view
    parts: list[Tensor]  # for each view its 8-bit crops (count, b, 3, size, size), or where they lie (count, b, 4)
    bad: dict[int, str]  # images that could not be read, and why
    read: int  # images that have been read since the training began, by all ranks

    def pin_memory(self) -> "Batch":
        """Torch's DataLoader calls this by its name."""
        looks, parts = [look.pin_memory() for look in self.looks], [part.pin_memory() for part in self.parts]
        return Batch(self.index, looks, parts, self.bad, self.read)


@runtime_checkable
class Loader(Protocol):
    """The one face: batches from any step on, and their views on the device, ready for a learner."""

    words: str  # for people: which way, and why

    def since(self, step: int, every: int = 1) -> Generator[Batch, None, None]:
        """To be closed, which ends what it has started. Of the steps only each so manieth, if there are others."""

    def views(self, batch: Batch) -> list[Float[Tensor, "_ b 3 _ _"]]: ...


class Cuts(Dataset[Batch]):
    """Item i is the batch of step i, decoded and cut: workers need no more than this."""

    def __init__(self, images: Images, draws: Draws) -> None:
        self.images = images
        self.draws = draws

    def __getitem__(self, step: int) -> Batch:
        index, views = self.draws.index(step), self.draws.views
        crops = [torch.empty(view.count, len(index), 3, view.size, view.size, dtype=torch.uint8) for view in views]
        stacks = [(view, stack) for view, each in zip(views, crops, strict=True) for stack in each]
        bad: dict[int, str] = {}
        for place, number in enumerate(index.tolist()):
            image, unread = read(self.images, number)
            bad |= unread
            where = self.draws.boxes(step, index[place : place + 1], torch.tensor([image.size]))
            for (view, stack), box in zip(stacks, where[:, 0], strict=True):
                stack[place] = cut(image, box, view)
        return Batch(index, self.draws.looks(step), crops, bad, (step + 1) * self.draws.batch)


class Stream:
    """Workers read and decode every image once a step and cut its crops; the device does the rest."""

    def __init__(self, images: Images, draws: Draws, device: torch.device, workers: int, compile: bool) -> None:
        self.cuts = Cuts(images, draws)
        self.device = device
        self.workers = workers
        self.finish = _compiled(finish, compile)
        self.words = f"stream: files are read by {workers} workers" if workers else "stream: files are read in turn"

    def since(self, step: int, every: int = 1) -> Generator[Batch, None, None]:
        with warnings.catch_warnings():
            # Someone who asks for more workers than there are cores has a reason, such as a slow disk.
            warnings.filterwarnings("ignore", "This DataLoader will create")
            batches = iter(
                DataLoader(
                    self.cuts,
                    batch_size=None,
                    sampler=range(step, self.cuts.draws.steps, every),
                    num_workers=self.workers,
                    pin_memory=self.device.type == "cuda",
                    worker_init_fn=keep_working,
                    generator=torch.Generator(),  # of its own: torch's would be one draw further after each restart
                )
            )
        try:
            yield from batches
        finally:
            if self.workers:  # an exception would keep them, and they would keep the process from ending
                batches._shutdown_workers()  # type: ignore[attr-defined]

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
        yield from ahead(batches) if self.device.type == "cuda" else batches

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
    seen: Callable[[int], None] = lambda count: None,
) -> Loader:
    """Resident where the whole set fits and crops are quicker there, else stream."""
    room = math.inf if way == "resident" else _room(images, device) if way == "auto" else 0.0
    room = total(torch.tensor(room, dtype=torch.float64), ReduceOp.MIN).item()  # of the rank that has least
    if room:
        album = collect(images, range(len(images)), max(1, workers), seen=seen, most=room)
        if album is not None:
            return Resident(album, draws, device, compile)
    return Stream(images, draws, device, workers, compile)


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
    return normalise(change(crops.float() / 255, look, view.augment))


def cut_and_finish(images: Tensor, where: Tensor, look: Look, view: View) -> Float[Tensor, "count b 3 size size"]:
    """From whole 8-bit images to what a network sees."""
    return normalise(change(torch.stack([resample(images, box, view) for box in where]), look, view.augment))


def _compiled(function: Callable[..., Tensor], compile: bool) -> Callable[..., Tensor]:
    return torch.compile(function, dynamic=False) if compile else function


def keep_working(worker: int) -> None:
    """Ctrl-C and a scheduler's SIGTERM reach the workers too, but it is for the training to end, and for them to last.

    A second SIGTERM ends a worker, if it does not end by itself when the training does.
    """
    # The thread that hands images over would print how it failed if the training is killed.
    parent, told = os.getppid(), sys.excepthook
    sys.excepthook = lambda *error: told(*error) if os.getppid() == parent else None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(number, signal.SIG_DFL) and None)
