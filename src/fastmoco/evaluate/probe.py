"""A linear classifier on features that were extracted once."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fastmoco.evaluate.features import finite

# Tried on overlapping Gaussians, 500 to 10,000 in 64 or 512 dimensions: about a point below the best of four
# logistic regressions, with L2 penalties from none to strong.
RATE, DECAY = 1e-2, 0.1
STEPS, SMALLEST = 40, 64  # in an epoch, and images in a batch: more images make larger batches, and not more steps


def probe(
    train: Float[Tensor, "n d"],
    train_labels: Int[Tensor, " n"],
    test: Float[Tensor, "q d"],
    classes: int,
    seed: int = 0,
    epochs: int = 100,
) -> Float[Tensor, "q {classes}"]:
    """The scores of a classifier trained in seconds: a quick judgement, and not the paper's protocol.

    That one augments the images again in every epoch and takes LARS; see `protocols.Linear`.
    """
    if not len(train):
        raise ValueError(
            "no labelled image could be read, so no classifier can be trained; mend or remove these images"
        )
    if not (finite(train) and finite(test)):
        raise ValueError("features are not finite, so no classifier can be trained; the training has diverged")
    # Evaluations run without gradient, but this one needs its own.
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(train.device.type, enabled=False):
        mean, spread = _measure(train.float())
        x, y = (train.float() - mean).div_(spread), train_labels.long()
        weight = torch.zeros(classes, x.shape[1], device=x.device, requires_grad=True)
        bias = torch.zeros(classes, device=x.device, requires_grad=True)
        # A bias that decays would hide that some classes are rare.
        groups = [{"params": [weight], "weight_decay": DECAY}, {"params": [bias], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups)
        generator = torch.Generator().manual_seed(seed)  # on the CPU, so that every device sees the same order
        batch = max(SMALLEST, math.ceil(len(x) / STEPS))
        starts = range(0, len(x), batch)
        for epoch in range(epochs):
            order = torch.randperm(len(x), generator=generator).to(x.device)
            for number, start in enumerate(starts):
                done = (epoch + number / len(starts)) / epochs
                for group in optimizer.param_groups:
                    group["lr"] = RATE * (1 + math.cos(math.pi * done)) / 2
                chosen = order[start : start + batch]
                loss = F.cross_entropy(F.linear(x[chosen], weight, bias), y[chosen])
                weight.grad, bias.grad = torch.autograd.grad(loss, (weight, bias))
                optimizer.step()
        return F.linear((test.float() - mean) / spread, weight, bias).detach()


def _measure(x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    """Mean and spread of each dimension; one that only rounding moves is left as it is."""
    spread, mean = torch.std_mean(x, 0, correction=0)
    return mean, torch.where(spread > 1e-6 * mean.abs(), spread, 1.0)
