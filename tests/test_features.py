import pytest
import torch
from pictures import paint

from fastmoco import encoder
from fastmoco.album import middle
from fastmoco.augment import normalise
from fastmoco.data import find
from fastmoco.evaluate import features
from fastmoco.evaluate.features import embedded, extract, remembered
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


@pytest.mark.parametrize("leads", [True, False])
def test_one_rank_tells_how_far_it_is(monkeypatch, capsys, leads):
    monkeypatch.setattr("fastmoco.evaluate.progress.leads", lambda: leads)
    monkeypatch.setattr("fastmoco.evaluate.progress.SELDOM", 0.0)
    with Progress("embedding", 10) as progress:
        progress.add(5)
        progress.line.say("stopped")
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == (2 if leads else 0)
