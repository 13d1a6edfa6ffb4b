"""Embeddings of whole images, extracted once and kept for the next evaluation."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from PIL.Image import Image
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from fastmoco import shards
from fastmoco.album import collect, middle
from fastmoco.augment import normalise
from fastmoco.checkpoint import write
from fastmoco.encoder import Encoder
from fastmoco.evaluate.progress import Progress
from fastmoco.images import Images
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
    """Whole images in blocks, as often as they are asked for; read once where their pixels fit into memory."""

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
        keep = 3 * self.frame.size**2 * len(self.images) <= ROOM
        places = torch.split(torch.arange(len(self.images)), self.block)
        blocks: list[Block] = []
        with ThreadPoolExecutor(1) as pool:  # the next block is read while the device is at this one
            waiting = pool.submit(self._read, places[0].tolist())
            for place in range(len(places)):
                block = waiting.result()
                if place + 1 < len(places):
                    waiting = pool.submit(self._read, places[place + 1].tolist())
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
    """What a network makes of whole images, by running statistics; None if told to halt. It is left as it was."""
    training = network.training
    network.eval()
    found: list[Tensor] = []
    for pixels in blocks:
        if halt():
            found = []
            break
        # Not through __call__: a compiled encoder would be compiled again for images of this size.
        found.append(network.forward(_show(pixels, device)).float())
    network.train(training)
    return torch.cat(found) if found else None


def extract(network: nn.Module, gallery: Gallery, device: torch.device, what: str) -> Features:
    """What a network makes of a gallery, with its labels; progress is shown."""
    index: list[int] = []
    with Progress(what, len(gallery)) as progress:

        def pass_on() -> Iterator[Tensor]:
            for places, pixels in gallery:
                index.extend(places)
                if places:
                    yield pixels
                progress.add(gallery.block)

        x = embed(network, pass_on(), device)
    if x is None:
        raise ValueError(f"no image of {gallery.images.name(0)} and {len(gallery) - 1:,} more can be read")
    if not x.isfinite().all():
        raise ValueError("embeddings are not finite; the training of these weights has diverged")
    return Features(x, torch.tensor(index), labels_of(gallery.images)[index].to(x.device))


def remembered(make: Callable[[], Tensors], *known: str) -> Tensors:
    """What was made before, from the disk, if all by which it is known again is the same."""
    from safetensors.torch import load_file, save

    name = hashlib.sha256("\n".join(known).encode()).hexdigest()[:24]
    path = shards.store() / "features" / f"{name}.safetensors"
    if path.is_file():
        try:
            return load_file(path)
        except Exception:  # a damaged file is made anew, whatever its reader says of it
            path.unlink()
    made = make()
    if sum(value.nbytes for value in made.values()) > MOST:
        return made
    path.parent.mkdir(parents=True, exist_ok=True)
    content = save({key: value.contiguous() for key, value in made.items()})
    write(path, lambda file: file.write(content))
    return made


def embedded(encoder: Encoder, gallery: Gallery, device: torch.device, what: str) -> Features:
    """What an encoder makes of a gallery; from the disk if it was asked before for these weights and these pixels."""

    def make() -> Tensors:
        found = extract(encoder, gallery, device, what)
        return {"x": found.x.cpu(), "index": found.index}

    found = remembered(make, encoder.name, digest(encoder.net), gallery.images.stamp(), repr(gallery.frame))
    absent = set(range(len(gallery))).difference(found["index"].tolist())
    gallery.bad |= dict.fromkeys(sorted(absent - gallery.bad.keys()), "it could not be read when it was embedded")
    labels = labels_of(gallery.images)[found["index"]]
    return Features(found["x"].to(device), found["index"], labels.to(device))


def recalibrate(encoder: Encoder, gallery: Gallery, device: torch.device) -> None:
    """Estimate the running statistics of batch norm again, on whole images: training may have shown it patches only."""
    if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in encoder.modules()):
        raise ValueError("--recalibrate: this encoder has no batch norm; leave it out")
    if min(len(gallery), gallery.block) < 2:
        raise ValueError("--recalibrate: of one image there is no spread; give more of them, or a smaller --size")
    with Progress("recalibrating", len(gallery)) as progress:

        def pass_on() -> Iterator[Tensor]:
            for places, pixels in gallery:
                progress.add(gallery.block)
                if len(places) > 1:
                    yield _show(pixels, device)

        update_bn(pass_on(), encoder)


def _show(pixels: UInt8[Tensor, "b 3 h w"], device: torch.device) -> Float[Tensor, "b 3 h w"]:
    x = normalise(pixels.to(device, non_blocking=True).float() / 255)
    return x.contiguous(memory_format=torch.channels_last)


def labels_of(images: Images) -> Int64[Tensor, " n"]:
    """One number per image; -1 where there are none."""
    return torch.tensor([-1] * len(images) if images.labels is None else list(images.labels))
