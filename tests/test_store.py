import tracemalloc

import PIL
import pytest
import torch

from fastmoco.evaluate import store
from fastmoco.evaluate.store import remembered


@pytest.mark.parametrize(("module", "name"), [(PIL, "__version__"), (store, "FORMAT")])
def test_what_another_version_has_made_is_made_anew(module, name, monkeypatch):
    remembered(lambda: {"x": torch.zeros(1)}, "a")
    assert remembered(lambda: {"x": torch.ones(1)}, "a")["x"].tolist() == [0]
    monkeypatch.setattr(module, name, "another")
    assert remembered(lambda: {"x": torch.ones(1)}, "a")["x"].tolist() == [1]


def test_what_is_kept_comes_back_as_it_was():
    made = {"x": torch.randn(3, 5).T, "index": torch.arange(7), "none": torch.zeros(0, 4)}
    remembered(lambda: made, "a")
    found = remembered(dict, "a")
    assert found.keys() == made.keys()
    assert all(found[name].dtype == made[name].dtype and found[name].equal(made[name]) for name in made)


def test_keeping_takes_no_memory_of_the_size_of_embeddings():
    made = {"x": torch.zeros(2**22)}
    remembered(lambda: {"x": torch.zeros(1)}, "what is imported")
    tracemalloc.start()
    try:
        remembered(lambda: made, "a")
        assert tracemalloc.get_traced_memory()[1] < made["x"].nbytes / 4
    finally:
        tracemalloc.stop()


def test_what_one_rank_has_not_kept_all_make_anew(monkeypatch):
    made = []

    def make():
        made.append(len(made))
        return {"x": torch.tensor(made)}

    assert remembered(make, "a")["x"].equal(remembered(make, "a")["x"])
    assert made == [0]
    monkeypatch.setattr(store, "agree", lambda mine: [mine, True])
    assert remembered(make, "a")["x"].tolist() == [0, 1]


def test_what_is_made_is_kept_by_one_rank(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "leads", lambda: False)
    remembered(lambda: {"x": torch.zeros(1)}, "a")
    assert not (tmp_path / "store").exists()
