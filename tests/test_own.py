"""Recipes with parts of a user's own: trained, gone on with, judged and shared like any other."""

import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import warm
from pictures import paint

import fastmoco
from fastmoco import assess
from fastmoco.evaluate import judge
from fastmoco.exam import Terms
from fastmoco.export import export
from fastmoco.recipe import Row
from fastmoco.recipes import find
from fastmoco.run import read_field, read_recipe
from fastmoco.sweep import sweep

SOURCE = Path(fastmoco.__file__).parents[1]
OWN = '''
from dataclasses import dataclass, replace

from fastmoco import contrast, recipes
from fastmoco.heads import MLP
from fastmoco.samples import Samples

tiny = recipes.find("pocket/shapes").recipe


@dataclass(frozen=True)
class Half:
    """Half of InfoNCE."""

    tau: float = 0.2

    def __call__(self, samples, target, own):
        return contrast.InfoNCE(self.tau)(samples, target, own) / 2

    def chance(self, batch):
        return contrast.InfoNCE(self.tau).chance(batch) / 2


@dataclass(frozen=True)
class First:
    """Only the first sample of a stack."""

    def plan(self, plan):
        return replace(plan, seen=plan.seen[:1], grid=1)

    def __call__(self, samples, branch):
        return Samples(samples.x[:1], samples.seen[:1])


def shorter(view):
    *before, project, predict = view.online
    return replace(view, size=16, online=(*before, First(), project, predict))


tiny = replace(
    tiny,
    views=tuple(map(shorter, tiny.views)),
    contrast=Half(),
    projector=MLP((16, 16), last="norm"),
    predictor=MLP((8, 16)),
    epochs=2,
    batch=8,
)
'''
CPU = Terms(device="cpu", workers=0)
USUAL = {"log_every": 1, "save_every": 3, "knn_every": 1, "workers": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return paint(tmp_path_factory.mktemp("images"), 40, classes=2)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A user's file."""
    file = tmp_path_factory.mktemp("own") / "my.py"
    file.write_text(OWN)
    return file


@pytest.fixture(scope="module")
def done(images, own, tmp_path_factory):
    return fastmoco.pretrain(str(images), recipe=f"{own}:tiny", out=str(tmp_path_factory.mktemp("runs") / "a"), **USUAL)


def weights(run):
    return fastmoco.load(run).state_dict()


def test_such_a_training_goes_on(images, own, done, tmp_path, monkeypatch):
    def stop(self, *_):
        raise KeyboardInterrupt(2)

    with monkeypatch.context() as patch:
        patch.setattr(judge.Judge, "neighbours", stop)
        with pytest.raises(KeyboardInterrupt):
            fastmoco.pretrain(str(images), recipe=f"{own}:tiny", out=str(tmp_path / "b"), **USUAL)
    assert not (tmp_path / "b" / "results.json").exists()
    again = fastmoco.pretrain(str(images), recipe=f"{own}:tiny", out=str(tmp_path / "b"), **USUAL)
    assert "resumed at step" in (again / "train.log").read_text()
    torch.testing.assert_close(weights(again), weights(done), rtol=0, atol=0)


def test_another_training_is_told_by_its_text(images, own, done):
    for change, told in (
        ({"set": ["contrast.tau=0.3"]}, r"contrast=Half\(tau=0.3\) here"),
        ({"epochs": 3}, "epochs=3"),
    ):
        with pytest.raises(ValueError, match=f"holds another training: .*{told}.*; give another --out, or --fresh"):
            fastmoco.pretrain(str(images), recipe=f"{own}:tiny", out=str(done), **{**USUAL, **change})


def test_a_folder_whose_recipe_is_damaged_is_told_so(images, own, done, tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "recipe.py").write_text("Recipe(")
    with pytest.raises(ValueError, match=r"recipe\.py is no recipe: cannot read 'Recipe"):
        fastmoco.pretrain(str(images), recipe=f"{own}:tiny", out=str(tmp_path / "c"), **USUAL)


def test_its_own_row_is_not_called_changed(done):
    assert ":tiny: " in (done / "train.log").read_text()
    assert ", changed" not in (done / "train.log").read_text()


def test_fields_are_read_whatever_the_others_are_made_of(done):
    assert read_field(done, "epochs") == 2
    assert read_field(done, "evaluation") == find("pocket/shapes").recipe.evaluation
    with pytest.raises(ValueError, match=r"recipe\.py is no recipe: unknown name '(First|Half)'"):
        read_recipe(done)
    with pytest.raises(ValueError, match="unknown name 'Half'"):
        read_field(done, "contrast")


def test_a_field_that_an_older_folder_does_not_tell_is_as_usual(tmp_path):
    (tmp_path / "recipe.py").write_text(f"Recipe({find('pocket/shapes').recipe.views!r}, epochs=7)")
    assert (read_field(tmp_path, "epochs"), read_field(tmp_path, "batch")) == (7, 512)
    (tmp_path / "recipe.py").write_text("Recipe(contrast=Own(), epochs=7)")
    assert read_field(tmp_path, "epochs") == 7
    with pytest.raises(ValueError, match=r"recipe\.py is no recipe: it has no batch$"):
        read_field(tmp_path, "batch")


def run(*words, cwd):
    # Names of tests' own environment, such as that of a launcher, are left alone.
    known = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "fastmoco", *map(str, words)]
    return subprocess.run(line, cwd=cwd, env=known, capture_output=True, text=True, timeout=300)


def test_such_an_encoder_is_judged_and_shared(images, done, tmp_path):
    assert assess.linear(str(done), str(images), cached=True, looks=1, epochs=1, terms=CPU)["linear/top1"] > 0
    assert assess.knn(str(done), str(images), terms=replace(CPU, branch="target"))["knn20/top1"] > 0
    export(str(done), to="hub-folder", out=str(tmp_path / "hub"))
    assert "contrast=Half(tau=0.2)," in (tmp_path / "hub" / "README.md").read_text()


def test_two_processes_share_such_a_training(images, own, tmp_path, monkeypatch):
    words = ("--recipe", f"{own}:tiny", "--epochs", 1, "--out", "d", "--devices", 2, "--device", "cpu", "--workers", 0)
    monkeypatch.chdir(tmp_path)
    process = warm.Python(["-m", "fastmoco", "pretrain", images, *words])
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 0, said
    assert (tmp_path / "d" / "encoder.safetensors").exists()


def test_a_sweep_refuses_what_its_report_could_not_read(images, own, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = r"my.py:tiny has a part of your own, unknown name '\w+'; train it by `fastmoco pretrain`$"
    with pytest.raises(ValueError, match=told):
        sweep((f"{own}:tiny",), data=str(images), seeds=1, device="cpu")
    assert not (tmp_path / "runs").exists()


def test_the_recipe_of_a_run_folder_is_read_and_never_run(images, done, tmp_path, monkeypatch):
    plain = fastmoco.pretrain(
        str(images),
        recipe="pocket/shapes",
        out=str(tmp_path / "a"),
        epochs=1,
        batch=8,
        set=["views.*.size=16"],
        **USUAL,
    )
    assert find(f"{plain}/recipe.py").recipe == read_recipe(plain)
    with pytest.raises(ValueError, match="is of a run folder, and so it is not run: unknown name 'First'"):
        find(f"{done}/recipe.py")
    (plain / "recipe.py").write_text("from pathlib import Path\nPath('trace').touch()\n")
    monkeypatch.chdir(tmp_path)
    for name in (f"{plain}/recipe.py", f"{plain}/recipe.py:tiny"):
        with pytest.raises(ValueError, match="is of a run folder, and so it is not run"):
            find(name)
    assert not Path("trace").exists()


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere processes are started anew, and only built-in steps read"
)
def test_workers_know_its_steps_however_python_starts_processes(images, own, tmp_path):
    usual = multiprocessing.get_start_method()
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        options = {**USUAL, "workers": 1, "loader": "stream", "epochs": 1}
        fastmoco.pretrain(str(images), recipe=f"{own}:tiny", out=str(tmp_path / "a"), **options)
    finally:
        multiprocessing.set_start_method(usual, force=True)
    assert (tmp_path / "a" / "encoder.safetensors").exists()


def test_a_value_of_the_wrong_kind_is_told_by_its_line(tmp_path):
    (tmp_path / "bad.py").write_text(OWN.replace("contrast=Half()", "contrast=None"))
    answer = run("show", "bad.py:tiny", cwd=tmp_path)
    line = OWN.splitlines().index("tiny = replace(") + 1
    assert answer.stderr == f"fastmoco: bad.py, line {line}: contrast: expected InfoNCE or Cosine, got None\n"


def test_a_file_is_run_again_when_it_has_changed(tmp_path):
    file = tmp_path / "my.py"
    file.write_text(OWN)
    before = find(f"{file}:tiny").recipe
    assert find(f"{file}:tiny").recipe == before
    file.write_text(OWN.replace("epochs=2", "epochs=7"))
    os.utime(file, (1, 1))
    assert find(f"{file}:tiny").recipe.epochs == 7


def test_python_takes_a_recipe_as_it_is(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = replace(find("pocket/shapes").recipe, epochs=1, batch=8)
    for given in (tiny, Row(tiny)):
        path = fastmoco.pretrain(str(images), recipe=given, **USUAL)
        assert path == Path(f"runs/{images.name}-recipe")
        assert read_recipe(path) == tiny
    with pytest.raises(ValueError, match=r"^recipe=5: give the name of a row, file.py:name, or a Recipe$"):
        fastmoco.pretrain(str(images), recipe=5, **USUAL)
    with pytest.raises(ValueError, match=r"^devices=2: .*give 'file\.py:name'$"):
        fastmoco.pretrain(str(images), recipe=tiny, devices=2, **USUAL)
