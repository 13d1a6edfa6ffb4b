"""`fastmoco bench step --profile`: where the time of a step goes, by stage, and on a GPU by the kind of kernel."""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fastmoco.bench.clock import finish
from fastmoco.bench.record import circumstances, save
from fastmoco.bench.step import facts
from fastmoco.engine import Engine, Gear
from fastmoco.flags import to_write
from fastmoco.learner import Learner
from fastmoco.printing import print_table
from fastmoco.recipe import Recipe

STEPS = 5

# The first that is found in a kernel's name says what it does. The names are cuDNN's, cuBLAS's and torch's.
KINDS = {
    "convolution, backward to the weights": r"wgrad",
    "convolution, backward to the maps": r"dgrad",
    "convolution, forward": r"fprop|implicit_gemm|cudnn.*conv|conv.*cudnn|nhwcAddPadding",
    "batch norm, activations and sums: what is done to each value": r"triton_poi",
    "batch norm, statistics and their gradients": r"triton_(red|per)|batch_norm",
    "matrix product": r"gemm|nvjet|splitKreduce|cutlass",
    "optimiser, target branch, clipping": r"multi_tensor|[Ff]used\w*(SGD|Adam)|lpnorm",
    "copy": r"Memcpy|Memset|copy_kernel|CatArray",
}
REST = "rest"


def measure(recipe: Recipe, gear: Gear, out: str, about: Mapping[str, Any], commit: str = "") -> dict[str, Any]:
    """Our step, not recorded, taken apart."""
    gear = replace(gear, graph=False)
    engine = Engine(Learner(recipe), gear)
    engine.start()
    shapes = [(view.count, recipe.batch, 3, view.size, view.size) for view in recipe.views]
    views = [torch.randn(shape, device=gear.device) for shape in shapes]

    def step() -> object:
        return engine.step(0.1, views)

    for _ in range(STEPS):
        step()
    record: dict[str, Any] = {"bench": "step, taken apart", **circumstances(gear.device, commit)}
    record |= {**facts(recipe, gear), **about, "stages": stages(engine, step)}
    print_table(["stage", ">share"], [[name, f"{share:.1%}"] for name, share in record["stages"].items()])
    if gear.device.type == "cuda":
        record["kinds"] = kinds(step, gear.device)
        lines = [[kind, f"{each['milliseconds']:.2f}", str(each["kernels"])] for kind, each in record["kinds"].items()]
        print_table(["kind of kernel", ">ms", ">kernels"], lines)
    if out:
        save(to_write(out), record)
        print(f"the record is in {out}")
    return record


def stages(engine: Engine, step: Callable[[], object], count: int = STEPS) -> dict[str, float]:
    """The share of each stage of a step that is not recorded; hooks mark where one ends and the next begins."""
    device, marks = engine.gear.device, []
    hooks = [
        engine.learner.register_forward_hook(lambda *_: marks.append(_mark(device))),
        engine.optimizer.register_step_pre_hook(lambda *_: marks.append(_mark(device))),
    ]
    for _ in range(count):
        marks.append(_mark(device))
        step()
    marks.append(_mark(device))
    finish(device)
    for hook in hooks:
        hook.remove()
    assert len(marks) == 3 * count + 1, "a step has one forward pass and one step of the optimiser"
    spent = [_between(*each) for each in pairwise(marks)]
    names = ("forward of both branches", "backward and clipping", "optimiser and target branch")
    return {name: round(sum(spent[place::3]) / sum(spent), 4) for place, name in enumerate(names)}


def kinds(work: Callable[[], object], device: torch.device) -> dict[str, dict[str, float]]:
    """Milliseconds of a GPU in a piece of work, and how many kernels, by what they do."""
    work()
    finish(device)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(STEPS):
            work()
        finish(device)
    spent: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for event in seen.key_averages():
        if event.device_time_total > 0:
            kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, event.key)), REST)
            spent[kind] += event.device_time_total / 1e3 / STEPS
            count[kind] += event.count / STEPS
    return {
        kind: {"milliseconds": round(value, 3), "kernels": round(count[kind])} for kind, value in spent.most_common()
    }


Mark = torch.cuda.Event | float


def _mark(device: torch.device) -> Mark:
    """A moment in the work of the device."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _between(first: Mark, second: Mark) -> float:
    """Seconds."""
    if isinstance(first, torch.cuda.Event):
        assert isinstance(second, torch.cuda.Event), "moments of one device"
        return float(first.elapsed_time(second)) / 1e3
    assert isinstance(second, float), "moments of one device"
    return second - first
