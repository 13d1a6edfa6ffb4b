"""No number of docs/results.md, and none of the README's table of results, is typed."""

import re
from pathlib import Path

import pytest

from fastmoco.documents import places
from fastmoco.report import DRAWN, FIGURES, filled, tables
from fastmoco.trials.findings import read

ROOT = Path(__file__).parents[1]
KNOWN = {path.name: read([path]) for path in sorted((ROOT / "results" / "sweeps").glob("*.jsonl"))}
ENCODERS = ROOT / "results" / "imagenette" / "encoders.jsonl"  # trained again, to judge all four
DOCUMENT, README = ROOT / "docs" / "results.md", ROOT / "README.md"


@pytest.mark.parametrize("path", [DOCUMENT, README], ids=lambda path: path.name)
def test_documents_hold_what_the_records_hold(path):
    encoders = tables({ENCODERS.name: read([ENCODERS])}, only=("encoders",))
    makers = {**tables(KNOWN), **encoders}
    assert all(make().rows for make in makers.values()), "one without records would stay as it is"
    assert filled(path, makers, ROOT / FIGURES) == path.read_text()


def test_every_table_and_figure_has_a_place():
    names = {*tables({}), *(f"figure {name}" for name in DRAWN)}
    document, readme = DOCUMENT.read_text(), README.read_text()
    assert set(places(document, sorted(names), "results.md")) == names - {"results"}
    assert "results" in places(readme, ["results"], "README.md")


def test_sentences_that_people_write_hold_no_numbers():
    text = re.sub(r"<!-- ([\w ]+) -->.*?<!-- /\1 -->", "", DOCUMENT.read_text(), flags=re.DOTALL)
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    named = r"MoCo v3|CIFAR-10|top-1|(?:Tables?|Figures?) \d\w?(?:, \d\w?)*(?: and \d\w?)?"
    assert not re.findall(r".*\d.*", re.sub(named, "", text))


def test_the_number_of_the_long_training_is_that_of_its_record():
    found = tables(KNOWN, only=("long",))["long"]()
    online = dict(zip(found.head[1:], found.rows[0][1:], strict=True))
    assert f"With `pocket/imagenette_long` they are better by kNN, {online['kNN']} %, and" in " ".join(
        README.read_text().split()
    )


def test_a_training_has_one_line():
    for name, findings in KNOWN.items():
        assert len({(each.recipe, each.seed) for each in findings}) == len(findings), name
