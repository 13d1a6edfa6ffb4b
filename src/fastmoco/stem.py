"""The first convolution of a ResNet as a GPU likes it."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

ALIGNED = 16  # channels that a GPU reads at once; what is missing is filled with zeros


def convolve(x: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c 7 7"]) -> Float[Tensor, "b d high wide"]:
    """A 7x7 convolution of stride 2 and padding 3, of images with even sides.

    With three channels, a GPU's matrix units would be fed mostly zeros. With each block of 2x2 pixels as twelve, it is
    a convolution of 4x4 and stride 1, in which an output sees the same pixels by the same weights: tap k of seven
    becomes tap k + 1 of eight, and lies in block (k + 1) // 2 of four.
    """
    blocks = F.pad(_fold(x), (2, 1, 2, 1, 0, ALIGNED - 4 * x.shape[1]))
    taps = F.pad(_fold(F.pad(weight, (1, 0, 1, 0))), (0, 0, 0, 0, 0, ALIGNED - 4 * x.shape[1]))
    blocks, taps = (each.contiguous(memory_format=torch.channels_last) for each in (blocks, taps))
    return F.conv2d(blocks, taps)


def _fold(x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b 4*c high wide"]:
    """Blocks of 2x2 pixels as channels."""
    b, c, height, width = x.shape
    return x.reshape(b, c, height // 2, 2, width // 2, 2).permute(0, 3, 5, 1, 2, 4).flatten(1, 3)
