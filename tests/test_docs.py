"""What the documents say is there is there, and their examples run."""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from test_imports import ARROW
from torch.distributed.run import get_args_parser

from fastmoco import contrast, images, steps
from fastmoco.cli import VERBS
from fastmoco.evaluate import knn
from fastmoco.evaluate.features import Features
from fastmoco.exam import Terms
from fastmoco.recipes import TABLES, rows
from fastmoco.weights import snippet

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fastmoco"
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(file):
    """Also of those that are part of a list, and moved in as it is."""
    found = re.findall(r"^ *```python\n.*?```", (ROOT / file).read_text(), flags=re.DOTALL | re.MULTILINE)
    return [dedent(each).removeprefix("```python\n").removesuffix("```") for each in found]


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


def test_the_arrow_of_the_architecture_is_the_arrow():
    text = (ROOT / "docs" / "architecture.md").read_text()
    block = re.search(r"```\n(samples .*?)```", text, flags=re.DOTALL)[1]
    assert [set(line.split()) for line in block.splitlines()] == ARROW


def test_every_module_has_a_room():
    section = (ROOT / "docs" / "architecture.md").read_text().split("## 5. Rooms")[1].split("Imports go one way")[0]
    cells = "".join(re.findall(r"^\|(.*?)\|", section, flags=re.MULTILINE))
    inner = {file.stem for room in ("evaluate", "bench", "trials") for file in (SOURCE / room).glob("[!_]*.py")}
    assert set(re.findall(r"`(\w+)(?:\.py|/)`", cells)) == set().union(inner, *ARROW)


def test_every_number_of_a_run_is_explained():
    pattern = r"(?:train|perf|health|val)/\w+"
    recorded = set()
    for file in SOURCE.rglob("*.py"):
        recorded |= set(re.findall(rf'"({pattern})"', file.read_text()))
    table = (ROOT / "docs" / "running.md").read_text()
    assert set(re.findall(rf"^\| `({pattern})` \|", table, flags=re.MULTILINE)) == recorded


@pytest.mark.parametrize("file", DOCS, ids=lambda file: file.name)
def test_every_flag_named_in_a_document_exists(file):
    flags = {name for verb in VERBS.values() for name in inspect.signature(verb).parameters}
    known = {name.replace("_", "-") for name in flags | {field.name for field in fields(Terms)}}
    launcher = {name.removeprefix("--") for action in get_args_parser()._actions for name in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", file.read_text())) <= known | launcher | {"help"}


def test_every_command_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    for verb in VERBS:
        assert f"fastmoco {verb}" in text, verb


def test_the_lines_that_load_an_encoder_are_those_that_a_run_prints():
    assert snippet(Path("runs/a/encoder.safetensors"), "resnet18") in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("code", blocks("README.md"))
def test_the_examples_of_the_readme_run(code):
    exec(code, {})


def test_the_lines_that_convert_twelve_bits_use_all_of_eight(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scans" / "cells").mkdir(parents=True)
    Image.fromarray(np.array([[0, 256, 2048, 4095]], np.uint16)).save("scans/cells/a.tif")
    (code,) = blocks("docs/running.md")
    exec(code, {})
    assert np.asarray(Image.open("scans-8bit/cells/a.png")).tolist() == [[0, 16, 128, 255]]


def test_the_examples_of_the_guide_run():
    row, step, new_contrast, evaluation, source = blocks("CONTRIBUTING.md")
    exec(row, {})
    for code, module, value in ((step, steps, "Keep(3)"), (new_contrast, contrast, "Squared()")):
        assert eval(value, run(code, module))
    train = Features(torch.tensor([[0.0, 1.0], [0.0, 3.0], [5.0, 0.0]]), torch.arange(3), torch.tensor([0, 0, 1]))
    test = Features(torch.tensor([[1.0, 2.0], [4.0, 0.0]]), torch.arange(2), torch.tensor([0, 1]))
    subject = SimpleNamespace(features=lambda: (train, test), classes=2)
    assert dict(run(evaluation, knn)["evaluate"](subject))["centroids/top1"] == 100
    noise = run(source, images)["Noise"](4)
    assert isinstance(noise, images.Images)
    assert (len(noise), noise.read(3).mode, noise.name(3)) == (4, "RGB", "noise/3")


def run(code, module):
    """The names of a module with those that a block adds to it."""
    names = dict(vars(module))
    exec(code, names)
    return names
