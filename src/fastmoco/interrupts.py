"""Ctrl-C and SIGTERM ask a training to stop; only a second Ctrl-C makes it."""

import signal
import threading
import time
from types import FrameType

MOMENT = 1.0  # seconds in which two are one: `timeout` and launchers pass on to us what the terminal has sent us, too


def ignore_ctrl_c() -> None:
    """From now on Ctrl-C changes nothing: the process is ending. SIGTERM still helps if that does not come about."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class Interrupts:
    """While this is open, a signal is noted, and the step in progress is finished.

    Before `hold`, only Ctrl-C is. A scheduler sends SIGTERM to all processes of a run, also to those that compile for
    it, and a first step that waits for them would never end; so until it has ended, SIGTERM ends the run at once.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._pressed: float | None = None  # when Ctrl-C was first pressed
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interrupts":
        self._take(signal.SIGINT)
        return self

    def hold(self) -> None:
        """From now on there are steps to finish."""
        self._take(signal.SIGTERM, signal.SIGHUP)  # the last comes when a terminal is closed

    def __exit__(self, *failure: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]

    def _take(self, *signals: signal.Signals) -> None:
        if threading.current_thread() is threading.main_thread():
            for each in signals:
                # What the shell has told us to ignore, as nohup does, stays ignored.
                if each not in self._before and signal.getsignal(each) != signal.SIG_IGN:
                    self._before[each] = signal.signal(each, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            now = time.monotonic()
            self._pressed = now if self._pressed is None else self._pressed
            if now - self._pressed > MOMENT:
                raise KeyboardInterrupt
        self.asked = signal.Signals(number)
