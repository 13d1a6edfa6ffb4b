"""Ctrl-C and SIGTERM ask a training to stop; only a second Ctrl-C makes it."""

import signal
import threading
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last comes when a terminal is closed


class Interrupts:
    """While this is open, a signal is noted, and the step in progress is finished."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for each in SIGNALS:
                # What the shell has told us to ignore, as nohup does, stays ignored.
                if signal.getsignal(each) != signal.SIG_IGN:
                    self._before[each] = signal.signal(each, self._note)
        return self

    def __exit__(self, *failure: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]

    def halt(self) -> bool:
        return self.asked is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number)
