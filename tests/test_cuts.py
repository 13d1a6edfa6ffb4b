import io
import weakref

import numpy as np
import PIL.Image
import pytest
import torch

from fastmoco.crop import cut
from fastmoco.cuts import Cuts, working
from fastmoco.data import find
from fastmoco.decode import decode, load, look
from fastmoco.draws import Draws
from fastmoco.images import Part, Pixels, fetch
from fastmoco.methods import both, encode
from fastmoco.recipe import View


def gradient(width, height):
    """Red tells the column, green the row, blue both: a shift by one pixel is seen everywhere."""
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    return np.stack([255 * x / width, 255 * y / height, 127 * (x / width + y / height)], 2).round().astype(np.uint8)


def encoded(pixels, form="JPEG", **options):
    stream = io.BytesIO()
    image = PIL.Image.fromarray(pixels)
    image.save(stream, form, **({"quality": 98, "subsampling": 0} if form == "JPEG" else {}) | options)
    return stream.getvalue()


def folder(path, files, ending="jpg"):
    for number, content in enumerate(files):
        (path / f"{number:03}.{ending}").write_bytes(content)
    return find(str(path)).train


def cuts(images, size=16, leave=False):
    views = (*both(encode, size=size), View(size // 2, count=2, scale=(0.05, 0.3), online=encode))
    return Cuts(images, Draws(views, len(images), 3, 0, len(images)), leave)


def whole(made, step):
    """The crops of a step, in the plainest way: each image decoded whole, each box drawn for it alone."""
    crops = []
    for number in made.draws.index(step).tolist():
        image = made.images.read(number)
        where = made.draws.boxes(step, torch.tensor([number]), torch.tensor([image.size]))[:, 0].tolist()
        crops.append([cut(image, box, view) for box, view in zip(where, made.views, strict=True)])
    return [np.stack(each) for each in zip(*crops, strict=True)]


def crops(batch):
    """The crops of a batch, in the order of `whole`."""
    return [stack.permute(0, 2, 3, 1).numpy() for part in batch.parts for stack in part]


@pytest.fixture
def decoded(monkeypatch):
    """By how much images have been made smaller."""
    noted = []

    def note(image, shrink=1):
        noted.append((image.size, shrink))
        return load(image, shrink)

    monkeypatch.setattr("fastmoco.cuts.load", note)
    return noted


def noise(width, height, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("shrink", [1, 2, 4, 8])
@pytest.mark.parametrize(("width", "height"), [(320, 256), (317, 251), (9, 8)])
def test_a_jpeg_is_made_smaller_and_its_pixels_stay_where_they_are(width, height, shrink):
    pixels = gradient(width, height)
    image = load(look(encoded(pixels)), shrink)
    assert image.size == (-(-width // shrink), -(-height // shrink))
    rows, columns = (height // shrink, width // shrink)  # those of whole blocks
    blocks = pixels[: rows * shrink, : columns * shrink].reshape(rows, shrink, columns, shrink, 3).mean((1, 3))
    assert np.abs(np.asarray(image)[:rows, :columns] - blocks).mean() < 2


@pytest.mark.parametrize("form", ["PNG", "BMP", "WEBP"])
def test_other_formats_keep_their_size(form):
    options = {"lossless": True} if form == "WEBP" else {}
    image = load(look(encoded(noise(40, 30), form, **options)), 4)
    assert np.array_equal(image, noise(40, 30))


@pytest.mark.parametrize("shrink", [2, 4, 8])
@pytest.mark.parametrize("resize", ["bicubic", "bilinear"])
def test_crops_of_a_smaller_image_show_the_same(shrink, resize):
    content, view = encoded(gradient(635, 477)), View(32, online=encode, resize=resize)
    full, small = load(look(content)), load(look(content), shrink)
    generator = np.random.default_rng(0)
    for _ in range(20):
        left, upper = generator.integers(0, 635 - 256), generator.integers(0, 477 - 256)
        right, lower = generator.integers(left + 256, 636), generator.integers(upper + 256, 478)
        box = [int(edge) for edge in (left, upper, right, lower)]
        ours, theirs = (cut(image, box, view, by).astype(float) for image, by in ((small, shrink), (full, 1)))
        assert np.abs(ours - theirs).mean() < 1
        # A pixel of the view is at least 8 of the image, 3 of 255 in colour: this is an eighth of one, on the average.
        assert np.abs((ours - theirs).mean((0, 1))).max() < 0.4
        assert np.abs(ours - theirs).max() < 4


def test_images_are_decoded_no_larger_than_their_crops_need(tmp_path, decoded):
    images = folder(tmp_path, [encoded(gradient(*size)) for size in [(700, 500), (300, 260), (90, 70), (24, 24)] * 3])
    made = cuts(images)
    for step in range(made.draws.steps):
        decoded.clear()
        batch = made[step]
        for ours, theirs in zip(crops(batch), whole(made, step), strict=True):
            assert np.abs(ours.astype(float) - theirs).mean() < 1
        for number, (size, shrink) in zip(batch.index.tolist(), decoded, strict=True):
            where = made.draws.boxes(step, torch.tensor([number]), torch.tensor([size]))[:, 0].tolist()
            fits = [
                by
                for by in (1, 2, 4, 8)
                if all(
                    right - left >= by * view.size and lower - upper >= by * view.size
                    for (left, upper, right, lower), view in zip(where, made.views, strict=True)
                )
            ]
            assert shrink == max(fits, default=1)
    assert {shrink for _, shrink in decoded} >= {1, 2}


def test_what_need_not_be_smaller_is_cut_as_ever_to_the_bit(tmp_path, decoded):
    for number, (files, ending, size) in enumerate(
        [
            ([encoded(noise(60 + i, 50, i)) for i in range(8)], "jpg", 48),
            ([encoded(noise(400 + i, 300, i), "PNG") for i in range(8)], "png", 16),
        ]
    ):
        (tmp_path / str(number)).mkdir()
        made = cuts(folder(tmp_path / str(number), files, ending), size)
        for step in range(3):
            assert all(map(np.array_equal, crops(made[step]), whole(made, step)))
    assert {shrink for _, shrink in decoded} > {1}  # was asked of PNGs too, and could do nothing


def test_sets_without_files_are_cut_too():
    pixels = Pixels(np.stack([noise(80, 60, i) for i in range(6)]), None, (), "drawn")
    for images in (pixels, Part(pixels, np.array([4, 2, 1]))):
        made = cuts(images)
        assert all(map(np.array_equal, crops(made[0]), whole(made, 0)))


def test_a_part_has_the_files_of_its_images(tmp_path):
    files = [encoded(noise(20, 20, i)) for i in range(5)]
    images = Part(folder(tmp_path, files), np.array([3, 1]))
    assert [fetch(images, place) for place in (0, 1)] == [files[3], files[1]]
    assert decode(files[3]).tobytes() == images.read(0).tobytes()


@pytest.mark.parametrize("leave", [False, True])
def test_a_file_that_is_cut_off_is_noticed_however_small_it_is_decoded(tmp_path, decoded, leave):
    files = [encoded(noise(400, 300, i)) for i in range(6)]
    files[2] = files[2][: len(files[2]) // 2]
    files[4] = b"no image"
    images = folder(tmp_path, files)
    batch = cuts(images, leave=leave)[0]
    assert set(batch.bad) == {2, 4}
    assert "truncated" in batch.bad[2]
    assert max(shrink for _, shrink in decoded) > 1
    again = cuts(images, leave=leave)[0]
    assert all(map(torch.equal, batch.parts, again.parts))


def test_pixels_of_an_image_are_kept_no_longer_than_it_is_cut(tmp_path, monkeypatch):
    images, opened, alive = folder(tmp_path, [encoded(noise(64, 64, i)) for i in range(8)]), [], []

    def noted(content):
        image = look(content)
        opened.append(weakref.ref(image))
        return image

    def watch(image, box, view, shrink=1):
        alive.append(sum(each() is not None for each in opened))
        return cut(image, box, view, shrink)

    monkeypatch.setattr("fastmoco.cuts.look", noted)
    monkeypatch.setattr("fastmoco.cuts.cut", watch)
    made = cuts(images)
    made[0]
    left = range(8, 0, -1)  # and the one before, perhaps
    assert all(count <= most + 1 for count, most in zip(alive[:: len(made.views)], left, strict=True))


def test_all_of_a_batch_is_pinned(tmp_path, monkeypatch):
    batch = cuts(folder(tmp_path, [encoded(noise(40, 40))] * 4))[0]
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    for before, after in zip(tensors(batch), tensors(batch.pin_memory()), strict=True):
        assert before is not after
        assert before.equal(after)


def tensors(batch):
    return [batch.index, *batch.parts, *(value for each in batch.looks for value in vars(each).values())]


def test_a_folder_too_long_for_the_workers_sockets_is_refused_in_a_line(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/" + "a" * 72)
    cuts = Cuts(Pixels(np.zeros((2, 8, 8, 3), np.uint8), None, (), "a"), Draws(both(encode, size=8), 2, 1, 0, 2))
    with pytest.raises(ValueError, match=r"^TMPDIR=/a{72} is too long for sockets between processes; use a shorter"):
        working(cuts, range(1), 2, pin=False).__enter__()
