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
    """A look for each key, as a pure function of it; always on the CPU. Keys must be used for nothing else."""
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
    jittered, greyed = bool(augment.jitter_p and any(augment.jitter)), bool(augment.grey_p)
    if jittered or greyed:
        colours = x.unbind(-3)
        if jittered:
            colours = jitter(colours, look.factors, look.order)
        if greyed:
            colours = grey(colours, look.grey)
        x = torch.stack(colours, -3)
    if augment.blur_p:
        x = blur(x, look.sigma, radius=math.ceil(3 * augment.blur_sigma[1]))
    if augment.solarise_p:
        x = solarise(x, look.solarise)
    # Last by custom: a flip commutes with all of the above.
    return flip(x, look.flip) if augment.flip_p else x


def normalise(x: Float[Tensor, "*n 3 h w"]) -> Float[Tensor, "*n 3 h w"]:
    """To mean 0 and deviation 1 over ImageNet."""
    return (x - _each_channel(MEAN, x.device)) / _each_channel(STD, x.device)


# Red, green and blue apart: what needs all three of a pixel is then one kernel, whatever comes before and after it.
Colours = tuple[Float[Tensor, "*n h w"], ...]


def jitter(x: Colours, factors: Float[Tensor, "*n 4"], order: Int[Tensor, "*n 4"]) -> Colours:
    """Brightness, contrast, saturation and hue, each sample in its own order."""
    # Contrast asks for the mean grey of an image as it is when its turn comes. A compiler would write and read all
    # pixels wherever that may be. To compute it beforehand costs only arithmetic, of which a GPU has plenty.
    return _jitter(x, factors, order, mean_at_contrast(x, factors, order) if x[0].is_cuda else None)


def mean_at_contrast(x: Colours, factors: Float[Tensor, "*n 4"], order: Int[Tensor, "*n 4"]) -> Float[Tensor, "*n 1 1"]:
    """The mean grey of each image after those changes that come before that of contrast."""
    before = (order == CONTRAST).cumsum(-1) == 0  # by place
    kinds = torch.arange(4, device=order.device)
    before = ((order[..., None] == kinds) & before[..., None]).any(-2)  # by kind
    neutral = torch.where(kinds == HUE, 0.0, 1.0)
    changed = _jitter(x, torch.where(before, factors, neutral), order, mean=torch.zeros_like(factors[..., :1, None]))
    return _luma(changed).mean((-2, -1), keepdim=True)


def _jitter(
    x: Colours, factors: Float[Tensor, "*n 4"], order: Int[Tensor, "*n 4"], mean: Float[Tensor, "*n 1 1"] | None
) -> Colours:
    # Turning hues is dear and blending is cheap. So all hues are turned once, at the same time, and a sample blends
    # before or after that; where it is not its turn, a factor of 1 leaves it as it is.
    factor = factors.gather(-1, order)
    turned = (order == HUE).cumsum(-1)
    before = torch.where(turned == 0, factor, 1)
    after = torch.where((turned == 1) & (order != HUE), factor, 1)
    for place in (0, 1, 2):
        x = blend(x, order[..., place], before[..., place], mean)
    x = turn(x, factors[..., HUE])
    for place in (1, 2, 3):
        x = blend(x, order[..., place], after[..., place], mean)
    return x


def blend(
    x: Colours, kind: Int[Tensor, "*n"], factor: Float[Tensor, "*n"], mean: Float[Tensor, "*n 1 1"] | None = None
) -> Colours:
    """BRIGHTNESS, CONTRAST or SATURATION of each sample: away from or towards black, its mean grey, its grey image."""
    kind, factor = kind[..., None, None], factor[..., None, None]
    luma, rest = _luma(x), 1 - factor
    mean = luma.mean((-2, -1), keepdim=True) if mean is None else mean
    other = torch.addcmul(mean * rest * (kind == CONTRAST), luma, rest * (kind == SATURATION))
    return tuple(torch.addcmul(other, colour, factor).clamp_(0, 1) for colour in x)


def turn(x: Colours, shift: Float[Tensor, "*n"]) -> Colours:
    """Hues moved by `shift` of the colour circle; the largest and smallest channel values stay."""
    red, green, blue = x
    shift = shift[..., None, None]
    top = red.maximum(green).maximum(blue)
    chroma = top - red.minimum(green).minimum(blue)
    # The colour circle has length 6; red, green and blue lie at 0, 2 and 4. A grey has no hue, and gets any.
    hue = torch.where(top == green, (blue - red).add_(chroma, alpha=2), (red - green).add_(chroma, alpha=4))
    hue = torch.where(top == red, green - blue, hue).div_(chroma.clamp(min=torch.finfo(red.dtype).tiny))
    hue = hue.add_(6 * (shift - shift.round()))
    # A channel is at its top up to a distance of 1 from its own colour, and at its bottom from a distance of 2 on.
    # Hues are from -4 to 8 by now, so three folds turn a difference into the distance on the circle.
    distances = [(hue - own).abs_().sub_(3).abs_().sub_(3).abs_() for own in (0, 2, 4)]
    falls = [distance.sub_(1).clamp_(0, 1).mul_(chroma) for distance in distances]
    still = (shift == 0).float()
    return tuple(fall.neg_().add_(top).lerp_(colour, still) for fall, colour in zip(falls, x, strict=True))


def grey(x: Colours, which: Bool[Tensor, "*n"]) -> Colours:
    """Without colour, where `which` is true."""
    luma, weight = _luma(x), which[..., None, None].float()
    return tuple(colour.lerp(luma, weight) for colour in x)


def blur(x: Float[Tensor, "*n 3 h w"], sigma: Float[Tensor, "*n"], radius: int) -> Float[Tensor, "*n 3 h w"]:
    """A Gaussian of each sample's own width, cut off beyond `radius` pixels; images are reflected at their edges."""
    height, width = x.shape[-2:]
    with torch.autocast(x.device.type, enabled=False):
        down, along = (_gaussian(sigma, size, min(radius, size - 1)) for size in (height, width))
        # The channels of a row side by side, so that each product is one for all three.
        rows = x.transpose(-3, -2).flatten(-2)
        blurred = (down @ rows).view(*sigma.shape, 3 * height, width) @ along.mT
    # Weights add up to 1 only nearly. Where a GPU multiplies matrices in TF32, even a product with the identity rounds.
    blurred = blurred.clamp_(max=1).view(*sigma.shape, height, 3, width).transpose(-3, -2)
    return blurred.lerp(x, _weight(sigma == 0))


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


def _luma(x: Colours) -> Float[Tensor, "*n h w"]:
    red, green, blue = x
    return (0.2989 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _each_channel(values: tuple[float, float, float], device: torch.device) -> Float[Tensor, "3 1 1"]:
    """Made where it is needed: a tensor of numbers would be sent to a GPU at each call."""
    channel = torch.arange(3, device=device)[:, None, None]
    red, green, blue = values
    return torch.where(channel == 0, red, torch.where(channel == 1, green, blue))


def _weight(which: Bool[Tensor, "*n"]) -> Float[Tensor, "*n 1 1 1"]:
    """1 where true, else 0, for `lerp`, which then takes either side exactly; on a CPU `where` is five times slower."""
    return _spread(which).float()


def _spread(value: Tensor) -> Tensor:
    """One value a sample, over its channels, rows and columns."""
    return value[..., None, None, None]
