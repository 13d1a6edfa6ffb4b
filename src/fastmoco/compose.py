"""From a row, a base and flags to the recipe that they mean."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from fastmoco.recipe import Recipe, Row

MOST_EPOCHS = 1_000_000

# In Python a list of words, or values by name; on the command line several at once, and the flag several times.
Settings = Annotated[
    Sequence[str] | Mapping[str, object] | tuple[tuple[str, ...], ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(constructor=tuple[tuple[str, ...], ...], metavar="NAME=VALUE ..."),
]


def compose(
    row: "str | Row",
    settings: Sequence[str],
    epochs: int | None,
    batch: int | None,
    encoder: str,
    size: int | None,
    base: str = "",
) -> "Recipe":
    """The recipe that a row, a base and the flags mean.

    A batch brings its learning rate and, on a base, its support set; few epochs bring a short warm-up; unless set.
    """
    from fastmoco.notation import override
    from fastmoco.optim import shorten
    from fastmoco.transfer import supported

    recipe, named = start(row, base), {setting.partition("=")[0].strip() for setting in settings}
    given = {"epochs": epochs, "batch": batch, "encoder": encoder or None, "views.*.size": size}
    flags: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    _refuse(flags, named)
    if size is not None and len(sizes := sorted({view.size for view in recipe.views})) > 1:
        where = title(row, base)
        raise ValueError(f"--size {size}: {where} has views of {sizes} px; use --set views.0.size={size} and so on")
    if epochs is not None and "schedule.warmup" not in named:
        flags["schedule.warmup"] = shorten(recipe.schedule, epochs, recipe.epochs).warmup
    if batch is not None:
        flags["optim.lr"] = recipe.optim.lr * batch / recipe.batch
    try:
        made = override(recipe, [*(f"{name}={value}" for name, value in flags.items()), *settings])
        return supported(made) if base and "support" not in named else made
    except ValueError as error:
        raise ValueError(f"{title(row, base)}: {error}") from None


def _refuse(flags: Mapping[str, object], named: Collection[str]) -> None:
    """What flags cannot mean; the rest is for the recipe to refuse."""
    twice = [name for name in flags if name in named]
    if twice:
        raise ValueError(f"{twice[0]} is given by a flag and by --set; give one of them")
    for name, value in flags.items():
        if name != "encoder" and type(value) is not int:
            raise ValueError(f"{name.removeprefix('views.*.')}={value!r}: use a whole number")
    epochs = flags.get("epochs")
    if isinstance(epochs, int) and not 1 <= epochs <= MOST_EPOCHS:
        raise ValueError(f"--epochs {epochs}: use 1 to {MOST_EPOCHS:,}")


def start(row: "str | Row", base: str = "") -> "Recipe":
    """The recipe of a row, or its method in the setting of a base."""
    from fastmoco.recipes import find
    from fastmoco.transfer import carry

    recipe = (find(row) if isinstance(row, str) else row).recipe
    if not base:
        return recipe
    setting = find_base(base)
    try:
        return carry(recipe, setting)
    except ValueError as error:
        raise ValueError(f"{title(row, base)}: {error}") from None


def find_base(name: str) -> "Recipe":
    """The recipe of a base, which may be any row; those of pocket are made for it."""
    from fastmoco.recipes import find

    try:
        return find(name, "pocket").recipe
    except ValueError as error:
        raise ValueError(f"--recipe-base: {error}") from None


def title(row: "str | Row", base: str = "") -> str:
    """What a recipe is called."""
    named = row if isinstance(row, str) else "recipe"
    return f"{named} in {base}" if base else named


def flat(settings: Sequence[str] | Mapping[str, object] | tuple[tuple[str, ...], ...]) -> list[str]:
    """Settings one by one, however they were grouped."""
    if isinstance(settings, Mapping):
        return [f"{name}={value if isinstance(value, str) else repr(value)}" for name, value in settings.items()]
    settings = (settings,) if isinstance(settings, str) else settings
    if () in settings:  # a flag with nothing after it
        raise ValueError("--set: give NAME=VALUE after it, such as optim.lr=0.15")
    each = [each for group in settings for each in ([group] if isinstance(group, str) else group)]
    names = [name.strip() for name, *_ in (one.split("=", 1) for one in each)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"--set: {twice} is given twice; give it once")
    return each
