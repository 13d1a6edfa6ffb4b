"""What happened since the last log line, on all ranks. Sums stay on the device, so that no step waits for them."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed import ReduceOp

from fastmoco import __began__
from fastmoco.distributed import grouped, total, world


class Meter:
    """Loss, gradient and time. The sums are part of a checkpoint: a line does not show that a run was interrupted."""

    def __init__(self, device: torch.device) -> None:
        self.losses = torch.zeros((), device=device)
        self.norm = torch.zeros((), device=device)  # of the last gradient, before it was clipped
        self.fine = torch.ones((), dtype=torch.bool, device=device)  # whether every number so far was finite
        self.steps = 0
        self.seconds = 0.0  # of training until the clock was started
        self.made = 0  # steps of this process
        self.first: dict[str, float] = {}  # when it had made its first step, for the line that this falls into
        self.start()

    def start(self) -> None:
        """Start the clock."""
        self.since = time.perf_counter()
        self.timed = 0  # steps
        self.waited = 0.0  # seconds, for data
        self.stood = 0.0  # seconds, for other ranks

    def turn(self) -> None:
        """Begin a new line."""
        self.seconds += self.elapsed()
        self.losses.zero_()
        self.steps = 0
        self.first = {}
        self.start()

    def count(self, loss: Float[Tensor, ""], norm: Float[Tensor, ""]) -> None:
        self.losses += loss
        self.norm = norm
        self.fine &= loss.isfinite() & norm.isfinite()
        self.steps += 1
        self.timed += 1
        self.made += 1
        if self.made == 1:
            self.losses.item()  # when the device has finished it
            self.first = {"perf/first_step": time.monotonic() - __began__}

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time that is spent waiting for data."""
        begun = time.perf_counter()
        yield
        self.waited += time.perf_counter() - begun

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Time that is spent waiting for other ranks."""
        begun = time.perf_counter()
        yield
        self.stood += time.perf_counter() - begun

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Time that is spent on something other than training."""
        begun = time.perf_counter()
        yield
        self.since += time.perf_counter() - begun

    def elapsed(self) -> float:
        return time.perf_counter() - self.since

    def pool(self) -> None:
        """Bring together what all ranks have seen: then each has the mean of the losses, and whether all were fine."""
        if grouped():
            self.losses = total(self.losses) / world()
            self.fine = total(self.fine.int(), ReduceOp.MIN).bool()
            self.waited = total(torch.tensor(self.waited), ReduceOp.MAX).item()  # the slowest one's is everyone's

    def broken(self) -> bool:
        return not self.fine.item()

    def read(self, batch: int) -> dict[str, float]:
        """The line so far. This waits for the device, so the time is that of all its work."""
        loss = self.losses.item() / max(1, self.steps)
        elapsed = max(self.elapsed(), 1e-9)
        return {
            "train/loss": loss,
            "train/grad_norm": self.norm.item(),
            "perf/images_per_second": self.timed * batch / elapsed,
            "perf/data_wait": self.waited / elapsed,
            **({"perf/peer_wait": self.stood / elapsed} if grouped() else {}),
            "perf/seconds": self.seconds + elapsed,
            "perf/memory_gib": self._memory() / 2**30,
            **self.first,
        }

    def _memory(self) -> int:
        """The most that tensors have taken of a GPU; without one, what the process takes now."""
        if self.losses.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.losses.device)
        try:
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:  # not Linux
            return 0

    def state(self) -> dict[str, Any]:
        return {"losses": self.losses, "steps": self.steps, "seconds": self.seconds + self.elapsed()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.losses.copy_(state["losses"])
        self.steps = state["steps"]
        self.seconds = state["seconds"]
