import time

import pytest
import torch

from fastmoco.meter import Meter


def number(value):
    return torch.tensor(float(value))


def test_a_line_is_the_mean_of_its_steps():
    meter = Meter(torch.device("cpu"))
    for loss in (1, 2, 6):
        meter.count(number(loss), number(10 * loss))
    line = meter.read(batch=4)
    assert (line["train/loss"], line["train/grad_norm"]) == (3, 60)
    meter.turn()
    meter.count(number(5), number(1))
    assert meter.read(batch=4)["train/loss"] == 5


def test_a_line_does_not_show_that_a_run_was_interrupted():
    whole, first, second = (Meter(torch.device("cpu")) for _ in range(3))
    for loss in (0.1, 0.2, 0.3, 0.7):
        whole.count(number(loss), number(1))
    for loss in (0.1, 0.2):
        first.count(number(loss), number(1))
    second.restore(first.state())
    for loss in (0.3, 0.7):
        second.count(number(loss), number(1))
    assert second.read(batch=4)["train/loss"] == whole.read(batch=4)["train/loss"]
    assert second.read(batch=4)["perf/seconds"] >= first.state()["seconds"] - first.elapsed()


def test_once_broken_always_broken():
    for loss, norm in ((float("nan"), 1), (1, float("inf"))):
        meter = Meter(torch.device("cpu"))
        meter.count(number(1), number(1))
        assert not meter.broken()
        meter.count(number(loss), number(norm))
        meter.count(number(1), number(1))
        assert meter.broken()


def test_what_is_not_training_is_not_counted(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    meter = Meter(torch.device("cpu"))
    now = 110.0  # ten seconds of training, of which two were spent waiting
    with meter.waiting():
        now = 112.0
    meter.count(number(1), number(1))
    with meter.pause():
        now = 500.0
    line = meter.read(batch=24)
    assert line["perf/seconds"] == 12
    assert line["perf/images_per_second"] == 2
    assert line["perf/data_wait"] == pytest.approx(1 / 6)
