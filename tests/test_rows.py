"""Every row of the paper at reduced size: what it makes, that it learns where it should, and its golden losses.

A change that computes the same leaves the golden losses as they are. After a change that computes something else, on
purpose, `python tests/test_rows.py` records them anew.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from small import crops, same_learners, shrink

from fastmoco import methods
from fastmoco.learner import Learner
from fastmoco.notation import NAMES, brief, read
from fastmoco.pairs import SameView
from fastmoco.recipes import find, rows
from fastmoco.target import Momentum

ROWS = rows()
ALIKE = same_learners(ROWS)
GOLDEN = Path(__file__).parent / "golden" / "losses.json"
SHAPE = {  # samples and pairs by design: what each way of writing a method makes of an image
    "mocov3": (2, 2),
    "byol": (2, 2),
    "simsiam": (2, 2),
    "nnclr": (2, 2),
    "fast_moco": (12, 12),
    "fast_moco_100": (12, 12),
    "fast_moco_200": (12, 12),
    "fast_moco_400": (12, 12),
    "byol_patches": (12, 12),
    "simsiam_patches": (12, 12),
    "nnclr_patches": (12, 12),
    "encode_only": (4, 8),
    "sample_combine_encode": (4, 8),
    "divide_combine_encode": (4, 4),
    "montage_encode_divide_combine": (28, 56),
    "sample_encode_combine": (28, 56),
    "mocov3_multicrop": (8, 14),
    "fast_moco_multicrop": (13, 14),
    "fast_moco_multicrop_divided": (18, 24),
    "same_view": (12, 12),
    "samples_2": (4, 4),
    "samples_4": (8, 8),
    "samples_6": (12, 12),
    "max": (12, 12),
    "adamw": (12, 12),
    "mocov3_adamw": (2, 2),
}


def expected_shape(name):
    table, row = name.split("/")
    if table in ("figure3a", "figure6"):
        return (4, 4) if row.endswith("_2") else (2, 2)
    if table == "figure3b":
        m, n = int(row[1]), int(row[4])
        return (2 * math.comb(m * m, n),) * 2
    if table == "figure4a":
        return 8, 8
    if table == "pocket":
        return (2, 2) if row.endswith("mocov3") else (12, 12)
    return SHAPE.get(row, (12, 12))


def test_the_rows_are_those_of_the_paper():
    stages = "input stage1 stage2 stage3 final"
    names = {
        "table1": "fast_moco_100 fast_moco_200 fast_moco_400 mocov3 byol simsiam nnclr",
        "table2": "semi_1 semi_10",
        "table3": "voc coco",
        "table4a": "encode_only sample_combine_encode divide_combine_encode montage_encode_divide_combine "
        "sample_encode_combine fast_moco",
        "table4b": "mocov3 mocov3_multicrop fast_moco fast_moco_multicrop fast_moco_multicrop_divided",
        "table7": "byol byol_patches simsiam simsiam_patches nnclr nnclr_patches",
        "table8": "b1024 b512 b256",
        "figure3a": " ".join(f"{stage}_{n}" for n in (2, 4) for stage in stages.split()),
        "figure3b": "m1_n1 m2_n1 m2_n2 m2_n3 m2_n4 m3_n1 m3_n2 m3_n3 m3_n4 m3_n5 m3_n6 m3_n7 m3_n8 m3_n9",
        "figure4a": "gamma_050 gamma_060 gamma_070 gamma_080 gamma_090 gamma_095 gamma_099",
        "figure4b": "alpha_02 alpha_1 alpha_4 alpha_8 alpha_16",
        "figure5": " ".join(f"{kind}_{epochs}" for kind in ("semi_1", "semi_10", "coco") for epochs in (100, 200, 400)),
        "figure6": " ".join(f"{stage}_2" for stage in (*stages.split(), "projector", "predictor")),
        "text": "same_view samples_2 samples_4 samples_6 max adamw mocov3_adamw",
        "pocket": "shapes shapes_mocov3 imagenette imagenette_mocov3 imagenette_long imagenette_long_mocov3 cifar10"
        " cifar10_mocov3 photos photos_mocov3",
    }
    assert list(ROWS) == [f"{table}/{row}" for table, listed in names.items() for row in listed.split()]


def test_table_4a_counts_the_samples_of_the_paper():
    counted = {name: row.samples for name, row in ROWS.items() if row.samples is not None}
    assert list(counted.values()) == [4, 4, 4, 28, 28, 12]
    for name, samples in counted.items():
        assert len(ROWS[name].recipe.samples()) == samples


@pytest.mark.parametrize("name", ROWS)
def test_samples_and_pairs(name):
    recipe = ROWS[name].recipe
    assert (len(recipe.samples()), sum(map(len, recipe.meetings()))) == expected_shape(name)


@pytest.mark.parametrize("name", ROWS)
def test_no_sample_meets_a_target_that_it_has_seen(name):
    recipe = ROWS[name].recipe
    samples, targets = recipe.samples(), recipe.targets()
    met = [bool(samples[s] & targets[t]) for t, group in enumerate(recipe.meetings()) for s in group]
    assert met
    assert all(met) if isinstance(recipe.pairs, SameView) else not any(met)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_its_own_text(name):
    recipe = ROWS[name].recipe
    assert eval(repr(recipe), dict(NAMES)) == recipe
    assert read(repr(recipe)) == recipe
    assert read(brief(recipe)) == recipe


def two_steps(name):
    """Two training steps at reduced size: the losses, and the learner with the gradients of the second."""
    recipe = shrink(ROWS[name].recipe)
    torch.manual_seed(0)
    learner = Learner(recipe)
    with torch.no_grad():
        for value in learner.parameters():
            if value.dim() == 1 and not value.any():
                value.fill_(0.3)  # a residual branch that starts at zero would hide its part of the loss
    optimizer = torch.optim.SGD(learner.online.parameters(), lr=0.01)
    losses = []
    for seed in (0, 1):
        loss = learner(crops(recipe, seed=seed))
        optimizer.zero_grad()
        loss.backward()
        if seed == 0:
            optimizer.step()
            learner.update()
        losses.append(round(loss.item(), 6))
    return losses, learner


@pytest.mark.parametrize("name", ALIKE)
def test_a_row_takes_its_steps(name):
    losses, learner = two_steps(name)
    golden = json.loads(GOLDEN.read_text())
    for row in ALIKE[name]:
        assert losses == pytest.approx(golden[row], abs=5e-4), row

    for parameter, value in learner.online.named_parameters():
        assert value.grad is not None, f"{parameter} got no gradient"
        assert value.grad.abs().sum() > 0, f"the gradient of {parameter} is zero"
    if learner.momentum is not None:
        assert all(value.grad is None for value in learner.momentum.parameters())
    assert (learner.momentum is not None) == isinstance(learner.recipe.target, Momentum)

    samples, targets = learner.latest
    assert samples.seen == learner.recipe.samples()
    assert targets.seen == learner.recipe.targets()
    assert not targets.x.requires_grad


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {two_steps(name)[0]}" for name in ROWS]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def test_a_method_that_a_file_imports_is_no_row_of_it_unless_it_is_asked_for(tmp_path):
    own, all_imported = tmp_path / "own.py", tmp_path / "imported.py"
    own.write_text(
        "from dataclasses import replace\n"
        "from fastmoco.methods import fast_moco, mocov3\n"
        "from fastmoco.recipes.table7 import byol\n"
        "mine = replace(mocov3, batch=64)\n"
        "again = fast_moco\n"
    )
    assert list(rows(str(own))) == [f"{own}:{name}" for name in ("byol", "mine", "again")]
    assert find(f"{own}:mocov3").recipe == methods.mocov3
    all_imported.write_text("from fastmoco.methods import mocov3\n")
    assert list(rows(str(all_imported))) == [f"{all_imported}:mocov3"]
