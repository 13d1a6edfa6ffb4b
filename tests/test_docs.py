"""What the documents say is there is there, and their examples run."""

import re
from pathlib import Path

import pytest

from fastmoco import contrast, protocols, steps
from fastmoco.recipes import TABLES, rows

ROOT = Path(__file__).parents[1]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(file):
    return re.findall(r"```python\n(.*?)```", (ROOT / file).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("file", DOCS, ids=lambda file: file.name)
def test_every_row_named_in_a_document_exists(file):
    named = re.findall(rf"`((?:{'|'.join(TABLES)})/\w+)`", file.read_text())
    assert not set(named) - set(rows())


@pytest.mark.parametrize("file", DOCS, ids=lambda file: file.name)
def test_every_link_between_documents_leads_somewhere(file):
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", file.read_text()):
        assert (file.parent / link).exists(), link


def test_the_map_of_the_paper_holds_every_table_figure_equation_and_row():
    text = (ROOT / "docs" / "method.md").read_text()
    for heading, parts in {
        "Equations": [str(number) for number in range(1, 9)],
        "Tables": ["1", "2", "3", "4a", "4b", "5", "6", "7", "8"],
        "Figures": ["1a", "1b", "2", "3a", "3b", "4a", "4b", "5a", "5b", "5c, 5d", "6", "7"],
    }.items():
        section = text.split(f"### {heading}\n")[1].split("\n#")[0]
        assert re.findall(r"^\| ([\w, ]+?) \|", section, flags=re.MULTILINE)[1:] == parts
    for table in TABLES:
        assert f"`{table}/" in text


def test_the_readme_tree_is_the_tree():
    tree = (ROOT / "README.md").read_text().split("src/fastmoco/\n")[1].split("```")[0]
    named = set(re.findall(r"^  (\w+)(?:\.py|/) ", tree, flags=re.MULTILINE))
    files = {
        path.stem for path in (ROOT / "src" / "fastmoco").iterdir() if path.suffix == ".py" or path.stem == "recipes"
    }
    assert named == {name for name in files if not name.startswith("__")}


@pytest.mark.parametrize("code", blocks("README.md"))
def test_the_examples_of_the_readme_run(code):
    exec(code, {})


def test_the_examples_of_the_guide_run():
    row, step, new_contrast, evaluation = blocks("CONTRIBUTING.md")
    exec(row, {})
    for code, module, value in (
        (step, steps, "Keep(3)"),
        (new_contrast, contrast, "Squared()"),
        (evaluation, protocols, "Neighbours()"),
    ):
        names = dict(vars(module))
        exec(code, names)
        assert eval(value, names)
