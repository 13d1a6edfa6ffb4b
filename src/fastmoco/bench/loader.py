"""`fastmoco bench loader`: images a second that come out of loaders, from files to two views.

- "ours, 8-bit crops": what the CPU must do of ours. Workers read, decode, cut two crops of each image and draw their
  looks.
- "PIL and torchvision": a DataLoader with as many workers, in which transforms make two normalised float views of each
  image, as the scripts of MoCo v3 and SimSiam do.
- "PIL, decoded only": the same DataLoader, which decodes whole images and makes nothing of them.
- "ours, views on the device": the first, and the rest of the way to normalised float views; only with a GPU.

All read the same set in random orders. None is slowed down by a training, and but for the last none sends anything to a
device. A set of which all files fit into memory is read from there after the first pass.
"""

import itertools
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from fastmoco.album import read, too_many
from fastmoco.bench import peers
from fastmoco.bench.clock import Contender, enter, finish
from fastmoco.bench.record import conclude
from fastmoco.data import find
from fastmoco.draws import Draws
from fastmoco.images import Images, Part
from fastmoco.loader import Loader, choose
from fastmoco.methods import both, encode

ROUNDS = 5
EPOCHS = 10**6  # more than any measurement takes

Batches = Generator[object, None, None]
Open = Callable[[], Batches]  # begins a loader; closing what it returns ends the workers


def measure(
    data: str, size: int, batch: int, workers: int, device: torch.device, seconds: float, out: str, commit: str = ""
) -> dict[str, Any]:
    """Each loader is started, warmed, measured for at least so many seconds and closed before the next; and again."""
    if batch < 1 or workers < 0:
        raise ValueError(f"batch={batch}, workers={workers}: use 1 image or more, and 0 workers or more")
    images = find(data).train
    facts = _facts(images)  # which refuses a set that cannot be read
    loaders = _loaders(enough(images, batch), size, batch, workers, device)
    contenders = [_enter(name, loader, batch, device) for name, loader in loaders.items()]
    for _ in range(ROUNDS):
        for contender, loader in zip(contenders, loaders.values(), strict=True):
            contender.rounds.append(pace(loader, max(1, workers), seconds, device))
    about = {"size": size, "batch": batch, "workers": workers, "round_seconds": seconds, "data": Path(data).name}
    return conclude("loader", contenders, device, {**about, **facts}, out, commit)


def enough(images: Images, batch: int) -> Images:
    """The set itself, or if it is smaller than a batch, so many of its images in turn."""
    return images if len(images) >= batch else Part(images, np.resize(np.arange(len(images)), batch))


def pace(loader: Open, workers: int, seconds: float, device: torch.device) -> float:
    """Seconds of a batch, once all workers are at it."""
    # Workers begin together and so deliver in bursts. Whole turns of all of them are counted, after a first turn.
    with closing(loader()) as batches:
        _take(batches, workers)
        finish(device)
        begun, taken = time.perf_counter(), 0
        while not taken or time.perf_counter() - begun < seconds:
            taken += _take(batches, workers)
        finish(device)
        return (time.perf_counter() - begun) / taken


def _loaders(images: Images, size: int, batch: int, workers: int, device: torch.device) -> Mapping[str, Open]:
    views, gpu = both(encode, size=size), device.type == "cuda"
    draws = Draws(views, batch, EPOCHS, 0, len(images))
    ours = choose(images, draws, device, way="stream", workers=workers, compile=gpu)
    epoch = itertools.count()  # each time another: the others, too, find another order whenever they begin
    scripts = peers.Views(images, peers.by_torchvision(views[0].augment, views[0]))
    made: dict[str, Open] = {
        "ours, 8-bit crops": lambda: ours.since(next(epoch) * draws.per_epoch),
        "PIL and torchvision": lambda: peers.batches(scripts, batch, workers, gpu),
        "PIL, decoded only": lambda: peers.batches(peers.Decoded(images), batch, workers, gpu),
    }
    if gpu:
        made["ours, views on the device"] = lambda: _views(ours, next(epoch) * draws.per_epoch)
    return made


def _views(loader: Loader, step: int) -> Batches:
    with closing(loader.since(step)) as batches:
        for batch in batches:
            yield loader.views(batch)


def _enter(name: str, loader: Open, batch: int, device: torch.device) -> Contender:
    """Until the first batch is there: workers are started, and views compiled."""
    with ExitStack() as ends:
        return enter(name, lambda: partial(next, ends.enter_context(closing(loader()))), device, batch, warm=0)


def _take(batches: Batches, count: int) -> int:
    for _ in range(count):
        next(batches)
    return count


def _facts(images: Images) -> dict[str, int]:
    """How many images there are, and how large the usual one is: decoding takes time by the pixel."""
    some = range(0, len(images), -(-len(images) // 100))
    sizes, bad = [], []
    for index in some:
        image, unread = read(images, index)
        sizes.append(image.size)
        bad += [index] if index in unread else []
    if too_many(len(bad), len(some), len(some)):
        raise ValueError(f"{len(bad)} of {len(some)} images cannot be read, such as {images.name(bad[0])}; remove them")
    width, height = (round(median(each)) for each in zip(*sizes, strict=True))
    return {"images": len(images), "image_width": width, "image_height": height}
