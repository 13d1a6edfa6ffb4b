"""One training of a sweep, in a process of its own: pre-train, evaluate, and leave a finding in the run folder."""

import contextlib
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from fastmoco.ending import ended
from fastmoco.flags import Side

if TYPE_CHECKING:
    from fastmoco.recipe import Recipe
    from fastmoco.trials.findings import Finding

FILE = "finding.json"
TAKEN = 75  # the exit code where another process is at this training
EVERYTHING = 10**12  # steps

Switch = Literal["auto", "on", "off"]
Kind = Literal["knn", "cached", "linear"]


@dataclass(frozen=True)
class Means:
    """With what all trainings of a sweep are computed; nothing here changes what is learnt, beyond rounding."""

    device: str = "auto"
    precision: Literal["auto", "bf16", "float32"] = "auto"
    compile: Switch = "auto"
    graph: Switch = "auto"
    workers: int | None = None


@dataclass(frozen=True)
class Job:
    """One training, as another process is told of it."""

    folder: str  # of the run
    row: str
    base: str
    epochs: int | None
    settings: Sequence[str]
    seed: int
    data: str
    images: int
    evaluations: Sequence[str]  # knn, cached, linear, encoders
    knn_every: int  # 0: ten times in all
    jobs: int  # that share the device
    commit: str
    command: str  # the sweep's
    means: Means

    def recipe(self) -> "Recipe":
        from fastmoco.command import compose

        return compose(self.row, self.settings, self.epochs, None, "", None, self.base)

    def spell(self) -> str:
        return json.dumps(asdict(self))


def read(text: str) -> Job:
    """The job that `spell` wrote."""
    known = json.loads(text)
    return Job(**{**known, "means": Means(**known["means"])})


def corner(folder: Path) -> Path:
    """Where the lock of a trial lies: not in its run folder, which has one of its own that training takes."""
    place = folder.parent / ".trials" / folder.name
    place.mkdir(parents=True, exist_ok=True)
    return place


def run(job: Job) -> "Finding":
    """Go on from wherever it stands, to its finding."""
    from fastmoco.command import pretrain
    from fastmoco.trials import findings

    folder, recipe = Path(job.folder), job.recipe()
    pretrain(
        job.data,
        recipe=job.row,
        recipe_base=job.base,
        out=job.folder,
        epochs=job.epochs,
        set=job.settings,
        seed=job.seed,
        log_every=max(1, job.images // recipe.batch),  # once an epoch, so that every judgement has its seconds
        knn_every=job.knn_every or max(1, recipe.epochs // 10),
        **asdict(job.means),
    )
    with _own_store(folder):
        finding = _find(job, recipe, folder)
    part = folder / f".{FILE}.part"
    part.unlink(missing_ok=True)
    findings.add(part, finding)  # which is on the disk before it has its name
    part.replace(folder / FILE)
    (folder / "checkpoints" / "previous.pt").unlink(missing_ok=True)  # a sweep has many, and this one is done
    return finding


@contextlib.contextmanager
def _own_store(folder: Path) -> Iterator[None]:
    """Sets are where they were; embeddings, which in a whole sweep would fill a disk, are kept until this is done."""
    from fastmoco import shards

    before, store, own = os.environ.get("FASTMOCO_DATA"), shards.store().resolve(), folder.resolve() / "store"
    own.mkdir(exist_ok=True)
    for entry in store.iterdir() if store.is_dir() else ():
        if entry.name != "features" and not (own / entry.name).is_symlink():
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
    from fastmoco import checkpoint, run
    from fastmoco.bench.record import circumstances, near
    from fastmoco.journal import kept
    from fastmoco.trials.findings import PLAIN, Finding

    state = checkpoint.load(folder / "checkpoints" / "last.pt")
    about = json.loads((folder / "run.json").read_text())
    lines = kept(folder / "metrics.jsonl", EVERYTHING)
    per_epoch, means = state["step"] / recipe.epochs, job.means
    device, *_ = run.settle(means.device, means.precision, means.compile, means.workers)
    results: dict[str, dict[str, float]] = {PLAIN: {}}
    probes = [line["val/linear_top1"] for line in lines if "val/linear_top1" in line]
    if probes:
        results[PLAIN]["probe/top1"] = probes[-1]
    for encoder, kind in _wanted(job.evaluations, state["learner"]):
        results.setdefault(encoder, {}).update(_evaluate(job, recipe, encoder, kind, state["step"]))
    return Finding(
        recipe=recipe,
        seed=job.seed,
        row=near(job.row),
        base=near(job.base),
        data=near(job.data),
        images=about["images"],
        names=about["names"],
        seen=state["step"] * recipe.batch,
        **_times(lines),
        jobs=job.jobs,
        results=results,
        curve=_curve(lines, per_epoch),
        circumstances={
            **circumstances(device, job.commit),
            "command": job.command,
            "precision": "bf16" if about["bf16"] else "float32",
            "compiled": about["compile"],
            "recorded": about["graph"],
            "loader": state["way"],
            "evaluations": list(job.evaluations),
            "when": time.strftime("%Y-%m-%d %H:%M:%S%z"),
        },
    )


def _times(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of a training that ended: its log has one line or more."""
    logged = [line for line in lines if "perf/seconds" in line]
    return {
        "seconds": logged[-1]["perf/seconds"],
        "first_step": next(line["perf/first_step"] for line in logged if "perf/first_step" in line),
        "images_per_second": statistics.median(line["perf/images_per_second"] for line in logged),
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


def _evaluate(job: Job, recipe: "Recipe", encoder: str, kind: Kind, step: int) -> dict[str, float]:
    """One evaluation, unless it was made before the process was stopped."""
    from fastmoco import assess
    from fastmoco.exam import Terms

    side, _, how = encoder.partition(", ")
    branch, means = cast(Side, side), job.means
    found = _earlier(job, recipe, branch, bool(how), kind, step)
    if found is None:
        terms = Terms(
            branch=branch,
            recalibrate=bool(how),
            device=means.device,
            precision=means.precision,
            workers=means.workers,
        )
        if kind == "knn":
            found = assess.knn(job.folder, job.data, terms=terms)
        else:
            found = assess.linear(job.folder, job.data, cached=kind == "cached", terms=terms)
    return {name.replace("linear", kind): value for name, value in found.items() if name.endswith("/top1")}


def _earlier(
    job: Job, recipe: "Recipe", branch: Side, recalibrated: bool, kind: Kind, step: int
) -> dict[str, float] | None:
    """What the run folder's results say of the same evaluation, as it is made without flags."""
    from fastmoco import results
    from fastmoco.protocols import Linear

    protocol = recipe.evaluation if isinstance(recipe.evaluation, Linear) else Linear()
    wanted = {
        "evaluation": "knn" if kind == "knn" else "linear",
        "branch": branch,
        "recalibrated": recalibrated,
        "step": step,
        "data": job.data,
        "size": max(view.size for view in recipe.views),
        "seed": 0,
    }
    for record in reversed(results.read(Path(job.folder) / results.FILE)):
        settings = str(record.get("settings"))
        same_way = kind == "knn" or ("cached" in settings) == (kind == "cached")
        usual = kind == "knn" or settings.startswith(f"Linear(epochs={protocol.epochs},")
        if all(record.get(name) == value for name, value in wanted.items()) and same_way and usual:
            return cast(dict[str, float], record["results"])
    return None


def main() -> None:
    """`python -m fastmoco.trials.trial JOB`, as a sweep starts it."""
    from fastmoco.lock import alone

    with ended(), contextlib.ExitStack() as stack:
        job = read(sys.argv[1])
        try:
            stack.enter_context(alone(corner(Path(job.folder)), "taken"))
        except ValueError:
            sys.exit(TAKEN)
        run(job)


if __name__ == "__main__":
    main()
