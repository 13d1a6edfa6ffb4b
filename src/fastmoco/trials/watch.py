"""How far trainings are, in one line. Each has more to tell in its log."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastmoco.trials.crew import Task

OFTEN, SELDOM = 1.0, 60.0  # seconds between two looks at the logs, for a terminal and for a file


def state(working: "Sequence[Task]", todo: "Sequence[Task]") -> str:
    """Images a second of all, how long the rest of all takes at that rate, and how far each is.

    Nothing is told of time while one has no rate yet.
    """
    from fastmoco.journal import clock
    from fastmoco.trials.tally import length

    words, rates, left = [], [], sum(task.seen for task in todo)
    for task in working:
        done, rate = _progress(task)
        left += task.seen - done
        if done < task.seen:
            rates.append(rate)
            words.append(f"{task.brief} epoch {done * task.recipe.epochs // task.seen}/{task.recipe.epochs}")
        else:
            words.append(f"{task.brief} is judged after {length(task.recipe.epochs)}")
    known = rates and all(rate > 0 for rate in rates)
    pace = [f"{sum(rates):,.0f} img/s", f"about {clock(left / sum(rates))} of training left"] if known else []
    return "  ".join([*pace, ", ".join(words)])


def _progress(task: "Task") -> tuple[int, float]:
    """Images that a training has seen, and images a second by its last log line; 0 if that tells none."""
    from fastmoco.journal import kept

    try:
        lines = kept(task.folder / "metrics.jsonl")
    except OSError:  # someone has removed it just now
        lines = []
    logged = [line for line in lines if "perf/images_per_second" in line]
    if not logged:
        return 0, 0.0
    rate = logged[-1]["perf/images_per_second"]
    return logged[-1]["step"] * task.recipe.batch, rate if math.isfinite(rate) else 0.0
