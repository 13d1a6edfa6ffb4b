"""What was made of images, for whoever asks for the same again, so that several evaluations read each image once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from PIL.Image import Image
from torch import Tensor

from fastmoco.images import Encoded, Images, Part

Make = Callable[[Image], Tensor]
Key = tuple[str, int, Make]


class Shelf:
    """Holds nothing until it is opened, and then as much as there is room for."""

    def __init__(self) -> None:
        self.room = 0  # bytes that are left
        self._kept: dict[Key, Tensor] = {}

    @contextmanager
    def opened(self, room: int) -> Iterator[None]:
        self.room = room
        try:
            yield
        finally:
            self.room = 0
            self._kept.clear()

    def find(self, images: Images, index: int, make: Make) -> Tensor | None:
        key = _key(images, index, make) if self._kept else None
        return None if key is None else self._kept.get(key)

    def keep(self, images: Images, index: int, make: Make, made: Tensor) -> None:
        key = _key(images, index, make) if made.nbytes <= self.room else None
        if key is not None and key not in self._kept:
            self._kept[key] = made
            self.room -= made.nbytes


SHELF = Shelf()  # of this process


def _key(images: Images, index: int, make: Make) -> Key | None:
    """The same for a part of a set, and for a set that is found anew; None for images that are in memory already."""
    while isinstance(images, Part):
        index, images = int(images.index[index]), images.images
    return (_stamp(images), index, make) if isinstance(images, Encoded) else None


@lru_cache(maxsize=8)
def _stamp(images: Images) -> str:
    """Asked for with every image, and made of a whole set."""
    return images.stamp()
