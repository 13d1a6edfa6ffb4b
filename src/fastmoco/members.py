"""Members of tar shards: images as small JPEGs, in order, under names and bytes that depend on nothing else."""

import io
import os
import re
import tarfile
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from PIL.Image import Image, Resampling

from fastmoco.checkpoint import write
from fastmoco.decode import load, look, why
from fastmoco.images import Images, fetch

AHEAD = 4  # images for each thread that are made before their turn
MIB = 2**20


@dataclass(frozen=True)
class Member:
    """One image as it is packed; one that cannot be read has a reason instead of content."""

    index: int
    size: int  # in bytes, before
    content: bytes = b""
    reason: str = ""


def make(images: Images, first: int, size: int, quality: int, threads: int) -> Generator[Member, None, None]:
    """All images from the first on, in order; few are in memory at a time.

    PIL lets other threads run, so threads are enough.
    """
    pool, ahead = ThreadPoolExecutor(threads), deque[Future[Member]]()
    try:
        for index in range(first, len(images)):
            ahead.append(pool.submit(_make, images, index, size, quality))
            if len(ahead) >= AHEAD * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def shrink(content: bytes, size: int, quality: int) -> bytes:
    """An encoded image as a JPEG of at most this short side; a JPEG that is not larger stays as it is."""
    image = look(content)
    width, height = extent = fit(image, size)
    if extent == image.size:
        image.load()  # or a damaged one would be kept
        if image.format == "JPEG" and image.mode in ("RGB", "L"):
            return content
    # A decoder that makes fewer pixels is much faster; twice those that are needed leave the filter its work.
    image.draft(None, (2 * width, 2 * height))
    return encode(load(image), extent, quality)


def encode(image: Image, extent: tuple[int, int], quality: int) -> bytes:
    """An RGB image as a JPEG of this width and height, and of pixels only: no profile, orientation or comment."""
    if extent != image.size:
        image = image.resize(extent, Resampling.LANCZOS, reducing_gap=3)
    image.info = {}  # or PIL would write the comment
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality, subsampling="4:2:0")
    return stream.getvalue()


def fit(image: Image, size: int) -> tuple[int, int]:
    """Width and height with this short side, unless it is smaller already."""
    short = min(image.size)
    return image.size if short <= size else (round(image.width * size / short), round(image.height * size / short))


def write_shard(file: Path, members: Iterator[Member], images: Images, mib: int) -> int:
    """Write members until the shard is full, and return its bytes. It is whole or absent."""

    def fill(stream: BinaryIO) -> None:
        # What tarfile adds by itself has no time and no owner.
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
            for member in members:
                key, ending = _call(images, member.index)
                _append(tar, key + ending, member.content)
                if images.labels is not None:
                    _append(tar, f"{key}.cls", str(images.labels[member.index]).encode())
                if tar.offset >= mib * MIB:
                    return

    try:
        write(file, fill)
    except BaseException:  # also Ctrl-C
        file.with_name(f".{file.name}.part").unlink(missing_ok=True)
        raise
    return file.stat().st_size


def _make(images: Images, index: int, size: int, quality: int) -> Member:
    content = b""
    try:
        found = fetch(images, index)
        if not isinstance(found, bytes):
            return Member(index, 3 * found.width * found.height, encode(found, fit(found, size), quality))
        content = found
        return Member(index, len(content), shrink(content, size, quality))
    except Exception as error:  # a decoder can fail in any way on a file that is not what it says
        return Member(index, len(content), reason=why(error))


def _call(images: Images, index: int) -> tuple[str, str]:
    """The name of an image in a shard, such as 00000017/cat/photo and .jpg, where a list finds its cat/photo.jpg."""
    stem, ending = os.path.splitext(os.path.basename(images.name(index)))
    folders = [] if images.labels is None else [images.classes[images.labels[index]]]
    # A dot would end what an image shares with its label.
    key = "/".join(re.sub(r"[^\w-]+", "_", part)[:80] for part in (f"{index:08d}", *folders, stem))
    return key, ending if ending.lower() in (".jpg", ".jpeg") else ".jpg"


def _append(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
