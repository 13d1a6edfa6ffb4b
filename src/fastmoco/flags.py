"""Kinds of flags that several commands have, as tyro reads them."""

from typing import Annotated, Literal

import tyro

Weights = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHTS")]
Data = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
Side = Literal["online", "target"]
Flag = tyro.conf.FlagCreatePairsOff[bool]  # off by default, and there is no --no-flag
# Those whose default is said in words.
Int = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Float = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]
Str = Annotated[str, tyro.conf.arg(help_behavior_hint="")]
