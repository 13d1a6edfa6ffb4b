"""The trainings of a sweep at work: each in a process of its own, so many at once, within a stated time."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from fastmoco.interrupts import Interrupts
from fastmoco.line import Line
from fastmoco.trials import watch
from fastmoco.trials.job import TAKEN, Job

if TYPE_CHECKING:
    from fastmoco.recipe import Recipe
    from fastmoco.trials.findings import Finding

PROGRAM = (sys.executable, "-m", "fastmoco.trials.trial")
TICK = 0.1  # seconds between two looks at the processes
PATIENCE = 300.0  # seconds that a process has to save what it has
# Exit codes of what was asked to stop: Ctrl-C reaches all processes at once. Windows has no SIGHUP.
_ASKED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
STOPPED = {code for each in _ASKED for code in (128 + each, -each)}


@dataclass(frozen=True)
class Task:
    """A job, its recipe, and its place in the sweep."""

    job: Job
    recipe: "Recipe"
    place: str  # 3 of 18

    @property
    def words(self) -> str:
        return f"{self.job.entry.title}, seed {self.job.seed}"

    @property
    def brief(self) -> str:
        return f"{self.job.entry.row.rpartition('/')[2]} seed {self.job.seed}"

    @property
    def folder(self) -> Path:
        return Path(self.job.folder)

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def seen(self) -> int:
        """Images in all epochs."""
        return self.job.sweep.images // self.recipe.batch * self.recipe.batch * self.recipe.epochs


@dataclass
class Outcome:
    """What became of the tasks that have no finding."""

    failed: list[Task] = field(default_factory=list)
    taken: list[Task] = field(default_factory=list)  # by another sweep
    left: list[Task] = field(default_factory=list)  # as they were stopped, or the time was over

    def note(self, task: Task, code: int, reason: str) -> str:
        """File a task that has no finding under what its exit code means, and say that in words."""
        if code in STOPPED:
            self.left.append(task)
            return "was stopped"
        if code == TAKEN:
            self.taken.append(task)
            return "is at work in another process"
        self.failed.append(task)
        return f"failed: {reason}"


@dataclass
class Pace:
    """How long trainings take here, by those that have ended."""

    spent: dict[str, tuple[float, float]] = field(default_factory=dict)  # by recipe: seconds an image seen, and others

    def note(self, task: Task, seconds: float, finding: "Finding") -> None:
        """What does not depend on how many images are seen is told apart: to compile, and to be judged."""
        each = 1 / finding.images_per_second
        self.spent[repr(task.recipe)] = each, max(0.0, seconds - each * task.seen)

    def expect(self, task: Task) -> float:
        """By the same recipe, or else by the slowest; nothing is known before one has ended."""
        own = self.spent.get(repr(task.recipe))
        return max((each * task.seen + rest for each, rest in ([own] if own else self.spent.values())), default=0.0)

    def left(self, todo: Iterable[Task], working: Mapping[Task, float]) -> float:
        """Seconds of all that is to do, and of what is at work, each for so long, if they came one after another."""
        begun = (max(0.0, self.expect(task) - spent) for task, spent in working.items())
        return sum(begun, 0.0) + sum(map(self.expect, todo))


class Crew:
    """Processes that are at work. Whatever happens, none of them is left behind."""

    def __init__(self, live: bool) -> None:
        self.live = live  # whether a process shows its line on the terminal, or writes to its log
        self.working: dict[Task, tuple[subprocess.Popen[bytes], float]] = {}  # since when
        self.earlier: dict[Task, int] = {}  # bytes that its log had before

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def begin(self, task: Task) -> None:
        from fastmoco.meeting import CHILD

        task.log.parent.mkdir(parents=True, exist_ok=True)
        with task.log.open("ab") as log:
            self.earlier[task] = log.tell()
            process = subprocess.Popen(
                [*PROGRAM, task.job.spell()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=None if self.live else log,
                env={**_threads(task.job.sweep.jobs), **os.environ, CHILD: "sweep"},
            )
        self.working[task] = process, time.monotonic()

    def ended(self) -> list[tuple[Task, int, float]]:
        """Those that have ended since, with exit code and seconds."""
        found = []
        for task, (process, begun) in list(self.working.items()):
            code = process.poll()
            if code is not None:
                del self.working[task]
                found.append((task, code, time.monotonic() - begun))
        return found

    def spent(self) -> dict[Task, float]:
        """For how many seconds each has been at work."""
        return {task: time.monotonic() - begun for task, (_, begun) in self.working.items()}

    def reason(self, task: Task, code: int) -> str:
        """The line with which one ended, if its log has any since it began; else how it ended, and where the log is."""
        log = task.log.read_bytes()[self.earlier[task] :] if task.log.exists() else b""
        last = next(reversed(log.decode(errors="replace").splitlines()), "")
        if last.startswith("fastmoco: "):
            return last.removeprefix("fastmoco: ")
        ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"it ended {ended}; its log is {os.path.relpath(task.log)}"

    def stop(self) -> None:
        """Ask all to save and end, and wait for them."""
        for process, _ in self.working.values():
            process.terminate()
        end = time.monotonic() + PATIENCE
        for process, _ in self.working.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _threads(jobs: int) -> dict[str, str]:
    """Each training computes on its part of the cores, or they would wait for each other."""
    from fastmoco.launch import cores

    return {"OMP_NUM_THREADS": str(max(1, cores() // jobs))} if jobs > 1 else {}


def work(
    tasks: Sequence[Task], jobs: int, seconds: float | None, collect: Callable[[Task], "Finding | None"]
) -> Outcome:
    """Make the trainings one after another, or so many at once; a signal or the end of the time stops them.

    `collect` is asked for a finding before a training begins, as another sweep may have made it, and when it has ended.
    """
    from fastmoco.journal import clock

    outcome, pace, todo = Outcome(), Pace(), list(tasks)
    end = math.inf if seconds is None else time.monotonic() + seconds

    def fits(task: Task) -> bool:
        return time.monotonic() + pace.expect(task) <= end

    line = Line(fresh=True)
    with Interrupts() as interrupts, Crew(live=line.live and jobs == 1) as crew:
        interrupts.hold()
        while todo or crew.working:
            if interrupts.asked or time.monotonic() > end:
                break
            while len(crew.working) < jobs and (task := next(filter(fits, todo), None)):
                todo.remove(task)
                line.erase()
                _begin(crew, task, collect)
            for task, code, spent in crew.ended():
                line.erase()
                finding = collect(task) if code == 0 else None
                if finding is None:
                    told = f" {outcome.note(task, code, crew.reason(task, code))}"
                else:
                    took = max(spent, finding.seconds)  # one that went on has taken longer than this process
                    pace.note(task, took, finding)
                    left = pace.left(todo, crew.spent()) / jobs
                    told = f": {scores(finding)}, {clock(spent)}" + (f"; about {clock(left)} left" if left else "")
                print(f"{task.place}  {task.words}{told}", flush=True)
            if todo and not crew.working and not any(map(fits, todo)):
                break
            if crew.working and not crew.live and line.stale(watch.OFTEN if line.live else watch.SELDOM):
                line.show(watch.state([*crew.working], [*filter(fits, todo)]))
            time.sleep(TICK)
        line.erase()
        stopped, outcome.left = interrupts.asked, [*outcome.left, *crew.working, *todo]
        if crew.working and not stopped:
            print(f"the time is over; {len(crew.working)} at work save what they have", flush=True)
        crew.stop()
        for task, *_ in crew.ended():  # one of them may have come to its end all the same
            if collect(task) is not None:
                outcome.left.remove(task)
    if stopped:
        print(f"stopped by {stopped.name} with {len(outcome.left)} left; the same command goes on", flush=True)
        raise KeyboardInterrupt(int(stopped))
    return outcome


def _begin(crew: Crew, task: Task, collect: Callable[[Task], "Finding | None"]) -> None:
    if collect(task) is not None:
        print(f"{task.place}  {task.words} has a record by now", flush=True)
        return
    print(f"{task.place}  {task.words}", flush=True)
    crew.begin(task)


def scores(finding: "Finding") -> str:
    """The numbers that people look for."""
    from fastmoco.trials.findings import WORDS

    found = {words: finding.score(name) for name, words in WORDS.items()}
    said = ", ".join(f"{words} {value:.1f} %" for words, value in found.items() if value is not None) or "trained"
    return f"{said}, {finding.trouble}" if finding.trouble else said
