"""`fastmoco bench`: how fast each part is on this machine, beside how others do it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from fastmoco.command import USUAL
from fastmoco.compose import Settings, compose, flat
from fastmoco.flags import Data, Flag, Int, Str, Switch, place

if TYPE_CHECKING:
    import torch

    from fastmoco.recipe import Recipe
    from fastmoco.run import Run

SMALLEST = 16  # pixels of a view that every contender can blur
_OUT = "a file for the record, in JSON; by default none is written."
Out = Annotated[str, tyro.conf.arg(help=_OUT, help_behavior_hint="")]
_COMMIT = "the commit that is measured; by default git is asked."
Commit = Annotated[str, tyro.conf.arg(help=_COMMIT, help_behavior_hint="")]
_DEVICE = "cpu, cuda, cuda:1, ...; auto is a GPU if there is one."
Device = Annotated[str, tyro.conf.arg(help=_DEVICE)]
_SECONDS = "seconds that a round of each contender takes."
Seconds = Annotated[float, tyro.conf.arg(help=_SECONDS)]
Record = dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """What is learnt, and how ours computes it."""

    recipe: Str = ""
    """a row of `fastmoco recipes`; by default what suits the set, else pocket/photos, without a GPU pocket/shapes."""
    batch: Int = None
    """images in a step; by default the recipe's."""
    encoder: Str = ""
    """resnet50, timm/NAME, ...; by default the recipe's."""
    size: Int = None
    """pixels of a view; by default the recipe's."""
    set: Settings = ()
    """change any value of the recipe, such as optim.lr=0.15."""
    device: Device = "auto"
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """the type of numbers; auto is bf16 where a GPU has it."""
    compile: Switch = "auto"
    """use torch.compile; auto is on with a GPU."""
    graph: Switch = "auto"
    """let a GPU record the kernels of a step; auto is on where that can be."""


Shared = Annotated[Setup, tyro.conf.arg(name="")]
PLAIN = Setup()


def step(
    *,
    setup: Shared = PLAIN,
    profile: Flag = False,
    seconds: Seconds = 2.0,
    out: Out = "",
    commit: Commit = "",
) -> Record:
    """One step of learning, beside MoCo v3's, and beside the way that the official code computes it.

    Args:
        profile: take our step apart, in place of comparing it.
    """
    from fastmoco.bench import profile as parts
    from fastmoco.bench import step as bench
    from fastmoco.bench.record import near

    _refuse(out, seconds, {})
    row, made, run = _settle(setup)
    if profile:
        return parts.measure(made, run.gear, out, {"recipe": near(row)}, commit)
    return bench.measure(made, run.gear, seconds, out, {"recipe": near(row)}, commit)


def augment(
    *,
    size: int = 224,
    batch: Int = None,
    device: Device = "auto",
    compile: Switch = "auto",
    seconds: Seconds = 2.0,
    out: Out = "",
    commit: Commit = "",
) -> Record:
    """One augmented view of a batch, beside kornia's and torchvision's.

    Args:
        size: pixels of a view.
        batch: images in the batch; by default 256 with a GPU, and 32 without.
        compile: use torch.compile for ours; auto is on with a GPU.
    """
    from fastmoco.bench import augment as bench
    from fastmoco.machine import settle

    _refuse(out, seconds, {"size": size, "batch": batch})
    if size < SMALLEST:
        raise ValueError(f"--size {size}: kornia blurs no smaller images; use {SMALLEST} pixels or more")
    chosen, _, compiled, _ = settle(device, "auto", compile, None)
    return bench.measure(size, batch or _many(chosen), chosen, compiled, seconds, out, commit)


def loader(
    data: Data,
    *,
    size: int = 224,
    batch: Int = None,
    workers: Int = None,
    device: Device = "auto",
    seconds: Seconds = 5.0,
    out: Out = "",
    commit: Commit = "",
) -> Record:
    """Images a second from files to two views, beside a loader of PIL and torchvision.

    Args:
        data: images, as for `fastmoco pretrain`.
        size: pixels of a view.
        batch: images that are loaded together; by default 256 with a GPU, and 32 without.
        workers: how many read images; by default its part of the cores, 16 at most, and two without a GPU.
    """
    from fastmoco.bench import loader as bench
    from fastmoco.machine import settle

    _refuse(out, seconds, {"size": size, "batch": batch})
    chosen, _, _, readers = settle(device, "auto", "off", workers)
    return bench.measure(str(data), size, batch or _many(chosen), readers, chosen, seconds, out, commit)


def train(
    data: Data,
    *,
    setup: Shared = PLAIN,
    loader: Literal["auto", "stream", "resident"] = "auto",
    decode: Literal["cpu", "gpu"] = "cpu",
    workers: Int = None,
    log_every: int = 20,
    seconds: Annotated[float, tyro.conf.arg(help="seconds of training, after its first log line.")] = 30.0,
    out: Out = "",
    commit: Commit = "",
) -> Record:
    """A real training from files to log lines, beside its step alone, and beside a plain loop.

    Args:
        data: images, as for `fastmoco pretrain`.
        loader: stream reads files while training, resident keeps all pixels on the device; auto is what fits.
        decode: who decodes JPEGs: the CPU's workers, or the GPU.
        workers: how many read images; by default its part of the cores, 16 at most, and two without a GPU.
        log_every: steps from one line of numbers to the next.
    """
    from fastmoco.bench import train as bench

    _refuse(out, seconds, {})
    data = str(data)
    row, made, run = _settle(setup, data, workers)
    others = {"loader": loader, "decode": decode, "workers": workers, "log_every": log_every}
    flags = {**{each.name: getattr(setup, each.name) for each in fields(setup)}, **others, "recipe": row}
    return bench.measure(data, made, run, flags, seconds, out, commit)


def evaluate(
    *,
    images: Int = None,
    queries: Int = None,
    width: int = 2048,
    classes: int = 1000,
    epochs: int = 100,
    device: Device = "auto",
    out: Out = "",
    commit: Commit = "",
) -> Record:
    """Nearest neighbours and a cached linear classifier on drawn features, beside plain loops.

    Args:
        images: features to learn from; by default as many as ImageNet has with a GPU, and 10,000 without.
        queries: features to be tested by; by default 50,000 with a GPU, and 1,000 without.
        width: numbers in a feature.
        classes: how many classes the features are of.
        epochs: epochs of the linear classifier.
    """
    from fastmoco.bench import evaluate as bench
    from fastmoco.machine import settle

    _refuse(out, 1.0, {})
    chosen, *_ = settle(device, "auto", "off", None)
    cuda = chosen.type == "cuda"
    many = (1_281_167 if cuda else 10_000) if images is None else images
    few = (50_000 if cuda else 1_000) if queries is None else queries
    return bench.measure(many, few, width, classes, epochs, chosen, out, commit)


def _settle(setup: Setup, data: str = "", workers: int | None = None) -> "tuple[str, Recipe, Run]":
    """The row, the recipe and the run that flags mean, as `fastmoco pretrain` would have them."""
    from fastmoco.machine import records_steps, settle
    from fastmoco.run import Run

    device, bf16, compiled, readers = settle(setup.device, setup.precision, setup.compile, workers)
    row = setup.recipe or USUAL.get(data) or ("pocket/photos" if device.type == "cuda" else "pocket/shapes")
    recipe = compose(row, flat(setup.set), None, setup.batch, setup.encoder, setup.size)
    run = Run(
        device=device,
        bf16=bf16,
        compile=compiled,
        loader="auto",
        workers=readers,
        seed=0,
        log_every=1,
        save_every=1,
        keep_every=0,
        knn_every=0,
        graph=records_steps(setup.graph, recipe, device, thrifty=False),
    )
    return row, recipe, run


def _many(device: "torch.device") -> int:
    """Images of a batch, if no one says: a CPU has enough to do with few."""
    return 256 if device.type == "cuda" else 32


def _refuse(out: str, seconds: float, counts: Mapping[str, int | None]) -> None:
    """What cannot be measured, or not be written, before minutes are spent on it."""
    path = place(out).absolute()
    there = next(each for each in path.parents if each.exists())
    if out and (path.is_dir() or not there.is_dir() or not os.access(there, os.W_OK)):
        raise ValueError(f"--out {out} cannot be written; give a file in a folder that can")
    if not 0 < seconds < 10**6:
        raise ValueError(f"--seconds {seconds:g}: use a positive time, such as 2")
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"--{name} {count}: use 1 or more")
