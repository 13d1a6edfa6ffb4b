"""`fastmoco bench step`: one step of learning, on views that lie on the device already.

A step is forward of both branches, backward, clipping, the optimiser and the target branch. All contenders learn from
the same noise, and but for MoCo v3 they learn the same:

- "ours": as `fastmoco pretrain` computes it on this device.
- "MoCo v3, the same way": two whole views, so that it is seen what patches, or whatever else, cost.
- "not recorded", "not compiled": ours, step by step without what makes it fast.
- "as the official code": float32, of which a GPU may round convolutions as TF32, channels first, not compiled.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fastmoco.bench.clock import compete, enter
from fastmoco.bench.record import conclude
from fastmoco.contrast import InfoNCE
from fastmoco.engine import Engine, Gear
from fastmoco.learner import Learner
from fastmoco.methods import both, encode, mocov3
from fastmoco.recipe import Recipe
from fastmoco.target import Momentum

OFFICIAL = "as the official code"
WARM = 6  # pieces: a step is recorded after the first three


def measure(
    recipe: Recipe, gear: Gear, seconds: float, out: str, about: dict[str, Any], commit: str = ""
) -> dict[str, Any]:
    """All contenders in turn, in rounds of about so many seconds."""
    contenders = []
    for name, (row, how) in contest(recipe, gear).items():
        print(f"{name} ...", flush=True)
        contenders.append(enter(name, working(row, how, name == OFFICIAL), gear.device, recipe.batch, WARM))
    compete(contenders, gear.device, seconds)
    return conclude("step", contenders, gear.device, {**facts(recipe, gear), **about}, out, commit)


def contest(recipe: Recipe, gear: Gear) -> dict[str, tuple[Recipe, Gear]]:
    """Who takes part: what is learnt, and how it is computed."""
    whole = replace(
        recipe,
        views=both(encode, size=recipe.size()),
        target=recipe.target if isinstance(recipe.target, Momentum) else mocov3.target,
        contrast=recipe.contrast if isinstance(recipe.contrast, InfoNCE) else mocov3.contrast,
        pairs=mocov3.pairs,
        support=0,
    )
    found = {"ours": (recipe, gear)}
    if whole != recipe:
        found["MoCo v3, the same way"] = whole, gear
    if gear.graph:
        found["not recorded"] = recipe, replace(gear, graph=False)
    if gear.compile:
        found["not compiled"] = recipe, replace(gear, graph=False, compile=False)
    found[OFFICIAL] = recipe, Gear(gear.device, channels_last=False)
    return found


def working(recipe: Recipe, gear: Gear, exact: bool = False) -> Callable[[], Callable[[], object]]:
    """Makes an engine that takes steps on noise."""

    def make() -> Callable[[], object]:
        shapes = [(view.count, recipe.batch, 3, view.size, view.size) for view in recipe.views]
        views = [torch.randn(shape, device=gear.device) for shape in shapes]
        step = stepping(recipe, gear, exact)
        return lambda: step(views)

    return make


def stepping(recipe: Recipe, gear: Gear, exact: bool = False) -> Callable[[Sequence[Tensor]], object]:
    """An engine's step. If it is to be exact, with matrix products in full float32, as torch has it by default."""
    torch.manual_seed(0)
    engine = Engine(Learner(recipe), gear)
    engine.start()

    def step(views: Sequence[Tensor]) -> object:
        with _highest() if exact else nullcontext():
            return engine.step(0.1, views)  # at a rate with which it cannot diverge

    return step


@contextmanager
def _highest() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def facts(recipe: Recipe, gear: Gear) -> dict[str, Any]:
    """What is computed, and how."""
    return {
        "encoder": recipe.encoder,
        "size": recipe.size(),
        "batch": recipe.batch,
        "samples": len(recipe.samples()),
        "precision": "bfloat16" if gear.bf16 else "float32",
        "compiled": gear.compile,
        "recorded": gear.graph,
    }
