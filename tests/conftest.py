import gc
import signal
from pathlib import Path

import jaxtyping
import pytest
import torch

# Reduced rows are too small to share: on a busy machine, threads that wait for each other cost more than they bring.
torch.set_num_threads(1)

# A shell lets what it runs in the background ignore Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Files that take longest, in the order in which they begin: those that start many processes are not side by side.
LONG = [
    *("test_torchrun.py", "test_thrift.py", "test_pretrain.py", "test_kills.py", "test_rows.py"),
    *("test_distributed.py", "test_sweep.py", "test_evaluations_together.py", "test_export.py"),
]


def pytest_collection_modifyitems(items):
    """Long files first: one that began last would leave all cores but one with nothing to do."""
    assert all((Path(__file__).parent / name).exists() for name in LONG)
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(autouse=True, scope="module")
def _frozen():
    """What the files before have imported is not looked through again whenever a benchmark collects what is left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    """What is kept for the next time is kept for one test only."""
    monkeypatch.setenv("FASTMOCO_DATA", str(tmp_path / "store"))


@pytest.fixture
def unchecked():
    """Shape checks are no part of the program, and a compiler cannot see through them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    jaxtyping.config.update("jaxtyping_disable", False)
