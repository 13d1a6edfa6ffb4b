"""`fastmoco report`: what sweeps found, as tables for people, in documents, and as figures."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fastmoco.flags import Int, Str

if TYPE_CHECKING:
    from fastmoco.documents import Table
    from fastmoco.trials.evidence import Evidence
    from fastmoco.trials.findings import Finding

RECORDS, FIGURES = "results/sweeps", "docs/results"
BASE = "pocket/imagenette"
SETS = {"cifar10": "pocket/cifar10", "shapes": "pocket/shapes"}  # bases of which two rows are told
PAPER = ("table4a", "table4b", "table7", "figure3a", "figure3b", "figure4a", "figure4b", "figure6", "text")
DRAWN = {  # for each figure what it shows, in words for those who cannot see it
    "epochs": "Top-1 of MoCo v3 and Fast-MoCo against epochs and against minutes of training",
    "ablations": "Top-1 of the rows of the paper's ablation figures",
}


_RECORDS = tyro.conf.arg(metavar="[RECORDS ...]", help_behavior_hint="")
Words = Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="")]


def report(
    records: Annotated[tuple[str, ...], tyro.conf.Positional, _RECORDS] = (),
    *,
    recipe_base: str = BASE,
    table: Words = (),
    epochs: Int = None,
    fill: Words = (),
    figures: Str = "",
) -> None:
    """Tables and figures of what sweeps found: the paper's numbers, and here the mean and spread over seeds.

    Args:
        records: files that `fastmoco sweep` has written; by default all of results/sweeps.
        recipe_base: the row in whose setting the rows of the paper were trained.
        table: only these, such as table4a, figure3b, headline, epochs, encoders, cifar10, or your own file.py.
        epochs: of the trainings that are compared; by default what most rows of a table have.
        fill: documents, whose places between <!-- table4a --> and <!-- /table4a --> get their table.
        figures: a folder for figures, such as docs/results; by default none are drawn.
    """
    known = _read(records)
    makers = tables(known, recipe_base, epochs, table)
    for path in draw(known, recipe_base, Path(figures)) if figures else ():
        print(f"drawn: {path}")
    texts = {Path(each): filled(Path(each), makers, Path(figures or FIGURES), table) for each in fill}
    for document, text in texts.items():  # all of them, or none
        document.write_text(text)
        print(f"filled: {document}")
    if not fill and not figures:
        _print(makers, f"in the setting of {recipe_base}")


def tables(
    records: "Mapping[str, Sequence[Finding]]", base: str = BASE, epochs: int | None = None, only: Sequence[str] = ()
) -> "dict[str, Callable[[], Table]]":
    """All tables that can be made, by name, or those that are asked for."""
    from fastmoco.names import unknown
    from fastmoco.recipes import TABLES
    from fastmoco.trials import rivals
    from fastmoco.trials.evidence import gather
    from fastmoco.trials.tables import paper_table, settings

    here = gather(records, base)
    others = {name: gather(records, row) for name, row in SETS.items() if row != base}
    made: dict[str, Callable[[], Table]] = {
        "settings": lambda: settings([here, *others.values()]),
        "results": lambda: rivals.summary([here, *others.values()]),
        "headline": lambda: rivals.headline(here, epochs),
        "epochs": lambda: rivals.lengths(here),
        "encoders": lambda: rivals.encoders(here, epochs),
        **{name: functools.partial(rivals.headline, each, epochs) for name, each in others.items()},
    }
    for name in only or PAPER:
        if name in TABLES or ".py" in name:
            made[name] = functools.partial(paper_table, here, name, epochs)
        elif name not in made:
            raise ValueError(unknown("table", name, [*made, *TABLES, "my.py"]))
    return {name: made[name] for name in only or made}


def draw(records: "Mapping[str, Sequence[Finding]]", base: str, folder: Path) -> list[Path]:
    """The figures for which there are findings."""
    from fastmoco.trials import curves
    from fastmoco.trials.evidence import gather

    here = gather(records, base)
    ways: dict[str, Callable[[Evidence, Path], bool]] = {"epochs": curves.epochs, "ablations": curves.ablations}
    assert set(ways) == set(DRAWN), "a figure without words, or the reverse"
    paths = {name: folder / f"{name}.png" for name in ways}
    return [paths[name] for name, way in ways.items() if way(here, paths[name])]


def filled(document: Path, makers: "Mapping[str, Callable[[], Table]]", figures: Path, only: Sequence[str] = ()) -> str:
    """A document with each table, and each figure that there is, in its place."""
    from fastmoco import documents

    text = document.read_text()
    made: dict[str, Callable[[], str]] = {name: functools.partial(_markdown, make) for name, make in makers.items()}
    if not only:
        made |= {f"figure {name}": functools.partial(_link, document, figures / f"{name}.png") for name in DRAWN}
    known = documents.places(text, list(made), str(document))
    missing = [name for name in only if name not in known] or ([] if known else [next(iter(made))])
    if missing:
        name = missing[0]
        raise ValueError(
            f"{document} has no place for a table: put <!-- {name} --> and <!-- /{name} --> where it belongs"
        )
    return documents.fill(text, made, str(document))


def _markdown(make: "Callable[[], Table]") -> str:
    return make().markdown()


def _link(document: Path, figure: Path) -> str:
    """A figure, if it was drawn."""
    from fastmoco.documents import NOTHING

    if not figure.exists():
        return NOTHING
    return f"![{DRAWN[figure.stem]}]({Path(os.path.relpath(figure, document.parent)).as_posix()})"


def _read(records: Sequence[str]) -> "dict[str, list[Finding]]":
    """Findings by the name of their file."""
    from fastmoco.trials import findings

    paths = [Path(each) for each in records] or sorted(Path(RECORDS).glob("*.jsonl"))
    known: dict[str, list[Finding]] = {}
    for path in paths:
        known.setdefault(path.name, []).extend(findings.read([path]))
    return known


def _print(makers: "Mapping[str, Callable[[], Table]]", where: str) -> None:
    """Those that have rows; only bases have some without any finding."""
    from fastmoco.report import print_table

    shown = [made for name, make in makers.items() if name != "settings" and (made := make()).rows]
    if not shown:
        raise ValueError(f"no findings {where} to make a table of; `fastmoco sweep` makes them, or name other RECORDS")
    for number, table in enumerate(shown):
        print("\n" * (number > 0) + table.title + "\n")
        print_table([table.head[0], *(f">{name}" for name in table.head[1:])], table.rows)
        for note in table.notes:
            print(note)
