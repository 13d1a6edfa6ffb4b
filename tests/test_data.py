import io
import os
import pickle
import random
import struct
import tarfile
import urllib.error
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from pictures import paint
from PIL.TiffImagePlugin import BITSPERSAMPLE, PHOTOMETRIC_INTERPRETATION

from fastmoco import decode as decoding
from fastmoco import named, shapes, shards
from fastmoco.data import find
from fastmoco.images import Images, Part, Pixels, fingerprint, glance


@pytest.fixture(autouse=True)
def store(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("store")
    monkeypatch.setenv("FASTMOCO_DATA", str(folder))
    return folder


def picture(number, mode="RGB"):
    """A picture of one colour that tells its number."""
    return PIL.Image.new(mode, (4, 3), (number, 2 * number, 255 - number))


def encode(number):
    stream = io.BytesIO()
    picture(number).save(stream, "PNG")
    return stream.getvalue()


def plant(root, *names):
    """Files named so, of which the first holds picture 0 and so on."""
    for number, name in enumerate(names):
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(encode(number))
    return root


def pack(path, *members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def names(images, root):
    return [os.path.relpath(images.name(i), root) for i in range(len(images))]


def numbers(images):
    """Which pictures these are, and that each is what it claims to be."""
    read = [images.read(i) for i in range(len(images))]
    assert all(image.mode == "RGB" and image.size == (4, 3) for image in read)
    return [image.getpixel((0, 0))[0] for image in read]


# Trees


def test_a_tree_is_every_image_in_it_sorted_bytewise(tmp_path):
    found = ["B.JPG", "a b/c.Jpeg", "a b/ü.png", "a.tiff", "deep/er/still/x.webp", "z.pgm"]
    plant(tmp_path, *found, "notes.txt", ".hidden.png", ".folder/x.png", "._B.JPG", "a b/.x/y.png", "jpg", "x.jpg.txt")
    source = find(str(tmp_path))
    assert names(source.train, tmp_path) == sorted(found, key=os.fsencode)
    assert sorted(numbers(source.train)) == list(range(len(found)))
    assert source.labelled is source.val is source.train.labels is None
    assert source.words == "6 images without labels"
    assert isinstance(source.train, Images)


def test_every_known_ending_is_found_and_can_be_read(tmp_path):
    for ending in shards.ENDINGS:
        picture(200).save(tmp_path / f"x{ending.decode()}")
    train = find(str(tmp_path)).train
    assert len(train) == len(shards.ENDINGS)
    for index in range(len(train)):
        assert train.read(index).mode == "RGB"


def test_order_does_not_depend_on_the_order_of_creation(tmp_path):
    files = [f"{folder}/{name}.png" for folder in ("x", "X", "x.y", "é") for name in ("1", "10", "2", "A")]
    orders = []
    for turn in range(3):
        random.Random(turn).shuffle(files)
        root = plant(tmp_path / str(turn), *files)
        source = find(str(root))
        orders.append((names(source.train, root), list(source.train.labels), source.train.classes))
    assert orders[0] == orders[1] == orders[2]
    assert orders[0][0] == sorted(files, key=os.fsencode)
    assert orders[0][2] == ("X", "x", "x.y", "é")


def test_names_of_odd_bytes_can_be_read_and_printed(tmp_path):
    try:
        plant(tmp_path, b"od\xffd/\xfe.png", b"od\xffd/a.png", b"plain/a.png", b"plain/b.png")
    except OSError:
        pytest.skip("this file system takes no such names")
    source = find(str(tmp_path))
    assert numbers(source.train) == [1, 0, 2, 3]
    assert source.train.name(1).encode().endswith(b"od\\xffd/\\xfe.png")
    assert source.train.classes == ("od\\xffd", "plain")


def test_links_are_followed_but_not_in_circles(tmp_path):
    plant(tmp_path / "data", "a/1.png", "a/2.png")
    plant(tmp_path / "elsewhere", "3.png", "4.png")
    (tmp_path / "data" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "a" / "circle").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "itself.png").symlink_to("itself.png")
    (tmp_path / "data" / "a" / "nowhere.png").symlink_to("nothing")
    os.mkfifo(tmp_path / "data" / "a" / "pipe.png")
    train = find(str(tmp_path / "data")).train
    assert names(train, tmp_path / "data") == [
        "a/1.png",
        "a/2.png",
        "a/nowhere.png",
        "b/3.png",
        "b/4.png",
        "itself.png",
    ]
    for index in (2, 5):
        with pytest.raises(OSError, match=r"^No such file or directory$|^Too many levels of symbolic links$"):
            train.read(index)


def test_class_folders_give_labels(tmp_path):
    plant(tmp_path, "dog/x/1.png", "cat/1.png", "cat/2.png", "dog/2.png")
    (tmp_path / "empty").mkdir()
    source = find(str(tmp_path))
    assert source.train.classes == ("cat", "dog")
    assert list(source.train.labels) == [0, 0, 1, 1]
    assert source.labelled is source.train
    assert source.val is None
    assert source.words == "4 images in 2 classes"


@pytest.mark.parametrize(
    "files",
    [
        ["a/1.png", "a/2.png", "b/1.png", "b/2.png", "cover.png"],  # one lies in the root
        ["a/1.png", "a/2.png", "a/3.png"],  # one folder
        ["a/1.png", "b/1.png", "b/2.png"],  # fewer than two a folder
    ],
)
def test_other_folders_give_none(tmp_path, files):
    source = find(str(plant(tmp_path, *files)))
    assert source.train.labels is source.labelled is None
    assert source.train.classes == ()
    assert len(source.train) == len(files)


def test_a_class_that_is_called_train_is_no_part_of_the_set(tmp_path):
    classes = [f"{name}/{i}.png" for name in ("bus", "car", "train") for i in range(2)]
    plant(tmp_path, *classes, "notes/read.txt")
    source = find(str(tmp_path))
    assert names(source.train, tmp_path) == classes
    assert source.train.classes == ("bus", "car", "train")
    # Beside val/, or with classes below it, it is a part; and test/ is left alone.
    plant(tmp_path, "val/bus/1.png")
    assert names(find(str(tmp_path)).train, tmp_path) == ["train/0.png", "train/1.png"]
    plant(tmp_path / "two", "train/a/1.png", "train/b/1.png", "extra/1.png")
    assert names(find(str(tmp_path / "two")).train, tmp_path / "two") == ["train/a/1.png", "train/b/1.png"]
    plant(tmp_path / "three", "train/1.png", "test/1.png", ".thumbnails/1.png", "notes/.1.png")
    assert names(find(str(tmp_path / "three")).train, tmp_path / "three") == ["train/1.png"]


@pytest.mark.parametrize("held", ["val", "valid", "validation"])
def test_train_and_val_are_kept_apart_and_classes_numbered_alike(tmp_path, held):
    classes = [f"train/{name}/{i}.png" for name in "abc" for i in range(2)]
    plant(tmp_path, *classes, f"{held}/c/1.png", f"{held}/b/1.png", "test/a/1.png", "cover.png")
    source = find(str(tmp_path))
    assert names(source.train, tmp_path) == classes
    assert names(source.val, tmp_path) == [f"{held}/b/1.png", f"{held}/c/1.png"]
    assert list(source.val.labels) == [1, 2]
    assert source.val.classes == source.train.classes == ("a", "b", "c")
    assert source.words == "6 images in 3 classes, 2 held out"


@pytest.mark.parametrize(
    "files",
    [
        ["train/a/1.png", "train/a/2.png", "train/b/1.png", "train/b/2.png", "val/1.png", "val/a/1.png"],
        ["train/a/1.png", "train/a/2.png", "train/b/1.png", "train/b/2.png", "val/images/1.png", "val/images/2.png"],
        ["train/a/1.png", "train/a/2.png", "train/b/1.png", "train/b/2.png", "val/notes.txt"],
        ["train/1.png", "val/a/1.png", "val/a/2.png", "val/b/1.png", "val/b/2.png"],
    ],
)
def test_nothing_is_held_out_without_labels_on_both_sides(tmp_path, files):
    source = find(str(plant(tmp_path, *files)))
    assert source.val is None
    assert "held out" not in source.words


def test_a_train_folder_without_images_is_only_a_folder(tmp_path):
    plant(tmp_path, "train/notes.txt", "a/1.png", "a/2.png", "b/1.png", "b/2.png")
    assert find(str(tmp_path)).train.classes == ("a", "b")


# Lists


def write_list(tmp_path, *lines, end="\n"):
    path = tmp_path / "list.txt"
    path.write_bytes(b"".join(os.fsencode(line + end) for line in lines))
    return str(path)


def test_a_list_keeps_its_order_and_skips_blanks_and_remarks(tmp_path, monkeypatch):
    plant(tmp_path, "b.png", "sub/a b.png", "ü.png")
    lines = ["# remark", "", "sub/a b.png", str(tmp_path / "b.png"), "  ", "ü.png", "gone.png", "sub/a b.png"]
    for end in ("\n", "\r\n"):
        source = find(write_list(tmp_path, *lines, end=end))
        assert names(source.train, tmp_path) == ["sub/a b.png", "b.png", "ü.png", "gone.png", "sub/a b.png"]
        assert [source.train.read(i).getpixel((0, 0))[0] for i in (0, 1, 2, 4)] == [1, 0, 2, 1]
        with pytest.raises(FileNotFoundError):
            source.train.read(3)
        assert source.words == "5 images without labels"
    monkeypatch.chdir(tmp_path)
    assert numbers(find(write_list(tmp_path, "ü.png")).train) == [2]
    assert find("list.txt").train.name(0) == "ü.png"


def test_a_list_of_relative_and_absolute_paths_is_known_again_wherever_it_is_named_from(tmp_path, monkeypatch):
    plant(tmp_path, "a.png", "sub/b.png")
    path = write_list(tmp_path, "a.png", str(tmp_path / "sub" / "b.png"))
    known = fingerprint(find(path).train)
    for folder, name in ((tmp_path, "list.txt"), (tmp_path, "./list.txt"), (tmp_path / "sub", "../list.txt")):
        monkeypatch.chdir(folder)
        assert fingerprint(find(name).train) == known


def test_a_folder_is_known_again_however_it_is_spelt(tmp_path, monkeypatch):
    plant(tmp_path, "photos/a.png", "photos/sub/b.png")
    monkeypatch.chdir(tmp_path)
    known = fingerprint(find("photos").train)
    for name in ("./photos", "photos/", f"{tmp_path}//photos", str(tmp_path / "photos"), "photos/../photos"):
        assert fingerprint(find(name).train) == known, name
    monkeypatch.chdir("photos")
    assert (
        fingerprint(find(".").train) == fingerprint(find("./").train) == fingerprint(find("../photos").train) == known
    )


def test_a_number_at_the_end_of_every_line_is_a_label(tmp_path):
    plant(tmp_path, "a.png", "my cat.png", "c.png", "d")
    source = find(write_list(tmp_path, "\ufeffa.png 10", "my cat.png\t2", "# remark", "c.png  10", "d 7"))
    assert numbers(source.train) == [0, 1, 2, 3]
    assert source.train.classes == ("2", "7", "10")
    assert list(source.train.labels) == [2, 0, 2, 1]
    assert source.labelled is source.train
    assert source.words == "4 images in 3 classes"


def test_where_a_line_has_no_number_there_are_no_labels_and_the_numbers_belong_to_no_name(tmp_path):
    plant(tmp_path, "a.png", "b.png", "c.png")
    (tmp_path / "list.txt").write_text("a.png 0\nb.png 1\nc.png\n")
    images = find(str(tmp_path / "list.txt")).train
    assert names(images, tmp_path) == ["a.png", "b.png", "c.png"]
    assert images.labels is None


def test_a_number_that_belongs_to_the_name_is_no_label(tmp_path):
    plant(tmp_path, "photo 1", "photo 2")
    source = find(write_list(tmp_path, "photo 1", "photo 2"))
    assert numbers(source.train) == [0, 1]
    assert source.labelled is None


def test_a_single_label_tells_nothing_apart(tmp_path):
    plant(tmp_path, "a.png", "b.png")
    source = find(write_list(tmp_path, "a.png 0", "b.png 0"))
    assert numbers(source.train) == [0, 1]
    assert source.labelled is None


# Shards


def test_shards_are_found_by_braces_by_name_and_by_folder(tmp_path, monkeypatch):
    for s in range(3):
        members = [(f"a/{i}.png", encode(10 * s + i)) for i in range(2)]
        labels = [(f"a/{i}.cls", str(5 * s).encode()) for i in range(2)]
        pack(tmp_path / f"shards-{s:03}.tar", *members, *labels)
    (tmp_path / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("shards-{000..002}.tar", ".", str(tmp_path)):
        source = find(name)
        assert numbers(source.train) == [0, 1, 10, 11, 20, 21]
        assert list(source.train.labels) == [0, 0, 1, 1, 2, 2]
        assert source.train.classes == ("0", "5", "10")
        assert source.words == "6 images in 3 classes"
    one = find("shards-001.tar")
    assert numbers(one.train) == [10, 11]
    assert one.train.name(1) == "shards-001.tar/a/1.png"
    assert one.labelled is None
    assert isinstance(one.train, Images)
    with monkeypatch.context() as patch:
        patch.setattr(tarfile, "open", None)
        assert numbers(find("shards-{002,000}.tar").train) == [20, 21, 0, 1]


def test_folders_of_shards_are_train_and_val(tmp_path):
    for s in range(2):
        for split, labels in (("train", (3, 9)), ("val", (9, 9 if s else 3))):
            members = [(f"{i}.png", encode(i)) for i in range(2)]
            classes = [(f"{i}.cls", str(labels[i]).encode()) for i in range(2)]
            pack(tmp_path / split / f"{s}.tar", *members, *classes)
    source = find(str(tmp_path))
    assert list(source.train.labels) == [0, 1, 0, 1]
    assert list(source.val.labels) == [1, 0, 1, 1]
    assert source.words == "4 images in 2 classes, 4 held out"


def test_images_go_before_archives_that_lie_beside_them(tmp_path):
    plant(tmp_path, "a/1.png")
    pack(tmp_path / "a.tar", ("x.png", encode(7)), ("y.png", encode(8)))
    assert numbers(find(str(tmp_path)).train) == [0]


# Sets by name


class Cifar:
    """Stands for torchvision's class: fails without files, as it does, and downloads if told to."""

    classes = ["plane", "car"]  # noqa: RUF012
    failure: Exception | None = None

    def __init__(self, root, train=True, download=False):
        file = os.path.join(root, "cifar")
        if download:
            if self.failure:
                raise self.failure
            with open(file, "w"):
                pass
        if not os.path.exists(file):
            raise RuntimeError("Dataset not found or corrupted.\nYou can use download=True to download it")
        count = 3 if train else 2
        data = np.arange(count * 3 * 32 * 32, dtype=np.int64).astype(np.uint8).reshape(count, 3, 32, 32)
        self.data = data.transpose(0, 2, 3, 1)
        self.targets = [i % 2 for i in range(count)]


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_taken_from_the_store_and_downloaded_only_on_request(tmp_path, store, monkeypatch, name):
    monkeypatch.setattr(f"torchvision.datasets.{name.upper()}", Cifar)
    monkeypatch.chdir(plant(tmp_path, f"{name}/x.png"))
    with pytest.raises(ValueError, match=f"{name} is not in '{store}', .*; add --download"):
        find(name)
    for download in (True, False):
        source = find(name, download)
        original = Cifar(str(store))
        for index in range(3):
            assert np.array_equal(np.asarray(source.train.read(index)), original.data[index])
        assert list(source.train.labels) == [0, 1, 0]
        assert list(source.val.labels) == [0, 1]
        assert source.train.name(2) == f"{name}/train/2"
        assert source.val.name(1) == f"{name}/test/1"
        assert source.words == "3 images in 2 classes, 2 held out"
        assert isinstance(source.train, Images)
    assert len(find(f"./{name}").train) == 1  # the folder of that name


def test_stl10_learns_from_all_and_is_judged_by_the_labelled(monkeypatch):
    class STL10:
        classes = ("plane", "bird")

        def __init__(self, root, split, download):
            count = {"train": 2, "train+unlabeled": 5, "test": 3}[split]
            self.data = np.random.default_rng(0).integers(0, 256, (5, 3, 96, 96), np.uint8)[:count]
            self.labels = np.array([1, 0, -1, -1, -1] if split == "train+unlabeled" else [1, 0, 1][:count])

    monkeypatch.setattr("torchvision.datasets.STL10", STL10)
    source = find("stl10")
    assert [len(each) for each in (source.train, source.labelled, source.val)] == [5, 2, 3]
    assert source.train.labels is None
    assert list(source.labelled.labels) == [1, 0]
    assert list(source.val.labels) == [1, 0, 1]
    assert source.words == "5 images, 2 of them with labels in 2 classes, 3 held out"
    pixels = np.asarray(source.train.read(4))
    assert np.array_equal(pixels.transpose(2, 0, 1), STL10("", "train+unlabeled", False).data[4])


def test_imagenette_is_the_tree_that_torchvision_unpacks(store, monkeypatch):
    def make(root, size, download):
        assert (root, size) == (str(store), "160px")
        plant(store / "imagenette2-160", *(f"{s}/{c}/{i}.JPEG" for s in ("train", "val") for c in "nm" for i in (1, 2)))

    monkeypatch.setattr("torchvision.datasets.Imagenette", make)
    with pytest.raises(ValueError, match="imagenette2-160' has 8 images rather than 13,394; remove it") as caught:
        find("imagenette")
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(named, "IMAGENETTE", (4, 4))
    source = find("imagenette")
    assert source.words == "4 images in 2 classes, 4 held out"
    assert source.train.classes == ("m", "n")


@pytest.mark.parametrize(
    "failure",
    [
        urllib.error.URLError("no route\nto host"),
        RuntimeError("File not found or corrupted."),
        ConnectionResetError(),
        tarfile.ReadError("damaged"),
    ],
)
def test_a_download_that_fails_is_one_line(monkeypatch, store, failure):
    monkeypatch.setattr(Cifar, "failure", failure)
    monkeypatch.setattr("torchvision.datasets.CIFAR10", Cifar)
    with pytest.raises(ValueError, match=f"cannot download cifar10 to '{store}': .*; try again") as caught:
        find("cifar10", download=True)
    assert "\n" not in str(caught.value)


def test_shapes_are_those_that_are_drawn(monkeypatch):
    monkeypatch.setattr(shapes, "COUNTS", {"train": 20, "val": 10})
    source = find("shapes")
    for split, images in (("train", source.train), ("val", source.val)):
        pixels, labels = shapes.draw(split)
        assert len(images) == len(pixels)
        assert list(images.labels) == labels
        assert np.array_equal(np.asarray(images.read(7)), pixels[7].permute(1, 2, 0).numpy())
        assert images.name(7) == f"shapes/{split}/7"
        assert images.classes == shapes.CLASSES
    assert source.words == "20 images in 10 classes, 10 held out"


# What holds for all


def test_a_pickle_reads_the_same(tmp_path):
    tree = plant(tmp_path / "tree", "a/1.png", "a/2.png", "b/1.png", "b/2.png")
    listed = write_list(tmp_path, *(f"tree/{name}/{i}.png {ord(name)}" for name in "ba" for i in (1, 2)))
    members = [(f"{i}.{end}", encode(i) if end == "png" else b"%d" % i) for i in range(4) for end in ("png", "cls")]
    packed = pack(tmp_path / "x.tar", *members)
    pixels = Pixels(np.stack([np.asarray(picture(i)) for i in range(4)]), None, (), "drawn")
    for images in (*(find(str(path)).train for path in (tree, listed, packed)), pixels):
        images.read(0)
        again = pickle.loads(pickle.dumps(images))
        assert numbers(again) == numbers(images)
        assert names(again, tmp_path) == names(images, tmp_path)
        assert again.labels == images.labels
        assert again.classes == images.classes


def test_a_set_shows_itself_by_how_many_of_what_and_where(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plant(tmp_path / "tree", *(f"{name}/{i}.png" for name in "ab" for i in range(10)))
    pack(tmp_path / "x.tar", ("1.png", encode(1)), ("2.png", encode(2)))
    tree, packed = find("tree").train, find("x.tar").train
    pixels = Pixels(np.zeros((1500, 4, 4, 3), np.uint8), None, (), "drawn")
    assert repr(tree) == "<Files: 20 images in 2 classes, the first is 'tree/a/0.png'>"
    assert repr(packed) == "<Shards: 2 images without labels, the first is 'x.tar/1.png'>"
    assert repr(pixels) == "<Pixels: 1,500 images without labels, the first is 'drawn/0'>"
    assert repr(Part(tree, np.array([13]))) == "<Part: 1 image in 2 classes, the first is 'tree/b/3.png'>"
    assert repr(Part(tree, np.array([], np.int64))) == "<Part: 0 images in 2 classes>"


def test_what_is_kept_of_an_image_is_no_python_object(tmp_path):
    files = [f"class {i % 3}/{i:05}.png" for i in range(300)]
    for i in range(3):
        (tmp_path / f"class {i}").mkdir()
    for name in files:
        (tmp_path / name).touch()
    train = find(str(tmp_path)).train
    assert len(train) == 300
    assert len(pickle.dumps(train)) < 300 * (len(files[0]) + 8) + 1000


# Decoding


def decode(image, form):
    stream = io.BytesIO()
    image.save(stream, form)
    return decoding.decode(stream.getvalue())


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_scaled_to_eight(form):
    deep = np.array([[0, 255, 256, 4096], [32768, 65280, 65535, 1000]], np.uint16)
    image = decode(PIL.Image.fromarray(deep), form)
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image)[..., 1], deep // 256)


@pytest.mark.parametrize("options", [{}, {"compression": "tiff_lzw"}])
def test_a_tiff_that_declares_twelve_bits_is_scaled_to_eight(options):
    packed = np.frombuffer(bytes.fromhex("000100800fff0000"), "<u2").reshape(1, 4)  # of four pixels, and a rest
    stream = io.BytesIO()
    PIL.Image.fromarray(packed).save(stream, "TIFF", **options)
    sixteen, twelve = (struct.pack("<HHIHH", BITSPERSAMPLE, 3, 1, bits, 0) for bits in (16, 12))
    assert stream.getvalue().count(sixteen) == 1
    image = decoding.decode(stream.getvalue().replace(sixteen, twelve))
    assert np.asarray(image)[0, :, 1].tolist() == [0, 16, 128, 255]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_a_tiff_in_which_white_is_zero_is_no_negative(kind):
    stream, most = io.BytesIO(), np.iinfo(kind).max
    PIL.Image.fromarray(np.array([[0, most // 4, most]], kind)).save(stream, "TIFF")
    black_is_zero, white_is_zero = (struct.pack("<HHIHH", PHOTOMETRIC_INTERPRETATION, 3, 1, way, 0) for way in (1, 0))
    assert stream.getvalue().count(black_is_zero) == 1
    image = decoding.decode(stream.getvalue().replace(black_is_zero, white_is_zero))
    assert np.asarray(image)[0, :, 1].tolist() == [255, 192, 0]


@pytest.mark.parametrize("tags", [{}, {281: 4095}, {341: 4095}])
def test_twelve_bits_in_a_file_of_sixteen_stay_dark_whatever_a_statistic_says(tags):
    stream = io.BytesIO()
    PIL.Image.fromarray(np.array([[0, 256, 2048, 4095]], np.uint16)).save(stream, "TIFF", tiffinfo=tags)
    assert np.asarray(decoding.decode(stream.getvalue()))[0, :, 1].tolist() == [0, 1, 8, 15]


@pytest.mark.parametrize("kind", ["P2", "P5"])
def test_a_pgm_of_any_depth_is_scaled_to_eight_bits(kind):
    deep = np.array([0, 256, 2048, 4095])
    content = deep.astype(">u2").tobytes() if kind == "P5" else " ".join(map(str, deep)).encode()
    image = decoding.decode(kind.encode() + b" 4 1 4095\n" + content)
    assert np.asarray(image)[0, :, 1].tolist() == [0, 16, 128, 255]


@pytest.mark.parametrize("top", [255, 4095, 65535, 2**20])
def test_integers_of_an_unknown_range_are_no_image(top):
    words = "32-bit pixels, of which no one says what is white; save it with 8 or unsigned 16 bits"
    with pytest.raises(ValueError, match=words):
        decode(PIL.Image.fromarray(np.linspace(0, top, 12, dtype=np.int32).reshape(3, 4)), "TIFF")


def test_signed_pixels_are_no_image():
    stream = io.BytesIO()
    PIL.Image.fromarray(np.full((3, 4), 7, np.uint16)).save(stream, "TIFF", tiffinfo={339: 2})
    assert decoding.look(stream.getvalue()).mode == "I"
    with pytest.raises(ValueError, match="signed or 32-bit pixels"):
        decoding.decode(stream.getvalue())


def test_floats_of_an_unknown_range_are_no_image():
    with pytest.raises(ValueError, match="float pixels, of which no one says what is white; save it with 8 or 16 bits"):
        decode(PIL.Image.fromarray(np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)), "TIFF")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_becomes_rgb(mode):
    image = decode(picture(0).convert("L").convert(mode), "PNG")
    assert image.mode == "RGB"
    assert image.size == (4, 3)


def test_a_remark_of_pil_does_not_escape_but_other_warnings_do(monkeypatch):
    stream = io.BytesIO()
    picture(9).quantize(4).save(stream, "PNG", transparency=b"\7")
    with pytest.warns(UserWarning, match="Palette images"):
        PIL.Image.open(stream).convert("RGB")
    with warnings.catch_warnings(record=True) as escaped:
        warnings.simplefilter("always")
        assert decoding.decode(stream.getvalue()).getpixel((0, 0)) == (9, 18, 246)
        monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 7)  # of 12
        assert decode(picture(1), "PNG").size == (4, 3)
        assert not escaped
        warnings.warn("ours", UserWarning, stacklevel=1)
        assert len(escaped) == 1


def test_remarks_do_not_escape_from_threads_either():
    stream = io.BytesIO()
    picture(9).quantize(4).save(stream, "PNG", transparency=b"\7")
    with ThreadPoolExecutor(8) as threads:  # where a warning is an error
        read = threads.map(decoding.decode, [stream.getvalue()] * 400)
        assert all(image.getpixel((0, 0)) == (9, 18, 246) for image in read)
    assert len(warnings.filters) < 40


def test_what_is_too_large_or_cut_off_raises(monkeypatch):
    with pytest.raises(OSError, match="truncated"):
        decoding.decode(encode_noise()[:-2000])
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 5)
    with pytest.raises(PIL.Image.DecompressionBombError):
        decoding.decode(encode(0))


def encode_noise():
    stream = io.BytesIO()
    PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


def test_a_file_that_is_gone_says_so_and_no_more(tmp_path):
    images = find(str(plant(tmp_path, "a.png", "b.png"))).train
    (tmp_path / "b.png").unlink()
    with pytest.raises(OSError, match=r"^No such file or directory$"):
        images.read(1)


def test_a_bad_file_leaves_nothing_open(tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    plant(tmp_path, "good.png")
    train = find(str(tmp_path)).train
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    kept = []
    for _ in range(5):
        with pytest.raises(PIL.UnidentifiedImageError):
            train.read(0)
        kept.append(train.read(1))
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


# Mistakes


def no_files(path):
    (path / "list.txt").write_text("a.png\nb.png\n")


def strange_class(path):
    plant(
        path,
        *(
            f"{split}/{name}/{i}.png"
            for split, pair in (("train", "ab"), ("val", "ac"))
            for name in pair
            for i in (1, 2)
        ),
    )


def shard_without_images(path):
    pack(path / "x.tar", ("notes.txt", b"x"))


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (
            lambda path: None,
            "nowhere",
            "no such folder, list or set '.*nowhere'; give a folder .* or one of shapes, cifar10",
        ),
        (lambda path: None, "nowhere.txt", "no such folder, list or set '.*nowhere.txt'"),
        (lambda path: None, "nowhere.tar", "no such folder, list or set '.*nowhere.tar'"),
        (lambda path: None, "", "no images in '.*'; known endings: jpg, jpeg, png"),
        (lambda path: plant(path, "a/notes.txt", ".x.png"), "", "no images in '.*'; known endings: jpg, jpeg, png"),
        (lambda path: plant(path, "one.PNG"), "one.PNG", "one.PNG' is one image; give a folder"),
        (lambda path: pack(path / "s-0.tar"), "s-{0..3}.tar", "no such shard '.*s-1.tar'"),
        (lambda path: None, "s-{0..3}.tar.gz", "s-0.tar.gz' is compressed .*; repack it"),
        (lambda path: plant(path, "s-0.tar.gz"), "s-0.tar.gz", "s-0.tar.gz' is compressed"),
        (lambda path: plant(path, "s-0.tar.gz"), "", "s-0.tar.gz' is compressed"),
        (lambda path: None, "s-{0..3}.txt", "s-0.txt' is no shard"),
        (shard_without_images, "x.tar", "no images in the shards '.*x.tar'; known endings"),
        (shard_without_images, "", "no images in the shards '.*'; known endings"),
        (no_files, "list.txt", "none of the first 2 files named in '.*list.txt' exists, such as 'a.png'; paths are"),
        (lambda path: (path / "x").write_text("# a\n\n"), "x", "the list '.*x' names no images; write one path a line"),
        (lambda path: (path / "x.zip").write_bytes(b"PK\0\1"), "x.zip", "x.zip' is no text; give a list"),
        (strange_class, "", "held-out class 'c' is not among the classes to learn from; rename or remove it"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, make, name, reason):
    make(tmp_path)
    with pytest.raises(ValueError, match=reason) as caught:
        find(os.path.join(tmp_path, name) if name else str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "CIFAR10", "~nobody-of-this-name"])
def test_a_word_that_names_nothing_is_answered_with_the_sets(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=f"no such folder, list or set '{name}'.* cifar10, cifar100, stl10, imagenette"
    ):
        find(name)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    plant(tmp_path, "a/1.png", "b/1.png")
    scan = os.scandir

    def refuse(path):
        if path.endswith(b"/b"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ValueError, match=r"cannot list '.*/b': Permission denied; make it readable, or move it"):
        find(str(tmp_path))


def test_an_empty_train_folder_beside_a_full_val_is_refused(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "val").mkdir()
    picture(1).save(tmp_path / "val" / "a.png")
    with pytest.raises(ValueError, match=r"no images in .*train', though there is val/"):
        find(str(tmp_path))


def test_a_glance_tells_sets_apart_by_what_they_hold(tmp_path):
    first, other = (find(str(paint(tmp_path / name, 9, classes=3))).train for name in ("a", "b"))
    assert glance(first) == glance(other)
    Path(other.name(4)).write_bytes(b"no image, but other bytes")
    assert glance(first) != glance(other)
    Path(other.name(4)).unlink()
    assert len(glance(other)) == len(glance(first)), "one that is gone is told of elsewhere"
    pixels = np.zeros((5, 4, 4, 3), np.uint8)
    assert glance(Pixels(pixels, None, (), "set")) != glance(Pixels(pixels + 1, None, (), "set"))
