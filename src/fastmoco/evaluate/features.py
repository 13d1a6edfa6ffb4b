"""Embeddings of whole images, extracted once and kept for the next evaluation."""

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import PIL
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from fastmoco import shards
from fastmoco.album import read
from fastmoco.checkpoint import write
from fastmoco.distributed import agree, concatenate, leads, world
from fastmoco.encoder import Encoder
from fastmoco.evaluate.gallery import Gallery, labels_of, show
from fastmoco.evaluate.progress import Progress
from fastmoco.images import Images
from fastmoco.line import Line
from fastmoco.lock import in_turn
from fastmoco.weights import digest

MOST = 2**34  # bytes of embeddings that are kept on the disk: those of ImageNet by a ResNet-50 are 10 GiB
FORMAT = 1  # of what is kept; a change in how images are decoded, cut, shown or embedded makes all of it anew

Tensors = dict[str, Tensor]

_told: set[str] = set()  # what this process has said that it does not keep


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
            found.append(network.forward(show(pixels, device)).float())
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


def maker() -> str:
    """By which version something was made of images: another Pillow may decode and resize them otherwise."""
    return f"format {FORMAT}, Pillow {PIL.__version__}"


def remembered(
    make: Callable[[], Tensors], *known: str, stale: Callable[[Tensors], bool] = lambda found: False
) -> Tensors:
    """What was made before, from the disk, if all by which it is known again is the same and it is not `stale`."""
    name = hashlib.sha256("\n".join((maker(), *known)).encode()).hexdigest()[:24]
    path = shards.store() / "features" / f"{name}.pt"
    found = _recall(path)
    if found is not None and stale(found):
        found = None
    if agree(True if found is None else None) is None and found is not None:
        return found
    made = make()  # by all ranks, if only one of them has no such file
    if leads() and sum(value.nbytes for value in made.values()) <= MOST:
        keep("embeddings are", functools.partial(_store, path, made), Line())
    return made


def mended(images: Images, absent: Iterable[int]) -> bool:
    """Whether an image that was left out can be read by now: a disk may have failed for a moment only."""
    return any(place not in read(images, place)[1] for place in absent)


def keep(what: str, write_it: Callable[[], object], line: Line) -> bool:
    """Write what saves time later. What cannot be written is no reason to lose the work, but one to tell of it."""
    try:
        write_it()
    except OSError as error:
        if what not in _told:
            _told.add(what)
            reason = f"{error.filename}: {error.strerror}" if error.filename else error
            line.say(f"{what} not kept for the next time: {reason}")
        return False
    return True


def _recall(path: Path) -> Tensors | None:
    """What a file holds. One that is absent or damaged is made anew, whatever its reader says of it."""
    try:
        found: Tensors = torch.load(path, mmap=True, weights_only=True)
        return found
    except Exception:
        return None


def _store(path: Path, made: Tensors) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_turn(path):  # with another evaluation that asks for the same
        write(path, lambda file: torch.save(made, file))  # which streams: safetensors would copy it all


def embedded(encoder: Encoder, gallery: Gallery, device: torch.device, what: str) -> Features:
    """What an encoder makes of a gallery; from the disk if it was asked before for these weights and these pixels."""

    def make() -> Tensors:
        found = extract(encoder, gallery, device, what)
        if not finite(found.x):
            raise ValueError("embeddings are not finite; the training of these weights has diverged")
        return {"x": found.x.cpu(), "index": found.index}

    def absent(found: Tensors) -> list[int]:
        return sorted(set(range(len(gallery))).difference(found["index"].tolist(), gallery.bad))

    known = (encoder.name, digest(encoder.net), gallery.images.stamp(), repr(gallery.frame))
    found = remembered(make, *known, stale=lambda found: mended(gallery.images, absent(found)))
    for place in absent(found):
        again = read(gallery.images, place)[1]
        gallery.bad[place] = again.get(place, "it could not be read when it was embedded")
    labels = labels_of(gallery.images)[found["index"]]
    return Features(found["x"].to(device), found["index"], labels.to(device))


def finite(x: Float[Tensor, "n d"]) -> bool:
    """Whether all are numbers; by their least and most, since `isfinite` would make a copy of all."""
    return not x.numel() or bool(torch.stack(x.aminmax()).isfinite().all())
