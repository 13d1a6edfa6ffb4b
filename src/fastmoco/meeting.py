"""How the processes that a launcher has started meet as one group, and how they part."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from fastmoco import __parent__
from fastmoco.distributed import grouped, launched, leads

PATIENCE = timedelta(minutes=30)  # with a rank that reads a slow disk, or writes to one
# How gloo says that a rank has gone; NCCL's errors have a type of their own.
GONE = re.compile(r"Connection (closed|reset) by peer|Broken pipe", re.IGNORECASE)
LOST = 75  # the exit code of a rank that others have left: it may be tried again
CHILD = "FASTMOCO_CHILD"  # in the environment of what must not outlive its parent


@contextmanager
def joined() -> Iterator[None]:
    """The processes that torchrun has started, as one group; nothing happens in a process that is alone.

    A mistake ends all ranks, and is for the first that makes it to tell: on the others it is marked as `told`. A rank
    that has gone shows in what the others wait for, and ends them with a ConnectionError. A group that is there already
    is used as it is; it must have gloo for what is on the CPU.
    """
    if not launched() or grouped():
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, number, ranks = _meet()
        dist.init_process_group(backend, store=store, rank=number, world_size=ranks, timeout=PATIENCE)
    except RuntimeError as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ConnectionError(f"the processes of this run cannot meet at {place}: {_brief(error)}") from None
    try:
        with losses_told():
            yield
    except KeyboardInterrupt:
        dist.destroy_process_group()
        raise
    except (ValueError, OSError, FloatingPointError) as error:
        error.told = not _first()  # type: ignore[union-attr]
        raise
    dist.destroy_process_group()


def _meet() -> tuple[PrefixStore, int, int]:
    """A corner of the launcher's store for this attempt alone, this rank, and how many there are.

    torchrun keeps one store over all attempts (torch 2.15), and does not count them alike on all machines. What an
    attempt that failed has left there would be taken for what this one says. So rank 0 names a corner, and tells its
    name to each rank under a word that only that rank can know.
    """
    store, number, ranks = next(rendezvous("env://", timeout=PATIENCE))
    word = uuid4().hex
    if number > 0:
        store.set(f"fastmoco/asks/{number}", word)
        name = store.get(f"fastmoco/name/{word}").decode()  # waits for it
        store.set(f"fastmoco/knows/{name}/{number}", "")
        return PrefixStore(name, store), number, ranks
    waiting, end = set(range(1, ranks)), time.monotonic() + PATIENCE.total_seconds()
    while waiting:
        if time.monotonic() > end:
            raise RuntimeError(f"rank {min(waiting)} has not come")
        for other in sorted(waiting):
            if store.check([f"fastmoco/asks/{other}"]):  # if this is of an earlier attempt, the next look finds ours
                store.set(f"fastmoco/name/{store.get(f'fastmoco/asks/{other}').decode()}", word)
            if store.check([f"fastmoco/knows/{word}/{other}"]):
                waiting.remove(other)
        time.sleep(0.02)
    return PrefixStore(word, store), number, ranks


@contextmanager
def losses_told() -> Iterator[None]:
    """What torch says in many words when another rank has gone, as one error in one line."""
    try:
        yield
    except RuntimeError as error:
        if GONE.search(str(error)):
            reason = "another process of this run has ended"
        elif isinstance(error, dist.DistError) or "gloo" in str(error):
            reason = f"the processes of this run have lost each other ({_brief(error)})"
        else:
            raise
        raise ConnectionError(f"{reason}; started again, the run goes on from its last checkpoint") from None


def _brief(error: Exception) -> str:
    """The first line of what torch says."""
    return next(iter(str(error).splitlines()), "")[:160]


def _first() -> bool:
    """Whether no other rank has asked this before."""
    try:
        return dist.distributed_c10d._get_default_store().add("told", 1) == 1
    except RuntimeError:  # the store has gone, and with it whoever kept it
        return leads()


def orphaned() -> bool:
    """Whether the launcher or the sweep that was our parent has gone."""
    return (dist.is_torchelastic_launched() or CHILD in os.environ) and os.getppid() != __parent__


def restarted() -> str:
    """Why a launcher has started this process again; nothing if it is the first time."""
    count = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) if launched() else 0
    again = f"restart {count} by torchrun, as a process had ended" if count else ""
    return os.environ.get("FASTMOCO_RESTARTED", again)
