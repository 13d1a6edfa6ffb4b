"""One side of the contrast: all state lives here, so that steps can be plain values."""

from torch import nn

from fastmoco.encoder import Encoder
from fastmoco.support import Support


class Branch(nn.Module):
    """The networks of the online or the target side; the target side has no predictor (Eq. 1)."""

    def __init__(self, encoder: Encoder, projector: nn.Module, predictor: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector
        self.predictor = predictor
        self.support: Support | None = None  # of the side that has the targets
