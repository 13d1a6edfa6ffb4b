"""Encoders as files of other libraries: how each is written, loaded back by its library, and pasted."""

import contextlib
import importlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fastmoco import detectron
from fastmoco.album import shown
from fastmoco.augment import MEAN, STD
from fastmoco.checkpoint import write
from fastmoco.encoder import build, timm_options
from fastmoco.pretrained import Pretrained
from fastmoco.weights import EVAL, MODEL, SMALL_STEM, digest, quoted, read, save_encoder, snippet

CONFIG, CARD = "config.json", "README.md"  # what is in a hub folder, beside the weights
OPSET = 18  # of ONNX: the oldest that torch's exporter writes of itself

Embed = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Format:
    """One way to write an encoder. What is loaded back makes the same embeddings, up to the tolerance."""

    ending: str  # of a name
    tolerance: float  # as a share of the largest value in the embeddings
    refuse: Callable[[str], None]  # an encoder that the library does not make
    write: Callable[[Path, Pretrained], None]
    load: Callable[[Path, Pretrained], Embed]
    paste: Callable[[Path, Pretrained], str]  # lines that load it without this package


def compare(ours: Embed, theirs: Embed, images: Float[Tensor, "b 3 height width"]) -> tuple[float, float]:
    """The largest absolute difference of embeddings, and the largest value in ours."""
    with torch.no_grad():
        mine, other = ours(images), theirs(images)
    if mine.shape != other.shape:
        return float("inf"), mine.abs().max().item()
    return (mine - other).abs().max().item(), mine.abs().max().item()


def small(name: str) -> bool:
    """Whether the stem is our own; torchvision makes the rest, and timm and detectron2 make nothing like it."""
    return name.endswith("-small")


def _admit(name: str) -> None:
    """Every encoder can be written like this."""


def _refuse_timm(name: str) -> None:
    if name.startswith("timm/"):
        raise ValueError(f"--to torchvision: {name} is timm's own; use --to timm")


def _refuse_small(name: str) -> None:
    if small(name):
        raise ValueError(f"--to timm: timm does not make {name}; use --to torchvision, safetensors or hub-folder")


def _refuse_strange(name: str) -> None:
    if name.startswith("timm/") or small(name):
        raise ValueError(f"--to detectron2: it does not make {name}, only torchvision's ResNets; use --to onnx")


def _require_onnx(name: str) -> None:
    try:
        for library in ("onnx", "onnxscript", "onnxruntime"):
            importlib.import_module(library)
    except ImportError as error:
        raise ValueError(f"--to onnx needs {error.name}: pip install 'fast-moco[export]'") from None


def _write_torchvision(path: Path, found: Pretrained) -> None:
    write(path, lambda file: torch.save(_tensors(found), file))


def _load_torchvision(path: Path, found: Pretrained) -> Embed:
    return _filled(build(found.name).net, torch.load(path, weights_only=True))


def _paste_torchvision(path: Path, found: Pretrained) -> str:
    builder = found.name.partition("-")[0]
    lines = ["import torch", "import torchvision", "", f"encoder = torchvision.models.{builder}()"]
    lines += [*(SMALL_STEM if small(found.name) else ()), "encoder.fc = torch.nn.Identity()"]
    return "\n".join([*lines, f"encoder.load_state_dict(torch.load({quoted(path)}, weights_only=True))", EVAL])


def _write_encoder(path: Path, found: Pretrained) -> None:
    save_encoder(path, found.name, found.encoder, found.step, found.size)


def _load_encoder(path: Path, found: Pretrained) -> Embed:
    net = _filled(build(found.name).net, read(path).tensors)
    if digest(net) != digest(found.encoder.net):
        raise ValueError(f"{path} is not what was written; try again, or on another disk")
    return net


def _paste_encoder(path: Path, found: Pretrained) -> str:
    return snippet(path, found.name)


def _load_timm(path: Path, found: Pretrained) -> Embed:
    import timm
    from safetensors.torch import load_file

    return _filled(
        timm.create_model(_timm(found.name), num_classes=0, **timm_options(_timm(found.name))), load_file(path)
    )


def _paste_timm(path: Path, found: Pretrained) -> str:
    return snippet(path, f"timm/{_timm(found.name)}")


def _timm(name: str) -> str:
    """timm has torchvision's ResNets too, with the same names and keys."""
    return name.removeprefix("timm/")


def _write_detectron(path: Path, found: Pretrained) -> None:
    detectron.save(path, _tensors(found))


def _load_detectron(path: Path, found: Pretrained) -> Embed:
    net = build(found.name).net
    return _filled(net, {**net.state_dict(), **detectron.load(path, net.state_dict())})


def _paste_detectron(path: Path, found: Pretrained) -> str:
    return detectron.settings(path, found.name)


def _write_onnx(path: Path, found: Pretrained) -> None:
    images = torch.zeros(2, 3, found.size, found.size)
    with _quiet():
        program = torch.onnx.export(
            found.encoder.net,
            (images,),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["embeddings"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    assert program is not None, "dynamo=True makes a program"
    write(path, lambda file: file.write(program.model_proto.SerializeToString()))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells its programmers much that no user can act on."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _load_onnx(path: Path, found: Pretrained) -> Embed:
    library = importlib.import_module("onnxruntime")  # it has no types, and need not be there
    session = library.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def _paste_onnx(path: Path, found: Pretrained) -> str:
    lines = ["import numpy", "import onnxruntime", "", f"session = onnxruntime.InferenceSession({quoted(path)})"]
    lines += [f'images = numpy.zeros((1, 3, {found.size}, {found.size}), dtype="float32")  # yours, normalised']
    return "\n".join([*lines, 'embeddings = session.run(None, {"images": images})[0]'])


def _write_hub(path: Path, found: Pretrained) -> None:
    path.mkdir()
    _write_encoder(path / MODEL, found)
    if not small(found.name):
        text = json.dumps(_configure(found), indent=2)
        write(path / CONFIG, lambda file: file.write(f"{text}\n".encode()))


def _configure(found: Pretrained) -> dict[str, Any]:
    """How timm makes the encoder, in the words that it looks for."""
    import timm

    with torch.device("meta"):
        known: Any = timm.create_model(_timm(found.name)).pretrained_cfg
    resized = {"input_size": [3, found.size, found.size], "interpolation": "bicubic", "crop_pct": shown(found.size)}
    images = {**resized, "mean": MEAN, "std": STD}
    layers = {name: known.get(name) for name in ("first_conv", "classifier")}
    # A model of a fixed size is made at its own, which is no class's default, and not at that of our images.
    fixed = {"img_size": known["input_size"][-1]} if known.get("fixed_input_size") else {}
    return {
        "architecture": _timm(found.name),
        "num_classes": 0,
        "num_features": found.encoder.width,
        "model_args": {**fixed, **timm_options(_timm(found.name))},
        "pretrained_cfg": {"tag": "fastmoco", "custom_load": False, "num_classes": 0, **images, **layers},
    }


def _load_hub(path: Path, found: Pretrained) -> Embed:
    import timm

    if small(found.name):
        return _load_encoder(path / MODEL, found)
    net: nn.Module = timm.create_model(f"local-dir:{path}", pretrained=True)
    return net.eval()


def _paste_hub(path: Path, found: Pretrained) -> str:
    if small(found.name):
        return snippet(path / MODEL, found.name)
    place = quoted(f"local-dir:{path}")
    return f"import timm\n\nencoder = timm.create_model({place}, pretrained=True)\n{EVAL}"


def _tensors(found: Pretrained) -> dict[str, Tensor]:
    return {key: value.detach().cpu().contiguous() for key, value in found.encoder.net.state_dict().items()}


def _filled(net: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    net.load_state_dict(tensors)
    return net.eval()


FORMATS = {
    "torchvision": Format(
        ".torchvision.pth", 1e-6, _refuse_timm, _write_torchvision, _load_torchvision, _paste_torchvision
    ),
    "timm": Format(".timm.safetensors", 1e-6, _refuse_small, _write_encoder, _load_timm, _paste_timm),
    "detectron2": Format(".detectron2.pkl", 1e-6, _refuse_strange, _write_detectron, _load_detectron, _paste_detectron),
    "onnx": Format(".onnx", 1e-4, _require_onnx, _write_onnx, _load_onnx, _paste_onnx),
    "safetensors": Format(".encoder.safetensors", 1e-6, _admit, _write_encoder, _load_encoder, _paste_encoder),
    "hub-folder": Format("-hub", 1e-6, _admit, _write_hub, _load_hub, _paste_hub),
}
