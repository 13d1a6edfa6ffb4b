import errno
from pathlib import Path

import pytest
import torch
from pictures import paint

from fastmoco import encoder
from fastmoco.album import middle
from fastmoco.augment import normalise
from fastmoco.data import find
from fastmoco.evaluate import features, store
from fastmoco.evaluate.features import embedded, extract
from fastmoco.evaluate.gallery import Frame, Gallery
from fastmoco.evaluate.progress import Progress

CPU = torch.device("cpu")


@pytest.fixture
def net():
    torch.manual_seed(0)
    return encoder.build("timm/test_resnet").eval()


@pytest.fixture
def images(tmp_path):
    return find(str(paint(tmp_path / "images", 30, classes=3))).train


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


def test_a_store_that_cannot_be_written_loses_nothing_and_is_told_once(net, images, monkeypatch, tmp_path, capsys):
    whole = embedded(net, Gallery(images, Frame(16), 1), CPU, "")
    (tmp_path / "file").touch()
    monkeypatch.setenv("FASTMOCO_DATA", str(tmp_path / "file" / "store"))
    monkeypatch.setattr(store, "_told", set())
    capsys.readouterr()
    for _ in range(2):
        assert embedded(net, Gallery(images, Frame(16), 1), CPU, "").x.equal(whole.x)
    (said,) = capsys.readouterr().err.splitlines()
    assert said == f"embeddings are not kept for the next time: {tmp_path}/file/store/features: Not a directory"


def test_a_disk_that_failed_for_a_moment_leaves_out_images_only_once(net, images, monkeypatch):
    read = type(images).read

    def fail_at_some(self, index):
        if index % 2:
            raise OSError(errno.EIO, "Input/output error")
        return read(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(type(images), "read", fail_at_some)
        gallery = Gallery(images, Frame(16), 1)
        assert embedded(net, gallery, CPU, "").index.tolist() == list(range(0, 30, 2))
        assert sorted(gallery.bad) == list(range(1, 30, 2))
    gallery = Gallery(images, Frame(16), 1)
    assert embedded(net, gallery, CPU, "").index.tolist() == list(range(30))
    assert not gallery.bad


def test_an_image_that_stays_unreadable_costs_the_others_nothing(net, images, monkeypatch):
    Path(images.name(3)).write_text("no image")
    first = embedded(net, Gallery(images, Frame(16), 1), CPU, "")
    monkeypatch.setattr(features, "extract", None)  # it may not be asked again
    gallery = Gallery(images, Frame(16), 1)
    assert embedded(net, gallery, CPU, "").x.equal(first.x)
    assert gallery.bad == {3: "cannot identify image file"}


def test_weights_that_have_diverged_are_refused(net, images):
    with torch.no_grad():
        next(net.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite; the training of these weights has diverged"):
        embedded(net, Gallery(images, Frame(16), 1), CPU, "")


@pytest.mark.parametrize("leads", [True, False])
def test_one_rank_tells_how_far_it_is(monkeypatch, capsys, leads):
    monkeypatch.setattr("fastmoco.evaluate.progress.leads", lambda: leads)
    monkeypatch.setattr("fastmoco.evaluate.progress.SELDOM", 0.0)
    with Progress("embedding", 10) as progress:
        progress.add(5)
        progress.line.say("stopped")
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == (2 if leads else 0)
