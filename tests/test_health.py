import math

import numpy as np
import pytest
import torch
from small import crops, shrink

from fastmoco import methods
from fastmoco.contrast import Cosine, InfoNCE
from fastmoco.health import LINES, drift, measure, off, outrun, peak, rank, verdict
from fastmoco.learner import Learner
from fastmoco.pairs import meetings
from fastmoco.target import Momentum

B, D = 128, 32
CHANCE = math.log(B)
GOOD = {
    "train/loss": CHANCE - 0.5,
    "train/lr": 0.1,
    "train/grad_norm": 0.8,
    "health/std": 0.9,
    "health/rank": 20.0,
    "health/alignment": 0.7,
    "health/negatives": 0.0,
    "health/drift": 0.02,
    "perf/data_wait": 0.05,
}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def judge(chance=CHANCE, batch=B, width=D, lines=LINES, **changes):
    line = GOOD | {name.replace("_", "/", 1): value for name, value in changes.items()}
    return verdict([line] * lines, chance, batch, width)


def judge_embeddings(targets, loss=CHANCE - 0.5):
    """The verdict on a training whose last batches all had these targets."""
    measured = {name: value.item() for name, value in measure(targets, targets, [(0,)]).items()}
    return verdict([GOOD | {"train/loss": loss} | measured] * LINES, CHANCE, *targets.shape[1:])


def test_cosines_equal_loops_over_pairs():
    samples, targets = draw(5, 6, 8), draw(2, 6, 8, seed=1)
    met = [(0, 2, 3), (1, 4)]
    measured = measure(samples, targets, met)
    p, z = samples.double().numpy(), targets.double().numpy()
    p, z = p / np.linalg.norm(p, axis=-1, keepdims=True), z / np.linalg.norm(z, axis=-1, keepdims=True)
    own = [p[s, i] @ z[t, i] for t, group in enumerate(met) for s in group for i in range(6)]
    others = [
        p[s, i] @ z[t, j] for t, group in enumerate(met) for s in group for i in range(6) for j in range(6) if i != j
    ]
    assert measured["health/alignment"].item() == pytest.approx(np.mean(own), abs=1e-6)
    assert measured["health/negatives"].item() == pytest.approx(np.mean(others), abs=1e-6)
    spread = [math.sqrt(np.mean((z[t, :, d] - z[t, :, d].mean()) ** 2)) for t in range(2) for d in range(8)]
    assert measured["health/std"].item() == pytest.approx(np.mean(spread) * math.sqrt(8), rel=1e-5)
    values = np.linalg.svd(z[0], compute_uv=False)
    parts = values / values.sum()
    assert measured["health/rank"].item() == pytest.approx(math.exp(-(parts * np.log(parts)).sum()), rel=1e-5)


def test_alignment_is_the_cosine_loss_of_a_learner():
    recipe = shrink(methods.byol_patches)
    torch.manual_seed(0)
    learner, batch = Learner(recipe), crops(recipe)
    learner(batch)
    samples, targets = learner.latest
    measured = measure(samples.x, targets.x, meetings(recipe.pairs, samples.seen, targets.seen))
    assert not any(value.requires_grad for value in measured.values())
    assert measured["health/alignment"].item() == pytest.approx(-learner(batch).item(), abs=1e-6)


def test_directions_all_over_the_sphere_have_a_spread_of_one():
    measured = measure(draw(1, 4096, 64, seed=1), draw(1, 4096, 64), [(0,)])
    assert measured["health/std"].item() == pytest.approx(1.0, abs=0.01)
    assert measured["health/rank"].item() > 63
    assert measured["health/negatives"].item() == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("images", [4, 128])
def test_a_point_has_neither_spread_nor_rank(images):
    point = draw(D).expand(2, images, D) * torch.rand(2, images, 1, generator=torch.Generator().manual_seed(1))
    measured = measure(point, point, [(1,), (0,)])
    assert measured["health/std"].item() == pytest.approx(0.0, abs=1e-5)
    assert measured["health/rank"].item() == pytest.approx(1.0, abs=1e-3)
    assert measured["health/alignment"].item() == pytest.approx(1.0, abs=1e-5)
    assert measured["health/negatives"].item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("shape", [(40, 24), (24, 40), (30, 30)])
def test_the_rank_of_a_known_spectrum(shape):
    left, right = (torch.linalg.qr(draw(side, side, seed=side))[0] for side in shape)
    for spectrum in ([1.0], [2.0, 2.0, 2.0], [1.0] * 24, [8.0, 4.0, 2.0, 1.0], [1e3, 1.0]):
        parts = [value / sum(spectrum) for value in spectrum]
        known = math.exp(-sum(part * math.log(part) for part in parts))
        x = left[:, : len(spectrum)] * torch.tensor(spectrum) @ right[: len(spectrum)]
        assert rank(x).item() == pytest.approx(known, rel=1e-3)


def test_half_precision_is_measured_in_full():
    samples, targets = draw(2, 16, D).bfloat16(), draw(2, 16, D, seed=1).bfloat16()
    full = measure(samples.float(), targets.float(), [(1,), (0,)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = measure(samples, targets, [(1,), (0,)])
    assert all(torch.equal(half[name], value) for name, value in full.items())


def test_a_diverged_batch_is_measured_without_an_error():
    wrong = torch.full((1, 4, 8), float("nan"))
    assert measure(wrong, wrong, [(0,)])["health/std"].isnan()


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_drift_follows_its_closed_form(steps):
    torch.manual_seed(0)
    learner, alpha = Learner(shrink(methods.mocov3)), 0.9
    for weight in learner.online.parameters():
        weight.data += 0.1 * torch.randn(weight.shape)
    start = drift(learner.online, learner.momentum)
    pairs = list(zip(learner.momentum.parameters(), learner.online.parameters(), strict=False))  # the predictor is last
    apart = math.sqrt(sum((a.double() - b.double()).square().sum().item() for a, b in pairs))
    whole = math.sqrt(sum(b.double().square().sum().item() for _, b in pairs))
    assert start.item() == pytest.approx(apart / whole, rel=1e-4)
    for _ in range(steps):
        Momentum(alpha).update(learner.online, learner.momentum)
    assert drift(learner.online, learner.momentum).item() == pytest.approx(alpha**steps * start.item(), rel=1e-3)


def test_a_branch_that_is_its_own_target_does_not_drift():
    learner = Learner(shrink(methods.simsiam))
    assert drift(learner.online, learner.target).item() == 0.0


def test_healthy():
    assert judge() == "healthy: loss 4.35 below chance 4.85, embeddings spread 0.90 of 1, rank 20.0 of 32"
    assert judge_embeddings(draw(1, B, D)).startswith("healthy")


def test_collapse_to_a_point_or_a_line_is_seen_in_embeddings():
    assert judge_embeddings(draw(D).expand(1, B, D) + 0.01 * draw(1, B, D)).startswith(
        "collapsing: embeddings spread 0.0"
    )
    line = draw(1, B, 1) * draw(D, seed=1)
    assert judge_embeddings(line).startswith("collapsing: embeddings spread")
    assert judge_embeddings(line).endswith("rank 1.0 of 32")
    assert judge_embeddings(line[:, :4]).endswith("rank 1.0 of 4")


@pytest.mark.parametrize(("images", "width"), [(4, 8), (4, 2048), (64, 8), (512, 256)])
def test_small_batches_and_widths_are_not_taken_for_collapse(images, width):
    assert judge_embeddings(draw(1, images, width)).startswith("healthy")
    # Ten classes without anything inside them are few directions, but no collapse.
    assert judge_embeddings(draw(10, width)[None, torch.arange(images) % 10]).startswith("healthy")


@pytest.mark.parametrize("images", [2, 3])
def test_so_few_images_that_a_norm_alone_spreads_them_are_no_evidence(images):
    normed = torch.nn.functional.batch_norm(draw(images, D), None, None, training=True)
    for targets in (normed, draw(D).expand(images, D)):  # a training that is well, and one that has collapsed
        assert judge_embeddings(targets[None]) == (
            f"unsure: loss 4.35 below chance 4.85, but {images} of the 4 images in a batch that a verdict needs"
        )
    assert judge(batch=images, train_loss=CHANCE) == "not learning yet: loss 4.85 at chance 4.85"
    assert judge(batch=images, perf_data_wait=0.62).startswith("loader-bound")


def test_collapse_without_negatives_is_a_perfect_loss_of_no_use():
    point = draw(D).expand(1, B, D)
    loss = Cosine()(point, point[0], torch.arange(B)).item()
    assert loss == pytest.approx(-1.0)
    measured = {name: value.item() for name, value in measure(point, point, [(0,)]).items()}
    lines = [GOOD | {"train/loss": loss} | measured] * LINES
    assert verdict(lines, Cosine().chance(B), B, D) == "collapsing: embeddings spread 0.00 of 1, rank 1.0 of 32"
    assert verdict([GOOD | {"train/loss": -0.8}] * LINES, 0.0, B, D).startswith("healthy: loss -0.80 below chance 0.00")
    assert verdict([GOOD | {"train/loss": 0.01}] * LINES, 0.0, B, D) == "not learning yet: loss 0.01 at chance 0.00"


def test_collapse_with_negatives_is_not_only_called_chance():
    point = draw(D).expand(1, B, D)
    loss = InfoNCE()(point, point[0], torch.arange(B)).item()
    assert loss == pytest.approx(CHANCE)
    assert judge_embeddings(point, loss).startswith("collapsing")


def test_a_rate_that_is_too_high():
    assert judge(train_loss=5.9, train_grad_norm=38.0) == (
        "learning rate too high: loss 5.90 above chance 4.85 and gradient norm 38"
    )
    assert judge(train_loss=4.85, health_drift=0.9) == (
        "learning rate too high: loss 4.85 at chance 4.85 and the target behind by 0.90 of the weights"
    )
    assert judge(train_grad_norm=38.0, health_drift=0.9).startswith("healthy"), "what learns has a rate that works"


def test_at_or_above_chance_with_small_gradients_is_not_learning_yet():
    assert judge(train_loss=CHANCE - 0.01) == "not learning yet: loss 4.84 at chance 4.85"
    assert judge(train_loss=5.5) == "not learning yet: loss 5.50 above chance 4.85"


def test_waiting_for_data_comes_after_health():
    loader = "loader-bound: 62 % waiting for data; try more --workers, or --loader resident"
    assert judge(perf_data_wait=0.62) == loader
    assert judge(perf_data_wait=0.62, train_loss=CHANCE) == f"not learning yet: loss 4.85 at chance 4.85; {loader}"
    assert judge(perf_data_wait=0.62, health_std=0.01).startswith("collapsing")
    waiting = [GOOD | {"perf/data_wait": 0.62}] * LINES
    assert verdict(waiting, CHANCE, B, D, resident=True) == (
        "loader-bound: 62 % waiting for draws; a larger --batch, in a new training, waits less"
    )


def test_a_channel_is_off_if_its_scale_is_nothing_beside_the_largest_of_its_norm():
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 1),  # whose weights are no scales
        torch.nn.BatchNorm2d(4),
        torch.nn.BatchNorm2d(3, affine=False),
        torch.nn.GroupNorm(2, 2),
        torch.nn.LayerNorm(4),
    )
    assert off(network).item() == 0.0, "a fresh network has none"
    for place, scales in {1: [2.0, -1.0, 0.019, -0.021], 3: [1e-6, 1e-6], 4: [0.0] * 4}.items():
        network[place].weight.data = torch.tensor(scales)
    assert off(network).item() == pytest.approx(0.1), "one of ten: small scales that are alike, or all 0, are not off"
    assert off(torch.nn.Linear(3, 4)).item() == 0.0


def test_a_learner_tells_of_channels_that_are_off():
    recipe = shrink(methods.fast_moco)
    learner = Learner(recipe)
    learner(crops(recipe))
    assert learner.health()["health/off"].item() == 0.0
    norms = [module for module in learner.online.encoder.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.weight.data = torch.arange(len(norm.weight)).clamp(max=1).float()
    expected = len(norms) / sum(len(norm.weight) for norm in norms)
    assert learner.health()["health/off"].item() == pytest.approx(expected)


def test_channels_that_are_lost_are_told_with_what_to_do():
    lost = "losing channels: 27 % are off; try a lower optim.weight_decay"
    assert judge(health_off=0.27) == lost
    assert judge(health_off=0.27, train_loss=CHANCE) == f"not learning yet: loss 4.85 at chance 4.85; {lost}"
    assert judge(health_off=0.2).startswith("healthy")


def test_the_first_lines_are_no_verdict_unless_the_loss_is_lost():
    assert judge(lines=0).startswith("starting: 0 of")
    assert judge(lines=LINES - 1, health_std=0.0, train_loss=9.0, perf_data_wait=0.9).startswith("starting")
    assert judge(lines=1, train_loss=math.nan).startswith("diverged: loss nan")
    assert judge(lines=9, train_loss=math.inf).startswith("diverged: loss inf")


def test_one_odd_line_changes_nothing_and_old_lines_are_forgotten():
    odd = GOOD | {"health/std": 0.0, "train/loss": 99.0, "train/grad_norm": 1e6, "perf/data_wait": 1.0}
    assert verdict([GOOD, GOOD, odd], CHANCE, B, D).startswith("healthy")
    assert verdict([odd] * 9 + [GOOD] * LINES, CHANCE, B, D).startswith("healthy")
    assert verdict([GOOD] * 9 + [odd] * LINES, CHANCE, B, D).startswith("collapsing")


def test_what_was_not_logged_is_not_judged():
    few = {name: GOOD[name] for name in ("train/loss", "health/std", "health/rank")}
    assert verdict([few] * LINES, CHANCE, B, D).startswith("healthy")


def judged(*knn, images=10_000, step=None):
    lines = [{"step": 10 * place, "val/knn_top1": value, "val/images": images} for place, value in enumerate(knn, 1)]
    end = 10 * len(knn) if step is None else step
    return peak([{"step": 5, "train/loss": 1.0}, *lines, {"step": end, "train/loss": 0.5}], end)


def test_a_training_is_past_its_best_if_it_has_fallen_by_more_than_chance():
    assert judged(70.0, 87.1, 86.5, 85.8) == (20, 87.1, 85.8)
    assert judged(70.0, 87.1, 86.1) is None, "a point"
    assert judged(70.0, 80.0) is None
    # Of 400 images, 80 % have a standard error of two points.
    assert judged(83.9, 80.0, images=400) is None
    assert judged(84.1, 80.0, images=400) == (10, 84.1, 80.0)


def test_the_target_branch_is_ahead_if_it_is_so_by_more_than_chance():
    def compare(target, online, images=10_000):
        both = {"val/target_knn_top1": target, "val/knn_top1": online, "val/images": images}
        return outrun([{"step": 5, "val/knn_top1": 0.0}, {"step": 10, **both}])

    assert compare(86.4, 82.0) == (86.4, 82.0)
    assert compare(83.0, 82.0) is None, "a point"
    assert compare(82.0, 86.4) is None
    # Of 400 images, 80 % have a standard error of two points.
    assert compare(83.9, 80.0, images=400) is None
    assert compare(84.1, 80.0, images=400) == (84.1, 80.0)
    assert compare(84.1, 80.0, images=0) is None
    assert compare(30.0, 0.0, images=10) is None, "three of ten, and none"
    assert outrun([]) is None
    assert outrun([{"step": 10, "val/knn_top1": 80.0, "val/images": 400}]) is None, "it has no target branch"


def test_what_was_not_judged_at_the_end_has_no_peak():
    assert judged() is None
    assert judged(87.0, 70.0, step=30) is None
    assert judged(87.0, 70.0, images=0) is None
