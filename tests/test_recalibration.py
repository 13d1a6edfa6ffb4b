import numpy as np
import pytest
import torch
from pictures import paint
from torch import nn
from torch.optim.swa_utils import update_bn

from fastmoco import encoder
from fastmoco.augment import normalise
from fastmoco.data import find
from fastmoco.evaluate.gallery import Frame, Gallery
from fastmoco.evaluate.recalibration import recalibrate
from fastmoco.images import Part
from fastmoco.randomness import order

CPU = torch.device("cpu")


@pytest.fixture
def net():
    torch.manual_seed(0)
    return encoder.build("timm/test_resnet").eval()


@pytest.fixture
def images(tmp_path):
    return find(str(paint(tmp_path / "images", 30, classes=3))).train


def test_recalibrated_statistics_are_those_of_whole_images(images):
    torch.manual_seed(0)
    made = encoder.build("resnet18-small").eval()
    made.net.bn1.running_mean.fill_(7.0)
    recalibrate(made, images, Frame(16), CPU, threads=1)
    seen = first_maps(made, images)
    torch.testing.assert_close(made.net.bn1.running_mean, seen.mean((0, 2, 3)))
    torch.testing.assert_close(made.net.bn1.running_var, seen.var((0, 2, 3)))
    assert not made.training
    assert made.net.bn1.momentum == 0.1


def first_maps(made, images):
    """What the first batch norm of a ResNet is shown of a whole set."""
    x = torch.cat([pixels for _, pixels in Gallery(images, Frame(16), threads=1)])
    with torch.no_grad():
        return made.net.conv1(normalise(x / 255))


def test_recalibrated_statistics_are_the_mean_over_blocks_by_their_images(images, monkeypatch):
    monkeypatch.setattr("fastmoco.evaluate.gallery.BLOCK", 7)
    torch.manual_seed(0)
    ours, theirs = encoder.build("timm/test_resnet").eval(), encoder.build("timm/test_resnet").eval()
    theirs.load_state_dict(ours.state_dict())
    recalibrate(ours, images, Frame(16), CPU, threads=1)
    mixed = Gallery(Part(images, order(0, 0, 30).numpy()), Frame(16), threads=1)
    found = []
    for _, pixels in mixed:
        update_bn([normalise(pixels / 255)], theirs)
        found.append({name: value.clone() for name, value in theirs.state_dict().items()})
    weights = [7 / 30, 7 / 30, 7 / 30, 7 / 30, 2 / 30]
    for name, value in ours.state_dict().items():
        if name.endswith("num_batches_tracked"):
            assert value == 5
        else:
            mean = sum(weight * each[name] for weight, each in zip(weights, found, strict=True))
            torch.testing.assert_close(value, mean, msg=lambda text, name=name: f"{name}: {text}")


def test_recalibrated_statistics_do_not_depend_on_how_a_set_is_sorted(tmp_path, monkeypatch):
    images = find(str(paint(tmp_path / "sorted", 90, classes=3))).train
    assert list(images.labels) == [0] * 30 + [1] * 30 + [2] * 30
    monkeypatch.setattr("fastmoco.evaluate.gallery.BLOCK", 30)  # so in their order each block would be of one class
    torch.manual_seed(0)
    made = encoder.build("resnet18-small").eval()
    shuffled = Part(images, np.random.default_rng(0).permutation(90))
    for each in (images, shuffled):
        recalibrate(made, each, Frame(16), CPU, threads=1)
        seen = first_maps(made, images)
        torch.testing.assert_close(made.net.bn1.running_mean, seen.mean((0, 2, 3)), rtol=0, atol=1e-5)
        torch.testing.assert_close(made.net.bn1.running_var, seen.var((0, 2, 3)), rtol=0.1, atol=0)


def test_images_of_which_none_can_be_read_do_not_recalibrate(net, tmp_path):
    folder = paint(tmp_path / "some", 3)
    for file in folder.iterdir():
        file.write_text("no image")
    with pytest.raises(ValueError, match=r"--recalibrate: no two images near .*000.png can be read"):
        recalibrate(net, find(str(folder)).train, Frame(16), CPU, threads=1)


def test_an_encoder_without_batch_norm_cannot_be_recalibrated(images):
    made = encoder.build("timm/test_vit")
    assert not any(isinstance(module, nn.BatchNorm2d) for module in made.modules())
    with pytest.raises(ValueError, match="--recalibrate: this encoder has no batch norm"):
        recalibrate(made, images, Frame(16), CPU, threads=1)
