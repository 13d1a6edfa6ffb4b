"""A line that changes on a terminal, and what becomes of it elsewhere."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from fastmoco.line import Line

SHOW = """
from fastmoco.line import Line
line = Line()
line.show("0123456789" * 3)
line.show("short")
line.say("stays")
"""


@pytest.mark.parametrize("columns", [20, 24])
def test_it_fits_the_terminal_of_standard_error(columns):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 10, columns, 0, 0))
    subprocess.run([sys.executable, "-c", SHOW], stdout=subprocess.DEVNULL, stderr=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 1000).decode()
    os.close(ours)
    gone = "\r\x1b[2K"
    assert shown == f"{gone}{('0123456789' * 3)[: columns - 1]}{gone}short{gone}stays\r\n"


def test_a_file_gets_whole_lines_and_the_quiet_say_nothing(capsys):
    for quiet in (False, True):
        line = Line(quiet)
        line.show("a" * 500)
        line.say("b")
        line.erase()
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "a" * 500 + "\nb\n")


@pytest.mark.parametrize("stream", [None, "closed"])
def test_a_terminal_that_is_gone_is_no_reason_to_stop(monkeypatch, stream):
    ours, theirs = pty.openpty()
    file = os.fdopen(theirs, "w") if stream else None
    monkeypatch.setattr(sys, "stderr", file)
    line = Line()
    assert line.live == bool(stream)
    os.close(ours)
    line.show("x")
    line.say("y")
    monkeypatch.undo()
    with contextlib.suppress(OSError, AttributeError):
        file.close()


def test_what_was_shown_gets_stale():
    line = Line()
    assert line.stale()
    line.show("")
    assert not line.stale()
    assert line.stale(0.0)
