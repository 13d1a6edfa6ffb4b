from dataclasses import replace

import pytest

from fastmoco.contrast import Cosine, InfoNCE
from fastmoco.methods import mocov3_augment
from fastmoco.optim import AdamW
from fastmoco.pairs import SameView
from fastmoco.recipe import Augment
from fastmoco.recipes import find, rows
from fastmoco.target import Momentum, StopGradient
from fastmoco.transfer import carry

BASE = find("pocket/imagenette").recipe
ROWS = {name: row for name, row in rows().items() if type(row.recipe.optim) is type(BASE.optim)}
SETTING = ("encoder", "projector", "predictor", "optim", "schedule", "clip", "epochs", "batch", "evaluation")


def sizes(name, base=BASE):
    return [view.size for view in carry(find(name).recipe, base).views]


@pytest.mark.parametrize("base", ["pocket/imagenette", "pocket/cifar10"])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_keeps_its_method_in_any_setting(name, base):
    row, setting = find(name), find(base).recipe
    carried = carry(row.recipe, setting)
    assert len(carried.samples()) == (row.samples or len(row.recipe.samples()))
    assert carried.meetings() == row.recipe.meetings()
    assert [(view.online, view.target, view.count) for view in carried.views] == [
        (view.online, view.target, view.count) for view in row.recipe.views
    ]
    assert {field: getattr(carried, field) for field in SETTING} == {
        field: getattr(setting, field) for field in SETTING
    }


def test_most_rows_of_the_paper_can_be_carried():
    assert set(rows()) - set(ROWS) == {
        *("table1/mocov3", "table1/byol", "table1/nnclr", "text/adamw", "text/mocov3_adamw"),
    }


def test_the_papers_methods_in_a_pocket_setting_are_the_pocket_rows():
    for name in ("imagenette", "imagenette_long", "cifar10", "shapes", "photos"):
        base = find(f"pocket/{name}").recipe
        assert carry(find("table4b/fast_moco").recipe, base) == base
        assert carry(find("table4b/mocov3").recipe, base) == find(f"pocket/{name}_mocov3").recipe
        assert carry(find("table4b/fast_moco").recipe, find(f"pocket/{name}_mocov3").recipe) == base


def test_sizes_are_in_proportion_and_divide_into_patches():
    assert sizes("table4a/encode_only") == [128, 128, 90]  # 158 of 224 px
    assert sizes("table4a/sample_encode_combine") == [128, 128, 64]
    assert sizes("table4b/mocov3_multicrop") == [128, 128, 55]  # 96 of 224 px
    assert sizes("figure3b/m3_n4") == [129, 129]
    assert sizes("figure3b/m3_n4", find("pocket/cifar10").recipe) == [33, 33]
    assert sizes("figure3b/m2_n4") == [128, 128]


def test_the_kinds_of_target_and_contrast_are_the_rows_and_their_numbers_the_bases():
    assert carry(find("table7/simsiam").recipe, BASE).target == StopGradient()
    assert carry(find("table7/byol").recipe, BASE).contrast == Cosine()
    assert carry(find("table4a/fast_moco").recipe, BASE).contrast == BASE.contrast != InfoNCE()
    assert carry(find("text/same_view").recipe, BASE).pairs == SameView()
    assert carry(find("table7/nnclr").recipe, BASE).support == 16 * BASE.batch
    assert carry(find("table7/byol").recipe, BASE).support == 0


def test_what_a_view_has_of_its_own_it_keeps():
    loud = Augment(grey_p=0.5)
    base = replace(BASE, views=tuple(replace(view, scale=(0.3, 1.0), augment=loud) for view in BASE.views))
    large, _, small = carry(find("table4b/mocov3_multicrop").recipe, base).views
    assert (large.scale, large.augment) == ((0.3, 1.0), loud)
    assert (small.scale, small.augment) == ((0.05, 0.14), loud)


def test_an_optimiser_of_its_own_is_refused():
    with pytest.raises(ValueError, match="LARS is part of this row, and the base has SGD; take another base"):
        carry(find("table1/mocov3").recipe, BASE)


def test_a_base_may_have_another_optimiser_than_the_papers_usual_one():
    base = replace(find("pocket/imagenette").recipe, optim=AdamW())
    assert carry(find("table4a/fast_moco").recipe, base).optim == AdamW()
    assert carry(find("text/adamw").recipe, base).optim == AdamW()
    with pytest.raises(ValueError, match=r"^LARS is part of this row, and the base has AdamW"):
        carry(find("table1/mocov3").recipe, base)


def test_views_that_a_base_changes_differently_stay_different():
    first, second = find("pocket/imagenette").recipe.views
    views = (replace(first, augment=mocov3_augment[0]), replace(second, augment=mocov3_augment[1], resize="bilinear"))
    base = replace(find("pocket/imagenette").recipe, views=views)
    assert carry(find("table4a/fast_moco").recipe, base) == base
    small = carry(find("table4b/mocov3_multicrop").recipe, base)
    assert [view.augment for view in small.views] == [*mocov3_augment, mocov3_augment[0]]
    assert [view.resize for view in small.views] == ["bicubic", "bilinear", "bicubic"]


def test_alpha_tau_and_a_support_set_are_the_settings():
    base = replace(find("pocket/imagenette").recipe, target=Momentum(0.5), contrast=InfoNCE(0.7), batch=32)
    carried = carry(find("table7/nnclr").recipe, base)
    assert (carried.target, carried.contrast, carried.support) == (Momentum(0.5), InfoNCE(0.7), 16 * 32)
    assert carry(find("table7/byol").recipe, base).support == 0
