"""How cost grows: which points are measured, and what is left when some cannot be."""

import json
import sys
from math import comb
from pathlib import Path

import PIL.Image
import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import growth  # noqa: E402

SMALL = ["--encoder", "timm/test_resnet", "--batches", "4,8", "--sizes", "32,64", "--patches-size", "36"]
SMALL += ["--seconds", "0.001"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The script with flags, on a CPU; the record that it leaves."""
    out = tmp_path / "growth.json"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def run(*flags):
        monkeypatch.setattr(sys, "argv", ["benchmarks/growth.py", *flags, "--commit", "abc", "--out", str(out)])
        try:
            growth.main()
        finally:
            text = out.read_text()
        assert str(tmp_path) not in text
        return json.loads(text)

    return run


@pytest.fixture
def idle(monkeypatch):
    """No step is computed; `idle(error)` lets that of 8 images end in an error."""

    def idle(error=None):
        def working(recipe, gear):
            def step():
                if error is not None and recipe.batch == 8:
                    raise error

            return lambda: step

        monkeypatch.setattr(growth, "working", working)

    return idle


def test_each_question_changes_one_thing():
    points = growth.plan(growth.BATCHES, growth.SIZES, 224, growth.QUESTIONS)
    asked = {name: [point for point, names in points.items() if name in names] for name in growth.QUESTIONS}
    assert sorted(point.batch for point in asked["batch"]) == [64, 128, 256, 512, 1024]
    assert {(point.size, point.m, point.n) for point in asked["batch"]} == {(224, 2, 2)}
    assert sorted(point.size for point in asked["size"]) == [96, 128, 160, 192, 224, 288]
    assert {(point.batch, point.m, point.n) for point in asked["size"]} == {(256, 2, 2)}
    assert {(point.m, point.size) for point in asked["patches"]} == {(1, 224), (2, 224), (3, 225)}
    assert {point.batch for point in asked["patches"]} == {256}
    # What all three ask is measured once, and first.
    assert next(iter(points.items())) == (growth.Point(256, 224), list(growth.QUESTIONS))
    assert len(points) == 5 + 6 + 8 - 2


def test_samples_are_all_combinations_of_both_views():
    for point in growth.plan((4,), (36,), 36, ("patches",)):
        assert len(point.recipe("resnet18").samples()) == 2 * comb(point.m**2, point.n)
    assert len(growth.Point(256, 225, 3, 4).recipe("resnet50").samples()) == 252


def test_a_question_alone_has_only_its_points():
    points = growth.plan((4, 8), (32, 64), 36, ("size",))
    assert points == {growth.Point(4, 32): ["size"], growth.Point(4, 64): ["size"]}


def test_a_record_of_real_steps_is_drawn(run, tmp_path, monkeypatch):
    record = run(*SMALL, "--only", "batch")
    assert [(point["batch"], point["size"], point["samples"]) for point in record["points"]] == [
        (4, 32, 12),
        (8, 32, 12),
    ]
    for point in record["points"]:
        assert point["images_per_second"] == pytest.approx(1e3 * point["batch"] / point["milliseconds"], rel=1e-2)
        assert sorted(point["rounds_milliseconds"])[1] == point["milliseconds"]
        assert point["fits"]
        assert "peak_gib" not in point
    assert (record["encoder"], record["precision"]) == ("timm/test_resnet", "float32")
    assert (record["compiled"], record["recorded"], record["commit"]) == (False, False, "abc")
    figure = tmp_path / "growth.png"
    monkeypatch.setattr(sys, "argv", ["growth.py", "--draw", str(figure), str(tmp_path / "growth.json")])
    growth.main()
    with PIL.Image.open(figure) as image:
        assert image.format == "PNG"


def test_what_does_not_fit_is_a_point_and_the_rest_is_measured(run, idle, capsys):
    idle(torch.OutOfMemoryError("no more"))
    points = run(*SMALL)["points"]
    assert len(points) == 2 + 2 + 8 - 1
    assert [(point["batch"], "images_per_second" in point) for point in points if not point["fits"]] == [(8, False)]
    assert points[-1]["fits"]
    assert capsys.readouterr().out.count("does not fit") == 1


def test_a_recording_that_has_failed_for_memory_does_not_fit_and_no_other_mistake_is_hidden(run, idle):
    hidden = ValueError("cannot be recorded")
    hidden.__context__ = RuntimeError("capture")
    hidden.__context__.__context__ = torch.OutOfMemoryError("no more")
    idle(hidden)
    assert [point["fits"] for point in run(*SMALL, "--only", "batch")["points"]] == [True, False]
    idle(ValueError("cannot be recorded"))
    with pytest.raises(ValueError, match="cannot be recorded"):
        run(*SMALL, "--only", "batch")


def test_a_measurement_that_is_stopped_leaves_what_it_has(run, idle, tmp_path):
    idle(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(*SMALL, "--only", "size,batch")
    points = json.loads((tmp_path / "growth.json").read_text())["points"]
    assert [(point["batch"], point["size"]) for point in points] == [(4, 32), (4, 64)]


@pytest.mark.parametrize("flags", [["--only", "depth", "--out", "x.json"], []], ids=["a question", "a file"])
def test_what_the_script_does_not_know_is_refused(monkeypatch, capsys, flags):
    monkeypatch.setattr(sys, "argv", ["growth.py", *flags])
    with pytest.raises(SystemExit):
        growth.main()
    assert ("batch,size,patches" if flags else "--out") in capsys.readouterr().err
