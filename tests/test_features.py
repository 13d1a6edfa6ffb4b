import numpy as np
import pytest
import torch
from pictures import paint
from PIL import Image
from torch import nn
from torch.optim.swa_utils import update_bn
from torchvision.transforms import v2 as transforms

from fastmoco import distributed, encoder
from fastmoco.album import middle
from fastmoco.augment import normalise
from fastmoco.data import find
from fastmoco.evaluate import features
from fastmoco.evaluate.features import Frame, Gallery, embedded, extract, recalibrate, remembered
from fastmoco.evaluate.progress import Progress
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


@pytest.mark.parametrize("size", [(256, 256), (512, 256), (300, 600), (375, 500)])
def test_seven_eighths_at_224_px_is_resize_256_and_crop_224(size):
    torch.manual_seed(0)
    noise = (torch.rand(size[1] // 8, size[0] // 8, 3) * 255).byte().numpy()
    image = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    theirs = transforms.CenterCrop(224)(transforms.Resize(256, transforms.InterpolationMode.BICUBIC)(image))
    ours, theirs = middle(image, 224, 7 / 8).float(), transforms.PILToTensor()(theirs).float()
    if 375 in size:  # theirs squeezes 341.3 pixels into 341, and so rounds to the crop that is one higher
        ours, theirs = ours[:, :-1], theirs[:, 1:]
        assert (ours - theirs).abs().mean() < 4
    else:
        assert (ours - theirs).abs().max() <= 3


def test_a_gallery_shows_every_image_in_order_and_reads_it_once(images, monkeypatch):
    monkeypatch.setattr(features, "BLOCK", 8)
    gallery = Gallery(images, Frame(16), threads=2)
    first = list(gallery)
    assert [place for places, _ in first for place in places] == list(range(30))
    pixels = torch.cat([block for _, block in first])
    assert pixels.equal(torch.stack([middle(images.read(place), 16) for place in range(30)]))
    monkeypatch.setattr(features, "collect", None)
    assert all(ours[1].equal(theirs[1]) for ours, theirs in zip(gallery, first, strict=True))


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_show_the_blocks_of_one_each_its_own(images, monkeypatch, ranks):
    monkeypatch.setattr(features, "BLOCK", 8)
    whole = list(Gallery(images, Frame(16), threads=1))
    monkeypatch.setattr(distributed, "world", lambda: ranks)
    shown = []
    for rank in range(ranks):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        shown += Gallery(images, Frame(16), threads=1)
    assert [places for places, _ in shown] == [places for places, _ in whole]
    assert all(ours.equal(theirs) for (_, ours), (_, theirs) in zip(shown, whole, strict=True))


def test_what_does_not_fit_into_memory_is_read_again(images, monkeypatch):
    monkeypatch.setattr(features, "ROOM", 100)
    gallery = Gallery(images, Frame(16), threads=1)
    assert [places for places, _ in gallery] == [places for places, _ in gallery]
    assert gallery._kept == []


def test_images_that_cannot_be_read_are_left_out_and_named(net, tmp_path):
    folder = paint(tmp_path / "some", 12, classes=2)
    broken = sorted(folder.rglob("*.png"))[3]
    broken.write_text("no image")
    gallery = Gallery(find(str(folder)).train, Frame(16), threads=1)
    found = extract(net, gallery, CPU, "")
    assert found.index.tolist() == [0, 1, 2, *range(4, 12)]
    assert list(gallery.bad) == [3]
    assert found.labels.tolist() == [0] * 5 + [1] * 6
    whole = torch.stack([middle(gallery.images.read(place), 16) for place in found.index.tolist()])
    torch.testing.assert_close(found.x, net(normalise(whole / 255)).detach())


def test_a_set_of_which_nothing_can_be_read_is_refused(net, tmp_path):
    folder = paint(tmp_path / "some", 3)
    for file in folder.iterdir():
        file.write_text("no image")
    with pytest.raises(ValueError, match=r"no image of .*000.png and 2 more can be read"):
        extract(net, Gallery(find(str(folder)).train, Frame(16), threads=1), CPU, "")


def test_embeddings_are_extracted_once_for_the_same_weights_images_and_pixels(net, images, monkeypatch, tmp_path):
    first = embedded(net, Gallery(images, Frame(16), 1), CPU, "")

    def fail(*given):
        raise AssertionError("extracted again")

    with monkeypatch.context() as patch:
        patch.setattr(features, "extract", fail)
        again = embedded(net, Gallery(images, Frame(16), 1), CPU, "")
        assert again.x.equal(first.x)
        assert again.labels.equal(first.labels)
        with pytest.raises(AssertionError, match="extracted again"):
            embedded(net, Gallery(images, Frame(24), 1), CPU, "")
        with pytest.raises(AssertionError, match="extracted again"):
            embedded(encoder.build("timm/test_resnet").eval(), Gallery(images, Frame(16), 1), CPU, "")
    (file,) = (tmp_path / "store" / "features").iterdir()
    file.write_bytes(file.read_bytes()[:100])  # damaged, so made anew
    assert embedded(net, Gallery(images, Frame(16), 1), CPU, "").x.equal(first.x)
    paint(tmp_path / "images", 33, classes=3)
    more = find(str(tmp_path / "images")).train
    assert embedded(net, Gallery(more, Frame(16), 1), CPU, "").x.shape == (33, first.x.shape[1])


def test_what_one_rank_has_not_kept_all_make_anew(monkeypatch):
    made = []

    def make():
        made.append(len(made))
        return {"x": torch.tensor(made)}

    assert remembered(make, "a")["x"].equal(remembered(make, "a")["x"])
    assert made == [0]
    monkeypatch.setattr(features, "agree", lambda mine: [mine, True])
    assert remembered(make, "a")["x"].tolist() == [0, 1]


def test_what_is_made_is_kept_by_one_rank(monkeypatch, tmp_path):
    monkeypatch.setattr(features, "leads", lambda: False)
    remembered(lambda: {"x": torch.zeros(1)}, "a")
    assert not (tmp_path / "store").exists()


def test_weights_that_have_diverged_are_refused(net, images):
    with torch.no_grad():
        next(net.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite; the training of these weights has diverged"):
        embedded(net, Gallery(images, Frame(16), 1), CPU, "")


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
    monkeypatch.setattr(features, "BLOCK", 7)
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
    monkeypatch.setattr(features, "BLOCK", 30)  # so in their order each block would be of one class
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


@pytest.mark.parametrize("leads", [True, False])
def test_one_rank_tells_how_far_it_is(monkeypatch, capsys, leads):
    monkeypatch.setattr("fastmoco.evaluate.progress.leads", lambda: leads)
    monkeypatch.setattr("fastmoco.evaluate.progress.SELDOM", 0.0)
    with Progress("embedding", 10) as progress:
        progress.add(5)
        progress.line.say("stopped")
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == (2 if leads else 0)
