import json
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import PIL
import pytest
import torch
from pictures import paint, pretrain_a_little
from PIL import Image

from fastmoco import cli, compare
from fastmoco.data import find
from fastmoco.evaluate import gain as trial
from fastmoco.exam import Terms
from fastmoco.parts import by_fraction
from fastmoco.weights import digest

CPU = Terms(device="cpu", workers=1)
PERCENTS = (10.0, 100.0)
ENCODERS = ("random init", "this encoder")


@pytest.fixture(autouse=True)
def _quick_and_nothing_outside(tmp_path, monkeypatch):
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(trial, "trials", partial(trial.trials, percents=PERCENTS))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    paint(folder / "train", 24, classes=2)
    paint(folder / "val", 12, classes=2)
    return folder


@pytest.fixture(scope="module")
def run(images, tmp_path_factory):
    return pretrain_a_little(images, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def measured(monkeypatch):
    """The trials that are really made."""
    made, measure = [], trial.measure

    def count(subject, each, protocol):
        made.append(each)
        return measure(subject, each, protocol)

    monkeypatch.setattr(trial, "measure", count)
    return made


def gain(run, images, seeds=1, epochs=1, out="results.json", terms=CPU):
    return compare.gain(str(run), str(images), seeds=seeds, epochs=epochs, out=out, terms=terms)


def lines(path="gain.jsonl"):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_each_encoder_is_measured_by_each_method_with_each_share_and_seed(run, images, measured):
    found = gain(run, images, seeds=2)
    kept = lines()
    wanted = {
        (method, share, encoder, seed)
        for method in ("linear", "finetune")
        for share in PERCENTS
        for encoder in ENCODERS
        for seed in range(2)
    }
    assert {(each["method"], each["labels"], each["encoder"], each["seed"]) for each in kept} == wanted
    assert len(kept) == len(measured) == len(wanted)
    for encoder in ENCODERS:
        for method in ("linear", "finetune"):
            for share in PERCENTS:
                alike = (each for each in kept if (each["encoder"], each["method"]) == (encoder, method))
                tops = [each["top1"] for each in alike if each["labels"] == share]
                assert found[f"{encoder}/{method}/{share:g}%"] == pytest.approx(fmean(tops))
    assert len(found) == 8


def test_the_table_the_figure_and_the_record_tell_the_same(run, images, capsys):
    found = gain(run, images, seeds=2)
    (record,) = json.loads(Path("results.json").read_text())
    assert (record["evaluation"], record["results"]) == ("gain", found)
    assert "2 seeds" in record["settings"]
    assert "epochs=1" in record["settings"]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in next(Path().glob("gain-*.md")).read_text().splitlines()
    ]
    assert rows[0] == ["", "encoder", "10 % of labels, 2", "100 % of labels, 24"]
    assert rows[1] == ["---"] * 4
    assert [row[:2] for row in rows[2:]] == [
        [method, encoder] for method in ("linear probe", "fine-tuning") for encoder in ENCODERS
    ]
    kept = [each["top1"] for each in lines() if (each["method"], each["encoder"]) == ("linear", "this encoder")]
    assert rows[3][2:] == [f"{fmean(two):.1f} \u00b1 {stdev(two):.1f}" for two in (kept[:2], kept[2:])]
    shown = capsys.readouterr().out
    assert all(cell in shown for row in rows[2:] for cell in row)
    with Image.open(next(Path().glob("gain-*.png"))) as figure:
        assert min(figure.size) > 400


def test_all_lies_in_the_run_folder_by_default(run, images, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    gain(folder, images, out="")
    made = {f"gain-{images.name}.{kind}" for kind in ("md", "png")}
    assert {"gain.jsonl", "results.json", *made} <= {path.name for path in folder.iterdir()}
    assert list(Path().iterdir()) == []


def test_folders_that_differ_after_a_dot_have_tables_of_their_own(run, images, tmp_path):
    for year in (2020, 2021):
        shutil.copytree(images, tmp_path / f"plants.{year}")
        gain(run, tmp_path / f"plants.{year}")
    assert sorted(path.name for path in Path().glob("gain-*.md")) == ["gain-plants.2020.md", "gain-plants.2021.md"]
    assert len(list(Path().glob("gain-*.png"))) == 2


def test_the_same_command_again_measures_nothing_again(run, images, measured):
    found = gain(run, images)
    text, figure = next(Path().glob("gain-*.md")).read_text(), next(Path().glob("gain-*.png")).read_bytes()
    measured.clear()
    assert gain(run, images) == found
    assert measured == []
    assert (next(Path().glob("gain-*.md")).read_text(), next(Path().glob("gain-*.png")).read_bytes()) == (text, figure)


@pytest.mark.parametrize(("told", "ours"), [((), True), ((signal.SIGINT,), False)])
def test_a_stop_is_told_once(run, images, monkeypatch, capsys, told, ours):
    def stop(*_):
        raise KeyboardInterrupt(*told)

    monkeypatch.setattr(trial, "measure", stop)
    with pytest.raises(KeyboardInterrupt):
        gain(run, images)
    last = capsys.readouterr().out.splitlines()[-1]
    assert (last == "stopped; the same command goes on") == ours


def test_more_seeds_measure_only_those_that_are_new(run, images, measured):
    gain(run, images)
    measured.clear()
    gain(run, images, seeds=2)
    assert {each.seed for each in measured} == {1}


def test_another_schedule_is_measured_by_fine_tuning_alone(run, images, measured):
    gain(run, images)
    measured.clear()
    gain(run, images, epochs=2)
    assert {each.method for each in measured} == {"finetune"}


def test_a_file_that_was_cut_off_in_a_line_goes_on(run, images, measured):
    found = gain(run, images)
    content = Path("gain.jsonl").read_text()
    cut = content[: content.rindex("\n", 0, -1) + 20]  # in the last line
    Path("gain.jsonl").write_text(cut)
    measured.clear()
    assert gain(run, images) == found
    assert len(measured) == 1
    measured.clear()
    assert gain(run, images) == found
    assert measured == [], "what was measured after the cut is lost again"


def test_other_held_out_images_are_measured_anew(run, images, tmp_path, measured):
    folder = shutil.copytree(images, tmp_path / "images")
    first = gain(run, folder)
    (folder / "val" / "class-0").rename(folder / "val" / "other")
    (folder / "val" / "class-1").rename(folder / "val" / "class-0")
    (folder / "val" / "other").rename(folder / "val" / "class-1")
    measured.clear()
    second = gain(run, folder)
    assert len(measured) == 8
    name = "this encoder/linear/100%"
    assert second[name] == pytest.approx(100 - first[name])


def test_what_another_pillow_has_read_is_measured_anew(run, images, measured, monkeypatch):
    gain(run, images)
    before = len(measured)
    monkeypatch.setattr(PIL, "__version__", "another")
    gain(run, images)
    assert len(measured) == 2 * before
    assert len(lines()) == 2 * before


def test_other_weights_are_measured_anew_and_random_ones_are_not(run, images, measured, tmp_path):
    gain(run, images)
    measured.clear()
    compare.gain(
        str(run), str(images), seeds=1, epochs=1, out="results.json", terms=Terms(device="cpu", branch="target")
    )
    assert {each.encoder for each in measured} == {"this encoder"}


def test_imagenets_weights_are_compared_where_they_can_be_had(images, monkeypatch, capsys, measured):
    import torchvision

    monkeypatch.setattr(trial, "trials", partial(trial.trials.func, percents=(10.0,)))
    terms = Terms(device="cpu", size=16)
    options = {"seeds": 1, "epochs": 1, "out": "results.json", "terms": terms}
    compare.gain("random/resnet18", str(images), **options)
    shown = capsys.readouterr().out
    assert "without ImageNet's weights: torchvision/resnet18 is not in" in shown
    assert "add --download" in shown
    assert "ImageNet |" not in next(Path().glob("gain-*.md")).read_text()
    url = torchvision.models.get_model_weights("resnet18").DEFAULT.url
    file = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    file.parent.mkdir(parents=True)
    torch.save(torchvision.models.resnet18().state_dict(), file)
    measured.clear()
    compare.gain("random/resnet18", str(images), **options)
    assert "| linear probe | ImageNet |" in next(Path().glob("gain-*.md")).read_text()
    assert {each.encoder for each in measured} == {"ImageNet"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--seeds", "0"), "--seeds 0"),
        (("--epochs", "-1"), "--epochs -1: use 1 or more"),
        (("--device", "cuda:99"), "--device cuda:99"),
        (("--out", "wrong.json"), "wrong.json holds no list of records"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_measured(flags, words, run, images, monkeypatch, capsys, measured):
    Path("wrong.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["fastmoco", "evaluate", "gain", str(run), str(images), *flags])
    with pytest.raises(SystemExit) as end:
        cli.main()
    shown = capsys.readouterr()
    assert (end.value.code, shown.out, len(shown.err.splitlines())) == (2, "", 1)
    assert words in shown.err
    assert "None" not in shown.err
    assert measured == []
    assert [path.name for path in Path().iterdir()] == ["wrong.json"]
    assert not (run / "gain.jsonl").exists()


def test_the_table_has_a_spread_where_there_are_several_seeds():
    common = {"encoder": "a", "method": "linear", "images": 7}
    records = [
        {**common, "labels": 1.0, "seed": 0, "top1": 10.0},
        {**common, "labels": 1.0, "seed": 1, "top1": 30.0},
        {**common, "labels": 100.0, "seed": 0, "top1": 50.04},
    ]
    columns, rows = compare.tabulate(records)
    assert columns == ["", "encoder", ">1 % of labels, 7", ">100 % of labels, 7"]
    assert rows == [["linear probe", "a", "20.0 \u00b1 14.1", "50.0"]]


def test_seeds_that_used_more_and_fewer_labels_are_told_so():
    common = {"encoder": "a", "method": "linear", "labels": 1.0, "top1": 10.0}
    columns, _ = compare.tabulate([{**common, "seed": seed, "images": 1010 - seed} for seed in range(3)])
    assert columns[2:] == [">1 % of labels, 1,008 to 1,010"]


def spoil(images, folder, count):
    """A copy in which so many of the images of the smallest share cannot be read."""
    train = find(str(shutil.copytree(images, folder))).train
    index = by_fraction(train, PERCENTS[0] / 100, 0).tolist()
    assert len(index) == 2
    for place in index[:count]:
        Path(train.name(place)).write_text("no image")
    return folder


def test_labels_of_images_that_cannot_be_read_are_not_counted(run, images, tmp_path):
    gain(run, spoil(images, tmp_path / "spoilt", 1))
    assert {(each["method"], each["labels"], each["images"]) for each in lines()} == {
        (method, share, count) for method in ("linear", "finetune") for share, count in ((10.0, 1), (100.0, 23))
    }
    assert "10 % of labels, 1 | 100 % of labels, 23 |" in Path("gain-spoilt.md").read_text()


@pytest.mark.parametrize("methods", [("linear", "finetune"), ("finetune",)])
def test_a_share_of_which_nothing_can_be_read_is_refused(run, images, tmp_path, monkeypatch, methods):
    monkeypatch.setattr(trial, "METHODS", methods)
    words = "no labelled image could be read" if "linear" in methods else "10 % of labels, seed 0: none of these images"
    with pytest.raises(ValueError, match=words):
        gain(run, spoil(images, tmp_path / "spoilt", 2))
    assert not Path("gain.jsonl").exists()


def test_random_weights_are_of_their_seed_and_learn_alike_in_all_stages(run, images, monkeypatch):
    asked = []

    def note(subject, each, protocol):
        mean = next(value for key, value in subject.encoder.net.state_dict().items() if key.endswith("running_mean"))
        asked.append((each, digest(subject.encoder.net), protocol.decay, mean.abs().sum().item() > 0))
        return 50.0

    monkeypatch.setattr(trial, "measure", note)
    gain(run, images, seeds=2, terms=Terms(device="cpu", recalibrate=True))
    random = {each.seed: known for each, known, decay, _ in asked if each.encoder == "random init" and decay == 1}
    this = {known for each, known, decay, _ in asked if each.encoder == "this encoder" and decay < 1}
    assert len(set(random.values())) == len(random) == 2
    assert len(this) == 1
    assert all(recalibrated for *_, recalibrated in asked)
