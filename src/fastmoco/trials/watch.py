"""How far several trainings at once are: one line on a terminal, which changes. Each has its own in its log."""

import contextlib
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastmoco.trials.crew import Task

OFTEN = 1.0  # seconds between two looks at the logs


class Watch:
    """The line, if someone is there to see it."""

    def __init__(self, live: bool) -> None:
        self.live = live
        self.shown = 0.0

    def show(self, working: "Sequence[Task]", todo: "Sequence[Task]") -> None:
        if self.live and working and time.monotonic() - self.shown > OFTEN:
            self.shown = time.monotonic()
            _print(f"\r\x1b[2K{state(working, todo)[: shutil.get_terminal_size().columns - 1]}")

    def erase(self) -> None:
        """Before something else is printed."""
        if self.live:
            _print("\r\x1b[2K")


def state(working: "Sequence[Task]", todo: "Sequence[Task]") -> str:
    """How far each is, how many images a second go through all of them, and how long that takes for the rest."""
    from fastmoco.journal import clock, kept

    words, rate, left = [], 0.0, sum(task.seen for task in todo)
    for task in working:
        logged = [line for line in kept(task.folder / "metrics.jsonl", sys.maxsize) if "perf/images_per_second" in line]
        done = logged[-1]["step"] * task.recipe.batch if logged else 0
        left += task.seen - done
        if done < task.seen:
            rate += logged[-1]["perf/images_per_second"] if logged else 0.0
            words.append(f"{task.brief} {done * task.recipe.epochs // task.seen}/{task.recipe.epochs}")
        else:
            words.append(f"{task.brief} is judged")
    pace = f"  {rate:,.0f} img/s  about {clock(left / rate)} of training left" if rate and left else ""
    return ", ".join(words) + pace


def _print(text: str) -> None:
    """A terminal that was closed is no reason to lose trainings."""
    with contextlib.suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)
