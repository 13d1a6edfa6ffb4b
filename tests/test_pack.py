"""Packed sets against their originals, and packs that are stopped anywhere."""

import errno
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
from array import array
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import PIL.Image
import pytest
from pictures import paint, pretrain_a_little

from fastmoco import album, data, images, members, packing, parts
from fastmoco.data import find
from fastmoco.decode import decode
from fastmoco.pack import pack


@pytest.fixture
def small_shards(monkeypatch):
    """What is a MiB elsewhere is ten kilobytes here."""
    monkeypatch.setattr(members, "MIB", 10_000)


def packed(root, out, **settings):
    return pack(str(root), str(out), **settings)


def photo(width, height, seed=0):
    """Smooth colours with some detail, as photos have."""
    generator = np.random.default_rng(seed)
    coarse = PIL.Image.fromarray(generator.integers(0, 255, (4, 5, 3), dtype=np.uint8))
    fine = PIL.Image.fromarray(generator.integers(0, 255, (15, 20), dtype=np.uint8)).convert("RGB")
    extent = (width, height)
    return PIL.Image.blend(coarse.resize(extent, PIL.Image.BICUBIC), fine.resize(extent, PIL.Image.BICUBIC), 0.2)


def encoded(image, form="JPEG", **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def take_photos(root, count, classes=("cat", "dog", "eel"), width=60, height=40):
    """JPEGs in class folders, of which some are on their side."""
    for number in range(count):
        place = root / classes[number % len(classes)]
        place.mkdir(parents=True, exist_ok=True)
        extent = (width, height) if number % 2 else (height, width)
        (place / f"{number:03d}.jpg").write_bytes(encoded(photo(*extent, number), quality=95))
    return root


def psnr(one, other):
    error = np.square(np.asarray(one, np.float64) - np.asarray(other, np.float64)).mean()
    return 10 * np.log10(255**2 / error)


def members_of(out, part="train"):
    """Names and contents in the order of the shards, as tarfile reads them."""
    found = []
    for path in sorted((out / part).glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [(member.name, tar.extractfile(member).read()) for member in tar]
    return found


def pictures_of(out, part="train"):
    return [(name, content) for name, content in members_of(out, part) if not name.endswith(".cls")]


def snapshot(out):
    """All that a pack has written."""
    files = (path for path in sorted(out.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def states(out):
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in out.rglob("*.tar")}


# What is packed


def test_every_image_comes_back_smaller_with_its_label(tmp_path):
    take_photos(tmp_path / "in" / "train", 12, width=600, height=400)
    take_photos(tmp_path / "in" / "val", 6, width=600, height=400)
    before = find(str(tmp_path / "in"))
    out = packed(tmp_path / "in", tmp_path / "out", size=64, quality=95)
    after = find(str(out))
    for old, new in ((before.train, after.train), (before.val, after.val)):
        assert len(new) == len(old)
        assert list(new.labels) == list(old.labels)
        for index in range(len(old)):
            original, small = old.read(index), new.read(index)
            assert small.size == ((96, 64) if original.width > original.height else (64, 96))
            assert psnr(small, original.resize(small.size, PIL.Image.LANCZOS)) > 35
    assert after.labelled is after.train
    assert (out / "train" / "classes.txt").read_text().split() == ["cat", "dog", "eel"]
    assert after.train.classes == before.train.classes


def test_a_held_out_part_without_some_class_keeps_its_numbers(tmp_path):
    take_photos(tmp_path / "in" / "train", 9)
    take_photos(tmp_path / "in" / "val", 6, classes=("cat", "eel"))
    before = find(str(tmp_path / "in"))
    after = find(str(packed(tmp_path / "in", tmp_path / "out")))
    assert list(after.val.labels) == list(before.val.labels)
    assert set(after.val.labels) == {0, 2}


def test_a_set_without_labels_has_none_after(tmp_path):
    take_photos(tmp_path / "in", 5, classes=(".",))
    out = packed(tmp_path / "in", tmp_path / "out")
    source = find(str(out))
    assert source.words == "5 images without labels"
    assert [name for name, _ in members_of(out)] == [f"{number:08d}/{number:03d}.jpg" for number in range(5)]
    assert sorted(path.name for path in out.rglob("*") if path.is_file()) == [".lock", "pack.json", "shard-000000.tar"]


def test_held_out_images_without_labels_stay_held_out(tmp_path):
    take_photos(tmp_path / "in" / "train", 6)
    take_photos(tmp_path / "in" / "val", 2, classes=(".",))
    source = find(str(packed(tmp_path / "in", tmp_path / "out")))
    assert (len(source.train), len(source.unlabelled)) == (6, 2)
    assert source.val is None


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("extent", [(90, 48), (20, 30)])
def test_a_jpeg_that_is_small_enough_keeps_its_bytes(tmp_path, mode, extent):
    content = encoded(photo(*extent).convert(mode), quality=20)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.JPG").write_bytes(content)
    assert pictures_of(packed(tmp_path / "in", tmp_path / "out", size=48)) == [("00000000/a.JPG", content)]


def kinds():
    picture = photo(70, 50)
    alpha = picture.copy()
    alpha.putalpha(PIL.Image.linear_gradient("L").resize(picture.size))
    deep = PIL.Image.fromarray(np.linspace(0, 65535, 70 * 50).astype(np.uint16).reshape(50, 70))
    return {
        "cmyk.jpg": encoded(picture.convert("CMYK"), quality=95),
        "grey.png": encoded(picture.convert("L"), "PNG"),
        "deep.png": encoded(deep, "PNG"),
        "alpha.png": encoded(alpha, "PNG"),
        "palette.gif": encoded(picture.quantize(64, dither=PIL.Image.Dither.NONE), "GIF"),
        "plain.webp": encoded(picture, "WEBP", lossless=True),
        "plain.bmp": encoded(picture, "BMP"),
        "named.jpg": encoded(picture, "PNG"),  # no JPEG, whatever its name says
    }


@pytest.mark.parametrize("size", [40, 256])
@pytest.mark.parametrize("name", sorted(kinds()))
def test_any_kind_of_image_becomes_what_the_loader_sees(name, size):
    content = kinds()[name]
    found = PIL.Image.open(io.BytesIO(members.shrink(content, size, 95)))
    expected = decode(content)
    assert (found.format, found.mode) == ("JPEG", "RGB")
    assert min(found.size) == min(50, size)
    assert psnr(found, expected.resize(found.size, PIL.Image.LANCZOS)) > 30


@pytest.mark.parametrize("size", [100, 180, 700])
def test_a_much_larger_jpeg_looks_as_if_it_had_been_decoded_whole(size):
    noise = np.random.default_rng(0).integers(0, 255, (500, 700), dtype=np.uint8)
    large = encoded(PIL.Image.fromarray(noise).convert("RGB").resize((2100, 1500), PIL.Image.BICUBIC), quality=95)
    found = PIL.Image.open(io.BytesIO(members.shrink(large, size, 95)))
    assert found.size == (round(size * 1.4), size)
    assert psnr(found, decode(large).resize(found.size, PIL.Image.LANCZOS)) > 33


@pytest.mark.parametrize(("form", "size"), [("JPEG", 20), ("PNG", 20), ("PNG", 40)])
def test_pixels_are_not_turned_and_nothing_but_pixels_is_kept(form, size):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # turn it
    picture = photo(80, 40)
    picture.info["comment"] = b"of someone"
    content = encoded(picture, form, exif=exif.tobytes(), icc_profile=b"x" * 500)
    found = PIL.Image.open(io.BytesIO(members.shrink(content, size, 90)))
    assert found.size == (2 * size, size)
    assert found.info.keys() <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
    assert not found.getexif()


@pytest.mark.parametrize(("extent", "expected"), [((999, 333), (120, 40)), ((40, 41), (40, 41)), ((1, 500), (1, 500))])
def test_the_short_side_decides(extent, expected):
    assert PIL.Image.open(io.BytesIO(members.shrink(encoded(photo(*extent), "PNG"), 40, 90))).size == expected


def test_pixels_in_memory_are_packed_too(tmp_path, monkeypatch):
    pixels = np.stack([np.asarray(photo(32, 32, seed)) for seed in range(6)])
    made = images.Pixels(pixels, array("q", [0, 1, 2] * 2), ("a", "b", "c"), "drawn/train")
    monkeypatch.setitem(data.NAMED, "drawn", lambda download: images.put_together(made))
    out = packed("drawn", tmp_path / "out", quality=95)
    found = find(str(out)).train
    assert list(found.labels) == [0, 1, 2] * 2
    assert all(psnr(found.read(index), made.read(index)) > 30 for index in range(6))
    assert pictures_of(out)[4][0] == "00000004/b/4.jpg"


def test_a_pack_can_be_packed_again_without_a_loss(tmp_path):
    take_photos(tmp_path / "in", 9)
    first = packed(tmp_path / "in", tmp_path / "first", size=30)
    second = packed(first, tmp_path / "second", size=30)
    assert [content for _, content in members_of(second)] == [content for _, content in members_of(first)]


def test_a_list_of_names_finds_the_same_images(tmp_path):
    take_photos(tmp_path / "in", 9)
    for place in ("cat", "dog"):
        shutil.copy(tmp_path / "in" / "eel" / "002.jpg", tmp_path / "in" / place / "Twin.JPEG")
    (tmp_path / "some.txt").write_text("004.jpg\ndog/Twin.JPEG\n008.jpg 3\n")
    before = find(str(tmp_path / "in")).train
    after = find(str(packed(tmp_path / "in", tmp_path / "out"))).train
    wanted = parts.by_list(before, str(tmp_path / "some.txt"))
    assert len(wanted) == 3
    assert parts.by_list(after, str(tmp_path / "some.txt")).tolist() == wanted.tolist()


def test_odd_names_are_made_safe_and_stay_apart(tmp_path):
    content = encoded(photo(30, 20))
    names = [b"a.b.c.jpg", b"a/b c'\n.jpg", b"a/\xff\xfe.jpg", "é".encode() * 120 + b".jpg", b"-x.Jpeg"]
    for name in names:
        path = os.path.join(os.fsencode(tmp_path / "in"), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
    found = pictures_of(packed(tmp_path / "in", tmp_path / "out"))
    assert [name.partition("/")[0] for name, _ in found] == [f"{number:08d}" for number in range(5)]
    assert all(re.fullmatch(r"\d{8}/[\w-]{1,80}\.jpe?g", name, re.IGNORECASE) for name, _ in found)
    assert all(each == content for _, each in found)


def test_training_reads_a_pack(tmp_path):
    paint(tmp_path / "in", 16, classes=2)
    out = packed(tmp_path / "in", tmp_path / "out", size=20)
    assert (pretrain_a_little(out, tmp_path / "run") / "encoder.safetensors").exists()


# Shards


def test_shards_are_full_and_in_the_order_of_the_images(tmp_path, small_shards, capsys):
    take_photos(tmp_path / "in", 40)
    out = packed(tmp_path / "in", tmp_path / "out", shard_mib=2)
    sizes = [path.stat().st_size for path in sorted((out / "train").glob("*.tar"))]
    assert len(sizes) > 2
    assert all(20_000 <= size < 20_000 + 10_000 + tarfile.RECORDSIZE for size in sizes[:-1])
    assert [int(name[:8]) for name, _ in pictures_of(out)] == list(range(40))
    text = capsys.readouterr().out
    assert f"40 images in {len(sizes)} shards, " in text
    assert text.endswith(f"\n\ngo on with: fastmoco pretrain {out}\n")


def test_the_same_images_make_the_same_bytes(tmp_path, small_shards):
    take_photos(tmp_path / "in" / "train", 30)
    take_photos(tmp_path / "in" / "val", 9)
    shutil.copytree(tmp_path / "in", tmp_path / "moved")
    for path in (tmp_path / "moved").rglob("*.jpg"):
        os.utime(path, (1, 1))
    one = packed(tmp_path / "in", tmp_path / "one", size=32, shard_mib=1, workers=1)
    other = packed(tmp_path / "moved", tmp_path / "other", size=32, shard_mib=1, workers=5)
    assert len(snapshot(one)) > 6
    assert snapshot(one) == snapshot(other)
    with tarfile.open(one / "train" / "shard-000000.tar") as tar:
        assert {(each.mtime, each.uid, each.gid, each.uname, each.gname) for each in tar} == {(0, 0, 0, "", "")}


def test_few_images_are_made_before_their_turn(tmp_path, monkeypatch):
    take_photos(tmp_path / "in", 60)
    asked, taken = [], []

    class Watched(ThreadPoolExecutor):
        def submit(self, make, images, index, *rest):
            asked.append(index - len(taken))
            return super().submit(make, images, index, *rest)

    monkeypatch.setattr(members, "ThreadPoolExecutor", Watched)
    for member in members.make(find(str(tmp_path / "in")).train, 0, 256, 90, threads=2):
        taken.append(member.index)
    assert taken == list(range(60))
    assert max(asked) < 2 * members.AHEAD


# Images that cannot be read


def test_unreadable_images_are_left_out_and_listed(tmp_path, small_shards, capsys):
    take_photos(tmp_path / "in" / "train", 60)
    take_photos(tmp_path / "in" / "val", 12)
    before = find(str(tmp_path / "in"))
    damaged = [tmp_path / "in" / "train" / "cat" / "000.jpg", tmp_path / "in" / "val" / "eel" / "011.jpg"]
    damaged[0].write_bytes(damaged[0].read_bytes()[:-200])  # small enough to be kept, were it not damaged
    damaged[1].write_bytes(b"no image")
    out = packed(tmp_path / "in", tmp_path / "out", shard_mib=1)
    lines = [line.split("\t") for line in (out / "bad_images.txt").read_text().splitlines()]
    assert [line[0] for line in lines] == [str(path) for path in damaged]
    assert "truncated" in lines[0][1]
    assert lines[1][1] == "cannot identify image file"
    after = find(str(out))
    assert list(after.train.labels) == list(before.train.labels)[1:]
    assert list(after.val.labels) == list(before.val.labels)[:-1]
    assert f"; 2 could not be read, see {out / 'bad_images.txt'}" in capsys.readouterr().out


def test_no_shard_is_empty(tmp_path, monkeypatch):
    monkeypatch.setattr(members, "MIB", 1)  # which any image fills
    take_photos(tmp_path / "in", 40)
    for name in ("dog/037.jpg", "eel/035.jpg", "eel/038.jpg"):  # one between others, and the last
        (tmp_path / "in" / name).write_bytes(b"")
    monkeypatch.setattr(album, "MOST_BAD", 0.1)
    out = packed(tmp_path / "in", tmp_path / "out")
    assert len(list((out / "train").glob("*.tar"))) == len(pictures_of(out)) == len(find(str(out)).train) == 37


def test_too_many_unreadable_images_are_refused(tmp_path):
    take_photos(tmp_path / "in", 40)
    for number in range(3):
        (tmp_path / "in" / "cat" / f"{3 * number:03d}.jpg").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"3 of \d+ images cannot be read, more than 5%; they are listed in .*bad_"
    ) as caught:
        packed(tmp_path / "in", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert len((tmp_path / "out" / "bad_images.txt").read_text().splitlines()) == 3
    assert not list((tmp_path / "out").rglob("*.part"))


# Packs that are stopped


@pytest.fixture
def whole(tmp_path, small_shards):
    """A set, and what a pack of it is that nothing stops."""
    take_photos(tmp_path / "in" / "train", 30)
    take_photos(tmp_path / "in" / "val", 9)
    (tmp_path / "in" / "train" / "cat" / "000.jpg").write_bytes(b"no image")
    return snapshot(packed(tmp_path / "in", tmp_path / "whole", shard_mib=1))


KILL = """
    import os, signal, sys
    from fastmoco import members
    from fastmoco.pack import pack
    members.MIB, count, append = 10_000, 0, members._append
    def killing(*given):
        global count
        count += 1
        if count == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        append(*given)
    members._append = killing
    pack(sys.argv[1], sys.argv[2], shard_mib=1)
"""


def test_a_kill_loses_no_shard_that_is_whole(tmp_path, whole):
    words = [sys.executable, "-c", textwrap.dedent(KILL), str(tmp_path / "in"), str(tmp_path / "out"), "40"]
    assert subprocess.run(words, capture_output=True).returncode == -signal.SIGKILL
    there = states(tmp_path / "out")
    assert 1 < len(there) < sum(name.endswith(".tar") for name in whole)
    assert len(list((tmp_path / "out" / "train").glob(".*.part"))) == 1
    out = packed(tmp_path / "in", tmp_path / "out", shard_mib=1)
    assert snapshot(out) == whole
    assert there.items() <= states(out).items()


@pytest.mark.parametrize("moment", range(1, 8))
def test_a_pack_that_fails_before_a_record_goes_on_to_the_same_bytes(tmp_path, whole, monkeypatch, moment):
    record, count = packing.Packing.record, iter(range(100))

    def fail(self):
        if next(count) == moment:
            raise KeyboardInterrupt
        record(self)

    with monkeypatch.context() as patch:
        patch.setattr(packing.Packing, "record", fail)
        with pytest.raises(KeyboardInterrupt):
            packed(tmp_path / "in", tmp_path / "out", shard_mib=1)
    assert snapshot(packed(tmp_path / "in", tmp_path / "out", shard_mib=1)) == whole


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_ctrl_c_and_a_full_disk_leave_whole_shards_and_a_line(tmp_path, whole, monkeypatch, capsys, error):
    append, count = members._append, iter(range(1000))

    def fail(*given):
        if next(count) == 30:
            raise error
        append(*given)

    with monkeypatch.context() as patch:
        patch.setattr(members, "_append", fail)
        with pytest.raises(type(error)) as caught:
            packed(tmp_path / "in", tmp_path / "out", shard_mib=1)
    if isinstance(error, OSError):
        assert re.fullmatch(r"cannot write \S+/shard-\d{6}.tar: No space left on device; .*", str(caught.value))
    else:
        assert "shards are whole, and the same command goes on with the next" in capsys.readouterr().err
    assert list((tmp_path / "out").rglob("*.tar"))
    assert not list((tmp_path / "out").rglob("*.part"))
    assert snapshot(packed(tmp_path / "in", tmp_path / "out", shard_mib=1)) == whole


def test_a_pack_that_is_done_is_told_and_left_alone(tmp_path, capsys, monkeypatch):
    take_photos(tmp_path / "in", 6)
    out = packed(tmp_path / "in", tmp_path / "out")
    said, before = capsys.readouterr().out, snapshot(out)
    changed = (out / "train" / "shard-000000.tar").stat().st_mtime_ns
    monkeypatch.setattr(members, "_make", None)
    shutil.move(tmp_path / "in", tmp_path / "moved")
    assert packed(tmp_path / "moved", out) == out
    assert snapshot(out) == before
    assert (out / "train" / "shard-000000.tar").stat().st_mtime_ns == changed
    again = capsys.readouterr().out
    assert f"{out} is done" in again
    assert said.splitlines()[-4:] == again.splitlines()[-4:]


# Refusals


def other_images(root, out):
    (root / "cat" / "new.jpg").write_bytes(encoded(photo(30, 20)))


def other_labels(root, out):
    (root / "dog").rename(root / "bird")


def lost(root, out):
    (out / "train" / "shard-000000.tar").unlink()


def cut(root, out):
    os.truncate(out / "train" / "shard-000000.tar", 1000)


def damage(root, out):
    (out / "pack.json").write_text("{")


def replace(root, out):
    (out / "pack.json").write_text("[]")


@pytest.mark.parametrize(
    ("change", "settings", "reason"),
    [
        (None, {"size": 31}, "out holds another pack: size 30 there, 31 here; give another OUT"),
        (None, {"size": 30, "quality": 80}, "another pack: quality 90 there, 80 here"),
        (None, {"size": 30, "shard_mib": 9}, "another pack: shard_mib 256 there, 9 here"),
        (other_images, {"size": 30}, "another pack: other images"),
        (other_labels, {"size": 30}, "another pack: other images"),
        (lost, {"size": 30}, "shard-000000.tar is missing or has changed; remove .*out, and pack again"),
        (cut, {"size": 30}, "shard-000000.tar is missing or has changed"),
        (damage, {"size": 30}, "pack.json cannot be read: .*; give another OUT"),
        (replace, {"size": 30}, "pack.json cannot be read: .*; give another OUT"),
    ],
)
def test_another_pack_is_refused(tmp_path, change, settings, reason):
    take_photos(tmp_path / "in", 9)
    out = packed(tmp_path / "in", tmp_path / "out", size=30)
    if change:
        change(tmp_path / "in", out)
    before = snapshot(out)
    with pytest.raises(ValueError, match=reason) as caught:
        packed(tmp_path / "in", out, **settings)
    assert "\n" not in str(caught.value)
    assert snapshot(out) == before


@pytest.mark.parametrize("labels", [(1, 0, 1, 1), (0, 2, 0, 2)])
def test_a_list_with_other_labels_is_another_set(tmp_path, labels):
    take_photos(tmp_path, 4, classes=(".",))
    for each in ((0, 1, 0, 1), labels):
        lines = (f"{number:03d}.jpg {label}\n" for number, label in enumerate(each))
        (tmp_path / "list.txt").write_text("".join(lines))
        if each != labels:
            packed(tmp_path / "list.txt", tmp_path / "out")
    with pytest.raises(ValueError, match="another pack: other images"):
        packed(tmp_path / "list.txt", tmp_path / "out")


def test_a_place_that_holds_something_else_is_refused(tmp_path):
    take_photos(tmp_path / "in", 9)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file; give a folder for OUT"):
        packed(tmp_path / "in", tmp_path / "file")
    with pytest.raises(ValueError, match="in holds 'cat' and is no pack; give a new folder"):
        packed(tmp_path / "in", tmp_path / "in")
    with pytest.raises(ValueError, match="OUT shapes: a set has this name"):
        packed(tmp_path / "in", "shapes")
    assert len(list((tmp_path / "in").iterdir())) == 3


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"size": 0}, "--size 0: use the pixels"),
        ({"quality": 0}, "--quality 0: use 1 to 100"),
        ({"quality": 101}, "--quality 101: use 1 to 100"),
        ({"shard_mib": 0}, "--shard-mib 0: use 1 or more"),
        ({"workers": -1}, "--workers -1: use 0 or more"),
    ],
)
def test_values_that_make_no_sense_are_refused_before_anything_is_written(tmp_path, settings, reason):
    with pytest.raises(ValueError, match=reason):
        packed(tmp_path / "in", tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_a_set_of_which_a_part_has_labels_is_refused(tmp_path, monkeypatch):
    take_photos(tmp_path / "in", 9)
    some = find(str(tmp_path / "in")).train
    monkeypatch.setitem(
        data.NAMED, "half", lambda download: images.Source(find(str(tmp_path / "in")).train, some, None, "")
    )
    with pytest.raises(ValueError, match="half has labels for a part of its images"):
        packed("half", tmp_path / "out")


HOLD = (
    "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); print(1, flush=True); input()"
)


def test_two_processes_do_not_pack_into_one_folder(tmp_path):
    pytest.importorskip("fcntl")
    take_photos(tmp_path / "in", 4)
    out = packed(tmp_path / "in", tmp_path / "out")
    words = [sys.executable, "-c", HOLD, str(out / ".lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(ValueError, match=r"another process is packing into .*out; wait"):
            packed(tmp_path / "in", out)
        other.communicate(b"\n")
    assert packed(tmp_path / "in", out) == out


def test_a_folder_inside_the_set_is_refused(tmp_path):
    paint(tmp_path / "images", 3)
    with pytest.raises(ValueError, match=r"is inside .*; give a folder outside of it"):
        pack(str(tmp_path / "images"), str(tmp_path / "images" / "train"))
    assert not (tmp_path / "images" / "train").exists()
