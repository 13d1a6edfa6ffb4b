"""How a command ends: a mistake is told in one line, and every end has its exit code."""

import atexit
import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

from fastmoco.interrupts import ignore_ctrl_c

# For what no one has foreseen where a file is opened.
FIXES = {
    PermissionError: "; change its permissions, or give another place",
    IsADirectoryError: "; give a file",
    NotADirectoryError: "; give a place in a folder",
}


@contextlib.contextmanager
def ended() -> Iterator[None]:
    """A user's mistake, a ValueError or an OSError, ends the process with exit code 2; a signal as it usually does."""
    try:
        yield
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
    except ConnectionError as error:  # no mistake of the user's: another process has gone
        from fastmoco.meeting import LOST

        _stop(error, code=LOST)
    except (OSError, ValueError, FloatingPointError) as error:
        _stop(error)
    except (RuntimeError, MemoryError) as error:
        # torch has an error of its own for a GPU, and only words for a CPU.
        if not isinstance(error, MemoryError) and not re.search(r"out of memory|can't allocate memory", str(error)):
            raise
        _stop(MemoryError("out of memory; ask for less, such as a smaller --size, --batch or number of images"))
    except KeyboardInterrupt as error:  # which tells the signal that asked for it, if it was not Ctrl-C
        ignore_ctrl_c()  # or another, while Python is taken down, is told as an error, or changes the exit code
        sys.exit(128 + (error.args[0] if error.args else 2))


def _stop(error: Exception, code: int = 2) -> NoReturn:
    """Tell a mistake in one line, unless another rank does."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        message = f"{error.filename}: {error.strerror}{FIXES.get(type(error), '')}"
    else:
        message = str(error)
    if not getattr(error, "told", False):
        print(f"fastmoco: {' '.join(message.split())}", file=sys.stderr, flush=True)
    if hasattr(error, "told"):
        time.sleep(1)  # a launcher ends all ranks as soon as one ends, and the one that tells may need a moment
    sys.exit(code)


@contextlib.contextmanager
def parted() -> Iterator[None]:
    """A process that a launcher has started as one of a group leaves as children of multiprocessing do: at once.

    gloo's threads let go of a tensor a moment after it has come. One that does so while Python is being taken down
    aborts the process (torch 2.15), and to the launcher it looks as if work that was done had been killed.
    """
    if "RANK" not in os.environ:
        yield
        return
    code = 1
    try:
        yield
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # of which Python would tell, too
        sys.excepthook(*sys.exc_info())
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
            stream.flush()
    os._exit(code)
