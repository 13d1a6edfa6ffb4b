"""The command line. Heavy imports happen inside the verbs, so that every --help answers at once."""

import ast
import contextlib
import functools
import importlib.metadata
import io
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any

import tyro

from fastmoco import __version__, assess, compare, speed
from fastmoco.command import pretrain
from fastmoco.compose import Settings, flat, start, title
from fastmoco.demo import demo
from fastmoco.embedding import embed
from fastmoco.ending import ended
from fastmoco.export import export
from fastmoco.flags import Str
from fastmoco.foreign import import_
from fastmoco.names import unknown
from fastmoco.pack import pack
from fastmoco.report import report
from fastmoco.sweep import sweep


def recipes(table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[TABLE]")] = "") -> None:
    """List every row of the paper with its samples, pairs and the number that the paper reports.

    Args:
        table: only this table or figure, such as table4a, figure3b, text or pocket; or your own file.py.
    """
    from fastmoco.printing import print_rows
    from fastmoco.recipes import rows

    print_rows(rows(table))


def show(
    row: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ROW")],
    *,
    recipe_base: Str = "",
    set: Settings = (),
) -> None:
    """Show one row: its table of views, samples and pairs, parameters, cost and chance loss. Nothing is trained.

    Args:
        row: a row such as table4a/fast_moco, or one of your own as file.py:name.
        recipe_base: a row such as pocket/imagenette that brings all but the method, as in pretrain.
        set: change a value of the recipe, such as optim.lr=0.15, encoder=resnet18 or views.*.size=128.
    """
    from fastmoco.notation import override
    from fastmoco.printing import print_row
    from fastmoco.recipe import Row
    from fastmoco.recipes import find

    recipe, settings, named = start(row, recipe_base), flat(set), title(row, recipe_base)
    paper = {} if recipe_base else find(row).paper  # whose numbers are of its own setting
    try:
        print_row(named, Row(override(recipe, settings), paper), settings)
    except ValueError as error:
        raise ValueError(f"{named}: {error}") from None


VERBS: dict[str, Callable[..., object]] = {
    "pretrain": pretrain,
    "sweep": sweep,
    "report": report,
    "evaluate knn": assess.knn,
    "evaluate linear": assess.linear,
    "evaluate semi": assess.semi,
    "evaluate finetune": assess.finetune,
    "evaluate gain": compare.gain,
    "embed": embed,
    "pack": pack,
    "export": export,
    "import": import_,
    "bench step": speed.step,
    "bench augment": speed.augment,
    "bench loader": speed.loader,
    "bench train": speed.train,
    "bench evaluate": speed.evaluate,
    "demo": demo,
    "recipes": recipes,
    "show": show,
}


ALONE = (
    "sweep",
    "report",
    "pack",
    "export",
    "import",
    *(verb for verb in VERBS if verb.startswith("bench")),
    "demo",
    "recipes",
    "show",
)


def main() -> None:
    """Run a verb. A user's mistake is a ValueError, and ends in one line with exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a name shows it spelt out
            stream.reconfigure(errors="backslashreplace")
    with ended(), _together():
        _read(sys.argv[1:])()


def _together() -> contextlib.AbstractContextManager[None]:
    """The group that torchrun has started this process in; most commands are alone."""
    if "RANK" not in os.environ:  # torch need not be imported to know that
        return contextlib.nullcontext()
    from fastmoco.meeting import joined

    return joined()


def _read(words: list[str]) -> Callable[[], object]:
    """What the words ask for, ready to be run."""
    if words in (["--version"], ["-V"], ["version"]):
        return functools.partial(print, f"fastmoco {__version__}, torch {importlib.metadata.version('torch')}")
    verb = next((verb for verb in VERBS if words[: len(verb.split())] == verb.split()), None)
    if verb in ALONE and os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError(f"fastmoco {verb} is work for one process; start it without torchrun")
    if verb is not None:
        return _parse(verb, words[len(verb.split()) :])
    verbs = {verb: function for verb, function in VERBS.items() if words and verb.split()[0] == words[0]}
    rest = words[1:] if verbs else words
    if rest and not rest[0].startswith("-"):
        given = " ".join(words[: len(words) - len(rest) + 1])
        raise ValueError(unknown("command", given, list(verbs or VERBS)) + "; see fastmoco --help")
    # Only the help of several verbs is left to be asked for.
    tyro.extras.subcommand_cli_from_dict(
        verbs or VERBS,
        prog="fastmoco",
        description="Fast-MoCo: self-supervised learning with combinatorial patches. --version tells which.",
        args=["--help"],
    )
    raise AssertionError("the help ends the process")


def _parse(verb: str, words: list[str]) -> Callable[[], object]:
    """Let tyro read the flags of a verb, and tell its complaint in one line."""
    function, complaint = VERBS[verb], io.StringIO()

    @functools.wraps(function)
    def later(*given: object, **flags: object) -> object:
        return functools.partial(function, *given, **flags)

    try:
        with contextlib.redirect_stderr(complaint):
            call: Any = tyro.cli(later, prog=f"fastmoco {verb}", args=words)
    except SystemExit as end:
        if not end.code:
            raise
        told = _brief(complaint.getvalue())
        loose = re.match(r"Unrecognized options: ([^-\s,][^\s,]*)", told)
        if loose and loose[1] in words and any(word.startswith("-") for word in words[: words.index(loose[1])]):
            told = f"{loose[1]!r} belongs to no flag; put it before the first flag, or leave it out"
        raise ValueError(f"{told}; see fastmoco {verb} --help") from None
    return functools.partial(call)


def _brief(complaint: str) -> str:
    """The first part of what tyro says in a box, and the flag that it suggests, if any."""
    boxed = [line.strip("│ ") for line in complaint.splitlines() if line.startswith("│")]
    # Where such characters cannot be shown there is no box, and a title above the first rule.
    plain = [line.strip() for line in complaint.partition("---")[2].splitlines()[1:] if line.strip()]
    parts: list[list[str]] = [[]]
    for line in boxed or plain or [complaint]:
        if line.strip("─-"):
            parts[-1].append(line)
        else:
            parts.append([])
    said = " ".join(parts[0]).rstrip(".")
    said = re.sub(r"no type matching \S*?(\w+) could be instantiated from \['(.*?)'\].*", r"use \1, not '\2'", said)
    said = re.sub(r"invalid literal for int\(\) with base 10:", "use INT, not", said)
    several = re.match(r"Error parsing (\S+): Could not find valid parse for arguments: (\[.*\])", said)
    if several:
        wrong = next((each for each in ast.literal_eval(several[2]) if not each.lstrip("-").isdecimal()), several[2])
        said = f"{several[1]}: use whole numbers, not {wrong!r}; names go before the first flag"
    near = next((part[1] for part in parts if part and part[0].startswith("Perhaps you meant")), "")
    return f"{said}; perhaps {near.split(', ')[-1].split()[0]}" if near else said
