"""Embeddings of whole images, extracted once and kept for the next evaluation."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from fastmoco.album import read
from fastmoco.distributed import agree, concatenate, world
from fastmoco.encoder import Encoder
from fastmoco.evaluate.gallery import Gallery, labels_of, show
from fastmoco.evaluate.progress import Progress
from fastmoco.evaluate.store import Tensors, remembered
from fastmoco.images import Images
from fastmoco.weights import digest


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


def mended(images: Images, absent: Iterable[int]) -> bool:
    """Whether an image that was left out can be read by now: a disk may have failed for a moment only."""
    return any(place not in read(images, place)[1] for place in absent)


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
