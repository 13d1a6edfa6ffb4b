"""Semi-supervised evaluation: a classifier and, slowly, the encoder learn from few labels (Table 2, appendix)."""

import contextlib
from dataclasses import replace

import torch

from fastmoco.distributed import tell
from fastmoco.evaluate.fit import Classifier, Course
from fastmoco.evaluate.gallery import Gallery
from fastmoco.evaluate.scores import top1, tops
from fastmoco.evaluate.subject import Answers, Subject
from fastmoco.images import Part
from fastmoco.parts import hold_out
from fastmoco.protocols import Semi

# The paper prints 5e2 for the classifier, which may or may not be a typo; these are tried instead.
RATES = (0.05, 0.5, 5.0, 50.0, 500.0)
EVERY = 3  # one in three labelled images of a class judges the rates


def course(protocol: Semi) -> Course:
    """SGD with Nesterov momentum and no decay; the rate x0.2 after 60 % and 80 % of the steps."""

    def build(classifier: Classifier) -> torch.optim.Optimizer:
        groups = [{"params": list(classifier.head.parameters()), "lr": protocol.lr}]
        if protocol.encoder_lr:
            groups.append({"params": list(classifier.encoder.parameters()), "lr": protocol.encoder_lr})
        return torch.optim.SGD(groups, momentum=0.9, nesterov=True)

    return Course(
        repr(protocol),
        protocol.epochs,
        protocol.batch,
        build,
        lambda done: 0.2 ** sum(done >= mark for mark in (0.6, 0.8)),
    )


def evaluate(subject: Subject, protocol: Semi) -> Answers:
    """Fine-tuning as the protocol says, literally."""
    yield from tops("semi", *_fit(subject, protocol, "semi-supervised"))


def evaluate_tuned(subject: Subject, protocol: Semi, rates: tuple[float, ...] = RATES) -> Answers:
    """The same, with the classifier's rate that does best on a held-out part of the labelled images."""
    chosen = choose(subject, protocol, rates)
    yield "semi/lr", chosen
    yield from evaluate(subject, replace(protocol, lr=chosen))


def choose(subject: Subject, protocol: Semi, rates: tuple[float, ...]) -> float:
    """The best rate; of equals the lowest. The set's own held-out images have no say."""
    assert subject.train.labels is not None
    rest, held = hold_out(subject.train.labels, subject.classes, EVERY)
    if not len(held):
        raise ValueError(
            f"{len(subject.train)} labelled images are too few to choose a rate by, as no class has {EVERY}; "
            "use --preset paper, or more --labels"
        )
    judged = Gallery(Part(subject.train, held), subject.frame, subject.workers)
    trial = replace(subject, train=Part(subject.train, rest), test=judged)
    found = {}
    for rate in sorted(rates):
        with contextlib.suppress(FloatingPointError):  # a rate that is far too high is none
            found[rate] = top1(*_fit(trial, replace(protocol, lr=rate), f"trying rate {rate:g}"))
    if not found:
        raise FloatingPointError("no rate leaves weights and scores finite; have the embeddings diverged?")
    return tell(lambda: max(found, key=found.__getitem__))


def _fit(subject: Subject, protocol: Semi, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    # The paper does not say how batch norm behaves; we leave a frozen encoder in eval mode, and let one that learns use
    # the statistics of its batches, as SwAV and Barlow Twins do.
    classifier = subject.classifier(frozen=protocol.encoder_lr == 0)
    subject.learn(course(protocol), classifier, what)
    return subject.ask(classifier, f"{what}, held-out images")
