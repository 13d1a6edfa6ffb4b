"""Memory spared against the plain step: the same loss, gradients, weights and statistics, of less that is kept."""

import copy
from dataclasses import replace
from datetime import timedelta
from functools import cache

import pytest
import torch
import torch.distributed as dist
import warm
from small import crops, narrow, shrink
from test_distributed import leave_together
from torch import nn
from torch.multiprocessing.spawn import start_processes

from fastmoco import distributed, encoder, methods, optim, thrift
from fastmoco.descent import descend
from fastmoco.learner import Learner
from fastmoco.norm import synchronise
from fastmoco.recipes import find

STEPS, MICRO = 2, 3
# Compiled parts of a network get tensors that are no leaves, of which torch asks the gradient.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
RECIPES = {
    "fast_moco": methods.fast_moco,
    "mocov3": methods.mocov3,
    "simsiam": methods.simsiam,
    "inside": find("figure3a/stage2_4").recipe,
    "montage": find("table4a/montage_encode_divide_combine").recipe,
    "vit": replace(methods.fast_moco, encoder="timm/test_vit"),
    "convnext": replace(methods.simsiam, encoder="timm/test_convnext"),
    "efficientnet": replace(methods.fast_moco, encoder="timm/test_efficientnet"),  # norms with activations inside
    "regnet": replace(methods.mocov3, encoder="timm/regnetx_002"),  # whose blocks stand in no row
}
SMALL = {name: shrink(recipe) for name, recipe in RECIPES.items()}
PLAIN, SPARED = (False, 0), [(True, 0), (False, MICRO), (True, MICRO)]
# It takes batch norm apart before it divides a graph, as the default backend does.
BACKEND = "aot_eager_decomp_partition"


def made(name, spared, dropout=0.0):
    torch.manual_seed(0)
    learner = Learner(SMALL[name])
    for module in learner.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    synchronise(learner, torch.device("cpu"), compile=True)
    thrift.spare(learner, *spared)
    return learner


def train(name, spared, compiled=False, dropout=0.0):
    """All losses, all gradients, and all that is there after each step, by name; on a group, of this rank."""
    with narrow:
        learner = made(name, spared, dropout).double()
    if compiled:
        for branch in filter(None, (learner.online, learner.momentum)):
            branch.encoder.compile(dynamic=False, fullgraph=True, backend=BACKEND)
    forward, optimizer = distributed.parallel(learner), optim.build(learner.recipe.optim, learner.online)
    found = {}
    for step in range(STEPS):
        views = [x.double() for x in crops(learner.recipe, seed=step + 10 * distributed.rank())]
        found[f"loss {step}"] = descend(learner, optimizer, views, forward=forward)[0]
        found |= {f"gradient {step} {key}": x.grad.clone() for key, x in learner.online.named_parameters()}
        found |= {f"state {step} {key}": x.clone() for key, x in learner.state_dict().items()}
    return found


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-9, atol=1e-10, msg=lambda text, key=key: f"{key}: {text}")


@cache
def plain(name):
    return train(name, PLAIN)


@pytest.fixture(autouse=True, scope="module")
def _forgotten():
    """What plain steps have made is gigabytes, and no other file needs it."""
    yield
    plain.cache_clear()


# MoCo v3 is there with a RegNet, and a ResNet with Fast-MoCo.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "mocov3")) for name in RECIPES]
)
def test_what_is_computed_again_learns_the_same(name):
    same(train(name, (True, 0)), plain(name))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["vit", "convnext"])
def test_parts_of_a_batch_learn_what_the_batch_does(name, recompute):
    same(train(name, (recompute, MICRO)), plain(name))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "spared", "encoders"),
    # One graph for each branch; more for paths that stop inside, and for parts of 3 and of 2 images.
    [
        ("fast_moco", (True, 0), 2),
        pytest.param("inside", (True, 0), 3, marks=pytest.mark.slow),
        ("vit", (True, MICRO), 3),
    ],
)
def test_networks_are_still_one_graph_each_and_learn_the_same(name, spared, encoders):
    theirs = plain(name)
    torch._dynamo.utils.counters.clear()
    same(train(name, spared, compiled=True), theirs)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == encoders


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_random_numbers_are_the_same_again(compiled, monkeypatch):
    ours = [train("vit", spared, compiled, dropout=0.3) for spared in ((True, 0), (False, MICRO))]
    # The same, with all of it kept.
    monkeypatch.setattr(thrift, "checkpoint", lambda call, *args, use_reentrant, context_fn=None: call(*args))
    torch.compiler.reset()
    theirs = [train("vit", spared, compiled, dropout=0.3) for spared in (PLAIN, (False, MICRO))]
    for spared, whole in zip(ours, theirs, strict=True):
        assert abs(spared["loss 0"] - plain("vit")["loss 0"]) > 1e-3
        same(spared, whole)


def test_rounding_to_bfloat16_is_the_same_again():
    losses = []
    for spared in (PLAIN, (True, 0)):
        learner = made("vit", spared)
        optimizer = optim.build(learner.recipe.optim, learner.online)
        losses += [[descend(learner, optimizer, crops(learner.recipe, seed=step), bf16=True)[0] for step in range(2)]]
    assert torch.stack(losses[0]).isfinite().all()
    assert losses[0] == losses[1]


def kept(name, spared, compiled=False):
    """Bytes that wait for the backward pass, besides weights."""
    learner = made(name, spared)
    if compiled:
        learner.online.encoder.compile(dynamic=False, fullgraph=True, backend=BACKEND)
    own = {x.untyped_storage().data_ptr() for x in learner.state_dict().values()}
    waiting = {}

    def pack(x):
        if (place := x.untyped_storage().data_ptr()) not in own:
            waiting[place] = x.untyped_storage()  # held, so that no other takes its place
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        learner(crops(learner.recipe))
    return sum(storage.nbytes() for storage in waiting.values())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "compiled"), [("fast_moco", False), ("fast_moco", True), ("vit", False)])
def test_what_is_computed_again_is_not_kept(name, compiled):
    assert kept(name, (True, 0), compiled) < 0.3 * kept(name, PLAIN, compiled)


@pytest.mark.parametrize("recompute", [False, True])
def test_of_a_part_only_images_and_embeddings_are_kept(recompute):
    views = sum(x.nbytes for x in crops(SMALL["vit"]))
    assert views < kept("vit", (recompute, MICRO)) < views + 0.2 * kept("vit", PLAIN)


def test_an_encoder_sees_at_most_so_many_images_at_a_time():
    learner, seen = made("vit", (False, MICRO)), {}
    for name, branch in (("online", learner.online), ("momentum", learner.momentum)):
        hook = lambda module, args, name=name: seen.setdefault(name, []).append(len(args[0]))  # noqa: E731
        branch.encoder.register_forward_pre_hook(hook)
    learner(crops(learner.recipe)).backward()
    # 4 images: of 16 patches and 4 views in each of 2 rows; what has a gradient is seen a second time.
    assert seen == {"online": [3, 3, 3, 3, 2, 2] * 2 + [*reversed([3, 3, 3, 3, 2, 2] * 2)], "momentum": [2, 2] * 2}


@pytest.mark.parametrize("encoder", ["resnet18", "timm/test_resnet", "timm/test_efficientnet"])
def test_parts_of_a_batch_norm_are_refused(encoder):
    learner = Learner(replace(SMALL["fast_moco"], encoder=encoder))
    with pytest.raises(ValueError, match=f"--micro 32: {encoder} has batch norm, .* timm/convnext_tiny, or --recomp"):
        thrift.spare(learner, False, 32)


def test_fewer_than_no_images_are_refused():
    with pytest.raises(ValueError, match="--micro -1: use a number of images, or 0 for all at once"):
        thrift.spare(Learner(SMALL["vit"]), False, -1)


@pytest.mark.parametrize("spared", SPARED)
def test_names_of_weights_stay_and_a_copy_is_its_own(spared):
    learner = made("vit", spared)
    assert [*learner.state_dict()] == [*Learner(SMALL["vit"]).state_dict()]
    eye, x = learner.online.encoder, torch.randn(4, 3, 16, 16)
    other = copy.deepcopy(eye)
    with torch.no_grad():
        other.net.norm.bias += 1
        assert isinstance(eye, encoder.Timm)
        assert torch.equal(eye.forward(x), made("vit", PLAIN).online.encoder(x))
        assert not torch.allclose(other(x), eye(x))


@pytest.mark.parametrize(
    ("name", "count", "kind"),
    [
        ("resnet50", 16, "Bottleneck"),
        ("timm/vit_tiny_patch16_224", 12, "Block"),
        ("timm/convnext_tiny", 18, "ConvNeXt"),
    ],
)
def test_blocks_are_those_that_a_model_is_known_by(name, count, kind):
    with torch.device("meta"):
        found = thrift.blocks(encoder.build(name))
    assert len(found) == count
    assert all(type(block).__name__.startswith(kind) for block in found)


GROUP = [("fast_moco", (True, 0)), ("vit", (True, MICRO))]


def process(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=120))
    for name, spared in GROUP:
        found = [train(name, PLAIN), train(name, spared)]
        if name == "fast_moco":
            found.append(train(name, spared, compiled=True))
        torch.save(found, f"{folder}/{name}-{rank}.pt")
    leave_together(rank, 2, folder)


@pytest.mark.slow
def test_two_processes_learn_the_same_and_stay_the_same(tmp_path):
    warm.ready()
    start_processes(process, args=(str(tmp_path),), nprocs=2, start_method="forkserver")
    for name, _ in GROUP:
        ranks = [torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True) for rank in range(2)]
        for theirs, *ours in ranks:
            for found in ours:
                same(found, theirs)
        states = [[x for key, x in rank[1].items() if key.startswith("state")] for rank in ranks]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*states, strict=True))
