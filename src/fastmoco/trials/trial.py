"""One training of a sweep, in a process of its own: pre-train, evaluate, and leave a finding in the run folder."""

import contextlib
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from fastmoco.ending import ended
from fastmoco.flags import Side
from fastmoco.trials.job import FILE, TAKEN, Job, Sweep, corner, read

if TYPE_CHECKING:
    from fastmoco.recipe import Recipe
    from fastmoco.trials.findings import Finding

TRAINED = "trained.jsonl"  # beside the lock: by which processes, each with the circumstances of its own
EXAMS = "trial.json"  # evaluations as a sweep makes them; by hand, people make others
AGAIN = "the same command makes it again"
ROOM = 2**32  # bytes of pixels that trainings on one device keep for their evaluations

Kind = Literal["knn", "cached", "linear"]


def run(job: Job) -> "Finding":
    """Go on from wherever it stands, to its finding."""
    from fastmoco.command import pretrain
    from fastmoco.shelf import SHELF
    from fastmoco.trials import findings

    folder, sweep, entry = Path(job.folder), job.sweep, job.entry
    recipe = entry.recipe()
    per_epoch = sweep.images // recipe.batch
    if _logged(folder) < per_epoch * recipe.epochs:
        _sign(sweep, folder)
    with SHELF.opened(ROOM // sweep.jobs):  # from the first judgement of the training to the last of its encoders
        pretrain(
            sweep.data,
            recipe=entry.row,
            recipe_base=entry.base,
            out=job.folder,
            epochs=entry.epochs,
            batch=entry.batch,
            set=entry.settings,
            seed=job.seed,
            log_every=max(1, per_epoch),  # so that every judgement has its seconds
            knn_every=sweep.knn_every or max(1, recipe.epochs // 10),
            **asdict(sweep.means),
        )
        with _own_store(folder):
            finding = _find(job, recipe, folder)
    part = folder / f".{FILE}.part"
    part.unlink(missing_ok=True)
    findings.add(part, finding)  # which is on the disk before it has its name
    part.replace(folder / FILE)
    (folder / "checkpoints" / "previous.pt").unlink(missing_ok=True)  # a sweep has many, and this one is done
    return finding


def _logged(folder: Path) -> int:
    """The last step that a training has told of."""
    from fastmoco.journal import kept

    return max((line["step"] for line in kept(folder / "metrics.jsonl") if "perf/seconds" in line), default=0)


def _sign(sweep: Sweep, folder: Path) -> None:
    """Leave word of the process that is about to train: another may go on, and yet another evaluate."""
    from fastmoco.bench.record import circumstances
    from fastmoco.journal import append
    from fastmoco.machine import settle

    means = sweep.means
    device, *_ = settle(means.device, means.precision, means.compile, means.workers)
    known = {**circumstances(device, sweep.commit), "command": sweep.command, "jobs": sweep.jobs}
    path = corner(folder) / TRAINED
    if not (folder / "recipe.py").exists():  # someone has removed it, and this is another training
        path.unlink(missing_ok=True)
    append(path, json.dumps(known))


def _signed(folder: Path) -> dict[str, Any]:
    """Where it was trained, by one process or by several in turn, and the most that shared a device with it."""
    path = corner(folder) / TRAINED
    if not path.exists():
        raise ValueError(f"{folder} was not trained by a sweep; give another --out")
    each = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):  # cut off by a full disk; whoever went on has signed again
            each.append(json.loads(line))
    if not each:
        raise ValueError(f"{path} does not tell who trained; remove {folder}, and {AGAIN}")
    words = {name: [known[name] for known in each] for name in each[0]}
    joined = {
        name: values[0] if len(set(values)) == 1 else ", ".join(dict.fromkeys(map(str, values)))
        for name, values in words.items()
    }
    return {**joined, "jobs": max(words["jobs"])}


@contextlib.contextmanager
def _own_store(folder: Path) -> Iterator[None]:
    """Sets are where they were; embeddings, which in a whole sweep would fill a disk, are kept until this is done."""
    from fastmoco import shards

    before, store, own = os.environ.get("FASTMOCO_DATA"), shards.store().resolve(), folder.resolve() / "store"
    own.mkdir(exist_ok=True)
    for entry in store.iterdir() if store.is_dir() else ():
        if entry.name != "features" and not os.path.lexists(own / entry.name):
            (own / entry.name).symlink_to(entry)
    os.environ["FASTMOCO_DATA"] = str(own)
    try:
        yield
    finally:
        os.environ.pop("FASTMOCO_DATA")
        os.environ.update({} if before is None else {"FASTMOCO_DATA": before})
    shutil.rmtree(own)


def _find(job: Job, recipe: "Recipe", folder: Path) -> "Finding":
    """Evaluate, and put together what is known."""
    from fastmoco import checkpoint
    from fastmoco.bench.record import near
    from fastmoco.commentary import verdict
    from fastmoco.journal import kept
    from fastmoco.trials.findings import PLAIN, Finding

    state = checkpoint.load(folder / "checkpoints" / "last.pt")
    about = json.loads((folder / "run.json").read_text())
    lines = kept(folder / "metrics.jsonl")
    if not any("perf/first_step" in line for line in lines):
        raise ValueError(f"{folder / 'metrics.jsonl'} has lost its beginning; remove {folder}, and {AGAIN}")
    per_epoch, trained = state["step"] / recipe.epochs, _signed(folder)
    results: dict[str, dict[str, float]] = {PLAIN: {}}
    probes = [line["val/linear_top1"] for line in lines if "val/linear_top1" in line]
    if probes:
        results[PLAIN]["probe/top1"] = probes[-1]
    for encoder, kind in _wanted(job.evaluations, state["learner"]):
        results.setdefault(encoder, {}).update(_evaluate(job, encoder, kind, state["step"]))
    return Finding(
        recipe=recipe,
        seed=job.seed,
        row=near(job.entry.row),
        base=near(job.entry.base),
        data=near(job.sweep.data),
        images=about["images"],
        names=about["names"],
        seen=state["step"] * recipe.batch,
        **_times(lines),
        jobs=trained.pop("jobs"),
        results=results,
        curve=_curve(lines, per_epoch),
        circumstances={
            **trained,
            "precision": "bf16" if about["bf16"] else "float32",
            "compiled": about["compile"],
            "recorded": about["graph"],
            "loader": state["way"],
            "verdict": verdict(lines, recipe, state["way"] == "resident"),  # as the training told it at its end
            "evaluations": list(job.evaluations),
            "when": time.strftime("%Y-%m-%d %H:%M:%S%z"),
        },
        pixels=job.sweep.pixels,
    )


def _times(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of a training that ended, whose log has its first line."""
    logged = [line for line in lines if "perf/seconds" in line]
    compiled = [line for line in logged if "perf/first_step" not in line] or logged  # since the lines before
    return {
        "seconds": logged[-1]["perf/seconds"],
        "first_step": next(line["perf/first_step"] for line in logged if "perf/first_step" in line),
        "images_per_second": statistics.median(line["perf/images_per_second"] for line in compiled),
    }


def _curve(lines: Sequence[Mapping[str, Any]], per_epoch: float) -> tuple[tuple[float, float, float], ...]:
    """Each judgement, with the seconds of the last log line before it."""
    curve, seconds = [], 0.0
    for line in sorted(lines, key=lambda line: (line["step"], "perf/seconds" not in line)):
        seconds = line.get("perf/seconds", seconds)
        if "val/knn_top1" in line:
            curve.append((line["step"] / per_epoch, seconds, line["val/knn_top1"]))
    return tuple(curve)


def _wanted(evaluations: Sequence[str], learner: Mapping[str, Any]) -> list[tuple[str, Kind]]:
    """Which encoder is evaluated how. One without a momentum branch, or without batch norm, has fewer of them."""
    from fastmoco.trials.findings import PLAIN

    kinds: tuple[Kind, ...] = ("knn", "cached", "linear")
    found: list[tuple[str, Kind]] = [(PLAIN, kind) for kind in kinds if kind in evaluations]
    sides = ["online", *(["target"] if any(key.startswith("momentum.encoder.") for key in learner) else [])]
    norm = any(key.startswith("online.encoder.") and key.endswith(".running_mean") for key in learner)
    others = [f"{side}{how}" for side in sides for how in ("", ", recalibrated")[: 1 + norm]]
    if "encoders" in evaluations:
        found += [(encoder, kind) for encoder in others if encoder != PLAIN for kind in kinds[:2]]
    return found


def _evaluate(job: Job, encoder: str, kind: Kind, step: int) -> dict[str, float]:
    """One evaluation, unless it was made before the process was stopped."""
    from fastmoco import assess
    from fastmoco.exam import Terms

    side, _, how = encoder.partition(", ")
    branch, means = cast(Side, side), job.sweep.means
    found = _earlier(Path(job.folder), branch, bool(how), kind, step)
    if found is None:
        terms = Terms(
            branch=branch,
            recalibrate=bool(how),
            device=means.device,
            precision=means.precision,
            workers=means.workers,
        )
        out = str(Path(job.folder) / EXAMS)
        if kind == "knn":
            found = assess.knn(job.folder, job.sweep.data, out=out, terms=terms)
        else:
            found = assess.linear(job.folder, job.sweep.data, cached=kind == "cached", out=out, terms=terms)
    return {name.replace("linear", kind): value for name, value in found.items() if name.endswith("/top1")}


def _earlier(folder: Path, branch: Side, recalibrated: bool, kind: Kind, step: int) -> dict[str, float] | None:
    """What this trial has found before it was stopped."""
    from fastmoco import results

    wanted = {
        "evaluation": "knn" if kind == "knn" else "linear",
        "branch": branch,
        "recalibrated": recalibrated,
        "step": step,
    }
    try:
        records = results.read(folder / EXAMS)
    except ValueError as error:
        raise ValueError(f"{str(error).partition(';')[0]}; remove it, and {AGAIN}") from None
    for record in reversed(records):
        same_way = kind == "knn" or ("cached" in record["settings"]) == (kind == "cached")
        if same_way and all(record[name] == value for name, value in wanted.items()):
            return cast(dict[str, float], record["results"])
    return None


@contextlib.contextmanager
def _advised(folder: Path) -> Iterator[None]:
    """A training advises flags of its own command. A sweep has not all of them, but makes a folder that is gone."""
    from fastmoco.checkpoint import ANEW

    try:
        yield
    except ValueError as error:
        told = str(error).replace(ANEW, f"remove {folder}, and {AGAIN}").replace(" and --fresh", "")
        raise ValueError(told) from None


def main() -> None:
    """`python -m fastmoco.trials.trial JOB`, as a sweep starts it."""
    from fastmoco.lock import alone

    with ended(), contextlib.ExitStack() as stack:
        job = read(sys.argv[1])
        try:
            stack.enter_context(alone(corner(Path(job.folder)), "taken"))
        except ValueError:
            sys.exit(TAKEN)
        with _advised(Path(job.folder)):
            run(job)


if __name__ == "__main__":
    main()
