import os
import signal

import pytest

from fastmoco.interrupts import MOMENT, Interrupts


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that stands still until it is told to go on."""
    time = [100.0]
    monkeypatch.setattr("fastmoco.interrupts.time.monotonic", lambda: time[0])
    return time


def test_the_first_ctrl_c_is_noted_and_the_second_ends(clock):
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.asked == signal.SIGINT
        clock[0] += MOMENT * 1.1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_a_ctrl_c_that_a_launcher_passes_on_at_once_is_the_same_one(clock):
    with Interrupts():
        for _ in range(4):  # of which none puts off the moment
            os.kill(os.getpid(), signal.SIGINT)
            clock[0] += MOMENT * 0.3
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_other_signals_are_held_only_once_there_are_steps_to_finish(clock):
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        assert signal.getsignal(signal.SIGTERM) == before
        interrupts.hold()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.asked == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)  # a person after a scheduler: one Ctrl-C
        assert interrupts.asked == signal.SIGINT
        os.kill(os.getpid(), signal.SIGTERM)
        clock[0] += MOMENT * 1.1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            interrupts.hold()
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.asked is None
    finally:
        signal.signal(signal.SIGHUP, before)
