import itertools
import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as V
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from fastmoco import augment, methods
from fastmoco.augment import BRIGHTNESS, CONTRAST, HUE, SATURATION, Look, change, draw, normalise
from fastmoco.randomness import key
from fastmoco.recipe import Augment

KEYS = key(0, torch.arange(20_000))
ALL = Augment(jitter=(0.8, 0.8, 0.8, 0.5), blur_p=0.5, solarise_p=0.5)
NOTHING = Augment(jitter_p=0.0, grey_p=0.0, blur_p=0.0, solarise_p=0.0, flip_p=0.0)
ADJUST = (V.adjust_brightness, V.adjust_contrast, V.adjust_saturation, V.adjust_hue)
ORDERS = list(itertools.permutations(range(4)))


def images(count, height=12, width=10):
    """Random images, a third of them of few colours: pure ones, mixtures of two, black, white and greys."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 3, height, width, generator=generator)
    x[::3] = x[::3].round()
    x[1::9] = x[1::9, :1]
    x[2::9] = x[2::9, :1] + 1e-6 * x[2::9]
    x[4::9, 1] = x[4::9, 0]
    x[0], x[3] = 0, 1
    return x.clamp(0, 1)


def numbers(count, low, high):
    """From low to high, both included."""
    return torch.linspace(low, high, count)[torch.randperm(count, generator=torch.Generator().manual_seed(1))]


def each(function, x, *parameters):
    """The same, written as a loop over images with numbers as parameters."""
    return torch.stack([function(*one) for one in zip(x, *(p.tolist() for p in parameters), strict=True)])


def colours_of(function, x, *parameters):
    """A function of red, green and blue, of stacks."""
    return torch.stack(function(x.unbind(-3), *parameters), -3)


def distance(a, b):
    return (a - b).abs().max().item()


def in_range(x):
    return bool(((x >= 0) & (x <= 1)).all())


@pytest.mark.parametrize("kind", [BRIGHTNESS, CONTRAST, SATURATION])
def test_blending_equals_torchvision_to_1e_6(kind):
    x, factor = images(180), numbers(180, 0, 3)
    changed = colours_of(augment.blend, x, torch.full((180,), kind), factor)
    assert distance(changed, each(ADJUST[kind], x, factor)) <= 1e-6
    assert in_range(changed)


def test_samples_of_a_stack_blend_in_different_ways():
    x, factor, kind = images(180), numbers(180, 0, 2), torch.arange(180) % 3
    expected = each(lambda one, kind, factor: ADJUST[kind](one, factor), x, kind, factor)
    assert distance(colours_of(augment.blend, x, kind, factor), expected) <= 1e-6


def test_turned_hues_equal_torchvision_to_5e_6():
    x, shift = images(360), numbers(360, -0.5, 0.5)
    changed = colours_of(augment.turn, x, shift)
    assert distance(changed, each(V.adjust_hue, x, shift)) <= 5e-6
    assert in_range(changed)


def test_turned_by_thirds_pure_colours_change_places():
    colours = torch.eye(3)[..., None, None]
    third = torch.full((3,), 1 / 3)
    assert distance(colours_of(augment.turn, colours, third), colours.roll(1, 1)) <= 1e-6
    assert distance(colours_of(augment.turn, colours, -third), colours.roll(-1, 1)) <= 1e-6
    # A strength above one half goes round the circle more than once.
    assert distance(colours_of(augment.turn, colours, third + 2), colours.roll(1, 1)) <= 1e-5


def test_greys_have_no_hue():
    x = torch.linspace(0, 1, 64).reshape(1, 1, 8, 8).expand(5, 3, 8, 8)
    assert torch.equal(colours_of(augment.turn, x, numbers(5, -0.5, 0.5)), x)


@pytest.mark.parametrize("order", ORDERS)
def test_jitter_equals_the_four_in_sequence_in_every_order(order):
    x = images(36)
    factors = torch.stack([numbers(36, 0, 2), numbers(36, 2, 0), numbers(36, 0.2, 1.8), numbers(36, -0.5, 0.5)], -1)
    factors = torch.stack([column.roll(7 * i) for i, column in enumerate(factors.unbind(-1))], -1)

    def literal(one, factors):
        for kind in order:
            one = ADJUST[kind](one, factors[kind])
        return one

    given = factors, torch.tensor(order).expand(36, 4)
    expected = each(literal, x, factors)
    assert distance(colours_of(augment.jitter, x, *given), expected) <= 1e-5
    # As a GPU does it: the mean grey is found first.
    mean = augment.mean_at_contrast(x.unbind(-3), *given)
    assert distance(colours_of(augment._jitter, x, *given, mean), expected) <= 1e-5


def test_grey_equals_torchvision_to_1e_6():
    x, which = images(90), torch.arange(90) % 2 == 0
    expected = each(lambda one, yes: V.rgb_to_grayscale(one, 3) if yes else one, x, which)
    assert distance(colours_of(augment.grey, x, which), expected) <= 1e-6


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (8, 8), (8, 20), (33, 12), (32, 32)], ids=str)
@pytest.mark.parametrize("widest", [0.1, 2.0, 5.0])
def test_blur_equals_torchvision_to_5e_6_on_images_of_any_size(size, widest):
    x, sigma, radius = images(20, *size), numbers(20, 0.1, widest), math.ceil(3 * widest)
    taps = [2 * min(radius, length - 1) + 1 for length in reversed(size)]
    blurred = augment.blur(x, sigma, radius)
    assert distance(blurred, each(lambda one, sigma: V.gaussian_blur(one, taps, [sigma, sigma]), x, sigma)) <= 5e-6
    assert in_range(blurred)


def test_blur_equals_the_gaussian_sum_written_out():
    x, sigma, radius = images(6, 5, 6)[5], 0.8, 3
    weights = {d: math.exp(-(d**2) / (2 * sigma**2)) for d in range(-radius, radius + 1)}
    total = sum(weights.values())

    def reflect(place, size):
        place = abs(place)
        return min(place, 2 * (size - 1) - place)

    expected = sum(
        weights[i] * weights[j] / total**2 * x[0, reflect(4 + i, 5), reflect(1 + j, 6)].item()
        for i in weights
        for j in weights
    )
    assert augment.blur(x, torch.tensor(sigma), radius)[0, 4, 1].item() == pytest.approx(expected, abs=1e-6)


def test_blur_is_in_float32_also_under_autocast():
    x, sigma = images(9), numbers(9, 0.1, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = augment.blur(x, sigma, 6)
    assert torch.equal(under, augment.blur(x, sigma, 6))


def test_solarise_is_pils_of_every_byte():
    bytes_ = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    expected = V.pil_to_tensor(ImageOps.solarize(Image.fromarray(bytes_), 128))
    x = V.pil_to_tensor(Image.fromarray(bytes_)).float() / 255
    both = augment.solarise(torch.stack([x, x]), torch.tensor([True, False]))
    assert torch.equal((both[0] * 255).round().byte(), expected)
    assert torch.equal(both[1], x)
    assert distance(both[0], V.solarize(x, 0.5)) <= 1e-7


def test_flip_is_left_for_right():
    x, which = images(4), torch.tensor([True, False, True, False])
    assert torch.equal(augment.flip(x, which), each(lambda one, yes: one.flip(-1) if yes else one, x, which))


def test_normalise_equals_torchvision_to_1e_6():
    x = images(9)
    expected = V.normalize(x, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    assert distance(normalise(x), expected) <= 1e-6
    assert torch.equal(normalise(x.reshape(3, 3, 3, 12, 10)).flatten(0, 1), normalise(x))


def literal_change(one, look, place, taps):
    """A sample by itself, operation by operation, as the recipes of the methods list them."""
    for kind in look.order[place].tolist():
        one = ADJUST[kind](one, look.factors[place, kind].item())
    if look.grey[place]:
        one = V.rgb_to_grayscale(one, 3)
    if look.sigma[place] > 0:
        one = V.gaussian_blur(one, taps, [look.sigma[place].item()] * 2)
    if look.solarise[place]:
        one = V.solarize(one, 0.5)
    return V.horizontal_flip(one) if look.flip[place] else one


@pytest.mark.parametrize("recipe", [ALL, Augment(), *methods.mocov3_augment], ids=["all", "simsiam", "first", "second"])
def test_change_equals_each_image_by_itself_in_torchvision_to_1e_5(recipe):
    x = images(300, 16, 16)
    look = draw(recipe, key(1, torch.arange(300)))
    changed = change(x, look, recipe)
    expected = torch.stack([literal_change(one, look, place, [13, 13]) for place, one in enumerate(x)])
    assert distance(changed, expected) <= 1e-5
    assert in_range(changed)


def test_change_is_what_pil_does_to_bytes():
    """PIL cuts down to bytes after each operation, and hues to a 255th of the circle, which is 6 steps of a channel."""
    ramp = np.linspace(20, 230, 16)
    pixels = np.stack([np.add.outer(ramp, ramp) / 2, np.tile(ramp, (16, 1)), np.tile(ramp[::-1, None], (1, 16))], -1)
    picture = Image.fromarray(pixels.round().astype(np.uint8))
    x = V.pil_to_tensor(picture)[None].float() / 255
    look = Look(
        flip=torch.tensor([True]),
        factors=torch.tensor([[1.2, 0.7, 1.3, 0.1]]),
        order=torch.tensor([[CONTRAST, BRIGHTNESS, SATURATION, HUE]]),
        grey=torch.tensor([False]),
        sigma=torch.tensor([0.0]),
        solarise=torch.tensor([True]),
    )
    for factor, enhance in ((0.7, ImageEnhance.Contrast), (1.2, ImageEnhance.Brightness), (1.3, ImageEnhance.Color)):
        picture = enhance(picture).enhance(factor)
    unturned = change(x, replace(look, factors=look.factors * torch.tensor([1, 1, 1, 0])), ALL)
    steps = 255 * (unturned - V.pil_to_tensor(ImageOps.mirror(ImageOps.solarize(picture, 128))) / 255).abs()
    assert steps.max() <= 4
    picture = ImageOps.mirror(ImageOps.solarize(V.adjust_hue(picture, 0.1), 128))
    steps = 255 * (change(x, look, ALL) - V.pil_to_tensor(picture) / 255).abs()
    assert steps.max() <= 8
    assert steps.mean() <= 2


def test_a_sample_that_is_not_chosen_stays_as_it_is_to_the_last_bit():
    x = images(36)
    nothing = draw(NOTHING, KEYS[:36])
    assert torch.equal(change(x, nothing, ALL), x)
    assert torch.equal(change(x, draw(ALL, KEYS[:36]), NOTHING), x)


def test_what_a_recipe_never_asks_for_can_be_skipped():
    x, everything = images(36), replace(Augment(), solarise_p=0.5)
    for rare in (Augment(), replace(Augment(), jitter_p=0.0), replace(Augment(), grey_p=0.0, flip_p=0.0)):
        look = draw(rare, KEYS[:36])
        assert torch.equal(change(x, look, rare), change(x, look, everything))


def test_change_leaves_its_input_alone():
    x = images(36)
    before = x.clone()
    for recipe in (ALL, *(replace(NOTHING, **{name: 1.0}) for name in ("grey_p", "blur_p", "solarise_p", "flip_p"))):
        change(x, draw(recipe, KEYS[:36]), recipe)
    assert torch.equal(x, before)


def test_a_stack_of_stacks_is_changed_as_its_samples_are():
    x, keys = images(24), KEYS[:24]
    stacked = change(x.reshape(2, 12, *x.shape[1:]), draw(ALL, keys.reshape(2, 12)), ALL)
    assert stacked.shape == (2, 12, 3, 12, 10)
    assert distance(stacked.flatten(0, 1), change(x, draw(ALL, keys), ALL)) <= 1e-6
    alone = torch.stack([change(one, draw(ALL, k), ALL) for one, k in zip(x, keys, strict=True)])
    assert distance(alone, change(x, draw(ALL, keys), ALL)) <= 1e-5


def test_a_flip_commutes_with_all_else():
    x, look = images(60), draw(ALL, KEYS[:60])
    early = change(augment.flip(x, look.flip), replace(look, flip=torch.zeros_like(look.flip)), ALL)
    assert distance(early, change(x, look, ALL)) <= 1e-5


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("recipe", [ALL, Augment(), NOTHING], ids=["all", "simsiam", "nothing"])
def test_change_is_one_graph(recipe):
    x, look = images(12).reshape(2, 6, 3, 12, 10), draw(recipe, KEYS[:12].reshape(2, 6))
    graph = torch.compile(change, fullgraph=True, backend="eager")
    assert distance(graph(x, look, recipe), change(x, look, recipe)) <= 1e-6  # torch 2.11 rounds some sums otherwise


def columns(look: Look) -> dict[str, Tensor]:
    """Every drawn number, by name."""
    single = {field.name: getattr(look, field.name).double() for field in fields(look)}
    factors, order = single.pop("factors"), single.pop("order")
    single |= {f"factor {kind}": factors[..., kind] for kind in range(4)}
    single |= {f"place {kind}": (order == kind).double().argmax(-1).double() for kind in range(4)}
    return single


def is_share(which, p):
    """Within 4 deviations of a binomial."""
    return abs(which.double().mean().item() - p) <= 4 * math.sqrt(p * (1 - p) / len(which))


def is_even(values, low, high):
    """All of the range and nothing beyond; chi-squared with 19 degrees of freedom, p = 0.0001."""
    values, expected = values.double(), len(values) / 20
    # Bounds such as 1.4 are the nearest float32.
    assert low - 1e-6 <= values.min() <= low + 0.01 * (high - low)
    assert high - 0.01 * (high - low) <= values.max() <= high + 1e-6
    return ((torch.histc(values, 20, low, high) - expected) ** 2 / expected).sum() < 51


@pytest.mark.parametrize("recipe", [Augment(), ALL, *methods.mocov3_augment], ids=["simsiam", "all", "first", "second"])
def test_probabilities_are_those_of_the_recipe(recipe):
    look = draw(recipe, KEYS)
    assert is_share(look.flip, recipe.flip_p)
    assert is_share(look.grey, recipe.grey_p)
    assert is_share(look.sigma > 0, recipe.blur_p)
    assert is_share(look.solarise, recipe.solarise_p)
    assert is_share((look.factors != torch.tensor([1.0, 1.0, 1.0, 0.0])).any(-1), recipe.jitter_p)


def test_strengths_are_uniform_on_the_ranges_of_the_recipe():
    recipe = Augment(jitter=(0.4, 1.5, 0.2, 0.1), jitter_p=0.8, blur_p=0.5, blur_sigma=(0.1, 2.0))
    look = draw(recipe, KEYS)
    jittered = look.factors[(look.factors != torch.tensor([1.0, 1.0, 1.0, 0.0])).any(-1)]
    # No factor is negative: contrast of strength 1.5 is from 0 to 2.5.
    for kind, (low, high) in enumerate([(0.6, 1.4), (0, 2.5), (0.8, 1.2), (-0.1, 0.1)]):
        assert is_even(jittered[:, kind], low, high)
    assert is_even(look.sigma[look.sigma > 0], 0.1, 2.0)


def test_all_orders_are_equally_likely():
    order = draw(Augment(), KEYS).order
    assert torch.equal(order.sort(-1).values, torch.arange(4).expand(len(KEYS), 4))
    counts = torch.tensor([(order == torch.tensor(one)).all(-1).sum() for one in ORDERS])
    expected = len(KEYS) / 24
    assert ((counts - expected) ** 2 / expected).sum() < 57  # 23 degrees of freedom, p = 0.0001


def test_one_operation_says_nothing_of_another():
    drawn = columns(draw(ALL, KEYS))
    related = torch.corrcoef(torch.stack(list(drawn.values()))) - torch.eye(len(drawn))
    places = [name.startswith("place") for name in drawn]
    related[torch.tensor(places)[:, None] & torch.tensor(places)] = 0  # four places exclude each other
    assert related.abs().max() < 4.5 / math.sqrt(len(KEYS))


def test_a_look_is_a_pure_function_of_its_key():
    together = columns(draw(ALL, KEYS[:50]))
    again = columns(draw(ALL, KEYS[:50].reshape(5, 10)))
    alone = [columns(draw(ALL, k)) for k in KEYS[:50]]
    for name, values in together.items():
        assert torch.equal(values, torch.stack([one[name] for one in alone]))
        assert torch.equal(values, again[name].flatten())


def test_views_of_an_image_look_different():
    first, second = (columns(draw(ALL, key(0, torch.arange(20_000), view))) for view in (0, 1))
    for name in first:
        pair = torch.stack([first[name], second[name]])
        assert torch.corrcoef(pair)[0, 1].abs() < 4.5 / math.sqrt(len(KEYS)), name


def test_another_recipe_moves_no_other_operation():
    """Every operation has random numbers of its own, so rows that differ in one of them share the others."""
    plain, other = columns(draw(Augment(), KEYS)), columns(draw(replace(Augment(), blur_p=1.0, solarise_p=0.2), KEYS))
    assert {name for name in plain if not torch.equal(plain[name], other[name])} == {"sigma", "solarise"}


def test_the_two_views_of_mocov3_look_as_byol_says():
    first, second = (draw(one, KEYS) for one in methods.mocov3_augment)
    assert (first.sigma > 0).all()
    assert not first.solarise.any()
    assert is_share(second.sigma > 0, 0.1)
    assert is_share(second.solarise, 0.2)


def test_a_look_moves_as_a_whole(monkeypatch):
    look = draw(ALL, KEYS[:3])
    moved = look.to(torch.device("meta"))
    assert all(getattr(moved, field.name).is_meta for field in fields(look))
    pinned = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda x: pinned.append(x) or x)  # which needs an accelerator
    assert columns(look.pin_memory()).keys() == columns(look).keys()
    assert len(pinned) == len(fields(look))
