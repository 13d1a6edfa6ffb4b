"""A device without enough memory, pretended: what is tried, and what is told."""

from dataclasses import replace

import pytest
import torch

from fastmoco import memory, methods
from fastmoco.engine import Gear
from fastmoco.run import Run

RUN = Run(
    device=torch.device("cpu"),
    bf16=False,
    compile=True,
    loader="auto",
    workers=0,
    seed=0,
    log_every=1,
    save_every=1,
    keep_every=0,
    knn_every=0,
    graph=True,
)
RECIPE = replace(methods.mocov3, batch=32)


@pytest.fixture
def gears(monkeypatch):
    """How each trial was to be computed, of an engine for which more than four images are too many."""
    seen = []

    class Pretended:
        def __init__(self, learner, gear):
            seen.append(gear)

        def start(self):
            pass

        def step(self, part, views):
            if views[0].shape[1] > 4:
                raise torch.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr(memory, "Engine", Pretended)
    monkeypatch.setattr(memory, "Learner", lambda recipe: recipe)
    monkeypatch.setattr(memory.torch, "zeros", lambda shape, device: torch.empty(shape, device="meta"))
    return seen


@pytest.mark.parametrize(
    ("recompute", "advice"), [(False, "--batch 4 fits, or try --recompute"), (True, "--batch 4 fits")]
)
def test_a_line_names_the_batch_that_fits_computed_as_the_run_is(gears, recompute, advice):
    run = replace(RUN, recompute=recompute, micro=3)
    with (
        pytest.raises(ValueError, match=f"^out of memory on cpu at batch 32; {advice}$"),
        memory.explained(RECIPE, run),
    ):
        raise torch.OutOfMemoryError("tried to allocate")
    # Neither compiled nor recorded, which would take a minute for each; with all that saves memory.
    assert set(gears) == {Gear(run.device, recompute=recompute, micro=3)}
    assert len(gears) == 3  # 16, 8, 4


def test_other_errors_stay_what_they_are(gears):
    with pytest.raises(RuntimeError, match="something else"), memory.explained(RECIPE, RUN):
        raise RuntimeError("something else")
    assert not gears
