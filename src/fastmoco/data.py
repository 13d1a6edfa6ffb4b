"""The images that a user means by a path or a name."""

import os

from fastmoco import shards
from fastmoco.folders import find_file, find_folder, read_shards
from fastmoco.images import Source, put_together
from fastmoco.named import NAMED


def find(data: str, download: bool = False) -> Source:
    """The images that a user means by a path or a name."""
    if data in NAMED:
        return NAMED[data](download)
    path = os.path.expanduser(data)
    if os.path.isdir(path):
        return find_folder(path)
    if os.path.isfile(path):
        return put_together(find_file(path))
    if next(shards.expand(path)) != path:
        return put_together(read_shards(shards.expand(path), data))
    raise ValueError(
        f"no such folder, list or set {data!r}; give a folder of images, a text list of paths, .tar shards, "
        f"or one of {', '.join(NAMED)}"
    )
