import math

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from fastmoco.crop import boxes, cut, pixels, resample
from fastmoco.methods import encode
from fastmoco.randomness import key
from fastmoco.recipe import View


def draw(count, width, height, scale=(0.2, 1.0), seed=0):
    sizes = torch.tensor([width, height]).expand(count, 2)
    return boxes(key(seed, torch.arange(count)), sizes, torch.tensor(scale).expand(count, 2))


def picture(width, height, seed=0):
    """Noise at two scales, so that resizing has something to do."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (7, 5, 3), dtype=np.uint8)).resize((width, height), 3)
    fine = generator.integers(0, 256, (height, width, 3))
    return Image.fromarray(((np.asarray(coarse) * 3 + fine) // 4).astype(np.uint8))


@pytest.mark.parametrize(("width", "height"), [(128, 128), (500, 375), (33, 90), (1, 1), (2, 300), (300, 2)])
def test_boxes_lie_inside_the_image(width, height):
    left, upper, right, lower = draw(2000, width, height).unbind(1)
    assert (left >= 0).all()
    assert (left < right).all()
    assert (right <= width).all()
    assert (upper >= 0).all()
    assert (upper < lower).all()
    assert (lower <= height).all()


@pytest.mark.parametrize(("width", "height"), [(128, 128), (500, 375), (400, 100)])
def test_boxes_have_the_distribution_of_random_resized_crop(width, height):
    torch.manual_seed(0)
    image, count = torch.empty(3, height, width), 4000
    theirs = [RandomResizedCrop.get_params(image, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(count)]
    upper, left, h, w = torch.tensor(theirs).double().unbind(1)
    ours = draw(count, width, height).double()
    wide, tall = ours[:, 2] - ours[:, 0], ours[:, 3] - ours[:, 1]
    pairs = [(wide, w), (tall, h), (ours[:, 0], left), (ours[:, 1], upper), (wide * tall, w * h), (wide / tall, w / h)]
    for mine, other in pairs:
        assert distance(mine, other) < 1.95 * math.sqrt(2 / count)  # Kolmogorov-Smirnov at p = 0.001


def distance(a, b):
    """The largest difference of the two samples' distribution functions."""
    at = torch.cat([a, b])
    mine, other = (torch.searchsorted(each.sort().values, at, right=True) / len(each) for each in (a, b))
    return (mine - other).abs().max()


def test_a_box_that_never_fits_is_the_middle_of_the_image():
    assert draw(5, 400, 4, (0.9, 1.0)).tolist() == [[197, 0, 202, 4]] * 5


def test_boxes_do_not_depend_on_who_else_is_drawn():
    many = draw(50, 90, 70)
    for place in (0, 17, 49):
        alone = boxes(key(0, torch.tensor([place])), torch.tensor([[90, 70]]), torch.tensor([[0.2, 1.0]]))
        assert alone[0].tolist() == many[place].tolist()


def test_a_cut_is_torchvisions_resized_crop():
    from torchvision.transforms.functional import InterpolationMode, resized_crop

    image = picture(60, 45)
    for resize, mode in (("bicubic", InterpolationMode.BICUBIC), ("bilinear", InterpolationMode.BILINEAR)):
        view = View(24, online=encode, resize=resize)
        theirs = resized_crop(image, 5, 11, 30, 40, [24, 24], mode)
        assert np.array_equal(cut(image, [11, 5, 51, 35], view), theirs)


@pytest.mark.parametrize("resize", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [16, 32, 96])
def test_the_device_resamples_as_pil_does_but_for_rounding(resize, size):
    # PIL rounds to 8 bits after each of its two passes: a difference of 0.3 of 255 in the mean, 1.1 at most. Where
    # cubic weights overshoot black or white, what is cut off depends on which pass comes first; see the next test.
    view = View(size, online=encode, resize=resize)
    images = [picture(64, 48, seed) for seed in range(40)]
    where = draw(40, 64, 48)
    mine = 255 * resample(torch.stack([pixels(image) for image in images]), where, view)
    crops = [cut(image, box, view) for image, box in zip(images, where.tolist(), strict=True)]
    theirs = torch.tensor(np.stack(crops)).permute(0, 3, 1, 2).float()
    difference = (mine - theirs).abs()
    assert difference.mean() <= 0.35
    assert (difference > 1.5).float().mean() <= (1e-4 if resize == "bicubic" else 0)
    assert difference.max() <= 8


@pytest.mark.parametrize("size", [64, 112])
def test_only_crops_with_many_rows_to_lose_differ_from_pils_and_only_by_the_order_of_passes(size):
    # Pillow 11 and 12 always go across first, as we do; 13 goes down first in these crops.
    view = View(size, online=encode)
    generator = np.random.default_rng(0)
    image = Image.fromarray(255 * generator.integers(0, 2, (160, 160, 3), dtype=np.uint8))  # hard edges: the worst case
    where = draw(100, 160, 160)
    wide, tall = (where[:, 2:] - where[:, :2]).unbind(1)
    down = tall - size > 2 * (wide - size).clamp(min=0)
    assert 0 < down.sum() < 40
    theirs = torch.tensor(np.stack([cut(image, box, view) for box in where.tolist()])).permute(0, 3, 1, 2)
    stack = pixels(image).expand(100, -1, -1, -1)
    ours = resample(stack, where, view)
    turned = resample(stack.mT, where[:, [1, 0, 3, 2]], view).mT
    far, otherwise = ((255 * x - theirs).abs().flatten(1).amax(1) for x in (ours, turned))
    assert (far[~down] <= 1.5).all()
    assert (torch.minimum(far, otherwise) <= 1.5).all()
    assert far.max() <= 40


def test_padding_beyond_an_image_is_never_touched():
    view = View(20, online=encode)
    image = pixels(picture(40, 30))[None]
    padded = torch.full((1, 3, 50, 60), 255, dtype=torch.uint8)
    padded[:, :, :30, :40] = image
    box = torch.tensor([[0, 0, 40, 30]])
    torch.testing.assert_close(resample(padded, box, view), resample(image, box, view))
