from dataclasses import replace

import pytest
import timm
import torch
import torchvision
from small import crops, shrink
from timm.layers import resample_abs_pos_embed
from torch import nn

from fastmoco import encoder, methods
from fastmoco.learner import Learner


def meta(name):
    with torch.device("meta"):
        return encoder.build(name)


def test_a_resnet50_has_the_papers_parameters_and_torchvisions_keys():
    eye = meta("resnet50")
    assert sum(p.numel() for p in eye.parameters()) == 23_508_032
    assert eye.width == 2048
    theirs = torchvision.models.resnet50().state_dict()
    assert set(theirs) - set(eye.net.state_dict()) == {"fc.weight", "fc.bias"}
    assert set(eye.net.state_dict()) <= set(theirs)


@pytest.mark.parametrize("name", encoder.NAMES)
def test_every_resnet_encodes_to_its_width(name):
    eye = meta(name)
    assert eye(torch.empty(2, 3, 64, 64, device="meta")).shape == (2, eye.width)


def test_the_whole_encoder_is_torchvisions_forward():
    torch.manual_seed(0)
    eye, x = encoder.build("resnet18").eval(), torch.randn(2, 3, 64, 64)
    assert torch.equal(eye(x), eye.net(x))


def test_residual_branches_start_at_zero():
    for block in (block for k in (1, 2, 3, 4) for block in getattr(encoder.build("resnet18").net, f"layer{k}")):
        assert not block.bn2.weight.any()


def test_the_small_stem_keeps_the_resolution():
    x = torch.empty(1, 3, 32, 32, device="meta")
    assert meta("resnet18-small")(x, stop=1).shape == (1, 64, 32, 32)
    assert meta("resnet18")(x, stop=1).shape == (1, 64, 8, 8)
    conv = meta("resnet50-small").net.conv1
    assert (conv.kernel_size, conv.stride, conv.bias) == ((3, 3), (1, 1), None)


@pytest.mark.parametrize(
    "name",
    [
        "timm/vit_tiny_patch16_224",
        "timm/deit_tiny_distilled_patch16_224",
        "timm/convnext_atto",
        "timm/mobilenetv3_small_050",
    ],
)
def test_any_timm_model_takes_a_fast_moco_step(name):
    recipe = replace(shrink(methods.fast_moco), encoder=name)
    recipe = replace(recipe, views=methods.both(methods.patches, size=64))
    torch.manual_seed(0)
    learner = Learner(recipe)
    loss = learner(crops(recipe))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None for p in learner.online.parameters())
    learner.update()


def test_a_vit_sees_patches_with_its_position_embedding_resampled():
    torch.manual_seed(0)
    eye = encoder.build("timm/vit_tiny_patch16_224").eval()
    # The reference is timm's own model for 112 px with the same weights, the position embedding resampled beforehand.
    small = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=112).eval()
    weights = eye.net.state_dict()
    weights["pos_embed"] = resample_abs_pos_embed(weights["pos_embed"], (7, 7), num_prefix_tokens=1)
    small.load_state_dict(weights)
    x = torch.randn(2, 3, 112, 112)
    with torch.no_grad():
        torch.testing.assert_close(eye(x), small(x))


@pytest.mark.parametrize(
    ("name", "width"),
    [("mobilenetv3_small_050", 1024), ("caformer_s18", 512), ("samvit_base_patch16", 256), ("cait_xxs24_224", 192)],
)
def test_the_width_of_any_timm_model_is_that_of_its_embedding(name, width):
    assert meta(f"timm/{name}").width == width


def test_what_is_drawn_after_an_encoder_is_the_same_whatever_was_built_before():
    encoder._width.cache_clear()
    drawn = []
    for _ in range(2):  # the first time, what it makes of an image is found out
        torch.manual_seed(0)
        encoder.build("timm/mobilenetv3_small_075")
        drawn.append(torch.rand(1))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("name", ["volo_d1_224", "mobilenetv3_small_050"])
def test_an_embedding_is_what_timm_makes_of_an_image_where_it_has_no_classifier(name):
    torch.manual_seed(0)
    eye = encoder.build(f"timm/{name}").eval()
    theirs = timm.create_model(name, num_classes=0).eval()
    theirs.load_state_dict(eye.net.state_dict())
    x = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(eye(x), theirs(x), rtol=0, atol=0)


def test_a_model_that_makes_nothing_without_a_classifier_is_refused():
    with pytest.raises(
        ValueError, match=r"timm/inception_next_tiny makes \(1, 0\) of an image, not one embedding; take another"
    ):
        meta("timm/inception_next_tiny")


def test_a_model_that_fails_without_a_word_is_refused_in_one_line():
    with pytest.raises(
        ValueError, match=r"timm/botnet26t_256 cannot take 112x112 images: AssertionError; .* --size 256"
    ):
        meta("timm/botnet26t_256").admit(112, 112)


def test_a_size_that_a_model_cannot_take_is_refused_before_training():
    recipe = replace(methods.fast_moco, views=methods.both(methods.patches, size=100))
    with pytest.raises(ValueError, match=r"encoder timm/vit_tiny_patch16_224 cannot take 50x50 images: .*divisible"):
        Learner(replace(recipe, encoder="timm/vit_tiny_patch16_224"))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("resnt50", "resnet50"),
        ("resnet50-smal", "resnet50-small"),
        ("timm/vit_tny_patch16_224", "timm/vit_tiny_patch16"),
    ],
)
def test_an_unknown_encoder_names_the_nearest(name, near):
    with pytest.raises(ValueError, match=f"unknown encoder '{name}'; the nearest known: .*{near}"):
        encoder.build(name)


def test_a_name_with_weights_is_refused():
    with pytest.raises(ValueError, match=r"'timm/resnet18\.a1_in1k' names weights"):
        encoder.build("timm/resnet18.a1_in1k")


def test_sync_norms_reach_every_part_of_an_encoder():
    eye = nn.SyncBatchNorm.convert_sync_batchnorm(encoder.build("resnet18"))
    assert isinstance(eye.net.bn1, nn.SyncBatchNorm)
    assert eye.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 512)
