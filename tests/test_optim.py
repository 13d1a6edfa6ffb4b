import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from small import crops, shrink

from fastmoco import methods
from fastmoco.learner import Learner
from fastmoco.optim import LARS, SGD, AdamW, Lars, Schedule, build, rate, set_rate
from fastmoco.recipes import rows

PER_EPOCH = 2503  # ImageNet at batch 512
OPTIMS = [SGD(), SGD(decay_norms=False), AdamW(), LARS(lr=0.5)]


def learner(method="fast_moco", **changes):
    torch.manual_seed(0)
    return Learner(replace(shrink(getattr(methods, method)), encoder="timm/test_resnet", **changes))


def train(built, optimizer, steps, seed=0):
    """A few steps on noise, at a rate that changes with each."""
    for step in range(steps):
        set_rate(optimizer, built.recipe.optim, built.recipe.schedule, 1 / (1 + seed + step))
        loss = built(crops(built.recipe, seed=seed + step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        built.update()


def by_hand(t, epochs):
    """The paper's rate at its iteration t: from 0.025 to 0.1 in the first epoch, then a cosine to 0."""
    warm, last = 2503, 2503 * epochs
    if t <= warm:
        return 0.025 + 0.075 * (t - 1) / 2502
    return 0.05 * (1 + math.cos(math.pi * (t - warm) / (last - warm)))


def test_the_papers_rate_at_its_landmarks():
    steps = 100 * PER_EPOCH
    at = {t: 0.1 * rate(Schedule(), t, steps, PER_EPOCH) for t in (1, PER_EPOCH, steps)}
    assert at == {1: 0.025, PER_EPOCH: 0.1, steps: 0.0}


@pytest.mark.parametrize("epochs", [2, 20, 100])
def test_the_rate_equals_the_formula_written_out(epochs):
    steps = epochs * PER_EPOCH
    for t in (1, 2, 1000, 2502, 2503, 2504, 2600, steps // 2, steps - 1, steps):
        assert 0.1 * rate(Schedule(), t, steps, PER_EPOCH) == pytest.approx(by_hand(t, epochs), abs=1e-15)


@pytest.mark.parametrize("start", [0.0, 0.1, 0.25, 1 / 3, 0.7, 1.0])
@pytest.mark.parametrize("warmup", [0.5, 1.0, 3.0])
def test_start_top_and_end_are_exact_and_the_way_is_monotonous(start, warmup):
    per_epoch, epochs = 7, 5
    schedule, warm = Schedule(warmup, start), round(warmup * per_epoch)
    course = [rate(schedule, t, per_epoch * epochs, per_epoch) for t in range(1, per_epoch * epochs + 1)]
    assert (course[0], course[warm - 1], course[-1]) == (start, 1.0, 0.0)
    assert course[:warm] == sorted(course[:warm])
    assert course[warm - 1 :] == sorted(course[warm - 1 :], reverse=True)


def test_a_warm_up_of_no_or_one_iteration_and_one_that_fills_the_training():
    assert rate(Schedule(warmup=0.0), 1, 10, 5) == pytest.approx((1 + math.cos(math.pi / 10)) / 2)
    assert rate(Schedule(warmup=0.0), 10, 10, 5) == 0.0
    assert [rate(Schedule(warmup=0.2), t, 10, 5) for t in (1, 10)] == [1.0, 0.0]
    assert [rate(Schedule(warmup=2.0), t, 10, 5) for t in (1, 10)] == [0.25, 1.0]
    assert rate(Schedule(warmup=1.0), 1, 1, 1) == 1.0
    assert rate(Schedule(warmup=0.0), 1, 1, 1) == 0.0


@pytest.mark.parametrize("optim", OPTIMS, ids=lambda optim: type(optim).__name__)
@pytest.mark.parametrize("predictor", ["constant", "scheduled"])
def test_the_predictor_keeps_the_full_rate_throughout_if_it_is_constant(optim, predictor):
    schedule = Schedule(predictor=predictor)
    built = learner(optim=optim, schedule=schedule)
    optimizer = build(optim, built.online)
    own = {id(weight) for weight in built.online.predictor.parameters()}
    for step in (1, 3, 5, 20):
        part = rate(schedule, step, 20, 5)
        set_rate(optimizer, optim, schedule, part)
        for group in optimizer.param_groups:
            still = predictor == "constant" and {id(weight) for weight in group["params"]} <= own
            assert group["lr"] == (optim.lr if still else optim.lr * part)


@pytest.mark.parametrize("optim", OPTIMS, ids=lambda optim: type(optim).__name__)
def test_a_recorded_rate_is_written_to_where_it_lies(optim):
    schedule = Schedule()
    optimizer = build(optim, learner(optim=optim).online, recorded=True)
    rates = [group["lr"] for group in optimizer.param_groups]
    places = [rate.data_ptr() for rate in rates]
    assert len(set(places)) == len(places) > 1, "each group has its own"
    for part in (0.25, 1.0, 0.0):
        set_rate(optimizer, optim, schedule, part)
        wanted = [optim.lr * (1 if group["predictor"] else part) for group in optimizer.param_groups]
        assert [rate.item() for rate in rates] == pytest.approx(wanted)
        assert [group["lr"].data_ptr() for group in optimizer.param_groups] == places


@pytest.mark.parametrize("method", ["fast_moco", "simsiam", "byol", "nnclr"])
@pytest.mark.parametrize("optim", OPTIMS, ids=lambda optim: type(optim).__name__)
def test_every_weight_of_the_online_branch_is_in_one_group(method, optim):
    built = learner(method)
    groups = build(optim, built.online).param_groups
    grouped = [id(weight) for group in groups for weight in group["params"]]
    assert sorted(grouped) == sorted(id(weight) for weight in built.online.parameters())
    marked = {id(w) for group in groups if group["predictor"] for w in group["params"]}
    assert marked == {id(w) for w in built.online.predictor.parameters()}


def test_a_branch_without_a_predictor_has_one_group():
    built = learner()
    built.online.predictor = None
    assert [group["predictor"] for group in build(SGD(), built.online).param_groups] == [False]


def test_every_row_of_the_paper_names_an_optimiser_that_can_be_built():
    kinds = {type(row.recipe.optim) for row in rows().values()}
    assert kinds == {SGD, AdamW, LARS}
    branch = learner().online
    assert {type(build(kind(), branch)) for kind in kinds} == {torch.optim.SGD, torch.optim.AdamW, Lars}


# Weights and gradients of a matrix, a kernel, a vector, a scalar, a matrix of zeros and one without gradient.
SHAPES = [(4, 3), (2, 3, 2, 2), (5,), (), (3, 3), (2, 4)]


def problem(steps):
    generator = np.random.default_rng(0)
    weights = [generator.normal(size=shape) for shape in SHAPES]
    gradients = [[generator.normal(size=shape) for shape in SHAPES] for _ in range(steps)]
    weights[4] = np.zeros(SHAPES[4])
    for gradient in gradients:
        gradient[5] = np.zeros(SHAPES[5])
    return weights, gradients


def lars_by_hand(weights, gradients, lr, momentum, decay, trust):
    weights, buffers = [np.array(w) for w in weights], [np.zeros(np.shape(w)) for w in weights]
    for gradient in gradients:
        for i, g in enumerate(gradient):
            if weights[i].ndim > 1:
                g = g + decay * weights[i]
                ours, theirs = math.sqrt((weights[i] ** 2).sum()), math.sqrt((g**2).sum())
                g = g * (trust * ours / theirs if ours > 0 and theirs > 0 else 1.0)
            buffers[i] = momentum * buffers[i] + g
            weights[i] = weights[i] - lr * buffers[i]
    return weights


def stepped(make, weights, gradients):
    """The same by an optimiser that `make` makes of the weights."""
    tensors = [torch.nn.Parameter(torch.tensor(w, dtype=torch.double)) for w in weights]
    optimizer = make(tensors)
    for gradient in gradients:
        for tensor, g in zip(tensors, gradient, strict=True):
            tensor.grad = torch.tensor(g, dtype=torch.double)
        optimizer.step()
    return [tensor.detach().numpy() for tensor in tensors]


@pytest.mark.parametrize("decay", [1e-6, 0.0, 0.1])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_lars_equals_a_loop_by_hand(decay, steps):
    weights, gradients = problem(steps)
    values = LARS(lr=0.7, weight_decay=decay)
    after = stepped(lambda tensors: Lars([{"params": tensors}], values), weights, gradients)
    for ours, theirs in zip(after, lars_by_hand(weights, gradients, 0.7, 0.9, decay, 1e-3), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_lars_adapts_without_weight_decay_as_well():
    weights, gradients = problem(1)
    after = stepped(lambda tensors: Lars([{"params": tensors}], LARS(lr=1.0, weight_decay=0.0)), weights, gradients)
    moved = [np.linalg.norm(b - a) for a, b in zip(weights, after, strict=True)]
    assert moved[0] == pytest.approx(1e-3 * np.linalg.norm(weights[0]))
    assert moved[2] == pytest.approx(np.linalg.norm(gradients[0][2])), "vectors move by the gradient itself"


def test_lars_leaves_weights_without_gradient_alone():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = Lars([{"params": [weight]}], LARS())
    optimizer.step()
    assert torch.equal(weight, torch.ones(2, 2))
    assert not optimizer.state


def on_branch(optim, built, recorded=False):
    """All weights by the optimiser that `build` made, with gradients by hand."""
    optimizer = build(optim, built.online, recorded)
    weights = [w for group in optimizer.param_groups for w in group["params"]]
    generator = torch.Generator().manual_seed(0)
    gradients = [[torch.randn(w.shape, generator=generator) for w in weights] for _ in range(3)]
    before = [w.detach().double().numpy().copy() for w in weights]
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
    return before, [[g.double().numpy() for g in step] for step in gradients], [w.detach().numpy() for w in weights]


@pytest.mark.parametrize("all_of_it", [True, False])
def test_sgd_decays_everything_or_matrices_only_and_equals_its_formula(all_of_it):
    before, gradients, after = on_branch(SGD(lr=0.3, weight_decay=0.01, decay_norms=all_of_it), learner())
    assert {weight.ndim for weight in before} == {1, 2, 4}
    for i, weight in enumerate(before):
        buffer, decay = np.zeros_like(weight), 0.01 if all_of_it or weight.ndim > 1 else 0.0
        for step in gradients:
            buffer = 0.9 * buffer + step[i] + decay * weight
            weight = weight - 0.3 * buffer
        np.testing.assert_allclose(after[i], weight, rtol=1e-4, atol=1e-5)


def test_adamw_decays_everything_and_equals_its_formula():
    before, gradients, after = on_branch(AdamW(lr=0.01, betas=(0.8, 0.9), weight_decay=0.5), learner())
    for i, weight in enumerate(before):
        first, second = np.zeros_like(weight), np.zeros_like(weight)
        for t, step in enumerate(gradients, 1):
            weight = weight * (1 - 0.01 * 0.5)
            first, second = 0.8 * first + 0.2 * step[i], 0.9 * second + 0.1 * step[i] ** 2
            weight = weight - 0.01 * first / (1 - 0.8**t) / (np.sqrt(second / (1 - 0.9**t)) + 1e-8)
        np.testing.assert_allclose(after[i], weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optim", OPTIMS, ids=lambda optim: type(optim).__name__)
def test_steps_at_recorded_rates_are_the_same_steps(optim):
    before, _, after = on_branch(optim, learner())
    _, _, recorded = on_branch(optim, learner(), recorded=True)
    for start, ours, theirs in zip(before, recorded, after, strict=True):
        np.testing.assert_allclose(ours - start, theirs - start, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("optim", OPTIMS, ids=lambda optim: type(optim).__name__)
def test_a_restart_from_a_file_continues_bit_by_bit(optim, tmp_path):
    through = learner(optim=optim)
    optimizer = build(optim, through.online)
    train(through, optimizer, 2)
    torch.save({"learner": through.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    train(through, optimizer, 2, seed=2)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    again = Learner(through.recipe)
    again.load_state_dict(state["learner"])
    restarted = build(optim, again.online)
    restarted.load_state_dict(state["optimizer"])
    assert [group["predictor"] for group in restarted.param_groups] == [x["predictor"] for x in optimizer.param_groups]
    train(again, restarted, 2, seed=2)
    for name, value in through.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
