"""What can only be seen on a GPU. Skipped without one: run these there after a change of the engine or of decoding."""

from dataclasses import replace

import pytest
import torch
from test_nvjpeg import batches, encoded, folder, picture

from fastmoco import methods
from fastmoco.draws import Draws
from fastmoco.engine import Engine, Gear
from fastmoco.heads import MLP
from fastmoco.learner import Learner
from fastmoco.loader import Stream
from fastmoco.methods import both, encode, patches
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
    "ViT": small(methods.fast_moco, optim=AdamW(lr=1e-3), encoder="timm/test_vit"),  # without batch norm
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
    same(recorded, plain)
    assert len(set(recorded[0])) == STEPS, "a step that is played back computes something each time"


def same(ours, theirs):
    """Not to the last bits: products round as TF32, and kernels are chosen by how long they take."""
    assert ours[0] == pytest.approx(theirs[0], rel=1e-3, abs=2e-3)
    assert ((ours[1] - theirs[1]).norm() / theirs[1].norm()).item() < 0.02


@pytest.mark.parametrize("name", ["SGD", "ViT"])
def test_what_is_computed_again_learns_the_same(name):
    same(learn(ROWS[name], Gear(GPU, recompute=True)), learn(ROWS[name], Gear(GPU)))


@pytest.mark.parametrize("recompute", [False, True])
def test_parts_of_a_batch_learn_what_the_batch_does(recompute):
    same(learn(ROWS["ViT"], Gear(GPU, recompute=recompute, micro=5)), learn(ROWS["ViT"], Gear(GPU)))


def test_memory_is_spared():
    """Of what a step takes, with large batches of large images."""
    recipe = replace(ROWS["ViT"], views=both(patches, size=320), batch=64)
    took = [most(recipe, gear) for gear in (Gear(GPU), Gear(GPU, recompute=True), Gear(GPU, recompute=True, micro=16))]
    assert took == sorted(took, reverse=True)
    assert took[2] < 0.8 * took[0]


def most(recipe, gear):
    """Bytes of the GPU that two steps take at the most."""
    engine = Engine(Learner(recipe), gear)
    engine.start()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        shape = (1, recipe.batch, 3, recipe.size(), recipe.size())
        engine.step(1.0, [torch.randn(shape, device=GPU) for _ in recipe.views])
    return torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("subsampling", [0, 2])
def test_jpegs_that_the_gpu_decodes_are_those_that_workers_do(tmp_path, subsampling):
    images = folder(
        tmp_path, [encoded(picture(96 + i, 80 - i, i), quality=95, subsampling=subsampling) for i in range(20)]
    )
    draws = Draws(both(encode, size=64), 6, 3, 0, len(images))
    by_gpu, by_workers = (Stream(images, draws, GPU, 0, compile=False, decode=way) for way in ("gpu", "cpu"))
    for (one, ours), (other, theirs) in zip(batches(by_gpu), batches(by_workers), strict=True):
        assert one.index.equal(other.index)
        assert not one.bad
        for a, b in zip(ours, theirs, strict=True):
            assert a.device.type == GPU.type
            assert (a - b).abs().mean() < 0.05  # of values with a deviation of about one; decoders round differently


def test_a_compiled_and_recorded_step_begins_as_a_plain_one():
    fast, plain = (learn(ROWS["SGD"], Gear(GPU, compile=quick, graph=quick))[0] for quick in (True, False))
    assert fast[:4] == pytest.approx(plain[:4], rel=1e-2)
