"""A labelled set that is drawn, not downloaded: ten patterns under many nuisances, to see that learning happens.

Every patch shows the class. What else differs between images is where the pattern begins, its size, a slight turn,
light, contrast, shade, tint and noise. The augmentation changes all of these too, so images of a class can be found to
be alike, though their pixels are not. What it does not change, such as a large turn or the amount of noise, must not
differ: it would tell each image from all others, and nothing else would be learnt.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fastmoco.randomness import key, uniform

CLASSES = ("rows", "columns", "slope", "checks", "dots", "rings", "grid", "zigzag", "bricks", "plus")
SIZE = 32
COUNTS = {"train": 5000, "val": 1000}


def draw(split: Literal["train", "val"]) -> tuple[UInt8[Tensor, "n 3 32 32"], list[int]]:
    """All images of a split, and their classes."""
    index = torch.arange(COUNTS[split])
    keys = key(list(COUNTS).index(split), index)
    labels = index % len(CLASSES)
    u = uniform(keys, 11)[:, :, None, None]
    height = _patterns(labels, u)
    # Light across the image, and how far the pattern stands out from it.
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")
    turn = 2 * math.pi * u[:, 4]
    shade = 0.2 * u[:, 5] * (x * turn.cos() + y * turn.sin())
    grey = 0.3 + 0.4 * u[:, 6] + shade + (0.15 + 0.3 * u[:, 7]) * (height - 0.5)
    tint = 1 + 0.1 * (u[:, 8:11] - 0.5)
    noise = 0.45 * (uniform(key(keys, 1), 3 * SIZE * SIZE).view(-1, 3, SIZE, SIZE) - 0.5)
    image = grey[:, None] * tint + noise
    return (image * 255).round().clamp(0, 255).to(torch.uint8), labels.tolist()


def _patterns(labels: Tensor, u: Tensor) -> Float[Tensor, "n 32 32"]:
    """Each pattern repeats itself with a period of a few pixels, from a random place on, a little turned."""
    y, x = torch.meshgrid(torch.arange(SIZE) + 0.5, torch.arange(SIZE) + 0.5, indexing="ij")
    angle = math.radians(12) * (u[:, 0] - 0.5)
    period = 6 + 3 * u[:, 1]
    across = (x * angle.cos() + y * angle.sin()) / period + u[:, 2]
    down = (y * angle.cos() - x * angle.sin()) / period + u[:, 3]
    wave_x, wave_y = (2 * math.pi * across).sin(), (2 * math.pi * down).sin()
    # Distances to the middle of a cell.
    side, level = ((across % 1) - 0.5).abs(), ((down % 1) - 0.5).abs()
    shifted = (((across + 0.5 * (down.floor() % 2)) % 1) - 0.5).abs()
    near = torch.hypot(side, level)
    kinds = (
        wave_y,
        wave_x,
        (2 * math.pi * (across + down) * math.sqrt(0.5)).sin(),
        wave_x * wave_y * 2,
        6 * (0.3 - near),
        6 * (0.12 - (near - 0.33).abs()),
        6 * (side.maximum(level) - 0.38),
        (2 * math.pi * (down + side)).sin(),
        6 * (shifted.maximum(level) - 0.38),
        6 * (0.13 - side.minimum(level)).minimum(0.38 - side.maximum(level)),
    )
    drawn = torch.stack([kind.clamp(-1, 1) for kind in kinds])
    return (drawn[labels, torch.arange(len(labels))] + 1) / 2
