"""`fastmoco sweep`: the rows of tables, trained one after another with several seeds, and what they came to."""

import hashlib
import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from fastmoco.command import USUAL, word
from fastmoco.compose import Settings, find_base, flat, start
from fastmoco.flags import Flag, Float, Int, Str, Switch, place, to_write
from fastmoco.trials.checks import refuse_flags, refuse_means, refuse_misfits, refuse_own_parts, refuse_room
from fastmoco.trials.crew import Outcome, Task, work
from fastmoco.trials.job import FINDINGS, Entry, Job, Means, Sweep
from fastmoco.trials.ledger import Ledger

if TYPE_CHECKING:
    from fastmoco.images import Source
    from fastmoco.recipe import Recipe
    from fastmoco.trials.findings import Finding

What = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="WHAT ...", help_behavior_hint="")]
Lengths = Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...", help_behavior_hint="")]
Evaluation = Literal["knn", "cached", "linear", "encoders"]


def sweep(
    what: What,
    *,
    recipe_base: Str = "",
    data: Str = "",
    seeds: int = 3,
    first_seed: int = 0,
    epochs: Lengths = (),
    batch: Int = None,
    set: Settings = (),
    evaluate: tuple[Evaluation, ...] = ("knn", "cached"),
    jobs: int = 1,
    beside: int = 0,
    minutes: Float = None,
    knn_every: Int = None,
    device: str = "auto",
    precision: Literal["auto", "bf16", "float32"] = "auto",
    compile: Switch = "auto",
    graph: Switch = "auto",
    workers: Int = None,
    records: Str = "",
    out: Str = "",
    commit: Str = "",
    download: Flag = False,
    dry_run: Flag = False,
) -> None:
    """Train the rows of tables with several seeds, evaluate each, and keep what was found. The same command goes on.

    Args:
        what: tables and rows, such as table4a table4b/mocov3; or your own file.py, file.py:name.
        recipe_base: a row such as pocket/imagenette that brings all but the method of each row.
        data: the images, as in pretrain; by default the set that the base is named after.
        seeds: how often each row is trained.
        first_seed: the lowest seed.
        epochs: epochs of all rows, or several lengths, such as 100 200 400; by default the base's.
        batch: images in a step, for all rows; the learning rate changes in proportion, unless it is --set.
        set: change a value of all recipes, such as optim.lr=0.15.
        evaluate: what each is judged by: nearest neighbours, a cached linear classifier, the full linear protocol;
            encoders are the target branch and recalibrated statistics beside the plain encoder; without a value, by
            what training tells only.
        jobs: trainings at once on one device; their times are then no measure of speed.
        beside: how many others are at work on the device, such as those of another sweep, for the record.
        minutes: the time for all: no row begins that would end later, and what is at work then saves and ends.
        knn_every: epochs from one judgement to the next; by default a tenth of them.
        device: cpu, cuda, cuda:1, ...; auto is a GPU if any.
        precision: the type of numbers; auto is bf16 where a GPU has it.
        compile: use torch.compile; auto is on with a GPU.
        graph: let a GPU record a step; auto is on if it can.
        workers: how many read images, for each training; by default its part of the cores.
        records: the file of findings; by default runs/findings/ and the name of the set.
        out: the folder of the run folders; by default runs/sweep- and the name of the set.
        commit: the commit that is trained; by default git is asked.
        download: fetch a set such as cifar10 if it is absent.
        dry_run: only list what would be trained.
    """
    command = _spell(dict(locals()))

    from fastmoco import data as sets
    from fastmoco.bench.record import commit_here
    from fastmoco.images import fingerprint, glance
    from fastmoco.launch import cores

    refuse_flags(what, seeds, jobs, beside, minutes, knn_every)
    part = max(1, cores() // (jobs + beside)) if jobs + beside > 1 else None  # of the cores
    means = Means(device, precision, compile, graph, part if workers is None else workers)
    refuse_means(means, first_seed)
    commit = commit or commit_here()  # asked now: it may be another when a training ends
    settings, lengths = tuple(flat(set)), dict.fromkeys(epochs) or (None,)
    rows = _carried(what, recipe_base)
    recipes = _recipes(Entry(row, recipe_base, length, batch, settings) for length in lengths for row in rows)
    data = str(data) or _suited(recipe_base, [entry.row for entry in recipes])
    if not data:
        raise ValueError("--data: say which images; only a base such as pocket/imagenette has a set of its own")
    source = sets.find(data, download)
    if evaluate:
        _refuse_unlabelled(source, data)
    known = fingerprint(source.train)
    file = to_write(records or f"{FINDINGS}/{word(data)}.jsonl")
    ledger = Ledger(file, int(known["images"]), str(known["names"]), glance(source.train))
    folder = place(out or f"runs/sweep-{word(data)}")
    refuse_own_parts(recipes)
    refuse_misfits(recipes, ledger)
    if not dry_run:
        refuse_room(ledger, folder)
    common = Sweep(data, ledger.images, ledger.pixels, knn_every or 0, jobs + beside, commit, command, means)
    tasks = _tasks(common, recipes, range(first_seed, first_seed + seeds), evaluate, ledger, folder)
    # To collect also adds to the file what is only in a run folder.
    look = ledger.known if dry_run else ledger.collect
    todo = [task for task in tasks if look(task) is None]
    print(f"{data}: {source.words}\ntrainings: {len(tasks)}, with a record: {len(tasks) - len(todo)}", flush=True)
    for task in todo:
        older = ledger.find(task.recipe, task.job.seed)
        if dry_run or older:
            print(f"{task.place}  {task.words}{_state(task, older)}", flush=True)
    if dry_run:
        return
    del source  # its pixels may be many
    outcome = work(todo, jobs, None if minutes is None else 60 * minutes, ledger.collect)
    _conclude(recipes, ledger, outcome)


def _state(task: Task, older: "Finding | None") -> str:
    """How far a training is, in words."""
    if older is None:
        return ", begun" * task.folder.exists()
    lacking = [each for each in task.job.evaluations if each not in older.circumstances.get("evaluations", ())]
    again = "" if task.folder.exists() else f", and as there is no {task.folder} it is trained again"
    return f" has a record that lacks {', '.join(lacking)}{again}"


def _refuse_unlabelled(source: "Source", data: str) -> None:
    """What evaluations need, and training alone does not."""
    from fastmoco.parts import split

    try:
        split(source, data)
    except ValueError as error:
        raise ValueError(f"{error}; or give --evaluate without a value, to train only") from None


def _suited(base: str, rows: Iterable[str]) -> str:
    """The set that pocket rows are named after, whichever method and length they are of: the base, or else all rows."""
    names = {re.sub("_long|_mocov3", "", row.removeprefix("pocket/")) for row in ([base] if base else rows)}
    name = names.pop()
    return name if not names and USUAL.get(name) == f"pocket/{name}" else ""


def _carried(what: Sequence[str], base: str) -> list[str]:
    """The rows that are meant. One that the base cannot carry is left out."""
    from fastmoco.recipes import rows

    if base:
        find_base(base)  # whose mistakes end the sweep, and are not taken for a row's
    carried = []
    for row in dict.fromkeys(row for each in what for row in rows(each)):
        try:
            start(row, base)
            carried.append(row)
        except ValueError as error:
            print(f"left out: {error}", flush=True)
    if not carried:
        names = " ".join(what)
        raise ValueError(f"no row of {names} can be carried to {base}; give others, or another --recipe-base")
    return carried


def _recipes(entries: Iterable[Entry]) -> "dict[Entry, Recipe]":
    """What is trained. An entry that computes what another does is left out."""
    from fastmoco.alike import plain

    found: dict[Entry, Recipe] = {}
    for entry in entries:
        recipe = entry.recipe()
        twin = next((other for other in found if plain(found[other]) == plain(recipe)), None)
        if twin is None:
            found[entry] = recipe
        else:
            print(f"once only: {entry.title} is {twin.title} here", flush=True)
    return found


def _tasks(
    common: Sweep, recipes: "dict[Entry, Recipe]", seeds: range, evaluations: Sequence[str], ledger: Ledger, out: Path
) -> list[Task]:
    """All trainings: each row once, then each again with the next seed."""
    tasks: list[Task] = []
    for seed in seeds:
        for entry, recipe in recipes.items():
            older = ledger.find(recipe, seed)
            if older and _asked(entry, older):  # by a name of its own, as its run folder is
                entry, recipe = replace(entry, row=older.row), older.recipe
            place = _place(out, entry, recipe, seed, ledger)
            asked = [*evaluations, *(older.circumstances.get("evaluations", ()) if older else ())]
            job = Job(common, entry, seed, str(place), tuple(dict.fromkeys(asked)))
            tasks.append(Task(job, recipe, f"{len(tasks) + 1} of {len(seeds) * len(recipes)}"))
    return tasks


def _place(out: Path, entry: Entry, recipe: "Recipe", seed: int, ledger: Ledger) -> Path:
    """The run folder of a training. It is known by recipe, images and seed: another row may have begun it."""
    from fastmoco.kinds import brief

    known = f"{brief(recipe)} {ledger.images} {ledger.names} {ledger.pixels}"  # a new default changes nothing
    end = f"-{hashlib.sha256(known.encode()).hexdigest()[:8]}-seed{seed}"
    begun = sorted(path for path in out.glob(f"*{end}") if path.is_dir())
    return begun[0] if begun else out / f"{word(entry.row)}{end}"


def _asked(entry: Entry, older: "Finding") -> bool:
    """Whether the row of a finding means, with the same flags, what was trained.

    Files that records name are not run: they may be anyone's.
    """
    from fastmoco.bench.record import near
    from fastmoco.recipes import rows

    if older.row not in rows() or older.base != near(entry.base):
        return False
    try:
        return replace(entry, row=older.row).recipe() == older.recipe
    except ValueError:  # flags that do not suit it
        return False


def _spell(given: dict[str, Any]) -> str:
    """The command as it can be typed, without the folders of this machine."""
    from fastmoco.bench.record import near
    from fastmoco.launch import spell

    usual = {name: each.default for name, each in inspect.signature(sweep).parameters.items()}
    what = given.pop("what")
    flags = {name: flat(value) if name == "set" else value for name, value in given.items() if value != usual[name]}
    return " ".join(["fastmoco sweep", *map(near, [*what, *spell(flags)])])


def _conclude(recipes: "dict[Entry, Recipe]", ledger: Ledger, outcome: Outcome) -> None:
    """The table, where it comes from, and what is missing from it."""
    from fastmoco.printing import print_table
    from fastmoco.trials.findings import WORDS
    from fastmoco.trials.tally import score

    seeds = {each.seed for each in ledger.findings()}
    found = {
        entry.title: [each for seed in seeds if (each := ledger.find(recipe, seed))]
        for entry, recipe in recipes.items()
    }
    means = {name: {row: score(each.score(name) for each in found[row]) for row in found} for name in WORDS}
    shown = [name for name in WORDS if any(means[name].values())]
    lines = []
    for row, findings in found.items():
        cells = ["" if (mean := means[name][row]) is None else mean.text(of=len(findings)) for name in shown]
        lines.append([row, *cells, str(len(findings))])
    print()
    print_table(["row", *(f">{WORDS[name]}" for name in shown), ">seeds"], lines)
    where = f"; the findings are in {ledger.path}" if ledger.path.exists() else ", and no findings yet"
    said = "top-1 in percent, mean ± standard deviation" if shown else "no training has a score"
    print(f"\n{said}{where}", flush=True)
    taken = [task for task in outcome.taken if ledger.known(task) is None]  # it may have come to its end since
    if taken:
        print(f"at work in another process: {_list(taken)}", flush=True)
    if outcome.left:
        print(f"left: {_list(outcome.left)}; the same command goes on", flush=True)
    if outcome.failed:
        raise ValueError(f"{len(outcome.failed)} failed: {_list(outcome.failed)}; the same command tries them again")


def _list(tasks: Sequence[Task]) -> str:
    more = f" and {len(tasks) - 4} more" if len(tasks) > 4 else ""
    return "; ".join(task.words for task in tasks[:4]) + more
