"""How good an encoder is while it trains: nearest neighbours and a quick linear probe on whole images."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from fastmoco.album import collect
from fastmoco.distributed import share, world
from fastmoco.encoder import Encoder
from fastmoco.evaluate.features import embed, pooled
from fastmoco.evaluate.gallery import BLOCK, ROOM, Frame, labels_of
from fastmoco.evaluate.knn import vote
from fastmoco.evaluate.probe import probe
from fastmoco.evaluate.scores import top1
from fastmoco.images import Images, Source
from fastmoco.parts import hold_out
from fastmoco.randomness import order

Answer = dict[str, float | int]


class Judge:
    """Labelled images, read once. Labels judge the encoder; it never learns from them.

    A rank has the labels of all images, but only its own blocks of their pixels. Ranks must ask together.
    """

    def __init__(self, source: Source, size: int, threads: int) -> None:
        assert source.labelled is not None, "there is nothing to judge by without labels"
        self.classes = len(source.labelled.classes)
        read = partial(_read, size=size, threads=threads)
        if source.val is not None:
            ((self.train, self.train_labels),) = read(source.labelled, _all)
            ((self.test, self.test_labels),) = read(source.val, _all)
        else:
            (self.train, self.train_labels), (self.test, self.test_labels) = read(source.labelled, self._hold_out)

    def neighbours(self, encoder: Encoder, device: torch.device, halt: Callable[[], bool]) -> Answer:
        """kNN of the held-out images among the others; nothing if told to halt."""
        found = self._embed(encoder, device, halt)
        return {} if found is None else self._answer(*found)

    def all(self, online: Encoder, target: Encoder | None, device: torch.device, halt: Callable[[], bool]) -> Answer:
        """kNN and a linear classifier; kNN of the target's encoder, too, if there is one. Nothing if told to halt."""
        found = self._embed(online, device, halt)
        if found is None:
            return {}
        scores = probe(found[0], self.train_labels.to(device), found[1], self.classes)
        answer = {**self._answer(*found), "val/linear_top1": top1(scores, self.test_labels.to(device))}
        if target is not None:
            found = self._embed(target, device, halt)
            if found is None:
                return {}
            answer["val/target_knn_top1"] = self._knn(*found)
        return answer

    def _answer(self, train: Tensor, test: Tensor) -> Answer:
        """With the number of images, as that says how much a difference says."""
        return {"val/knn_top1": self._knn(train, test), "val/images": len(self.test_labels)}

    def _knn(self, train: Tensor, test: Tensor) -> float:
        votes = vote(test, train, self.train_labels.to(train.device), self.classes)
        return top1(votes, self.test_labels.to(train.device))

    def _embed(self, encoder: Encoder, device: torch.device, halt: Callable[[], bool]) -> tuple[Tensor, Tensor] | None:
        if not len(self.train_labels) or not len(self.test_labels):  # too few images, or none that can be read
            return None
        train = embed(encoder, _blocks(self.train, len(self.train_labels)), device, halt)
        test = embed(encoder, _blocks(self.test, len(self.test_labels)), device, halt)
        return None if train is None or test is None else (train, test)

    def _hold_out(self, labels: Tensor) -> list[Tensor]:
        return [torch.from_numpy(part) for part in hold_out(labels.tolist(), self.classes)]


def _all(labels: Tensor) -> list[Tensor]:
    return [torch.arange(len(labels))]


def _blocks(mine: UInt8[Tensor, "_ 3 size size"], count: int) -> list[UInt8[Tensor, "_ 3 size size"]]:
    """This rank's blocks of so many images; as many as any rank has, since all of them ask whether to halt."""
    most = -(-count // (BLOCK * world()))
    return [mine[BLOCK * number :][:BLOCK] for number in range(most)]


def _mine(index: list[int]) -> list[int]:
    part = share(len(index), BLOCK)
    return index[part.start : part.stop]


def _read(
    images: Images, split: Callable[[Tensor], list[Tensor]], *, size: int, threads: int
) -> list[tuple[UInt8[Tensor, "_ 3 {size} {size}"], Int64[Tensor, " _"]]]:
    """Of each part that labels are split into, the middle of this rank's images, and the labels of all.

    Of a large set an even part is taken; images that cannot be read are left out. Ranks first read their parts as if
    all could be read. Then all know which cannot, the others are divided anew, and what is missing is read.
    """
    most = max(1, ROOM // (3 * size * size))
    index = order(0, 0, len(images))[:most].sort().values
    shown: dict[int, Tensor] = {}
    bad: dict[int, str] = {}
    for _ in range(2):
        good = index[~torch.isin(index, torch.tensor(list(bad), dtype=torch.long))]
        labels = labels_of(images)[good]
        parts = split(labels)
        mine = [_mine(good[part].tolist()) for part in parts]
        wanted = [number for numbers in mine for number in numbers if number not in shown]
        if wanted:
            album = collect(images, wanted, threads, Frame(size))
            assert album is not None, "there is no limit"
            shown |= zip(wanted, album.pixels, strict=True)
            bad |= album.bad
        bad = pooled(bad)
    blank = torch.zeros(0, 3, size, size, dtype=torch.uint8)
    pixels = [torch.cat([blank, *(shown[number][None] for number in numbers)]) for numbers in mine]
    return [(each, labels[part]) for each, part in zip(pixels, parts, strict=True)]
