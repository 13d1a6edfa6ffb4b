import pytest
import torch
import torch.nn.functional as F

from fastmoco.evaluate.probe import probe
from fastmoco.evaluate.scores import top1


def gaussians(train, test, classes, width, apart, seed=0):
    """Classes around random centres, through a random mixing of the dimensions."""
    generator = torch.Generator().manual_seed(seed)
    centres = apart * torch.randn(classes, width, generator=generator)
    mixing = torch.eye(width) + 0.5 * torch.randn(width, width, generator=generator) / width**0.5
    sets = []
    for count in (train, test):
        labels = torch.randint(classes, (count,), generator=generator)
        sets += [(centres[labels] + torch.randn(count, width, generator=generator)) @ mixing, labels]
    return sets


def logistic_regression(x, y, test, classes):
    """Its optimum, by a second-order method in float64."""
    x, test = torch.cat([x, torch.ones(len(x), 1)], 1).double(), torch.cat([test, torch.ones(len(test), 1)], 1).double()
    weight = torch.zeros(classes, x.shape[1], dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(x @ weight.T, y)
        loss.backward()
        return loss

    optimizer.step(closure)
    return (test @ weight.T).detach()


def test_separable_features_are_separated():
    x, y, test, truth = gaussians(2000, 1000, classes=10, width=64, apart=3.0)
    assert top1(probe(x, y, test, 10, epochs=20), truth) == 100.0


@pytest.mark.parametrize("apart", [0.2, 0.4])
def test_overlapping_classes_are_judged_as_by_logistic_regression(apart):
    x, y, test, truth = gaussians(3000, 4000, classes=6, width=24, apart=apart)
    reference = top1(logistic_regression(x, y, test, 6), truth)
    assert 30 < reference < 95
    assert top1(probe(x, y, test, 6), truth) == pytest.approx(reference, abs=1.5)


def test_rare_classes_keep_their_rarity():
    x, y, test, truth = gaussians(3000, 4000, classes=6, width=24, apart=0.2)
    keep, left = (y < 2) | (torch.arange(len(y)) % 10 == 0), (truth < 2) | (torch.arange(len(truth)) % 10 == 0)
    reference = top1(logistic_regression(x[keep], y[keep], test[left], 6), truth[left])
    assert top1(probe(x[keep], y[keep], test[left], 6), truth[left]) == pytest.approx(reference, abs=1.5)


def test_random_labels_are_judged_as_chance():
    generator = torch.Generator().manual_seed(0)
    x, test = torch.randn(2000, 16, generator=generator), torch.randn(4000, 16, generator=generator)
    y, truth = (torch.randint(5, (count,), generator=generator) for count in (2000, 4000))
    assert top1(probe(x, y, test, 5, epochs=20), truth) == pytest.approx(20.0, abs=3)


def test_the_scale_and_the_place_of_a_dimension_do_not_count():
    x, y, test, truth = gaussians(2000, 2000, classes=6, width=24, apart=0.4)
    scale, place = torch.logspace(-4, 4, 24), torch.logspace(-3, 2, 24)
    plain = top1(probe(x, y, test, 6, epochs=20), truth)
    assert top1(probe((x + place) * scale, y, (test + place) * scale, 6, epochs=20), truth) == pytest.approx(
        plain, abs=0.5
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 12345.678, -1e-20])
def test_a_dimension_that_never_varies_does_no_harm(value):
    x, y, test, truth = gaussians(500, 500, classes=4, width=8, apart=2.0)
    flat, odd = torch.full((500, 1), value), torch.randn(500, 1, generator=torch.Generator().manual_seed(0)) * 1e3
    scores = probe(torch.cat([x, flat], 1), y, torch.cat([test, odd], 1), 4, epochs=10)
    assert top1(scores, truth) == pytest.approx(top1(probe(x, y, test, 4, epochs=10), truth), abs=0.5)


def test_the_seed_decides_and_the_global_state_is_not_touched():
    x, y, test, _ = gaussians(300, 50, classes=3, width=8, apart=0.5)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = probe(x, y, test, 3, seed=1, epochs=3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert torch.equal(probe(x, y, test, 3, seed=1, epochs=3), first)
    assert not torch.equal(probe(x, y, test, 3, seed=2, epochs=3), first)


def test_it_learns_inside_an_evaluation_without_gradients():
    x, y, test, _ = gaussians(300, 50, classes=3, width=8, apart=0.5)
    plain = probe(x, y, test, 3, epochs=3)
    assert not plain.requires_grad
    with torch.no_grad():
        assert torch.equal(probe(x, y, test, 3, epochs=3), plain)
    with torch.inference_mode():
        assert torch.equal(probe(x.clone(), y.clone(), test.clone(), 3, epochs=3), plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(probe(x, y, test, 3, epochs=3), plain)


def test_features_of_a_diverged_training_are_refused_in_a_line():
    x, y, test, _ = gaussians(300, 50, classes=3, width=8, apart=0.5)
    with pytest.raises(ValueError, match="not finite"):
        probe(x * float("inf"), y, test, 3)


def test_without_an_image_to_learn_from_there_is_no_probe():
    with pytest.raises(ValueError, match="no labelled image could be read"):
        probe(torch.zeros(0, 8), torch.zeros(0, dtype=torch.long), torch.randn(5, 8), 3)
