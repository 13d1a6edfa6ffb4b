import torch
from small import BLANK, stack

from fastmoco.merge import Beta, Max, Weighted
from fastmoco.steps import Combine

PATCHES = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))


def combine(step, grid=2):
    return step(stack(PATCHES, grid), BLANK)


def test_combining_one_is_the_identity():
    combined = combine(Combine(1))
    assert torch.equal(combined.x, PATCHES)
    assert combined.seen == stack(PATCHES).seen


def test_combining_all_is_the_mean():
    torch.testing.assert_close(combine(Combine(4)).x, PATCHES.mean(0, keepdim=True))


def test_combinations_equal_brute_force():
    combined = combine(Combine(2))
    brute = [(PATCHES[i] + PATCHES[j]) / 2 for i in range(4) for j in range(4) if i < j]
    assert torch.equal(combined.x, torch.stack(brute))
    assert combined.seen == tuple(frozenset({i, j}) for i in range(4) for j in range(4) if i < j)


def test_max_takes_the_larger_of_each_channel():
    brute = [torch.stack([PATCHES[i], PATCHES[j]]).amax(0) for i in range(4) for j in range(4) if i < j]
    assert torch.equal(combine(Combine(2, Max())).x, torch.stack(brute))


def test_weights_go_from_the_patches_themselves_to_the_four_edges():
    assert sorted(combine(Combine(2, Weighted(1.0))).x.flatten(1).tolist()) == sorted(PATCHES.flatten(1).tolist())
    half = combine(Combine(2, Weighted(0.5))).x.flatten(1).tolist()
    assert sorted(half) == sorted(combine(Combine(2, count=4)).x.flatten(1).tolist())


def test_a_weighted_average_gives_gamma_to_the_first():
    combined = combine(Combine(2, Weighted(0.7)))
    torch.testing.assert_close(combined.x[0], 0.7 * PATCHES[0] + 0.3 * PATCHES[1])


def test_beta_weights_are_drawn_for_every_combination_of_every_image():
    torch.manual_seed(0)
    patches = torch.tensor([0.0, 1.0, 0.0, 1.0]).reshape(4, 1, 1).expand(4, 3, 2)
    mixed = Combine(2, Beta(1.0))(stack(patches), BLANK).x
    assert torch.equal(mixed[..., 0], mixed[..., 1]), "one weight for all channels"
    drawn = torch.minimum(mixed, 1 - mixed)[..., 0]
    assert len(drawn[drawn > 0].unique()) == 4 * 3, "four of the six pairs have different ends"


def test_beta_weights_have_the_variance_of_their_distribution():
    torch.manual_seed(0)
    ends = torch.tensor([0.0, 1.0]).reshape(2, 1, 1).expand(2, 20_000, 1)
    for alpha in (0.2, 1.0, 4.0, 16.0):
        drawn = Combine(2, Beta(alpha))(stack(ends), BLANK).x
        assert drawn.shape == (1, 20_000, 1)
        assert drawn.min() >= 0
        assert drawn.max() <= 1
        # The variance of Beta(a, a) is 1 / (4 (2 a + 1)).
        assert abs(drawn.mean() - 0.5) < 0.02
        assert abs(drawn.var() * 4 * (2 * alpha + 1) - 1) < 0.05
