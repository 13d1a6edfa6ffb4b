import os
import subprocess
import sys

import pytest

from fastmoco.documents import NOTHING, Table, fill, places

PAGE = "# Title\n\n<!-- one -->\nold\n<!-- /one -->\n\ntext <!-- other -->\n\n<!-- two --><!-- /two -->\n"
MAKERS = {"one": lambda: "1", "two": lambda: r"\1 and \g<0>", "three": lambda: "3"}


def test_what_is_made_stands_between_its_marks_and_all_else_stays():
    made = fill(PAGE, MAKERS, "page.md")
    assert made == (
        "# Title\n\n<!-- one -->\n\n1\n\n<!-- /one -->\n\ntext <!-- other -->\n\n"
        "<!-- two -->\n\n\\1 and \\g<0>\n\n<!-- /two -->\n"
    )
    assert fill(made, MAKERS, "page.md") == made


def test_places_are_those_of_the_names_that_have_one():
    assert places(PAGE, ["three", "two", "one"], "page.md") == ["two", "one"]


@pytest.mark.parametrize(
    "page",
    [
        "<!-- one -->",
        "<!-- /one -->",
        "<!-- /one --><!-- one -->",
        "<!-- one --><!-- /one --><!-- one --><!-- /one -->",
    ],
)
def test_half_a_place_and_two_of_them_are_refused(page):
    with pytest.raises(ValueError, match=r"^page.md: one needs <!-- one --> and then <!-- /one -->, both once$"):
        fill(page, MAKERS, "page.md")


def test_a_table_is_markdown_with_sentences_below():
    table = Table("title", ("row", "top-1"), (("a", "1.0"), ("b", "")), ("First.", "Second."))
    assert table.markdown() == "| row | top-1 |\n| --- | ---: |\n| a | 1.0 |\n| b |  |\n\nFirst.\n\nSecond."
    assert Table("title").markdown() == NOTHING


def test_words_stand_on_the_left_and_numbers_on_the_right():
    table = Table("title", ("row", "set", "top-1", "change"), (("1", "shapes", "", "-0.1"), ("2", "a", "not run", "")))
    assert table.markdown().splitlines()[1] == "| --- | --- | --- | ---: |"


def test_a_document_is_utf_8_whatever_the_locale(tmp_path):
    (tmp_path / "page.md").write_bytes("± 0.1".encode())
    code = "import sys, pathlib, fastmoco.documents as d; print(ascii(d.read(pathlib.Path(sys.argv[1]))))"
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "page.md"], env=plain, capture_output=True, text=True, check=True
    )
    assert done.stdout == "'\\xb1 0.1'\n"


def test_a_place_inside_another_is_refused():
    document = "<!-- a --><!-- b --><!-- /b --><!-- /a -->"
    with pytest.raises(ValueError, match=r"^page: a place is inside another"):
        places(document, ["a", "b"], "page")
