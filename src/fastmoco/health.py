"""Whether a training is well: what its embeddings look like, and a verdict in words."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastmoco.branch import Branch
from fastmoco.contrast import unit
from fastmoco.distributed import gather, total
from fastmoco.patches import take
from fastmoco.samples import Group

# A verdict rests on the medians of this many log lines, so that one odd batch cannot make it. Before them there is
# none: every training begins at chance, and the embeddings of a fresh network mean nothing.
LINES = 3
IMAGES = 4  # in a batch: a norm puts two images at opposite ends of a line, and three on a plane, whatever they are
COLLAPSED_SPREAD = 0.1  # two images then have a cosine of about 0.99
COLLAPSED_RANK = 0.01  # of what the batch and the width allow, above the rank of 1 that any vectors have
AT_CHANCE = 0.02  # of loss: InfoNCE at tau 1 has only about 1 to gain, a cosine exactly 1
HIGH_GRADIENT = 10.0  # ten times the norm at which the paper clips
# Before a norm, weights that jump grow and their gradients shrink, so that only the distance to the target tells.
HIGH_DRIFT = 0.5
OFF = 0.01  # of the largest scale of its norm: less than this, and a channel is off
MANY_OFF = 0.25  # of the channels; a fresh encoder has none, and with a fifth off it may be as good as any
LOADER_BOUND = 0.2  # of the time: without the wait, training would be a quarter faster
NOTABLE = 1.0  # points of kNN; and twice the standard error, where that is more, as it is with few images
FEW = 4  # images, by which chance may differ even if no other one changed sides


@torch.no_grad()
def measure(
    samples: Float[Tensor, "s b d"], targets: Float[Tensor, "t b d"], met: list[Group]
) -> dict[str, Float[Tensor, ""]]:
    """How far the embeddings of one batch are from collapse; `met` has for each target the samples that meet it.

    Samples and targets are this rank's; the answer is of all ranks.

    `health/std` is 1 for targets all over the sphere and 0 for a point (the official head begins at 0.87, since the
    weights of its last norm are drawn from U(0, 1)), `health/rank` the number of directions that the targets of the
    first view take, `health/alignment` the mean cosine of a sample and its own target over all pairs, and
    `health/negatives` that with the targets of other images.
    """
    samples, targets = unit(samples), unit(targets)
    everyone = gather(targets.transpose(0, 1)).transpose(0, 1)
    images, width = everyone.shape[1:]
    stacks = [take(samples, group) for group in met]
    alike = torch.stack([(stack * target).sum() for stack, target in zip(stacks, targets, strict=True)])
    # Every sample with every target at once: the product of two sums.
    every = torch.stack(
        [(stack.sum((0, 1)) * target.sum(0)).sum() for stack, target in zip(stacks, everyone, strict=True)]
    )
    positive, negative = total(torch.stack([alike.sum(), (every - alike).sum()]))
    pairs = sum(len(group) for group in met)
    return {
        "health/std": everyone.std(1, correction=0).mean() * math.sqrt(width),
        "health/rank": rank(everyone[0]),
        "health/alignment": positive / (pairs * images),
        "health/negatives": negative / (pairs * images * max(images - 1, 1)),
    }


def rank(x: Float[Tensor, "b d"]) -> Float[Tensor, ""]:
    """The effective rank: exp of the entropy of the singular values, which is r if r of them are equal and the rest 0.

    As RankMe (Garrido et al., 2023), without centring: a point is then of rank 1, and not of whatever rounding leaves.
    """
    x = x.cpu() if x.device.type == "mps" else x  # which has no float64
    # What is not finite shows in the loss; here it would only end the training in the middle of a log line.
    x = x.nan_to_num(0.0, 0.0, 0.0).double()
    # The smaller of the two matrices of products: its eigenvalues are the squares of the singular values.
    values = torch.linalg.eigvalsh(x @ x.T if len(x) < x.shape[1] else x.T @ x).clamp(min=0).sqrt()
    parts: Tensor = torch.special.entr(values / values.sum())
    return parts.sum().exp().float()


@torch.no_grad()
def drift(online: Branch, target: Branch) -> Float[Tensor, ""]:
    """How far the target is from the online branch, over what Eq. 1 averages, in parts of the online weights' norm."""
    ours = [*online.encoder.parameters(), *online.projector.parameters()]
    theirs = [*target.encoder.parameters(), *target.projector.parameters()]
    return _norm([a - b for a, b in zip(ours, theirs, strict=True)]) / _norm(ours)


@torch.no_grad()
def off(network: nn.Module) -> Float[Tensor, ""]:
    """The part of a network's channels that are off: the scale of their norm has come to nothing beside its largest.

    A decay of norms turns off what is of little use at the time, and next to nothing turns it on again.
    """
    kinds = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)
    norms = [module for module in network.modules() if isinstance(module, kinds)]
    scales = [norm.weight.abs() for norm in norms if norm.weight is not None]
    found = [scale < OFF * scale.max() for scale in scales]
    return torch.cat(found).float().mean() if found else torch.zeros(())


def verdict(
    recent: Sequence[Mapping[str, float | int]], chance: float, batch: int, width: int, resident: bool = False
) -> str:
    """How the training is, in words, with the evidence; from the last log lines, the newest at the end.

    `chance` is the loss at chance, `batch` the images over which health was measured, `width` that of a target,
    and `resident` whether no file is read.
    """
    if recent and not math.isfinite(recent[-1]["train/loss"]):
        return f"diverged: loss {recent[-1]['train/loss']}; start again with a lower optim.lr"
    if len(recent) < LINES:
        return f"starting: {len(recent)} of the {LINES} log lines that a verdict needs"
    names = "train/loss train/grad_norm health/std health/rank health/drift health/off perf/data_wait"
    loss, gradient, spread, directions, behind, lost, wait = (_median(recent[-LINES:], name) for name in names.split())
    most = min(batch, width)
    state = f"embeddings spread {spread:.2f} of 1, rank {directions:.1f} of {most}"
    place = "above" if loss > chance + AT_CHANCE else "at" if loss > chance - AT_CHANCE else "below"
    score = f"loss {loss:.2f} {place} chance {chance:.2f}"
    findings = []
    if batch >= IMAGES and (spread < COLLAPSED_SPREAD or directions < 1 + COLLAPSED_RANK * (most - 1)):
        findings.append(f"collapsing: {state}")
    elif place != "below" and gradient > HIGH_GRADIENT:
        findings.append(f"learning rate too high: {score} and gradient norm {gradient:.0f}")
    elif place != "below" and behind > HIGH_DRIFT:
        findings.append(f"learning rate too high: {score} and the target behind by {behind:.2f} of the weights")
    elif place != "below":
        findings.append(f"not learning yet: {score}")
    if lost > MANY_OFF:
        findings.append(f"losing channels: {100 * lost:.0f} % are off; try a lower optim.weight_decay")
    if wait > LOADER_BOUND:
        # A resident loader only draws, and the draws of many images take hardly longer than those of few.
        fix = (
            "draws; a larger --batch, in a new training, waits less"
            if resident
            else "data; try more --workers, or --loader resident"
        )
        findings.append(f"loader-bound: {100 * wait:.0f} % waiting for {fix}")
    if not findings and batch < IMAGES:
        return f"unsure: {score}, but {batch} of the {IMAGES} images in a batch that a verdict needs"
    return "; ".join(findings) or f"healthy: {score}, {state}"


def peak(lines: Iterable[Mapping[str, float | int]], step: int) -> tuple[int, float, float] | None:
    """Where kNN was at its best: the step, the number, and the lower one that it has come to by the last step.

    None if it has not fallen by more than chance, or was not asked for at that step.
    """
    judged = [line for line in lines if "val/knn_top1" in line]
    if not judged or judged[-1]["step"] != step:
        return None
    last, best = judged[-1], max(judged, key=lambda line: line["val/knn_top1"])
    now, then = last["val/knn_top1"], best["val/knn_top1"]
    return (int(best["step"]), then, now) if _beyond_chance(then, now, last) else None


def outrun(lines: Iterable[Mapping[str, float | int]]) -> tuple[float, float] | None:
    """kNN of the target branch and of the online one at the end; None if the former is not ahead by more than chance.

    Online statistics of Fast-MoCo are of patches, and may be far from those of whole images after many epochs.
    """
    name = "val/target_knn_top1"
    last = next((line for line in reversed([*lines]) if name in line), {})
    target, online = (last.get(each, math.nan) for each in (name, "val/knn_top1"))
    return (target, online) if _beyond_chance(target, online, last) else None


def _beyond_chance(more: float, less: float, line: Mapping[str, float | int]) -> bool:
    """Whether percents differ by more than chance, of so many images as this record tells; if none, they do not."""
    images = line.get("val/images", 0)
    if not images:
        return False
    error = max(math.sqrt(each * (100 - each) / images) for each in (more, less))
    return more - less > max(NOTABLE, 2 * error, 100 * FEW / images)


def _median(lines: Sequence[Mapping[str, float | int]], name: str) -> float:
    """NaN, which exceeds no threshold, if no line has the name."""
    return statistics.median([line[name] for line in lines if name in line] or [math.nan])


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))
    return norm
