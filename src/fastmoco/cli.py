"""The command line. Heavy imports happen inside the verbs, so that every --help answers at once."""

import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import tyro

from fastmoco.command import Settings, flat, pretrain
from fastmoco.demo import demo


def recipes(table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[TABLE]")] = "") -> None:
    """List every row of the paper with its samples, pairs and the number that the paper reports.

    Args:
        table: only this table or figure, such as table4a, figure3b, text or pocket; or your own file.py.
    """
    from fastmoco.recipes import rows
    from fastmoco.report import print_rows

    print_rows(rows(table))


def show(
    row: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ROW")],
    *,
    set: Settings = (),
) -> None:
    """Show one row: its table of views, samples and pairs, parameters, cost and chance loss. Nothing is trained.

    Args:
        row: a row such as table4a/fast_moco, or one of your own as file.py:name.
        set: change a value of the recipe, such as optim.lr=0.15, encoder=resnet18 or views.*.size=128.
    """
    from dataclasses import replace

    from fastmoco.notation import override
    from fastmoco.recipes import find
    from fastmoco.report import print_row

    found, settings = find(row), flat(set)
    try:
        print_row(row, replace(found, recipe=override(found.recipe, settings)), settings)
    except ValueError as error:
        raise ValueError(f"{row}: {error}") from None


VERBS: dict[str, Callable[..., object]] = {"pretrain": pretrain, "demo": demo, "recipes": recipes, "show": show}


def main() -> None:
    """Run a verb. A user's mistake is a ValueError, and ends in one line with exit code 2."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            VERBS, prog="fastmoco", description="Fast-MoCo: self-supervised learning with combinatorial patches."
        )
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
    except OSError as error:
        _stop(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except ValueError as error:
        _stop(str(error))
    except KeyboardInterrupt as error:  # which tells the signal that asked for it, if it was not Ctrl-C
        sys.exit(128 + (error.args[0] if error.args else 2))


def _stop(message: str) -> NoReturn:
    print(f"fastmoco: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
