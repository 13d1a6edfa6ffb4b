"""The circumstances of a training, and the folder that holds it."""

import contextlib
import json
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

import torch

from fastmoco import __version__, machine
from fastmoco.checkpoint import ANEW, write
from fastmoco.engine import Gear
from fastmoco.kinds import fit, hints
from fastmoco.loader import Decode, Way
from fastmoco.lock import alone, refuse_others
from fastmoco.notation import differences, read
from fastmoco.recipe import Recipe

SAME = ("seed", "images")  # of a run that goes on; its data may have moved


@dataclass(frozen=True)
class Run:
    """Nothing here but the seed changes what is learnt, beyond rounding."""

    device: torch.device
    bf16: bool
    compile: bool
    loader: Way
    workers: int
    seed: int
    log_every: int
    save_every: int
    keep_every: int
    knn_every: int
    world: int = 1  # ranks
    graph: bool = False  # whether a GPU records the kernels of a step
    recompute: bool = False
    micro: int = 0  # images that an encoder sees at once; 0 is all
    decode: Decode = "cpu"

    def __post_init__(self) -> None:
        if self.loader not in get_args(Way):
            raise ValueError(f"--loader {self.loader}: use {', '.join(get_args(Way))}")
        if self.decode not in get_args(Decode):
            raise ValueError(f"--decode {self.decode}: use {', '.join(get_args(Decode))}")
        if self.decode == "gpu" and self.device.type != "cuda":
            raise ValueError(f"--decode gpu needs a GPU, and the device is {self.device.type}; leave it out")
        if type(self.micro) is not int:
            raise ValueError(f"micro={self.micro!r}: use a whole number")
        if self.micro < 0:
            raise ValueError(f"--micro {self.micro}: use 1 image or more, or 0 for all at once")
        for name in ("log_every", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} {getattr(self, name)}: use 1 step or more")
        for name in ("keep_every", "knn_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"--{name.replace('_', '-')} {getattr(self, name)}: use 0 or more")
        check(self.seed, self.workers)

    @property
    def gear(self) -> Gear:
        return Gear(self.device, self.bf16, self.compile, self.graph, recompute=self.recompute, micro=self.micro)

    @property
    def words(self) -> str:
        """For people."""
        compiled = ", compiled" if self.compile else ""
        ranks = f"{self.world} x " if self.world > 1 else ""
        recorded = ", recorded" if self.graph else ""
        return f"{ranks}{machine.name(self.device)}, {'bfloat16' if self.bf16 else 'float32'}{compiled}{recorded}"


def check(seed: int, workers: int, flag: str = "--seed") -> None:
    """Refuse what no work can have."""
    if workers < 0:
        raise ValueError(f"--workers {workers}: use 0 or more")
    if not 0 <= seed < 2**63:
        raise ValueError(f"{flag} {seed}: use a whole number from 0 to 2**63 - 1")


def refuse_large_batch(batch: int, images: int) -> None:
    """Refuse a batch that is larger than the set."""
    if batch > images:
        largest = 2 ** (images.bit_length() - 1)
        raise ValueError(f"batch {batch} is larger than the {images} images; use --batch {largest}")


def refuse_uneven_batch(batch: int, ranks: int) -> None:
    """Refuse a batch of which ranks cannot have equal parts."""
    if batch % ranks:
        below = batch // ranks * ranks
        fits = " or ".join(f"--batch {each}" for each in (below, below + ranks) if each)
        raise ValueError(f"batch {batch} does not divide among {ranks} processes; use {fits}")


def room(folder: Path, flag: str) -> None:
    """A folder, made if need be, in which files can be made; what its permissions say is not always so."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"{folder} cannot be written to: {error.strerror or error}; give another {flag}") from None


@contextlib.contextmanager
def occupy(path: Path, recipe: Recipe, run: Run, about: Mapping[str, object]) -> Iterator[None]:
    """A run folder for this training alone: made, or found to be of the same training."""
    new = not (path / "recipe.py").exists()
    if new:
        refuse_others(path, {"run.json", ".run.json.part", ".recipe.py.part"}, "run folder", "--out")
    room(path, "--out")
    with alone(path, f"another process is training in {path}; wait, or give another --out"):
        if new:
            known = {**asdict(run), **about, "device": machine.name(run.device)}
            versions = {"fastmoco": __version__, "torch": torch.__version__, "python": platform.python_version()}
            text = json.dumps({**known, **versions, "started": time.strftime("%Y-%m-%d %H:%M:%S%z")}, indent=2)
            write(path / "run.json", lambda file: file.write(f"{text}\n".encode()))
            write(path / "recipe.py", lambda file: file.write(spell(recipe).encode()))
        else:
            _refuse_another(path, recipe, about)
        yield


def spell(recipe: Recipe) -> str:
    """The recipe as the text of a file, one field a line; `read_recipe` reads it, and nothing in it is run."""
    lines = [f"    {field.name}={getattr(recipe, field.name)!r},\n" for field in fields(recipe)]
    return f"# What is trained here, as a value; it is read, not run.\nRecipe(\n{''.join(lines)})\n"


def read_recipe(path: Path) -> Recipe:
    """The recipe of a run folder."""
    try:
        recipe = read((path / "recipe.py").read_text())
    except (ValueError, OSError) as error:
        reason = str(error).partition(";")[0]  # what is said after it is for those who write one
        raise ValueError(f"{path / 'recipe.py'} is no recipe: {reason}") from None
    if not isinstance(recipe, Recipe):
        raise ValueError(f"{path / 'recipe.py'} is no recipe; it holds a {type(recipe).__name__}")
    return recipe


def read_field(path: Path, name: str) -> Any:
    """One field of the recipe of a run folder, whatever parts of a user's own the others are made of."""
    with contextlib.suppress(ValueError):
        return getattr(read_recipe(path), name)
    try:
        return fit(read((path / "recipe.py").read_text(), name), hints(Recipe)[name])
    except (ValueError, OSError) as error:
        raise ValueError(f"{path / 'recipe.py'} is no recipe: {str(error).partition(';')[0]}") from None


def fresh(path: Path) -> Path:
    """The first of runs/a, runs/a-2, runs/a-3, ... that does not exist."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _refuse_another(path: Path, recipe: Recipe, about: Mapping[str, object]) -> None:
    """A folder is gone on with only by the same training."""
    try:
        different = _differences(path, recipe)
    except (ValueError, OSError) as error:
        raise ValueError(f"{error}; {ANEW}") from None
    try:
        there = json.loads((path / "run.json").read_text())
        different += [f"{name} {there[name]} there, {about[name]} here" for name in SAME if there[name] != about[name]]
        if there["names"] != about["names"]:
            different.append(f"other images, {there['data']} there, {about['data']} here")
    except (ValueError, KeyError, TypeError, OSError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path / 'run.json'} cannot be read: {reason}; {ANEW}") from None
    if different:
        more = f" and {len(different) - 3} more" if len(different) > 3 else ""
        raise ValueError(f"{path} holds another training: {'; '.join(different[:3])}{more}; {ANEW}")


def _differences(path: Path, recipe: Recipe) -> list[str]:
    """Where the recipe of a folder is another: by its text, since only a user's own file knows the parts it has."""
    there = (path / "recipe.py").read_text()
    if there == spell(recipe):
        return []
    read_field(path, "epochs")  # or it is no recipe at all
    try:
        return differences(read_recipe(path), recipe)
    except ValueError:
        lines = [line.strip().rstrip(",") for line in spell(recipe).splitlines() if line not in there.splitlines()]
        return [f"{line[:80]} here" for line in lines]
