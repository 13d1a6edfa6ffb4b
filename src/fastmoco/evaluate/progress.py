"""How far a long work is, how fast it goes, and how much longer it takes, on standard error."""

import time
from types import TracebackType

from fastmoco.distributed import leads
from fastmoco.journal import clock
from fastmoco.line import Line

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
        self.line = Line(quiet=not leads())
        self.begun = self.line.shown = time.monotonic()

    def add(self, count: int) -> None:
        self.done += count
        if self.line.stale(OFTEN if self.line.live else SELDOM):
            rate = (self.done - self.before) / (time.monotonic() - self.begun)
            left = clock(max(0, self.images - self.done) / rate)
            done = f"{min(1, self.done / self.images):.0%}"
            self.line.show(f"{self.what}: {done}, {rate:,.0f} images a second, {left} left")

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.line.erase()
