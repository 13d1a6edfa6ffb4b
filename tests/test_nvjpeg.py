"""On a CPU, where torchvision decodes by libjpeg as PIL does: all but nvJPEG itself."""

import io
import itertools
import warnings

import numpy as np
import PIL.Image
import pytest
import torch

from fastmoco import nvjpeg
from fastmoco.cuts import LARGEST, Cuts, suits
from fastmoco.data import find
from fastmoco.decode import look
from fastmoco.draws import Draws
from fastmoco.loader import Loader, Stream, choose
from fastmoco.methods import both, encode
from fastmoco.recipe import View

CPU = torch.device("cpu")
VIEWS = (*both(encode, size=16), View(8, count=3, scale=(0.05, 0.3), online=encode))


def picture(width, height, seed=0):
    """Coarse noise, which a JPEG keeps."""
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return PIL.Image.fromarray(pixels).resize((width, height), PIL.Image.Resampling.BICUBIC)


def encoded(image, form="JPEG", **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def folder(path, files):
    for number, content in enumerate(files):
        (path / f"{number:03}.jpg").write_bytes(content)
    return find(str(path)).train


def loader(images, decode, workers=0):
    return Stream(images, Draws(VIEWS, 6, 3, 0, len(images)), CPU, workers, compile=False, decode=decode)


def batches(made, count=4):
    return [(batch, made.views(batch)) for batch in itertools.islice(made.since(0), count)]


def agree(images, workers=0):
    """What was left to the device is what workers cut; the names of the unreadable are the same."""
    made = loader(images, "gpu", workers)
    assert isinstance(made, Loader)
    for (one, ours), (other, theirs) in zip(batches(made), batches(loader(images, "cpu")), strict=True):
        assert one.index.equal(other.index)
        assert one.bad == other.bad
        assert one.read == other.read
        for a, b in zip(ours, theirs, strict=True):
            assert a.shape == b.shape
            assert (a - b).abs().mean() < 0.02  # as between the loaders; both round to 8 bits, and each in its way
            assert (a - b).abs().max() < 0.2


@pytest.fixture
def jpegs(tmp_path):
    return folder(tmp_path, [encoded(picture(24 + i, 28 - i % 3, i), quality=95) for i in range(20)])


@pytest.mark.parametrize("workers", [0, 2])
def test_crops_by_the_device_are_those_by_workers_but_for_the_resampling(jpegs, workers):
    assert len(Cuts(jpegs, Draws(VIEWS, 6, 3, 0, 20), leave=True)[0].left.places) == 6
    agree(jpegs, workers)


def test_large_batches_go_in_blocks_and_come_back_in_order(jpegs, monkeypatch):
    whole = batches(loader(jpegs, "gpu"))
    monkeypatch.setattr(nvjpeg, "BLOCK", 2)
    for (_, ours), (_, theirs) in zip(batches(loader(jpegs, "gpu")), whole, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=0.1, rtol=0)  # another padding, other sums


def test_whatever_a_gpu_may_not_take_is_cut_by_the_workers(tmp_path):
    plain = picture(40, 30)
    good, grey = encoded(plain), encoded(plain.convert("L"))
    others = [
        encoded(plain, "PNG"),
        encoded(plain, progressive=True),
        encoded(plain.convert("CMYK")),
        encoded(plain, keep_rgb=True),
        encoded(picture(LARGEST + 1, 20)),
        good[:-300],
    ]
    for content, fits in [(good, True), (grey, True), (good + b"\0\0", True), *((each, False) for each in others)]:
        assert suits(content, look(content)) == fits
    files = [good, others[0], grey, *others[1:], good, good, good]
    batch = Cuts(folder(tmp_path, files), Draws(VIEWS, len(files), 1, 0, len(files)), leave=True)[0]
    left = sorted(batch.index[batch.left.places].tolist())
    assert left == [0, 2, 8, 9, 10]
    assert [part.shape[1] for part in batch.parts] == [len(files) - 5] * 3
    agree(find(str(tmp_path)).train)


def test_what_the_device_refuses_is_decoded_by_pil_and_told_if_that_fails_too(jpegs, tmp_path, monkeypatch):
    damaged = bytearray((tmp_path / "007.jpg").read_bytes())
    start = damaged.index(b"\xff\xda")
    damaged[start : start + 4] = b"\0\0\0\0"  # the header is fine and so is the end
    (tmp_path / "007.jpg").write_bytes(damaged)
    refused = (tmp_path / "003.jpg").read_bytes()
    from torchvision.io import decode_jpeg

    def decode(files, mode, device):
        if any(bytes(file.tolist()) == refused for file in files):
            raise RuntimeError("nvjpegDecode failed")
        return decode_jpeg(files, mode, device)

    monkeypatch.setattr("torchvision.io.decode_jpeg", decode)
    agree(jpegs)
    made = loader(jpegs, "gpu")
    assert {number for batch, _ in batches(made, 9) for number in batch.bad} == {7}


def test_memory_that_is_short_is_no_damaged_file(monkeypatch):
    def decode(files, mode, device):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr("torchvision.io.decode_jpeg", decode)
    with pytest.raises(torch.OutOfMemoryError):
        nvjpeg.decode([torch.zeros(4, dtype=torch.uint8)], CPU)


def test_a_torchvision_without_a_decoder_is_refused(jpegs, monkeypatch):
    def decode(files, mode, device):
        raise RuntimeError("not compiled with GPU support")

    monkeypatch.setattr("torchvision.io.decode_jpeg", decode)
    with pytest.raises(ValueError, match=r"--decode gpu: this torchvision .*; install .*, or leave it out"):
        loader(jpegs, "gpu")


def test_without_a_gpu_its_decoder_is_refused(jpegs):
    draws = Draws(VIEWS, 6, 3, 0, len(jpegs))
    with pytest.raises(ValueError, match="--decode gpu needs a GPU, and the device is cpu; leave it out"):
        choose(jpegs, draws, CPU, way="stream", workers=0, compile=False, decode="gpu")
    assert isinstance(choose(jpegs, draws, CPU, way="stream", workers=0, compile=False, decode="cpu"), Stream)


def test_torchvisions_remarks_do_not_escape(jpegs):
    with warnings.catch_warnings(record=True) as escaped:
        warnings.simplefilter("always")
        batches(loader(jpegs, "gpu"), 2)
    assert not escaped
