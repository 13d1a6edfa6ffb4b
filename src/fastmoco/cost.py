"""What a recipe costs, counted without computing it: parameters of each network, multiply-adds of each view."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from fastmoco.branch import Branch
from fastmoco.learner import Learner
from fastmoco.recipe import Recipe
from fastmoco.samples import Samples
from fastmoco.steps import Path, follow

BATCH = 2  # counts are per image; what a few timm models do once for a batch is shared


@dataclass(frozen=True)
class Cost:
    """Multiply-adds are per image, by network, one entry a view: empty if it has no pass of its own."""

    parameters: Mapping[str, int]
    online: tuple[Mapping[str, int], ...]
    target: tuple[Mapping[str, int], ...]


def measure(recipe: Recipe) -> Cost:
    """The cost of a forward pass, norms and other cheap operations left out."""
    with torch.device("meta"):
        # Statistics of norms are not counted, and would take longer than all that is.
        learner = Learner(recipe).requires_grad_(False).eval()
    online: list[dict[str, int]] = []
    target: list[dict[str, int]] = []
    for view, seen in zip(recipe.views, recipe.seen(), strict=True):
        if (first := recipe.views.index(view)) < len(online):  # one that is equal costs the same
            online.append(online[first])
            target.append(target[first])
            continue
        crops = Samples(torch.empty(view.count, BATCH, 3, view.size, view.size, device="meta"), seen)
        common = learner.common(view)
        shared = follow(view.online[:common], crops, learner.online)
        online.append(_count(view.online, crops, learner.online))
        target.append(_count(view.target[common:], shared, learner.target))
    parameters = {name: sum(p.numel() for p in net.parameters()) for name, net in learner.online.named_children()}
    return Cost(parameters, tuple(online), tuple(target))


def _count(path: Path, crops: Samples, branch: Branch) -> dict[str, int]:
    """Multiply-adds by network for one path, read off a counter before and after each network's passes."""
    spent: dict[str, int] = {}
    with FlopCounterMode(display=False) as counter:

        def tally(sign: int, name: str) -> None:
            spent[name] = spent.get(name, 0) + sign * counter.get_total_flops()

        hooks = []
        for name, net in branch.named_children():
            hooks.append(net.register_forward_pre_hook(lambda *_, name=name: tally(-1, name)))
            hooks.append(net.register_forward_hook(lambda *_, name=name: tally(1, name)))
        follow(path, crops, branch)
    for hook in hooks:
        hook.remove()
    return {name: flops // (2 * BATCH) for name, flops in spent.items()}
