import itertools

import pytest
import torch
from pictures import paint

from fastmoco.album import collect, read
from fastmoco.data import find
from fastmoco.draws import Draws
from fastmoco.loader import Resident, Stream, choose
from fastmoco.methods import both, encode, patches
from fastmoco.recipe import Augment, Recipe, View

CPU = torch.device("cpu")
RECIPE = Recipe((*both(patches, size=16), View(8, count=3, scale=(0.05, 0.3), online=encode)), batch=6, epochs=3)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return find(str(paint(tmp_path_factory.mktemp("images"), 20))).train


def batches(loader, start=0, count=4):
    return [(batch, loader.views(batch)) for batch in itertools.islice(loader.since(start), count)]


def stream(images, workers=0, seed=0):
    return Stream(
        images, Draws(RECIPE.views, RECIPE.batch, RECIPE.epochs, seed, len(images)), CPU, workers, compile=False
    )


def resident(images, seed=0):
    album = collect(images, range(len(images)), threads=2)
    return Resident(album, Draws(RECIPE.views, RECIPE.batch, RECIPE.epochs, seed, len(images)), CPU, compile=False)


def test_views_are_what_a_learner_takes(images):
    for loader in (stream(images), resident(images)):
        for _, views in batches(loader, count=2):
            assert [tuple(view.shape) for view in views] == [(1, 6, 3, 16, 16), (1, 6, 3, 16, 16), (3, 6, 3, 8, 8)]
            assert all(view.dtype == torch.float for view in views)


def test_where_a_crop_lies_says_nothing_of_how_it_looks():
    view = View(8, augment=Augment(jitter_p=1.0, grey_p=0.5, solarise_p=0.5), online=encode)
    draws = Draws((view,), batch=10_000, epochs=1, seed=0, images=10_000)
    (look,), index = draws.looks(0), draws.index(0)
    (box,) = draws.boxes(0, index, torch.full((10_000, 2), 1000)).double()
    width, height = (box[:, 2:] - box[:, :2]).T
    place = [width * height, width / height, box[:, 0], box[:, 1]]
    looks = [look.flip[0], look.grey[0], look.sigma[0], look.solarise[0], *look.factors[0].T]
    together = torch.corrcoef(torch.stack([*place, *(each.double() for each in looks)]))[:4, 4:]
    assert together.abs().max() < 0.05  # five times the spread of 10,000 pairs


def test_reading_stops_when_one_image_tells_that_the_set_does_not_fit(images):
    seen, size = [], 20 * 3 * 24 * 26  # the third of 20 images is the first that is 26 px high
    assert collect(images, range(20), threads=2, seen=seen.append, most=size - 1.0) is None
    assert seen == [1, 2, 3]
    assert collect(images, range(20), threads=2, most=float(size)).pixels.numel() == size


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_change_nothing(images, workers):
    for (one, ours), (other, theirs) in zip(batches(stream(images)), batches(stream(images, workers)), strict=True):
        assert one.index.equal(other.index)
        assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


def test_a_batch_does_not_depend_on_where_a_run_was_resumed(images):
    for make in (stream, resident):
        for (one, ours), (other, theirs) in zip(
            batches(make(images))[2:], batches(make(images), start=2, count=2), strict=True
        ):
            assert one.index.equal(other.index)
            assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


def test_resident_is_stream_but_for_the_resampling(images):
    # PIL rounds crops to 8 bits, the device does not. One part of 255 is about 0.017 after normalisation, and a strong
    # jitter can show it several times over.
    for (one, ours), (other, theirs) in zip(batches(stream(images)), batches(resident(images)), strict=True):
        assert one.index.equal(other.index)
        for a, b in zip(ours, theirs, strict=True):
            assert (a - b).abs().mean() < 0.01
            assert (a - b).abs().max() < 0.1


def test_an_epoch_takes_each_image_at_most_once_and_epochs_take_them_in_another_order(images):
    draws = Draws(RECIPE.views, RECIPE.batch, RECIPE.epochs, 0, len(images))
    assert (draws.per_epoch, draws.steps) == (3, 9)
    epochs = [torch.cat([draws.index(step) for step in range(start, start + 3)]) for start in (0, 3, 6)]
    for epoch in epochs:
        assert len(set(epoch.tolist())) == 18
    assert not epochs[0].equal(epochs[1])


def test_views_differ_between_images_views_crops_epochs_and_seeds(images):
    (first, views), *_ = batches(resident(images))
    assert not views[0].equal(views[1])  # two views of the same size
    assert not views[2][0].equal(views[2][1])  # two crops of one view
    draws = Draws(RECIPE.views, RECIPE.batch, RECIPE.epochs, 0, len(images))
    sizes = torch.full((6, 2), 24)
    assert not draws.boxes(0, first.index, sizes).equal(draws.boxes(3, first.index, sizes))
    assert not draws.boxes(0, first.index, sizes).equal(
        Draws(RECIPE.views, RECIPE.batch, RECIPE.epochs, 1, 20).boxes(0, first.index, sizes)
    )


def test_crops_and_looks_do_not_use_the_same_numbers(images):
    draws = Draws(RECIPE.views, RECIPE.batch, RECIPE.epochs, 0, 20_000)
    index = torch.arange(2000)
    left = draws.boxes(0, index, torch.full((2000, 2), 1000))[0, :, 0].double()
    flips = torch.stack([look.flip[0].double() for look in (draws.looks(step)[0] for step in range(300))]).flatten()
    assert abs(flips.mean() - 0.5) < 0.05
    assert torch.corrcoef(torch.stack([left[:1800], flips[:1800]]))[0, 1].abs() < 0.1


def test_an_image_that_cannot_be_read_is_replaced_by_the_same_one_every_time(tmp_path):
    paint(tmp_path, 12)
    (tmp_path / "003.png").write_text("no image")
    images = find(str(tmp_path)).train
    image, bad = read(images, 3)
    assert list(bad) == [3]
    assert image.tobytes() == read(images, 3)[0].tobytes()
    assert image.tobytes() in [images.read(other).tobytes() for other in range(12) if other != 3]
    recipe = RECIPE
    for make in (stream, resident):
        loader = make(images)
        noted = {number for batch, _ in batches(loader, count=2 * recipe.epochs) for number in batch.bad}
        assert noted == {3}
    for (_, ours), (_, theirs) in zip(batches(stream(images)), batches(resident(images)), strict=True):
        assert all((a - b).abs().mean() < 0.01 for a, b in zip(ours, theirs, strict=True))


def test_an_image_among_none_that_can_be_read_is_blank_and_tells_all_that_were_tried(tmp_path):
    for number in range(30):
        (tmp_path / f"{number}.jpg").write_text("no image")
    image, bad = read(find(str(tmp_path)).train, 0)
    assert image.size == (1, 1)
    assert len(bad) > 10


def test_small_images_are_kept_on_the_cpu_and_large_ones_are_streamed(tmp_path):
    small, large = find(str(paint(tmp_path / "a", 8))).train, find(str(paint(tmp_path / "b", 8, size=80))).train
    for images, way, kind in (
        (small, "auto", Resident),
        (large, "auto", Stream),
        (small, "stream", Stream),
        (large, "resident", Resident),
    ):
        draws = Draws(RECIPE.views, RECIPE.batch, RECIPE.epochs, 0, len(images))
        assert isinstance(choose(images, draws, CPU, way=way, workers=0, compile=False), kind)


def test_with_a_gpu_all_that_is_drawn_is_pinned_beforehand(images, monkeypatch):
    loader, pinned = resident(images), []

    def pin(tensor):
        pinned.append(tensor.clone())
        return pinned[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    loader.device = torch.device("cuda")
    batches = loader.since(0)
    batch = next(batches)
    batches.close()
    looks = [value for look in batch.looks for value in vars(look).values()]
    assert all(any(tensor is each for each in pinned) for tensor in (batch.index, *batch.parts, *looks))
