"""Tar shards by offset: each is indexed once, so that any image is one read and order is as exact as for a folder."""

import contextlib
import functools
import hashlib
import os
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Int64, Shaped

ENDINGS = (b".jpg", b".jpeg", b".png", b".bmp", b".webp", b".gif", b".tif", b".tiff", b".ppm", b".pgm")
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")

_FORMAT = 1  # of an index on disk; another number makes all of them anew
_OPEN = 64  # shards that a process keeps open
_SPARSE = -1  # stands for the size of a member with holes, and its offset is that of the header
_BLOCK = 512


@final
@dataclass(eq=False)
class Index:
    """Where each image of some shards lies."""

    paths: Shaped[np.ndarray, " shards"]  # as bytes of fixed width; so are names
    stamps: Int64[np.ndarray, "shards 2"]  # size and time of change
    shards: Int64[np.ndarray, " images"]  # the number of an image's shard
    names: Shaped[np.ndarray, " images"]
    offsets: Int64[np.ndarray, " images"]
    sizes: Int64[np.ndarray, " images"]
    labels: Int64[np.ndarray, " images"] | None

    def __len__(self) -> int:
        return len(self.shards)

    def fetch(self, index: int) -> bytes:
        """The encoded image."""
        shard, offset, size = int(self.shards[index]), int(self.offsets[index]), int(self.sizes[index])
        path = bytes(self.paths[shard])
        descriptor = _open(path, *self.stamps[shard].tolist())
        if size == _SPARSE:
            return _fill(path, offset)
        # Unlike seek and read, this shares no position with other threads or a parent process.
        content = os.pread(descriptor.number, size, offset)
        if len(content) != size:
            raise OSError(f"{self.name(index)} has {len(content)} bytes rather than {size}")
        return content

    def name(self, index: int) -> str:
        """Shard and member, such as shards-000.tar/a/b.jpg."""
        return show(self.paths[self.shards[index]] + b"/" + self.names[index])


def build(paths: Iterable[str]) -> Index:
    """The index of some shards, from the disk where they have been indexed before."""
    found, stamps, parts = [], [], []
    for path in paths:
        if path.lower().endswith(COMPRESSED):
            raise ValueError(f"{path!r} is compressed and cannot be read by offset; repack it as a plain .tar")
        if not path.lower().endswith(".tar"):
            raise ValueError(f"{path!r} is no shard; a pattern with braces must name .tar files")
        if not os.path.isfile(path):
            raise ValueError(f"no such shard {path!r}; change the pattern, or fetch the shard")
        state = os.stat(path)
        found.append(os.fsencode(path))
        stamps.append((state.st_size, state.st_mtime_ns))
        parts.append(_recall(path, stamps[-1]))
    assert found, "no shards"
    shards = np.repeat(np.arange(len(parts)), [len(part.names) for part in parts])
    return Index(
        np.array(found),
        np.array(stamps, np.int64),
        shards,
        np.concatenate([part.names for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.labels for part in parts])
        if all(len(part.labels) == len(part.names) for part in parts)
        else None,
    )


def expand(pattern: str) -> Iterator[str]:
    """Paths for braces as a shell reads them: {000..099} and {a,b}. One by one, since a range may be absurdly long."""
    brace = re.search(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}", pattern)
    if brace is None:
        yield pattern
        return
    first, last, words = brace.groups()
    for word in words.split(",") if first is None else _count(first, last):
        for rest in expand(pattern[brace.end() :]):
            yield pattern[: brace.start()] + word + rest


def is_image(name: bytes) -> bool:
    return name.lower().endswith(ENDINGS)


def store() -> Path:
    """The folder for downloads and for what should not be made twice."""
    chosen = os.environ.get("FASTMOCO_DATA")
    if chosen:
        return Path(os.path.expanduser(chosen))
    try:
        return Path.home() / ".cache" / "fastmoco"
    except RuntimeError:  # no home: a container may run as a user that it does not know
        return Path(tempfile.gettempdir()) / "fastmoco"


def show(path: bytes) -> str:
    """A path as text that can always be printed."""
    return path.decode("utf-8", "backslashreplace")


@final
@dataclass(eq=False)
class _Part:
    """The index of one shard; if any image has no label, there are none at all."""

    names: Shaped[np.ndarray, " images"]
    offsets: Int64[np.ndarray, " images"]
    sizes: Int64[np.ndarray, " images"]
    labels: Int64[np.ndarray, " all_or_none"]


def _recall(path: str, stamp: tuple[int, int]) -> _Part:
    place = os.path.abspath(path)
    file = store() / "shards" / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:32]}.npz"
    key = np.array([_FORMAT, *stamp], np.int64)
    # A file that is missing, damaged or of an earlier shard: index again.
    damaged = (ValueError, KeyError, EOFError, zipfile.BadZipFile)
    with contextlib.suppress(OSError, *damaged), open(file, "rb") as stream, np.load(stream) as kept:
        if np.array_equal(kept["key"], key):
            return _Part(kept["names"], kept["offsets"], kept["sizes"], kept["labels"])
    part = _scan(path)
    # Without a place to write, the shard is indexed again next time.
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, key, part)
    return part


def _write(file: Path, key: Int64[np.ndarray, "3"], part: _Part) -> None:
    """Aside and then renamed, so that other processes see all of it or nothing."""
    descriptor, aside = tempfile.mkstemp(dir=file.parent, suffix=".part")
    try:
        with open(descriptor, "wb") as stream:
            np.savez(stream, key=key, names=part.names, offsets=part.offsets, sizes=part.sizes, labels=part.labels)
        os.replace(aside, file)
    except BaseException:
        os.unlink(aside)
        raise


def _scan(path: str) -> _Part:
    images: list[tuple[bytes, int, int]] = []
    places: dict[bytes, tuple[int, int]] = {}
    classes: dict[bytes, int] = {}
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # which grow by a kilobyte each
                name = _clean(member.name)
                if any(part.startswith(b".") for part in name.split(b"/")):
                    continue
                if is_image(name):
                    if member.isreg():
                        sparse = member.issparse()
                        places[name] = (member.offset, _SPARSE) if sparse else (member.offset_data, member.size)
                    elif member.islnk() and _clean(member.linkname) in places:  # a second name of the same file
                        places[name] = places[_clean(member.linkname)]
                    else:
                        continue
                    images.append((name, *places[name]))
                elif name == _key(name) + b".cls" and member.isreg():
                    stream = tar.extractfile(member)
                    label = stream.read(32).strip() if stream else b""
                    if re.fullmatch(rb"-?\d{1,18}", label):
                        classes[_key(name)] = int(label)
            # A header that makes no sense ends the archive in tarfile's eyes; only zeros should.
            file.seek(tar.offset)
            if file.read(_BLOCK).strip(b"\0"):
                raise tarfile.ReadError("a damaged header")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ValueError(f"cannot read shard {path!r}: {error}; fetch or pack it again, as a plain .tar") from None
    keys = [_key(name) for name, _, _ in images]
    return _Part(
        np.array([name for name, _, _ in images], np.bytes_),
        np.array([offset for _, offset, _ in images], np.int64),
        np.array([size for _, _, size in images], np.int64),
        np.array([classes[key] for key in keys] if all(key in classes for key in keys) else [], np.int64),
    )


def _clean(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape").removeprefix(b"./")


def _key(name: bytes) -> bytes:
    """What an image shares with its label: all up to the first dot of the last part, as in WebDataset."""
    folder, slash, last = name.rpartition(b"/")
    return folder + slash + last.partition(b".")[0]


def _count(first: str, last: str) -> Iterator[str]:
    """The numbers of {first..last}, of one width if either is written with zeros in front."""
    width = max(len(first), len(last)) if any(len(each) > 1 and each[0] == "0" for each in (first, last)) else 0
    step = 1 if int(first) <= int(last) else -1
    return (str(number).zfill(width) for number in range(int(first), int(last) + step, step))


@final
class _Descriptor:
    """An open file, closed when no one holds it any more: a thread may still read what the cache has dropped."""

    def __init__(self, path: bytes) -> None:
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if "number" in vars(self):
            os.close(self.number)


@functools.lru_cache(_OPEN)
def _open(path: bytes, size: int, changed: int) -> _Descriptor:
    descriptor = _Descriptor(path)
    state = os.fstat(descriptor.number)
    if (state.st_size, state.st_mtime_ns) != (size, changed):
        raise OSError(f"{show(path)} has changed since it was indexed; start again")
    return descriptor


def _fill(path: bytes, offset: int) -> bytes:
    """A member with holes, which only tarfile knows how to fill."""
    with open(path, "rb") as file:
        file.seek(offset)
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar:
            member = tar.next()
            stream = tar.extractfile(member) if member else None
            assert stream is not None, "an index names only regular members"
            return stream.read()
