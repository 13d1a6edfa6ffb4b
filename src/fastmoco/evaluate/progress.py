"""How far a long work is, how fast it goes, and how much longer it takes, on standard error."""

import shutil
import sys
import time
from types import TracebackType

from fastmoco.distributed import leads
from fastmoco.journal import clock

OFTEN, SELDOM = 0.5, 30.0  # seconds between two looks at it: on a terminal, and in a file


class Progress:
    """One line that changes on a terminal; elsewhere a line now and then, and none for what is quickly done.

    It counts what all ranks do, and is shown by one of them.
    """

    def __init__(self, what: str, images: int, before: int = 0) -> None:
        self.what = what
        self.images = images  # in all
        self.before = before  # of them were done when this began
        self.done = before
        self.begun = self.shown = time.monotonic()
        self.quiet = not leads()
        self.live = sys.stderr is not None and sys.stderr.isatty() and not self.quiet

    def add(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.shown >= (OFTEN if self.live else SELDOM):
            self.shown = now
            rate = (self.done - self.before) / (now - self.begun)
            left = clock(max(0, self.images - self.done) / rate)
            self._show(f"{self.what}: {min(1, self.done / self.images):.0%}, {rate:,.0f} images a second, {left} left")

    def say(self, text: str) -> None:
        """A line that stays."""
        self._show(text)
        if self.live:
            print(file=sys.stderr)

    def _show(self, text: str) -> None:
        if self.quiet:
            return
        if self.live:
            print(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
