"""The paper's linear evaluation: a classifier on the frozen encoder, by LARS (section 4.2 and Table 6)."""

import os
from contextlib import closing
from dataclasses import replace

import torch
from torch import nn

from fastmoco.distributed import local_world, together
from fastmoco.evaluate.features import Features, mended, pooled
from fastmoco.evaluate.feeds import NOT_ASKED, Embeddings
from fastmoco.evaluate.fit import Classifier, Course, cosine, fit
from fastmoco.evaluate.progress import Progress
from fastmoco.evaluate.scores import tops
from fastmoco.evaluate.store import MOST, Tensors, remembered
from fastmoco.evaluate.subject import Answers, Subject
from fastmoco.optim import LARS, Lars
from fastmoco.protocols import Linear
from fastmoco.spread import say

IMAGENET = 1_281_167  # images; the paper's rate and batch are for so many
STEPS = 32  # in an epoch at least, where the set allows them
SMALLEST = 4  # images in a batch, where there are so many
LOOKS = 10  # crops of each image that are embedded, if that is done beforehand
FILL = 0.9  # of the memory that embeddings may take: a batch of them, and what is learnt, need some, too


def suited(protocol: Linear, images: int) -> Linear:
    """The same protocol for a set of another size; for ImageNet it is the paper's.

    LARS makes each step a part of the weights' own length, so it is the rate times the number of steps that says how
    far a classifier can get. The paper does not say what to do on a small set; we keep that product.
    """
    batch = min(protocol.batch, images, max(SMALLEST, images // STEPS))
    return replace(protocol, batch=batch, lr=protocol.lr * _steps(IMAGENET, protocol.batch) / _steps(images, batch))


def course(protocol: Linear) -> Course:
    """LARS without weight decay, and half a cosine by the step.

    The paper does not say how LARS adapts; we follow SimSiam: trust 0.001, weights and bias alike, before the momentum.
    """

    def build(classifier: Classifier) -> torch.optim.Optimizer:
        group = {"params": list(classifier.head.parameters()), "all": True}
        return Lars([group], LARS(lr=protocol.lr, weight_decay=0.0))

    return Course(repr(protocol), protocol.epochs, protocol.batch, build, cosine)


def evaluate(subject: Subject, protocol: Linear) -> Answers:
    """Every image is cropped and flipped anew in every epoch, and passes the encoder each time."""
    classifier = subject.classifier(frozen=True)
    subject.learn(course(protocol), classifier, "linear classifier")
    test = subject.tested()
    yield from tops("linear", classifier.head(test.x).detach(), test.labels)


def evaluate_cached(subject: Subject, protocol: Linear, looks: int) -> Answers:
    """The same classifier, but the crops of the first epochs take turns, so that each is embedded once.

    With as many looks as epochs it is the protocol itself.
    """
    plan = course(protocol)
    train, test = look(subject, plan, min(looks, protocol.epochs)), subject.tested()
    classifier = Classifier(nn.Identity(), test.x.shape[1], subject.classes, True, subject.seed).to(subject.device)
    known = f"{subject.known} {looks} looks"
    fit(classifier, Embeddings(train, subject.draws(plan)), plan, bf16=False, what="linear classifier", known=known)
    yield from tops("linear", classifier.head(test.x).detach(), test.labels)


def look(subject: Subject, plan: Course, looks: int) -> list[Features]:
    """Embeddings of the crops of the first epochs of a course."""
    short, images = replace(plan, epochs=looks), len(subject.train)
    _admit(looks, images, subject.encoder.width, subject.device)

    def make() -> Tensors:
        feed = subject.encoded(short, bf16=False)
        x = torch.zeros(looks, images, subject.encoder.width)
        labels = torch.zeros(looks, images, dtype=torch.long)
        what = f"embedding {looks} crops of each image"
        with closing(feed.since(0)) as examples, Progress(what, looks * images) as progress:
            for step, (embeddings, given) in enumerate(examples):
                epoch, index = step // feed.draws.per_epoch, feed.draws.index(step)
                x[epoch, index], labels[epoch, index] = embeddings.cpu(), given.cpu()
                progress.add(len(index))
        subject.note(pooled(feed.bad))
        return {"x": x, "labels": labels}

    def absent(found: Tensors) -> list[int]:
        places: list[int] = (found["labels"] == NOT_ASKED).any(0).nonzero()[:, 0].tolist()
        return places

    known = (subject.known, repr(subject.draws(short)))
    found = remembered(make, *known, stale=lambda found: mended(subject.train, absent(found)))
    subject.note(dict.fromkeys(absent(found), "it could not be read when it was embedded"))
    places = torch.arange(images)
    pairs = zip(found["x"].to(subject.device), found["labels"].to(subject.device), strict=True)
    return [Features(x, places, labels) for x, labels in pairs]


def _admit(looks: int, images: int, width: int, device: torch.device) -> None:
    """Refuse embeddings that no memory holds before hours are spent on them, and tell of those that are not kept."""
    one = 4 * images * width
    take = f"embeddings of {looks} crops of {images:,} images take {_gib(looks * one)}"
    with together():
        for place, room in _rooms(device).items():
            if looks * one > room:
                advice = f"use --looks {room // one}" if room >= one else "leave out --cached"
                raise ValueError(f"--looks {looks}: {take}, and {place} has room for {_gib(room)}; {advice}")
    if looks * one > MOST:
        advice = f"; those of --looks {MOST // one} are" if one <= MOST else ""
        say(f"{take}, and above {_gib(MOST)} are not kept for the next time{advice}")


def _rooms(device: torch.device) -> dict[str, int]:
    """Bytes that embeddings may take: on the host, where they are made by every process, and on the device."""
    rooms = {"the host": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // local_world()}
    if device.type == "cuda":
        rooms[str(device)] = torch.cuda.mem_get_info(device)[0]
    return {place: int(FILL * room) for place, room in rooms.items()}


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _steps(images: int, batch: int) -> int:
    """In an epoch; the last batch is filled up."""
    return -(-images // batch)
