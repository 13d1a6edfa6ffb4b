"""Rows at a size that a CPU steps in a fraction of a second; everything that makes the method is left as it is."""

from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models.resnet import BasicBlock

from fastmoco import methods
from fastmoco.branch import Branch
from fastmoco.heads import MLP
from fastmoco.recipe import Recipe, Row
from fastmoco.samples import Samples

SIZES = {224: 32, 225: 48, 158: 24, 128: 32, 112: 16, 96: 16}
BATCH = 4
TRAINED = ("optim", "schedule", "clip", "epochs", "batch", "evaluation")  # fields that a learner does not know


def shrink(recipe: Recipe) -> Recipe:
    encoder = recipe.encoder if recipe.encoder.startswith("timm/") else "resnet18" + "-small" * ("-" in recipe.encoder)
    return replace(
        recipe,
        views=tuple(replace(view, size=SIZES.get(view.size, view.size)) for view in recipe.views),
        encoder=encoder,
        projector=_narrow(recipe.projector),
        predictor=_narrow(recipe.predictor),
        support=min(recipe.support, 64),
        batch=BATCH,
    )


def same_learners(rows: Mapping[str, Row]) -> dict[str, list[str]]:
    """The names of rows whose learners are the same, by the first of them: they differ in how they are trained."""
    found: dict[Recipe, list[str]] = {}
    for name, row in rows.items():
        usual = {field: getattr(methods.mocov3, field) for field in TRAINED}
        found.setdefault(replace(row.recipe, **usual), []).append(name)
    return {names[0]: names for names in found.values()}


class Narrow(models.ResNet):
    """A ResNet of the same stages with a block in each, an eighth as wide: of millions of weights few are left."""

    def __init__(self, **options: bool) -> None:
        super().__init__(BasicBlock, [1, 1, 1, 1], **options)
        self.fc = nn.Linear(self.inplanes, 1)

    def _make_layer(self, block: type[BasicBlock], planes: int, *others: int, **options: int) -> nn.Sequential:
        return super()._make_layer(block, planes // 8, *others, **options)


narrow = patch.object(models, "resnet18", Narrow)  # while it lasts, a ResNet-18 is such a one


def _narrow(head: MLP) -> MLP:
    return replace(head, widths=tuple(max(8, width // 64) for width in head.widths))


def crops(recipe: Recipe, images: int = BATCH, seed: int = 0) -> list[Tensor]:
    """A batch of noise for the recipe's table of views."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(view.count, images, 3, view.size, view.size, generator=generator) for view in recipe.views]


def stack(x: Tensor, grid: int = 1) -> Samples:
    """A stack whose sample s has seen view s."""
    return Samples(x, tuple(frozenset({s}) for s in range(len(x))), grid)


def branch(encoder: nn.Module) -> Branch:
    """A branch around any module, for steps that need no more of it."""
    built = Branch.__new__(Branch)
    nn.Module.__init__(built)
    built.encoder = encoder
    return built


BLANK = branch(nn.Identity())
