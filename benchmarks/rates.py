"""How many images one GPU trains on in a second, by the number of them in a batch.

What is timed is the step of a training: forward of both branches, backward, clipping, the optimiser, the target branch;
in bfloat16, channels last and compiled, as in `fastmoco pretrain`. The views are noise that lies on the device already:
reading and augmenting images is left out. The record is written after every batch.

With `--synchronised` the norms are those of a training on several GPUs, in a group of one. Nothing travels, but what
they cost besides is there: they are not compiled into one kernel with what is around them.

    python benchmarks/rates.py --out benchmarks/records/rates-h200.json
    python benchmarks/rates.py --synchronised --out benchmarks/records/rates-h200-synchronised.json
    python benchmarks/rates.py --encoder resnet18 --size 32 --batches 4,8 --seconds 60 --out rates.json    # on a CPU
"""

import argparse
import gc
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from circumstances import circumstances, write
from torch import Tensor, nn
from torch.nn.modules._functions import SyncBatchNorm as Together

from fastmoco import optim
from fastmoco.descent import descend
from fastmoco.learner import Learner
from fastmoco.norm import BatchNorm
from fastmoco.recipe import Recipe
from fastmoco.recipes import find

BATCHES = (256, 64, 512, 128, 32, 16)  # those without which no curve can be drawn come first
WARM, ROUNDS = 5, 3  # steps before the clock starts, after those that compile; rounds, of which the median counts


def main() -> None:
    flags = read_flags()
    recipe = find(flags.recipe).recipe
    sizes = [view.size if flags.size is None else flags.size for view in recipe.views]
    views = tuple(replace(view, size=size) for view, size in zip(recipe.views, sizes, strict=True))
    recipe = replace(recipe, views=views, encoder=flags.encoder or recipe.encoder)
    device = torch.device(flags.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    cuda = device.type == "cuda"
    if cuda:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
    record: dict[str, object] = {
        **circumstances(device, flags.commit),
        "recipe": flags.recipe,
        "encoder": recipe.encoder,
        "size": max(sizes),
        "precision": "bfloat16" if cuda else "float32",
        "compiled": flags.compile == "on" or (flags.compile == "auto" and cuda),
        "norms": "synchronised, in a group of one" if flags.synchronised else "plain",
    }
    if flags.synchronised:
        dist.init_process_group("nccl" if cuda else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    rates: list[dict[str, Any]] = []
    begun, longest = time.perf_counter(), 0.0
    for batch in flags.batches:
        started = time.perf_counter()
        left = flags.seconds - (started - begun)
        if rates and left < longest:
            print(f"stopped before batch {batch}: {left:.0f} s are left, and one has taken {longest:.0f} s", flush=True)
            break
        try:
            rate = measure(recipe, batch, device, bool(record["compiled"]), flags.synchronised, flags.round)
        except torch.OutOfMemoryError:
            print(f"batch {batch:4d}  does not fit", flush=True)
            continue
        rates.append(rate)
        write(flags.out, {**record, "rates": sorted(rates, key=lambda rate: rate["batch"])})
        longest = max(longest, time.perf_counter() - started)
        print(
            f"batch {batch:4d}  {rate['images_per_second']:8,.1f} img/s  {rate['milliseconds']:8.2f} ms a step  "
            f"{rate['peak_gib']:6.2f} GiB  {time.perf_counter() - started:4.0f} s in all",
            flush=True,
        )
    print(f"the record is in {flags.out}")
    if flags.synchronised:
        dist.destroy_process_group()


def measure(
    recipe: Recipe, batch: int, device: torch.device, compiled: bool, synchronised: bool, seconds: float
) -> dict[str, Any]:
    """The rate of one batch, and the parts of its step."""
    torch.manual_seed(0)
    cuda = device.type == "cuda"
    if cuda:  # nothing is left of the batch before; the number of graphs of one network is limited, too
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    learner = Learner(recipe).to(device).to(memory_format=torch.channels_last)
    if synchronised:
        synchronise(learner, device, compiled)
    if compiled:
        for branch in (learner.online, learner.momentum):
            for network in [] if branch is None else branch.children():
                network.compile(dynamic=False)
    optimizer = optim.build(recipe.optim, learner.online)
    views = [torch.randn(view.count, batch, 3, view.size, view.size, device=device) for view in recipe.views]

    def step() -> Tensor:
        loss, _ = descend(learner, optimizer, views, bf16=cuda)
        return loss

    def steps(count: int) -> float:
        """Seconds of so many."""
        finish(device)
        begun = time.perf_counter()
        for _ in range(count):
            loss = step()
        finish(device)
        assert loss.isfinite(), "a step that diverges may take another time"
        return time.perf_counter() - begun

    compiling = steps(2)
    pace = steps(WARM) / WARM
    count = max(2, round(seconds / pace))
    rounds = [steps(count) / count for _ in range(ROUNDS)]
    usual = median(rounds)
    return {
        "batch": batch,
        "images_per_second": round(batch / usual, 2),
        "milliseconds": round(1e3 * usual, 3),
        "rounds_milliseconds": [round(1e3 * each, 3) for each in rounds],
        "steps_a_round": count,
        "first_two_steps_seconds": round(compiling, 1),
        "peak_gib": round(peak(device) / 2**30, 2),
        "shares": take_apart(learner, optimizer, step, device, count),
    }


def synchronise(learner: Learner, device: torch.device, compiled: bool) -> None:
    """Norms as on several ranks, though there is one, for which both torch and fastmoco would take plain ones."""
    for parent in list(learner.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                if device.type == "cuda" and not compiled:
                    made = nn.SyncBatchNorm.convert_sync_batchnorm(child)
                    made.__class__ = Lonely
                else:
                    made = BatchNorm(child)
                setattr(parent, name, made)


class Lonely(nn.SyncBatchNorm):
    """Torch's own, which does all that it does among many."""

    def forward(self, x: Tensor) -> Tensor:
        self.num_batches_tracked.add_(1)
        running = self.running_mean, self.running_var
        return Together.apply(x, self.weight, self.bias, *running, self.eps, self.momentum, dist.group.WORLD, 1)


def take_apart(
    learner: Learner, optimizer: torch.optim.Optimizer, step: Callable[[], Tensor], device: torch.device, count: int
) -> dict[str, float]:
    """The parts of a step: forward of both branches, backward with clipping, the optimiser with the target branch.

    It is the very step that is timed, listened to where one part ends and the next begins.
    """
    marks: list[Mark] = []
    listeners = [
        learner.register_forward_hook(lambda *_: marks.append(mark(device))),
        optimizer.register_step_pre_hook(lambda *_: marks.append(mark(device))),
    ]
    for _ in range(count):
        marks.append(mark(device))
        step()
    marks.append(mark(device))
    finish(device)
    for listener in listeners:
        listener.remove()
    assert len(marks) == 3 * count + 1, "a step has a forward pass and a step of the optimiser"
    spent = [between(*each) for each in pairwise(marks)]
    parts = {"forward": spent[0::3], "backward": spent[1::3], "optimiser": spent[2::3]}
    return {name: round(sum(part) / sum(spent), 4) for name, part in parts.items()}


Mark = torch.cuda.Event | float  # a moment in the work of the device


def mark(device: torch.device) -> Mark:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(first: Mark, second: Mark) -> float:
    """Seconds."""
    return second - first if isinstance(first, float) else first.elapsed_time(second) / 1e3


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak(device: torch.device) -> int:
    """Bytes: the most that tensors have taken of a GPU, or that this process has ever taken of the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def read_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the record, a JSON file")
    add("--recipe", default="table4a/fast_moco")
    add("--encoder", default="", help="by default the recipe's")
    add("--size", type=int, help="pixels of a view; by default the recipe's")
    add("--batches", type=whole_numbers, default=BATCHES, help="images in a step, in the order of measuring: 256,64")
    add("--seconds", type=float, default=520, help="begin no batch that may end later than this")
    add("--round", type=float, default=3, help="seconds of a timed round; there are three, and the median counts")
    add("--compile", choices=("auto", "on", "off"), default="auto", help="auto is on with a GPU")
    add("--synchronised", action="store_true", help="with the norms of a training on several GPUs")
    add("--device", default="", help="by default a GPU if there is one")
    add("--commit", default="", help="of this tree; by default git is asked")
    return parser.parse_args()


def whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


if __name__ == "__main__":
    main()
