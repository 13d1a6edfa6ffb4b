"""Encoders out of the files of other projects: the command `fastmoco import`."""

import argparse
import pickle
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import tyro

from fastmoco.flags import Flag, Side, Str, place, to_write

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """How a project names what is in its files, apart from the `module.` that parallel training puts before it."""

    name: str
    sign: str  # a file with a key that begins so has this layout, unless one before it in the table fits
    online: str  # what the keys of the encoder begin with
    target: str = ""  # the same of its momentum copy, where there is one
    others: tuple[str, ...] = ()  # what the keys of other known parts begin with; they are dropped
    renamed: tuple[tuple[str, str], ...] = ()  # beginnings of keys in the encoder, and what torchvision calls them


_NUMBERED = (
    *(("0.", "conv1."), ("1.", "bn1.")),
    *(("4.", "layer1."), ("5.", "layer2."), ("6.", "layer3."), ("7.", "layer4.")),
)
LAYOUTS = (
    # Its `encoder.0` is the same as `backbone`, and so with the momentum copies.
    Layout(
        *("Fast-MoCo", "backbone.0.", "backbone.", "bbone_ema."),
        others=("encoder.", "encoder_ema.", "projector", "predictor"),
        renamed=_NUMBERED,
    ),
    Layout("moco-v3", "base_encoder.", "base_encoder.", "momentum_encoder.", others=("predictor.",)),
    Layout("MoCo v1 or v2", "encoder_q.", "encoder_q.", "encoder_k.", others=("queue",)),
    Layout("SimSiam", "encoder.", "encoder.", others=("predictor.",)),
    Layout("Barlow Twins", "backbone.", "backbone.", others=("projector.", "bn.")),
    Layout("torchvision or timm", "", ""),
)
# A classifier or a projector, where it is a part of the encoder; dropped where the encoder has no such key.
HEADS = ("fc.", "head.", "head_dist.", "classifier.", "last_linear.")
INSIDE = ("state_dict", "model")  # where a training's checkpoint keeps its weights
# The blocks of each stage, whether they are bottlenecks, and the channels of the very first convolution in them.
FORMS: dict[tuple[tuple[int, ...], bool, int], str] = {
    ((2, 2, 2, 2), False, 64): "resnet18",
    ((3, 4, 6, 3), False, 64): "resnet34",
    ((3, 4, 6, 3), True, 64): "resnet50",
    ((3, 4, 23, 3), True, 64): "resnet101",
    ((3, 8, 36, 3), True, 64): "resnet152",
    ((3, 4, 6, 3), True, 128): "wide_resnet50_2",
    ((3, 4, 23, 3), True, 128): "wide_resnet101_2",
}


def import_(
    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    *,
    out: Str = "",
    encoder: Str = "",
    branch: Side = "online",
    size: int = 224,
    overwrite: Flag = False,
) -> Path:
    """Turn the weights of another project into an encoder file. Nothing in FILE is run, and every key is accounted for.

    Args:
        file: weights of Fast-MoCo's authors, moco-v3, MoCo v1 or v2, SimSiam, Barlow Twins, torchvision or timm:
            .pth, .pth.tar, .bin, .safetensors, ...
        out: the encoder file; by default the name of FILE with .encoder.safetensors, in the current folder.
        encoder: resnet50, resnet18-small, timm/NAME, ...; by default the ResNet that the weights fit.
        branch: target is the momentum copy, where FILE has one.
        size: pixels of the images that the encoder has learnt from.
        overwrite: replace the encoder file if there is one.
    """
    from fastmoco.encoder import build
    from fastmoco.weights import fill, save_encoder, snippet

    source, path = place(str(file)), to_write(str(out) or f"{_stem(str(file))}.encoder.safetensors")
    _refuse_place(path, overwrite)
    tensors = read(source)
    layout = recognise(tensors)
    taken, dropped = take(tensors, layout, branch, str(source))
    name = encoder or infer(taken, str(source))
    if layout.name == "moco-v3" and "vit_small" in name:
        raise ValueError(f"{source}: moco-v3's ViT-S has 12 heads and {name} has 6, which no key tells; take ViT-B")
    made = build(name)
    if size < 1:
        raise ValueError(f"--size {size}: use the pixels of an image's side, such as 224")
    made.admit(size, size)
    own = made.net.state_dict()
    for key in [key for key in taken if key not in own and key.startswith(HEADS)]:
        dropped[key.partition(".")[0]] += 1
        del taken[key]
    # Files of torch before 0.4.1 do not count batches, and the counts change no embedding.
    counts = {key: value for key, value in own.items() if key.endswith(".num_batches_tracked")}
    fill(made.net, taken if counts.keys() & taken.keys() else {**taken, **counts}, str(source), name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_encoder(path, name, made, step=-1, size=size)
    except OSError as error:
        reason = f"{path}: {error.strerror}" if error.strerror else str(error)
        raise ValueError(f"{reason}; give another --out") from None
    parts = ", ".join(f"{part} ({count:,})" for part, count in sorted(dropped.items())) or "nothing"
    print(f"{source}: {layout.name}, {branch} branch, {name}")
    print(f"taken: {len(taken):,} tensors; dropped: {parts}")
    print(f"{path}\n\n{snippet(path, name)}")
    return path


def read(file: Path) -> "dict[str, Tensor]":
    """The weights of any file by name; code in it is refused, not run."""
    from torch import Tensor

    if not file.is_file():
        raise ValueError(f"no file at {str(file)!r}; give a file of weights, such as resnet50.pth")
    content = _open_safetensors(file) if file.suffix == ".safetensors" else _open_torch(file)
    if isinstance(content, dict):
        content = next((content[name] for name in INSIDE if isinstance(content.get(name), dict)), content)
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{file} holds a {type(content).__name__} and no weights by name; give a state dict")
    if {"format", "step", "learner"} <= content.keys():
        raise ValueError(
            f"{file} is a checkpoint of fastmoco itself; other commands and fastmoco.load take it as it is, and "
            "`fastmoco export` with --to safetensors makes an encoder file of it"
        )
    for key, value in content.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{file} has {str(key)!r}, which is no weight but of type {type(value).__name__}")
    prefix = "module." if all(str(key).startswith("module.") for key in content) else ""
    return {str(key).removeprefix(prefix): value for key, value in content.items()}


def _open_safetensors(file: Path) -> object:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is damaged or no safetensors file: {_brief(error)}; give another") from None


def _open_torch(file: Path) -> object:
    import torch

    if zipfile.is_zipfile(file) and _damaged(file):  # torch itself does not compare checksums
        raise ValueError(f"{file} is damaged: its checksums differ; copy it anew")
    try:
        # Trainings often keep their flags beside the weights; a namespace only holds values.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content: object = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a reader of damaged files can raise
        code = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if code:
            raise ValueError(
                f"{file} holds more than numbers, and was not run: {code[1]}; save its state_dict() alone"
            ) from None
        # Where it finds no pickle at all, torch's own words are advice to programmers, and Python's a number.
        reason = "" if isinstance(error, pickle.UnpicklingError | LookupError) else f": {_brief(error)}"
        raise ValueError(
            f"{file} is damaged, or no file of torch{reason}; give weights, such as resnet50.pth"
        ) from None
    return content


def _damaged(file: Path) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.testzip() is not None
    except (zipfile.BadZipFile, EOFError, NotImplementedError):
        return True


def recognise(tensors: "Mapping[str, Tensor]") -> Layout:
    """The first layout of the table whose sign begins a key; every key begins with the last one's, which is empty."""
    return next(layout for layout in LAYOUTS if any(key.startswith(layout.sign) for key in tensors))


def take(
    tensors: "Mapping[str, Tensor]", layout: Layout, branch: Side, file: str
) -> "tuple[dict[str, Tensor], Counter[str]]":
    """The encoder's weights under their library's names, and how many of each other part were dropped."""
    if branch == "target" and not layout.target:
        raise ValueError(f"--branch target: {file} is of {layout.name}, which has no momentum copy; leave it out")
    prefix, copy = (layout.online, layout.target) if branch == "online" else (layout.target, layout.online)
    known = (*layout.others, *([copy] if copy else []))
    taken: dict[str, Tensor] = {}
    dropped: Counter[str] = Counter()
    for key, value in tensors.items():
        part = next((part for part in known if key.startswith(part)), None)
        if key.startswith(prefix):
            taken[_rename(key.removeprefix(prefix), layout.renamed)] = value
        elif part is not None:
            dropped[part.removesuffix(".")] += 1
        else:
            raise ValueError(f"{file} has {key!r}, which is left over: no known part of {layout.name} is called so")
    if not taken:
        raise ValueError(f"--branch {branch}: {file} has no {prefix.removesuffix('.')!r}; give the other branch")
    return taken, dropped


def _rename(key: str, renamed: tuple[tuple[str, str], ...]) -> str:
    return next((new + key.removeprefix(old) for old, new in renamed if key.startswith(old)), key)


def infer(tensors: "Mapping[str, Tensor]", file: str) -> str:
    """The torchvision ResNet that weights are of, by their names and shapes."""
    for key in ("conv1.weight", "layer1.0.conv1.weight"):
        if key not in tensors:
            raise ValueError(f"{file} has no {key!r}, by which a ResNet is known; add --encoder NAME")
    stages = [{key.split(".")[1] for key in tensors if key.startswith(f"layer{stage}.")} for stage in (1, 2, 3, 4)]
    blocks, bottleneck = tuple(map(len, stages)), any(".conv3." in key for key in tensors)
    (channels,) = tensors["layer1.0.conv1.weight"].shape[:1] or (0,)
    name = FORMS.get((blocks, bottleneck, channels))
    if name is None:
        raise ValueError(
            f"{file} is no ResNet of torchvision, with {'-'.join(map(str, blocks))} blocks of {channels} channels; "
            "add --encoder timm/NAME"
        )
    return f"{name}-small" if tensors["conv1.weight"].shape[2:] == (3, 3) else name


def _refuse_place(path: Path, overwrite: bool) -> None:
    if path.suffix != ".safetensors":
        raise ValueError(f"--out {path}: use a name that ends in .safetensors")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists and is kept; add --overwrite, or give another --out")


def _stem(file: str) -> str:
    return Path(file.removesuffix(".tar")).stem


def _brief(error: Exception) -> str:
    """The first sentence of another library, without what Python puts before it."""
    said = (getattr(error, "strerror", None) or str(error)).partition(". ")[0]
    return shorten(said, 120, placeholder=" ...") or type(error).__name__
