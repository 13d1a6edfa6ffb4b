from itertools import combinations
from math import comb, gcd

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import BLANK, stack

from fastmoco.patches import divide, ring, stitch, subsets, tiles
from fastmoco.steps import Divide, Stitch


@pytest.mark.parametrize("m", [1, 2, 3])
def test_stitching_what_was_divided_gives_the_view_back(m):
    x = torch.randn(2, 3, 3, 6 * m, 4 * m)
    assert torch.equal(stitch(divide(x, m), tiles(2 * m * m, m, m, m), m, m), x)


@given(s=st.integers(1, 3), b=st.integers(1, 3), m=st.integers(1, 4), h=st.integers(1, 3), w=st.integers(1, 3))
def test_the_steps_are_inverse_too_and_remember_their_view(s, b, m, h, w):
    views = stack(torch.randn(s, b, 3, h * m, w * m))
    whole = Stitch(m, m)(Divide(m)(views, BLANK), BLANK)
    assert torch.equal(whole.x, views.x)
    assert whole.seen == views.seen


def test_patches_are_in_reading_order():
    x = torch.randn(1, 2, 3, 8, 8)
    top_left, top_right, bottom_left, bottom_right = divide(x, 2)
    assert torch.equal(top_left, x[0, :, :, :4, :4])
    assert torch.equal(top_right, x[0, :, :, :4, 4:])
    assert torch.equal(bottom_left, x[0, :, :, 4:, :4])
    assert torch.equal(bottom_right, x[0, :, :, 4:, 4:])


def test_two_patches_stitched_in_their_place_are_half_of_the_view():
    x = torch.randn(1, 2, 3, 8, 8)
    lying = Stitch(1, 2)(Divide(2)(stack(x), BLANK), BLANK)
    standing = Stitch(2, 1)(Divide(2)(stack(x), BLANK), BLANK)
    assert torch.equal(lying.x, torch.stack([x[0, :, :, :4], x[0, :, :, 4:]]))
    assert torch.equal(standing.x, torch.stack([x[0, ..., :4], x[0, ..., 4:]]))


def test_tiles_are_in_reading_order_too():
    x = torch.randn(2, 1, 3, 8, 8)
    assert torch.equal(stitch(divide(x, 4), tiles(32, 4, 2, 2), 2, 2), divide(x, 2))


def test_crops_without_a_place_are_stitched_in_their_order():
    assert tiles(8, 1, 1, 2) == tiles(8, 1, 2, 1) == ((0, 1), (2, 3), (4, 5), (6, 7))


@pytest.mark.parametrize(("patches", "n"), [(4, 1), (4, 2), (4, 4), (8, 2), (9, 4)])
def test_all_subsets_equal_brute_force(patches, n):
    brute = {frozenset(bits) for size in range(patches + 1) for bits in combinations(range(patches), size) if size == n}
    assert {frozenset(group) for group in subsets(patches, n, 1)} == brute
    assert len(subsets(patches, n, 1)) == comb(patches, n)


def test_fewer_samples_are_the_two_halves_and_then_the_four_edges():
    assert subsets(4, 2, 2, count=2) == ((0, 2), (1, 3))
    assert subsets(4, 2, 2, count=4) == ((0, 1), (0, 2), (1, 3), (2, 3))
    assert subsets(4, 2, 2, count=6) == subsets(4, 2, 2)


@given(st.data())
def test_every_count_that_can_be_balanced_is(data):
    grid = data.draw(st.sampled_from([1, 2, 3]))
    patches = data.draw(st.integers(1, 9)) if grid == 1 else grid * grid
    n = data.draw(st.integers(1, patches))
    unit = patches // gcd(patches, n)
    count = unit * data.draw(st.integers(1, comb(patches, n) // unit))
    chosen = subsets(patches, n, grid, count)
    assert len(set(chosen)) == count
    assert {sum(patch in group for group in chosen) for patch in range(patches)} == {count * n // patches}


@pytest.mark.parametrize("count", [0, 1, 3, 5, 7, 8, -2])
def test_a_count_that_cannot_be_balanced_is_refused(count):
    with pytest.raises(ValueError, match=f"count={count}: .* use a multiple of 2 up to 6"):
        subsets(4, 2, 2, count)


def test_too_many_subsets_are_refused_before_they_are_made():
    with pytest.raises(ValueError, match="more than 20,000 subsets"):
        subsets(64, 32, 8)


@pytest.mark.parametrize("patches", [2, 4, 8, 9])
def test_in_a_ring_every_patch_is_first_once_and_second_once(patches):
    pairs = ring(patches, {4: 2, 9: 3}.get(patches, 1))
    assert sorted(first for first, _ in pairs) == sorted(second for _, second in pairs) == list(range(patches))
    assert all(first != second for first, second in pairs)


def test_the_ring_of_four_patches_has_no_diagonal():
    assert {frozenset(pair) for pair in ring(4, 2)} == {frozenset(group) for group in subsets(4, 2, 2, count=4)}
