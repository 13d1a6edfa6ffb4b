"""Fast-MoCo: momentum contrast with combinatorial patches, and every row of its paper as a value."""

from os import PathLike
from typing import TYPE_CHECKING

from fastmoco.command import pretrain

if TYPE_CHECKING:
    from torch import nn

__all__ = ["load", "pretrain"]
__version__ = "0.1.0"


def load(path: "str | PathLike[str]") -> "nn.Module":
    """The encoder of a run folder or of an encoder.safetensors: a torchvision or timm model that makes embeddings."""
    from fastmoco import weights  # late, as torch is slow to import

    return weights.load(path)
