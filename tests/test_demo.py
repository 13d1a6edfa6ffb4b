import json
import sys

import fastmoco
from fastmoco import shapes
from fastmoco.demo import demo


def test_the_demo_compares_both_methods_and_leaves_their_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shapes, "COUNTS", {"train": 256, "val": 100})
    module = sys.modules[demo.__module__]
    monkeypatch.setattr(module, "STEPS", 3)
    folder = demo(out=str(tmp_path / "demo"), seconds=0.1)
    table = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert ["epochs", "seconds", "kNN", "linear"] in table
    results = json.loads((folder / "results.json").read_text())["results"]
    assert [each["name"] for each in results] == ["random init", "MoCo v3", "Fast-MoCo"]
    assert [each["epochs"] for each in results] == [0, 1, 1]
    for run in ("shapes", "shapes_mocov3"):
        fastmoco.load(folder / run)
    monkeypatch.setattr(module, "ROWS", {"Fast-MoCo": module.ROWS["Fast-MoCo"]})
    assert demo(out=str(tmp_path / "demo"), seconds=0.1) == tmp_path / "demo-2"
