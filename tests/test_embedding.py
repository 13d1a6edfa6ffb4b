import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import paint, pretrain_a_little
from PIL import Image

import fastmoco
from fastmoco import cli
from fastmoco import run as runs
from fastmoco.album import middle
from fastmoco.augment import normalise
from fastmoco.embedding import embed
from fastmoco.evaluate import features
from fastmoco.exam import Terms

CPU = Terms(device="cpu", workers=1)


@pytest.fixture(autouse=True)
def _nothing_outside(tmp_path, monkeypatch):
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    paint(folder / "train", 10, classes=2)
    paint(folder / "val", 6, classes=2)
    return folder


@pytest.fixture(scope="module")
def run(images, tmp_path_factory):
    return pretrain_a_little(images, tmp_path_factory.mktemp("runs") / "run")


def read_npz(path):
    with np.load(path, allow_pickle=False) as content:
        return dict(content)


def read_parquet(path):
    from pyarrow import parquet

    table = parquet.read_table(path).to_pydict()
    return {name: np.array(column, np.float32 if name == "embedding" else None) for name, column in table.items()}


READERS = {".npz": read_npz, ".parquet": read_parquet}


def paths_in(folder):
    return sorted(str(path) for path in folder.rglob("*.png"))


def make_by_hand(run, paths, size=16, part=1.0):
    pixels = torch.stack([middle(Image.open(path), size, part) for path in paths])
    with torch.no_grad():
        return fastmoco.load(run)(normalise(pixels.float() / 255)).numpy()


@pytest.mark.parametrize("kind", READERS)
def test_every_image_is_there_in_order_with_its_path_split_label_and_embedding(run, images, kind):
    out = embed(str(run), str(images), out=f"some/where{kind}", terms=CPU)
    assert out == Path(f"some/where{kind}")
    found = READERS[kind](out)
    paths = paths_in(images / "train") + paths_in(images / "val")
    assert list(found) == ["path", "split", "label", "embedding"]
    assert found["path"].tolist() == paths
    assert found["split"].tolist() == ["train"] * 10 + ["val"] * 6
    assert found["label"].tolist() == [Path(path).parent.name for path in paths]
    assert found["embedding"].dtype == np.float32
    np.testing.assert_allclose(found["embedding"], make_by_hand(run, paths), rtol=1e-4, atol=1e-5)


def test_the_kinds_hold_the_same(run, images):
    files = [READERS[kind](embed(str(run), str(images), out=f"a{kind}", terms=CPU)) for kind in READERS]
    for name in files[0]:
        assert files[0][name].tolist() == files[1][name].tolist()


def test_size_and_part_are_those_that_are_asked_for(run, images):
    found = read_npz(embed(str(run), str(images), terms=Terms(device="cpu", size=20, crop=0.5)))
    paths = paths_in(images / "train") + paths_in(images / "val")
    np.testing.assert_allclose(found["embedding"], make_by_hand(run, paths, 20, 0.5), rtol=1e-4, atol=1e-5)


def test_the_branch_and_the_statistics_are_those_that_are_asked_for(run, images):
    terms = (CPU, Terms(device="cpu", branch="target"), Terms(device="cpu", recalibrate=True))
    first, *others = (
        read_npz(embed(str(run), str(images), out=f"{number}.npz", terms=each)) for number, each in enumerate(terms)
    )
    for other in others:
        assert not np.allclose(first["embedding"], other["embedding"])


@pytest.mark.parametrize("kind", READERS)
def test_images_without_labels_have_empty_ones(run, tmp_path, kind):
    folder = paint(tmp_path / "images", 5)
    found = READERS[kind](embed(str(run), str(folder), out=f"a{kind}", terms=CPU))
    assert found["path"].tolist() == paths_in(folder)
    assert found["label"].tolist() == [""] * 5
    np.testing.assert_allclose(found["embedding"], make_by_hand(run, paths_in(folder)), rtol=1e-4, atol=1e-5)


def test_held_out_images_without_labels_are_there_too(run, tmp_path):
    paint(tmp_path / "images" / "train", 5)
    paint(tmp_path / "images" / "val", 3)
    found = read_npz(embed(str(run), str(tmp_path / "images"), terms=CPU))
    assert found["split"].tolist() == ["train"] * 5 + ["val"] * 3


def test_unreadable_images_are_left_out_and_counted(run, images, tmp_path, capsys):
    folder = shutil.copytree(images, tmp_path / "images")
    bad = [folder / "train" / "class-1" / "003.png", folder / "val" / "class-0" / "004.png"]
    for path in bad:
        path.write_text("this is no image")
    found = read_npz(embed(str(run), str(folder), terms=CPU))
    paths = [path for path in paths_in(folder / "train") + paths_in(folder / "val") if Path(path) not in bad]
    assert found["path"].tolist() == paths
    assert found["label"].tolist() == [Path(path).parent.name for path in paths]
    np.testing.assert_allclose(found["embedding"], make_by_hand(run, paths), rtol=1e-4, atol=1e-5)
    said = capsys.readouterr().out.splitlines()[-2:]
    reason = f"{bad[0]}: cannot identify image file; see features-bad_images.txt"
    assert said[0] == f"images that cannot be read and are left out: 2, such as {reason}"
    assert said[1] == "14 embeddings of 96 numbers are in features.npz"
    lines = Path("features-bad_images.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == list(map(str, bad))
    embed(str(run), str(folder), out="again.npz", terms=CPU)  # from what is kept
    assert Path("again-bad_images.txt").read_text().splitlines() == lines
    for path in bad:
        shutil.copy(images / path.relative_to(folder), path)
    embed(str(run), str(folder), overwrite=True, terms=CPU)
    assert not Path("features-bad_images.txt").exists()


def test_names_of_all_kinds_are_kept(run, tmp_path):
    folder = paint(tmp_path / "images", 3)
    (folder / "000.png").rename(folder / "f\u00fc\u00df \u9ce5.png")
    found = read_npz(embed(str(run), str(folder), terms=CPU))
    assert sorted(found["path"].tolist()) == paths_in(folder)


def type_in(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["fastmoco", *map(str, words)])
    try:
        cli.main()
    except SystemExit as end:
        return end.code, *capsys.readouterr()
    return 0, *capsys.readouterr()


def test_the_command_writes_features_npz_beside_the_user(run, images, monkeypatch, capsys):
    code, out, err = type_in(monkeypatch, capsys, "embed", run, images, "--device", "cpu")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "16 embeddings of 96 numbers are in features.npz"
    assert [path.name for path in Path().iterdir()] == ["features.npz"]


@pytest.mark.parametrize("kind", READERS)
def test_a_file_that_exists_is_kept_unless_one_says_so(run, images, kind, monkeypatch, capsys):
    Path(f"a{kind}").write_text("mine")
    code, out, err = type_in(monkeypatch, capsys, "embed", run, images, "--out", f"a{kind}")
    assert (code, out, err) == (2, "", f"fastmoco: a{kind} exists and is kept; give another --out, or --overwrite\n")
    assert Path(f"a{kind}").read_text() == "mine"
    assert type_in(monkeypatch, capsys, "embed", run, images, "--out", f"a{kind}", "--overwrite")[0] == 0
    assert len(READERS[kind](f"a{kind}")["path"]) == 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("RUN", "IMAGES", "--out", "a.csv"), "--out a.csv: use a file that ends in .npz or .parquet"),
        (("RUN", "IMAGES", "--out", "features"), "--out features: use a file that ends in .npz or .parquet"),
        (("RUN", "IMAGES", "--out", "IMAGES/train/class-0/000.png/a.npz"), "000.png"),
        (("RUN", "absent"), "no such folder, list or set 'absent'"),
        (("absent", "IMAGES"), "no weights at 'absent'"),
        (("RUN", "IMAGES", "--size", "0"), "--size 0: "),
        (("RUN", "IMAGES", "--device", "cuda:99"), "--device cuda:99"),
        (("RUN/encoder.safetensors", "IMAGES", "--branch", "target"), "has one branch only"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(arguments, words, run, images, monkeypatch, capsys):
    places = [each.replace("RUN", str(run)).replace("IMAGES", str(images)) for each in arguments]
    code, out, err = type_in(monkeypatch, capsys, "embed", *places)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err
    assert list(Path().iterdir()) == []


def test_a_place_that_cannot_be_written_is_told_before_anything_is_embedded(run, images, monkeypatch):
    def refuse(**_):
        raise PermissionError

    monkeypatch.setattr(runs.tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(features, "embedded", None)
    with pytest.raises(ValueError, match=r"^shut cannot be written to: .*; give another --out$"):
        embed(str(run), str(images), out="shut/z.npz", terms=CPU)
    Path("z.npz").mkdir()
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"^z\.npz is a folder; give a file for --out$"):
            embed(str(run), str(images), out="z.npz", overwrite=overwrite, terms=CPU)


def test_a_set_of_which_nothing_can_be_read_is_one_line(run, tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.png").write_text("this is no image")
    with pytest.raises(ValueError, match="can be read") as refused:
        embed(str(run), str(tmp_path), terms=CPU)
    assert "\n" not in str(refused.value)
    assert list(Path().iterdir()) == []


def test_parquet_without_its_library_is_told_before_anything_is_found(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"needs pyarrow: pip install 'fast-moco\[parquet\]', or give a .npz"):
        embed("absent", "absent", out="a.parquet")
