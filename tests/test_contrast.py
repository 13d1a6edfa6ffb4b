import math
import os
import time
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from small import crops, shrink
from torch import nn

from fastmoco import distributed, methods
from fastmoco.contrast import Cosine, InfoNCE
from fastmoco.learner import Learner
from fastmoco.support import Support

S, B, N, D = 3, 4, 6, 8
GENERATOR = torch.Generator().manual_seed(0)
SAMPLES, TARGET = torch.randn(S, B, D, generator=GENERATOR), torch.randn(N, D, generator=GENERATOR)
OWN = torch.tensor([1, 2, 3, 4])


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


@pytest.mark.parametrize("tau", [0.1, 0.2, 1.0])
def test_infonce_equals_eq_2_written_as_a_loop(tau):
    samples, target = SAMPLES.double().tolist(), TARGET.double().tolist()
    for s, loss in enumerate(InfoNCE(tau)(SAMPLES, TARGET, OWN).tolist()):
        terms = []
        for i in range(B):
            scores = [math.exp(cosine(samples[s][i], z) / tau) for z in target]
            terms.append(-math.log(scores[OWN[i]] / sum(scores)))
        assert loss == pytest.approx(sum(terms) / B, rel=1e-5)


def test_cosine_equals_a_loop():
    samples, target = SAMPLES.double().tolist(), TARGET.double().tolist()
    for s, loss in enumerate(Cosine()(SAMPLES, TARGET, OWN).tolist()):
        assert loss == pytest.approx(-sum(cosine(samples[s][i], target[OWN[i]]) for i in range(B)) / B, rel=1e-5)


@pytest.mark.parametrize("batch", [2, 64, 512])
def test_embeddings_that_know_nothing_lose_ln_n(batch):
    same, own = torch.ones(1, batch, D), torch.arange(batch)
    assert InfoNCE()(same, same[0], own).item() == pytest.approx(math.log(batch), rel=1e-6)
    assert InfoNCE().chance(batch) == math.log(batch)


def test_unrelated_directions_have_no_cosine():
    torch.manual_seed(0)
    wide = torch.randn(1, 512, 4096), torch.randn(512, 4096)
    assert Cosine()(*wide, torch.arange(512)).item() == pytest.approx(Cosine().chance(512), abs=1e-2)


@pytest.mark.parametrize("contrast", [InfoNCE(0.2), Cosine()])
def test_a_half_precision_network_is_contrasted_in_float32(contrast):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = contrast(SAMPLES, TARGET, OWN)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, contrast(SAMPLES, TARGET, OWN))
    half = SAMPLES.bfloat16(), TARGET.bfloat16()
    assert torch.equal(contrast(*half, OWN), contrast(half[0].float(), half[1].float(), OWN))


def linear_learner(recipe) -> Learner:
    """Without norms, whose statistics on a CPU are of one process, so that only the contrast crosses processes."""
    torch.manual_seed(0)
    learner = Learner(recipe)
    width = recipe.projector.widths[-1]
    for branch in (learner.online, learner.momentum):
        branch.encoder = Flat()
        branch.projector = nn.Linear(16, width)
    learner.online.predictor = nn.Linear(width, width)
    return learner


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3 * 16 * 16, 16)

    def forward(self, x, start=0, stop=5):
        return self.layer(nn.functional.interpolate(x, size=16).flatten(1))


def step(recipe, batch):
    learner = linear_learner(recipe)
    loss = learner(batch)
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in learner.online.parameters()])


def process(rank, world, recipe, batch, folder):
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    share = [x[:, rank::world].contiguous() for x in batch]
    loss, gradient = step(recipe, share)
    for value in (loss, gradient):
        torch.distributed.all_reduce(value)
        value /= world
    gathered = distributed.gather(torch.full((2, 3), float(rank), requires_grad=True))
    assert not gathered.requires_grad
    support = Support(4, 2)
    support(torch.nn.functional.one_hot(torch.tensor([rank]), 2).float())
    support.store()
    if rank == 0:
        result = {"loss": loss, "gradient": gradient, "gathered": gathered, "stored": support.vectors[:2]}
        torch.save(result, f"{folder}/result.pt")
    leave_together(rank, world, folder)


def leave_together(rank, world, folder):
    """End at once when all are through: taking gloo's threads down at exit now and then aborts a process."""
    Path(f"{folder}/through{rank}").touch()
    while not all(Path(f"{folder}/through{other}").exists() for other in range(world)):
        time.sleep(0.01)
    os._exit(0)


@pytest.mark.parametrize("method", ["fast_moco", "nnclr_patches", "byol"])
def test_two_processes_equal_one_on_the_joined_batch(method, tmp_path):
    recipe = shrink(getattr(methods, method))
    batch = crops(recipe, images=8)
    mp.spawn(process, args=(2, recipe, batch, str(tmp_path)), nprocs=2)
    result = torch.load(tmp_path / "result.pt", weights_only=True)
    # The order of images over processes is of no matter to a mean.
    loss, gradient = step(recipe, batch)
    torch.testing.assert_close(result["loss"], loss)
    torch.testing.assert_close(result["gradient"], gradient)
    assert result["gathered"].tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2
    assert result["stored"].tolist() == [[1.0, 0.0], [0.0, 1.0]], "each process stores the targets of all"


def test_on_one_process_the_collectives_are_identities():
    x = torch.randn(2, 3, requires_grad=True)
    assert torch.equal(distributed.gather(x), x)
    assert not distributed.gather(x).requires_grad
    assert (distributed.world(), distributed.rank()) == (1, 0)
