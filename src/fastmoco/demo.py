"""Seeing it learn without data and without a GPU: Fast-MoCo and MoCo v3 on drawn patterns, for the same time."""

import itertools
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastmoco.images import Source
    from fastmoco.recipe import Recipe

ANSWERS = ("val/knn_top1", "val/linear_top1")
STEPS = 15  # by which the time of an epoch is judged
ROWS = {"MoCo v3": "pocket/shapes_mocov3", "Fast-MoCo": "pocket/shapes"}


def demo(*, out: str = "runs/demo", seconds: float = 45, seed: int = 0) -> Path:
    """Pre-train on the built-in set `shapes` by MoCo v3 and by Fast-MoCo for the same time, and compare. No GPU needed.

    Args:
        out: the folder for the two run folders; if it exists, a new one beside it.
        seconds: seconds of training for each of the two.
        seed: the seed of weights, order of images and views.
    """
    import torch

    from fastmoco import data
    from fastmoco.command import pretrain
    from fastmoco.evaluate.judge import Judge
    from fastmoco.flags import place
    from fastmoco.journal import kept
    from fastmoco.learner import Learner
    from fastmoco.printing import print_table
    from fastmoco.recipes import find
    from fastmoco.run import fresh

    if not 0 < seconds < 10**6:
        raise ValueError(f"--seconds {seconds:g}: use a positive time, such as 45")
    source, folder = data.find("shapes"), fresh(place(out))
    torch.manual_seed(seed)
    untrained = Learner(find(ROWS["Fast-MoCo"]).recipe).online.encoder
    answer = Judge(source, 32, threads=1).all(untrained, None, torch.device("cpu"), halt=lambda: False)
    results: list[dict[str, Any]] = [{"name": "random init", "epochs": 0, "seconds": 0.0, **answer}]
    for name, row in ROWS.items():
        print(f"\n{name}", flush=True)
        epochs = max(1, int(seconds / time_epoch(find(row).recipe, source)))
        path = folder / row.rpartition("/")[2]
        pretrain("shapes", recipe=row, out=str(path), epochs=epochs, seed=seed, device="cpu", knn_every=epochs)
        records = kept(path / "metrics.jsonl")
        spent = max(record.get("perf/seconds", 0.0) for record in records)
        results.append({"name": name, "epochs": epochs, "seconds": spent, **records[-1]})
    (folder / "results.json").write_text(json.dumps({"seed": seed, "results": results}, indent=2) + "\n")
    print()
    lines = [
        [each["name"], str(each["epochs"]), *(f"{each[name]:.1f}" for name in ("seconds", *ANSWERS))]
        for each in results
    ]
    print_table(["", ">epochs", ">seconds", ">kNN", ">linear"], lines)
    print(f"\nTop-1 in percent on {len(source.val or ()):,} held-out images of 10 classes. The runs are in {folder}")
    return folder


def time_epoch(recipe: "Recipe", source: "Source") -> float:
    """Seconds that an epoch takes on this machine, judged by a few steps."""
    import torch

    from fastmoco.draws import Draws
    from fastmoco.engine import Engine, Gear
    from fastmoco.learner import Learner
    from fastmoco.loader import choose

    draws = Draws(recipe.views, recipe.batch, recipe.epochs, 0, len(source.train))
    cpu = torch.device("cpu")
    loader = choose(source.train, draws, cpu, way="resident", workers=1, compile=False)
    engine = Engine(Learner(recipe), Gear(cpu))
    engine.start()
    spans = []
    for batch in itertools.islice(loader.since(0), STEPS):
        begun = time.perf_counter()
        engine.step(1.0, loader.views(batch))
        spans.append(time.perf_counter() - begun)
    return statistics.median(spans) * draws.per_epoch  # the first steps are slower, and something may come between
