"""Python in processes of their own that begin warm: they are forked from one that has imported what takes seconds.

All else is as in a process that is started by `sys.executable` with the same words: it has its own session, its exit
code, and a signal reaches it alone.
"""

import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import sys
import tempfile
from pathlib import Path

import pytest

import fastmoco

HEAVY = ["torch._dynamo", "torch.distributed.run", "timm", "fastmoco.train", "fastmoco.cli", "warm"]
PLACES = (Path(fastmoco.__file__).parents[1], Path(__file__).parent)
CONTEXT = multiprocessing.get_context("forkserver")


def ready():
    """The context of processes that begin warm, with the server that they are forked from."""
    with pytest.MonkeyPatch.context() as patch:
        # The server looks nowhere else for what it imports, and what it imports must be of this clone.
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, PLACES)))
        patch.setenv("OMP_NUM_THREADS", "1")
        CONTEXT.set_forkserver_preload(HEAVY)
        multiprocessing.forkserver.ensure_running()
    return CONTEXT


class Python:
    """As much of subprocess.Popen as tests need, with what the process says on stderr."""

    def __init__(self, words, **environment):
        said, self._said = tempfile.mkstemp()
        os.close(said)
        places = {"PYTHONPATH": str(PLACES[0]), "OMP_NUM_THREADS": "1"}
        known = {**os.environ, **places, **environment}
        self._process = ready().Process(target=_begin, args=([*map(str, words)], known, os.getcwd(), self._said))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def communicate(self, timeout):
        """Nothing of stdout, and all of stderr, when it has ended."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"not done in {timeout} seconds"
        said = Path(self._said).read_text()
        Path(self._said).unlink()
        return None, said


def _begin(words, environment, folder, said):
    os.setsid()
    for path, stream in ((os.devnull, 1), (said, 2)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
