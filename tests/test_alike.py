"""Recipes that compute the same are equal in the fewest words, and only those."""

import random
import zlib
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from small import branch, crops, shrink, stack
from torch import nn

from fastmoco.alike import plain
from fastmoco.learner import Learner
from fastmoco.merge import Max, Mean, Tiles, Weighted
from fastmoco.methods import both, encode, fast_moco, mocov3, patches, whole
from fastmoco.recipe import Augment, View
from fastmoco.recipes import find, rows
from fastmoco.steps import Combine, Divide, Encode, Predict, Project, Stitch, follow
from fastmoco.trials.tables import carried

# Optimiser and epochs are the base's, so that only what is computed can differ.
ROWS = carried(rows(), find("table4b/fast_moco").recipe)[0]


@torch.no_grad()
def loss(recipe):
    """Of one batch, with weights that depend on their names alone: fresh ones leave out half of a ResNet."""
    recipe = shrink(recipe)
    torch.manual_seed(0)
    learner = Learner(recipe).double()
    for name, weights in learner.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        weights += 0.1 * torch.randn(weights.shape, generator=generator, dtype=weights.dtype)
    return learner([crop.double() for crop in crops(recipe)]).item()


@pytest.mark.slow
def test_rows_are_alike_if_and_only_if_their_losses_are():
    groups: dict = {}
    for row, recipe in ROWS.items():
        # How crops are made of an image, noise does not show.
        if all((view.augment, view.resize) == (Augment(), "bicubic") for view in recipe.views):
            groups.setdefault(plain(recipe), {})[row] = loss(recipe)
    spans = sorted((min(group.values()), max(group.values()), *group) for group in groups.values())
    for low, high, *names in spans:
        assert high - low < 1e-11, names
    for (_, below, *names), (above, _, *others) in pairwise(spans):
        assert above - below > 1e-9, (names, others)


@pytest.mark.parametrize(
    ("row", "other"),
    [
        ("text/samples_6", "table4b/fast_moco"),
        ("figure3b/m2_n2", "table4b/fast_moco"),
        ("figure3b/m1_n1", "table4b/mocov3"),
        ("figure3a/input_4", "table4b/mocov3"),
        ("figure3b/m2_n4", "figure3a/final_4"),
        ("figure4a/gamma_050", "text/samples_4"),
    ],
)
def test_rows_that_are_a_method_by_another_name(row, other):
    assert plain(ROWS[row]) == plain(ROWS[other])


def test_most_rows_are_like_no_other():
    assert len({plain(recipe) for recipe in ROWS.values()}) > len(ROWS) / 2
    for row in ("table4b/fast_moco", "table4b/mocov3", "table4a/divide_combine_encode", "text/max", "figure3a/final_2"):
        assert plain(plain(ROWS[row])) == plain(ROWS[row])
    for row in ("table4b/fast_moco", "table4b/mocov3", "table4a/divide_combine_encode", "text/max"):
        assert plain(ROWS[row]) == ROWS[row]


def path(*steps):
    """How a path is written in the fewest words."""
    return plain(replace(fast_moco, views=both((*steps, Predict())))).views[0].online[:-1]


@pytest.mark.parametrize(
    ("steps", "fewest"),
    [
        ((Divide(1), Encode(), Project()), (Encode(), Project())),
        ((Divide(2), Stitch(2, 2), Encode(), Project()), (Encode(), Project())),
        ((Divide(4), Stitch(2, 2), Encode(), Project()), None),
        ((Divide(2), Stitch(1, 2), Encode(), Project()), None),
        ((Divide(2), Encode(stop=2), Stitch(2, 2), Encode(start=2), Project()), None),
        ((Divide(2), Encode(), Combine(1), Project()), (Divide(2), Encode(), Project())),
        ((Divide(2), Encode(), Combine(1, Max(), count=4), Project()), (Divide(2), Encode(), Project())),
        # What follows chooses samples by their place, or by a grid that a Combine forgets.
        ((Divide(2), Encode(), Combine(2, Weighted(0.5)), Project(), Combine(2, count=4)), None),
        ((Divide(2), Divide(1), Encode(), Combine(2, Weighted(0.7)), Project()), None),
        ((Divide(2), Encode(), Combine(1), Project(), Combine(2, count=4)), None),
        ((Divide(2), Encode(), Combine(2, count=6), Project()), (Divide(2), Encode(), Combine(2), Project())),
        (
            (Divide(2), Encode(), Combine(2, Max(), count=6), Project()),
            (Divide(2), Encode(), Combine(2, Max()), Project()),
        ),
        ((Divide(2), Encode(), Combine(2, count=4), Project()), None),
        ((Divide(2), Encode(), Combine(4, Tiles(2, 2)), Project()), (Divide(2), Encode(), Combine(4), Project())),
        ((Divide(2), Encode(), Combine(2, Tiles(1, 2)), Project()), None),
        (
            (Divide(2), Encode(), Combine(2, Tiles(2, 1)), Project()),
            (Divide(2), Encode(), Combine(2, count=2), Project()),
        ),
        (
            (Divide(2), Encode(), Combine(2, Weighted(0.5)), Project()),
            (Divide(2), Encode(), Combine(2, Mean(), count=4), Project()),
        ),
        ((Divide(2), Encode(), Combine(2, Weighted(0.6)), Project()), None),
    ],
    ids=str,
)
def test_paths_in_the_fewest_words(steps, fewest):
    assert path(*steps) == (steps if fewest is None else fewest)


def test_combinations_are_counted_over_all_crops_of_a_view():
    def crops_of(combine):
        steps = (Encode(), combine, Project(), Predict())
        return replace(mocov3, views=(*both((), whole), View(112, count=4, online=steps)))

    assert plain(crops_of(Combine(2, count=6))) == crops_of(Combine(2))
    assert plain(crops_of(Combine(2, count=4))) == crops_of(Combine(2, count=4))


def test_all_but_the_paths_stays():
    other = replace(mocov3, views=both((Divide(1), *encode)), epochs=7, batch=64)
    assert plain(other) == replace(mocov3, epochs=7, batch=64)
    assert plain(replace(fast_moco, epochs=7)) != plain(fast_moco)
    assert plain(replace(mocov3, views=both(patches))) == fast_moco


class Eye(nn.Module):
    """An encoder that sees where things are, and nothing but that."""

    def forward(self, x, start, stop):
        where = torch.linspace(0.1, 2.0, x[0, 0].numel(), dtype=x.dtype).view(x.shape[2:])
        return torch.cat([(x * torch.sin(k * where + k)).mean((2, 3)) for k in range(1, 6)], dim=1).tanh()


def made(steps, crops):
    """What a path makes of some crops, in an order that does not depend on it."""
    eye = branch(Eye())
    eye.projector = nn.Tanh()
    samples = stack(crops)
    x = follow(steps, samples, eye).x.flatten(1)
    return torch.stack(sorted(x, key=lambda sample: sample.tolist()))


def random_path(choose):
    """Some steps in an order that may work."""
    merges = [Mean(), Max(), Tiles(1, 2), Tiles(2, 1), Tiles(2, 2), Weighted(0.5), Weighted(0.7)]

    def combine():
        return Combine(choose([1, 2, 2, 3, 4]), choose(merges), choose([None, None, 1, 2, 4, 6]))

    grids = [Divide(1), Divide(2), Divide(3), Stitch(1, 2), Stitch(2, 2), Stitch(3, 3)]
    return (
        *(choose(grids) for _ in range(choose([0, 1, 2, 3]))),
        Encode(),
        *(combine() for _ in range(choose([0, 1, 2]))),
        Project(),
        *(combine() for _ in range(choose([0, 0, 1]))),
    )


def test_what_is_written_in_fewer_words_computes_the_same():
    chance, shorter = random.Random(0), 0
    for _ in range(1500):
        steps, count = random_path(chance.choice), chance.choice([1, 2, 4])
        try:
            recipe = replace(
                mocov3,
                views=(*both((), whole), View(12, count=count, online=(*steps, Predict()))),
            )
        except ValueError:
            continue  # it cannot work
        fewest = plain(recipe).views[-1].online[:-1]
        assert plain(plain(recipe)) == plain(recipe)
        shorter += fewest != steps
        crops = torch.randn(count, 1, 3, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        torch.testing.assert_close(
            made(fewest, crops), made(steps, crops), msg=lambda said, steps=steps: f"{steps}: {said}"
        )
    assert shorter > 50
