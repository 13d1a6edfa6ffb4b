"""What a training tells: train.log, metrics.jsonl and TensorBoard events, and a line for people."""

import json
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastmoco.checkpoint import write
from fastmoco.distributed import leads, tell
from fastmoco.line import Line

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Journal:
    """The records of one run folder. What was recorded after the step from which a run goes on is taken back.

    Rank 0 keeps it; the others know what is in it, and have no files.
    """

    def __init__(self, folder: Path, step: int) -> None:
        path = folder / "metrics.jsonl"
        lines = tell(lambda: kept(path, step))
        if leads():
            write(path, lambda file: file.write("".join(json.dumps(line) + "\n" for line in lines).encode()))
        self.recent = lines[-100:]
        self.newest = {name: value for line in lines for name, value in line.items()}
        self.metrics = (path if leads() else Path(os.devnull)).open("a")
        self.log = (folder / "train.log" if leads() else Path(os.devnull)).open("a", errors="backslashreplace")
        self.events: SummaryWriter | None = None
        self.begin = partial(_events, folder / "tensorboard", step)
        self.line = Line(quiet=not leads())

    def say(self, text: str) -> None:
        """A line for people, now and later."""
        self.line.say(text)
        self.note(text)

    def note(self, text: str) -> None:
        """A line for later."""
        self.log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
        self.log.flush()

    def stale(self) -> bool:
        """Whether someone watches a line that is older than a second."""
        return self.line.live and self.line.stale()

    def record(self, step: int, values: Mapping[str, float]) -> None:
        line = {"step": step, **values}
        self.recent = [*self.recent, line][-100:]
        self.newest |= line
        self.metrics.write(json.dumps(line) + "\n")
        self.metrics.flush()
        if leads():
            self.events = self.events or self.begin()
            for name, value in values.items():
                self.events.add_scalar(name, value, step)

    def recorded(self, step: int, name: str) -> bool:
        return any(line["step"] == step and name in line for line in self.recent)

    def last(self, name: str) -> float | None:
        """The last value that was recorded under a name."""
        return self.newest.get(name)

    def sync(self) -> None:
        """Before a checkpoint says that a step is done, its records must be on the disk."""
        self.metrics.flush()
        if leads():
            os.fsync(self.metrics.fileno())

    def close(self) -> None:
        self.line.erase()
        self.sync()
        self.metrics.close()
        self.log.close()
        if self.events is not None:
            self.events.close()


def _events(folder: Path, step: int) -> "SummaryWriter":
    """A writer that takes back what came after a step; slow to import, and nothing is written before it is needed."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)


def kept(path: Path, step: int = sys.maxsize) -> list[dict[str, Any]]:
    """The records up to a step, or all. A line that was cut off by a kill is not one."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int) and line["step"] <= step:
            lines.append(line)
    return lines


def append(path: Path, line: str) -> None:
    """One more line, on the disk at once: others may add to the file, too. One that was cut off stays apart."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())
        os.fsync(file.fileno())


def clock(seconds: float) -> str:
    """A span of time as people write it: 4:09, 1:23:45, 3 d 04:05."""
    days, rest = divmod(max(0, round(seconds)), 86_400)
    hours, rest = divmod(rest, 3600)
    if days:
        return f"{days} d {hours:02d}:{rest // 60:02d}"
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
