"""One call turns images into an encoder: the command `fastmoco pretrain`, and `fastmoco.pretrain` in Python."""

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fastmoco.compose import Settings, compose, flat, start, title
from fastmoco.flags import Data, Flag, Int, Str, Switch, place

if TYPE_CHECKING:
    from fastmoco.images import Source
    from fastmoco.recipe import Recipe, Row
    from fastmoco.run import Run

# The row that is taken for a set if none is asked for.
USUAL = {
    "shapes": "pocket/shapes",
    "cifar10": "pocket/cifar10",
    "cifar100": "pocket/cifar10",
    "stl10": "pocket/imagenette",
    "imagenette": "pocket/imagenette",
}
OTHERS = "pocket/photos"

# In Python also a Recipe, or a Row; both are made of torch, which is imported late.
Named = Annotated[str | object, tyro.conf.arg(constructor=str, metavar="STR", help_behavior_hint="")]


def pretrain(
    data: Data,
    *,
    recipe: Named = "",
    recipe_base: Str = "",
    out: Str = "",
    epochs: Int = None,
    batch: Annotated[int | None, tyro.conf.arg(metavar="INT", aliases=["-b"], help_behavior_hint="")] = None,
    encoder: Str = "",
    size: Int = None,
    set: Settings = (),
    seed: int = 0,
    devices: Int = None,
    device: str = "auto",
    precision: Literal["auto", "bf16", "float32"] = "auto",
    compile: Switch = "auto",
    graph: Switch = "auto",
    recompute: Flag = False,
    micro: int = 0,
    loader: Literal["auto", "stream", "resident"] = "auto",
    decode: Literal["cpu", "gpu"] = "cpu",
    workers: Int = None,
    log_every: int = 20,
    save_every: int = 500,
    keep_every: int = 0,
    knn_every: int = 10,
    download: Flag = False,
    fresh: Flag = False,
) -> Path:
    """Pre-train an encoder on images, without labels. The same command again goes on where it was stopped.

    Args:
        data: a folder of images, class folders with or without train/ and val/, a text list of paths, tar shards
            such as "shards-{000..099}.tar", or a set: shapes, cifar10, cifar100, stl10, imagenette.
        recipe: a row of `fastmoco recipes`, or your own file.py:name; by default one that suits the set.
        recipe_base: the row of all but the method, such as pocket/cifar10.
        out: the run folder; by default runs/ and names of set and row.
        epochs: passes over the set; by default the recipe's.
        batch: images in a step, of all devices together; the learning rate changes in proportion, unless it is --set.
        encoder: resnet50, timm/NAME, ...; by default the recipe's.
        size: pixels of a view; by default the recipe's.
        set: change any value, such as optim.lr=0.15.
        seed: the seed of weights, order of images and views.
        devices: how many GPUs of this machine share every batch.
        device: cpu, cuda, cuda:1, ...; auto is a GPU if any.
        precision: number type; auto is bf16 if a GPU has it.
        compile: use torch.compile; auto is on with a GPU.
        graph: record steps on a GPU; auto is on if it can.
        recompute: compute activations twice, for less memory.
        micro: images that the encoder sees at once, if it has no batch norm; all negatives stay. 0 is all.
        loader: stream reads files while training, resident keeps all pixels on the device; auto is what fits.
        decode: decode JPEGs on the CPU or the GPU.
        workers: how many read images, for each device; by default its part of the cores, and two without a GPU.
        log_every: steps from one line of numbers to the next.
        save_every: steps from one checkpoint to the next; the last and the one before are kept.
        keep_every: keep for good each checkpoint at a multiple of this many steps; 0 keeps none.
        knn_every: epochs from one judgement by nearest neighbours to the next, where there are labels; 0 is never.
        download: fetch a set such as cifar10 if it is absent.
        fresh: begin anew in a folder beside what there is.
    """
    given = dict(locals())

    from fastmoco import data as sets
    from fastmoco import run as runs
    from fastmoco.distributed import first_per_machine, same, together, world
    from fastmoco.launch import check, launch
    from fastmoco.machine import records_steps, settle
    from fastmoco.meeting import joined

    data, out = str(data), str(out)  # in Python, paths are welcome too
    if recipe_base and not recipe:
        raise ValueError(f"--recipe-base {recipe_base}: add --recipe, the row whose method is trained in its setting")
    row = _named(recipe) or USUAL.get(data, OTHERS)
    path = _place(data, row, recipe_base, out, fresh)
    if check(devices, device):
        if not isinstance(row, str):
            raise ValueError(f"devices={devices}: its processes do not see a recipe in Python; give 'file.py:name'")
        compose(row, flat(set), epochs, batch, encoder, size, recipe_base)  # whose mistakes need no processes
        flags = {**given, "out": path, "set": flat(set), "fresh": False, "devices": None}
        launch(devices or 1, "pretrain", [data], {name: flags[name] for name in flags if name != "data"})
        return path
    with joined():
        same({name: str(value) for name, value in given.items() if name not in ("device", "workers", "set")})
        with together():
            made = compose(row, flat(set), epochs, batch, encoder, size, recipe_base)
            runs.refuse_uneven_batch(made.batch, world())
            chosen, bf16, compiled, readers = settle(device, precision, compile, workers)
            run = runs.Run(
                device=chosen,
                bf16=bf16,
                compile=compiled,
                loader=loader,
                workers=readers,
                seed=seed,
                log_every=log_every,
                save_every=save_every,
                keep_every=keep_every,
                knn_every=knn_every,
                world=world(),
                graph=records_steps(graph, made, chosen, thrifty=bool(recompute or micro)),
                recompute=recompute,
                micro=micro,
                decode=decode,
            )
        with together(), first_per_machine():
            source = sets.find(data, download)
        with together():
            _refuse(made, run, source, data)
        _compare(made, run, source, data)
        named = title(row, recipe_base) + ", changed" * (made != start(row, recipe_base))
        _train(made, run, source, path, data, named)
    return path


def _place(data: str, row: "str | Row", base: str, out: str, fresh: bool) -> Path:
    """The run folder."""
    from fastmoco import run
    from fastmoco.distributed import launched

    if fresh and launched():
        raise ValueError("--fresh: a launcher that starts this again would begin anew, too; give a new --out")
    parts = (word(data), word(title(row)), f"in-{word(base)}" if base else "")
    path = place(out or f"runs/{'-'.join(filter(None, dict.fromkeys(parts)))}")
    return run.fresh(path) if fresh else path


def _train(recipe: "Recipe", run: "Run", source: "Source", path: Path, data: str, named: str) -> None:
    """In a folder that is ours alone."""
    from fastmoco.distributed import leads, together
    from fastmoco.images import fingerprint
    from fastmoco.memory import explained
    from fastmoco.run import occupy
    from fastmoco.train import Training

    about = {"data": data, "row": named, "seed": run.seed, **fingerprint(source.train)}
    with ExitStack() as stack:
        with together():
            if leads():
                stack.enter_context(occupy(path, recipe, run, about))
        stack.enter_context(explained(recipe, run))
        training = Training(recipe, run, source, path)
        training.journal.say(f"{data}: {source.words}")
        training.journal.say(
            f"{named}: {recipe.encoder}, epochs {recipe.epochs} x {training.draws.per_epoch:,} steps, "
            f"batch {recipe.batch}, learning rate {recipe.optim.lr:g}, seed {run.seed}"
        )
        training.journal.say(f"{path} on {run.words}")
        training.train()


def _compare(recipe: "Recipe", run: "Run", source: "Source", data: str) -> None:
    """Refuse what is not the same on all ranks: recipes in files, what "auto" means, images under one name."""
    from fastmoco.distributed import tell, together
    from fastmoco.images import fingerprint

    sets = (source.train, source.labelled, source.val)
    images = [None if each is None else fingerprint(each) for each in sets]
    here = (repr(recipe), (run.device.type, run.bf16, run.compile), images)
    theirs = tell(lambda: here)
    with together():
        if theirs[0] != here[0]:
            raise ValueError("--recipe or --set is another recipe here than for rank 0; give all machines the same")
        if theirs[1] != here[1]:
            raise ValueError(f"{run.words} here is not what rank 0 has; give --device, --precision and --compile")
        if theirs[2] != images:
            raise ValueError(f"{data} has other images here than for rank 0; give all the same")


def _refuse(recipe: "Recipe", run: "Run", source: "Source", data: str) -> None:
    """What cannot be trained, before anything is written."""
    import torch

    from fastmoco.learner import Learner
    from fastmoco.run import refuse_large_batch
    from fastmoco.thrift import spare

    images = len(source.train)
    if images < 2:
        raise ValueError(f"{data} has one image; there is nothing to tell it apart from, so give two or more")
    refuse_large_batch(recipe.batch, images)
    with torch.device("meta"):  # an encoder that does not exist, or cannot take such views, or not in parts
        spare(Learner(recipe), run.recompute, run.micro)


def _named(recipe: object) -> "str | Row":
    """A row by its name, or as it is."""
    if isinstance(recipe, str):
        return recipe
    from fastmoco.recipe import Recipe, Row

    if not isinstance(recipe, Recipe | Row):
        raise ValueError(f"recipe={recipe!r}: give the name of a row, file.py:name, or a Recipe")
    return Row(recipe) if isinstance(recipe, Recipe) else recipe


def word(text: str) -> str:
    """A name as part of a folder's name."""
    return re.sub(r"\W+", "-", Path(text.partition("{")[0]).name).strip("-") or "images"
