"""What the distributed path costs where there is nothing to distribute: a group of one process beside none.

Two trainings of the same recipe take turns in one process, so that what else happens on the machine happens to both:
one is plain, the other is in a group of one, with DistributedDataParallel, gathered targets and the agreement of ranks
before every step. A round is so many steps of one, from the loader to the log line. The ratio of each pair of rounds
counts, and the median of them is the answer.

    python benchmarks/group_of_one.py shapes --recipe pocket/shapes --out group-of-one.json
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from circumstances import circumstances, write

from fastmoco import distributed, meter
from fastmoco.command import compose
from fastmoco.data import find
from fastmoco.interrupts import Interrupts
from fastmoco.recipe import Recipe
from fastmoco.run import Run, settle
from fastmoco.train import Training

NAMES = ("plain", "group of one")


def main() -> None:
    flags = read_flags()
    recipe = compose(flags.recipe, [], None, flags.batch, flags.encoder, flags.size)
    device, bf16, compiled, workers = settle("auto", "auto", flags.compile, None)
    run = Run(device, bf16, compiled, "resident", workers, 0, 10**6, 10**6, 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        plain = begin(recipe, run, flags.data, Path(folder) / "plain", flags.warm)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        grouped = begin(recipe, run, flags.data, Path(folder) / "grouped", flags.warm)
        pairs = []
        for number in range(flags.rounds):
            first = number % 2  # who begins, in turn
            spent = {}
            for kind in (first, 1 - first):
                spent[kind] = steps(grouped, flags.steps) if kind else alone(plain, flags.steps)
            pairs.append((spent[0], spent[1]))
            print("  ".join(f"{NAMES[kind]} {recipe.batch / spent[kind]:9,.1f} img/s" for kind in (0, 1)), flush=True)
        dist.destroy_process_group()
    ratios = sorted(two / one for one, two in pairs)
    print(f"a step in a group of one takes {median(ratios):.4f} of a plain one; {ratios[0]:.4f} to {ratios[-1]:.4f}")
    record = {
        **circumstances(device, flags.commit),
        "recipe": flags.recipe,
        "encoder": recipe.encoder,
        "size": max(view.size for view in recipe.views),
        "batch": recipe.batch,
        "precision": "bfloat16" if bf16 else "float32",
        "compiled": compiled,
        "steps_a_round": flags.steps,
        "seconds_a_step": [{"plain": round(one, 6), "group of one": round(two, 6)} for one, two in pairs],
        "ratio": round(median(ratios), 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
    }
    write(flags.out, record)
    print(f"the record is in {flags.out}")


def begin(recipe: Recipe, run: Run, data: str, folder: Path, warm: int) -> Training:
    """A training that has made its first steps, those that compile among them."""
    folder.mkdir()
    training = Training(recipe, run, find(data), folder)
    training._load(Interrupts())
    print(f"{warm} steps to begin with: {warm * steps(training, warm):.0f} s", flush=True)
    return training


def steps(training: Training, count: int) -> float:
    """Seconds of one, by so many and a log line."""
    interrupts = Interrupts()
    finish(training.run.device)
    begun = time.perf_counter()
    for _ in range(count):
        batch = training._fetch()
        training._confer(interrupts, batch)
        training._advance(batch)
    training._log()
    finish(training.run.device)
    return (time.perf_counter() - begun) / count


def alone(training: Training, count: int) -> float:
    with _without_a_group():
        return steps(training, count)


@contextmanager
def _without_a_group() -> Iterator[None]:
    before = distributed.grouped
    distributed.grouped = meter.grouped = lambda: False
    try:
        yield
    finally:
        distributed.grouped = meter.grouped = before


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def read_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("data", metavar="DATA", help="what is trained on, as for `fastmoco pretrain`")
    add("--out", type=Path, required=True, help="the record, a JSON file")
    add("--recipe", default="pocket/photos")
    add("--batch", type=int, help="by default the recipe's")
    add("--encoder", default="", help="by default the recipe's")
    add("--size", type=int, help="by default the recipe's")
    add("--compile", choices=("auto", "on", "off"), default="auto")
    add("--rounds", type=int, default=10, help="pairs of rounds")
    add("--steps", type=int, default=20, help="steps of a round")
    add("--warm", type=int, default=8, help="steps before the first round")
    add("--commit", default="", help="of this tree; by default git is asked")
    return parser.parse_args()


if __name__ == "__main__":
    main()
