"""A set on its way into shards, and the folder that holds it: stopped at any time, it goes on with the next shard."""

import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastmoco.album import MOST_BAD, too_many
from fastmoco.checkpoint import write
from fastmoco.images import Images, fingerprint
from fastmoco.lock import alone, refuse_others
from fastmoco.members import Member, make, write_shard

FORMAT = 1  # of pack.json; another number is another pack
RECORD, BAD = "pack.json", "bad_images.txt"


@dataclass
class Done:
    """How far a part of the set is packed."""

    read: int = 0  # images, from the first on
    size: int = 0  # their bytes before
    shards: list[int] = field(default_factory=list)  # the bytes of each
    bad: dict[str, str] = field(default_factory=dict)  # which images cannot be read, by number, and why


@dataclass(eq=False)
class Packing:
    """A pack, from wherever it stands to its end."""

    path: Path
    parts: Mapping[str, Images]  # train, and val if there is one
    about: Mapping[str, Any]  # settings, and by what the images are known again
    done: Mapping[str, Done]

    @property
    def images(self) -> int:
        return sum(len(images) for images in self.parts.values())

    @property
    def read(self) -> int:
        return sum(done.read for done in self.done.values())

    @property
    def left(self) -> int:
        return self.images - self.read

    @property
    def shards(self) -> int:
        return sum(len(done.shards) for done in self.done.values())

    @property
    def bad(self) -> int:
        return sum(len(done.bad) for done in self.done.values())

    @property
    def words(self) -> str:
        """For people."""
        before = sum(done.size for done in self.done.values())
        after = sum(sum(done.shards) for done in self.done.values())
        words = f"{self.read - self.bad:,} images in {self.shards:,} shard{'s' * (self.shards != 1)}"
        left_out = f"; {self.bad:,} could not be read, see {self.path / BAD}" if self.bad else ""
        return f"{words}, {_amount(before)} before and {_amount(after)} after{left_out}"

    def finish(self, threads: int, seen: Callable[[int], None]) -> None:
        """Pack all that is left."""
        for name, images in self.parts.items():
            done = self.done[name]
            (self.path / name).mkdir(exist_ok=True)
            _name_classes(self.path / name, images)
            made = make(images, done.read, self.about["size"], self.about["quality"], threads)
            with contextlib.closing(made):
                while done.read < len(images):
                    self._add_shard(name, self._readable(done, made, seen))

    def _add_shard(self, name: str, members: Iterator[Member]) -> None:
        shards, first = self.done[name].shards, next(members, None)
        if first is not None:  # all that were left may be unreadable
            rest = itertools.chain([first], members)
            shards.append(write_shard(self._shard(name, len(shards)), rest, self.parts[name], self.about["shard_mib"]))
        # The record comes last: what is not in it is made again, to the same bytes.
        self._list_bad()
        self.record()

    def _shard(self, name: str, number: int) -> Path:
        return self.path / name / f"shard-{number:06d}.tar"

    def _readable(self, done: Done, members: Iterator[Member], seen: Callable[[int], None]) -> Iterator[Member]:
        for member in members:
            done.read += 1
            done.size += member.size
            seen(1)
            if member.reason:
                done.bad[str(member.index)] = member.reason
                self._judge()
            else:
                yield member

    def _judge(self) -> None:
        """Too many unreadable images end the pack."""
        if too_many(self.bad, self.read, self.images):
            self._list_bad()
            raise ValueError(
                f"{self.bad:,} of {self.read:,} images cannot be read, more than {MOST_BAD:.0%}; they are listed in "
                f"{self.path / BAD}; repair or remove them, and pack into a new folder"
            )

    def _list_bad(self) -> None:
        lines = (
            f"{' '.join(images.name(int(number)).split())}\t{reason}\n"
            for name, images in self.parts.items()
            for number, reason in self.done[name].bad.items()
        )
        if self.bad:
            write(self.path / BAD, lambda file: file.write("".join(lines).encode(errors="backslashreplace")))

    def record(self) -> None:
        """Write down how far it is."""
        state = {**self.about, "done": {name: asdict(done) for name, done in self.done.items()}}
        write(self.path / RECORD, lambda file: file.write(f"{json.dumps(state, indent=1)}\n".encode()))

    def refuse_losses(self) -> None:
        """A pack that has lost shards cannot go on, and is not done."""
        for name, done in self.done.items():
            for number, size in enumerate(done.shards):
                file = self._shard(name, number)
                if not file.is_file() or file.stat().st_size != size:
                    raise ValueError(f"{file} is missing or has changed; remove {self.path}, and pack again")


@contextlib.contextmanager
def occupy(path: Path, parts: Mapping[str, Images], settings: Mapping[str, int]) -> Iterator[Packing]:
    """A folder for this pack alone: made, or found to be of the same pack."""
    about = {"format": FORMAT, **settings, "images": {name: _identify(images) for name, images in parts.items()}}
    new = not (path / RECORD).exists()
    if new:
        refuse_others(path, {f".{RECORD}.part"}, "pack", "OUT")
        path.mkdir(parents=True, exist_ok=True)
    with alone(path, f"another process is packing into {path}; wait, or give another OUT"):
        done = {name: Done() for name in parts} if new else _recall(path, about)
        packing = Packing(path, parts, about, done)
        packing.record() if new else packing.refuse_losses()
        yield packing


def _recall(path: Path, about: Mapping[str, Any]) -> dict[str, Done]:
    """How far a pack is; one of other settings or images is refused."""
    try:
        there = json.loads((path / RECORD).read_text())
        different = [name for name in about if there[name] != about[name]]
        done = {name: Done(**each) for name, each in there["done"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path / RECORD} cannot be read: {reason}; give another OUT") from None
    if different:
        name = different[0]
        words = "other images" if name == "images" else f"{name} {there[name]} there, {about[name]} here"
        raise ValueError(f"{path} holds another pack: {words}; give another OUT")
    return done


def _identify(images: Images) -> dict[str, str | int]:
    """By what a set is known again when its pack goes on; it may have been moved."""
    if images.labels is None:
        return {**fingerprint(images), "labels": ""}
    labels = hashlib.sha256(repr(images.classes).encode() + np.array(images.labels, np.int64).tobytes())
    return {**fingerprint(images), "labels": labels.hexdigest()[:12]}


def _name_classes(folder: Path, images: Images) -> None:
    """Line n is the name of class n, counted from 0: labels in shards are numbers."""
    text = "".join(f"{' '.join(name.split())}\n" for name in images.classes)
    if images.labels is not None:
        write(folder / "classes.txt", lambda file: file.write(text.encode(errors="backslashreplace")))


def _amount(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"
