"""Kinds of flags that several commands have, as tyro reads them, and which of them a user has set."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

_WEIGHTS = "a run folder, a checkpoint, an encoder file, random, torchvision/resnet50 or timm/NAME."
_LABELLED = "class folders with or without train/ and val/, a list with classes, shards, or a set such as cifar10."
_RECORDS = "the file to add results to; by default results.json in the run folder, or in the current one."

Weights = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHTS", help=_WEIGHTS)]
Data = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
Labelled = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA", help=_LABELLED)]
Side = Literal["online", "target"]
Switch = Literal["auto", "on", "off"]
Flag = tyro.conf.FlagCreatePairsOff[bool]  # off by default, and there is no --no-flag
# Those whose default is said in words.
Int = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Float = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]
Str = Annotated[str, tyro.conf.arg(help_behavior_hint="")]
Records = Annotated[str, tyro.conf.arg(help=_RECORDS, help_behavior_hint="")]


def place(text: str) -> Path:
    """Where a user means, in whose home `~` is: no shell has seen to it in `--out=~/runs`, nor in Python."""
    return Path(os.path.expanduser(text))


def to_write(text: str) -> Path:
    """What is to be written where a user means: if that is a link, what it points to, or it would be replaced."""
    path = place(text)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that a user has set."""
    return {name: value for name, value in flags.items() if value is not None}
