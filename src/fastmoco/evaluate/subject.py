"""What is judged: an encoder, the labelled images that it is judged by, and where that is computed."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fastmoco.distributed import rank, world
from fastmoco.draws import Draws
from fastmoco.encoder import Encoder
from fastmoco.evaluate.features import Features, embedded, extract, finite, pooled
from fastmoco.evaluate.feeds import Encoded, Pictures
from fastmoco.evaluate.fit import Classifier, Course, draws, fit
from fastmoco.evaluate.gallery import Frame, Gallery
from fastmoco.images import Images
from fastmoco.weights import digest

Answers = Iterator[tuple[str, float]]


@dataclass(frozen=True)
class Subject:
    """All that an evaluation needs to know."""

    encoder: Encoder  # on the device
    train: Images  # with labels, to learn a classifier from
    test: Gallery  # held-out images with labels
    frame: Frame
    device: torch.device
    workers: int
    seed: int
    bf16: bool
    unread: dict[str, str] = field(default_factory=dict)  # images that could not be read, and why

    @property
    def classes(self) -> int:
        return len(self.train.classes)

    @property
    def known(self) -> str:
        """By what weights and images are known again."""
        return f"{self.encoder.name} {digest(self.encoder.net)} {self.train.stamp()} {self.bf16}"

    def features(self) -> tuple[Features, Features]:
        """Embeddings to learn from and to be tested by; from the disk where they are known."""
        gallery = Gallery(self.train, self.frame, self.workers)
        train = embedded(self.encoder, gallery, self.device, "embedding images to learn from")
        self.note(gallery.bad)
        return train, self.tested()

    def tested(self) -> Features:
        """Embeddings to be tested by."""
        found = embedded(self.encoder, self.test, self.device, "embedding held-out images")
        self.note(self.test.bad, self.test.images)
        return found

    def classifier(self, frozen: bool) -> Classifier:
        """A new head on the encoder, or on a copy of it that may change."""
        encoder = self.encoder if frozen else copy.deepcopy(self.encoder)
        made = Classifier(encoder, self.encoder.width, self.classes, frozen, self.seed).to(self.device)
        return made.to(memory_format=torch.channels_last)

    def learn(self, course: Course, classifier: Classifier, what: str) -> None:
        """Train a classifier on this subject's images, cropped and flipped."""
        if not classifier.frozen and min(course.batch, len(self.train)) < 2:
            raise ValueError(
                f"{what}: batch norm needs two images or more in a batch; give more images, or a larger one"
            )
        feed = self.encoded(course, self.bf16) if classifier.frozen else self.pictures(course)
        fit(classifier, feed, course, bf16=self.bf16, what=what, known=self.known)
        self.note(pooled(feed.bad))

    def draws(self, course: Course) -> Draws:
        """Which images a course takes when, and which crops of them."""
        return draws(course, len(self.train), self.seed, self.frame.size)

    def pictures(self, course: Course) -> Pictures:
        """The images to learn from, as a course asks for them; of each batch this rank's part."""
        whole = self.draws(course)
        # Too few to share, such as a hundredth of a small set: every rank takes all of them.
        mine = whole if whole.batch < world() else replace(whole, rank=rank(), world=world())
        return Pictures(self.train, mine, self.device, self.workers)

    def encoded(self, course: Course, bf16: bool) -> Encoded:
        """The same images as the encoder sees them, whole batches."""
        return Encoded(self.encoder, self.train, self.draws(course), self.device, self.workers, bf16)

    def ask(self, classifier: Classifier, what: str) -> tuple[Float[Tensor, "q classes"], Int64[Tensor, " q"]]:
        """A classifier's scores of the held-out images, and their labels."""
        found = extract(classifier, self.test, self.device, what)
        if not finite(found.x):  # its weights may be, and statistics on the way not
            raise FloatingPointError(f"{what}: the scores are not finite; use a lower --lr")
        self.note(self.test.bad, self.test.images)
        return found.x, found.labels

    def note(self, bad: Mapping[int, str], images: Images | None = None) -> None:
        """Images to learn from that could not be read, or others."""
        for place, reason in bad.items():
            self.unread.setdefault((images or self.train).name(place), reason)
