"""Fine-tuning: all weights learn from the labels."""

import torch

from fastmoco.encoder import Encoder, ResNet
from fastmoco.evaluate.fit import Classifier, Course, cosine
from fastmoco.evaluate.scores import tops
from fastmoco.evaluate.subject import Answers, Subject
from fastmoco.protocols import Finetune


def course(protocol: Finetune, images: int) -> Course:
    """A warm-up, then a cosine; a small set is passed more often than a large one."""
    per_epoch = -(-images // min(protocol.batch, images))
    epochs = max(protocol.epochs, -(-protocol.steps // per_epoch))

    def build(classifier: Classifier) -> torch.optim.Optimizer:
        return torch.optim.AdamW(_groups(classifier, protocol), weight_decay=protocol.weight_decay)

    def rate(done: float) -> float:
        if done < protocol.warmup:
            return min(1.0, (done + 1 / (epochs * per_epoch)) / protocol.warmup)  # not 0 at the first step
        return cosine((done - protocol.warmup) / (1 - protocol.warmup))

    return Course(repr(protocol), epochs, protocol.batch, build, rate)


def evaluate(subject: Subject, protocol: Finetune) -> Answers:
    classifier = subject.classifier(frozen=False)
    subject.learn(course(protocol, len(subject.train)), classifier, "fine-tuning")
    yield from tops("finetune", *subject.ask(classifier, "fine-tuned, held-out images"))


def depths(encoder: Encoder) -> dict[str, int]:
    """For each parameter the number of its stage, the stem's being 0; where no stages are known, all are one."""
    from timm.models import group_parameters

    stages = {"stem": r"^(?:conv1|bn1)\.", "blocks": r"^layer(\d+)\."}
    try:
        matcher = stages if isinstance(encoder, ResNet) else encoder.net.group_matcher(coarse=True)
    except AttributeError:  # timm does not know the stages of some models
        return {name: 0 for name, _ in encoder.net.named_parameters()}
    found: dict[str, int] = group_parameters(encoder.net, matcher, reverse=True)
    return found


def _groups(classifier: Classifier, protocol: Finetune) -> list[dict[str, object]]:
    """Each stage learns slower than the one after it; norms and biases do not decay."""
    encoder = classifier.encoder
    assert isinstance(encoder, Encoder)
    depth = depths(encoder)
    last = max(depth.values()) + 1
    named = list(encoder.net.named_parameters())
    stages = [[weight for name, weight in named if depth[name] == stage] for stage in range(last)]
    groups: list[dict[str, object]] = []
    for stage, members in enumerate([*stages, list(classifier.head.parameters())]):
        lr = protocol.lr * protocol.decay ** (last - stage)
        groups.append({"params": [weight for weight in members if weight.ndim > 1], "lr": lr})
        groups.append({"params": [weight for weight in members if weight.ndim <= 1], "lr": lr, "weight_decay": 0.0})
    return [group for group in groups if group["params"]]
