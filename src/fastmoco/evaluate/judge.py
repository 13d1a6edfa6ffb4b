"""How good an encoder is while it trains: nearest neighbours and a quick linear probe on whole images."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from fastmoco.album import collect, middle
from fastmoco.augment import normalise
from fastmoco.encoder import Encoder
from fastmoco.evaluate.knn import top1, vote
from fastmoco.evaluate.linear import probe
from fastmoco.images import Images, Source
from fastmoco.randomness import order

ROOM = 2**30  # bytes of pixels that are kept for the next time; of larger sets a part is judged by
HELD_OUT = 5  # of a set without held-out images, every fifth of each class is

Answer = dict[str, float]


class Judge:
    """Labelled images, read once. Labels judge the encoder; it never learns from them."""

    def __init__(self, source: Source, size: int, threads: int) -> None:
        assert source.labelled is not None, "there is nothing to judge by without labels"
        self.classes = len(source.labelled.classes)
        read = partial(_gallery, size=size, threads=threads)
        if source.val is not None:
            self.train, self.train_labels = read(source.labelled)
            self.test, self.test_labels = read(source.val)
        else:
            pixels, labels = read(source.labelled)
            # Of each class, since a list may have its classes in turn.
            place = (labels[:, None] == torch.arange(self.classes)).cumsum(0).gather(1, labels[:, None])[:, 0]
            held = place % HELD_OUT == 0
            self.train, self.train_labels = pixels[~held], labels[~held]
            self.test, self.test_labels = pixels[held], labels[held]

    def neighbours(self, encoder: Encoder, device: torch.device, halt: Callable[[], bool]) -> Answer:
        """kNN of the held-out images among the others; nothing if told to halt."""
        found = self._embed(encoder, device, halt)
        return {} if found is None else self._knn(*found)

    def all(self, encoder: Encoder, device: torch.device, halt: Callable[[], bool]) -> Answer:
        """kNN, and a linear classifier; nothing if told to halt."""
        found = self._embed(encoder, device, halt)
        if found is None:
            return {}
        scores = probe(found[0], self.train_labels.to(device), found[1], self.classes)
        return {**self._knn(*found), "val/linear_top1": top1(scores, self.test_labels.to(device))}

    def _knn(self, train: Tensor, test: Tensor) -> Answer:
        votes = vote(test, train, self.train_labels.to(train.device), self.classes)
        return {"val/knn_top1": top1(votes, self.test_labels.to(train.device))}

    def _embed(self, encoder: Encoder, device: torch.device, halt: Callable[[], bool]) -> tuple[Tensor, Tensor] | None:
        if not len(self.train) or not len(self.test):  # too few images, or none that can be read
            return None
        train, test = embed(encoder, self.train, device, halt), embed(encoder, self.test, device, halt)
        return None if train is None or test is None else (train, test)


@torch.no_grad()
def embed(
    encoder: Encoder,
    pixels: UInt8[Tensor, "n 3 size size"],
    device: torch.device,
    halt: Callable[[], bool] = lambda: False,
    block: int = 256,
) -> Float[Tensor, "n d"] | None:
    """The embeddings of whole images, by running statistics; None if told to halt. The encoder is left as it was."""
    training = encoder.training
    encoder.eval()
    found = []
    for part in torch.split(pixels, block):
        if halt():
            break
        # Not through __call__: a compiled encoder would be compiled again for images of this size.
        found.append(encoder.forward(normalise(part.to(device).float() / 255)).float())
    encoder.train(training)
    return torch.cat(found) if sum(map(len, found)) == len(pixels) else None


def _gallery(images: Images, size: int, threads: int) -> tuple[UInt8[Tensor, "n 3 {size} {size}"], Int64[Tensor, " n"]]:
    """The middle of every image, or of an even part of them, and their labels; without those that cannot be read."""
    assert images.labels is not None
    most = max(1, ROOM // (3 * size * size))
    index = order(0, 0, len(images))[:most].sort().values.tolist()
    album = collect(images, index, threads, partial(middle, size=size))
    assert album is not None, "there is no limit"
    good = torch.tensor([number not in album.bad for number in index])
    labels = torch.tensor([int(images.labels[number]) for number in index])
    return album.pixels[good], labels[good]
