"""How many images one GPU trains on in a second, by the number of them in a batch.

What is timed is the step of a training: forward of both branches, backward, clipping, the optimiser, the target branch;
in bfloat16, channels last and compiled, as in `fastmoco pretrain`. It is not recorded by the GPU: on several it never
is, and the parts of a recording cannot be told apart. The views are noise that lies on the device already: reading and
augmenting images is left out. The record is written after every batch.

With `--synchronised` the norms are those of a training on several GPUs, in a group of one. Nothing travels, but what
they cost besides is there: they are not compiled into one kernel with what is around them.

    python benchmarks/rates.py --out benchmarks/records/rates-h200.json
    python benchmarks/rates.py --synchronised --out benchmarks/records/rates-h200-synchronised.json
    python benchmarks/rates.py --encoder resnet18 --size 32 --batches 4,8 --seconds 60 --out rates.json    # on a CPU
"""

import argparse
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules._functions import SyncBatchNorm as Together

from fastmoco.bench.clock import compete, enter
from fastmoco.bench.profile import stages
from fastmoco.bench.record import circumstances, save
from fastmoco.compose import compose
from fastmoco.engine import Engine, Gear
from fastmoco.learner import Learner
from fastmoco.machine import settle
from fastmoco.norm import BatchNorm
from fastmoco.recipe import Recipe

BATCHES = (256, 64, 512, 128, 32, 16)  # those without which no curve can be drawn come first
WARM, ROUNDS = 6, 3  # steps before the clock starts, after the first; rounds, of which the median counts


def main() -> None:
    flags = read_flags()
    recipe = compose(flags.recipe, [], None, None, flags.encoder, flags.size)
    device, bf16, compiled, _ = settle(flags.device, "auto", flags.compile, None)
    gear = Gear(device, bf16, compiled)
    record: dict[str, object] = {
        **circumstances(device, flags.commit),
        "recipe": flags.recipe,
        "encoder": recipe.encoder,
        "size": recipe.size(),
        "precision": "bfloat16" if bf16 else "float32",
        "compiled": compiled,
        "recorded": gear.graph,
        "norms": "synchronised, in a group of one" if flags.synchronised else "plain",
        "round_seconds": flags.round,
    }
    rates: list[dict[str, Any]] = []
    begun, longest = time.perf_counter(), 0.0
    for batch in flags.batches:
        started = time.perf_counter()
        left = flags.seconds - (started - begun)
        if rates and left < longest:
            print(f"stopped before batch {batch}: {left:.0f} s are left, and one has taken {longest:.0f} s", flush=True)
            break
        try:
            rate = measure(recipe, batch, gear, flags.synchronised, flags.round)
        except torch.OutOfMemoryError:
            print(f"batch {batch:4d}  does not fit", flush=True)
            continue
        rates.append(rate)
        save(flags.out, {**record, "rates": sorted(rates, key=lambda rate: rate["batch"])})
        longest = max(longest, time.perf_counter() - started)
        print(
            f"batch {batch:4d}  {rate['images_per_second']:8,.1f} img/s  {rate['milliseconds']:8.2f} ms a step  "
            f"{rate['peak_gib']:6.2f} GiB  {time.perf_counter() - started:4.0f} s in all",
            flush=True,
        )
    print(f"the record is in {flags.out}")


def measure(recipe: Recipe, batch: int, gear: Gear, synchronised: bool, seconds: float) -> dict[str, Any]:
    """The rate of one batch, and the parts of its step."""
    device = gear.device
    if gear.compile:  # nothing is left of the batch before; the number of graphs of one network is limited
        torch._dynamo.reset()
    torch.manual_seed(0)
    engine = Engine(Learner(recipe), gear)
    engine.start()  # before there is a group, which would bring gradients together, though there are no others
    if synchronised:
        synchronise(engine.learner, device, gear.compile)
    views = [torch.randn(view.count, batch, 3, view.size, view.size, device=device) for view in recipe.views]

    def step() -> Tensor:
        loss, _ = engine.step(0.1, views)  # at a rate with which it cannot diverge
        return loss

    with group_of_one(device) if synchronised else nullcontext():
        rated = enter("step", lambda: step, device, batch, WARM)
        compete([rated], device, seconds, ROUNDS)
        assert step().isfinite(), "a step that diverges may take another time"
        shares = stages(engine, step, max(2, round(seconds / rated.seconds)))
    return {
        "batch": batch,
        "images_per_second": round(batch / rated.seconds, 2),
        "milliseconds": round(1e3 * rated.seconds, 3),
        "rounds_milliseconds": [round(1e3 * each, 3) for each in rated.rounds],
        "first_seconds": round(rated.first, 1),
        "peak_gib": round(peak(device) / 2**30, 2),
        "shares": dict(zip(("forward", "backward", "optimiser"), shares.values(), strict=True)),
    }


@contextmanager
def group_of_one(device: torch.device) -> Iterator[None]:
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


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
    add("--device", default="auto", help="auto is a GPU if there is one")
    add("--commit", default="", help="of this tree; by default git is asked")
    return parser.parse_args()


def whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


if __name__ == "__main__":
    main()
