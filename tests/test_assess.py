import contextlib
import json
import shutil
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import TINY, paint, pretrain_a_little
from PIL import Image

import fastmoco
from fastmoco import assess, cli, distributed, launch, parts
from fastmoco.album import middle
from fastmoco.augment import normalise
from fastmoco.exam import Terms
from fastmoco.images import Pixels, Source

CPU = Terms(device="cpu", workers=1)
VERBS = {
    "knn": {},
    "linear": {"epochs": 2, "batch": 8},
    "linear cached": {"epochs": 2, "batch": 8, "cached": True, "looks": 2},
    "semi": {"labels": "0.5", "epochs": 2},
    "semi paper": {"labels": "0.5", "preset": "paper", "epochs": 2},
    "finetune": {"epochs": 2},
}


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """Nothing is written outside."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path / "store"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    paint(folder / "train", 24, classes=2)
    paint(folder / "val", 12, classes=2)
    return folder


@pytest.fixture(scope="module")
def run(images, tmp_path_factory):
    return pretrain_a_little(images, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def siamese(images, tmp_path_factory):
    options = {"set": TINY, "epochs": 1, "batch": 8, "knn_every": 0, "workers": 0, "device": "cpu"}
    out = tmp_path_factory.mktemp("runs") / "siamese"
    return fastmoco.pretrain(str(images), recipe="table7/simsiam", out=str(out), **options)


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line as it is typed: exit code, standard output, standard error."""

    def type_in(*words):
        monkeypatch.setattr(sys, "argv", ["fastmoco", *map(str, words)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return type_in


def records(path="results.json"):
    return json.loads(Path(path).read_text())


def evaluate(verb, run, images, out="results.json", terms=CPU, **options):
    return getattr(assess, verb.split()[0])(str(run), str(images), out=out, terms=terms, **options)


@pytest.mark.parametrize("verb", VERBS)
def test_what_an_evaluation_returns_is_what_it_records_and_shows(verb, run, images, capsys):
    found = evaluate(verb, run, images, **VERBS[verb])
    (record,) = records()
    assert record["results"] == found
    tops = {name: value for name, value in found.items() if "/top" in name}
    assert {name.partition("/")[2] for name in tops} == {"top1", "top5"}
    assert all(0 <= value <= 100 for value in tops.values())
    assert all(value == 100 for name, value in tops.items() if name.endswith("top5"))  # there are two classes
    shown = capsys.readouterr().out
    for value in tops.values():
        assert f"{value:.2f}" in shown
    assert "added to results.json" in shown


@pytest.mark.parametrize("verb", VERBS)
def test_the_same_evaluation_again_finds_the_same(verb, run, images, store):
    first = evaluate(verb, run, images, **VERBS[verb])
    again = evaluate(verb, run, images, **VERBS[verb])
    shutil.rmtree(store, ignore_errors=True)
    assert first == again == evaluate(verb, run, images, **VERBS[verb])


def test_a_record_says_what_was_evaluated_and_how(run, images):
    evaluate("knn", run, images, terms=Terms(device="cpu", workers=0, branch="target", size=18, crop=0.5, seed=3))
    (record,) = records()
    wanted = {
        "evaluation": "knn",
        "weights": str(run),
        "encoder": "timm/test_resnet",
        "branch": "target",
        "recalibrated": False,
        "data": str(images),
        "train": 24,
        "test": 12,
        "size": 18,
        "crop": 0.5,
        "seed": 3,
        "device": "cpu",
        "fastmoco": fastmoco.__version__,
        "torch": torch.__version__,
    }
    assert {name: record[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("verb", "options", "words"),
    [
        ("linear", {"epochs": 2, "lr": 0.5, "batch": 7}, "Linear(epochs=2, lr=0.5, batch=7)"),
        ("linear", {"epochs": 1, "preset": "paper"}, "Linear(epochs=1, lr=0.8, batch=4096)"),
        ("linear", {"epochs": 1, "preset": "paper-20"}, "lr=1.6"),
        ("linear", {"epochs": 2, "cached": True, "looks": 2}, "cached, 2 looks"),
        ("semi", {"epochs": 1, "lr": 0.1, "labels": "0.5"}, "Semi(fraction=0.5, epochs=1, lr=0.1, encoder_lr=1e-06"),
        ("semi", {"epochs": 1, "encoder_lr": 0.0, "labels": "0.5"}, "encoder_lr=0.0"),
        ("finetune", {"epochs": 1, "lr": 0.1, "decay": 0.5, "batch": 9}, "lr=0.1, decay=0.5"),
        ("finetune", {"epochs": 1, "labels": "0.5"}, "labels 0.5"),
    ],
)
def test_a_record_has_the_settings_that_the_user_chose(verb, options, words, run, images):
    evaluate(verb, run, images, **options)
    assert words in records()[0]["settings"]


def test_classes_of_other_colours_are_told_apart(run, images):
    assert evaluate("knn", run, images)["knn20/top1"] == 100
    assert evaluate("linear", run, images, epochs=20, cached=True, looks=2)["linear/top1"] > 80


def test_records_are_added_to_the_run_folder_and_earlier_ones_stay(run, images, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "results.json").write_text('[{"mine": "3 \u00b1 1"}]')
    evaluate("knn", folder, images, out="")
    before = records(folder / "results.json")
    evaluate("linear", folder / "checkpoints" / "last.pt", images, out="", epochs=1)
    after = records(folder / "results.json")
    assert before[0] == {"mine": "3 \u00b1 1"}
    assert after[:2] == before
    assert [record["evaluation"] for record in after[1:]] == ["knn", "linear"]
    assert not Path("results.json").exists()


def test_records_of_other_weights_are_added_in_the_current_folder_or_where_one_says(run, images, tmp_path):
    shutil.copy(run / "encoder.safetensors", tmp_path / "mine.safetensors")
    evaluate("knn", tmp_path / "mine.safetensors", images, out="")
    assert len(records("results.json")) == 1
    evaluate("knn", run, images, out="some/where/a.json")
    assert len(records("some/where/a.json")) == 1
    assert not (run / "results.json").exists()


@pytest.mark.parametrize("content", [b'{"a": 1}', b"[1, 2]", b"[{}", b"", b"\xff\xfe"])
def test_a_file_that_is_no_list_of_records_is_refused_before_anything_is_computed(content, run, images, store, command):
    Path("results.json").write_bytes(content)
    code, out, err = command("evaluate", "knn", run, images, "--out", "results.json", "--recalibrate")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("fastmoco: results.json")
    assert Path("results.json").read_bytes() == content
    assert not store.exists()


@pytest.mark.parametrize("verb", VERBS)
def test_the_command_does_as_python_does(verb, run, images, command):
    flags = []
    for name, value in VERBS[verb].items():
        flags += [f"--{name}"] if value is True else [f"--{name}", value]
    common = ["--device", "cpu", "--workers", 1, "--out", "results.json"]
    code, out, err = command("evaluate", verb.split()[0], run, images, *flags, *common)
    assert (code, err) == (0, "")
    assert "timm/test_resnet" in out.splitlines()[0]
    assert "24 images in 2 classes, 12 held out" in out.splitlines()[1]
    assert records()[0]["results"] == evaluate(verb, run, images, **VERBS[verb])


@pytest.fixture(scope="module")
def sets(images, tmp_path_factory):
    """Sets and lists with which something is wrong, by name."""
    folder = tmp_path_factory.mktemp("sets")
    paint(folder / "loose", 10)
    paint(folder / "few", 8, classes=2)
    for name, count in (("strange", 9), ("strange-few", 3)):
        shutil.copytree(images / "train", folder / name / "train")
        paint(folder / name / "val", count, classes=3)
    (folder / "names.txt").write_text("absent.png\n")
    (folder / "nothing.txt").write_text("\n")
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("knn", "RUN", "SETS/loose"), "loose has no labels, which an evaluation needs"),
        (("knn", "RUN", "SETS/strange"), "held-out class 'class-2' is not among the classes to learn from"),
        (("knn", "RUN", "SETS/strange-few"), "class-2"),
        (("knn", "RUN", "SETS/few"), "no val/ folder, and no class of five images or more"),
        (("knn", "RUN", "SETS/absent"), "no such folder, list or set"),
        (("knn", "random/timm/vit_tiny_patch16_224", "IMAGES", "--size", 30), "cannot take 30x30 images"),
        (("knn", "random/timm/vit_tiny_patch16_224", "IMAGES", "--recalibrate"), "has no batch norm"),
        (("knn", "RUN", "IMAGES", "--encoder", "resnet18"), "--encoder resnet18: RUN holds a timm/test_resnet"),
        (("knn", "RUN/encoder.safetensors", "IMAGES", "--branch", "target"), "has one branch only"),
        (("knn", "SIAMESE", "IMAGES", "--branch", "target"), "its target is the online branch"),
        (("knn", "SETS/absent", "IMAGES"), "no weights at"),
        (("knn", "torchvision/resnet18", "IMAGES"), "add --download"),
        (("knn", "RUN", "IMAGES", "--device", "cuda:99"), "--device cuda:99: not on this machine"),
        (("knn", "RUN", "IMAGES", "--precision", "bf16", "--device", "cpu"), "--precision bf16 needs a GPU"),
        (("knn", "RUN", "IMAGES", "--crop", 2), "--crop 2: "),
        (("knn", "RUN", "IMAGES", "--crop", 0), "--crop 0: "),
        (("knn", "RUN", "IMAGES", "--crop", "nan"), "--crop nan: "),
        (("knn", "RUN", "IMAGES", "--size", 0), "--size 0: "),
        (("knn", "RUN", "IMAGES", "--size", -8), "--size -8: "),
        (("knn", "RUN", "IMAGES", "--out", "SETS/few"), "few cannot be added to"),
        (("knn", "RUN", "IMAGES", "--out", "SETS/names.txt/results.json"), "names.txt"),
        (("finetune", "RUN", "IMAGES", "--labels", 2), "--labels 2: use a part above 0"),
        (("finetune", "RUN", "IMAGES", "--labels", 0), "--labels 0: use a part above 0"),
        (("finetune", "RUN", "IMAGES", "--labels", ""), "--labels '': use a part above 0"),
        (("semi", "RUN", "IMAGES", "--labels", ""), "--labels '': use a part above 0"),
        (("finetune", "RUN", "IMAGES", "--labels", "SETS/names.txt"), "none of the 1 names in"),
        (("finetune", "RUN", "IMAGES", "--labels", "SETS/nothing.txt"), "names no images"),
        (("finetune", "RUN", "IMAGES", "--labels", "SETS/absent.txt"), "absent.txt: no such list"),
        (("semi", "RUN", "IMAGES"), "2 labelled images are too few to choose a rate by"),
        (("linear", "RUN", "IMAGES", "--epochs", 0, "--preset", "paper"), "--epochs 0"),
        (("linear", "RUN", "IMAGES", "--epochs", -1), "--epochs -1"),
        (("linear", "RUN", "IMAGES", "--batch", 0, "--epochs", 1), "--batch 0"),
        (("linear", "RUN", "IMAGES", "--batch", -3), "--batch -3"),
        (("linear", "RUN", "IMAGES", "--lr", -1, "--epochs", 1), "--lr -1"),
        (("linear", "RUN", "IMAGES", "--lr", 1e30), "--lr 1e+30: use a rate above 0 and below 1e9"),
        (("linear", "RUN", "IMAGES", "--cached", "--looks", 0), "--looks 0"),
        (("linear", "RUN", "IMAGES", "--cached", "--looks", -1), "--looks -1"),
        (("semi", "RUN", "IMAGES", "--labels", 0.5, "--epochs", -1), "--epochs -1"),
        (("semi", "RUN", "IMAGES", "--labels", 0.5, "--epochs", 1, "--lr", -1), "--lr -1"),
        (("semi", "RUN", "IMAGES", "--encoder-lr", -1), "--encoder-lr -1.0: use a rate from 0"),
        (("finetune", "SETS/absent", "IMAGES", "--decay", 7), "--decay 7.0: use a part above 0 and up to 1"),
        (("finetune", "RUN", "IMAGES", "--epochs", -1), "--epochs -1"),
        (("finetune", "RUN", "IMAGES", "--epochs", 1, "--batch", -1), "--batch -1"),
        (("finetune", "RUN", "IMAGES", "--epochs", 1, "--decay", -1), "--decay -1"),
        (("knn", "RUN", "IMAGES", "--seed", -1), "--seed -1"),
        (("linear", "RUN", "IMAGES", "--seed", 2**64, "--epochs", 1), f"--seed {2**64}"),
        (("knn", "RUN", "IMAGES", "--workers", -1), "--workers -1"),
        (("knn", "RUN", "IMAGES", "--labels", 0.5), "--labels"),
        (("knn", "RUN"), "DATA"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_line_with_exit_code_2_and_no_record(
    arguments, words, run, siamese, images, sets, store, command
):
    places = {"RUN": run, "SIAMESE": siamese, "IMAGES": images, "SETS": sets}

    def put(text):
        for name, place in places.items():
            text = text.replace(name, str(place))
        return text

    out = () if "--out" in arguments else ("--out", "results.json")
    code, _, err = command("evaluate", *(put(str(each)) for each in arguments), *out)
    assert code == 2
    assert put(words) in err
    assert err.startswith("fastmoco: ")
    assert len(err.splitlines()) == 1
    assert list(Path().iterdir()) == []
    assert not store.exists()


@pytest.mark.parametrize(
    ("verb", "preset", "words"),
    [
        ("linear", "papr", "--preset papr: use suited, paper, paper-20"),
        ("semi", "tune", "--preset tune: use tuned, paper"),
    ],
)
@pytest.mark.usefixtures("unchecked")  # users have no types checked
def test_python_refuses_a_preset_that_is_not_there(verb, preset, words, run, images):
    with pytest.raises(ValueError, match=words):
        evaluate(verb, run, images, preset=preset)


def test_a_set_without_held_out_images_holds_every_fifth_out(run, tmp_path, capsys):
    paint(tmp_path / "images", 40, classes=2)
    evaluate("knn", run, tmp_path / "images")
    assert (records()[0]["train"], records()[0]["test"]) == (32, 8)
    assert "no val/, so every fifth of each class is held out" in capsys.readouterr().out


def test_a_val_folder_without_labels_is_not_called_absent(run, images, tmp_path, capsys):
    shutil.copytree(images / "train", tmp_path / "images" / "train")
    paint(tmp_path / "images" / "val", 6)
    with contextlib.suppress(ValueError):  # to be refused would do as well
        evaluate("knn", run, tmp_path / "images")
    assert "no val/" not in capsys.readouterr().out


def test_a_class_without_held_out_images_is_told(run, images, tmp_path, capsys):
    shutil.copytree(images, tmp_path / "images")
    shutil.rmtree(tmp_path / "images" / "val" / "class-1")
    evaluate("knn", run, tmp_path / "images")
    assert "none of class 'class-1'" in capsys.readouterr().out


def test_all_labels_of_a_set_without_held_out_images_are_all(run, tmp_path):
    paint(tmp_path / "images", 40, classes=2)
    evaluate("semi", run, tmp_path / "images", labels="1.0", epochs=1, lr=0.1)
    assert "fraction=1.0" in records()[0]["settings"]


def test_a_list_says_which_labels_are_taken(run, images):
    Path("names.txt").write_text("class-0/000.png\nclass-1/001.png\n003.png\nabsent.png\n")
    evaluate("finetune", run, images, labels="names.txt", epochs=1)
    assert records()[0]["train"] == 3


def test_few_labels_take_the_papers_setting_for_few(run, tmp_path):
    paint(tmp_path / "images" / "train", 100, classes=2, size=16)
    paint(tmp_path / "images" / "val", 4, classes=2)
    for labels, words in (("0.04", "fraction=0.04, epochs=1, lr=500.0, encoder_lr=0.0"), ("0.06", "encoder_lr=1e-06")):
        evaluate("semi", run, tmp_path / "images", labels=labels, preset="paper", epochs=1)
        assert words in records()[-1]["settings"]


@pytest.mark.parametrize("terms", [CPU, Terms(device="cpu", size=10, crop=0.5)])
def test_an_encoder_is_shown_the_size_of_its_training_or_the_one_that_is_asked_for(run, images, terms):
    frame = assess.prepare(str(run), str(images), "", terms).subject.frame
    assert (frame.size, frame.part) == ((16, 1.0) if terms is CPU else (10, 0.5))


def test_from_224_pixels_on_images_are_shown_as_imagenets_are(run, images):
    parts = []
    for size in (223, 224):
        parts.append(assess.prepare(str(run), str(images), "", Terms(device="cpu", size=size)).subject.frame.part)
    assert parts == [1, 0.875]


def test_recalibration_measures_whole_images_and_leaves_the_file_alone(run, images):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    plain = assess.prepare(str(run), str(images), "", CPU).subject.encoder.net
    net = assess.prepare(str(run), str(images), "", Terms(device="cpu", recalibrate=True)).subject.encoder.net
    shown = [middle(Image.open(path), 16) for path in sorted((images / "train").rglob("*.png"))]
    with torch.no_grad():
        mean = plain.conv1[0](normalise(torch.stack(shown).float() / 255)).mean((0, 2, 3))
    torch.testing.assert_close(net.conv1[1].running_mean, mean)
    assert not plain.conv1[1].running_mean.allclose(mean, atol=1e-3)
    for name, weight in net.named_parameters():
        assert weight.equal(dict(plain.named_parameters())[name])
    assert not net.training
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_recalibrated_embeddings_are_not_taken_for_the_others(run, images, store):
    evaluate("knn", run, images)
    evaluate("knn", run, images, terms=Terms(device="cpu", recalibrate=True))
    assert len(list((store / "features").iterdir())) == 4
    assert [record["recalibrated"] for record in records()] == [False, True]


@pytest.fixture
def spoilt(images, tmp_path):
    """A set with an image to learn from and a held-out one that cannot be read."""
    folder = shutil.copytree(images, tmp_path / "spoilt")
    (folder / "train" / "class-0" / "000.png").write_text("this is no image")
    (folder / "val" / "class-1" / "001.png").write_text("this is no image")
    return folder


@pytest.mark.parametrize("verb", VERBS)
def test_unreadable_held_out_images_are_left_out_and_counted(verb, run, spoilt, capsys):
    evaluate(verb, run, spoilt, **VERBS[verb])
    assert records()[0]["test"] == 11
    shown = capsys.readouterr().out
    assert "are left out: 2, such as" in shown
    assert ".png: cannot identify image file" in shown


def test_unreadable_images_are_counted_by_the_next_evaluation_too(run, spoilt, capsys):
    for _ in range(2):
        evaluate("knn", run, spoilt)
        assert "are left out: " in capsys.readouterr().out
    assert [record["test"] for record in records()] == [11, 11]


def test_unreadable_images_to_learn_from_are_left_out_and_counted(run, spoilt):
    evaluate("knn", run, spoilt)
    assert records()[0]["train"] == 23


def test_a_set_of_which_nothing_can_be_read_is_one_line(run, images, tmp_path, command):
    folder = shutil.copytree(images, tmp_path / "spoilt")
    for path in (folder / "val").rglob("*.png"):
        path.write_text("this is no image")
    code, _, err = command("evaluate", "knn", run, folder, "--out", "results.json")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "can be read" in err
    assert not Path("results.json").exists()


def test_images_that_have_changed_are_embedded_again(run, images, tmp_path):
    folder = shutil.copytree(images, tmp_path / "images")
    assert evaluate("knn", run, folder)["knn20/top1"] == 100
    (folder / "val" / "class-0").rename(folder / "val" / "other")
    (folder / "val" / "class-1").rename(folder / "val" / "class-0")
    (folder / "val" / "other").rename(folder / "val" / "class-1")
    assert evaluate("knn", run, folder)["knn20/top1"] == 0


def test_a_row_of_20_epochs_has_its_own_linear_protocol(run, images, tmp_path):
    folder = shutil.copytree(run, tmp_path / "a")
    text = (folder / "recipe.py").read_text()
    (folder / "recipe.py").write_text(text.replace("Linear(epochs=90, lr=0.8", "Linear(epochs=10, lr=1.6"))
    evaluate("linear", folder, images, cached=True, looks=1, out="results.json")
    assert "Linear(epochs=10, lr=" in records()[-1]["settings"]


def test_devices_are_as_many_processes_with_the_same_flags(run, images, monkeypatch):
    begun = []

    def note(devices, verb, given, flags):
        begun.append((devices, verb, given, launch.spell(flags)))
        Path("results.json").write_text('[{"results": {"a": 1.0}}, {"results": {"linear/top1": 50.0}}]')

    monkeypatch.setattr(launch, "launch", note)
    terms = Terms(device="cpu", devices=3, recalibrate=True, crop=0.5)
    found = assess.linear(run, images, cached=True, lr=0.5, out="results.json", terms=terms)
    assert found == {"linear/top1": 50.0}
    ((devices, verb, given, words),) = begun
    assert (devices, verb, given) == (3, "evaluate linear", [str(run), str(images)])
    wanted = "--cached --preset=suited --lr=0.5 --out=results.json --branch=online --recalibrate --crop=0.5 --seed=0"
    assert " ".join(words) == f"{wanted} --device=cpu --precision=auto"


@pytest.mark.parametrize(("devices", "words"), [(0, "--devices 0: use 1 or more"), (-2, "--devices -2: use 1 or more")])
def test_fewer_devices_than_one_are_refused(devices, words, run, images):
    with pytest.raises(ValueError, match=words):
        evaluate("knn", run, images, terms=Terms(device="cpu", devices=devices))


@pytest.mark.parametrize(("place", "words"), [(1, "RUN, or its size"), (2, "the images of IMAGES")])
def test_files_that_differ_between_ranks_are_refused(place, words, run, images, monkeypatch):
    asked = []

    def tell(find):
        asked.append(find())
        return "something else" if len(asked) == place + 1 else asked[-1]  # the first are the flags

    monkeypatch.setattr(distributed, "world", lambda: 2)
    monkeypatch.setattr(distributed, "tell", tell)
    words = words.replace("RUN", str(run)).replace("IMAGES", str(images))
    with pytest.raises(ValueError, match=f"{words}.* are others here than for rank 0; give all ranks the same"):
        evaluate("knn", run, images)
    assert not Path("results.json").exists()


def test_labelled_images_may_be_others_than_those_to_learn_from(images):
    pixels = np.zeros((4, 8, 8, 3), np.uint8)
    labelled = Pixels(pixels, array("q", [0, 1, 0, 1]), ("a", "b"), "labelled")
    source = Source(Pixels(pixels, None, (), "train"), labelled, labelled, "words")
    assert parts.split(source, "data") == (labelled, labelled, "words")
