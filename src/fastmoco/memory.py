"""A device without enough memory: which batch would fit."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from fastmoco.distributed import grouped
from fastmoco.engine import Engine
from fastmoco.learner import Learner
from fastmoco.recipe import Recipe
from fastmoco.run import Run


@contextmanager
def explained(recipe: Recipe, run: Run) -> Iterator[None]:
    """Turn an out-of-memory error into a line that names the batch, and a smaller one that was tried and fits."""
    try:
        yield
        return
    except (RuntimeError, MemoryError) as error:
        if not _is_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold all that the failed step had made
    if grouped():  # ranks cannot try alone
        smaller = recipe.batch // 2 // run.world * run.world
        advice = f"use a smaller one, such as --batch {smaller}" if smaller else "use a smaller --size or --encoder"
        raise ValueError(f"out of memory on {run.device} at batch {recipe.batch} among {run.world} processes; {advice}")
    batch = largest(recipe, run)
    advice = f"--batch {batch} fits" if batch else "no batch fits; use a smaller --size or --encoder"
    advice += "" if run.recompute else ", or try --recompute"
    raise ValueError(f"out of memory on {run.device} at batch {recipe.batch}; {advice}")


def largest(recipe: Recipe, run: Run) -> int:
    """The first half, quarter, ... of the batch of which a step fits; 0 if none does."""
    batch = recipe.batch // 2
    while batch >= 2:
        try:
            _try(recipe, run, batch)
        except (RuntimeError, MemoryError) as error:
            if not _is_memory(error):
                raise
            batch //= 2
        else:
            return batch
    return 0


def _try(recipe: Recipe, run: Run, batch: int) -> None:
    """Two steps on blank views."""
    torch.cuda.empty_cache()
    engine = Engine(Learner(recipe), replace(run.gear, compile=False, graph=False))
    engine.start()
    shapes = [(view.count, batch, 3, view.size, view.size) for view in recipe.views]
    for _ in range(2):  # the second has the optimiser's state, too
        engine.step(1.0, [torch.zeros(shape, device=run.device) for shape in shapes])


def _is_memory(error: Exception) -> bool:
    """Torch has a type of error for GPUs, and only words for the CPU."""
    words = str(error)
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in words
