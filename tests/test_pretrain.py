import json
import os
import re
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import TINY, paint, records, trace
from PIL import Image

import fastmoco
from fastmoco import encoder, loader, memory, run, train
from fastmoco.album import Unreadable
from fastmoco.compose import compose, flat
from fastmoco.images import Pixels
from fastmoco.learner import Learner
from fastmoco.notation import read
from fastmoco.recipes import find
from fastmoco.weights import save_encoder, snippet

CPU = {"device": "cpu"}
WAYS = ("stream", "resident")  # of loading


def pretrain(data, out, **options):
    settings = {"epochs": 2, "batch": 8, "log_every": 1, "save_every": 3, "knn_every": 1, "workers": 0, "device": "cpu"}
    settings = {"set": TINY, **settings, **options}
    return fastmoco.pretrain(str(data), recipe="pocket/shapes", out=str(out), **settings)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return paint(tmp_path_factory.mktemp("images"), 40, classes=2)


@pytest.fixture(scope="module")
def done(images, tmp_path_factory):
    """One whole training."""
    return pretrain(images, tmp_path_factory.mktemp("runs") / "done")


def test_a_run_folder_has_what_people_look_for(done):
    names = {path.name for path in done.iterdir()}
    assert names >= {"recipe.py", "run.json", "train.log", "metrics.jsonl", "tensorboard", "checkpoints"}
    assert {path.name for path in (done / "checkpoints").iterdir()} == {"last.pt", "previous.pt"}
    about = json.loads((done / "run.json").read_text())
    assert (about["images"], about["seed"], about["torch"]) == (40, 0, torch.__version__)
    recipe = read((done / "recipe.py").read_text())
    assert (recipe.batch, recipe.epochs, recipe.encoder) == (8, 2, "timm/test_resnet")
    # The batch is a sixteenth of the row's, and so is the rate.
    assert recipe.optim.lr == pytest.approx(find("pocket/shapes").recipe.optim.lr / 16)


def test_records_have_the_names_that_users_know(done):
    lines = records(done)
    steps = [line for line in lines if "train/loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 11))
    names = {
        *("step", "epoch", "train/loss", "train/lr", "train/grad_norm"),
        *("perf/images_per_second", "perf/data_wait", "perf/seconds", "perf/memory_gib"),
        *("health/std", "health/rank", "health/alignment", "health/negatives", "health/off", "health/drift"),
    }
    assert set(steps[0]) == names | {"perf/first_step"}
    assert all(set(line) == names for line in steps[1:])
    assert steps[-1]["train/lr"] == 0
    assert [line["step"] for line in lines if "val/knn_top1" in line] == [5, 10]
    assert set(lines[-1]) == {"step", "val/knn_top1", "val/linear_top1", "val/target_knn_top1", "val/images"}


def test_the_encoder_loads_here_and_in_its_own_library(done):
    import timm
    from safetensors.torch import load_file

    ours = fastmoco.load(done)
    theirs = timm.create_model("test_resnet", num_classes=0).eval()
    theirs.load_state_dict(load_file(done / "encoder.safetensors"))
    learner = torch.load(done / "checkpoints" / "last.pt", weights_only=True)["learner"]
    assert learner["online.encoder.net.conv1.0.weight"].equal(theirs.state_dict()["conv1.0.weight"])
    x = torch.randn(2, 3, 32, 32)
    assert ours(x).equal(theirs(x))
    assert fastmoco.load(done / "encoder.safetensors")(x).equal(ours(x))


def test_a_checkpoint_and_the_momentum_copy_are_loaded_in_python(done, tmp_path):
    last, x = done / "checkpoints" / "last.pt", torch.randn(2, 3, 32, 32)
    online, target = fastmoco.load(last), fastmoco.load(done, branch="target")
    assert online(x).equal(fastmoco.load(done)(x))
    assert target(x).equal(fastmoco.load(last, branch="target")(x))
    assert not target(x).equal(online(x))
    assert not target.training
    lone = shutil.copy(last, tmp_path)
    assert fastmoco.load(lone, encoder="timm/test_resnet")(x).equal(online(x))
    with pytest.raises(ValueError, match=r"no encoder at '.*absent'; give a run folder, a checkpoint or"):
        fastmoco.load(tmp_path / "absent")


def test_a_torchvision_encoder_has_torchvisions_keys(images, tmp_path):
    import torchvision
    from safetensors.torch import load_file

    out = pretrain(images, tmp_path / "a", epochs=1, knn_every=0, batch=20, set=("encoder=resnet18", *TINY[1:]))
    net = torchvision.models.resnet18()
    missing, unexpected = net.load_state_dict(load_file(out / "encoder.safetensors"), strict=False)
    assert (missing, unexpected) == (["fc.weight", "fc.bias"], [])
    assert type(fastmoco.load(out)) is torchvision.models.ResNet


@pytest.mark.parametrize("name", ["resnet18", "timm/test_resnet", "resnet18-small"])
def test_the_lines_that_are_printed_load_the_encoder(tmp_path, name):
    made = encoder.build(name)
    save_encoder(tmp_path / "encoder.safetensors", name, made, step=1, size=32)
    names = {}
    exec(snippet(tmp_path / "encoder.safetensors", name), names)
    x = torch.randn(2, 3, 32, 32)
    assert names["encoder"](x).equal(fastmoco.load(tmp_path)(x))


def test_the_run_ends_with_the_encoder_and_those_lines(done):
    log = (done / "train.log").read_text()
    assert f"the encoder is in {done / 'encoder.safetensors'}" in log
    assert snippet(done / "encoder.safetensors", "timm/test_resnet") in log


def test_the_same_command_again_does_nothing_more(done, images):
    before = {path: path.stat().st_mtime_ns for path in (done / "checkpoints").iterdir()}
    lines = records(done)
    pretrain(images, done)
    assert {path: path.stat().st_mtime_ns for path in (done / "checkpoints").iterdir()} == before
    assert records(done) == lines


@pytest.mark.parametrize(
    ("row", "way"),
    [
        *((row, way) for row in ("pocket/shapes", "figure4b/alpha_1", "table7/nnclr_patches") for way in WAYS),
        ("table4a/montage_encode_divide_combine", "resident"),  # its encoder is large
        pytest.param("table4a/montage_encode_divide_combine", "stream", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_stopped_anywhere_goes_on_bit_by_bit(row, way, images, tmp_path, monkeypatch):
    """Rows that draw from torch's own generator, or that keep a support set, too."""
    cadence = {"log_every": 3, "save_every": 2, "knn_every": 0}  # saved in the middle of a line
    options = {"recipe": row, "epochs": 1, "batch": 8, "workers": 0, "device": "cpu", "loader": way, **cadence}
    small = (*TINY, "support=32") if "nnclr" in row else TINY
    if "montage" in row:  # which cuts the encoder open
        small = ("encoder=resnet18", "views.0.size=32", "views.1.size=32", "views.2.size=32", *TINY[2:])
    whole = fastmoco.pretrain(str(images), out=str(tmp_path / "whole"), set=small, **options)
    advance, halts = train.Training._advance, [2, 3, 4]

    def stop(self, *parts):
        advance(self, *parts)
        if self.step == halts[0]:
            halts.pop(0)
            raise MemoryError("a kill")  # at which nothing is saved

    monkeypatch.setattr(memory, "largest", lambda recipe, run: 0)
    monkeypatch.setattr(train.Training, "_advance", stop)
    while halts:
        with pytest.raises(ValueError, match="out of memory"):
            fastmoco.pretrain(str(images), out=str(tmp_path / "broken"), set=small, **options)
    monkeypatch.setattr(train.Training, "_advance", advance)
    broken = fastmoco.pretrain(str(images), out=str(tmp_path / "broken"), set=small, **options)
    assert trace(broken) == trace(whole)
    assert [step for step, _ in trace(whole)] == [3, 5]
    ends = [torch.load(path / "checkpoints" / "last.pt", weights_only=True) for path in (broken, whole)]
    assert ends[0]["rng"].equal(ends[1]["rng"])
    for name, value in ends[0]["learner"].items():
        assert value.equal(ends[1]["learner"][name]), name


def test_the_time_to_the_first_step_is_told_once_by_each_process(images, tmp_path, monkeypatch):
    advance = train.Training._advance

    def stop(self, batch):
        advance(self, batch)
        if self.step == 5:
            raise ValueError("a stop")

    monkeypatch.setattr(train.Training, "_advance", stop)
    with pytest.raises(ValueError, match="a stop"):
        pretrain(images, tmp_path / "a", log_every=2)
    monkeypatch.setattr(train.Training, "_advance", advance)
    out = pretrain(images, tmp_path / "a", log_every=2)
    first = {line["step"]: line["perf/first_step"] for line in records(out) if "perf/first_step" in line}
    assert list(first) == [2, 4]  # and it went on from step 3
    assert 0 < first[2] < first[4]


def test_activations_that_are_made_again_change_no_number(done, images, tmp_path):
    again = pretrain(images, tmp_path / "a", recompute=True)
    there = [line for line in records(done) if "train/loss" in line]
    here = [line for line in records(again) if "train/loss" in line]
    assert len(here) == len(there) == 10
    for ours, theirs in zip(here, there, strict=True):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], abs=1e-4)
        assert ours["train/grad_norm"] == pytest.approx(theirs["train/grad_norm"], rel=1e-2)


def test_fresh_begins_anew_beside_what_there_is(done, images):
    before = records(done)
    other = pretrain(images, done, fresh=True, epochs=1)
    assert other == done.with_name("done-2")
    assert records(done) == before
    assert len(trace(other)) == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": 3}, "epochs 2 there, 3 here"),
        ({"seed": 1}, "seed 0 there, 1 here"),
        ({"size": 32}, "views.0.size 16 there"),
        ({"batch": 4}, "batch 8 there, 4 here"),
    ],
)
def test_a_folder_of_another_training_is_refused_with_the_difference(done, images, change, words):
    settings = tuple(each for each in TINY if "size" not in each or "size" not in change)
    with pytest.raises(ValueError, match=f"holds another training: .*{words}.*another --out, or --fresh"):
        fastmoco.pretrain(
            str(images),
            **{"recipe": "pocket/shapes", "out": str(done), "set": settings, "epochs": 2, "batch": 8, **change},
        )


def test_a_set_that_has_changed_is_refused(done, images, tmp_path):
    with pytest.raises(ValueError, match="images 40 there, 30 here"):
        pretrain(paint(tmp_path / "fewer", 30, classes=2), done)


def test_other_images_are_refused_and_moved_ones_are_not(done, images, tmp_path):
    moved = shutil.copytree(images, tmp_path / "moved")
    pretrain(moved, done)
    for path in sorted(moved.rglob("*.png")):
        path.rename(path.with_name(f"x{path.name}"))
    with pytest.raises(ValueError, match=r"other images, .* there, .*moved here"):
        pretrain(moved, done)


def test_a_run_without_its_checkpoints_is_not_begun_again(done, images, tmp_path):
    folder = shutil.copytree(done, tmp_path / "a")
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(ValueError, match="has an encoder but no checkpoint to go on from"):
        pretrain(images, folder)
    assert records(folder) == records(done)


def test_an_encoder_that_was_removed_is_written_again(done, images, tmp_path):
    folder = shutil.copytree(done, tmp_path / "a")
    (folder / "encoder.safetensors").unlink()
    pretrain(images, folder)
    x = torch.randn(2, 3, 32, 32)
    assert fastmoco.load(folder)(x).equal(fastmoco.load(done)(x))


def test_a_folder_that_is_no_run_is_left_alone(images, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"holds 'thesis.tex' and is no run folder"):
        pretrain(images, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_processes_do_not_train_in_one_folder(done, images, tmp_path):
    lock = f"import fcntl; f = open({str(done / '.lock')!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX)"
    code = f"{lock}; print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(ValueError, match="another process is training in"):
            pretrain(images, done)
        other.communicate(b"\n")
    pretrain(images, done)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 64}, "batch 64 is larger than the 40 images; use --batch 32"),
        ({"log_every": 0}, "--log-every 0: use 1 step or more"),
        ({"workers": -1}, "--workers -1: use 0 or more"),
        ({"device": "cuda:99"}, "--device cuda:99: "),
        ({"device": "laptop"}, "--device laptop: "),
        ({"device": "cpu", "precision": "bf16"}, "--precision bf16 needs a GPU"),
        ({"encoder": "resnet7"}, "unknown encoder 'resnet7'"),
        ({"encoder": "timm/resnet7"}, "unknown encoder 'timm/resnet7'"),
        ({"encoder": "timm/vit_tiny_patch16_224", "size": 24}, "cannot take 12x12 images"),
        ({"epochs": 0}, "--epochs 0: use 1 to 1,000,000"),
        ({"seed": -1}, "--seed -1: "),
        ({"size": 31}, "Divide"),
        ({"device": "meta"}, "--device meta: not on this machine"),
        ({"graph": "on", "encoder": "resnet18"}, "--graph on: it needs a GPU, and this is cpu; use --graph off"),
        ({"micro": -1}, "--micro -1: use 1 image or more"),
        ({"micro": 8, "encoder": "resnet18"}, "--micro 8: resnet18 has batch norm"),
        ({"decode": "gpu"}, "--decode gpu needs a GPU, and the device is cpu; leave it out"),
        ({"epochs": 2, "set": "epochs=3"}, "epochs is given by a flag and by --set; give one of them"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(images, tmp_path, options, words):
    settings = tuple(each for each in TINY if each.split("=")[0] not in ("encoder", "views.*.size"))
    with pytest.raises(ValueError, match=re.escape(words)) as mistake:
        fastmoco.pretrain(
            str(images),
            **{"recipe": "pocket/shapes", "out": str(tmp_path / "a"), "batch": 8, "set": settings, **CPU, **options},
        )
    assert "\n" not in str(mistake.value)
    assert list(tmp_path.iterdir()) == []


def test_a_base_brings_all_but_the_method_and_flags_come_after_it(images, tmp_path):
    settings = tuple(each for each in TINY if "size" not in each)
    options = {"epochs": 1, "batch": 8, "set": settings, "knn_every": 0, "workers": 0, **CPU}
    rows = {"recipe": "table4a/encode_only", "recipe_base": "pocket/shapes"}
    out = fastmoco.pretrain(str(images), out=str(tmp_path / "a"), **rows, **options)
    recipe, base = read((out / "recipe.py").read_text()), find("pocket/shapes").recipe
    assert [view.size for view in recipe.views] == [32, 32, 23]  # 158 of 224 px
    assert [view.online for view in recipe.views] == [view.online for view in find(rows["recipe"]).recipe.views]
    assert (recipe.contrast, recipe.clip, recipe.encoder) == (base.contrast, base.clip, base.encoder)
    assert recipe.optim.lr == pytest.approx(base.optim.lr / 16)  # a sixteenth of the base's batch
    about = json.loads((out / "run.json").read_text())
    assert about["row"] == "table4a/encode_only in pocket/shapes, changed"


def test_a_row_in_a_base_has_a_folder_and_a_name_of_its_own(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train.Training, "train", lambda self: self.journal.close())
    rows = {"recipe": "table4b/mocov3", "recipe_base": "pocket/shapes"}
    out = fastmoco.pretrain("shapes", **rows, **CPU)
    assert out == Path("runs/shapes-mocov3-in-shapes")
    assert json.loads((out / "run.json").read_text())["row"] == "table4b/mocov3 in pocket/shapes"
    assert read((out / "recipe.py").read_text()) == find("pocket/shapes_mocov3").recipe


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"recipe": ""}, "--recipe-base pocket/shapes: add --recipe, the row whose method is trained in its setting"),
        ({"recipe": "table1/mocov3"}, "table1/mocov3 in pocket/shapes: LARS is part of this row, and the base has SGD"),
        ({"recipe": "figure3a/stage1_2"}, "figure3a/stage1_2 in pocket/shapes: Encode(start=0, stop=1) stops inside"),
        ({"recipe_base": "pocket/shape"}, "unknown row 'pocket/shape'; the nearest known: pocket/shapes"),
        ({"set": ("optim.rl=1",)}, "table4a/encode_only in pocket/shapes: --set optim.rl=1: unknown SGD field 'rl'"),
        ({"size": 16}, "--size 16: table4a/encode_only in pocket/shapes has views of [23, 32] px"),
    ],
)
def test_a_mistake_with_a_base_names_it_and_the_row(options, words, images, tmp_path):
    usual = {"recipe": "table4a/encode_only", "recipe_base": "pocket/shapes", "out": str(tmp_path / "a"), **CPU}
    with pytest.raises(ValueError, match=re.escape(words)) as mistake:
        fastmoco.pretrain(str(images), **{**usual, **options})
    assert "\n" not in str(mistake.value)
    assert list(tmp_path.iterdir()) == []


def test_a_word_that_is_no_choice_is_one_line_in_python_too(images, tmp_path):
    """In a process of its own, where types are not checked."""
    code = f"""
import fastmoco
for options in (
    {{"loader": "x"}}, {{"compile": True}}, {{"graph": 1}}, {{"decode": "x"}},
    {{"precision": "fp8"}}, {{"batch": "8"}}, {{"set": "epochs"}},
):
    try:
        fastmoco.pretrain({str(images)!r}, recipe="pocket/shapes", out={str(tmp_path / "a")!r}, **options)
    except ValueError as error:
        print(error)
"""
    source = Path(fastmoco.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(source)}
    )
    assert done.stdout.splitlines() == [
        "--loader x: use auto, stream, resident",
        "--compile True: use auto, on, off",
        "--graph 1: use auto, on, off",
        "--decode x: use cpu, gpu",
        "--precision fp8: use auto, bf16, float32",
        "batch='8': use a whole number",
        "pocket/shapes: --set epochs: not NAME=VALUE; write for example optim.lr=0.15",
    ]
    assert not (tmp_path / "a").exists()


def spoil(folder, texts, cuts):
    names = sorted(path for path in folder.rglob("*.png"))
    for path in names[3 : 3 + texts]:
        path.rename(path.with_suffix(".jpg"))
        path.with_suffix(".jpg").write_text("this is no image")
    for path in names[40 : 40 + cuts]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return sorted(str(path.with_suffix(".jpg")) for path in names[3 : 3 + texts]) + [
        str(p) for p in names[40 : 40 + cuts]
    ]


@pytest.mark.parametrize("way", ["stream", "resident"])
def test_unreadable_images_are_listed_and_replaced(tmp_path, way):
    bad = spoil(paint(tmp_path / "images", 100), texts=3, cuts=2)
    out = pretrain(tmp_path / "images", tmp_path / "run", loader=way, batch=10, workers=2)
    lines = (out / "bad_images.txt").read_text().splitlines()
    assert sorted(line.split("\t")[0] for line in lines) == sorted(bad)
    assert "truncated" in "".join(lines)
    assert len(trace(out)) == 20


def test_too_many_unreadable_images_stop_the_run_with_the_list(tmp_path):
    bad = spoil(paint(tmp_path / "images", 100), texts=4, cuts=2)
    with pytest.raises(ValueError, match=r"6 of \d+ images cannot be read, more than 5%; they are listed in .*bad_im"):
        pretrain(tmp_path / "images", tmp_path / "run", loader="stream", batch=10)
    assert len((tmp_path / "run" / "bad_images.txt").read_text().splitlines()) == len(bad)
    with pytest.raises(ValueError, match="cannot be read, more than 5%"):  # the same command again does not get past it
        pretrain(tmp_path / "images", tmp_path / "run", loader="stream", batch=10)
    good = next(path for path in sorted((tmp_path / "images").rglob("*.*")) if str(path) not in bad)
    for path in bad[1:]:
        shutil.copy(good, path)
    out = pretrain(tmp_path / "images", tmp_path / "run", loader="stream", batch=10)  # once they are mended it does
    assert [line.split("\t")[0] for line in (out / "bad_images.txt").read_text().splitlines()] == bad[:1]
    shutil.copy(good, bad[0])
    pretrain(tmp_path / "images", tmp_path / "run", loader="stream", batch=10)  # which is done, and was done without it
    assert len((out / "bad_images.txt").read_text().splitlines()) == 1
    (out / "checkpoints" / "last.pt").unlink()
    (out / "checkpoints" / "previous.pt").unlink(missing_ok=True)
    (out / "encoder.safetensors").unlink()
    pretrain(tmp_path / "images", tmp_path / "run", loader="stream", batch=10)
    assert not (out / "bad_images.txt").exists()


def test_what_goes_wrong_as_reading_begins_is_told_as_it_is(images, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loader.Resident, "since", full)
    with pytest.raises(OSError, match="No space left on device"):
        pretrain(images, tmp_path / "run")


def test_one_image_is_not_enough(tmp_path):
    with pytest.raises(ValueError, match="has one image"):
        pretrain(paint(tmp_path / "one", 1), tmp_path / "run")


def test_one_large_image_among_small_ones_does_not_make_the_set_resident(tmp_path, monkeypatch):
    paint(tmp_path / "images", 200)
    Image.new("RGB", (3000, 2000)).save(tmp_path / "images" / "zz.png")  # not one of those by which the set is judged
    monkeypatch.setattr(os, "sysconf", lambda name: 2**15)  # a GiB is free: an eighth of it is less than the set
    out = pretrain(tmp_path / "images", tmp_path / "run", epochs=1, batch=50)
    assert "stream: files are read" in (out / "train.log").read_text()


@pytest.mark.parametrize("way", ["stream", "resident"])
def test_a_set_of_which_nothing_can_be_read_stops_with_the_list(tmp_path, way):
    for number in range(30):
        (tmp_path / f"{number}.jpg").write_text("no image")
    with pytest.raises(ValueError, match=r"images cannot be read, more than 5%"):
        pretrain(tmp_path, tmp_path / "run", loader=way, workers=1)
    assert len((tmp_path / "run" / "bad_images.txt").read_text().splitlines()) > 15


def test_few_unreadable_images_of_a_large_resident_set_do_not_stop_it(tmp_path):
    several = Unreadable(Pixels(np.zeros((100_000, 1, 1, 3), np.uint8), None, (), "many"), tmp_path / "bad_images.txt")
    several.reasons = {str(number): "" for number in range(3000)}
    several.add({1: "no image"}, read=100_000)
    with pytest.raises(ValueError, match="3,002 of 256 images"):
        several.add({2: "no image"}, read=256)


@pytest.mark.parametrize(("log_every", "save_every"), [(5, 3), (100, 1)])  # found when a line is due, or a checkpoint
def test_a_loss_that_is_not_finite_stops_with_the_last_good_checkpoint(
    images, tmp_path, monkeypatch, log_every, save_every
):
    views = loader.Resident.views
    calls = []

    def break_the_fifth(self, batch):
        calls.append(batch)
        return [view * (float("nan") if len(calls) == 5 else 1) for view in views(self, batch)]

    monkeypatch.setattr(loader.Resident, "views", break_the_fifth)
    good = 4 // save_every * save_every
    with pytest.raises(
        ValueError,
        match=rf"loss or its gradient is not finite by step 5; .*last.pt \(step {good}\) is the last good checkpoint",
    ):
        pretrain(images, tmp_path / "a", log_every=log_every, save_every=save_every)
    assert "not finite by step 5" in (tmp_path / "a" / "train.log").read_text()
    saved = torch.load(tmp_path / "a" / "checkpoints" / "last.pt", weights_only=True)
    assert saved["step"] == good
    assert all(value.isfinite().all() for value in saved["learner"].values() if value.is_floating_point())


def test_out_of_memory_names_the_batch_and_one_that_fits(images, tmp_path, monkeypatch):
    forward = Learner.forward

    def limited(self, batch):
        if batch[0].shape[1] > 5:
            raise torch.OutOfMemoryError("tried to allocate a lot")
        return forward(self, batch)

    monkeypatch.setattr(Learner, "forward", limited)
    with pytest.raises(ValueError, match="out of memory on cpu at batch 16; --batch 4 fits"):
        pretrain(images, tmp_path / "a", batch=16)


def test_a_smaller_batch_is_tried_without_what_the_failed_step_held(images, tmp_path, monkeypatch):
    class Activations:
        """Stands for them."""

    held = []

    def forward(self, batch):
        activations = Activations()
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("tried to allocate a lot")

    def largest(recipe, run):
        assert held[0]() is None
        return 2

    monkeypatch.setattr(Learner, "forward", forward)
    monkeypatch.setattr(memory, "largest", largest)
    with pytest.raises(ValueError, match="--batch 2 fits"):
        pretrain(images, tmp_path / "a")


def test_sixteen_bit_and_other_modes_are_read(tmp_path):
    paint(tmp_path, 10)
    Image.new("P", (20, 20)).save(tmp_path / "palette.png")
    Image.new("CMYK", (20, 20)).save(tmp_path / "press.jpg")
    Image.new("LA", (20, 20)).save(tmp_path / "clear.png")
    out = pretrain(tmp_path, tmp_path / "run", batch=13, epochs=1)
    assert not (out / "bad_images.txt").exists()


def test_a_saved_recipe_that_calls_is_refused_and_not_run(done, images, tmp_path):
    folder = shutil.copytree(done, tmp_path / "stranger")
    for text in (
        f"__import__('os').system('touch {tmp_path / 'ran'}')",
        f"Recipe(views=os.system('touch {tmp_path / 'ran'}'))",
        "Recipe.__init__.__globals__",
        "import os\nos.system('true')",
    ):
        (folder / "recipe.py").write_text(text)
        with pytest.raises(ValueError, match=r"recipe.py is no recipe") as refused:
            pretrain(images, folder)
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_line(images, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match=r"a cannot be written to: .*; give another --out"):
        pretrain(images, tmp_path / "a")


def test_a_run_folder_that_cannot_be_written_is_one_line(images, tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError

    monkeypatch.setattr(run.tempfile, "TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r"a cannot be written to: .*; give another --out"):
        pretrain(images, tmp_path / "a")


def test_few_epochs_shorten_the_warm_up_unless_it_is_set():
    def warmup(epochs, *settings):
        return compose("pocket/imagenette", settings, epochs, None, "", None).schedule.warmup

    assert warmup(200) == warmup(30) == find("pocket/imagenette").recipe.schedule.warmup == 10
    assert [warmup(epochs) for epochs in (12, 6, 1)] == [4, 2, 1 / 3]
    assert compose("text/adamw", (), 20, None, "", None).schedule.warmup == 8  # which usually is 40 of 100
    assert warmup(5, "schedule.warmup=2") == 2
    with pytest.raises(ValueError, match="warmup=7 is longer than epochs=5"):
        warmup(5, "schedule.warmup=7")


def test_a_setting_that_is_given_twice_is_refused():
    with pytest.raises(ValueError, match=r"^--set: optim.lr is given twice; give it once$"):
        flat((("optim.lr=0.1", "clip=2"), ("optim.lr = 0.2",)))
    assert flat(("views.*.size=64", "views.0.size=32")) == ["views.*.size=64", "views.0.size=32"]


def test_settings_may_be_words_or_values_by_name():
    row = "pocket/imagenette"
    words = ("optim.lr=0.1", "views.*.scale=(0.1, 1.0)", "encoder=resnet34")
    values = {"optim.lr": 0.1, "views.*.scale": (0.1, 1.0), "encoder": "resnet34"}
    made = [compose(row, flat(each), None, None, "", None) for each in (words, (words[:1], words[1:]), values)]
    assert made[0] == made[1] == made[2] != find(row).recipe
