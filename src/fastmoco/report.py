"""`fastmoco report`: what sweeps found, as tables for people, in documents, and as figures."""

import difflib
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fastmoco.compose import Settings, compose, find_base, flat
from fastmoco.flags import Int, Str, place, to_write

if TYPE_CHECKING:
    from fastmoco.documents import Table
    from fastmoco.recipe import Recipe
    from fastmoco.trials.evidence import Evidence
    from fastmoco.trials.findings import Finding

FIGURES = "docs/results"
BASE = "pocket/imagenette"
ALL = "all"
UNASKED = ("settings", ALL)  # tables that are printed only if asked for
SETS = {"cifar10": "pocket/cifar10", "shapes": "pocket/shapes"}  # bases of which two rows are told
LONG = "pocket/imagenette_long"  # of which encoders are told
PAPER = ("table4a", "table4b", "table7", "figure3a", "figure3b", "figure4a", "figure4b", "figure6", "text")


@dataclass(frozen=True)
class Drawing:
    """A figure: what it shows, in words for those who cannot see it, and of which tables."""

    words: str
    tables: tuple[str, ...]


DRAWN = {
    "epochs": Drawing(
        "Top-1 of MoCo v3 and Fast-MoCo against epochs and, where they are known, minutes of training", ("epochs",)
    ),
    "ablations": Drawing(
        "Top-1 of the rows of the paper's ablation figures",
        ("figure3a", "figure3b", "figure4a", "figure4b", "figure6"),
    ),
}

_RECORDS = tyro.conf.arg(metavar="[RECORDS ...]", help_behavior_hint="")
Words = Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="")]


def report(
    records: Annotated[tuple[str, ...], tyro.conf.Positional, _RECORDS] = (),
    *,
    recipe_base: Str = "",
    data: Str = "",
    batch: Int = None,
    set: Settings = (),
    table: Words = (),
    epochs: Int = None,
    fill: Words = (),
    figures: Str = "",
) -> None:
    """Tables and figures of what sweeps found: the paper's numbers, and here the mean and spread over seeds.

    Args:
        records: files that `fastmoco sweep` has written; by default all of runs/findings.
        recipe_base: the row in whose setting the rows of the paper were trained; by default pocket/imagenette, or if
            there are none of it what most trainings have.
        data: only trainings on these images, by the name that the sweep was told.
        batch: the --batch of the sweep, if it was given one.
        set: the --set of the sweep, if it was given any, such as optim.lr=0.15.
        table: only these tables, such as table4a, figure3b, headline, epochs, encoders, long, or your own file.py;
            all is every training, also of rows without a base.
        epochs: the length of the trainings that are compared; by default what most rows of a table have.
        fill: documents, whose places between <!-- table4a --> and <!-- /table4a --> get their table, if there are
            findings for it.
        figures: a folder for figures, such as docs/results, of all tables or of those that are asked for; by default
            none are drawn.
    """
    from fastmoco.run import room
    from fastmoco.trials.evidence import gather
    from fastmoco.trials.records import other_trainings, read, refuse_other_epochs, refuse_other_settings, usual_base

    figures = str(place(figures)) if figures else ""
    known = read(records, str(data))
    base = recipe_base or usual_base(known, BASE)
    find_base(base)  # whose mistakes are the flag's
    setting = compose(base, flat(set), None, batch, "", None)
    if table != (ALL,):  # which is of any setting
        asked = bool(recipe_base or set or batch is not None)  # for one setting, and others will not do
        besides = () if asked else (*SETS.values(), LONG)
        refuse_other_settings([gather(known, base, setting), *(gather(known, row) for row in besides)], known)
    refuse_other_epochs(epochs, known)
    if figures and Path(figures).exists() and not Path(figures).is_dir():
        raise ValueError(f"--figures {figures} is a file; give a folder")
    makers = tables(known, base, epochs, table, setting)
    documents = [*map(to_write, fill)]
    _refuse_places(documents)
    if figures:
        room(Path(figures), "--figures")
        for path in draw(gather(known, base, setting), Path(figures), table):
            print(f"drawn: {path}")
    texts = {each: filled(each, makers, Path(figures or FIGURES), table) for each in documents}
    for document, text in texts.items():  # only now, when all could be made
        _write(document, text)
    if not fill and not _print({name: make for name, make in makers.items() if table or name not in UNASKED}):
        ways = "; name others, or leave out --table" if table else f", but {other_trainings(base, known)}"
        raise ValueError(f"the findings are of none of these tables{ways}")


def _refuse_places(documents: Iterable[Path]) -> None:
    """Documents that cannot be read or written, before anything is."""
    from fastmoco.documents import read
    from fastmoco.run import room

    for document in documents:
        read(document)
        room(document.parent, "--fill")
        if not os.access(document, os.W_OK):  # which to write aside and rename would pass over
            raise ValueError(f"{document} is read-only; make it writable, or give another --fill")


def _write(document: Path, text: str) -> None:
    """A document, whole or as it was."""
    from fastmoco.checkpoint import write
    from fastmoco.documents import read

    if text == read(document):
        print(f"as it was: {document}")
        return
    write(document, lambda file: file.write(text.encode()))
    print(f"filled: {document}")


def tables(
    records: "Mapping[str, Sequence[Finding]]",
    base: str = BASE,
    epochs: int | None = None,
    only: Sequence[str] = (),
    setting: "Recipe | None" = None,
) -> "dict[str, Callable[[], Table]]":
    """All tables that can be made, by name, or those that are asked for."""
    from fastmoco.names import unknown
    from fastmoco.recipes import TABLES
    from fastmoco.trials import rivals
    from fastmoco.trials.evidence import gather
    from fastmoco.trials.tables import everything, paper_table, settings

    every = [each for findings in records.values() for each in findings]
    if tuple(only) == (ALL,):  # of any setting, and of sets that cannot be told together
        return {ALL: lambda: everything(every, epochs)}
    here = gather(records, base, setting)
    others = {name: here if row == base else gather(records, row) for name, row in {**SETS, "long": LONG}.items()}
    told = [here, *(each for each in others.values() if each is not here)]
    long = others.pop("long")
    made: dict[str, Callable[[], Table]] = {
        "settings": lambda: settings(told),
        "results": lambda: rivals.summary(told),
        "headline": lambda: rivals.headline(here, epochs),
        "epochs": lambda: rivals.lengths(here),
        "encoders": lambda: rivals.encoders(here, epochs),
        "long": lambda: rivals.encoders(long, epochs),
        **{name: functools.partial(rivals.headline, each, epochs) for name, each in others.items()},
        ALL: lambda: everything(every, epochs),
    }
    for name in only or PAPER:
        if name in TABLES or ".py" in name:
            made[name] = functools.partial(paper_table, here, name, epochs)
        elif name not in made:
            raise ValueError(unknown("table", name, [*made, *TABLES, "my.py"]))
    return {name: made[name] for name in only or made}


def draw(here: "Evidence", folder: Path, only: Sequence[str] = ()) -> list[Path]:
    """The figures for which there are findings, or those of them that are asked for."""
    from fastmoco.trials import curves

    ways: dict[str, Callable[[Evidence, Path], bool]] = {"epochs": curves.epochs, "ablations": curves.ablations}
    paths = {name: folder / f"{name}.png" for name in ways if not only or {ALL, *DRAWN[name].tables} & {*only}}
    if not paths:
        known = ", ".join(table for drawing in DRAWN.values() for table in drawing.tables)
        raise ValueError(f"--figures: no figure shows {', '.join(only)}; ask for {known}, or leave out --table")
    return [path for name, path in paths.items() if ways[name](here, path)]


def filled(document: Path, makers: "Mapping[str, Callable[[], Table]]", figures: Path, only: Sequence[str] = ()) -> str:
    """A document with each table, and each figure that there is, in its place."""
    from fastmoco import documents
    from fastmoco.names import unknown

    text = documents.read(document)
    made: dict[str, Callable[[], str]] = {name: functools.partial(_markdown, make) for name, make in makers.items()}
    drawn = {} if only else {f"figure {name}": figures / f"{name}.png" for name in DRAWN}
    known = documents.places(text, [*made, *drawn], str(document))
    # One that was not drawn stays as it is.
    made |= {name: functools.partial(_link, document, path) for name, path in drawn.items() if path.exists()}
    names = [*made, *drawn]
    others = [] if only else [name for name in documents.marked(text) if name not in names]
    # Others may fill theirs, unless it looks like a slip, or is all that there is.
    slips = [name for name in others if not known or difflib.get_close_matches(name, names, cutoff=0.8)]
    if slips:
        raise ValueError(f"{document}: {unknown('table', slips[0], names)}")
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
    """A figure, as a document shows it."""
    return f"![{DRAWN[figure.stem].words}]({Path(os.path.relpath(figure, document.parent)).as_posix()})"


def _print(makers: "Mapping[str, Callable[[], Table]]") -> bool:
    """Those that have rows, if any."""
    from fastmoco.documents import numeric
    from fastmoco.printing import print_table

    # Once: with the base of a set of its own, the headline is that set's.
    shown = list(dict.fromkeys(made for make in makers.values() if (made := make()).rows))
    for number, table in enumerate(shown):
        print("\n" * (number > 0) + table.title + "\n")
        sides = [">" if right else "" for right in numeric(table.head, table.rows)]
        print_table([side + name for side, name in zip(sides, table.head, strict=True)], table.rows)
        for note in table.notes:
            print(note)
    return bool(shown)
