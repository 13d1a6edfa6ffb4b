"""What can only be seen on a GPU. Skipped without one: run these there after a change of the engine or of decoding."""

from dataclasses import replace

import pytest
import torch

from fastmoco import methods
from fastmoco.engine import Engine, Gear
from fastmoco.heads import MLP
from fastmoco.learner import Learner
from fastmoco.methods import both, patches
from fastmoco.optim import LARS, SGD, AdamW
from fastmoco.recipe import Recipe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
GPU = torch.device("cuda")
STEPS = 12


def small(recipe, **changes):
    heads = {"projector": MLP((64, 64), last="norm"), "predictor": MLP((32, 64))}
    views = both(patches, size=64) if "views" not in changes else changes["views"]
    return replace(recipe, **{**heads, "views": views, "encoder": "resnet18", "batch": 16, **changes})


ROWS = {
    "SGD": small(methods.fast_moco, optim=SGD(lr=0.05)),
    "AdamW": small(methods.fast_moco, optim=AdamW(lr=1e-3)),
    "LARS": small(methods.fast_moco, optim=LARS(lr=1.0)),
    "SimSiam": small(methods.simsiam, optim=SGD(lr=0.05)),
}


def learn(recipe: Recipe, gear: Gear) -> tuple[list[float], torch.Tensor]:
    """The losses of some steps on the same noise, at rates that differ, and how far they have moved all weights."""
    torch.manual_seed(0)
    engine = Engine(Learner(recipe), gear)
    engine.start()
    start = weights(engine)
    noise = torch.Generator().manual_seed(1)
    losses = []
    for step in range(STEPS):
        views = [torch.randn(1, 16, 3, 64, 64, generator=noise).to(gear.device) for _ in recipe.views]
        losses.append(engine.step(1 / (1 + step), views)[0].item())
    return losses, weights(engine) - start


def weights(engine: Engine) -> torch.Tensor:
    """All that the learner remembers, statistics and momentum branch included."""
    return torch.cat([value.detach().double().cpu().flatten() for value in engine.learner.state_dict().values()])


@pytest.mark.parametrize("name", ROWS)
def test_a_recorded_step_learns_what_one_that_is_not_does(name):
    recorded, plain = (learn(ROWS[name], Gear(GPU, graph=graph)) for graph in (True, False))
    # Not to the last bits: products round as TF32, and kernels are chosen by how long they take.
    assert recorded[0] == pytest.approx(plain[0], rel=1e-3, abs=2e-3)
    assert len(set(recorded[0])) == STEPS, "a step that is played back computes something each time"
    assert ((recorded[1] - plain[1]).norm() / plain[1].norm()).item() < 0.02


def test_a_compiled_and_recorded_step_begins_as_a_plain_one():
    fast, plain = (learn(ROWS["SGD"], Gear(GPU, compile=quick, graph=quick))[0] for quick in (True, False))
    assert fast[:4] == pytest.approx(plain[:4], rel=1e-2)
