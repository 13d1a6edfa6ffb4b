import gzip
import io
import lzma
import os
import shutil
import tarfile
from array import array
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import paint

from fastmoco import parts
from fastmoco.data import find
from fastmoco.images import Images, Part, Pixels


@pytest.fixture(autouse=True)
def store(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FASTMOCO_DATA", str(tmp_path_factory.mktemp("store")))


@pytest.fixture
def folder(tmp_path):
    """Images 000.png to 019.png, of which every other is of class-0."""
    return paint(tmp_path / "set", 20, classes=2)


@pytest.fixture
def images(folder):
    return find(str(folder)).train


def pixels(labels, classes):
    """Images that need only labels."""
    names = tuple(f"class-{number}" for number in range(classes))
    values = np.arange(len(labels) * 12, dtype=np.int64).astype(np.uint8)
    return Pixels(values.reshape(-1, 2, 2, 3), array("q", labels), names, "drawn/train")


def pack(path, folder):
    """The images of a folder as a shard, each with its class."""
    with tarfile.open(path, "w") as tar:
        for image in sorted(folder.rglob("*.png")):
            name = f"{image.parent.name}/{image.stem}"
            for ending, content in (("png", image.read_bytes()), ("cls", image.parent.name[-1:].encode())):
                info = tarfile.TarInfo(f"{name}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def chosen(images, path, text):
    """The names of the images that a list picks, without folders."""
    path.write_text(text)
    part = Part(images, parts.by_list(images, str(path)))
    return [os.path.basename(part.name(place)) for place in range(len(part))]


# Part


def test_a_part_is_some_images_of_a_set(images):
    part = Part(images, np.array([13, 2, 2]))
    assert isinstance(part, Images)
    assert len(part) == 3
    assert [part.name(place) for place in range(3)] == [images.name(13), images.name(2), images.name(2)]
    assert part.labels == array("q", [1, 0, 0])
    assert part.classes == ("class-0", "class-1")
    np.testing.assert_array_equal(part.read(0), images.read(13))


def test_a_part_of_a_part(images):
    part = Part(Part(images, np.arange(10, 20)), np.array([9, 0]))
    assert [part.name(0), part.name(1)] == [images.name(19), images.name(10)]


def test_a_part_without_labels_and_one_without_images(folder):
    unlabelled = find(str(folder / "class-0")).train
    assert Part(unlabelled, np.array([1])).labels is None
    assert len(Part(unlabelled, np.zeros(0, np.int64))) == 0


@pytest.mark.parametrize("place", [-1, 20])
def test_a_place_outside_the_set_is_a_mistake(images, place):
    with pytest.raises(AssertionError):
        Part(images, np.array([0, place]))


# Stamps


def test_a_stamp_of_files_stays_when_the_folder_moves(folder, images):
    before = images.stamp()
    assert before == find(str(folder)).train.stamp()
    moved = shutil.copytree(folder, folder.with_name("elsewhere"))  # which keeps the times of change
    assert find(str(moved)).train.stamp() == before


def test_a_stamp_of_files_changes_with_a_file(folder, images):
    file = folder / "class-1" / "007.png"
    stamps = [images.stamp()]
    os.utime(file, ns=(0, 5))
    stamps.append(replace(images).stamp())
    file.write_bytes(file.read_bytes() + b" ")
    os.utime(file, ns=(0, 5))
    stamps.append(replace(images).stamp())
    file.unlink()
    stamps.append(replace(images).stamp())
    stamps.append(find(str(folder)).train.stamp())
    (folder / "class-1" / "009.png").rename(folder / "class-0" / "009.png")
    stamps.append(find(str(folder)).train.stamp())
    assert len(set(stamps)) == len(stamps)


def test_files_are_asked_for_their_state_once(images, folder, monkeypatch):
    stamps = {images.stamp(), Part(images, np.array([0, 2])).stamp()}
    os.utime(folder / "class-1" / "007.png", ns=(0, 5))
    monkeypatch.setattr("fastmoco.images._state", None)
    assert {images.stamp(), Part(images, np.array([0, 2])).stamp()} == stamps


def test_a_stamp_changes_with_labels_and_classes(folder, images):
    stamps = [images.stamp()]
    images.labels = array("q", [1, *images.labels[1:]])
    stamps.append(images.stamp())
    images.classes = ("class-0", "other")
    stamps.append(images.stamp())
    images.labels = None
    stamps.append(images.stamp())
    assert len(set(stamps)) == len(stamps)


def test_a_stamp_of_shards_changes_with_a_shard(folder, tmp_path):
    path = pack(tmp_path / "a.tar", folder)
    stamps = [find(str(path)).train.stamp()]
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copy2(path, tmp_path / "elsewhere" / "a.tar")
    assert find(str(moved)).train.stamp() == stamps[0]
    os.utime(path, ns=(0, 5))
    stamps.append(find(str(path)).train.stamp())
    (folder / "class-1" / "007.png").unlink()
    os.utime(pack(path, folder), ns=(0, 5))
    stamps.append(find(str(path)).train.stamp())
    assert len(set(stamps)) == len(stamps)


def test_a_stamp_of_pixels_changes_with_a_pixel_or_the_shape():
    images = pixels([0, 1, 0, 1], 2)
    stamps = [images.stamp(), pixels([0, 1, 1, 1], 2).stamp()]
    assert pixels([0, 1, 0, 1], 2).stamp() == stamps[0]
    stamps.append(Pixels(images.pixels.reshape(4, 4, 1, 3), images.labels, images.classes, "").stamp())
    images.pixels[3, 1, 1, 2] ^= 1
    stamps.append(images.stamp())
    assert len(set(stamps)) == len(stamps)


def test_a_stamp_of_a_part_changes_with_the_set_and_the_places(images, folder):
    stamps = [images.stamp()] + [Part(images, np.array(index)).stamp() for index in ([0, 2], [2, 0], [0, 4], [0])]
    assert Part(images, np.array([0, 2])).stamp() == stamps[1]
    os.utime(folder / "class-1" / "019.png", ns=(0, 5))  # which is not in the part, but in the set
    stamps.append(Part(replace(images), np.array([0, 2])).stamp())
    assert len(set(stamps)) == len(stamps)


# Lists


def test_a_list_picks_exactly_what_it_names(images, tmp_path):
    text = "# a comment\n007.png\n\n  class-0/004.png \r\n003.png\n./class-1/011.png\n"
    assert chosen(images, tmp_path / "list.txt", text) == ["004.png", "003.png", "007.png", "011.png"]


def test_a_list_may_name_more_than_there_is_and_a_name_twice(images, tmp_path):
    assert chosen(images, tmp_path / "list.txt", "n01_1.JPEG\n007.png\nclass-1/007.png\nclass-0/007.png") == ["007.png"]


def test_a_list_may_have_labels_and_absolute_paths(images, tmp_path):
    text = f"class-1/007.png 1\n003.png\t-1\n{images.name(0)}\nother/place/002.png 0"
    assert chosen(images, tmp_path / "list.txt", text) == ["000.png", "003.png", "007.png"]


def test_a_number_may_be_part_of_a_name(tmp_path):
    paint(tmp_path / "set", 2)
    (tmp_path / "set" / "001.png").rename(tmp_path / "set" / "a b 2.png")
    images = find(str(tmp_path / "set")).train
    assert chosen(images, tmp_path / "list.txt", "a b 2.png") == ["a b 2.png"]
    assert chosen(images, tmp_path / "list.txt", "a b 2.png 7") == ["a b 2.png"]


def test_a_name_that_is_no_text_is_found(tmp_path):
    paint(tmp_path / "set", 3)
    os.rename(tmp_path / "set" / "001.png", os.fsencode(tmp_path / "set") + b"/\xff.png")
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbf\xff.png\n")
    images = find(str(tmp_path / "set")).train
    assert parts.by_list(images, str(tmp_path / "list.txt")).tolist() == [2]


@pytest.mark.parametrize(("ending", "pack"), [("xz", lzma.compress), ("gz", gzip.compress), ("XZ", lzma.compress)])
def test_a_list_may_be_compressed(images, tmp_path, ending, pack):
    path = tmp_path / f"list.txt.{ending}"
    path.write_bytes(pack(b"002.png\n000.png\n"))
    index = parts.by_list(images, str(path))
    assert index.dtype == np.int64
    assert index.tolist() == [0, 1]


def test_a_list_picks_from_shards_and_from_parts(folder, tmp_path):
    shards = find(str(pack(tmp_path / "a.tar", folder))).train
    assert chosen(shards, tmp_path / "list.txt", "007.png\nclass-0/004.png 0\na.tar/class-1/001.png") == [
        "004.png",
        "001.png",
        "007.png",
    ]
    assert chosen(Part(shards, np.array([17, 2])), tmp_path / "list.txt", "004.png") == ["004.png"]


def test_a_name_of_two_images_is_refused(folder, images, tmp_path):
    shutil.copy(folder / "class-0" / "004.png", folder / "class-1")
    images = find(str(folder)).train
    with pytest.raises(ValueError, match=r"'004\.png' in the list is '.*class-0/004\.png' and '.*class-1/004\.png'"):
        chosen(images, tmp_path / "list.txt", "001.png\n004.png")
    assert chosen(images, tmp_path / "list.txt", "001.png\nclass-1/004.png") == ["001.png", "004.png"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"n01_1.JPEG\nn01_2.JPEG\n04.png\n", r"none of the 3 names in .* such as 'n01_1\.JPEG'.*class-0/000\.png"),
        (b"\n# nothing\n", "names no images"),
    ],
)
def test_a_list_of_nothing_is_refused(images, tmp_path, content, message):
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        parts.by_list(images, str(tmp_path / "list.txt"))


@pytest.mark.parametrize("name", ["missing.txt", "bad.xz", "bad.gz", "cut.gz", "cut.xz", "set"])
def test_a_list_that_cannot_be_read_is_refused(images, tmp_path, name):
    (tmp_path / "bad.xz").write_bytes(b"000.png\n")
    (tmp_path / "bad.gz").write_bytes(b"000.png\n")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"000.png\n")[:-9])
    (tmp_path / "cut.xz").write_bytes(lzma.compress(b"000.png\n")[:-9])
    with pytest.raises(ValueError, match=rf"cannot read the list '.*{name}': .*; give a text file") as caught:
        parts.by_list(images, str(tmp_path / name))
    assert "\n" not in str(caught.value)


# Fractions

CLASSED = pixels([0, 1, 2, 0, 1, 2, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 2, 0, 0, 0], 3)  # 12, 5 and 3


# Computed from Python's own integers, by SplitMix64 as it is written in the literature.
@pytest.mark.parametrize(
    ("fraction", "seed", "index"),
    [
        (0.01, 0, [2, 8, 10]),
        (0.25, 0, [0, 2, 8, 10, 13]),
        (0.5, 0, [0, 2, 5, 6, 8, 10, 11, 13, 18, 19]),
        (0.5, 1, [1, 2, 3, 4, 10, 12, 13, 16, 17, 18]),
        (1.0, 0, list(range(20))),
    ],
)
def test_a_fraction_picks_the_same_images_on_every_machine(fraction, seed, index):
    found = parts.by_fraction(CLASSED, fraction, seed)
    assert found.dtype == np.int64
    assert found.tolist() == index


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.floats(0, 1, exclude_min=True),
    st.floats(0, 1, exclude_min=True),
    st.integers(0, 2**31),
)
def test_a_fraction_is_even_over_classes_and_holds_every_smaller_one(labels, one, other, seed):
    small, large = sorted((one, other))
    images = pixels(labels, 5)
    found = parts.by_fraction(images, large, seed)
    assert found.tolist() == sorted(set(found.tolist()))
    sizes = Counter(labels)
    assert Counter(Part(images, found).labels) == {label: max(1, round(large * size)) for label, size in sizes.items()}
    assert set(parts.by_fraction(images, small, seed).tolist()) <= set(found.tolist())


def test_seeds_pick_differently_and_each_image_is_as_likely():
    images = pixels([0] * 40, 1)
    picked = np.concatenate([parts.by_fraction(images, 0.25, seed) for seed in range(400)])
    counts = np.bincount(picked, minlength=40)
    assert abs(counts - 100).max() < 4.5 * np.sqrt(400 * 0.25 * 0.75)


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.01, 10.0, float("nan"), float("inf")])
def test_a_fraction_that_is_none_is_refused(fraction):
    with pytest.raises(ValueError, match="above 0 and up to 1"):
        parts.by_fraction(CLASSED, fraction, 0)


def test_a_fraction_of_images_without_labels_is_refused(folder):
    with pytest.raises(ValueError, match="have no labels"):
        parts.by_fraction(find(str(folder / "class-0")).train, 0.5, 0)


# Held out


def test_every_fifth_of_a_class_is_held_out():
    labels = [0, 1, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 3, 3, 3, 3]
    rest, held = parts.hold_out(labels, 5)
    assert held.tolist() == [6, 12, 14]
    assert rest.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 13, 15, 16, 17, 18]
    assert parts.hold_out(array("q", [0] * 4), 1)[1].tolist() == []
    assert parts.hold_out([0] * 7, 1, every=3)[1].tolist() == [2, 5]
    assert [each.tolist() for each in parts.hold_out([], 2)] == [[], []]


@given(st.lists(st.integers(0, 4), max_size=80), st.integers(2, 9))
def test_held_out_images_are_counted_class_by_class(labels, every):
    rest, held = parts.hold_out(labels, 5, every)
    counts, expected = Counter(), []
    for place, label in enumerate(labels):
        counts[label] += 1
        if counts[label] % every == 0:
            expected.append(place)
    assert held.tolist() == expected
    assert sorted([*rest.tolist(), *expected]) == list(range(len(labels)))
    assert rest.tolist() == sorted(rest.tolist())


def plant(root, *names):
    """Files that are called like images."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return root


def shard(path, *names):
    with tarfile.open(path, "w") as tar:
        for name in names:
            content = b"0" if name.endswith(".cls") else b""
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def enlist(root, *lines):
    plant(root, *(line.partition(" ")[0] for line in lines))
    (root / "list.txt").write_text("# path and class\n" + "\n".join(lines))
    return root / "list.txt"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda root: plant(root, "a.png", "b.png"), "; put its images into class folders, or give a list"),
        (lambda root: plant(root, "a/1.png", "a/2.png", "b/3.png"), ": 3 images in 2 folders: classes need two images"),
        (
            lambda root: plant(root, "a/1.png", "b/2.png", "3.png"),
            ": images in no class folder: 1 of 3, such as '3.png'",
        ),
        (lambda root: plant(root, "all/1.png", "all/2.png"), ": all are in one folder, 'all'; make one for each class"),
        (
            lambda root: enlist(root, "a.png 0", "b.png 1", "c.png"),
            ": lines without a class number: 1 of 3, such as line 4",
        ),
        (
            lambda root: enlist(root, *["c.png"] * 120, "a.png 0", "b.png 1"),
            ": lines without a class number: 120 of 122, such as line 2",
        ),
        (lambda root: enlist(root, "a.png 3", "b.png 3"), ": every line has class number 3; give two classes or more"),
        (
            lambda root: shard(root / "a.tar", "a.png", "a.cls", "b.png"),
            ": not every image has a .cls member beside it",
        ),
        (
            lambda root: shard(root / "a.tar", "a.png", "a.cls"),
            ": all .cls members are alike; give two classes or more",
        ),
    ],
)
def test_why_a_set_has_no_labels_is_said(tmp_path, make, reason):
    data = str(make(tmp_path))
    with pytest.raises(ValueError, match="has no labels") as refused:
        parts.split(find(data), data)
    assert str(refused.value).startswith(f"{data} has no labels, which an evaluation needs{reason}")
    assert "\n" not in str(refused.value)
