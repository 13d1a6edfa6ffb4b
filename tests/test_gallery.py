import pytest
import torch
from pictures import paint
from PIL import Image
from torchvision.transforms import v2 as transforms

from fastmoco import distributed
from fastmoco.album import middle
from fastmoco.data import find
from fastmoco.evaluate.gallery import Frame, Gallery


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
    monkeypatch.setattr("fastmoco.evaluate.gallery.BLOCK", 8)
    gallery = Gallery(images, Frame(16), threads=2)
    first = list(gallery)
    assert [place for places, _ in first for place in places] == list(range(30))
    pixels = torch.cat([block for _, block in first])
    assert pixels.equal(torch.stack([middle(images.read(place), 16) for place in range(30)]))
    monkeypatch.setattr("fastmoco.evaluate.gallery.collect", None)
    assert all(ours[1].equal(theirs[1]) for ours, theirs in zip(gallery, first, strict=True))


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_show_the_blocks_of_one_each_its_own(images, monkeypatch, ranks):
    monkeypatch.setattr("fastmoco.evaluate.gallery.BLOCK", 8)
    whole = list(Gallery(images, Frame(16), threads=1))
    monkeypatch.setattr(distributed, "world", lambda: ranks)
    shown = []
    for rank in range(ranks):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        shown += Gallery(images, Frame(16), threads=1)
    assert [places for places, _ in shown] == [places for places, _ in whole]
    assert all(ours.equal(theirs) for (_, ours), (_, theirs) in zip(shown, whole, strict=True))


def test_what_does_not_fit_into_memory_is_read_again(images, monkeypatch):
    monkeypatch.setattr("fastmoco.evaluate.gallery.ROOM", 100)
    gallery = Gallery(images, Frame(16), threads=1)
    assert [places for places, _ in gallery] == [places for places, _ in gallery]
    assert gallery._kept == []
