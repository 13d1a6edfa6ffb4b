"""What long work tells of itself on standard error: on a terminal one line that changes, else one after another."""

import contextlib
import os
import shutil
import sys
import time


class Line:
    """Nothing is told where `quiet`; a terminal that was closed is no reason to lose the work.

    It is stale from the beginning; `fresh` counts as just shown.
    """

    def __init__(self, quiet: bool = False, fresh: bool = False) -> None:
        self.quiet = quiet
        self.live = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self.shown = time.monotonic() if fresh else float("-inf")  # just now, or never

    def show(self, text: str) -> None:
        """The state of things, until the next one replaces it."""
        self.shown = time.monotonic()
        self.erase()
        if self.live:
            self._print(text[: _width() - 1], end="")
        else:
            self._print(text)

    def say(self, text: str) -> None:
        """A line that stays."""
        self.erase()
        self._print(text)

    def erase(self) -> None:
        """Before something else is printed."""
        if self.live:
            self._print("\r\x1b[2K", end="")

    def stale(self, seconds: float = 1.0) -> bool:
        """Whether what was shown last is older than that."""
        return time.monotonic() - self.shown > seconds

    def _print(self, text: str, end: str = "\n") -> None:
        if not self.quiet:
            with contextlib.suppress(OSError, AttributeError):  # the second, if there never was one
                print(text, end=end, file=sys.stderr, flush=True)


def _width() -> int:
    """Columns of the terminal that shows the line; standard output may be another, or a file."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or shutil.get_terminal_size().columns
    except (OSError, ValueError):  # it only looks like one
        return shutil.get_terminal_size().columns
