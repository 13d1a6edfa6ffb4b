"""Change whole stacks of crops at once, on any device, each sample in its own way."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from fastmoco.randomness import uniform
from fastmoco.recipe import Augment

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # the places of `Augment.jitter` and of `Look.factors`

# Which of a key's random numbers decides what. A new operation takes new places at the end and so moves no other.
_FLIP, _JITTER, _GREY, _BLUR, _SIGMA, _SOLARISE = range(6)
_FACTORS, _ORDER = slice(6, 10), slice(10, 14)
_COUNT = 14

# Of the red, green and blue of ImageNet's images.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Look:
    """How each sample of a stack is changed: drawn beforehand, so that changing is a pure function."""

    flip: Bool[Tensor, "*n"]
    factors: Float[Tensor, "*n 4"]  # multiply brightness, contrast, saturation; add to hue; (1, 1, 1, 0) is no change
    order: Int[Tensor, "*n 4"]  # which of the four comes first, second, ...
    grey: Bool[Tensor, "*n"]
    sigma: Float[Tensor, "*n"]  # of the blur, in pixels; 0 is none
    solarise: Bool[Tensor, "*n"]

    def to(self, device: torch.device) -> "Look":
        return self._each(lambda x: x.to(device, non_blocking=True))

    def pin_memory(self) -> "Look":
        """Torch's DataLoader calls this by its name."""
        return self._each(Tensor.pin_memory)

    def _each(self, function: Callable[[Tensor], Tensor]) -> "Look":
        return Look(*(function(getattr(self, field.name)) for field in fields(self)))


def draw(augment: Augment, keys: Int64[Tensor, "*n"]) -> Look:
    """A look for each key, of which it is a pure function; always on the CPU. Keys must be used for nothing else."""
    u = uniform(keys, _COUNT)
    *strengths, hue = augment.jitter
    low = torch.tensor([max(0.0, 1 - strength) for strength in strengths] + [-hue])
    high = torch.tensor([1 + strength for strength in strengths] + [hue])
    factors = low + (high - low) * u[..., _FACTORS]
    narrow, wide = augment.blur_sigma
    return Look(
        flip=u[..., _FLIP] < augment.flip_p,
        factors=torch.where(u[..., _JITTER, None] < augment.jitter_p, factors, torch.tensor([1.0, 1.0, 1.0, 0.0])),
        order=u[..., _ORDER].argsort(dim=-1, stable=True),
        grey=u[..., _GREY] < augment.grey_p,
        sigma=(u[..., _BLUR] < augment.blur_p) * (narrow + (wide - narrow) * u[..., _SIGMA]),
        solarise=u[..., _SOLARISE] < augment.solarise_p,
    )


def change(x: Float[Tensor, "*n 3 h w"], look: Look, augment: Augment) -> Float[Tensor, "*n 3 h w"]:
    """Values from 0 to 1, changed as `look` says, from 0 to 1 again. What `augment` never asks for costs nothing."""
    # Neither shapes nor branches depend on what was drawn, so a GPU need not wait and a compiler sees one graph.
    if augment.jitter_p and any(augment.jitter):
        x = jitter(x, look.factors, look.order)
    if augment.grey_p:
        x = grey(x, look.grey)
    if augment.blur_p:
        x = blur(x, look.sigma, radius=math.ceil(3 * augment.blur_sigma[1]))
    if augment.solarise_p:
        x = solarise(x, look.solarise)
    # Last by custom: a flip commutes with all of the above.
    return flip(x, look.flip) if augment.flip_p else x


def normalise(x: Float[Tensor, "*n 3 h w"]) -> Float[Tensor, "*n 3 h w"]:
    """To mean 0 and deviation 1 over ImageNet."""
    # Numbers, not a tensor of them, which would be sent to the device at each call.
    channels = zip(x.unbind(-3), MEAN, STD, strict=True)
    return torch.stack([(channel - mean) / std for channel, mean, std in channels], -3)


def jitter(
    x: Float[Tensor, "*n 3 h w"], factors: Float[Tensor, "*n 4"], order: Int[Tensor, "*n 4"]
) -> Float[Tensor, "*n 3 h w"]:
    """Brightness, contrast, saturation and hue, each sample in its own order."""
    # Turning hues is dear and blending is cheap. So all hues are turned once, at the same time, and a sample blends
    # before or after that; where it is not its turn, a factor of 1 leaves it as it is.
    factor = factors.gather(-1, order)
    turned = (order == HUE).cumsum(-1)
    before = torch.where(turned == 0, factor, 1)
    after = torch.where((turned == 1) & (order != HUE), factor, 1)
    for place in (0, 1, 2):
        x = blend(x, order[..., place], before[..., place])
    x = turn(x, factors[..., HUE])
    for place in (1, 2, 3):
        x = blend(x, order[..., place], after[..., place])
    return x


def blend(
    x: Float[Tensor, "*n 3 h w"], kind: Int[Tensor, "*n"], factor: Float[Tensor, "*n"]
) -> Float[Tensor, "*n 3 h w"]:
    """BRIGHTNESS, CONTRAST or SATURATION of each sample: away from or towards black, its mean grey, its grey image."""
    luma = _luma(x)
    mean = luma.mean((-2, -1), keepdim=True)
    rest = _spread(1 - factor)
    other = torch.addcmul(mean * rest * _spread(kind == CONTRAST), luma, rest * _spread(kind == SATURATION))
    return torch.addcmul(other, x, _spread(factor)).clamp_(0, 1)


def turn(x: Float[Tensor, "*n 3 h w"], shift: Float[Tensor, "*n"]) -> Float[Tensor, "*n 3 h w"]:
    """Hues moved along the colour circle, of which `shift` is a part; the largest and smallest channel values stay."""
    red, green, blue = x.unbind(-3)
    top = red.maximum(green).maximum(blue)
    chroma = top - red.minimum(green).minimum(blue)
    # The colour circle has length 6; red, green and blue lie at 0, 2 and 4. A grey has no hue, and gets any.
    hue = torch.where(top == green, (blue - red).add_(chroma, alpha=2), (red - green).add_(chroma, alpha=4))
    hue = torch.where(top == red, green - blue, hue).div_(chroma.clamp(min=torch.finfo(x.dtype).tiny))
    hue = hue.add_(6 * (shift - shift.round())[..., None, None])
    # A channel is at its top up to a distance of 1 from its own colour, and at its bottom from a distance of 2 on.
    # Hues are from -4 to 8 by now, so three folds make of a difference the distance on the circle.
    own = torch.arange(0, 6, 2, device=x.device)[:, None, None]
    distance = (hue[..., None, :, :] - own).abs_().sub_(3).abs_().sub_(3).abs_()
    fall = distance.sub_(1).clamp_(0, 1).mul_(chroma[..., None, :, :])
    return fall.neg_().add_(top[..., None, :, :]).lerp_(x, _weight(shift == 0))


def grey(x: Float[Tensor, "*n 3 h w"], which: Bool[Tensor, "*n"]) -> Float[Tensor, "*n 3 h w"]:
    """Without colour, where `which` is true."""
    return x.lerp(_luma(x), _weight(which))


def blur(x: Float[Tensor, "*n 3 h w"], sigma: Float[Tensor, "*n"], radius: int) -> Float[Tensor, "*n 3 h w"]:
    """A Gaussian of each sample's own width, cut off beyond `radius` pixels; an image goes on as its own reflection."""
    height, width = x.shape[-2:]
    with torch.autocast(x.device.type, enabled=False):
        down, along = (_gaussian(sigma, size, min(radius, size - 1))[..., None, :, :] for size in (height, width))
        blurred = down @ x @ along.mT
    # Weights add up to 1 only nearly. Where a GPU multiplies matrices in TF32, even a product with the identity rounds.
    return blurred.clamp_(max=1).lerp_(x, _weight(sigma == 0))


def solarise(x: Float[Tensor, "*n 3 h w"], which: Bool[Tensor, "*n"]) -> Float[Tensor, "*n 3 h w"]:
    """Values from one half on inverted, where `which` is true."""
    return torch.minimum(x, torch.where(_spread(which), 1.0, 2.0) - x)  # 2 - x is never below x


def flip(x: Float[Tensor, "*n 3 h w"], which: Bool[Tensor, "*n"]) -> Float[Tensor, "*n 3 h w"]:
    """Left for right, where `which` is true."""
    return x.flip(-1).lerp_(x, _weight(~which))


def _gaussian(sigma: Float[Tensor, "*n"], size: int, radius: int) -> Float[Tensor, "*n {size} {size}"]:
    """Matrices that blur a column of pixels: row i has the weights that make pixel i."""
    offset = torch.arange(-radius, radius + 1, device=sigma.device)
    # The bound keeps 0 from dividing 0; so narrow a Gaussian is one pixel wide.
    weights = torch.exp(-0.5 * (offset / sigma[..., None].clamp(min=1e-3)).square())
    weights = weights / weights.sum(-1, keepdim=True)
    # Unit vectors, reflected beyond both ends: entry (i, j, k) is 1 where the kth neighbour of pixel i is pixel j.
    pixels = F.pad(torch.eye(size, device=sigma.device)[None], (0, 0, radius, radius), mode="reflect")[0]
    neighbours = pixels.unfold(0, 2 * radius + 1, 1)
    return (weights @ neighbours.flatten(0, 1).T).reshape(*sigma.shape, size, size)


def _luma(x: Float[Tensor, "*n 3 h w"]) -> Float[Tensor, "*n 1 h w"]:
    red, green, blue = x.unbind(-3)
    return (0.2989 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)[..., None, :, :]


def _weight(which: Bool[Tensor, "*n"]) -> Float[Tensor, "*n 1 1 1"]:
    """1 where true, else 0, for `lerp`, which then takes either side exactly; on a CPU `where` is five times slower."""
    return _spread(which).float()


def _spread(value: Tensor) -> Tensor:
    """One value a sample, over its channels, rows and columns."""
    return value[..., None, None, None]
