"""What a person reads on a terminal: the list of rows, one row in full, and any other table."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table

from fastmoco.contrast import InfoNCE
from fastmoco.cost import Cost, measure
from fastmoco.kinds import brief
from fastmoco.recipe import Recipe, Row

WIDE = 200  # columns, enough for every line


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
    _print(listing, _console(WIDE))  # a name is never cut, however narrow the terminal


def print_row(name: str, row: Row, settings: Sequence[str] = ()) -> None:
    """One row: its table of views, what it makes, what it costs, and how it is trained."""
    cost = measure(row.recipe)
    console = _console(None if sys.stdout.isatty() else WIDE)
    print(name + "".join(f" --set {shlex.quote(setting)}" for setting in settings))
    if row.paper:
        print("changed, so not the paper's row" if settings else f"in the paper: {_numbers(row.paper)}")
    for part in (_views(row.recipe, cost), _networks(row.recipe, cost), _facts(row.recipe)):
        print()
        _print(part, console)


def print_table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Any table; a column whose name begins with > holds numbers."""
    table = _table(*columns)
    for line in lines:
        table.add_row(*line)
    _print(table, _console(WIDE))


def _views(recipe: Recipe, cost: Cost) -> Table:
    views = _table("view", ">px", ">crops", "scale", "online path", ">online encoder", "target path", ">target encoder")
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
    facts.add_row("optimiser", f"{recipe.optim}, {f'clip {recipe.clip:g}' if recipe.clip else 'no clipping'}")
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
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for column in columns:
        side: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        table.add_column(column.removeprefix(">"), justify=side, overflow="fold")
    return table


def _print(table: Table, console: Console) -> None:
    """Without the blanks that fill up a line, so that output can be pasted."""
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def _console(width: int | None = None) -> Console:
    """Plain text, as wide as the terminal or as told."""
    return Console(width=width, highlight=False, markup=False, emoji=False, color_system=None)
