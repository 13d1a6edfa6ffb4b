import json
from dataclasses import asdict, replace

import pytest

from fastmoco.recipes import find, rows
from fastmoco.trials.findings import Finding, add, read

RECIPE = find("pocket/shapes").recipe
FOUND = Finding(
    recipe=RECIPE,
    seed=3,
    row="table4a/fast_moco",
    base="pocket/shapes",
    data="shapes",
    images=5000,
    names="0123456789ab",
    seen=99_840,
    seconds=12.5,
    first_step=3.25,
    images_per_second=8000.0,
    jobs=1,
    results={"online": {"knn20/top1": 81.5}, "target, recalibrated": {"knn20/top1": 80.25}},
    curve=((1.0, 0.75, 40.0), (20.0, 12.5, 81.5)),
    circumstances={"torch": "2.15", "compiled": False},
)


def test_what_was_added_is_read_back_as_it_was(tmp_path):
    path = tmp_path / "some" / "where" / "a.jsonl"
    others = [replace(FOUND, recipe=row.recipe, seed=seed) for seed, row in enumerate(rows("table7").values())]
    for each in (FOUND, *others):
        add(path, each)
    assert read([path]) == [FOUND, *others]
    assert read([path, path]) == [FOUND, *others, FOUND, *others]
    assert len(path.read_text().splitlines()) == 1 + len(others)


def test_scores_are_by_encoder_and_absent_where_no_one_asked():
    assert FOUND.score("knn20/top1") == 81.5
    assert FOUND.score("knn20/top1", "target, recalibrated") == 80.25
    assert FOUND.score("linear/top1") is None
    assert FOUND.score("knn20/top1", "target") is None


def spell(**changes):
    return json.dumps({**asdict(FOUND), "recipe": repr(RECIPE), **changes})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no json", "it is no JSON; remove the line"),
        ('{"a": 1}', "it has no 'recipe'"),
        ("[1]", ""),
        (spell(recipe="Encode()"), "its recipe is a Encode"),
        (spell(recipe="open('a')"), "unknown name 'open'"),
        (json.dumps({"recipe": repr(RECIPE), "seed": 1}), "it has no 'row'"),
        (spell(curve=3), ""),
        (spell(results={"online": "x"}), ""),
        (spell(results={"online": {"knn20/top1": "abc"}}), "'abc' is no number; remove the line"),
        (spell(results={"online": {"knn20/top1": float("nan")}}), "nan is no number"),
        (spell(seconds=True), "True is no number"),
        (spell(seconds=10**400), "int too large"),
        (spell(results={"online": {"knn20/top1": 1000.0}}), "1000.0 is no percentage; remove the line"),
        (spell(curve=[[1, 2]]), "its curve is not of epoch, seconds and kNN; remove the line"),
        (spell(curve=[[1, 2, -3]]), "-3 is no percentage"),
        (spell(seed="0"), "its seed is '0'; remove the line"),
        (spell(seed=True), "its seed is True"),
        (spell(jobs=None), "its jobs is None"),
        (spell(images="1000"), "its images is '1000'"),
        (spell(data=None), "its data is None"),
        (spell(circumstances=[]), "its circumstances is []"),
        (spell(circumstances={"evaluations": None}), "its evaluations are None; remove the line"),
        (spell(circumstances={"evaluations": 7}), "its evaluations are 7"),
        (spell(circumstances={"evaluations": "knn"}), "its evaluations are 'knn'"),
        (spell(circumstances={"evaluations": [["knn"]]}), "its evaluations are [['knn']]"),
        (spell(images_per_second=0), "its images_per_second are not above 0"),
    ],
)
def test_a_line_that_is_none_is_told_with_its_file_and_place(line, reason, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{spell()}\n\n{line}\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 3 is no finding of a sweep: ") as refused:
        read([path])
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_mark_before_the_first_line_is_not_taken_for_a_part_of_it(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + spell().encode())
    assert read([tmp_path / "a.jsonl"]) == [FOUND]


def test_a_line_without_its_end_is_not_glued_to_the_next(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(spell())
    add(path, replace(FOUND, seed=4))
    assert [each.seed for each in read([path])] == [3, 4]


def test_whole_numbers_are_read_as_numbers(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(spell(seconds=12, first_step=3, images_per_second=8000, curve=[[1, 2, 40]]) + "\n")
    (found,) = read([path])
    assert (found.seconds, found.first_step, found.curve) == (12.0, 3.0, ((1.0, 2.0, 40.0),))
    assert isinstance(found.seconds, float)


def test_a_line_that_is_no_object_is_told_in_words(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("[1, 2]\n")
    with pytest.raises(
        ValueError, match=r"a\.jsonl, line 1 is no finding of a sweep: it is a list; give a file that `"
    ):
        read([path])


def test_a_file_that_cannot_be_opened_is_told_by_its_name(tmp_path):
    with pytest.raises(ValueError, match=r"^\S+ cannot be read: Is a directory; give another file$"):
        read([tmp_path])


def test_a_file_that_is_no_text_is_told_by_its_name(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"a\.jsonl is no text"):
        read([path])
