"""How many images a second a step learns from, by what grows: the batch, the image, the patches.

A step is that of `fastmoco bench step`, on noise that lies on the device already: Fast-MoCo with two views. Each
question changes one thing, and the first of `--batches` and of `--sizes` is what stays the same while another grows:

- batch: images in a step;
- size: pixels of a side;
- patches: m x m of them, n combined. Cost is shown by the samples that come of it, beside MoCo v3, which has whole
  views. Where m does not divide the size, the next larger one that it does divide is taken.

By default a GPU records a step and nothing is compiled: each shape would take more than a minute to compile, and how
cost grows is the same question. The record says so. It is written after every point, and what does not fit into
memory is a point, too.

    python benchmarks/growth.py --out benchmarks/records/growth-h200.json --seconds 0.6
    python benchmarks/growth.py --draw docs/growth.png benchmarks/records/growth-h200.json
    python benchmarks/growth.py --encoder resnet18 --batches 4,8 --sizes 32,64 --patches-size 36 --out growth.json
"""

import argparse
import gc
import json
import time
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from fastmoco import plots
from fastmoco.bench.clock import compete, enter
from fastmoco.bench.record import circumstances, save
from fastmoco.bench.step import working
from fastmoco.engine import Gear
from fastmoco.machine import records_steps, settle
from fastmoco.methods import both, encode, fast_moco
from fastmoco.recipe import Recipe
from fastmoco.steps import Combine, Divide, Encode, Predict, Project

# In the order of measuring: those without which no curve can be drawn come first, what may not fit comes last.
BATCHES = (256, 64, 512, 128, 1024)
SIZES = (224, 96, 288, 160, 128, 192)
PATCHES = ((2, 2), (1, 1), (3, 2), (2, 1), (3, 4), (2, 4), (3, 1), (2, 3))  # m and n; 1, 1 is MoCo v3
QUESTIONS = ("batch", "size", "patches")
WARM, ROUNDS = 4, 3  # steps after the first, the third of which is recorded; rounds, of which the median counts


@dataclass(frozen=True)
class Point:
    batch: int
    size: int
    m: int = 2
    n: int = 2

    def recipe(self, encoder: str) -> Recipe:
        patches = (Divide(self.m), Encode(), Combine(self.n), Project(), Predict())
        views = both(encode if self.m == 1 else patches, size=self.size)
        return replace(fast_moco, views=views, batch=self.batch, encoder=encoder)


def plan(
    batches: tuple[int, ...], sizes: tuple[int, ...], patches_size: int, only: tuple[str, ...]
) -> dict[Point, list[str]]:
    """The points in the order of measuring, a few of each question in turn, and the questions that each answers."""
    asked = {
        "batch": [Point(batch, sizes[0]) for batch in batches],
        "size": [Point(batches[0], size) for size in sizes],
        "patches": [Point(batches[0], -(-patches_size // m) * m, m, n) for m, n in PATCHES],
    }
    found: dict[Point, list[str]] = {}
    for turn in zip_longest(*(asked[name] for name in only)):
        for name, point in zip(only, turn, strict=True):
            if point is not None:
                found.setdefault(point, []).append(name)
    return found


def main() -> None:
    flags = read_flags()
    if flags.draw:
        figure, source = map(Path, flags.draw)
        plots.growth(json.loads(source.read_text()), figure)
        print(f"the figure is in {figure}")
        return
    device, bf16, compiled, _ = settle("auto", "auto", flags.compile, None)
    first, *_ = points = plan(flags.batches, flags.sizes, flags.patches_size or flags.sizes[0], flags.only)
    gear = Gear(device, bf16, compiled, records_steps(flags.graph, first.recipe(flags.encoder), device, thrifty=False))
    record: dict[str, Any] = {
        "bench": "growth",
        **circumstances(device, flags.commit),
        "encoder": flags.encoder,
        "precision": "bfloat16" if bf16 else "float32",
        "compiled": compiled,
        "recorded": gear.graph,
        "round_seconds": flags.seconds,
        "points": [],
    }
    for point, asked in points.items():
        begun = time.perf_counter()
        recipe = point.recipe(flags.encoder)
        found = measure(recipe, gear, flags.seconds)
        record["points"].append({"asked": asked, **asdict(point), "samples": len(recipe.samples()), **found})
        save(flags.out, record)
        print(f"{describe(record['points'][-1])}  {time.perf_counter() - begun:4.0f} s in all", flush=True)
    print(f"the record is in {flags.out}")


def measure(recipe: Recipe, gear: Gear, seconds: float) -> dict[str, Any]:
    """The rate of one point, and its peak of memory on a GPU."""
    free(gear)
    try:
        step = enter("step", working(recipe, gear), gear.device, recipe.batch, WARM)
        compete([step], gear.device, seconds, ROUNDS)
    except (torch.OutOfMemoryError, ValueError) as error:
        if not starved(error):
            raise
        return {"fits": False}
    return {
        "fits": True,
        "images_per_second": round(recipe.batch / step.seconds, 2),
        "milliseconds": round(1e3 * step.seconds, 4),
        "rounds_milliseconds": [round(1e3 * each, 4) for each in step.rounds],
        **({"peak_gib": round(step.peak / 2**30, 3)} if step.peak else {}),
        "first_seconds": round(step.first, 2),
    }


def starved(error: BaseException | None) -> bool:
    """Whether memory was the reason, also where a recording has failed for it and says so in its own words."""
    return error is not None and (isinstance(error, torch.OutOfMemoryError) or starved(error.__context__))


def free(gear: Gear) -> None:
    """Nothing is left of the point before; the number of graphs of one network is limited, too."""
    if gear.compile:
        torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def describe(point: dict[str, Any]) -> str:
    what = f"batch {point['batch']:4d}  {point['size']:3d} px  m {point['m']}  n {point['n']}"
    if not point["fits"]:
        return f"{what}  does not fit"
    return f"{what}  {point['images_per_second']:8,.1f} img/s  {point.get('peak_gib', 0):6.2f} GiB"


def read_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--out", type=Path, help="the record, a JSON file")
    add("--draw", nargs=2, metavar=("FIGURE", "RECORD"), help="draw a record, and measure nothing")
    add("--encoder", default="resnet50")
    add("--batches", type=whole_numbers, default=BATCHES, help="images in a step, in the order of measuring")
    add("--sizes", type=whole_numbers, default=SIZES, help="pixels of a side, likewise")
    add("--patches-size", type=int, help="pixels of a side where patches are asked about; by default the first size")
    add("--only", type=questions, default=QUESTIONS, help="some of batch,size,patches")
    add("--compile", choices=("on", "off"), default="off")
    add("--graph", choices=("auto", "on", "off"), default="auto", help="auto is on with a GPU")
    add("--seconds", type=float, default=1, help="of a timed round; there are three, and the median counts")
    add("--commit", default="", help="of this tree; by default git is asked")
    flags = parser.parse_args()
    if not flags.draw and not flags.out:
        parser.error("give --out for a record, or --draw for a figure of one")
    return flags


def whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def questions(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if not set(chosen) <= set(QUESTIONS):
        raise argparse.ArgumentTypeError(f"{text!r}: use some of {','.join(QUESTIONS)}")
    return chosen


if __name__ == "__main__":
    main()
