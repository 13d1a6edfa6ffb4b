import io
import itertools
import multiprocessing
import os
import pickle
import shutil
import subprocess
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fastmoco import shards


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTMOCO_DATA", str(tmp_path / "store"))
    return tmp_path / "store" / "shards"


def pack(path, members, form=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return str(path)


def extracted(path):
    """What tarfile itself reads, in its order."""
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isreg()}


def contents(index):
    return {index.name(i).partition(".tar/")[2]: index.fetch(i) for i in range(len(index))}


NAMES = ["a.jpg", "b/c.PNG", "with space.jpeg", "día/ñ.webp", "x" * 150 + "/" + "y" * 150 + ".jpg", "q" * 250 + ".ppm"]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_an_image_is_byte_for_byte_what_tarfile_extracts(tmp_path, form):
    members = [(name, os.urandom(317 * i)) for i, name in enumerate(NAMES)]
    path = pack(tmp_path / "a.tar", members, form)
    for _ in range(2):  # indexed, and then recalled
        index = shards.build([path])
        assert contents(index) == extracted(path) == dict(members)
        assert [index.name(i) for i in range(len(index))] == [f"{path}/{name}" for name in NAMES]


def test_names_of_odd_bytes_can_be_read_and_printed(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo(b"od\xffd.jpg".decode("utf-8", "surrogateescape"))
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    index = shards.build([str(tmp_path / "a.tar")])
    assert index.fetch(0) == b"abc"
    assert index.name(0).encode().endswith(b"a.tar/od\\xffd.jpg")


def test_a_hard_link_is_the_image_that_it_names(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"same")
    os.link(tmp_path / "a.jpg", tmp_path / "b.jpg")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("a.jpg", "b.jpg"):
            tar.add(tmp_path / name, f"./{name}")
        assert tar.getmembers()[1].islnk()
    assert contents(shards.build([str(tmp_path / "a.tar")])) == {"a.jpg": b"same", "b.jpg": b"same"}


def test_only_regular_images_count_and_names_with_a_dot_in_front_do_not(tmp_path):
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "link.jpg").symlink_to("a.jpg")
    for name in ("a.jpg", "._a.jpg", ".hidden.jpg", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("folder.jpg", "link.jpg", "a.jpg", "._a.jpg", ".hidden.jpg", "notes.txt"):
            tar.add(tmp_path / name, f"./{name}")
    assert contents(shards.build([str(tmp_path / "a.tar")])) == {"a.jpg": b"a.jpg"}


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_a_member_with_holes_is_filled(tmp_path, form):
    with open(tmp_path / "holes.ppm", "wb") as file:
        file.write(b"start")
        file.seek(2**20)
        file.write(b"end")
    (tmp_path / "plain.ppm").write_bytes(b"plain")
    command = ["tar", "--sparse", f"--format={form}", "-cf", "a.tar", "plain.ppm", "holes.ppm", "plain.ppm"]
    if subprocess.run(command, cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("needs GNU tar")
    path = str(tmp_path / "a.tar")
    index = shards.build([path])
    expected = [(tmp_path / name).read_bytes() for name in ("plain.ppm", "holes.ppm", "plain.ppm")]
    assert [index.fetch(i) for i in range(3)] == expected
    if os.path.getsize(path) < 2**20:
        assert -1 in index.sizes


def test_images_of_several_shards_follow_each_other(tmp_path):
    paths = [pack(tmp_path / f"{s}.tar", [(f"{i}.jpg", f"{s}{i}".encode()) for i in range(s)]) for s in (3, 0, 2)]
    index = shards.build(paths)
    assert [index.fetch(i) for i in range(len(index))] == [b"30", b"31", b"32", b"20", b"21"]
    assert index.name(3) == f"{paths[2]}/0.jpg"


def test_labels_are_those_beside_the_images_in_any_order(tmp_path):
    first = pack(
        tmp_path / "0.tar", [("a/1.cls", b"7\n"), ("a/1.jpg", b"x"), ("a/2.seg.png", b"y"), ("a/2.cls", b"-3")]
    )
    second = pack(tmp_path / "1.tar", [("1.jpg", b"x"), ("1.cls", b" 123456 ")])
    third = pack(tmp_path / "2.tar", [("1.jpg", b"x"), ("1.cls", b"cat")])
    assert shards.build([first, second]).labels.tolist() == [7, -3, 123456]
    assert shards.build([first, third]).labels is None


def test_an_index_is_made_once_and_anew_when_the_shard_changes(tmp_path, monkeypatch, store):
    path = pack(tmp_path / "a.tar", [("a.jpg", b"one"), ("a.cls", b"4")])
    first = shards.build([path])
    assert first.fetch(0) == b"one"
    with monkeypatch.context() as patch:
        patch.setattr(tarfile, "open", None)
        patch.chdir(tmp_path)
        again = shards.build(["a.tar"])  # the same file by another path
        assert again.fetch(0) == b"one"
        assert again.labels.tolist() == [4]
    pack(tmp_path / "a.tar", [("b.jpg", b"other")])
    assert contents(shards.build([path])) == {"b.jpg": b"other"}
    assert len(list(store.iterdir())) == 1
    # Sizes are equal, so only the time of the change tells.
    os.utime(pack(tmp_path / "a.tar", [("c.jpg", b"third")]), ns=(1, 1))
    assert contents(shards.build([path])) == {"c.jpg": b"third"}


def test_a_shard_that_changes_after_it_was_indexed_is_not_read_at_old_offsets(tmp_path):
    path = pack(tmp_path / "a.tar", [("a.jpg", b"one")])
    index = shards.build([path])
    pack(tmp_path / "a.tar", [("much/longer.txt", b"x" * 5000), ("a.jpg", b"two")])
    with pytest.raises(OSError, match=r"a\.tar has changed since it was indexed"):
        index.fetch(0)


def test_a_shard_that_shrinks_while_it_is_open_is_told(tmp_path):
    path = pack(tmp_path / "a.tar", [("a.jpg", b"x" * 600), ("b.jpg", b"y" * 600)])
    index = shards.build([path])
    assert index.fetch(0) == b"x" * 600
    os.truncate(path, int(index.offsets[1]) + 100)
    with pytest.raises(OSError, match=r"a\.tar/b\.jpg has 100 bytes rather than 600"):
        index.fetch(1)


@pytest.mark.parametrize("damage", [b"", b"PK\3\4 no index", None])
def test_a_damaged_index_is_made_anew(tmp_path, store, damage):
    path = pack(tmp_path / "a.tar", [("a.jpg", b"one")])
    shards.build([path])
    (file,) = store.iterdir()
    file.write_bytes(file.read_bytes()[:-30] if damage is None else damage)
    assert contents(shards.build([path])) == {"a.jpg": b"one"}
    with np.load(file, allow_pickle=False) as kept:
        assert kept["names"].tolist() == [b"a.jpg"]


def test_without_a_place_for_the_index_all_goes_on(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTMOCO_DATA", str(tmp_path / "file"))
    path = pack(tmp_path / "a.tar", [("a.jpg", b"one")])
    assert contents(shards.build([path])) == {"a.jpg": b"one"}


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, store):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    assert len(shards.build([pack(tmp_path / "a.tar", [("a.jpg", b"one")])])) == 1
    assert not list(store.iterdir())


def test_the_store_is_the_users_choice_or_the_cache(monkeypatch, tmp_path):
    assert shards.store() == tmp_path / "store"
    monkeypatch.delenv("FASTMOCO_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert shards.store() == tmp_path / ".cache" / "fastmoco"


def test_a_user_without_a_home_has_a_store_too(monkeypatch):
    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FASTMOCO_DATA")
    monkeypatch.setattr(Path, "home", fail)
    assert shards.store() == Path(tempfile.gettempdir()) / "fastmoco"


def test_few_shards_stay_open_and_pickles_carry_none(tmp_path):
    paths = [pack(tmp_path / f"{i:03}.tar", [("a.jpg", str(i).encode())]) for i in range(80)]
    index = shards.build(paths)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for turn in (index, pickle.loads(pickle.dumps(index)), index):
        assert [turn.fetch(i) for i in range(80)] == [str(i).encode() for i in range(80)]
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before + 64


def fetch_all(index, turn):
    return all(
        index.fetch(i) == bytes([i]) * 3000 for i in np.random.default_rng(turn).permutation(len(index)).tolist()
    )


def test_threads_and_forked_processes_do_not_disturb_each_other(tmp_path):
    paths = [pack(tmp_path / f"{i}.tar", [(f"{i}.jpg", bytes([i]) * 3000)]) for i in range(100)]
    index = shards.build(paths)
    index.fetch(99)
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(fetch_all, [index] * 8, range(8)))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert all(pool.starmap(fetch_all, [(index, turn) for turn in range(4)]))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("s-{000..002}.tar", ["s-000.tar", "s-001.tar", "s-002.tar"]),
        ("s-{8..11}.tar", ["s-8.tar", "s-9.tar", "s-10.tar", "s-11.tar"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}/{0..1}.tar", ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]),
        ("x{,y}", ["x", "xy"]),
        ("plain.tar", ["plain.tar"]),
        ("odd{name}.tar", ["odd{name}.tar"]),
    ],
)
def test_braces_mean_what_they_mean_in_a_shell(pattern, expected):
    assert list(shards.expand(pattern)) == expected
    if shutil.which("bash"):
        shell = subprocess.run(["bash", "-c", f"printf '%s\\n' {pattern}"], capture_output=True, text=True)
        assert shell.stdout.splitlines() == expected


def test_an_absurd_range_is_not_written_out():
    assert list(itertools.islice(shards.expand("{0..999999999999}.tar"), 2)) == ["0.tar", "1.tar"]


def truncated(tmp_path):
    path = tmp_path / "a.tar"
    pack(path, [("a.jpg", b"x" * 5000), ("b.jpg", b"y" * 5000)])
    path.write_bytes(path.read_bytes()[:8000])


def damaged(tmp_path):
    path = tmp_path / "a.tar"
    pack(path, [("a.jpg", b"x" * 500), ("b.jpg", b"y" * 500)], tarfile.USTAR_FORMAT)
    content = bytearray(path.read_bytes())
    content[1024:1100] = b"\x55" * 76  # in the second header, where tarfile would stop without a word
    path.write_bytes(content)


def cut_in_header(tmp_path):
    path = tmp_path / "a.tar"
    pack(path, [("a.jpg", b"x" * 500), ("b.jpg", b"y" * 500)], tarfile.USTAR_FORMAT)
    path.write_bytes(path.read_bytes()[:1100])


def compressed(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w:gz"):
        pass


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (truncated, "a.tar", "cannot read shard '.*a.tar': unexpected end of data; fetch or pack it again"),
        (damaged, "a.tar", "cannot read shard '.*a.tar': a damaged header"),
        (cut_in_header, "a.tar", "cannot read shard '.*a.tar': a damaged header"),
        (compressed, "a.tar", "cannot read shard '.*a.tar': .*as a plain .tar"),
        (lambda path: (path / "a.tar").write_bytes(b""), "a.tar", "cannot read shard '.*a.tar': empty file"),
        (lambda path: (path / "a.tar").write_bytes(b"hello" * 500), "a.tar", "cannot read shard '.*a.tar'"),
        (lambda path: (path / "a.tar.gz").touch(), "a.tar.gz", "compressed and cannot be read by offset; repack it"),
        (lambda path: (path / "a.TGZ").touch(), "a.TGZ", "compressed and cannot be read by offset; repack it"),
        (lambda path: (path / "a.txt").touch(), "a.txt", "'.*a.txt' is no shard; a pattern .* must name .tar files"),
        (lambda path: None, "a.tar", "no such shard '.*a.tar'"),
    ],
)
def test_a_shard_that_cannot_be_read_is_named_in_one_line(tmp_path, make, name, reason):
    make(tmp_path)
    with pytest.raises(ValueError, match=reason) as caught:
        shards.build([str(tmp_path / name)])
    assert "\n" not in str(caught.value)
