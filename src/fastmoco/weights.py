"""An encoder as a file with its library's own keys, and back."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fastmoco.checkpoint import write
from fastmoco.encoder import Encoder, timm_options

FILE = "encoder.safetensors"
MODEL = "model.safetensors"  # the same in a hub folder
SIZE = 224  # pixels of the images that an encoder takes, where no one says


@dataclass(frozen=True)
class Stored:
    """What an encoder file holds."""

    name: str  # of the encoder
    step: int
    size: int  # pixels of the largest views that it has learnt from; 0 if it does not say
    tensors: dict[str, Tensor]


def save_encoder(path: Path, name: str, encoder: Encoder, step: int, size: int) -> None:
    """The weights under torchvision's or timm's own names, and with them how the encoder is called."""
    from safetensors.torch import save

    # Copies, as a network may use one tensor in several places, which safetensors does not write.
    tensors = {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in encoder.net.state_dict().items()
    }
    content = save(tensors, {"encoder": name, "step": str(step), "size": str(size), "format": "pt"})
    write(path, lambda file: file.writelines(_in_order(content)))


def _in_order(content: bytes) -> tuple[bytes, memoryview]:
    """The same file, with what it says of itself by name: safetensors writes that in another order in each process."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # where the numbers begin
    return len(text).to_bytes(8, "little") + text, memoryview(content)[end:]


def read(file: Path) -> Stored:
    """An encoder file; nothing in it is run."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as content:
            about = content.metadata() or {}
            tensors = {key: content.get_tensor(key) for key in content.keys()}  # noqa: SIM118
        step, size = int(about.get("step", -1)), int(about.get("size", 0))
    except (SafetensorError, OSError, ValueError) as error:
        if file.suffix != ".safetensors":
            raise ValueError(f"{file} is no safetensors file; `fastmoco import` may read it") from None
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{file} is damaged or no safetensors file: {reason}; give another, or copy it anew") from None
    if not about.get("encoder"):
        raise ValueError(
            f"{file} does not say which encoder it holds, so it was not written by fastmoco; `fastmoco import` reads it"
        )
    return Stored(about["encoder"], step, size, tensors)


def fill(net: nn.Module, tensors: Mapping[str, Tensor], source: str, name: str) -> None:
    """Put weights into a network, if they are exactly its own; else say the first that is not."""
    own = net.state_dict()
    missing, others = [key for key in own if key not in tensors], [key for key in tensors if key not in own]
    for keys, fault in ((missing, "has no {}"), (others, "has {}, which is left over")):
        if keys:
            more = f" (and {len(keys) - 1:,} more)" if len(keys) > 1 else ""
            raise ValueError(f"{source} {fault.format(repr(keys[0]))}{more}, so it is not a {name}")
    for key, value in own.items():
        if value.shape != tensors[key].shape:
            given, wanted = list(tensors[key].shape), list(value.shape)
            raise ValueError(f"{source} has {key!r} of shape {given} rather than {wanted}, so it is not a {name}")
    net.load_state_dict(dict(tensors))


def digest(net: nn.Module) -> str:
    """By what a network's weights are known again."""
    found = hashlib.sha256()
    for key, value in net.state_dict().items():
        found.update(f"{key} {value.dtype} {list(value.shape)}\n".encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def noted(path: Path, name: str) -> int:
    """What an encoder file tells of itself: its `step`, its `size`; -1 if it is not there, or not whole."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as content:
            return int((content.metadata() or {}).get(name, -1))
    except (SafetensorError, OSError, ValueError):
        return -1


def snippet(path: Path, name: str) -> str:
    """Lines that load the file without this package, in the library that the encoder comes from."""
    if name.startswith("timm/"):
        model = name.removeprefix("timm/")
        told = "".join(f", {option}={value}" for option, value in timm_options(model).items())
        lines = ["import timm", *_LOADER, f'encoder = timm.create_model("{model}", num_classes=0{told})']
    else:
        builder, _, stem = name.partition("-")
        lines = ["import torch", "import torchvision", *_LOADER, f"encoder = torchvision.models.{builder}()"]
        lines += [*(SMALL_STEM if stem else ()), "encoder.fc = torch.nn.Identity()"]
    return "\n".join([*lines, f"encoder.load_state_dict(load_file({quoted(path)}))", EVAL])


def quoted(path: Path | str) -> str:
    """A path as Python reads it, in double quotes, whatever is in it."""
    return json.dumps(str(path), ensure_ascii=False)


# A network is made in train mode, in which the embedding of an image depends on the others of its batch.
EVAL = "encoder.eval()"
_LOADER = ("from safetensors.torch import load_file", "")
# As in encoder.py, for those who have not got it.
SMALL_STEM = (
    "encoder.conv1 = torch.nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)",
    "encoder.maxpool = torch.nn.Identity()",
)
