"""What was made of images, for whoever asks for the same again, so that several evaluations read each image once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int
from PIL.Image import Image
from torch import Tensor

from fastmoco.images import Filed, Images, Part

Make = Callable[[Image], Tensor]


class Shelf:
    """Holds nothing until it is opened, and then as much as there is room for."""

    def __init__(self) -> None:
        self.room = 0  # bytes that are left
        self._open = False
        self._sections: dict[tuple[str, Make], dict[int, Tensor]] = {}

    @contextmanager
    def opened(self, room: int) -> Iterator[None]:
        self.room, self._open = room, True
        try:
            yield
        finally:
            self.room, self._open = 0, False
            self._sections.clear()
            _stamp.cache_clear()

    def section(self, images: Images, make: Make) -> "Section":
        """What is made in one way of a set: the same for a part of it, and if it is found anew."""
        places = np.arange(len(images))
        while isinstance(images, Part):
            places, images = images.index[places], images.images
        if not self._open or not isinstance(images, Filed):  # others are in memory already
            return Section(Shelf(), {}, places)  # which has no room
        return Section(self, self._sections.setdefault((_stamp(images), make), {}), places)


@dataclass(frozen=True)
class Section:
    """Of the images that have these places in their set."""

    shelf: Shelf
    kept: dict[int, Tensor]
    places: Int[np.ndarray, " n"]

    def find(self, number: int) -> Tensor | None:
        return self.kept.get(int(self.places[number]))

    def keep(self, number: int, made: Tensor) -> None:
        place = int(self.places[number])
        if place not in self.kept and made.nbytes <= self.shelf.room:
            self.kept[place] = made
            self.shelf.room -= made.nbytes


SHELF = Shelf()  # of this process


@lru_cache(maxsize=8)
def _stamp(images: Images) -> str:
    """Asked for with every block of images, and made of a whole set."""
    return images.stamp()
