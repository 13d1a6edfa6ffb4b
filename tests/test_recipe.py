from dataclasses import replace

import pytest

from fastmoco import methods, protocols
from fastmoco.contrast import InfoNCE
from fastmoco.heads import MLP
from fastmoco.merge import Beta, Weighted
from fastmoco.methods import both, fast_moco
from fastmoco.optim import LARS, SGD, Schedule
from fastmoco.pairs import SameView
from fastmoco.recipe import Augment, View
from fastmoco.recipes import find, rows
from fastmoco.steps import Combine, Divide, Encode, MontageEncodeDivide, Predict, Project, Stitch
from fastmoco.target import Momentum


def online(*steps, size=224):
    return {"views": both(steps, size=size)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            online(Divide(3), Encode(), Combine(2), Project(), Predict()),
            "view 0, online path: Divide.*use a view of 225",
        ),
        (online(Divide(2), Encode(), Combine(5), Project(), Predict()), "view 0, online path: Combine: n=5"),
        (online(Divide(2), Encode(), Combine(2, count=3), Project(), Predict()), "view 0, .*count=3"),
        ({"views": (View(online=methods.encode),)}, "no view has a path on the target side"),
        ({"views": (View(target=methods.whole),)}, "no view has a path on the online side"),
        ({"views": ()}, "no view has"),
        ({"views": (View(online=methods.encode, target=methods.whole),)}, "target 0 meets no sample"),
        ({"views": both(methods.encode, target=methods.encode)}, "Predict is in a target path"),
        (online(Encode(stop=3)), "online paths end at: stage-3 map"),
        ({"views": (*fast_moco.views, View(online=methods.whole))}, "online paths end at: projection, prediction"),
        ({"views": both(methods.patches, target=methods.neighbours)}, "support=0: Nearest needs a support set"),
        ({"support": 64}, "support=64: Nearest needs a support set, .* and only Nearest does"),
        (online(Encode()), "online paths end at: embedding"),
        ({"views": (fast_moco.views[0], View(online=methods.patches))}, "sample 0 meets no target"),
        ({"schedule": Schedule(warmup=101.0)}, "schedule.warmup=101 is longer than epochs=100"),
        ({"predictor": MLP((512, 256))}, "must end with the same width"),
        ({"encoder": "resnet5"}, "unknown encoder 'resnet5'; the nearest known: .*resnet50"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch": 1}, "batch=1"),
        ({"clip": -1.0}, "clip=-1.0"),
        ({"optim": SGD(lr=0.0)}, "optim.lr=0.0"),
        (
            {"encoder": "timm/any", **online(Divide(2), Encode(stop=2), Stitch(1, 2), Encode(start=2), Project())},
            "which timm/any cannot",
        ),
        (
            {"encoder": "timm/any", **online(Divide(2), MontageEncodeDivide(2), Project())},
            "MontageEncodeDivide.* which timm/any cannot",
        ),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_when_it_is_built(change, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        replace(fast_moco, **change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: View(0), "size=0"),
        (lambda: View(count=0), "count=0"),
        (lambda: View(scale=(0.5, 0.2), online=methods.encode), "scale="),
        (lambda: View(), "on no path"),
        (lambda: Momentum(1.5), "alpha=1.5"),
        (lambda: Schedule(warmup=-1.0), "warmup=-1.0"),
        (lambda: InfoNCE(0.0), "tau=0.0"),
        (lambda: View(10**10, online=methods.encode), "size=10000000000"),
        (lambda: Augment(blur_p=5.0), "blur_p=5.0 is not a probability"),
        (lambda: Augment(blur_sigma=(5.0, 1.0)), "blur_sigma="),
        (lambda: SGD(momentum=5.0), "momentum=5.0"),
        (lambda: LARS(weight_decay=-1.0), "weight_decay=-1.0"),
        (lambda: MLP((10**9,)), "widths="),
        (lambda: Weighted(1.1), "gamma=1.1"),
        (lambda: Beta(0.0), "alpha=0.0"),
        (lambda: Beta(0.02), "alpha=0.02: Beta weights cannot be drawn for it; use 0.1 or more"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(make, reason):
    with pytest.raises(ValueError, match=reason):
        make()


def test_the_same_view_is_a_rule_of_pairs_and_not_of_views():
    row = find("text/same_view").recipe
    assert replace(row, pairs=fast_moco.pairs) == fast_moco
    assert row.pairs == SameView()


def test_each_row_with_patches_differs_from_its_baseline_by_the_online_path_alone():
    for name in ("byol", "simsiam", "nnclr"):
        with_patches, without = find(f"table7/{name}_patches").recipe, find(f"table7/{name}").recipe
        whole = tuple(replace(view, online=methods.encode) for view in with_patches.views)
        assert replace(with_patches, views=whole) == without


def test_the_papers_setting():
    assert (fast_moco.optim, fast_moco.clip) == (SGD(lr=0.1, momentum=0.9, weight_decay=1e-4), 1.0)
    assert fast_moco.optim.lr * fast_moco.schedule.start == 0.025
    assert (fast_moco.schedule.warmup, fast_moco.schedule.predictor) == (1.0, "constant")
    assert (fast_moco.batch, fast_moco.contrast.tau, fast_moco.target.alpha) == (512, 1.0, 0.99)
    assert fast_moco.evaluation == protocols.Linear(epochs=90, lr=0.8, batch=4096)


def test_the_papers_augmentation_is_simsiams():
    assert {view.augment for view in fast_moco.views} == {
        Augment(
            jitter=(0.4, 0.4, 0.4, 0.1),
            jitter_p=0.8,
            grey_p=0.2,
            blur_p=0.5,
            blur_sigma=(0.1, 2.0),
            solarise_p=0.0,
            flip_p=0.5,
        )
    }
    assert {(view.size, view.count, view.scale) for view in fast_moco.views} == {(224, 1, (0.2, 1.0))}
    assert {view.resize for view in fast_moco.views} == {"bicubic"}, "as the official code, not as SimSiam"


def test_the_small_crops_of_multi_crop_are_swavs():
    small = find("table4b/mocov3_multicrop").recipe.views[-1]
    assert (small.size, small.count, small.scale) == (96, 6, (0.05, 0.14))


def test_mocov3_and_byol_have_the_augmentation_of_their_papers():
    for row in ("mocov3", "byol", "nnclr"):
        first, second = (view.augment for view in find(f"table1/{row}").recipe.views)
        assert (first.blur_p, first.solarise_p) == (1.0, 0.0)
        assert (second.blur_p, second.solarise_p) == (0.1, 0.2)
        assert first.jitter == second.jitter == (0.4, 0.4, 0.2, 0.1)


def test_the_papers_short_setting():
    for name, row in rows().items():
        if row.recipe.epochs == 20 and not name.startswith("pocket/"):
            assert row.recipe.optim.lr == 0.15
            assert row.recipe.optim.lr * row.recipe.schedule.start == 0.0375
            assert row.recipe.evaluation == protocols.Linear(epochs=10, lr=1.6, batch=4096)


def test_rates_scale_with_the_batch():
    for batch in (256, 512, 1024):
        assert find(f"table8/b{batch}").recipe.optim.lr == pytest.approx(0.1 * batch / 512)
    for row, base in (("mocov3", 0.6), ("byol", 0.45)):
        recipe = find(f"table1/{row}").recipe
        assert isinstance(recipe.optim, LARS)
        assert recipe.optim.lr == pytest.approx(base * recipe.batch / 256)


def test_the_evaluation_rows_are_the_appendix():
    one, ten = find("table2/semi_1").recipe.evaluation, find("table2/semi_10").recipe.evaluation
    assert (one.fraction, one.epochs, one.lr, one.encoder_lr, one.batch) == (0.01, 60, 500.0, 0.0, 256)
    assert (ten.fraction, ten.epochs, ten.lr, ten.encoder_lr, ten.batch) == (0.10, 20, 500.0, 1e-6, 256)
    voc, coco = find("table3/voc").recipe.evaluation, find("table3/coco").recipe.evaluation
    assert (voc.trials, coco.trials) == (3, 1)
    assert (coco.iterations, coco.milestones, coco.batch) == (90_000, (60_000, 80_000), 16)
    assert (voc.iterations, voc.milestones, voc.batch, voc.lr, voc.encoder_lr) == (
        24_000,
        (18_000, 22_000),
        16,
        1e-2,
        1e-3,
    )


def test_the_papers_numbers():
    printed = {
        "table1": [73.5, 75.1, 75.5, 73.8, 66.5, 68.1, 69.4],
        "table2": [(56.5, 81.1), (70.3, 89.4)],
        "table3": [(57.7, 82.7, 64.4), (39.5, 59.2, 42.6, 34.6, 55.9, 36.9)],
        "table4a": [68.9, 71.2, 71.8, 70.4, 72.9, 73.5],
        "table4b": [70.3, 73.1, 73.5, 74.2, 74.2],
        "table7": [66.5, 73.6, 68.1, 71.7, 69.4, 72.5],
        "table8": [73.6, 73.5, 72.5],
        "text": [48.5, 72.6, 73.3, 73.5, 64.6, 71.7, 69.3],
    }
    for table, numbers in printed.items():
        for row, number in zip(rows(table).values(), numbers, strict=True):
            assert tuple(row.paper.values()) == (number if isinstance(number, tuple) else (number,))


def test_the_length_of_training_is_that_of_the_number():
    long = {"table1/mocov3": 800, "table1/fast_moco_200": 200, "table1/fast_moco_400": 400}
    for name, row in rows().items():
        if name.startswith(("table1/", "table4", "table7/", "table8/", "text/")):
            assert row.recipe.epochs == long.get(name, 100)
        elif name.startswith(("table2/", "table3/")):
            assert row.recipe.epochs == 400


def test_the_baselines_of_table_1_have_the_setting_of_their_own_code():
    for row in ("mocov3", "byol", "nnclr"):
        recipe = find(f"table1/{row}").recipe
        assert (recipe.optim.momentum, recipe.optim.weight_decay, recipe.optim.trust) == (0.9, 1e-6, 1e-3)
        assert (recipe.schedule.warmup, recipe.schedule.start, recipe.schedule.predictor) == (10.0, 0.0, "scheduled")
        assert (recipe.batch, recipe.clip) == (4096, 0.0)
    simsiam = find("table1/simsiam").recipe
    assert (simsiam.optim, simsiam.schedule.warmup, simsiam.batch, simsiam.clip) == (SGD(), 0.0, 512, 0.0)
    assert simsiam.schedule.predictor == "constant"


def test_adamw_has_the_setting_of_mocov3():
    for row in ("adamw", "mocov3_adamw"):
        recipe = find(f"text/{row}").recipe
        assert recipe.optim.lr == pytest.approx(1.5e-4 * recipe.batch / 256)
        assert (recipe.optim.weight_decay, recipe.schedule.warmup) == (0.1, 40.0)
