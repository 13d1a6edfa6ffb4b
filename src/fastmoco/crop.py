"""Random resized crops: where they lie, cut from a decoded image by PIL, or from many images at once on the device."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from PIL.Image import Image, Resampling
from torch import Tensor

from fastmoco.randomness import uniform
from fastmoco.recipe import View

TRIES = 10
RATIO = (3 / 4, 4 / 3)  # of width to height; the paper does not say; we take the range that all its baselines use


def boxes(keys: Int64[Tensor, " n"], sizes: Int64[Tensor, "n 2"], scale: Float[Tensor, "n 2"]) -> Int64[Tensor, "n 4"]:
    """Left, upper, right, lower of one crop per key, in an image of this width and height.

    The distribution of torchvision's RandomResizedCrop: the first of ten draws that fits, else the middle of the image.
    """
    numbers = uniform(keys, 2 * TRIES + 2).double()
    least, most = scale.double()[:, :, None].unbind(1)
    area = sizes.prod(1, keepdim=True) * (least + (most - least) * numbers[:, :TRIES])
    low, high = map(math.log, RATIO)
    ratio = torch.exp(low + (high - low) * numbers[:, TRIES : 2 * TRIES])
    tried = torch.stack([area * ratio, area / ratio], dim=2).sqrt().round().long()  # n, tries, 2
    fits = ((tried >= 1) & (tried <= sizes[:, None])).all(2)
    first = fits.int().argmax(1)
    # Where none fits, the image itself, cut to the nearest allowed ratio.
    limit = torch.stack([sizes[:, 1] * RATIO[1], sizes[:, 0] / RATIO[0]], dim=1).round().long().clamp(min=1)
    fitted = fits.any(1, keepdim=True)
    extent = torch.where(fitted, tried[torch.arange(len(keys)), first], torch.minimum(sizes, limit))
    spare = sizes - extent
    start = torch.where(fitted, (numbers[:, 2 * TRIES :] * (spare + 1)).long(), spare // 2)
    return torch.cat([start, start + extent], dim=1)


def shrinks(where: Int64[Tensor, "crops n 4"], size: Int64[Tensor, " crops"]) -> Int64[Tensor, " n"]:
    """By how much, of 1, 2, 4 and 8, each image can be reduced and still give every crop the pixels of its view."""
    spare = (where[..., 2:] - where[..., :2]).amin(2) // size[:, None]
    return 2 ** torch.bucketize(spare.amin(0), torch.tensor([2, 4, 8]), right=True)


def cut(image: Image, box: Sequence[int], view: View, shrink: int = 1) -> UInt8[np.ndarray, "size size 3"]:
    """One crop of one decoded image, by PIL.

    `shrink`: by how much the image was reduced when it was decoded; boxes are in full-size pixels.
    """
    left, upper, right, lower = (edge / shrink for edge in box)
    # PIL sees nothing around the crop, but the whole of every pixel that an edge cuts through.
    x, y = int(left), int(upper)
    crop = image.crop((x, y, math.ceil(right), math.ceil(lower)))
    inside = (left - x, upper - y, right - x, lower - y)
    return np.asarray(crop.resize((view.size, view.size), Resampling[view.resize.upper()], box=inside))


def pixels(image: Image) -> UInt8[Tensor, "3 h w"]:
    """An RGB image as a tensor."""
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())


def resample(images: UInt8[Tensor, "n 3 h w"], box: Int64[Tensor, "n 4"], view: View) -> Float[Tensor, "n 3 size size"]:
    """The crops of many images in one go, in [0, 1]: as `cut`, but not rounded to 8 bits, and always across first.

    Resizing is linear along each axis, so a crop is rows @ image @ columns, with a matrix for each sample. Pillow goes
    across first, too, but from 13 on down first where a crop has more than twice as many rows to lose as columns. The
    order shows where cubic weights overshoot black or white: by up to 30 of 255 in hard-edged noise.
    """
    columns = _weights(box[:, 0], box[:, 2], images.shape[3], view)
    rows = _weights(box[:, 1], box[:, 3], images.shape[2], view)
    # Cubic weights overshoot; PIL, too, cuts off what is out of range after each pass. To follow Pillow 13 in the order
    # would take another copy of all images, some of them transposed, and would be wrong beside Pillow 12.
    x = (images.to(columns.dtype) / 255 @ columns[:, None].transpose(2, 3)).clamp(0, 1)
    return (rows[:, None] @ x).clamp(0, 1)


def _weights(
    start: Int64[Tensor, " n"], stop: Int64[Tensor, " n"], length: int, view: View
) -> Float[Tensor, "n size length"]:
    """What each pixel along one axis gives to each pixel of the crop: PIL's filters, widened where a crop shrinks."""
    stride = ((stop - start) / view.size)[:, None, None]
    pixel = torch.arange(length, device=start.device)
    centre = start[:, None, None] + (torch.arange(view.size, device=start.device)[:, None] + 0.5) * stride
    distance = ((pixel + 0.5 - centre) / stride.clamp(min=1)).abs()
    inside = (pixel >= start[:, None, None]) & (pixel < stop[:, None, None])
    weights = torch.where(inside, _cubic(distance) if view.resize == "bicubic" else (1 - distance).clamp(min=0), 0.0)
    return weights / weights.sum(2, keepdim=True)


def _cubic(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Keys' cubic convolution with a = -0.5, as PIL has it."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
