import pytest
import torch
from torch import nn

from fastmoco import heads
from fastmoco.heads import mlp


def form(head, width=2048):
    """The layers of a head in short: L has a bias, l none; N is affine, n not."""
    letters = []
    for layer in mlp(width, head):
        if isinstance(layer, nn.Linear):
            letters.append(f"{'l' if layer.bias is None else 'L'}{layer.out_features}")
        elif isinstance(layer, nn.BatchNorm1d):
            letters.append("N" if layer.affine else "n")
        else:
            letters.append("R")
    return " ".join(letters)


@pytest.mark.parametrize(
    ("head", "width", "expected"),
    [
        (heads.projector, 2048, "L2048 N R L2048 N R L2048 N"),
        (heads.predictor, 2048, "L512 N R L2048"),
        (heads.simsiam_projector, 2048, "l2048 N R l2048 N R l2048 n"),
        (heads.simsiam_predictor, 2048, "l512 N R L2048"),
        (heads.mocov3_projector, 2048, "l4096 N R l256 n"),
        (heads.mocov3_predictor, 256, "l4096 N R l256"),
        (heads.byol_head, 2048, "L4096 N R l256"),
        (heads.nnclr_projector, 2048, "L2048 N R L2048 N R L256 N"),
        (heads.nnclr_predictor, 256, "L4096 N R L256"),
    ],
)
def test_each_head_has_the_form_of_its_code(head, width, expected):
    assert form(head, width) == expected


def test_parameters_of_the_papers_heads():
    assert sum(p.numel() for p in mlp(2048, heads.projector).parameters()) == 12_601_344
    assert sum(p.numel() for p in mlp(2048, heads.predictor).parameters()) == 2_100_736


def test_norm_weights_are_drawn_from_zero_to_one_by_default_only():
    torch.manual_seed(0)
    norms = [layer for layer in mlp(2048, heads.projector) if isinstance(layer, nn.BatchNorm1d)]
    for norm in norms:
        assert 0 <= norm.weight.min() < 0.01
        assert 0.99 < norm.weight.max() <= 1
        assert abs(norm.weight.mean() - 0.5) < 0.03
        assert not norm.bias.any()
    for layer in mlp(2048, heads.simsiam_projector):
        if isinstance(layer, nn.BatchNorm1d) and layer.affine:
            assert (layer.weight == 1).all()


@pytest.mark.parametrize("widths", [(), (0,), (16, -1)])
def test_a_head_without_width_is_refused(widths):
    with pytest.raises(ValueError, match="widths="):
        heads.MLP(widths)
