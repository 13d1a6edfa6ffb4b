"""`fastmoco bench train`: a real training, from files to log lines, beside its step alone and beside a plain loop.

- "ours, end to end": `fastmoco pretrain` in a folder that is thrown away, stopped after a while. Its rate is that from
  one of its log lines to the next, from the first on, before which things are compiled. `data_wait` is the part of the
  time in which it waits for images, `first_step_seconds` that from the start of the process to the end of the first
  step.
- "the step alone": the same step on views that lie on the device, as in `fastmoco bench step`.
- "a plain loop": a DataLoader with as many workers, PIL and torchvision's transforms; then the step in float32,
  channels first, not compiled.
"""

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from fastmoco.bench import peers
from fastmoco.bench.clock import Contender, compete, enter
from fastmoco.bench.loader import enough
from fastmoco.bench.record import conclude
from fastmoco.bench.step import WARM, facts, stepping, working
from fastmoco.command import pretrain
from fastmoco.data import find
from fastmoco.engine import Gear
from fastmoco.journal import kept
from fastmoco.recipe import Recipe
from fastmoco.run import Run

EPOCHS = 10**6  # more than any measurement takes


def measure(
    data: str, recipe: Recipe, run: Run, flags: dict[str, Any], seconds: float, out: str, commit: str = ""
) -> dict[str, Any]:
    """The training for so many seconds from its first line on, then its step alone and the plain loop in turn."""
    print(f"a training, which will be stopped {seconds:g} s after its first log line, and forgotten", flush=True)
    _refuse(recipe)
    lines = train(data, flags, seconds)
    first, rest = lines[0], lines[1:]
    if not rest:
        raise ValueError(f"--seconds {seconds:g}: no time for a second log line; use more, or a smaller --log-every")
    ours = Contender("ours, end to end", lambda: None, recipe.batch, first["perf/first_step"], 0)
    ours.peak = round(2**30 * rest[-1]["perf/memory_gib"]) if run.device.type == "cuda" else 0
    # By the clock of the whole training, which goes on while a line is written, and stands still during a save.
    ours.rounds = [
        (after["perf/seconds"] - before["perf/seconds"]) / (after["step"] - before["step"])
        for before, after in pairwise(lines)
    ]
    alone = enter("the step alone", working(recipe, run.gear), run.device, recipe.batch, WARM)
    compete([alone], run.device, seconds / 5)
    with _plain(data, recipe, run) as plain:
        compete([plain], run.device, seconds / 5, rounds=3)
    about = {
        **facts(recipe, run.gear),
        "data": Path(data).name,
        "loader": flags["loader"],
        "decode": flags["decode"],
        "workers": run.workers,
        "data_wait": round(fmean(line["perf/data_wait"] for line in rest), 4),
        "first_step_seconds": round(first["perf/first_step"], 1),
        "share_of_step": round(alone.seconds / ours.seconds, 4),
    }
    return conclude("train", [ours, alone, plain], run.device, about, out, commit)


def _refuse(recipe: Recipe) -> None:
    """What a plain loop does not learn."""
    views = recipe.views
    if len(views) != 2 or any(view.count != 1 or view.size != views[0].size for view in views):
        raise ValueError("bench train: a plain loop makes two views of one size; use a recipe of two, or bench step")
    if any(view.augment.solarise_p for view in views):
        raise ValueError("bench train: a plain loop does not solarise; use a recipe that does not, or bench step")


def train(data: str, flags: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
    """The log lines of a training that is stopped so many seconds after its first."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "run" / "metrics.jsonl"
        ended, seen = threading.Event(), threading.Event()

        def stop() -> None:
            """As Ctrl-C does."""
            while not kept(metrics):
                if ended.wait(0.05):
                    return
            if not ended.wait(seconds):
                seen.set()
                os.kill(os.getpid(), signal.SIGINT)

        watch = threading.Thread(target=stop)
        watch.start()
        try:
            pretrain(data, **flags, out=str(metrics.parent), epochs=EPOCHS, knn_every=0)
        except KeyboardInterrupt:
            if not seen.is_set():  # someone else has pressed it
                raise
        finally:
            ended.set()
            watch.join()
        return [line for line in kept(metrics) if "perf/images_per_second" in line]


@contextmanager
def _plain(data: str, recipe: Recipe, run: Run) -> Generator[Contender, None, None]:
    """The loop that a script would have; its workers end with it."""
    view = recipe.views[0]
    dataset = peers.Views(enough(find(data).train, recipe.batch), peers.by_torchvision(view.augment, view))
    cuda = run.device.type == "cuda"
    with closing(peers.batches(dataset, recipe.batch, run.workers, pin=cuda)) as batches:

        def make() -> Callable[[], object]:
            step = stepping(recipe, Gear(run.device, channels_last=False), exact=True)

            def work() -> object:
                views: Any = next(batches)
                return step([view[None].to(run.device, non_blocking=True) for view in views])

            return work

        yield enter("a plain loop", make, run.device, recipe.batch, warm=2)
