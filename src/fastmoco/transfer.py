"""A row of the paper on other images: its method, in the setting of a recipe that suits them."""

from dataclasses import replace

from fastmoco.optim import SGD
from fastmoco.recipe import Recipe, View
from fastmoco.steps import Divide

# Batches that a support set holds. The paper's 65,536 vectors would be a small set many times over, so that the nearest
# is the image itself; LightlySSL takes 4,096 for Imagenette, which is 16 batches of 256.
SUPPORT = 16


def carry(recipe: Recipe, base: Recipe) -> Recipe:
    """The method of one recipe in the setting of another.

    The method is the table of views, with sizes in proportion, who meets whom, and the kinds of target and contrast.
    Networks, optimiser, schedule, epochs, batch, evaluation, alpha and tau are the setting.
    """
    if type(recipe.optim) not in (SGD, type(base.optim)):  # SGD is the paper's usual, and so nothing of a row's own
        own, other = type(recipe.optim).__name__, type(base.optim).__name__
        raise ValueError(f"{own} is part of this row, and the base has {other}; take another base")
    made = replace(
        base,
        views=tuple(_resize(view, place, recipe, base) for place, view in enumerate(recipe.views)),
        target=base.target if type(recipe.target) is type(base.target) else recipe.target,
        contrast=base.contrast if type(recipe.contrast) is type(base.contrast) else recipe.contrast,
        pairs=recipe.pairs,
        support=recipe.support,
    )
    return supported(made)


def supported(recipe: Recipe) -> Recipe:
    """With a support set, if it has one, of so many of its batches."""
    return replace(recipe, support=SUPPORT * recipe.batch) if recipe.support else recipe


def _resize(view: View, place: int, recipe: Recipe, base: Recipe) -> View:
    """A view in proportion to the base's largest; what the row leaves at its default is as the base has it."""
    unit = next((step.m for step in view.online if isinstance(step, Divide)), 1)
    part = view.size / recipe.size()
    largest = [each for each in base.views if each.size == max(other.size for other in base.views)]
    large, usual = largest[place % len(largest)], View(online=view.online, target=view.target)
    return replace(
        view,
        size=max(1, round(part * large.size / unit)) * unit,
        scale=large.scale if view.scale == usual.scale else view.scale,
        augment=large.augment if view.augment == usual.augment else view.augment,
        resize=large.resize if view.resize == usual.resize else view.resize,
    )
