"""A folder for one process alone, a file for one at a time."""

import contextlib
import errno
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

# A link in its place is not followed, where there is a way to say so; what is in the file is left alone.
OPEN = os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def alone(path: Path, busy: str) -> Iterator[None]:
    """Held until this ends or the process does, however it ends; `busy` is told if another process holds the folder.

    A forked worker does not hold it. Where there are no locks, that is said.
    """
    with os.fdopen(os.open(path / ".lock", OPEN), "w") as file:
        try:
            locked = _lock(file, wait=False)
        except BlockingIOError:
            raise ValueError(busy) from None
        if not locked:
            print(f"{path} cannot be locked here; see that no other process works in it", file=sys.stderr, flush=True)
        yield


@contextlib.contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Processes that change one file, each after the other. Nothing is left beside it."""
    place = path.with_name(f".{path.name}.lock")
    while True:
        with os.fdopen(os.open(place, OPEN), "w") as file:
            _lock(file, wait=True)
            if not _is(file.fileno(), place):
                continue  # the one before has taken it away while this one waited
            try:
                yield
            finally:
                with contextlib.suppress(OSError):  # Windows keeps what is open
                    place.unlink()
            return


def _lock(file: IO[str], wait: bool) -> bool:
    """For this process alone, if there are locks: Windows has none of this kind, nor have some disks on networks."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.lockf(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def _is(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except OSError:  # it is gone; if another machine removed it, the error may be any, by the file system
        return False


def refuse_others(path: Path, ours: Collection[str], kind: str, flag: str) -> None:
    """A folder that holds something else stays as it is; `ours` is what an early kill may leave behind."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; give a folder for {flag}")
    known = {".lock", *ours}
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in known) if path.exists() else []
    if others:
        raise ValueError(f"{path} holds {others[0]!r} and is no {kind}; give a new folder for {flag}")
