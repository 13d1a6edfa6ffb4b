"""How processes end, seen from outside."""

import os
import signal
import subprocess
import sys

import pytest

from fastmoco.ending import ended

# Something stays until Python is taken down, and says so then.
SCRIPT = """
import atexit, sys
from fastmoco.ending import parted

class Last:
    def __init__(self, tell=print):
        self.tell = tell
    def __del__(self):
        self.tell("taken down")

last = Last()
atexit.register(lambda: print("ended in order"))
with parted():
    print("done", end=" ")
    {end}
"""


def end(how, **environment):
    clean = {name: value for name, value in os.environ.items() if name != "RANK"}
    words = [sys.executable, "-c", SCRIPT.format(end=how)]
    return subprocess.run(words, env={**clean, **environment}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("how", "code"),
    [("pass", 0), ("sys.exit()", 0), ("sys.exit(0)", 0), ("sys.exit(75)", 75), ("sys.exit('why')", 1), ("1 / 0", 1)],
)
def test_one_of_many_leaves_with_the_same_words_and_code_but_python_is_not_taken_down(how, code):
    alone, one = end(how), end(how, RANK="0")
    assert alone.returncode == one.returncode == code
    assert alone.stdout == "done ended in order\ntaken down\n"
    assert one.stdout == "done ended in order\n"
    assert one.stderr.splitlines()[-1:] == alone.stderr.splitlines()[-1:]


@pytest.mark.parametrize(("raised", "code"), [("KeyboardInterrupt", 130), ("KeyboardInterrupt(15)", 143)])
def test_a_second_ctrl_c_while_python_is_taken_down_changes_nothing(raised, code):
    script = f"""
import atexit, os
from fastmoco.ending import ended

class Last:
    def __init__(self, kill=os.kill, number=os.getpid()):
        self.kill, self.number = kill, number
    def __del__(self):
        self.kill(self.number, {int(signal.SIGINT)})

last = Last()
atexit.register(os.kill, os.getpid(), {int(signal.SIGINT)})
with ended():
    raise {raised}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (
            PermissionError(13, "Permission denied", "a.py"),
            "a.py: Permission denied; change its permissions, or give",
        ),
        (IsADirectoryError(21, "Is a directory", "a"), "a: Is a directory; give a file"),
        (FileNotFoundError(2, "No such file or directory", "a"), "a: No such file or directory"),
        (PermissionError("a.pt holds more than numbers"), "a.pt holds more than numbers"),
    ],
)
def test_a_file_that_cannot_be_opened_is_one_line_with_what_to_do(raised, line, capsys):
    with pytest.raises(SystemExit) as end, ended():
        raise raised
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"fastmoco: {line}")


def test_a_reader_that_has_gone_changes_nothing():
    assert end("sys.stdout.close()", RANK="1").returncode == 0
    assert end("sys.stderr.close()", RANK="1").returncode == 0
