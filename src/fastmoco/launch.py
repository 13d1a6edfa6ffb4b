"""`--devices`: the same command as several processes on this machine, started by torchrun's own launcher."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

RESTARTS = 3  # after a process that was killed


def launch(devices: int, verb: str, given: Sequence[str], flags: Mapping[str, object]) -> None:
    """Run a command as so many processes, to its end. A mistake or a stop of theirs ends this process, too.

    A process that was killed, for example by a system out of memory, ends the attempt, and another begins.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    words = ["-m", "fastmoco", *verb.split(), *given, *spell(flags)]
    place = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": f"fastmoco-{os.getpid()}"}
    config = LaunchConfig(1, 1, devices, max_restarts=0, **place)  # type: ignore[arg-type]
    for name in logging.root.manager.loggerDict:
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # we tell it, in a line
    with _environment(devices):
        for left in reversed(range(RESTARTS + 1)):
            try:
                elastic_launch(config, sys.executable)(*words)
                return
            except SignalException as stopped:
                raise KeyboardInterrupt(int(stopped.sigval)) from None
            except ChildFailedError as failed:
                reason = _killed({rank: failure.exitcode for rank, failure in failed.failures.items()})
                if not reason:  # it was told why
                    raise SystemExit(failed.get_first_failure()[1].exitcode) from None
                if not left:
                    raise ValueError(f"{reason}, after {RESTARTS} restarts; the same command goes on") from None
                os.environ["FASTMOCO_RESTARTED"] = reason
                print(f"fastmoco: {reason}; starting again", file=sys.stderr, flush=True)


def _killed(codes: Mapping[int, int]) -> str:
    """Which rank was killed, if that is why all have ended: others end because of it, or by the launcher's SIGTERM."""
    from fastmoco.meeting import LOST

    for rank, code in sorted(codes.items()):
        if code < 0 and code != -signal.SIGTERM:
            return f"rank {rank} was ended by {signal.Signals(-code).name}"
    return "the processes had lost each other" if LOST in codes.values() else ""


def check(devices: int | None, device: str) -> bool:
    """Whether there is something to launch."""
    import torch

    from fastmoco.distributed import launched

    if devices is None:
        return False
    if type(devices) is not int or devices < 1:
        raise ValueError(f"--devices {devices}: use 1 or more")
    if launched():
        raise ValueError(f"--devices {devices}: torchrun has started this already; leave it out")
    if devices > 1 and ":" in device:
        raise ValueError(
            f"--devices {devices} and --device {device}: each process takes its own; leave out one of them"
        )
    there = torch.cuda.device_count() if device != "cpu" else 0
    if device == "cuda" and not there:
        raise ValueError(f"--device {device}: not on this machine; use auto, cpu, or a GPU that is there")
    if devices > 1 and not there and device != "cpu":
        raise ValueError(f"--devices {devices}: this machine has no GPU; leave it out, or add --device cpu")
    if 0 < there < devices:
        raise ValueError(f"--devices {devices}: this machine has {there}; use --devices {there}, or --device cpu")
    return devices > 1


def spell(flags: Mapping[str, object]) -> list[str]:
    """Flags as words of a command line; those that say nothing are left out."""
    words: list[str] = []
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif isinstance(value, (list, tuple)):
            words += [flag, *map(str, value)] if value else []
        elif value is not None and value is not False and value != "":
            words.append(f"{flag}={value}")  # in one word, as a value may begin with a dash
    return words


def cores() -> int:
    """Of this machine, those that we may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


@contextlib.contextmanager
def _environment(devices: int) -> Iterator[None]:
    """Cores are shared. What is set for the processes is taken back, and so are the signals that torch takes."""
    before = dict(os.environ)
    main = threading.current_thread() is threading.main_thread()
    taken = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT) if main else ()
    handlers = {each: signal.getsignal(each) for each in taken}
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // devices)))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        for each, handler in handlers.items():
            signal.signal(each, handler)
