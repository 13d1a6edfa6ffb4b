"""Optimisers and the schedule of the learning rate: values of a recipe, and what they do to the online branch."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastmoco.branch import Branch

# Rates are absolute, for the batch of the recipe.


@dataclass(frozen=True)
class SGD:
    """Weight decay on everything, norms and biases included, as in the official code, or on matrices and kernels only.

    The scale of a norm that another norm follows changes no loss, so that nothing but the decay moves it.
    """

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    decay_norms: bool = True

    def __post_init__(self) -> None:
        _check(self.momentum, self.weight_decay)


@dataclass(frozen=True)
class AdamW:
    """The paper does not say which values; we take MoCo v3's for ViT, 1.5e-4 x batch / 256 at batch 512.

    Nor does it say what decays; we decay everything, as SGD does here.
    """

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        _check(max(self.betas), self.weight_decay)


@dataclass(frozen=True)
class LARS:
    """As MoCo v3: neither adaptation nor weight decay for norms and biases. 0.6 x batch / 256 at batch 4096."""

    lr: float = 9.6
    momentum: float = 0.9
    weight_decay: float = 1e-6
    trust: float = 1e-3

    def __post_init__(self) -> None:
        _check(self.momentum, self.weight_decay)


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up, then half a cosine per iteration to exactly zero."""

    warmup: float = 1.0  # epochs
    start: float = 0.25  # of the full rate, at the first iteration: 0.025 of 0.1, and 0.0375 of 0.15
    # The paper does not say; we keep the predictor at the full rate throughout, as the official code and SimSiam do.
    predictor: Literal["constant", "scheduled"] = "constant"

    def __post_init__(self) -> None:
        if self.warmup < 0 or not 0 <= self.start <= 1:
            raise ValueError(
                f"warmup={self.warmup}, start={self.start}: use 0 epochs or more, and a part of the rate from 0 to 1"
            )


Optim = SGD | AdamW | LARS


def shorten(schedule: Schedule, epochs: int, usual: int) -> Schedule:
    """The schedule of a shorter training than usual: a third of it warms up at the most, or as large a part as usual.

    The rest is for the rate to come down, without which an encoder is far from what it could be.
    """
    if epochs >= usual:
        return schedule
    return replace(schedule, warmup=min(schedule.warmup, max(epochs / 3, schedule.warmup * epochs / usual)))


def rate(schedule: Schedule, step: int, steps: int, per_epoch: int) -> float:
    """The part of the full rate at iteration `step`, counted from 1, of `steps` in all, `per_epoch` in an epoch.

    It is exactly `start` at the first iteration, 1 at the last of the warm-up, and 0 at the last of all. A warm-up of
    one iteration is its own last; one that fills the training ends at 1.
    """
    assert 1 <= step <= steps, f"iteration {step} of {steps}"
    warm = round(schedule.warmup * per_epoch)
    if step > warm:
        return (1 + math.cos(math.pi * (step - warm) / (steps - warm))) / 2
    climbed = (step - 1) / (warm - 1) if warm > 1 else 1.0
    return schedule.start + (1 - schedule.start) * climbed


def build(optim: Optim, branch: Branch, recorded: bool = False) -> torch.optim.Optimizer:
    """The optimiser of the online branch. The group of the predictor is marked, since its rate may stand still.

    If its steps are to be recorded by a GPU, rates are tensors there, as numbers would be recorded with them.
    """
    groups = [_group(False, branch.encoder, branch.projector)]
    if branch.predictor is not None:
        groups.append(_group(True, branch.predictor))
    if isinstance(optim, SGD) and not optim.decay_norms:
        groups = [part for group in groups for part in _apart(group)]
    if recorded:
        device = next(branch.parameters()).device
        groups = [{**group, "lr": torch.tensor(optim.lr, device=device)} for group in groups]
    match optim:
        case SGD():
            return torch.optim.SGD(groups, optim.lr, optim.momentum, weight_decay=optim.weight_decay, fused=True)
        case AdamW():
            decay = optim.weight_decay
            return torch.optim.AdamW(groups, optim.lr, optim.betas, weight_decay=decay, fused=True, capturable=recorded)
        case LARS():
            return Lars(groups, optim)


def restore(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """What an optimiser remembers of its steps. Rates and options are not read back: recipe and device know them."""
    optimizer.load_state_dict({**state, "param_groups": optimizer.state_dict()["param_groups"]})


def set_rate(optimizer: torch.optim.Optimizer, optim: Optim, schedule: Schedule, part: float) -> None:
    """Take this part of the full rate for the next step, but the full rate for a predictor that keeps it."""
    for group in optimizer.param_groups:
        rate = optim.lr if group["predictor"] and schedule.predictor == "constant" else optim.lr * part
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class Lars(torch.optim.Optimizer):
    """SGD whose steps on matrices and kernels have a length in proportion to the weights, whatever the weight decay.

    A group with `all` adapts biases and norms as well.
    """

    def __init__(self, groups: list[dict[str, Any]], optim: LARS) -> None:
        values = {name: getattr(optim, name) for name in ("lr", "momentum", "weight_decay", "trust")}
        super().__init__(groups, {**values, "all": False})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            moving = [weight for weight in group["params"] if weight.grad is not None]
            self._move([weight for weight in moving if weight.ndim > 1 or group["all"]], group, adapt=True)
            self._move([weight for weight in moving if not (weight.ndim > 1 or group["all"])], group, adapt=False)

    def _move(self, weights: list[Tensor], group: dict[str, Any], adapt: bool) -> None:
        steps = [weight.grad for weight in weights if weight.grad is not None]
        if not steps:
            return
        if adapt:
            if group["weight_decay"]:
                steps = list(torch._foreach_add(steps, weights, alpha=group["weight_decay"]))
            ours, theirs = torch.stack(torch._foreach_norm([*weights, *steps])).chunk(2)
            # Where either is zero there is no proportion to keep. Chosen on the device, which need not wait for us.
            factors = torch.where((ours > 0) & (theirs > 0), group["trust"] * ours / theirs, 1.0)
            steps = [step * factor for step, factor in zip(steps, factors.unbind(), strict=True)]
        for weight in weights:
            if weight not in self.state:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        buffers = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, steps)
        torch._foreach_sub_(weights, torch._foreach_mul(buffers, group["lr"]))


def _group(predictor: bool, *networks: nn.Module) -> dict[str, Any]:
    return {"params": [weight for network in networks for weight in network.parameters()], "predictor": predictor}


def _apart(group: dict[str, Any]) -> list[dict[str, Any]]:
    """Matrices and kernels, and all else, which does not decay."""
    one = {**group, "params": [weight for weight in group["params"] if weight.ndim > 1]}
    other = {**group, "params": [weight for weight in group["params"] if weight.ndim <= 1], "weight_decay": 0.0}
    return [one, other]


def _check(momentum: float, weight_decay: float) -> None:
    if not 0 <= momentum < 1 or weight_decay < 0:
        raise ValueError(f"momentum={momentum}, weight_decay={weight_decay}: use 0 to below 1, and 0 or more")
