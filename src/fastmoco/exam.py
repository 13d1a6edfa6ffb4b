"""What every evaluation needs: before it, from flags to a subject; after it, from answers to a table and a record."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fastmoco.flags import Flag, Float, Int, Side, Str, to_write
from fastmoco.spread import alike, say

if TYPE_CHECKING:
    import torch

    from fastmoco.evaluate.gallery import Frame
    from fastmoco.evaluate.subject import Subject
    from fastmoco.images import Images
    from fastmoco.pretrained import Pretrained
    from fastmoco.protocols import Linear


@dataclass(frozen=True)
class Terms:
    """What every evaluation lets a user choose."""

    encoder: Str = ""
    """the encoder of random weights, or of a checkpoint outside its run folder."""
    branch: Side = "online"
    """the branch that learns, or the momentum branch that follows it, of a run folder or a checkpoint."""
    recalibrate: Flag = False
    """estimate the statistics of batch norm again, on whole images; training may have shown it patches only."""
    size: Int = None
    """pixels of an image; by default as in the encoder's training."""
    crop: Float = None
    """the part of the short side that is shown; by default 0.875 from 224 px on, and 1 below."""
    seed: int = 0
    """the seed of random weights, the order of the images, their crops, and which labels are taken."""
    devices: Int = None
    """processes on this machine, one for each GPU; several machines: see docs/clusters.md."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto is a GPU if there is one."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """the type of numbers of an encoder that learns, or passes many crops; auto is bf16 where a GPU has it."""
    workers: Int = None
    """how many read images; by default its part of the cores, 16 at most, and two without a GPU."""
    download: Flag = False
    """fetch a set or weights by name, if they are not there."""


Shared = Annotated[Terms, tyro.conf.arg(name="")]
USUAL = Terms()


@dataclass(frozen=True)
class Exam:
    """An evaluation that is about to begin: what the user named, and what was found there."""

    weights: str
    data: str
    terms: Terms
    out: Path  # the file to add results to
    found: "Pretrained"
    subject: "Subject"
    share: float  # of the labels that are used
    begun: float

    def linear(self) -> "Linear":
        """The linear protocol of the run's row, or the paper's after 100 epochs."""
        from fastmoco.protocols import Linear
        from fastmoco.run import read_field

        own = read_field(self.found.folder, "evaluation") if self.found.folder else None
        return own if isinstance(own, Linear) else Linear()


def prepare(weights: str, data: str, out: str, terms: Terms, labels: str | None = None) -> Exam:
    """Find everything that an evaluation needs, and refuse what cannot work, before anything is computed."""
    from fastmoco import data as sets
    from fastmoco.distributed import first_per_machine, leads, together
    from fastmoco.evaluate.gallery import Gallery
    from fastmoco.evaluate.subject import Subject
    from fastmoco.images import fingerprint
    from fastmoco.parts import split, take

    weights, data = str(weights), str(data)  # in Python, paths are welcome too
    sight = see(weights, terms)
    with together(), first_per_machine():
        train, test, words = split(sets.find(data, terms.download), data)
        part = train if labels is None else take(train, labels, terms.seed)
    alike(lambda: [fingerprint(part), fingerprint(test)], f"the images of {data}")
    path = _records(out, sight.found)
    with together():
        if leads():
            _refuse(path)
    say(f"{sight.words}\n{data}: {words}{f'; labels {labels}: {len(part):,} images' if labels is not None else ''}")
    if terms.recalibrate:
        sight.recalibrate(train)
    encoder, frame, device, workers = sight.found.encoder, sight.frame, sight.device, sight.workers
    test_gallery = Gallery(test, frame, workers)
    subject = Subject(encoder, part, test_gallery, frame, device, workers, terms.seed, sight.bf16)
    return Exam(weights, data, terms, path, sight.found, subject, len(part) / len(train), time.monotonic())


@dataclass(frozen=True)
class Sight:
    """An encoder on its device, and how it is shown images there."""

    found: "Pretrained"
    frame: "Frame"
    device: "torch.device"
    workers: int
    bf16: bool

    @property
    def words(self) -> str:
        """For people."""
        from fastmoco.distributed import world

        place = f"{world()} x {self.device.type}" if world() > 1 else self.device
        return f"{self.found.words}, at {self.frame.size} px on {place}"

    def recalibrate(self, images: "Images") -> None:
        from fastmoco.evaluate.recalibration import recalibrate

        recalibrate(self.found.encoder, images, self.frame, self.device, self.workers)


def see(weights: str, terms: Terms) -> Sight:
    """The encoder that a user means, ready to be shown images of a size that it can take."""
    import torch

    from fastmoco.album import shown
    from fastmoco.distributed import first_per_machine, together
    from fastmoco.evaluate.gallery import Frame
    from fastmoco.machine import settle
    from fastmoco.run import check
    from fastmoco.weights import digest

    with together(), first_per_machine():
        check(terms.seed, terms.workers or 0)
        device, bf16, _, workers = settle(terms.device, terms.precision, "off", terms.workers)
        found = _find(weights, terms)
        size = found.size if terms.size is None else terms.size
        part = shown(size) if terms.crop is None else terms.crop
        if not 1 <= size <= 10_000:
            raise ValueError(f"--size {size}: use 1 to 10,000 pixels")
        if not 0 < part <= 1:
            raise ValueError(f"--crop {part:g}: use a part above 0 and up to 1")
        found.encoder.admit(size, size)
        found.encoder.to(device).to(memory_format=torch.channels_last)
    alike(lambda: [digest(found.encoder.net), size, device.type, bf16], f"{weights}, or its size and precision,")
    return Sight(found, Frame(size, part), device, workers, bf16)


def _find(weights: str, terms: Terms) -> "Pretrained":
    from fastmoco import pretrained

    return pretrained.find(
        weights, encoder=terms.encoder, branch=terms.branch, seed=terms.seed, download=terms.download
    )


def _refuse(path: Path) -> None:
    """Refuse now, and not after hours, a file that cannot be added to."""
    from fastmoco import results
    from fastmoco.run import room

    room(path.parent, "--out")
    results.read(path)


def _records(out: str, found: "Pretrained") -> Path:
    """The file to add results to."""
    from fastmoco import results

    return to_write(out) if out else (found.folder or Path()) / results.FILE


def latest(weights: str, out: str, terms: Terms) -> dict[str, float]:
    """The results that were last added to the file that an evaluation adds to."""
    from fastmoco import results

    path = to_write(out) if out else _records(out, _find(weights, terms))
    found: dict[str, float] = results.read(path)[-1]["results"]
    return found


def conclude(exam: Exam, name: str, settings: str, answers: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Run an evaluation to its end, show what it found, and add it to the records."""
    from fastmoco.distributed import tell

    found = dict(answers)
    return tell(lambda: _add(exam, name, settings, found))


def _add(exam: Exam, name: str, settings: str, found: dict[str, float]) -> dict[str, float]:
    from fastmoco import machine, results
    from fastmoco.distributed import world
    from fastmoco.journal import clock
    from fastmoco.weights import digest

    seconds = time.monotonic() - exam.begun
    subject, terms = exam.subject, exam.terms
    unread = list(subject.unread)
    results.show(found)
    record = {
        "evaluation": name,
        "settings": settings,
        "weights": exam.weights,
        "encoder": exam.found.name,
        "step": exam.found.step,
        "digest": digest(subject.encoder.net),
        "branch": terms.branch,
        "recalibrated": terms.recalibrate,
        "data": exam.data,
        "train": _readable(subject.train, subject.unread),
        "test": _readable(subject.test.images, subject.unread),
        "size": subject.frame.size,
        "crop": subject.frame.part,
        "seed": terms.seed,
        "device": machine.name(subject.device),
        "processes": world(),
        "precision": "bf16" if subject.bf16 else "float32",
        "seconds": round(seconds, 1),
        "results": found,
    }
    results.add(exam.out, record)
    if unread:
        example = f"{unread[0]}: {subject.unread[unread[0]]}"
        print(f"images that cannot be read and are left out: {len(unread):,}, such as {example}")
    print(f"{clock(seconds)}, added to {exam.out}")
    return found


def _readable(images: "Images", unread: Mapping[str, str]) -> int:
    """How many could be read, as far as that was tried."""
    return len(images) - sum(images.name(place) in unread for place in range(len(images))) if unread else len(images)
