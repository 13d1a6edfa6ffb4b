"""All that chance decides in a training, as a pure function of (seed, step): which images, which crops, which looks."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Int64
from torch import Tensor

from fastmoco.augment import Look, draw
from fastmoco.crop import boxes
from fastmoco.randomness import key, order
from fastmoco.recipe import View

PLACE, LOOK = range(2)  # what a key is used for


@dataclass(frozen=True)
class Draws:
    """The draws of one training; its first step is 0."""

    views: tuple[View, ...]
    batch: int
    epochs: int
    seed: int
    images: int  # in the set
    # The paper does not say what becomes of the incomplete batch at the end of an epoch; we drop it, as MoCo v3 does.
    # Labels are too dear for that: a classifier's last batch is filled with images from the beginning of the epoch.
    fill: bool = False
    # Each rank draws its part of every batch. How many there are is no part of what is drawn.
    rank: int = field(default=0, repr=False)
    world: int = field(default=1, repr=False)

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch."""
        return -(-self.images // self.batch) if self.fill else self.images // self.batch

    @property
    def steps(self) -> int:
        return self.per_epoch * self.epochs

    def index(self, step: int) -> Int64[Tensor, " b"]:
        """The images of a step that this rank takes: as many as each other rank, if the batch divides."""
        epoch, place = divmod(step, self.per_epoch)
        visited = order(self.seed, epoch, self.images)
        taken = visited[place * self.batch :][: self.batch]
        whole = torch.cat([taken, visited[: self.batch - len(taken)]])
        return whole.tensor_split(self.world)[self.rank]

    def looks(self, step: int) -> list[Look]:
        """For each view how its crops look, (count, images) of them."""
        keys = torch.split(self._keys(step, self.index(step), LOOK), [view.count for view in self.views])
        return [draw(view.augment, each) for view, each in zip(self.views, keys, strict=True)]

    def boxes(self, step: int, index: Int64[Tensor, " n"], sizes: Int64[Tensor, "n 2"]) -> Int64[Tensor, "crops n 4"]:
        """Where every crop of every view lies in these images, of which width and height are given."""
        keys = self._keys(step, index, PLACE)
        scale = torch.tensor([view.scale for view in self.views for _ in range(view.count)])
        flat = boxes(keys.flatten(), sizes.repeat(len(keys), 1), scale.repeat_interleave(len(index), dim=0))
        return flat.view(*keys.shape, 4)

    def _keys(self, step: int, index: Int64[Tensor, " n"], use: int) -> Int64[Tensor, "crops n"]:
        """Of all crops, numbered over the whole table of views."""
        crops = torch.arange(sum(view.count for view in self.views))
        return key(self.seed, step // self.per_epoch, index, crops[:, None], use)
