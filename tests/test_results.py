import json
from datetime import datetime

import pytest
import torch
import warm

import fastmoco
from fastmoco.results import add, read, show


def test_where_there_is_no_file_there_are_no_records(tmp_path):
    assert read(tmp_path / "results.json") == []


def test_records_are_added_and_those_before_stay(tmp_path):
    path = tmp_path / "some" / "where" / "results.json"
    add(path, {"evaluation": "knn", "results": {"knn20/top1": 71.3}})
    first = read(path)
    add(path, {"evaluation": "linear"})
    assert read(path)[:1] == first
    assert [record["evaluation"] for record in json.loads(path.read_text())] == ["knn", "linear"]
    assert first[0]["results"] == {"knn20/top1": 71.3}
    assert [each.name for each in path.parent.iterdir()] == ["results.json"]


TOGETHER = """
import sys, time
from pathlib import Path
import torch
from fastmoco import results, shards
from fastmoco.evaluate import store

me, folder = sys.argv[1], Path(sys.argv[2])
(folder / me).touch()
while len(list(folder.iterdir())) < 2:  # for the other one
    time.sleep(0.01)
for number in range(30):
    results.add(folder / "results.json", {"who": me, "number": number})
    for file in (shards.store() / "features").glob("*.pt"):
        file.unlink(missing_ok=True)
    made = store.remembered(lambda: {"x": torch.ones(3)}, "the same")
    assert made["x"].tolist() == [1, 1, 1]
"""


def test_evaluations_that_end_at_once_all_have_their_records_and_share_embeddings(tmp_path):
    folder = tmp_path / "both"
    folder.mkdir()
    both = [warm.Python(["-c", TOGETHER, me, folder], FASTMOCO_DATA=str(tmp_path / "store")) for me in ("a", "b")]
    for process in both:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    records = read(folder / "results.json")
    assert sorted((each["who"], each["number"]) for each in records) == [(me, n) for me in "ab" for n in range(30)]
    assert sorted(each.name for each in folder.iterdir()) == ["a", "b", "results.json"]
    assert all(each.suffix == ".pt" for each in (tmp_path / "store" / "features").iterdir())


def test_a_record_says_what_made_it_and_when(tmp_path):
    add(tmp_path / "results.json", {"seed": 0})
    (record,) = read(tmp_path / "results.json")
    assert (record["seed"], record["fastmoco"], record["torch"]) == (0, fastmoco.__version__, torch.__version__)
    then = datetime.strptime(record["when"], "%Y-%m-%d %H:%M:%S%z")
    assert abs((datetime.now(then.tzinfo) - then).total_seconds()) < 60


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"[{}, null]", b'"text"', b"[{}", b"\xff\xff", b"null"])
def test_what_is_no_list_of_records_is_refused_and_stays(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_bytes(content)
    for touch in (read, lambda path: add(path, {"seed": 0})):
        with pytest.raises(ValueError, match="give another --out") as refused:
            touch(path)
        assert str(refused.value).startswith(str(path))
        assert "\n" not in str(refused.value)
        assert "char 0" not in str(refused.value)  # Python's own words
    assert path.read_bytes() == content


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be added to: Is a directory; give another --out"):
        read(tmp_path)


def test_an_empty_list_can_be_added_to(tmp_path):
    (tmp_path / "results.json").write_text("[]")
    add(tmp_path / "results.json", {"seed": 0})
    assert len(read(tmp_path / "results.json")) == 1


def test_tops_are_shown_side_by_side_and_other_numbers_below(capsys):
    show({"semi/lr": 0.05, "semi/top1": 71.234, "semi/top5": 100.0, "other/top1": 5.0, "other/top5": 9.999})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["top-1", "top-5"],
        ["semi", "71.23", "100.00"],
        ["other", "5.00", "10.00"],
        ["semi/lr", "0.05"],
    ]
    show({"loss": 1.5})
    assert capsys.readouterr().out == "loss 1.5\n"
