"""`fastmoco embed`: the embeddings of a set as a file for other tools."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastmoco.exam import USUAL, Shared, see
from fastmoco.flags import Data, Flag, Weights, to_write
from fastmoco.spread import alike, say, spread

if TYPE_CHECKING:
    from fastmoco.evaluate.features import Features
    from fastmoco.images import Images

    Columns = dict[str, Any]  # arrays

KINDS = (".npz", ".parquet")


@spread("embed", lambda weights, out, terms: to_write(out))
def embed(
    weights: Weights, data: Data, *, out: str = "features.npz", overwrite: Flag = False, terms: Shared = USUAL
) -> Path:
    """Write the embedding of every image of a set, with its path, its split, and its label if it has one.

    Args:
        data: a folder of images, a text list of paths, tar shards, or a set such as cifar10; labels are not needed.
        out: a .npz or .parquet file; its columns are path, split, label and embedding.
        overwrite: replace the file if it exists.
    """
    from fastmoco import data as sets
    from fastmoco.distributed import first_per_machine, leads, tell, together
    from fastmoco.evaluate.features import embedded
    from fastmoco.evaluate.gallery import Gallery
    from fastmoco.images import fingerprint
    from fastmoco.run import room

    path = to_write(out)
    with together():
        if leads():
            _refuse(path, overwrite)
    sight = see(str(weights), terms)
    with together(), first_per_machine():
        source = sets.find(str(data), terms.download)
    alike(lambda: fingerprint(source.train), f"the images of {data}")
    with together():
        if leads():
            room(path.parent, "--out")
    say(f"{sight.words}\n{data}: {source.words}")
    if terms.recalibrate:
        sight.recalibrate(source.train)
    splits = {"train": source.train, "val": source.val or source.unlabelled}
    if source.labelled is not source.train:  # labelled images apart from those to learn from, as in stl10
        splits["labelled"] = source.labelled
    parts: list[Columns] = []
    bad: dict[str, str] = {}
    for split, images in splits.items():
        if images is not None:
            gallery = Gallery(images, sight.frame, sight.workers)
            found = embedded(sight.found.encoder, gallery, sight.device, f"embedding {split}")
            parts.append(_columns(split, images, found))
            bad |= {images.name(place): reason for place, reason in sorted(gallery.bad.items())}
    tell(lambda: _write(path, parts, bad))
    return path


def _write(path: Path, parts: "list[Columns]", bad: dict[str, str]) -> None:
    import numpy as np

    from fastmoco.checkpoint import write

    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    content = _npz(columns) if path.suffix == ".npz" else _parquet(columns)
    write(path, lambda file: file.write(content))
    count, width = columns["embedding"].shape
    listed = path.with_name(f"{path.stem}-bad_images.txt")
    listed.unlink(missing_ok=True)  # that of an earlier file
    if bad:
        name, reason = next(iter(bad.items()))
        text = "".join(f"{' '.join(name.split())}\t{reason}\n" for name, reason in bad.items())
        write(listed, lambda file: file.write(text.encode(errors="surrogateescape")))
        print(f"images that cannot be read and are left out: {len(bad):,}, such as {name}: {reason}; see {listed}")
    print(f"{count:,} embeddings of {width:,} numbers are in {path}")


def _refuse(path: Path, overwrite: bool) -> None:
    """What cannot be written is told now, and not after hours."""
    if path.suffix not in KINDS:
        raise ValueError(f"--out {path}: use a file that ends in {' or '.join(KINDS)}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a file for --out")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists and is kept; give another --out, or --overwrite")
    if path.suffix == ".parquet":
        _parquet({})


def _columns(split: str, images: "Images", found: "Features") -> "Columns":
    import numpy as np

    labels = [images.classes[label] if label >= 0 else "" for label in found.labels.tolist()]
    return {
        "path": np.array([images.name(place) for place in found.index.tolist()]),
        "split": np.array([split] * len(labels)),
        "label": np.array(labels),
        "embedding": found.x.cpu().numpy(),
    }


def _npz(columns: "Columns") -> bytes:
    """Numbers and text only, which load without pickle."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, **columns)
    return buffer.getvalue()


def _parquet(columns: "Columns") -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError("a .parquet file needs pyarrow: pip install 'fast-moco[parquet]', or give a .npz") from None
    whole = {name: list(column) if column.ndim > 1 else column for name, column in columns.items()}
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(whole), buffer)
    return buffer.getvalue()
