"""What is on the shelf is not read again, and is what reading it again would give."""

import shutil
from collections import Counter

import numpy as np
import pytest
from pictures import paint

from fastmoco import album
from fastmoco.album import collect
from fastmoco.data import find
from fastmoco.evaluate.gallery import Frame
from fastmoco.images import Part, Pixels
from fastmoco.shelf import SHELF

ORDER = np.array([5, 0, 3, 9])
USUAL = Frame(16)


@pytest.fixture
def folder(tmp_path):
    return paint(tmp_path / "images", 10)


@pytest.fixture
def reads(monkeypatch):
    """How often each image was read."""
    read, found = album.read, Counter()

    def count(images, index):
        found[images.name(index)[-7:]] += 1
        return read(images, index)

    monkeypatch.setattr(album, "read", count)
    return found


def look(images, make=USUAL):
    made = collect(images, range(len(images)), 2, make)
    return made.pixels, made.sizes, made.bad


def same(one, other):
    return one[0].equal(other[0]) and one[1].equal(other[1]) and one[2] == other[2]


def test_a_set_is_read_once_also_in_parts_and_if_it_is_found_anew(folder, reads):
    alone = [look(find(str(folder)).train), look(Part(find(str(folder)).train, ORDER))]
    reads.clear()
    with SHELF.opened(2**20):
        for _ in range(3):
            images = find(str(folder)).train
            assert same(look(Part(images, ORDER)), alone[1])
            assert same(look(images), alone[0])
        assert len(reads) == 10 == reads.total()
    look(images)
    assert reads.total() == 20, "it is closed, and empty"


def test_images_shown_in_another_way_are_read_for_it(folder, reads):
    images = find(str(folder)).train
    frames = (USUAL, Frame(8), Frame(16, 0.5), album.pixels)
    alone = [look(images, frame) for frame in frames]
    with SHELF.opened(2**20):
        for _ in range(2):
            assert all(same(look(images, frame), made) for frame, made in zip(frames, alone, strict=True))
    assert set(reads.values()) == {2 * len(frames)}


def test_what_finds_no_room_is_read_again(folder, reads):
    images = find(str(folder)).train
    alone = look(images)
    reads.clear()
    with SHELF.opened(4 * 3 * 16 * 16 + 1):
        assert all(same(look(images), alone) for _ in range(3))
    assert sorted(reads.values()) == [1] * 4 + [3] * 6


def test_an_image_that_cannot_be_read_or_has_changed_is_read_again(folder, reads):
    (folder / "004.png").write_bytes(b"no image")
    alone = look(find(str(folder)).train)
    reads.clear()
    with SHELF.opened(2**20):
        assert all(same(look(find(str(folder)).train), alone) for _ in range(2))
        assert 4 in alone[2]
        assert reads["004.png"] == 2
        for name in ("002.png", "004.png"):
            shutil.copy(folder / "007.png", folder / name)
        pixels, _, bad = look(find(str(folder)).train)
        assert not bad
        assert all(pixels[place].equal(pixels[7]) for place in (2, 4))


def test_images_in_memory_are_not_kept_twice():
    images = Part(Pixels(np.zeros((10, 24, 24, 3), np.uint8), None, (), "blank"), ORDER)
    with SHELF.opened(2**20):
        look(images)
        assert SHELF.room == 2**20
