import itertools
import json
import math
import multiprocessing
from contextlib import closing

import pytest
import torch
from pictures import paint

from fastmoco.bench import loader as bench
from fastmoco.bench import peers
from fastmoco.data import find
from fastmoco.loader import choose
from fastmoco.methods import both, encode

CPU = torch.device("cpu")
NAMES = ["ours, 8-bit crops", "PIL and torchvision", "PIL, decoded only"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return paint(tmp_path_factory.mktemp("images"), 12)


def test_the_record_has_every_loader_and_its_ratio(folder, tmp_path):
    record = bench.measure(str(folder), 32, 8, 2, CPU, 0.01, str(tmp_path / "loader.json"))
    assert json.loads((tmp_path / "loader.json").read_text()) == record
    assert [row["name"] for row in record["rows"]] == NAMES
    ours = record["rows"][0]
    for row in record["rows"]:
        assert len(row["rounds_milliseconds"]) == bench.ROUNDS
        assert all(0 < each < math.inf for each in row["rounds_milliseconds"])
        assert row["images_per_second"] == pytest.approx(8e3 / row["milliseconds"], rel=0.01)
        assert row["ratio"] == pytest.approx(row["milliseconds"] / ours["milliseconds"], rel=0.01)
    assert record["bench"] == "loader"
    assert (record["size"], record["batch"], record["workers"], record["images"]) == (32, 8, 2, 12)
    assert (record["image_width"], record["image_height"]) == (24, 25)
    assert multiprocessing.active_children() == []


def test_a_set_smaller_than_a_batch_is_repeated(folder):
    images = find(str(folder)).train
    more = bench.enough(images, 30)
    assert len(more) == 30
    assert [more.name(index) for index in range(30)] == [images.name(index % 12) for index in range(30)]
    assert bench.enough(images, 12) is images
    assert bench.measure(str(folder), 16, 30, 0, CPU, 0.0, "")["images"] == 12


def test_the_pace_is_that_of_whole_turns_after_the_first(monkeypatch):
    now = 0.0

    def slow_then_in_bursts():
        nonlocal now
        for number in itertools.count():
            if number % 4 == 0:  # four workers deliver together
                now += 2.0 if number else 100.0
            yield number

    monkeypatch.setattr(bench.time, "perf_counter", lambda: now)
    assert bench.pace(slow_then_in_bursts, 4, 3.0, CPU) == 0.5
    assert bench.pace(slow_then_in_bursts, 4, 0.0, CPU) == 0.5


@pytest.mark.parametrize("workers", [0, 2])
def test_the_usual_loader_makes_two_views_of_every_image_and_goes_on_after_an_epoch(folder, workers):
    images, view = find(str(folder)).train, both(encode, size=16)[0]
    views = peers.Views(images, peers.by_torchvision(view.augment, view))
    with closing(peers.batches(views, 8, workers, pin=False)) as batches:
        for one, other in itertools.islice(batches, 4):
            assert one.shape == other.shape == (8, 3, 16, 16)
            assert one.dtype == torch.float
            assert not one.equal(other)
    assert multiprocessing.active_children() == []


def test_the_usual_loader_reads_each_image_once_an_epoch(folder):
    seen = []

    class Watched:
        labels, classes = None, ()

        def __init__(self, images):
            self.images = images

        def __len__(self):
            return len(self.images)

        def read(self, index):
            seen.append(index)
            return self.images.read(index)

        def name(self, index):
            return self.images.name(index)

        def stamp(self):
            return ""

    with closing(peers.batches(peers.Decoded(Watched(find(str(folder)).train)), 6, 0, pin=False)) as batches:
        widths = torch.cat(list(itertools.islice(batches, 4)))
    assert widths.tolist() == [24] * 24
    assert sorted(seen[:12]) == sorted(seen[12:]) == list(range(12))


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("name", NAMES)
def test_no_worker_is_left_when_a_measurement_is_stopped(folder, monkeypatch, stop, name):
    at_work = 0

    def stopped(device):
        nonlocal at_work
        at_work = len(multiprocessing.active_children())
        raise stop

    images = find(str(folder)).train
    loader = bench._loaders(images, 16, 8, 2, CPU)[name]
    monkeypatch.setattr(bench, "finish", stopped)
    with pytest.raises(stop) as error:
        bench.pace(loader, 2, 1.0, CPU)
    assert at_work == 2
    assert multiprocessing.active_children() == []
    assert error.traceback  # which has kept alive till here all that was not ended


def test_no_worker_is_left_when_one_of_them_fails(folder, monkeypatch):
    def fail(images, index):
        raise OSError("a disk is gone")

    monkeypatch.setattr(peers, "read", fail)
    with pytest.raises(OSError, match="a disk is gone"):
        bench.measure(str(folder), 16, 8, 2, CPU, 0.01, "")
    assert multiprocessing.active_children() == []


def test_with_a_gpu_views_on_the_device_are_measured_too(folder, monkeypatch):
    images = find(str(folder)).train
    monkeypatch.setattr(bench, "choose", choose_on_cpu)
    loaders = bench._loaders(images, 16, 8, 0, torch.device("cuda"))
    assert list(loaders) == [*NAMES, "ours, views on the device"]
    with closing(loaders["ours, views on the device"]()) as batches:
        for views in itertools.islice(batches, 3):
            assert [tuple(view.shape) for view in views] == [(1, 8, 3, 16, 16)] * 2


def choose_on_cpu(images, draws, device, *, way, workers, compile):
    assert (device.type, way, compile) == ("cuda", "stream", True)
    return choose(images, draws, CPU, way=way, workers=workers, compile=False)


@pytest.mark.parametrize(("batch", "workers"), [(0, 1), (8, -1)])
def test_what_cannot_be_measured_is_refused(folder, batch, workers):
    with pytest.raises(ValueError, match=f"batch={batch}, workers={workers}"):
        bench.measure(str(folder), 16, batch, workers, CPU, 0.01, "")
