"""Evaluations by two processes, as torchrun starts them, against the same by one."""

import json
import sys
from pathlib import Path

import evaluating
import numpy as np
import pytest
import torch
import warm
from evaluating import AFTER, COMMANDS, STOPPED
from pictures import paint, pretrain_a_little

from fastmoco.evaluate import fit, gallery

ROOT = Path(__file__).parent.parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SAME = ("knn", "recalibrated", "linear", "cached", "tuned")  # to the last bit


def finish(*words, store):
    """Python in a process of its own, whose ranks begin with nothing: what it has said."""
    process = warm.Python(words, FASTMOCO_DATA=str(store))
    said, complaint = process.communicate(timeout=100)
    assert process.returncode == 0, complaint
    return said


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Numbers that do not divide, of classes some of which look alike; in each part one image cannot be read."""
    folder = tmp_path_factory.mktemp("images")
    for part, count in (("train", 301), ("val", 263)):
        paint(folder / part, count, classes=8)
        (folder / part / "class-5" / "101.png").write_text("no image")
    return folder


@pytest.fixture(scope="module")
def run(images, tmp_path_factory):
    return pretrain_a_little(images, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def one(images, run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTMOCO_DATA", str(folder / "store"))
        patch.setattr(sys, "argv", sys.argv)
        evaluating.evaluate_all(images, run, folder, patch.setattr)
        assert evaluating.evaluate(images, run, folder, STOPPED, "stopped.json") == 0
    return folder


@pytest.fixture(scope="module")
def two(images, run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    said = finish(*TORCHRUN, ROOT / "tests" / "evaluating.py", images, run, folder, store=folder / "store")
    (folder / "said").write_text(said)
    return folder


def records(folder, name="results.json"):
    return json.loads((folder / name).read_text())


def results(folder, name):
    return records(folder)[list(COMMANDS).index(name)]["results"]


@pytest.mark.parametrize("name", SAME)
def test_what_a_frozen_encoder_is_worth_is_the_same_number(name, one, two):
    found = results(one, name)
    assert results(two, name) == found
    if name not in ("recalibrated", "tuned"):  # the first has all right: its weights are compared below
        assert any(0 < value < 100 for value in found.values()), "too easy or too hard to tell anything"


@pytest.mark.parametrize("name", SAME)
def test_heads_have_the_same_bits(name, one, two):
    ours, theirs = (torch.load(folder / f"{name}.pt") for folder in (two, one))
    assert len(ours) == len(theirs) == {"linear": 1, "cached": 1, "tuned": 6}.get(name, 0)
    for number, state in theirs.items():
        assert all(ours[number][key].equal(value) for key, value in state.items())


def test_embeddings_that_are_kept_have_the_same_bits(one, two):
    ours, theirs = ({file.name: file for file in (folder / "store/features").iterdir()} for folder in (two, one))
    assert ours.keys() == theirs.keys()
    assert len(ours) > 5
    assert all(ours[name].read_bytes() == file.read_bytes() for name, file in theirs.items())
    ours, theirs = (dict(np.load(folder / "features.npz")) for folder in (two, one))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], column) for name, column in theirs.items())
    assert len(theirs["path"]) == 301 + 263 - 2


def test_recalibrated_weights_have_the_same_bits(one, two):
    digests = [records(folder)[1]["digest"] for folder in (one, two)]
    assert digests[0] == digests[1] != records(one)[0]["digest"]


@pytest.mark.parametrize("name", ["semi", "finetune"])
def test_an_encoder_that_learns_ends_with_the_same_weights_and_statistics(name, one, two):
    (ours,), (theirs,) = (torch.load(folder / f"{name}.pt").values() for folder in (two, one))
    assert list(ours) == list(theirs)
    assert any("running_var" in key for key in theirs)
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-3, atol=2e-4, msg=lambda text, key=key: f"{key}: {text}")
    for key, value in results(one, name).items():
        assert results(two, name)[key] == pytest.approx(value, abs=100 / 262 + 0.01)  # one image


def test_the_gain_is_the_same(one, two):
    ours, theirs = results(two, "gain"), results(one, "gain")
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name] == (value if "linear" in name else pytest.approx(value, abs=200 / 262))
    assert len((two / "gain.jsonl").read_text().splitlines()) == len(theirs) == 4
    assert list(two.glob("gain-*.png"))


def test_the_judge_of_a_training_answers_the_same_and_every_rank_may_halt_it_as_often(one, two):
    ours, theirs = (torch.load(folder / "judge.pt") for folder in (two, one))
    assert ours == theirs
    tops = {"val/knn_top1", "val/linear_top1", "val/target_knn_top1"}
    assert all(answer.keys() == {*tops, "val/images"} for answer in theirs)
    assert all(0 < answer[name] < 100 for answer in theirs for name in tops)


def test_one_rank_speaks_and_writes(one, two):
    ours, theirs = records(two), records(one)
    assert [record["evaluation"] for record in ours] == [record["evaluation"] for record in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine["processes"], other["processes"]) == (2, 1)
        assert (mine["train"], mine["test"]) == (other["train"], other["test"])
        assert mine["settings"] == other["settings"]
    said = (two / "said").read_text()
    assert said.count("added to ") == len(COMMANDS)
    assert said.count("embeddings of 96 numbers are in ") == 1
    assert said.count("on 2 x cpu") == len(COMMANDS) + 2  # one was stopped, one is no evaluation
    assert said.count("are left out: ") == len(ours) + 1  # by evaluations, and by embeddings


def test_a_fit_that_two_have_begun_one_goes_on_with(images, run, one, two, monkeypatch):
    monkeypatch.setenv("FASTMOCO_DATA", str(two / "store"))
    monkeypatch.setattr(gallery, "BLOCK", 64)
    assert not (two / "stopped.json").exists()
    (kept,) = (two / "store" / "unfinished").iterdir()
    begun, resume = [], fit._resume
    monkeypatch.setattr(fit, "_resume", lambda *given: begun.append(resume(*given)) or begun[0])
    monkeypatch.setattr(sys, "argv", sys.argv)
    assert evaluating.evaluate(images, run, two, STOPPED, "stopped.json") == 0
    assert begun == [AFTER]
    assert records(two, "stopped.json")[0]["results"] == records(one, "stopped.json")[0]["results"]
    assert not kept.exists()


def test_a_mistake_of_all_is_one_line(run, tmp_path):
    words = ("-m", "fastmoco", "evaluate", "knn", run, "absent", "--out", tmp_path / "a.json")
    ranks = warm.group(2, words, FASTMOCO_DATA=str(tmp_path))
    said, complaints = zip(*(rank.communicate(timeout=100) for rank in ranks), strict=True)
    told = [line for line in "".join(complaints).splitlines() if line.startswith("fastmoco: ")]
    assert all(rank.returncode != 0 for rank in ranks)
    assert len(told) == 1
    assert "no such folder, list or set 'absent'" in told[0]
    assert said == ("", "")
    assert not (tmp_path / "a.json").exists()


def test_devices_are_processes_that_find_the_same(images, run, one, tmp_path):
    script = (
        "import sys; from fastmoco.assess import knn; from fastmoco.exam import Terms\n"
        "print(knn(*sys.argv[1:3], out=sys.argv[3], terms=Terms(device='cpu', workers=1, devices=2)))"
    )
    said = finish("-c", script, run, images, tmp_path / "a.json", store=tmp_path)
    (record,) = records(tmp_path, "a.json")
    assert record["processes"] == 2
    assert record["results"] == results(one, "knn")
    assert said.splitlines()[-1] == str(record["results"])
