"""`fastmoco pack`: a set as tar shards of small JPEGs, for disks that are slow with many or large files."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fastmoco.flags import Data, Flag, Int, place

if TYPE_CHECKING:
    from fastmoco.images import Images, Source

Out = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]


def pack(
    data: Data,
    out: Out,
    *,
    size: int = 256,
    quality: int = 90,
    shard_mib: int = 256,
    workers: Int = None,
    download: Flag = False,
) -> Path:
    """Write a set as tar shards of small JPEGs, for slow disks. The same command again goes on where it was stopped.

    Args:
        data: a folder of images, class folders with or without train/ and val/, a text list of paths, tar shards, or a
            set such as imagenette.
        out: a new folder, which every command then takes as DATA.
        size: pixels of the short side; no image is enlarged, and a JPEG that is not larger keeps its bytes.
        quality: the quality of the JPEGs, from 1 to 100.
        shard_mib: the size of a shard, in MiB.
        workers: threads that read and shrink images; by default as many as there are cores.
        download: fetch a set by name, such as imagenette, if it is not there.
    """
    from fastmoco import data as sets
    from fastmoco.evaluate.progress import Progress
    from fastmoco.launch import cores
    from fastmoco.packing import occupy

    _refuse(str(out), size, quality, shard_mib, workers)
    path, source = place(str(out)), sets.find(str(data), download)
    if Path(data).is_dir() and Path(data).resolve() in path.resolve().parents:
        raise ValueError(f"OUT {out} is inside {data}, which would then hold its own copy; give a folder outside of it")
    settings = {"size": size, "quality": quality, "shard_mib": shard_mib}
    with occupy(path, _divide(source, str(data)), settings) as packing:
        print(f"{data}: {source.words}", flush=True)
        if packing.read:
            print(f"{path}: {packing.read:,} of these are done" if packing.left else f"{path} is done", flush=True)
        with Progress("packing", packing.images, packing.read) as progress:
            try:
                packing.finish(cores() if workers is None else max(1, workers), progress.add)
            except KeyboardInterrupt:
                progress.line.say(
                    f"stopped; {packing.shards:,} shards are whole, and the same command goes on with the next"
                )
                raise
    found = sets.find(str(path.absolute()))  # which makes the index of the shards, too
    print(f"{path}: {found.words}\n{packing.words}\n\ngo on with: fastmoco pretrain {shlex.quote(str(path))}")
    return path


def _refuse(out: str, size: int, quality: int, shard_mib: int, workers: int | None) -> None:
    from fastmoco.named import NAMED

    if out in NAMED:
        raise ValueError(f"OUT {out}: a set has this name, and would be read instead; give another folder")
    if size < 1:
        raise ValueError(f"--size {size}: use the pixels of an image's short side, such as 256")
    if not 1 <= quality <= 100:
        raise ValueError(f"--quality {quality}: use 1 to 100, such as 90")
    if shard_mib < 1:
        raise ValueError(f"--shard-mib {shard_mib}: use 1 or more, such as 256")
    if workers is not None and workers < 0:
        raise ValueError(f"--workers {workers}: use 0 or more")


def _divide(source: "Source", data: str) -> "dict[str, Images]":
    """The parts of a set, by the folders in which every command looks for them."""
    if source.labelled is not None and source.labelled is not source.train:
        raise ValueError(f"{data} has labels for a part of its images, which shards cannot tell; use it as it is")
    held = source.val or source.unlabelled
    return {"train": source.train} if held is None else {"train": source.train, "val": held}
