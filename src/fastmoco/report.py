"""What a person reads about recipes: the list of rows, and one row in full."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from fastmoco.contrast import InfoNCE
from fastmoco.cost import Cost, measure
from fastmoco.notation import brief
from fastmoco.recipe import Recipe, Row


def print_rows(rows: Mapping[str, Row]) -> None:
    """The rows with what they make and what the paper reports of them, a blank line between tables."""
    listing = _table("row", ">samples", ">pairs", ">epochs", ">batch", "evaluation", "in the paper")
    last = ""
    for name, row in rows.items():
        table = name.rpartition("/")[0]
        if last not in ("", table):
            listing.add_row()
        last = table
        recipe = row.recipe
        listing.add_row(
            name,
            str(len(recipe.samples())),
            str(_pairs(recipe)),
            str(recipe.epochs),
            str(recipe.batch),
            type(recipe.evaluation).__name__.lower(),
            _numbers(row.paper) or "-",
        )
    _console().print(listing)


def print_row(name: str, row: Row, settings: Sequence[str] = ()) -> None:
    """One row: its table of views, what it makes, what it costs, and how it is trained."""
    cost = measure(row.recipe)
    console = _console()
    console.print(name + "".join(f" --set {setting}" for setting in settings), style="bold")
    if settings:
        console.print("changed by --set, so not the paper's row")
    elif row.paper:
        console.print(f"in the paper: {_numbers(row.paper)}")
    for part in (_views(row.recipe, cost), _networks(row.recipe, cost), _facts(row.recipe)):
        console.print()
        console.print(part)


def _views(recipe: Recipe, cost: Cost) -> Table:
    views = _table("view", ">px", ">crops", "scale", "online path", ">encoder", "target path", ">encoder")
    for number, (view, online, target) in enumerate(zip(recipe.views, cost.online, cost.target, strict=True)):
        views.add_row(
            str(number),
            str(view.size),
            str(view.count),
            f"{view.scale[0]:g}-{view.scale[1]:g}",
            " ".join(map(brief, view.online)),
            _giga(online.get("encoder", 0)),
            " ".join(map(brief, view.target)),
            "same pass" if view.target and "encoder" not in target else _giga(target.get("encoder", 0)),
        )
    return views


def _networks(recipe: Recipe, cost: Cost) -> Table:
    networks = _table("network", "form", ">parameters", ">online multiply-adds", ">target multiply-adds")
    forms = {
        "encoder": recipe.encoder,
        "projector": "-".join(map(str, recipe.projector.widths)),
        "predictor": "-".join(map(str, recipe.predictor.widths)),
        "support": f"{recipe.support} vectors",
    }
    for network, form in forms.items():
        online, target = (sum(spent.get(network, 0) for spent in side) for side in (cost.online, cost.target))
        if online or target:
            networks.add_row(network, form, f"{cost.parameters.get(network, 0):,}", _giga(online), _giga(target))
    totals = (sum(sum(spent.values()) for spent in side) for side in (cost.online, cost.target))
    networks.add_row("together", "per image", f"{sum(cost.parameters.values()):,}", *map(_giga, totals))
    return networks


def _facts(recipe: Recipe) -> Table:
    facts = _table("", "")
    facts.show_header = False
    facts.add_row("samples", f"{len(recipe.samples())} per image")
    facts.add_row("pairs", f"{_pairs(recipe)} per image, {brief(recipe.pairs)}")
    facts.add_row("target", repr(recipe.target))
    facts.add_row("contrast", repr(recipe.contrast))
    facts.add_row("chance loss", _chance(recipe))
    facts.add_row("training", f"{recipe.epochs} epochs at batch {recipe.batch}")
    facts.add_row("optimiser", f"{recipe.optim}, clip {recipe.clip:g}")
    facts.add_row("schedule", str(recipe.schedule))
    facts.add_row("evaluation", str(recipe.evaluation))
    return facts


def _chance(recipe: Recipe) -> str:
    chance = f"{recipe.contrast.chance(recipe.batch):.3f}"
    return f"{chance}, ln {recipe.batch}" if isinstance(recipe.contrast, InfoNCE) else chance


def _pairs(recipe: Recipe) -> int:
    return sum(map(len, recipe.meetings()))


def _numbers(paper: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:g}" for name, value in paper.items())


def _giga(count: int) -> str:
    return f"{count / 1e9:.3f} G" if count else ""


def _table(*columns: str) -> Table:
    """A table without lines; a column whose name begins with > holds numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", header_style="dim"
        )
    return table


def _console() -> Console:
    """As wide as the terminal, and wide enough for every line where there is none."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=200)
