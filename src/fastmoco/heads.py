"""Projector and predictor: one MLP, as in the official code by default, with other methods' own as named variants."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from torch import nn


@dataclass(frozen=True)
class MLP:
    """Linear, norm and ReLU for every width but the last; the last is linear, with or without a norm."""

    widths: tuple[int, ...]
    last: Literal["linear", "norm", "norm without affine"] = "linear"
    hidden_bias: bool = True
    last_bias: bool = True
    gamma: Literal["uniform", "one"] = "uniform"

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1 or max(self.widths) > 10**6:
            raise ValueError(f"widths={self.widths}: a head needs at least one layer, each from 1 to a million wide")


# The paper says "identical to SimSiam", but the official code has a bias everywhere, an affine last norm and, through a
# patched initialiser, norm weights drawn from U(0, 1). We take the code, which made the published numbers.
projector = MLP((2048, 2048, 2048), last="norm")
predictor = MLP((512, 2048))

# SimSiam freezes the bias of its last projector layer; the norm behind it cancels that bias, so we leave it out.
simsiam_projector = MLP((2048, 2048, 2048), "norm without affine", hidden_bias=False, last_bias=False, gamma="one")
simsiam_predictor = MLP((512, 2048), hidden_bias=False, gamma="one")

mocov3_projector = MLP((4096, 256), "norm without affine", hidden_bias=False, last_bias=False, gamma="one")
mocov3_predictor = MLP((4096, 256), hidden_bias=False, last_bias=False, gamma="one")

byol_head = MLP((4096, 256), last_bias=False, gamma="one")  # projector and predictor alike

nnclr_projector = MLP((2048, 2048, 256), last="norm", gamma="one")
nnclr_predictor = MLP((4096, 256), gamma="one")


def mlp(width: int, head: MLP) -> nn.Sequential:
    """The head as a module for embeddings of the given width."""
    *hidden, last = pairwise((width, *head.widths))
    layers: list[nn.Module] = []
    for into, out in hidden:
        layers += [nn.Linear(into, out, bias=head.hidden_bias), nn.BatchNorm1d(out), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(*last, bias=head.last_bias))
    if head.last != "linear":
        layers.append(nn.BatchNorm1d(last[1], affine=head.last == "norm"))
    for layer in layers:
        if isinstance(layer, nn.BatchNorm1d) and layer.affine and head.gamma == "uniform":
            nn.init.uniform_(layer.weight)
    return nn.Sequential(*layers)
