"""Two and four processes against one: each has a part of the batch, and all is as if it were joined."""

import copy
import os
import time
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import warm
from small import narrow, shrink
from torch import nn
from torch.multiprocessing.spawn import start_processes

from fastmoco import distributed, methods, optim
from fastmoco.descent import descend
from fastmoco.health import measure
from fastmoco.learner import Learner
from fastmoco.norm import synchronise
from fastmoco.pairs import meetings
from fastmoco.recipes import find

IMAGES = 4  # in the joined batch: one for each rank, at most
STEPS = 10

RECIPES = {
    "fast_moco": methods.fast_moco,
    "byol_patches": methods.byol_patches,
    "nnclr_patches": methods.nnclr_patches,
    "simsiam_patches": methods.simsiam_patches,
    "montage": find("table4a/montage_encode_divide_combine").recipe,
    "multicrop": find("table4b/mocov3_multicrop").recipe,
    "beta": find("figure4b/alpha_4").recipe,
    # A norm with an activation inside, and the heads of its own.
    "timm": replace(methods.fast_moco, encoder="timm/test_efficientnet"),
}

# More ranks cost more than they tell: four take what moves rows between ranks, and two the others, or both if asked.
FEW = ("collectives", "fast_moco", "nnclr_patches", "montage")
OTHERS = tuple(name for name in RECIPES if name not in FEW)
PARTS = [(4, FEW, ()), (2, OTHERS, ()), (2, FEW, pytest.mark.slow), (4, OTHERS, pytest.mark.slow)]


def on_ranks(*names):
    """The numbers of ranks that a test is for, with each of these names."""
    cases = [(world, part, name, marks) for world, part, marks in PARTS for name in part if name in names]
    given = [pytest.param((world, part), name, id=f"{world}-{name}", marks=marks) for world, part, name, marks in cases]
    return pytest.mark.parametrize(("found", "name"), given, indirect=["found"])


def small(name):
    recipe = shrink(RECIPES[name])
    # The set is smaller than what three steps bring, so the oldest are replaced, too.
    return replace(recipe, support=20 if recipe.support else 0)


def batch(recipe, step):
    generator = torch.Generator().manual_seed(step)
    shapes = [(view.count, IMAGES, 3, view.size, view.size) for view in recipe.views]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def train(name):
    """Losses, the gradients of the first step, and all that is there after ten, of this rank."""
    recipe, images = small(name), IMAGES // distributed.world()
    torch.manual_seed(0)
    with narrow:
        learner = Learner(recipe).double()
    synchronise(learner, torch.device("cpu"))
    forward = distributed.parallel(learner)
    optimizer = optim.build(recipe.optim, learner.online)
    losses, first = [], {}
    for step in range(STEPS):
        mine = [x[:, distributed.rank() * images :][:, :images] for x in batch(recipe, step)]
        loss, norm = descend(learner, optimizer, mine, forward=forward)
        losses.append(distributed.total(loss) / distributed.world())
        if step == 0:
            first = {key: value.grad.clone() for key, value in learner.online.named_parameters()}
            first["norm"] = norm
    samples, targets = learner.latest
    health = measure(samples.x, targets.x, meetings(recipe.pairs, samples.seen, targets.seen))
    return {"losses": torch.stack(losses), "gradients": first, "state": learner.state_dict(), "health": health}


def process(rank, world, names, folder):
    torch.set_num_threads(1)
    limit = timedelta(seconds=120)  # for any of them to wait
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world, timeout=limit)
    for name in names:
        result = collectives(rank, world) if name == "collectives" else train(name)
        torch.save(result, f"{folder}/{name}-{rank}.pt")
    leave_together(rank, world, folder)


def leave_together(rank, world, folder):
    """End at once when all are through: taking gloo's threads down at exit now and then aborts a process."""
    Path(f"{folder}/through{rank}").touch()
    while not all(Path(f"{folder}/through{other}").exists() for other in range(world)):
        time.sleep(0.01)
    os._exit(0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Where so many ranks leave what they find; they are started once for all tests."""

    @cache
    def start(world, names):
        folder = tmp_path_factory.mktemp("world")
        warm.ready()
        start_processes(process, args=(world, names, str(folder)), nprocs=world, start_method="forkserver")
        return folder

    return start


@pytest.fixture
def found(request, folders):
    """What each rank has found, by name."""
    world, names = request.param
    folder = folders(world, names)
    return lambda name: [torch.load(folder / f"{name}-{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.fixture(scope="module")
def alone():
    return {name: train(name) for name in RECIPES}


def close(ours, theirs, tolerance=1e-9):
    for key, value in theirs.items():
        torch.testing.assert_close(
            ours[key], value, rtol=tolerance, atol=tolerance, msg=lambda text, key=key: f"{key}: {text}"
        )


@on_ranks(*RECIPES)
def test_loss_and_every_gradient_are_those_of_the_joined_batch(name, found, alone):
    for ours in found(name):
        torch.testing.assert_close(ours["losses"][0], alone[name]["losses"][0], rtol=1e-12, atol=1e-12)
        assert ours["gradients"].keys() == alone[name]["gradients"].keys()
        close(ours["gradients"], alone[name]["gradients"])


@on_ranks(*RECIPES)
def test_ten_steps_are_those_of_one_process(name, found, alone):
    for ours in found(name):
        # Rounding grows from step to step, by far the most where a batch of four is normalised.
        close(ours, {"losses": alone[name]["losses"]}, 1e-6)
        assert ours["state"].keys() == alone[name]["state"].keys()
        close(ours["state"], alone[name]["state"], 1e-5)
        close(ours["health"], alone[name]["health"], 1e-4)


@on_ranks(*RECIPES)
def test_ranks_stay_the_same_to_the_last_bit(name, found):
    first, *others = found(name)
    for other in others:
        assert all(torch.equal(value, other["state"][key]) for key, value in first["state"].items())


def collectives(rank, world):
    torch.manual_seed(rank)
    # Plain and with an activation inside; with uneven numbers of images, and in eval mode afterwards.
    x = torch.randn(1 + rank, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    norm = nn.Sequential(nn.BatchNorm2d(3)).double()
    with torch.no_grad():
        norm[0].weight.copy_(torch.arange(1.0, 4.0)), norm[0].bias.copy_(torch.arange(3.0))
    synchronise(norm, torch.device("cpu"))
    y = norm(x)
    (y * torch.arange(y.numel()).view_as(y)).sum().backward()
    compiled, given = copy.deepcopy(norm), x.detach().clone().requires_grad_()
    compiled.compile(fullgraph=True, backend="aot_eager", dynamic=False)
    z = compiled(given)
    (z * torch.arange(z.numel()).view_as(z)).sum().backward()
    rows = torch.arange(6.0).view(3, 2) + 10 * rank
    places = torch.randperm(3 * world, generator=torch.Generator().manual_seed(5))
    moved = rows.clone().requires_grad_()
    permuted = distributed.permute(moved, places)
    (permuted * (1 + rank)).sum().backward()
    return {
        "x": x.detach(),
        "y": y.detach(),
        "gradient": x.grad,
        "weight": norm[0].weight.grad,
        "bias": norm[0].bias.grad,
        "compiled": [z.detach(), given.grad],
        "running": [norm[0].running_mean, norm[0].running_var, norm[0].num_batches_tracked],
        "eval": norm.eval()(x.detach()).detach(),
        "keys": list(norm.state_dict()),
        "gathered": distributed.gather(torch.full((2, 3), float(rank), requires_grad=True)),
        "uneven": distributed.concatenate(torch.full((rank, 2), rank)),
        "none": distributed.concatenate(torch.zeros(0, 2)),
        "rows": rows,
        "permuted": permuted.detach(),
        "moved": moved.grad,
        "places": places,
        "silent": distributed.agree(None),
        "heard": distributed.agree("news" if rank == 1 else None),
        "told": distributed.tell(lambda: f"from {distributed.rank()}"),
        "refused": refused(lambda: distributed.tell(refuse)),
        "together": refused(lambda: one_refuses(world)),
        "share": [list(distributed.share(10)), list(distributed.share(10, 4)), list(distributed.share(1, 4))],
    }


def refuse():
    raise ValueError("rank 0 does not want to")


def one_refuses(world):
    with distributed.together():
        if distributed.rank() == world - 1:
            raise FileNotFoundError(2, "No such file or directory", "images")


def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was refused")


@on_ranks("collectives")
def test_batch_norm_is_plain_batch_norm_of_the_joined_batch(name, found):
    ranks = found(name)
    x = torch.cat([each["x"] for each in ranks]).requires_grad_()
    norm = nn.BatchNorm2d(3).double()
    with torch.no_grad():
        norm.weight.copy_(torch.arange(1.0, 4.0)), norm.bias.copy_(torch.arange(3.0))
    y = norm(x)
    ramp = torch.cat([torch.arange(each["y"].numel()).view_as(each["y"]) for each in ranks])
    (y * ramp).sum().backward()
    torch.testing.assert_close(torch.cat([each["y"] for each in ranks]), y)
    torch.testing.assert_close(torch.cat([each["gradient"] for each in ranks]), x.grad)
    # What weights learn is added up by DistributedDataParallel.
    torch.testing.assert_close(sum(each["weight"] for each in ranks), norm.weight.grad)
    torch.testing.assert_close(sum(each["bias"] for each in ranks), norm.bias.grad)
    for each in ranks:
        torch.testing.assert_close(each["running"], [norm.running_mean, norm.running_var, norm.num_batches_tracked])
        assert torch.allclose(each["compiled"][0], each["y"])
        assert torch.allclose(each["compiled"][1], each["gradient"])
        assert each["keys"] == [f"0.{key}" for key in norm.state_dict()]
    torch.testing.assert_close(torch.cat([each["eval"] for each in ranks]), norm.eval()(x))


@on_ranks("collectives")
def test_rows_are_gathered_in_the_order_of_ranks(name, found):
    ranks = found(name)
    for each in ranks:
        assert each["gathered"].tolist() == [[float(rank)] * 3 for rank in range(len(ranks)) for _ in range(2)]
        assert not each["gathered"].requires_grad
        assert each["uneven"].tolist() == [[rank] * 2 for rank in range(len(ranks)) for _ in range(rank)]
        assert each["none"].shape == (0, 2)


@on_ranks("collectives")
def test_rows_are_permuted_over_all_ranks_with_their_gradient(name, found):
    ranks = found(name)
    places = ranks[0]["places"]
    assert torch.equal(torch.cat([each["permuted"] for each in ranks]), torch.cat([r["rows"] for r in ranks])[places])
    weights = torch.arange(1.0, len(ranks) + 1).repeat_interleave(3)  # by which the taker has multiplied them
    expected = torch.zeros(3 * len(ranks)).index_put((places,), weights)
    assert torch.equal(torch.cat([each["moved"] for each in ranks]), expected[:, None].expand(-1, 2))


@on_ranks("collectives")
def test_what_one_rank_knows_all_know(name, found):
    for each in (ranks := found(name)):
        assert each["silent"] is None
        assert each["heard"] == [None, "news", *[None] * (len(ranks) - 2)]
        assert each["told"] == "from 0"
        assert each["refused"] == "rank 0 does not want to"
        assert each["together"] == f"rank {len(ranks) - 1}: images: No such file or directory"


@on_ranks("collectives")
def test_shares_are_whole_blocks_and_all_of_them(name, found):
    tens, blocks, one = zip(*(each["share"] for each in found(name)), strict=True)
    for parts in (tens, blocks):
        assert [*chain(*parts)] == list(range(10))
    assert all(part == [] or part[0] % 4 == 0 for part in blocks)
    assert [*chain(*one)] == [0]


def test_on_one_process_all_of_it_is_an_identity():
    x = torch.randn(2, 3, requires_grad=True)
    assert torch.equal(distributed.gather(x), x)
    assert not distributed.gather(x).requires_grad
    assert (distributed.world(), distributed.rank(), distributed.leads()) == (1, 0, True)
    assert torch.equal(distributed.permute(x, torch.tensor([1, 0])), x.flip(0))
    assert distributed.agree(None) is None
    assert distributed.agree(3) == [3]
    assert distributed.tell(lambda: 3) == 3
    assert distributed.share(5, 2) == range(5)
    assert distributed.parallel(nn.Linear(1, 1)) is None
    norm = nn.Sequential(nn.BatchNorm1d(2))
    synchronise(norm, torch.device("cpu"))
    assert type(norm[0]) is nn.BatchNorm1d


def test_what_is_refused_alone_is_not_changed():
    with pytest.raises(FileNotFoundError), distributed.together():
        raise FileNotFoundError(2, "No such file or directory", "images")
