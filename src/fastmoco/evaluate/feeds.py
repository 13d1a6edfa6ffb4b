"""What a classifier learns from: pictures, or what an encoder makes of them."""

from collections.abc import Generator
from contextlib import closing
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fastmoco.distributed import concatenate, rank, world
from fastmoco.draws import Draws
from fastmoco.encoder import Encoder
from fastmoco.evaluate.features import Features
from fastmoco.evaluate.gallery import labels_of
from fastmoco.images import Images
from fastmoco.loader import choose
from fastmoco.randomness import key

NOT_ASKED = -100  # stands for the label of an image that could not be read; torch's loss leaves it out

Example = tuple[Float[Tensor, " b *shape"], Int64[Tensor, " b"]]


@runtime_checkable
class Feed(Protocol):
    """What a classifier learns from: examples from any step on, whole batches or this rank's part of each."""

    draws: Draws

    def since(self, step: int) -> Generator[Example, None, None]:
        """To be closed, which ends what it has started."""


class Pictures:
    """Labelled images, cropped and flipped anew in every epoch."""

    def __init__(self, images: Images, draws: Draws, device: torch.device, workers: int) -> None:
        self.draws = draws
        self.device = device
        self.labels = labels_of(images)
        self.loader = choose(images, draws, device, way="auto", workers=workers, compile=False)
        self.bad: dict[int, str] = {}  # those that could not be read, and why

    def since(self, step: int, every: int = 1) -> Generator[Example, None, None]:
        with closing(self.loader.since(step, every)) as batches:
            for batch in batches:
                labels = self.labels[batch.index]
                self.bad |= batch.bad
                if batch.bad:  # another image is in the place of such a one, and its label is not this one
                    labels[torch.isin(batch.index, torch.tensor(list(batch.bad)))] = NOT_ASKED
                views = self.loader.views(batch)[0][0]
                yield views.contiguous(memory_format=torch.channels_last), labels.to(self.device, non_blocking=True)


class Encoded:
    """Pictures as a frozen encoder sees them; every rank gets all of them.

    Ranks take turns at batches, and do not share each: whether an image is one of 8 or of 4 shows in the last bits of
    its embedding on a GPU, and numbers would depend on how many ranks there are.
    """

    def __init__(
        self, encoder: Encoder, images: Images, draws: Draws, device: torch.device, workers: int, bf16: bool
    ) -> None:
        self.draws = draws
        self.encoder = encoder
        self.bf16 = bf16
        self.pictures = Pictures(images, draws, device, workers)

    @property
    def bad(self) -> dict[int, str]:
        """Those that this rank could not read, and why."""
        return self.pictures.bad

    def since(self, step: int) -> Generator[Example, None, None]:
        with closing(self.pictures.since(step + rank(), world())) as mine:
            for first in range(step, self.draws.steps, world()):  # of those who take turns
                x, labels = self._encode(next(mine) if first + rank() < self.draws.steps else None)
                yield from zip(*(torch.split(each, self.draws.batch) for each in (x, labels)), strict=True)

    @torch.no_grad()
    def _encode(self, example: Example | None) -> tuple[Float[Tensor, "n d"], Int64[Tensor, " n"]]:
        """The examples of all who have one, in turn."""
        device = self.pictures.device
        if example is None:
            x, labels = torch.zeros(0, self.encoder.width, device=device), torch.zeros(0, device=device).long()
        else:
            with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
                x, labels = self.encoder(example[0]).float(), example[1]
        return concatenate(x), concatenate(labels)


class Embeddings:
    """Embeddings that were extracted once, of one or of several looks at each image, which take turns by epoch."""

    def __init__(self, looks: list[Features], draws: Draws) -> None:
        self.draws = draws
        self.looks = looks

    def since(self, step: int) -> Generator[Example, None, None]:
        """The images of each step are those of `Draws.index`, whose order is made on the device here.

        Indices that come from the host would make a GPU wait for it at every step.
        """
        draws, device = self.draws, self.looks[0].x.device
        for epoch in range(step // draws.per_epoch, draws.epochs):
            look = self.looks[epoch % len(self.looks)]
            visited = key(draws.seed, epoch, torch.arange(draws.images, device=device)).argsort(stable=True)
            filled = torch.cat([visited, visited[: -draws.images % draws.batch]])
            for whole in torch.split(filled, draws.batch)[max(0, step - epoch * draws.per_epoch) : draws.per_epoch]:
                index = whole.tensor_split(draws.world)[draws.rank]
                yield look.x[index], look.labels[index]
