"""An encoder as a file with its library's own keys, and back."""

from os import PathLike
from pathlib import Path

from torch import nn

from fastmoco.checkpoint import write
from fastmoco.encoder import Encoder, build

FILE = "encoder.safetensors"


def save_encoder(path: Path, name: str, encoder: Encoder, step: int) -> None:
    """The weights under torchvision's or timm's own names, and with them how the encoder is called."""
    from safetensors.torch import save

    tensors = {key: value.detach().cpu().contiguous() for key, value in encoder.net.state_dict().items()}
    content = save(tensors, {"encoder": name, "step": str(step), "format": "pt"})
    write(path, lambda file: file.write(content))


def load(path: str | PathLike[str]) -> nn.Module:
    """The encoder of a run folder or of an encoder.safetensors: a torchvision or timm model that makes embeddings.

    Nothing in the file is run.
    """
    from safetensors import SafetensorError, safe_open

    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise ValueError(f"no encoder at {str(path)!r}; give a run folder that holds {FILE}, or such a file")
    try:
        with safe_open(file, "pt") as content:
            name = (content.metadata() or {}).get("encoder", "")
            tensors = {key: content.get_tensor(key) for key in content.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is damaged or no safetensors file: {' '.join(str(error).split())[:120]}") from None
    if not name:
        raise ValueError(f"{file} does not say which encoder it holds; it was not written by fastmoco")
    net: nn.Module = build(name).net
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split()).partition(": ")[2]
        raise ValueError(f"{file} does not fit its encoder {name}: {reason[:120]}") from None
    return net.eval()


def stored_step(path: Path) -> int:
    """The step at which an encoder was written; -1 if it is not there, or not whole."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as content:
            return int((content.metadata() or {}).get("step", -1))
    except (SafetensorError, OSError, ValueError):
        return -1


def snippet(path: Path, name: str) -> str:
    """Lines that load the file without this package, where its library alone can make the encoder."""
    if name.endswith("-small"):
        return f'import fastmoco\n\nencoder = fastmoco.load("{path}")'
    if name.startswith("timm/"):
        library, make = "timm", f'encoder = timm.create_model("{name.removeprefix("timm/")}", num_classes=0)'
    else:
        library, make = (
            "torch\nimport torchvision",
            f"encoder = torchvision.models.{name}()\nencoder.fc = torch.nn.Identity()",
        )
    return (
        f"import {library}\nfrom safetensors.torch import load_file\n\n"
        f'{make}\nencoder.load_state_dict(load_file("{path}"))'
    )
