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

    from fastmoco.flags import Side


def load(path: "str | os.PathLike[str]", *, branch: "Side" = "online", encoder: str = "") -> "nn.Module":
    """The encoder of a run folder, a checkpoint or an encoder.safetensors: a torchvision or timm model in eval mode.

    `branch="target"` is the momentum copy; `encoder` says what a checkpoint outside its run folder holds.
    """
    from fastmoco.pretrained import find  # late, as torch is slow to import

    place = os.path.expanduser(path)
    if not os.path.exists(place):
        raise ValueError(f"no encoder at {str(path)!r}; give a run folder, a checkpoint or an encoder.safetensors")
    net: nn.Module = find(place, branch=branch, encoder=encoder).encoder.net
    return net
