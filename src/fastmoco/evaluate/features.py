"""Embeddings of whole images, extracted once and kept for the next evaluation."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from PIL.Image import Image
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastmoco import shards
from fastmoco.album import collect, middle, read
from fastmoco.augment import normalise
from fastmoco.checkpoint import write
from fastmoco.distributed import agree, concatenate, leads, share, total, world
from fastmoco.encoder import Encoder
from fastmoco.evaluate.progress import Progress
from fastmoco.images import Images, Part
from fastmoco.lock import in_turn
from fastmoco.randomness import order
from fastmoco.weights import digest

BLOCK = 256  # images that pass an encoder at once, if they are not large
PIXELS = 2**25  # that pass it at once at most
ROOM = 2**30  # bytes of pixels that a gallery keeps
MOST = 2**34  # bytes of embeddings that are kept on the disk: those of ImageNet by a ResNet-50 are 10 GiB

Tensors = dict[str, Tensor]
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


@dataclass(frozen=True)
class Features:
    """Embeddings, and the labels that go with them."""

    x: Float[Tensor, "n d"]
    index: Int64[Tensor, " n"]  # of the images that could be read
    labels: Int64[Tensor, " n"]  # -1 where there are none


@torch.no_grad()
def embed(
    network: nn.Module,
    blocks: Iterable[UInt8[Tensor, "_ 3 size size"]],
    device: torch.device,
    halt: Callable[[], bool] = lambda: False,
) -> Float[Tensor, "n d"] | None:
    """What a network makes of whole images, by running statistics; None if told to halt. The network is left as it was.

    Each rank gives its own blocks, and gets what all have made. If ranks agree on when to `halt`, each must
    have the same number of blocks; empty ones will do.
    """
    training = network.training
    network.eval()
    found: list[Tensor] = []
    for pixels in blocks:
        if halt():
            found = []
            break
        if len(pixels):
            # Not through __call__: a compiled encoder would be compiled again for images of this size.
            found.append(network.forward(_show(pixels, device)).float())
    network.train(training)
    widths = agree(found[0].shape[1] if found else None)  # also for a rank that has no rows
    if widths is None:
        return None
    width = next(width for width in widths if width is not None)
    return concatenate(torch.cat(found) if found else torch.zeros(0, width, device=device))


def extract(network: nn.Module, gallery: Gallery, device: torch.device, what: str) -> Features:
    """What a network makes of a gallery, with its labels; progress is shown."""
    index: list[int] = []
    with Progress(what, len(gallery)) as progress:

        def pass_on() -> Iterator[Tensor]:
            for places, pixels in gallery:
                index.extend(places)
                yield pixels
                progress.add(gallery.block * world())

        x = embed(network, pass_on(), device)
    gallery.bad = pooled(gallery.bad)
    if x is None:
        raise ValueError(f"no image of {gallery.images.name(0)} and {len(gallery) - 1:,} more can be read")
    places = concatenate(torch.tensor(index, dtype=torch.long))
    return Features(x, places, labels_of(gallery.images)[places].to(x.device))


def pooled(bad: dict[int, str]) -> dict[int, str]:
    """The images that any rank could not read."""
    heard = agree(bad or None) or []
    return {number: reason for each in heard if each for number, reason in each.items()}


def remembered(make: Callable[[], Tensors], *known: str) -> Tensors:
    """What was made before, from the disk, if all by which it is known again is the same."""
    from safetensors.torch import load_file, save

    name = hashlib.sha256("\n".join(known).encode()).hexdigest()[:24]
    path = shards.store() / "features" / f"{name}.safetensors"
    found: Tensors | None = None
    if path.is_file():
        try:
            found = load_file(path)
        except Exception:  # a damaged file is made anew, whatever its reader says of it
            path.unlink(missing_ok=True)
    if agree(True if found is None else None) is None and found is not None:
        return found
    made = make()  # by all ranks, if only one of them has no such file
    if leads() and sum(value.nbytes for value in made.values()) <= MOST:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = save({key: value.contiguous() for key, value in made.items()})
        with in_turn(path):  # with another evaluation that asks for the same
            write(path, lambda file: file.write(content))
    return made


def embedded(encoder: Encoder, gallery: Gallery, device: torch.device, what: str) -> Features:
    """What an encoder makes of a gallery; from the disk if it was asked before for these weights and these pixels."""

    def make() -> Tensors:
        found = extract(encoder, gallery, device, what)
        if not finite(found.x):
            raise ValueError("embeddings are not finite; the training of these weights has diverged")
        return {"x": found.x.cpu(), "index": found.index}

    found = remembered(make, encoder.name, digest(encoder.net), gallery.images.stamp(), repr(gallery.frame))
    absent = set(range(len(gallery))).difference(found["index"].tolist())
    for place in sorted(absent - gallery.bad.keys()):
        again = read(gallery.images, place)[1]
        gallery.bad[place] = again.get(place, "it could not be read when it was embedded")
    labels = labels_of(gallery.images)[found["index"]]
    return Features(found["x"].to(device), found["index"], labels.to(device))


@torch.no_grad()
def recalibrate(encoder: Encoder, images: Images, frame: Frame, device: torch.device, threads: int) -> None:
    """Estimate the running statistics of batch norm again, on whole images: training may have shown it patches only."""
    norms = [module for module in encoder.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        raise ValueError("--recalibrate: this encoder has no batch norm; leave it out")
    # In a mixed order: class folders are sorted, and the variance of a block of one class lacks that between classes.
    gallery = Gallery(Part(images, order(0, 0, len(images)).numpy()), frame, threads)
    if min(len(gallery), gallery.block) < 2:
        raise ValueError("--recalibrate: of one image there is no spread; give more of them, or a smaller --size")
    kept = [value for norm in norms for value in (norm.running_mean, norm.running_var) if value is not None]
    # In double precision, so that the mean over all images does not depend on which rank has added which blocks.
    added = torch.zeros(2 + sum(len(value) for value in kept), dtype=torch.double)
    with Progress("recalibrating", len(gallery)) as progress, _tracking_the_last_block(encoder, norms):
        for places, pixels in gallery:
            progress.add(gallery.block * world())
            if len(places) > 1:
                encoder(_show(pixels, device))
                # By its images: the last block may have few.
                added[1:] += len(places) * torch.cat([torch.ones(1, device=device), *kept]).double().cpu()
                added[0] += 1
    blocks, count, *sums = torch.split(total(added), [1, 1, *(len(value) for value in kept)])
    if not blocks:
        raise ValueError(f"--recalibrate: no two images near {images.name(0)} can be read")
    for value, summed in zip(kept, sums, strict=True):
        value.copy_(summed / count)
    for norm in norms:
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.fill_(blocks.item())


@contextmanager
def _tracking_the_last_block(encoder: Encoder, norms: list[_BatchNorm]) -> Iterator[None]:
    """With a momentum of 1, running statistics are those of the last batch."""
    training, momenta = encoder.training, [norm.momentum for norm in norms]
    encoder.train()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = 1.0
    yield
    encoder.train(training)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def _show(pixels: UInt8[Tensor, "b 3 h w"], device: torch.device) -> Float[Tensor, "b 3 h w"]:
    x = normalise(pixels.to(device, non_blocking=True).float() / 255)
    return x.contiguous(memory_format=torch.channels_last)


def finite(x: Float[Tensor, "n d"]) -> bool:
    """Whether all are numbers; by their least and most, since `isfinite` would make a copy of all."""
    return not x.numel() or bool(torch.stack(x.aminmax()).isfinite().all())


def labels_of(images: Images) -> Int64[Tensor, " n"]:
    """One number per image; -1 where there are none."""
    return torch.tensor([-1] * len(images) if images.labels is None else list(images.labels))
