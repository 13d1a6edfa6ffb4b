"""Python in processes of their own that begin warm: they are forked from one that has imported what takes seconds.

All else is as in a process that is started by `sys.executable` with the same words: it has its own session, its exit
code, and a signal reaches it alone.
"""

import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import shutil
import socket
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
    """As much of subprocess.Popen as tests need; what it says is kept in files until it has ended."""

    def __init__(self, words, **environment):
        self._said = Path(tempfile.mkdtemp())
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
        """What was said on stdout and on stderr."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"not done in {timeout} seconds"
        said = [(self._said / name).read_text() for name in ("1", "2")]
        shutil.rmtree(self._said)
        return said


def group(number, words, **environment):
    """So many ranks of one group, as a launcher starts them, but without one that ends all when one ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(number)}
    local = {"LOCAL_WORLD_SIZE": str(number)}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number)]
    return [Python(words, **meet, **local, **rank, **environment) for rank in ranks]


def _begin(words, environment, folder, said):
    os.setsid()
    for stream in (1, 2):
        file = os.open(said / str(stream), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
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
