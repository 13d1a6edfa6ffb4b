"""Imports follow the arrow: a module imports only from modules to its left."""

import ast
import re
from pathlib import Path

import pytest

import fastmoco

ROOT = Path(fastmoco.__file__).parent
ARROW = [
    {
        "samples",
        "distributed",
        "names",
        "randomness",
        "checkpoint",
        "interrupts",
        "shards",
        "flags",
        "stem",
        "lock",
        "line",
        "kinds",
        "decode",
    },
    {"patches", "encoder", "heads", "support", "journal", "shapes", "meter", "norm", "meeting"},
    {"branch", "merge", "weights", "images", "detectron", "launch", "documents", "ending"},
    {"steps", "folders", "parts", "foreign", "spread", "members", "shelf"},
    {"target", "contrast", "pairs", "optim", "protocols", "named"},
    {"recipe", "health", "data"},
    {"methods", "learner", "notation", "augment", "crop", "transfer", "alike"},
    {"recipes", "cost", "draws", "album", "descent", "thrift"},
    {"cuts", "engine", "commentary", "compose"},
    {"nvjpeg"},
    {"printing", "loader", "plots", "machine"},
    {"evaluate", "results"},
    {"run"},
    {"train", "memory", "pretrained", "packing"},
    {"command", "formats", "exam"},
    {"demo", "card", "assess", "embedding", "compare", "pack", "bench"},
    {"export", "speed", "trials"},
    {"sweep", "report"},
    {"cli"},
    {"__main__", "__init__"},
]
INSIDE = [  # evaluate/
    {"scores", "progress", "store"},
    {"gallery"},
    {"features", "recalibration"},
    {"feeds"},
    {"fit"},
    {"subject", "probe"},
    {"knn", "linear", "semi", "finetune"},
    {"gain", "judge"},
]
PLACE = {module: place for place, modules in enumerate(ARROW) for module in modules}


def imported(file):
    """The modules of the package that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[1] for name in node.names if name.name.startswith("fastmoco."))
        elif isinstance(node, ast.ImportFrom) and node.module == "fastmoco":
            yield from (name.name for name in node.names if not name.name.startswith("__"))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fastmoco."):
            yield node.module.split(".")[1]


def test_every_module_has_a_place():
    modules = {file.stem for file in ROOT.glob("*.py")} | {"recipes", "evaluate", "bench", "trials"}
    assert modules == set(PLACE)


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_follow_the_arrow(file):
    module = file.relative_to(ROOT).parts[0].removesuffix(".py")
    for other in imported(file):
        assert module == other in ("recipes", "evaluate", "bench", "trials") or PLACE[other] < PLACE[module], (
            f"{module} imports {other}"
        )


def test_evaluations_follow_an_arrow_of_their_own():
    place = {module: number for number, modules in enumerate(INSIDE) for module in modules}
    files = {file.stem: file for file in (ROOT / "evaluate").glob("[!_]*.py")}
    assert set(files) == set(place)
    for module, file in files.items():
        for other in re.findall(r"from fastmoco\.evaluate(?:\.(\w+))? import (\w+)", file.read_text()):
            assert place[other[0] or other[1]] < place[module], f"{module} imports {other}"


def test_heavy_libraries_are_imported_where_they_are_needed():
    for file in ROOT.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [name.name for name in node.names] if isinstance(node, ast.Import) else [str(node.module)]
                assert not {"torchvision", "timm", "matplotlib"} & {name.split(".")[0] for name in names}, file
