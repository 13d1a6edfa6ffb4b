import pytest
from small import same_learners

from fastmoco import methods
from fastmoco.cost import measure
from fastmoco.recipes import find, rows


def giga(count):
    return round(count / 1e9, 3)


def test_parameters_and_multiply_adds_of_fast_moco():
    cost = measure(methods.fast_moco)
    assert cost.parameters == {"encoder": 23_508_032, "projector": 12_601_344, "predictor": 2_100_736}
    for online, target in zip(cost.online, cost.target, strict=True):
        assert giga(online["encoder"]) == 4.303
        assert giga(target["encoder"]) == 4.087
        # Six samples a view, each 3 x 2048 x 2048 in the projector and 2 x 2048 x 512 in the predictor.
        assert online["projector"] == 6 * 3 * 2048 * 2048
        assert online["predictor"] == 6 * 2 * 2048 * 512
        assert target["projector"] == 3 * 2048 * 2048


def test_one_whole_view_of_mocov3():
    assert [giga(spent["encoder"]) for spent in measure(methods.mocov3).online] == [4.087, 4.087]


@pytest.mark.parametrize(
    ("row", "encoder"),
    [
        ("table4a/encode_only", [8.335]),
        ("table4a/divide_combine_encode", [4.188, 4.188]),
        ("table4b/mocov3_multicrop", [4.087, 4.087, 4.504]),
    ],
)
def test_multiply_adds_of_the_other_patch_encodings(row, encoder):
    spent = [giga(view["encoder"]) for view in measure(find(row).recipe).online if view]
    assert spent == pytest.approx(encoder, abs=2e-3)


def test_simsiam_costs_one_pass_a_view_and_with_patches_two():
    assert measure(methods.simsiam).target == ({}, {})
    patches = measure(methods.simsiam_patches)
    assert [giga(view["encoder"]) for view in patches.target] == [4.087, 4.087]


@pytest.mark.parametrize("name", same_learners(rows()))
def test_every_row_has_a_cost_and_finds_its_parameters(name):
    recipe = rows()[name].recipe
    cost = measure(recipe)
    assert set(cost.parameters) - {"support"} == {"encoder", "projector", "predictor"}
    for view, online, target in zip(recipe.views, cost.online, cost.target, strict=True):
        assert bool(online) == bool(view.online)
        assert all(spent > 0 for spent in (*online.values(), *target.values()))
