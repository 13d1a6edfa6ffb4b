"""No number of docs/performance.md, and none of speed in the README, is typed."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("performance", ROOT / "benchmarks" / "performance.py")
performance = importlib.util.module_from_spec(SPEC)
sys.modules["performance"] = performance
SPEC.loader.exec_module(performance)


@pytest.mark.parametrize("path", performance.PLACES, ids=lambda path: path.name)
def test_documents_hold_what_the_records_hold(path):
    assert performance.fill(path) == path.read_text()


def test_every_record_is_explained_and_has_what_makes_it_one():
    known = (performance.RECORDS / "README.md").read_text()
    for path in performance.RECORDS.glob("*.json"):
        record = performance.read(path.stem)
        assert f"`{path.name}`" in known, path.name
        assert {"hardware", "torch", "python", "commit", "command"} <= set(record), path.name
        assert "/tmp" not in path.read_text(), path.name


def test_hours_are_of_a_hundred_epochs_of_imagenet():
    assert performance.hours(1_281_167 * 100 / 3600) == "1.0"
