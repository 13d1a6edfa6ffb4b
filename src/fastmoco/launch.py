"""`--devices`: the same command as several processes on this machine, started by torchrun's own launcher."""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence

RESTARTS = 3  # after a process that was killed


def launch(devices: int, verb: str, given: Sequence[str], flags: Mapping[str, object]) -> None:
    """Run a command as so many processes, to its end. A mistake or a stop of theirs ends this process, too.

    A process that was killed, by the system that is out of memory for example, ends the attempt, and another begins.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    words = ["-m", "fastmoco", *verb.split(), *given, *spell(flags)]
    place = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": f"fastmoco-{os.getpid()}"}
    config = LaunchConfig(1, 1, devices, max_restarts=0, **place)  # type: ignore[arg-type]
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # we tell it, in a line
    with _environment(devices):
        for left in reversed(range(RESTARTS + 1)):
            try:
                elastic_launch(config, sys.executable)(*words)
                return
            except SignalException as stopped:
                raise KeyboardInterrupt(int(stopped.sigval)) from None
            except ChildFailedError as failed:
                number, failure = failed.get_first_failure()
                if failure.exitcode >= 0:  # it has told why
                    raise SystemExit(failure.exitcode) from None
                reason = f"rank {number} was ended by {signal.Signals(-failure.exitcode).name}"
                if not left:
                    raise ValueError(f"{reason}, after {RESTARTS} restarts; the same command goes on") from None
                os.environ["FASTMOCO_RESTARTED"] = reason
                print(f"fastmoco: {reason}; starting again", file=sys.stderr, flush=True)


def check(devices: int | None, device: str) -> bool:
    """Whether there is something to launch."""
    import torch

    from fastmoco.distributed import launched

    if devices is None:
        return False
    if devices < 1:
        raise ValueError(f"--devices {devices}: use 1 or more")
    if launched():
        raise ValueError(f"--devices {devices}: torchrun has started this already; leave it out")
    if devices > 1 and ":" in device:
        raise ValueError(
            f"--devices {devices} and --device {device}: each process takes its own; leave out one of them"
        )
    there = torch.cuda.device_count() if device != "cpu" else 0
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
            words += [flag, str(value)]
    return words


@contextlib.contextmanager
def _environment(devices: int) -> Iterator[None]:
    """Cores are shared, and what we set for the processes is taken back."""
    before = dict(os.environ)
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // devices)))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
