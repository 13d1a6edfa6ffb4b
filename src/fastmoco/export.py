"""An encoder as other libraries read it: the command `fastmoco export`."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Literal, get_args

from fastmoco.flags import Flag, Int, Side, Str, Weights, to_write

if TYPE_CHECKING:
    from fastmoco.formats import Format
    from fastmoco.pretrained import Pretrained

To = Literal["torchvision", "timm", "detectron2", "onnx", "safetensors", "hub-folder"]
# timm takes what is in a hub folder of a Swin or a DaViT without a classifier for an old file, and renames it.
AS_IT_IS = "use --to timm and the lines that it prints, with which timm renames no weights"


def export(
    weights: Weights,
    *,
    to: To,
    out: Str = "",
    encoder: Str = "",
    branch: Side = "online",
    size: Int = None,
    download: Flag = False,
    overwrite: Flag = False,
) -> Path:
    """Write an encoder for another library, load it back there, compare embeddings, and print lines that use it.

    Args:
        to: a state dict for torchvision (.pth), timm (.safetensors) or detectron2 (.pkl); an ONNX graph; the encoder
            file of this package; or a folder for the Hugging Face hub, with a model card.
        out: the file or hub folder, or FOLDER/ to put a file of the usual name into; by default export/ in the run
            folder, or the current folder.
        encoder: resnet50, resnet18-small, timm/NAME, ..., where WEIGHTS does not say.
        branch: target is the momentum copy, of a run folder or a checkpoint.
        size: pixels of the images to compare on, and of an ONNX graph; by default those that it has learnt from.
        download: fetch torchvision's or timm's weights if they are not there.
        overwrite: replace what is at --out.
    """
    from fastmoco.formats import FORMATS
    from fastmoco.pretrained import find
    from fastmoco.run import room

    if to not in get_args(To):
        raise ValueError(f"--to {to}: use {', '.join(get_args(To))}")
    if size is not None and size < 1:
        raise ValueError(f"--size {size}: use the pixels of an image's side, such as 224")
    found = find(str(weights), encoder=encoder, branch=branch, download=download)
    found = replace(found, size=size or found.size)
    form = FORMATS[to]
    form.refuse(found.name)
    found.encoder.admit(found.size, found.size)
    usual = _place(found, branch, form.ending)
    path = to_write(str(out)) if out else usual
    if str(out).endswith("/") and to != "hub-folder":
        path /= usual.name
    _refuse_place(path, overwrite, folder=to == "hub-folder")
    room(path.parent, "--out")
    # Beside its place until it is known to be right; what goes wrong is removed with the folder.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as aside:
        fresh = Path(aside) / path.name
        words = _make(fresh, to, form, found)
        if to == "hub-folder":
            _add_card(fresh, found, branch, form)
        if path.is_dir():
            path.replace(Path(aside) / "before")
        fresh.replace(path)
    print(f"{found.words}\n{path}: {words}\n\n{form.paste(path, found)}")
    return path


def _make(fresh: Path, to: str, form: "Format", found: "Pretrained") -> str:
    """Write it, load it back by its library, and say how far its embeddings are from ours; else a refusal."""
    import torch

    from fastmoco.formats import compare

    images = torch.randn(3, 3, found.size, found.size, generator=torch.Generator().manual_seed(0))
    what = f"--to {to}: {found.name} cannot be"
    other = "tell us" if to == "safetensors" else "use --to safetensors, and tell us"
    with _explained(f"{what} written", other):
        form.write(fresh, found)
    with _explained(f"{what} loaded back", AS_IT_IS if to == "hub-folder" else other):
        apart, largest = compare(found.encoder, form.load(fresh, found), images)
    if not apart <= form.tolerance * largest:  # also where one of them is not a number
        raise ValueError(
            f"--to {to}: {fresh.name} was removed, as its embeddings differ by {apart:.2g} of up to {largest:.2g} "
            f"when it is loaded back; {other}"
        )
    return f"loaded back, the largest difference is {apart:.2g} in embeddings of up to {largest:.2g}"


@contextlib.contextmanager
def _explained(what: str, other: str) -> Iterator[None]:
    """A library can fail in any way on a model that it does not expect."""
    try:
        yield
    except (ValueError, OSError):
        raise
    except Exception as error:
        reason = shorten(str(error), 160, placeholder=" ...") or type(error).__name__
        raise ValueError(f"{what}: {reason}; {other}") from None


def _add_card(folder: Path, found: "Pretrained", branch: str, form: "Format") -> None:
    from fastmoco.card import describe
    from fastmoco.checkpoint import write
    from fastmoco.formats import CARD, small

    library = "pytorch" if small(found.name) else "timm"
    text = describe(found, branch, form.paste(Path(folder.name), found), library)
    write(folder / CARD, lambda file: file.write(text.encode()))


def _place(found: "Pretrained", branch: str, ending: str) -> Path:
    side = "-target" if branch == "target" else ""
    name = f"{found.name.removeprefix('timm/')}{side}{ending}"
    return found.folder / "export" / name if found.folder else Path(name)


def _refuse_place(path: Path, overwrite: bool, folder: bool) -> None:
    """What exists is kept; what is no export of this kind is kept even from --overwrite."""
    from fastmoco.formats import CARD, CONFIG
    from fastmoco.weights import MODEL

    if not path.exists():
        return
    if not overwrite:
        raise ValueError(f"{path} exists and is kept; add --overwrite, or give another --out")
    if path.is_dir() != folder:
        raise ValueError(f"{path} is a {'file' if folder else 'folder'}; give another --out")
    others = sorted({entry.name for entry in path.iterdir()} - {MODEL, CONFIG, CARD}) if folder else []
    if others:
        raise ValueError(f"{path} holds {others[0]!r}, so it is no export; give another --out")
