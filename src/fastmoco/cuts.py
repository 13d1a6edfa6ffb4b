"""What workers do: read the images of a batch, decode them no larger than needed, and cut their crops."""

import contextlib
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from PIL.Image import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fastmoco.album import read
from fastmoco.augment import Look
from fastmoco.crop import cut, shrinks
from fastmoco.decode import load, look
from fastmoco.draws import Draws
from fastmoco.images import Images, fetch

# Workers only read. Python 3.14 would start them anew, to which a user's own steps cannot be sent.
START = "fork" if sys.platform == "linux" else None
LONGEST = 72  # bytes of the folder in which workers make sockets, whose paths may have 108
LARGEST = 1024  # pixels along a side, at most, of an image that is left to the device; it bounds the memory of a block

Crops = list[UInt8[np.ndarray, "_ _ 3"]]  # all of one image


@dataclass
class Left:
    """The JPEGs of a batch that the device is to decode and cut."""

    step: int
    places: list[int]  # in the batch
    content: UInt8[Tensor, " bytes"]  # one after the other: a tensor for each would be an open file for each
    lengths: list[int]
    sizes: Int64[Tensor, "n 2"]
    where: Int64[Tensor, "crops n 4"]


@dataclass
class Batch:
    """What is known of a batch before the device has made its views."""

    index: Int64[Tensor, " b"]  # of its images, those of this rank
    looks: list[Look]  # one for each view
    parts: list[Tensor]  # for each view its 8-bit crops (count, b, 3, size, size), or where they lie (count, b, 4)
    bad: dict[int, str]  # images that could not be read, and why
    read: int  # images that have been read since the training began, by all ranks
    left: Left | None = None  # these are missing in `parts`

    def pin_memory(self) -> "Batch":
        """Torch's DataLoader calls this by its name."""
        looks, parts = [look.pin_memory() for look in self.looks], [part.pin_memory() for part in self.parts]
        return replace(self, index=self.index.pin_memory(), looks=looks, parts=parts)


class Cuts(Dataset[Batch]):
    """Item i is the batch of step i, decoded and cut: workers need no more than this.

    With `leave`, JPEGs that a GPU can decode stay encoded.
    """

    def __init__(self, images: Images, draws: Draws, leave: bool = False) -> None:
        self.images = images
        self.draws = draws
        self.leave = leave
        self.views = [view for view in draws.views for _ in range(view.count)]  # of every crop

    def __getitem__(self, step: int) -> Batch:
        index, draws = self.draws.index(step), self.draws
        # Headers tell the sizes, so that boxes are drawn for all images at once; then each is decoded as far as needed.
        files = [self._look(number) for number in index.tolist()]
        sizes = torch.tensor([(1, 1) if image is None else image.size for _, image in files])
        where = draws.boxes(step, index, sizes)
        places = [place for place, file in enumerate(files) if self.leave and suits(*file)]
        left = _leave(step, places, [files[place][0] for place in places], sizes, where) if places else None
        here = sorted({*range(len(index))} - {*places})
        opened = {place: files[place][1] for place in here}
        del files  # here, and by `pop` below: or the pixels of all images would be kept
        parts, bad = self._cut(step, index[here], (opened.pop(place) for place in here), where[:, here])
        return Batch(index, draws.looks(step), parts, bad, (step + 1) * draws.batch, left)

    def _look(self, number: int) -> tuple[bytes, Image | None]:
        """A file and what its header tells; None if that cannot be read, and no bytes if there is no file."""
        with contextlib.suppress(Exception):  # `again` will tell what is wrong
            content = fetch(self.images, number)
            return (content if isinstance(content, bytes) else b""), look(content)
        return b"", None

    def _cut(
        self, step: int, index: Int64[Tensor, " n"], images: Iterator[Image | None], where: Int64[Tensor, "crops n 4"]
    ) -> tuple[list[UInt8[Tensor, "_ n 3 _ _"]], dict[int, str]]:
        """For each view the crops of images that are not decoded yet; others stand in for those that cannot be."""
        stacks = [np.empty((view.count, len(index), view.size, view.size, 3), np.uint8) for view in self.draws.views]
        rows = [row for stack in stacks for row in stack]
        shrink = shrinks(where, torch.tensor([view.size for view in self.views])).tolist()
        boxes = where.transpose(0, 1).tolist()
        bad: dict[int, str] = {}
        for place, (number, image) in enumerate(zip(index.tolist(), images, strict=True)):
            crops = self._crops(image, boxes[place], shrink[place])
            if crops is None:
                crops, unread = self.again(step, number)
                bad |= unread
            for row, crop in zip(rows, crops, strict=True):
                row[place] = crop
        # A device brings channels to the front sooner than a worker does.
        return [torch.from_numpy(stack).permute(0, 1, 4, 2, 3) for stack in stacks], bad

    def _crops(self, image: Image | None, boxes: list[list[int]], shrink: int) -> Crops | None:
        with contextlib.suppress(Exception):  # as above
            if image is not None:
                width, image = image.width, load(image, shrink)
                shrink = shrink if image.width < width else 1  # only a JPEG is decoded smaller
                return [cut(image, box, view, shrink) for box, view in zip(boxes, self.views, strict=True)]
        return None

    def again(self, step: int, number: int) -> tuple[Crops, dict[int, str]]:
        """The crops of an image that has failed, or of another in its place, and why."""
        image, bad = read(self.images, number)
        where = self.draws.boxes(step, torch.tensor([number]), torch.tensor([image.size]))
        return [cut(image, box, view) for box, view in zip(where[:, 0].tolist(), self.views, strict=True)], bad


def suits(content: bytes, image: Image | None) -> bool:
    """Whether a GPU decodes this file as PIL does. It would not notice that one is cut off."""
    return (
        image is not None
        and image.format == "JPEG"
        and image.mode in ("RGB", "L")
        and max(image.size) <= LARGEST
        and not image.info.get("progressive")
        and image.info.get("adobe_transform") != 0  # 0: stored as red, green and blue
        and content[-1024:].rstrip(b"\0").endswith(b"\xff\xd9")
    )


def _leave(
    step: int, places: list[int], files: list[bytes], sizes: Int64[Tensor, "b 2"], where: Int64[Tensor, "crops b 4"]
) -> Left:
    content = torch.frombuffer(bytearray().join(files), dtype=torch.uint8)
    return Left(step, places, content, [len(file) for file in files], sizes[places], where[:, places])


@contextmanager
def working(cuts: Cuts, steps: range, workers: int, pin: bool) -> Iterator[Iterator[Batch]]:
    """The batches of these steps, made by workers that end when this does."""
    folder = tempfile.gettempdir()
    if workers and len(os.fsencode(folder)) > LONGEST:  # or a worker would drop its batch, and we would wait for ever
        raise ValueError(f"TMPDIR={folder} is too long for sockets between processes; use a shorter one, such as /tmp")
    with warnings.catch_warnings():
        # Someone who asks for more workers than there are cores has a reason, such as a slow disk.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        batches = iter(
            DataLoader(
                cuts,
                batch_size=None,
                sampler=steps,
                num_workers=workers,
                pin_memory=pin,
                worker_init_fn=keep_working,
                multiprocessing_context=START if workers else None,
                generator=torch.Generator(),  # of its own: torch's would be one draw further after each restart
            )
        )
    try:
        yield batches
    finally:
        if workers:  # an exception would keep them, and they would keep the process from ending
            batches._shutdown_workers()  # type: ignore[attr-defined]


def keep_working(worker: int) -> None:
    """Ctrl-C and a scheduler's SIGTERM reach the workers, too; they go on, since the training decides when to end.

    A second SIGTERM ends a worker, if it does not end by itself when the training does.
    """
    # The thread that hands images over would print how it failed if the training is killed.
    parent, told = os.getppid(), sys.excepthook
    sys.excepthook = lambda *error: told(*error) if os.getppid() == parent else None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(number, signal.SIG_DFL) and None)
