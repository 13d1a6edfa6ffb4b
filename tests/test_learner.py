from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from small import crops, shrink

from fastmoco import methods
from fastmoco.heads import simsiam_predictor, simsiam_projector
from fastmoco.learner import Learner
from fastmoco.recipe import View
from fastmoco.recipes import find
from fastmoco.steps import Combine, Divide, Encode, Predict, Project


def train(recipe, steps=3):
    """Losses and final weights of a few steps with the recipe's update."""
    torch.manual_seed(0)
    learner = Learner(recipe)
    optimizer = torch.optim.SGD(learner.online.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        loss = learner(crops(recipe, seed=step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        learner.update()
        losses.append(loss.item())
    return losses, learner.state_dict()


def same(first, second):
    losses, weights = first
    return losses == second[0] and all(torch.equal(weights[key], second[1][key]) for key in weights)


def test_fast_moco_with_one_patch_is_mocov3_bit_for_bit():
    one = methods.both((Divide(1), Encode(), Combine(1), Project(), Predict()))
    assert same(train(shrink(replace(methods.fast_moco, views=one))), train(shrink(methods.mocov3)))


def test_four_patches_stitched_at_the_input_are_mocov3_bit_for_bit():
    stitched = find("figure3a/input_4").recipe
    assert same(train(shrink(stitched)), train(shrink(replace(stitched, views=methods.mocov3.views))))


def test_fast_moco_is_algorithm_1():
    recipe = shrink(methods.fast_moco)
    torch.manual_seed(0)
    learner = Learner(recipe)
    (x1,), (x2,) = batch = crops(recipe)

    def divide(x):
        half = x.shape[2] // 2
        return torch.cat([x[..., i : i + half, j : j + half] for i in (0, half) for j in (0, half)])

    def combine(v):
        v = v.chunk(4)
        return torch.cat([(v[i] + v[j]) / 2 for i in range(4) for j in range(i + 1, 4)])

    def ctr(z_c, z):
        z_c, z = F.normalize(z_c, dim=1), F.normalize(z, dim=1)
        parts = [F.cross_entropy(part @ z.T, torch.arange(len(z))) for part in z_c.split(len(z))]
        return sum(parts) / len(parts)

    online, momentum = learner.online, learner.momentum
    z1_c, z2_c = (online.predictor(online.projector(combine(online.encoder(divide(x))))) for x in (x1, x2))
    with torch.no_grad():
        z1, z2 = (momentum.projector(momentum.encoder(x)) for x in (x1, x2))
    loss = (ctr(z1_c, z2) + ctr(z2_c, z1)) / 2
    gradient = torch.autograd.grad(loss, list(online.parameters()))

    ours = learner(batch)
    torch.testing.assert_close(ours, loss)
    for a, b in zip(torch.autograd.grad(ours, list(online.parameters())), gradient, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("passes", [1, 2])
def test_simsiam_is_its_classic_single_pass(passes, monkeypatch):
    if passes == 2:  # the same with a second pass for the target, as combinatorial patches need
        monkeypatch.setattr(Learner, "common", lambda self, view: 0)
    recipe = shrink(replace(methods.simsiam, projector=simsiam_projector, predictor=simsiam_predictor))
    torch.manual_seed(0)
    learner = Learner(recipe)
    (x1,), (x2,) = batch = crops(recipe)
    online = learner.online
    z1, z2 = (online.projector(online.encoder(x)) for x in (x1, x2))
    p1, p2 = online.predictor(z1), online.predictor(z2)
    loss = -(F.cosine_similarity(p1, z2.detach()).mean() + F.cosine_similarity(p2, z1.detach()).mean()) / 2
    gradient = torch.autograd.grad(loss, list(online.parameters()))
    ours = learner(batch)
    torch.testing.assert_close(ours, loss)
    for a, b in zip(torch.autograd.grad(ours, list(online.parameters())), gradient, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_without_momentum_each_view_passes_once_and_with_patches_twice():
    for method, passes in ((methods.simsiam, 1), (find("table1/nnclr").recipe, 1), (methods.simsiam_patches, 2)):
        recipe = shrink(method)
        learner = Learner(recipe)
        learner(crops(recipe))
        assert learner.online.encoder.net.bn1.num_batches_tracked == 2 * passes


def test_each_view_is_a_pass_of_its_own_and_its_samples_share_statistics():
    recipe, rows = shrink(methods.fast_moco), {}
    learner = Learner(recipe)
    for side in ("online", "momentum"):
        for name, network in getattr(learner, side).named_children():
            seen = rows.setdefault((side, name), [])
            network.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(len(inputs[0])))
    learner(crops(recipe, images=4))
    assert rows == {
        ("online", "encoder"): [16, 16],
        ("online", "projector"): [24, 24],
        ("online", "predictor"): [24, 24],
        ("momentum", "encoder"): [4, 4],
        ("momentum", "projector"): [4, 4],
    }


def test_crops_of_one_row_are_one_pass():
    recipe, rows = shrink(find("table4b/mocov3_multicrop").recipe), []
    learner = Learner(recipe)
    learner.online.encoder.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    learner(crops(recipe, images=4))
    assert rows == [4, 4, 24]


def test_the_target_is_gathered_and_contrasted_once_however_many_samples_meet_it(monkeypatch):
    recipe = shrink(find("table4a/sample_encode_combine").recipe)
    learner, calls = Learner(recipe), []
    contrast = type(recipe.contrast).__call__

    def counted(self, samples, target, own):
        calls.append(samples.shape[0])
        return contrast(self, samples, target, own)

    monkeypatch.setattr(type(recipe.contrast), "__call__", counted)
    learner(crops(recipe))
    assert calls == [28, 28]


def test_every_pair_counts_the_same_however_many_share_a_target():
    third = View(target=methods.whole)
    recipe = shrink(replace(methods.fast_moco, views=(*methods.fast_moco.views, third)))
    torch.manual_seed(0)
    learner, batch = Learner(recipe), crops(recipe)
    learner(batch)
    samples, targets = learner.latest
    assert [len(group) for group in recipe.meetings()] == [6, 6, 12]
    own = torch.arange(recipe.batch)
    terms = [
        recipe.contrast(samples.x[s : s + 1], targets.x[t], own)
        for t, met in enumerate([range(6, 12), range(6), range(12)])
        for s in met
    ]
    torch.testing.assert_close(learner(batch), torch.cat(terms).mean())


def test_the_loss_of_a_constant_encoder_is_ln_n():
    recipe = shrink(methods.fast_moco)
    learner = Learner(recipe)
    with torch.no_grad():
        learner.online.predictor[-1].weight.zero_()
        learner.online.predictor[-1].bias.fill_(1.0)
    assert learner(crops(recipe)).item() == pytest.approx(recipe.contrast.chance(recipe.batch), rel=0.2)
    with torch.no_grad():
        learner.momentum.projector[-1].weight.zero_()
        learner.momentum.projector[-1].bias.fill_(1.0)
    assert learner(crops(recipe)).item() == pytest.approx(recipe.contrast.chance(recipe.batch), rel=1e-6)


@pytest.mark.parametrize(
    "shapes",
    [
        [],
        [(1, 4, 3, 32, 32)],
        [(1, 4, 3, 32, 32)] * 3,
        [(4, 1, 3, 32, 32)] * 2,
        [(2, 4, 3, 32, 32)] * 2,
        [(1, 4, 3, 48, 48)] * 2,
        [(1, 0, 3, 32, 32)] * 2,
        [(4, 3, 32, 32)] * 2,
        [(1, 4, 3, 32, 32), (1, 5, 3, 32, 32)],
    ],
)
def test_a_batch_of_another_shape_is_refused(shapes):
    learner = Learner(shrink(methods.fast_moco))
    with pytest.raises(ValueError, match=r"this recipe needs \(1, images, 3, 32, 32\), \(1, images, 3, 32, 32\)"):
        learner._check([torch.zeros(shape) for shape in shapes])


def test_a_state_dict_brings_everything_back():
    for method in (methods.fast_moco, methods.nnclr_patches, methods.simsiam_patches):
        recipe = shrink(method)
        torch.manual_seed(0)
        first, second = Learner(recipe), Learner(recipe)
        first(crops(recipe))
        first.update()
        second.load_state_dict(first.state_dict())
        assert first(crops(recipe, seed=1)).item() == second(crops(recipe, seed=1)).item()
