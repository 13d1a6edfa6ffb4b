from functools import reduce

import pytest
import torch
import torch.nn.functional as F
from small import branch, stack
from torch import nn

from fastmoco import encoder
from fastmoco.merge import Tiles
from fastmoco.samples import IMAGE, Plan
from fastmoco.steps import Combine, Divide, Encode, MontageEncodeDivide, Nearest, Predict, Project, Stitch, follow


class Pointwise(nn.Module):
    """An encoder that never looks beyond a pixel, then averages."""

    def __init__(self, stride=1):
        super().__init__()
        self.layer = nn.Conv2d(3, 7, kernel_size=1, stride=stride)

    def forward(self, x, start=0, stop=5):
        x = self.layer(x) if start == 0 else x
        return x.mean((2, 3)) if stop == 5 else x


def test_a_montage_through_a_pointwise_encoder_is_plain_encoding():
    torch.manual_seed(0)
    patches, pointwise = stack(torch.randn(8, 3, 3, 8, 8)), branch(Pointwise())
    montage = MontageEncodeDivide(2)(patches, pointwise)
    torch.testing.assert_close(montage.x, Encode()(patches, pointwise).x)
    assert montage.seen == patches.seen


def test_a_montage_whose_map_does_not_divide_is_resized_first(monkeypatch):
    # A stride of 2 leaves a map of 7x7 for a montage of 14 px, which is resized to 8x8.
    monkeypatch.setattr(torch, "randperm", torch.arange)
    torch.manual_seed(0)
    x, strided = torch.randn(4, 1, 3, 7, 7), branch(Pointwise(stride=2))
    rows = [torch.cat([x[0], x[1]], dim=3), torch.cat([x[2], x[3]], dim=3)]
    resized = F.interpolate(strided.encoder.layer(torch.cat(rows, dim=2)), size=8, mode="bilinear")
    quarters = F.avg_pool2d(resized, 4).flatten(2).permute(2, 0, 1)
    torch.testing.assert_close(MontageEncodeDivide(2)(stack(x), strided).x, quarters)


def test_montages_mix_images_but_every_patch_finds_its_way_back():
    torch.manual_seed(0)
    shapes = []
    patches, pointwise = stack(torch.arange(24.0).reshape(8, 3, 1, 1, 1).expand(8, 3, 3, 4, 4)), branch(Pointwise())
    pointwise.encoder.layer.register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0]))
    montage = MontageEncodeDivide(2)(patches, pointwise)
    torch.testing.assert_close(montage.x, Encode()(patches, pointwise).x)
    assert shapes[0].shape == (6, 3, 8, 8)
    in_one_montage = {int(value) % 3 for value in shapes[0][0, 0].unique()}
    assert len(in_one_montage) > 1, "all patches of the first montage come from one image"


@pytest.mark.parametrize("stage", [1, 2, 3, 4])
def test_an_encoder_in_two_parts_is_the_whole_encoder(stage):
    torch.manual_seed(0)
    eye = branch(encoder.build("resnet18").eval())
    views = stack(torch.randn(2, 2, 3, 64, 64))
    with torch.no_grad():
        parts = follow((Encode(stop=stage), Encode(start=stage)), views, eye)
        assert torch.equal(parts.x, Encode()(views, eye).x)


def test_stitching_the_last_maps_is_combining_the_embeddings():
    torch.manual_seed(0)
    eye = branch(encoder.build("resnet18").eval())
    views = stack(torch.randn(1, 2, 3, 64, 64))
    with torch.no_grad():
        stitched = follow((Divide(2), Encode(stop=4), Stitch(2, 1), Encode(start=4)), views, eye)
        combined = follow((Divide(2), Encode(), Combine(2, Tiles(2, 1))), views, eye)
    torch.testing.assert_close(stitched.x, combined.x)


VIEW = Plan((frozenset({0}),), IMAGE, 224, 224)


def test_a_plan_knows_the_size_of_a_rectangle():
    lying = Stitch(1, 2).plan(Divide(2).plan(VIEW))
    assert (lying.height, lying.width, len(lying.seen)) == (112, 224, 2)
    standing = Stitch(2, 1).plan(Divide(2).plan(VIEW))
    assert (standing.height, standing.width) == (224, 112)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ((Divide(3),), "224x224 pixels do not divide by 3; use a view of 225"),
        ((Divide(0),), "makes no patches"),
        ((Divide(224),), "more than 20,000 patches"),
        ((Divide(14), Encode(), Combine(3)), "n=3 of 196 patches have more than 20,000 subsets"),
        ((Project(),), "Project.* needs embedding samples, and here they are image samples"),
        ((Encode(), Predict()), "needs projection samples"),
        ((Encode(), Nearest()), "needs projection samples"),
        ((Encode(), Divide(2)), "needs image samples, and here they are embedding samples"),
        ((Encode(stop=2), Encode(start=3)), "needs stage-3 map samples, and here they are stage-2 map samples"),
        ((Encode(start=3, stop=2),), "start before stop"),
        ((Encode(stop=6),), "start before stop"),
        ((Combine(2),), "needs embedding or projection or prediction samples"),
        ((Divide(2), Encode(), Combine(5)), "n=5 patches cannot be chosen from 4; use n from 1 to 4"),
        ((Divide(2), Encode(), Combine(0)), "n=0"),
        ((Divide(2), Encode(), Combine(2, count=3)), "count=3: no choice of 3 out of 6"),
        ((Divide(2), Encode(), Combine(2, Tiles(2, 2))), "is of n=4 patches"),
        ((Divide(2), Encode(), Combine(3, Tiles(1, 3))), "a 2x2 grid of patches does not divide into 1x3 tiles"),
        ((Divide(2), Encode(), Stitch(1, 2)), "needs image or stage-1 map or"),
        ((Divide(2), Stitch(1, 3)), "a 2x2 grid of patches does not divide into 1x3 tiles"),
        ((Stitch(1, 2),), "1 patches do not fill 1x2 tiles; use a multiple of 2"),
        ((Stitch(0, 2),), "makes no image"),
        ((MontageEncodeDivide(2),), "1 patches an image do not fill montages; use a multiple of 4"),
    ],
)
def test_a_path_that_cannot_work_says_why(path, reason):
    *before, last = path
    plan = reduce(lambda plan, step: step.plan(plan), before, VIEW)
    with pytest.raises(ValueError, match=reason):
        last.plan(plan)
