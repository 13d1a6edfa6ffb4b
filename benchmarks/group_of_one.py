"""What the distributed path costs where there is nothing to distribute: a group of one process beside none.

Two processes hold the same training, one plain, the other in a group of one: with DistributedDataParallel and networks
compiled for it, gathered targets, and the agreement of ranks before every step. They take turns, so that what else
happens on the machine happens to both. A round is so many steps of one, from the loader to the log line. The ratio of
each pair of rounds counts, and the median of them is the answer.

Neither is recorded by a GPU. The steps of a group never are, and a plain training that is would gain by that, too.

    python benchmarks/group_of_one.py shapes --recipe pocket/shapes --out group-of-one.json
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch.distributed as dist

from fastmoco.bench.clock import finish
from fastmoco.bench.record import circumstances, save
from fastmoco.compose import compose
from fastmoco.data import find
from fastmoco.loader import Batch
from fastmoco.machine import settle
from fastmoco.run import Run
from fastmoco.train import Training

NAMES = ("plain", "group of one")


def main() -> None:
    flags = read_flags()
    if flags.take_part:
        take_part(flags)
    else:
        compare(flags)


def compare(flags: argparse.Namespace) -> None:
    both = [Partner(name) for name in NAMES]
    for name, partner in zip(NAMES, both, strict=True):
        print(f"{name}: {flags.warm} steps to begin with took {partner.answer():.0f} s", flush=True)
    pairs = []
    for number in range(flags.rounds):
        order = both if number % 2 == 0 else both[::-1]  # they begin in turn
        spent = {partner.name: partner.round() for partner in order}
        pairs.append(spent)
        print("  ".join(f"{name} {1e3 * spent[name]:8.3f} ms a step" for name in NAMES), flush=True)
    for partner in both:
        partner.process.communicate()
    ratios = sorted(each["group of one"] / each["plain"] for each in pairs)
    print(f"a step in a group of one takes {median(ratios):.4f} of a plain one; {ratios[0]:.4f} to {ratios[-1]:.4f}")
    run, recipe = circumstances_of(flags)
    record = {
        **circumstances(run.device, flags.commit),
        "recipe": flags.recipe,
        "encoder": recipe.encoder,
        "size": recipe.size(),
        "batch": recipe.batch,
        "precision": "bfloat16" if run.bf16 else "float32",
        "compiled": run.compile,
        "recorded": run.graph,
        "steps_a_round": flags.steps,
        "seconds_a_step": [{name: round(each[name], 6) for name in NAMES} for each in pairs],
        "ratio": round(median(ratios), 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
    }
    save(flags.out, record)
    print(f"the record is in {flags.out}")


class Partner:
    """One of the two, in a process of its own: a line asks for a round, and a line says what it took."""

    def __init__(self, name: str) -> None:
        self.name = name
        words = [sys.executable, *sys.argv, "--take-part", name]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def round(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} has ended with {self.process.wait()}")
        return float(line)


def take_part(flags: argparse.Namespace) -> None:
    """Make steps when asked, and tell the seconds of one."""
    run, recipe = circumstances_of(flags)
    if flags.take_part == "group of one":
        backend = "cpu:gloo,cuda:nccl" if run.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        training = Training(recipe, run, find(flags.data), Path(folder))
        training.engine.start()  # which is what joins the group
        batches = training._load()
        print(flags.warm * steps(training, batches, flags.warm), flush=True)
        for _ in sys.stdin:
            print(steps(training, batches, flags.steps), flush=True)
        training.journal.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def circumstances_of(flags: argparse.Namespace) -> tuple:
    device, bf16, compiled, workers = settle("auto", "auto", flags.compile, None)
    run = Run(device, bf16, compiled, "resident", workers, 0, 10**6, 10**6, 0, 0, graph=False)
    return run, compose(flags.recipe, [], None, flags.batch, flags.encoder, flags.size)


def steps(training: Training, batches: Iterator[Batch], count: int) -> float:
    """Seconds of one, by so many and a log line."""
    finish(training.run.device)
    begun = time.perf_counter()
    for _ in range(count):
        with training.meter.waiting():
            batch = next(batches)
        training._confer(batch)
        training._advance(batch)
    training._log()
    finish(training.run.device)
    return (time.perf_counter() - begun) / count


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
    add("--take-part", choices=NAMES, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
