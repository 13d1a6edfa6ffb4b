"""Fast-MoCo: momentum contrast with combinatorial patches, and every row of its paper as a value."""

import os
import time
from typing import TYPE_CHECKING

__all__ = ["load", "pretrain"]
__version__ = "0.1.0"
__began__ = time.monotonic()
__parent__ = os.getppid()  # before anything slow: a launcher may have gone by then

from fastmoco.command import pretrain

if TYPE_CHECKING:
    from torch import nn


def load(path: "str | os.PathLike[str]") -> "nn.Module":
    """The encoder of a run folder or of an encoder.safetensors: a torchvision or timm model that makes embeddings."""
    from fastmoco import weights  # late, as torch is slow to import

    return weights.load(path)
