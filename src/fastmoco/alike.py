"""Recipes that are written differently and compute the same: a row of a figure may be a method by another name."""

import functools
from dataclasses import replace

from fastmoco.merge import Max, Mean, Tiles, Weighted
from fastmoco.recipe import Recipe
from fastmoco.samples import IMAGE, Plan
from fastmoco.steps import Combine, Divide, Nearest, Path, Stitch


@functools.cache
def plain(recipe: Recipe) -> Recipe:
    """The recipe without steps that change nothing, and with merged patches given by their count where possible.

    Recipes that are then equal compute the same, but for the order of their samples. Others may do so, too.
    """
    views = []
    for view, seen in zip(recipe.views, recipe.seen(), strict=True):
        start = Plan(seen, IMAGE, view.size, view.size)
        views.append(replace(view, online=_plain(view.online, start), target=_plain(view.target, start)))
    return replace(recipe, views=tuple(views))


def _plain(path: Path, start: Plan) -> Path:
    while (shorter := _shorten(path, start)) != path:
        path = shorter
    return path


def _shorten(path: Path, start: Plan) -> Path:
    """A path with one step dropped or said in fewer words; as it is if there is none."""
    plans = [start]
    for place, step in enumerate(path):
        plans.append(step.plan(plans[-1]))
        before, rest = path[:place], path[place + 1 :]
        if step == Divide(1) and plans[-1] == plans[-2]:
            return before + rest
        if isinstance(step, Stitch) and before[-1:] == (Divide(step.rows),) and plans[-1] == plans[-3]:
            return before[:-1] + rest
        # Later steps may choose samples by their place.
        if isinstance(step, Combine) and not any(isinstance(later, Combine | Nearest) for later in rest):
            merged = _merge(step, plans[-2])
            return before + (() if merged.n == 1 and merged.count is None else (merged,)) + rest
    return path


def _merge(step: Combine, plan: Plan) -> Combine:
    """The same step as a plain mean or maximum of all combinations, or of a count of them, where there is one."""
    if not isinstance(step.merge, Mean | Max | Tiles) and step.merge != Weighted(0.5):
        return step
    merge = step.merge if isinstance(step.merge, Max) else Mean()
    made = step.merge.groups(len(plan.seen), step.n, plan.grid, step.count)
    for count in (None, len(made)):
        try:
            others = merge.groups(len(plan.seen), step.n, plan.grid, count)
        except ValueError:  # that many cannot be chosen evenly
            continue
        if sorted(map(sorted, made)) == sorted(map(sorted, others)):
            return Combine(step.n, merge, count)
    return step
