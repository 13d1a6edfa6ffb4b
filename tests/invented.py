"""Findings that no training has made, to see what becomes of them."""

from dataclasses import replace

from fastmoco.recipes import find
from fastmoco.transfer import carry
from fastmoco.trials.findings import Finding


def finding(row, seed=0, top1=50.0, *, base="pocket/imagenette", epochs=None, results=None, **others):
    """A training of a row in the setting of a base; top1 is its kNN, and its linear numbers are a little higher."""
    recipe = carry(find(row).recipe, find(base).recipe)
    recipe = replace(recipe, epochs=epochs or recipe.epochs)
    online = {"knn20/top1": top1, "knn200/top1": top1 - 1, "cached/top1": top1 + 5}
    known = {
        "recipe": recipe,
        "seed": seed,
        "row": row,
        "base": base,
        "data": base.partition("/")[2],
        "images": 1000,
        "names": base,
        "seen": 1000 * recipe.epochs,
        "seconds": 2.0 * recipe.epochs,
        "first_step": 9.0,
        "images_per_second": 500.0,
        "jobs": 1,
        "results": {"online": online} if results is None else results,
        "curve": tuple((float(x), 2.0 * x, top1 * x / recipe.epochs) for x in (1, recipe.epochs)),
        "circumstances": {"hardware": "an invented card", "torch": "2.11", "commit": "abc1234"},
    }
    return Finding(**known | others)


def seeds(row, *top1, **others):
    """The trainings of a row with seeds 0, 1, ..."""
    return [finding(row, seed, float(each), **others) for seed, each in enumerate(top1)]
