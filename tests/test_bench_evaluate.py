import json

import pytest
import torch
import torch.nn.functional as F

from fastmoco.bench import evaluate
from fastmoco.bench.evaluate import draw, measure

CPU = torch.device("cpu")
SIZES = {"images": 600, "queries": 150, "width": 32, "classes": 5, "epochs": 3}
ROWS = ["knn, ours", "knn, plain", "linear, ours", "linear, plain"]


def test_the_record_tells_what_was_measured_and_what_was_found(tmp_path, capsys):
    record = measure(**SIZES, device=CPU, out=str(tmp_path / "a" / "b.json"), commit="abc")
    assert json.loads((tmp_path / "a" / "b.json").read_text()) == record
    assert (record["bench"], record["commit"]) == ("evaluate", "abc")
    assert {name: record[name] for name in SIZES} == SIZES
    assert [row["name"] for row in record["rows"]] == ROWS
    assert sorted(record["top1"]) == ROWS
    assert [row["ratio"] for row in record["rows"] if row["name"].endswith(", ours")] == [1.0, 1.0]
    assert all(row["milliseconds"] > 0 for row in record["rows"])
    # Better than chance, so that there is something to agree on, and not without mistakes.
    assert all(30 < value < 100 for found in record["top1"].values() for value in found.values())
    told = capsys.readouterr().out
    assert all(name.replace(", ", ": ", 1) in told for name in ROWS)
    assert not list((tmp_path / "store").rglob("*.pt"))


def test_embeddings_are_near_to_others_of_their_class():
    task = draw(500, 100, 64, 4, CPU)
    cosines = F.normalize(task.test.x) @ F.normalize(task.train.x).T
    same = task.test.labels[:, None] == task.train.labels
    apart = (cosines[same].mean() - cosines[~same].mean()) * 64**0.5
    assert 0.5 < apart < 2.5
    assert task.train.labels.bincount().tolist() == pytest.approx([125] * 4, abs=40)


def test_who_finds_something_else_is_told(monkeypatch):
    search = evaluate._search
    monkeypatch.setattr(evaluate, "_search", lambda *given: dict.fromkeys(search(*given), 0.0))
    with pytest.raises(AssertionError, match=r"knn20_top1: ours \d.*, plain 0\.0"):
        measure(**SIZES, device=CPU, out="")


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_are_none_are_refused_in_a_line(name):
    with pytest.raises(ValueError, match=f"--{name} 0: use "):
        measure(**{**SIZES, name: 0}, device=CPU, out="")
