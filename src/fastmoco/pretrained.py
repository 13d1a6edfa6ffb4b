"""The encoder that a user means by WEIGHTS."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from fastmoco import checkpoint, foreign
from fastmoco.augment import MEAN, STD
from fastmoco.encoder import RESNETS, Encoder, build
from fastmoco.flags import Side
from fastmoco.names import unknown
from fastmoco.run import read_field
from fastmoco.weights import FILE, MODEL, SIZE, fill, noted, read

UNKNOWN = ", trained at a size that is not known; --size tells"
_BRANCH = {"online": "online", "target": "momentum"}  # the names that a learner gives them


@dataclass(frozen=True)
class Pretrained:
    """An encoder, and what is known of it."""

    encoder: Encoder  # on the CPU, in eval mode
    name: str  # such as resnet50, resnet18-small, timm/convnext_tiny
    size: int  # pixels of the images that it has learnt from
    words: str  # one phrase for people
    step: int = -1  # of its training, if that is known
    folder: Path | None = None  # its run folder, if it has one
    branch: Side = "online"


def find(
    weights: str, *, encoder: str = "", branch: Side = "online", seed: int = 0, download: bool = False
) -> Pretrained:
    """The encoder of a run folder, a checkpoint or an encoder file, a random one, or a library's own.

    `encoder` says which one is meant where WEIGHTS does not: for `random`, or for a checkpoint outside its run folder.
    Nothing in a file is run.
    """
    if branch not in get_args(Side):
        raise ValueError(f"--branch {branch}: use {' or '.join(get_args(Side))}")
    found = _find(weights, encoder, branch, seed, download)
    if encoder and found.name != encoder:
        raise ValueError(f"--encoder {encoder}: {weights} holds a {found.name}; leave it out, or give other weights")
    if branch == "target" and found.branch == "online":
        raise ValueError(f"--branch target: {weights} has one branch only; give a run folder or a checkpoint")
    found.encoder.eval()
    return found


def _find(weights: str, encoder: str, branch: Side, seed: int, download: bool) -> Pretrained:
    path = Path(os.path.expanduser(weights))
    if path.is_dir():
        return _read_run(path, branch)
    if path.is_file():
        return _read_checkpoint(path, encoder, branch) if path.suffix == ".pt" else _read_encoder(path)
    library, _, name = weights.partition("/")
    if library == "random":
        name = name or encoder or "resnet50"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Pretrained(build(name), name, SIZE, f"{name} with random weights, seed {seed}")
    if library == "torchvision" and name:
        return _fill(name, *_fetch_torchvision(name, download), weights, SIZE)
    if library == "timm" and name:
        tensors, size = _fetch_timm(name, download)
        return _fill(f"timm/{name.partition('.')[0]}", tensors, f"timm's {name}", weights, size)
    raise ValueError(
        f"no weights at {weights!r}; give a run folder, a checkpoint, an {FILE}, random, torchvision/NAME or timm/NAME"
    )


def _read_run(path: Path, branch: Side) -> Pretrained:
    if not (path / "recipe.py").is_file():
        for name in (FILE, MODEL):
            if (path / name).is_file():
                return _read_encoder(path / name)
        raise ValueError(f"{path} is no run folder, as it has no recipe.py; give the folder of a run, or a file")
    if branch == "target":
        return _read_checkpoint(path / "checkpoints" / "last.pt", "", branch)
    if not (path / FILE).is_file():
        raise ValueError(f"{path} has no {FILE} yet; let it train until its first checkpoint")
    return _read_encoder(path / FILE)


def _read_encoder(file: Path) -> Pretrained:
    stored = read(file)
    folder = file.parent if (file.parent / "recipe.py").is_file() else None
    size = stored.size or (max(view.size for view in read_field(folder, "views")) if folder else 0)
    words = f"{stored.name} of {file}" + ("" if size else UNKNOWN)
    return _fill(stored.name, stored.tensors, words, str(file), size or SIZE, stored.step, folder)


def _read_checkpoint(file: Path, encoder: str, branch: Side) -> Pretrained:
    folder = file.parent.parent
    if not file.is_file():
        raise ValueError(f"{folder} has no {file.name} in checkpoints/; let it train until its first checkpoint")
    state = checkpoint.load(file)
    here = (folder / "recipe.py").is_file()
    if here:
        name = read_field(folder, "encoder")
        try:
            size = max(view.size for view in read_field(folder, "views"))
        except ValueError:  # views that take steps of a user's own
            size = noted(folder / FILE, "size")
            if size < 1:
                raise
    elif encoder:
        name, size = encoder, SIZE
    else:
        raise ValueError(f"{file} is not in a run folder, so nothing says what it holds; add --encoder NAME")
    prefix = f"{_BRANCH[branch]}.encoder.net."
    learner = state.get("learner")
    if not isinstance(learner, dict) or not isinstance(state.get("step"), int):
        raise ValueError(f"{file} is no checkpoint of a training; give one of a run folder")
    tensors = {key.removeprefix(prefix): value for key, value in learner.items() if key.startswith(prefix)}
    if not tensors:
        reason = "as its target is the online branch; leave it out" if branch == "target" else "so it is damaged"
        raise ValueError(f"--branch {branch}: {file} has no such branch, {reason}")
    words = f"{name} of {file}, step {state['step']:,}, {branch} branch" + ("" if here else UNKNOWN)
    found = _fill(name, tensors, words, str(file), size, state["step"], folder if here else None)
    return replace(found, branch=branch)


def _fetch_torchvision(name: str, download: bool) -> tuple[Mapping[str, Tensor], str]:
    """The weights that torchvision calls its default, and which they are."""
    import torchvision

    if name not in RESNETS:
        raise ValueError(unknown("weights", f"torchvision/{name}", [f"torchvision/{known}" for known in RESNETS]))
    chosen = torchvision.models.get_model_weights(name).DEFAULT
    file = Path(torch.hub.get_dir()) / "checkpoints" / chosen.url.rpartition("/")[2]
    if not file.is_file() and not download:
        raise ValueError(f"torchvision/{name} is not in {file.parent}; add --download to fetch it")
    if not file.is_file():
        try:
            chosen.get_state_dict(progress=False, check_hash=True, weights_only=True)
        except (OSError, RuntimeError) as error:
            raise ValueError(f"cannot download torchvision/{name}: {error}; try again, or put it at {file}") from None
    tensors = {key: value for key, value in foreign.read(file).items() if not key.startswith("fc.")}
    return tensors, f"torchvision's {chosen}"


def _fetch_timm(name: str, download: bool) -> tuple[Mapping[str, Tensor], int]:
    """timm's weights, and the pixels that they have learnt from."""
    import timm

    if not timm.is_model(name.partition(".")[0]):
        raise ValueError(unknown("weights", f"timm/{name}", [f"timm/{known}" for known in timm.list_pretrained()]))
    if not download:
        raise ValueError(f"timm/{name}: add --download, with which timm fetches the weights or finds them in its cache")
    try:
        model: Any = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # of whatever library timm fetches by
        raise ValueError(f"cannot fetch timm/{name}: {' '.join(str(error).split())[:160]}") from None
    about = model.pretrained_cfg
    if (tuple(about["mean"]), tuple(about["std"])) != (MEAN, STD):
        raise ValueError(f"timm/{name} was trained on images normalised by {about['mean']}, and we normalise by {MEAN}")
    return model.state_dict(), about["input_size"][-1]


def _fill(
    name: str,
    tensors: Mapping[str, Tensor],
    words: str,
    source: str,
    size: int,
    step: int = -1,
    folder: Path | None = None,
) -> Pretrained:
    made = build(name)
    fill(made.net, tensors, source, name)
    return Pretrained(made, name, size, words, step, folder)
