"""How good an encoder is while it trains: nearest neighbours and a quick linear probe on whole images."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from fastmoco.album import collect, middle
from fastmoco.encoder import Encoder
from fastmoco.evaluate.features import BLOCK, ROOM, embed
from fastmoco.evaluate.knn import vote
from fastmoco.evaluate.probe import probe
from fastmoco.evaluate.scores import top1
from fastmoco.images import Images, Source
from fastmoco.parts import hold_out
from fastmoco.randomness import order

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
            rest, held = map(torch.from_numpy, hold_out(labels.tolist(), self.classes))
            self.train, self.train_labels = pixels[rest], labels[rest]
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
        train = embed(encoder, torch.split(self.train, BLOCK), device, halt)
        test = embed(encoder, torch.split(self.test, BLOCK), device, halt)
        return None if train is None or test is None else (train, test)


def _gallery(images: Images, size: int, threads: int) -> tuple[UInt8[Tensor, "n 3 {size} {size}"], Int64[Tensor, " n"]]:
    """The middle of every image, or of an even part of them, and their labels; without those that cannot be read."""
    assert images.labels is not None
    most = max(1, ROOM // (3 * size * size))  # of larger sets a part is judged by
    index = order(0, 0, len(images))[:most].sort().values.tolist()
    album = collect(images, index, threads, partial(middle, size=size))
    assert album is not None, "there is no limit"
    good = torch.tensor([number not in album.bad for number in index])
    labels = torch.tensor([int(images.labels[number]) for number in index])
    return album.pixels[good], labels[good]
