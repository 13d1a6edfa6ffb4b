"""Time and memory of contenders that take turns in one process, so that what else happens there happens to all."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch


@dataclass
class Contender:
    """One way to do a piece of work."""

    name: str
    work: Callable[[], object]  # one piece
    images: int  # in a piece; 0 if it is not about images
    first: float  # seconds of the first piece, in which things are compiled
    peak: int  # bytes of a GPU that it took at most, beyond what was there before
    rounds: list[float] = field(default_factory=list)  # seconds of a piece, in each round

    @property
    def seconds(self) -> float:
        """Of a piece, in the usual round."""
        return median(self.rounds)


def enter(
    name: str, make: Callable[[], Callable[[], object]], device: torch.device, images: int = 0, warm: int = 5
) -> Contender:
    """Make one that does pieces of work, and let it do a few."""
    free(device)
    there, begun = taken(device), time.perf_counter()
    work = make()
    work()
    finish(device)
    first = time.perf_counter() - begun
    for _ in range(warm):
        work()
    finish(device)
    return Contender(name, work, images, first, most(device) - there)


def compete(contenders: Sequence[Contender], device: torch.device, seconds: float = 2.0, rounds: int = 5) -> None:
    """Rounds of about so many seconds, one contender after another, and again."""
    pieces = [max(1, round(seconds / max(_span(each, 1, device), 1e-6))) for each in contenders]
    for _ in range(rounds):
        for contender, count in zip(contenders, pieces, strict=True):
            contender.rounds.append(_span(contender, count, device) / count)


def free(device: torch.device) -> None:
    """Let go of what no one needs any more, and begin to watch memory anew."""
    finish(device)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def taken(device: torch.device) -> int:
    """Bytes of a GPU that tensors take."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def most(device: torch.device) -> int:
    """Bytes of a GPU that tensors have taken at most since `free`."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def finish(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _span(contender: Contender, count: int, device: torch.device) -> float:
    """Seconds of so many pieces."""
    finish(device)
    begun = time.perf_counter()
    for _ in range(count):
        contender.work()
    finish(device)
    return time.perf_counter() - begun
