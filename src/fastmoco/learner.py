"""From a batch of views to a loss. The training loop knows `forward` and `update`, and asks for its `health`."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fastmoco import encoder, health
from fastmoco.branch import Branch
from fastmoco.distributed import gather_later, rank
from fastmoco.heads import mlp
from fastmoco.pairs import meetings
from fastmoco.patches import take
from fastmoco.recipe import SIDES, Recipe, View
from fastmoco.samples import Samples, join
from fastmoco.steps import Nearest, Predict, follow
from fastmoco.support import Support


class Learner(nn.Module):
    """The branches of a recipe, and one step of its method."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        eye = encoder.build(recipe.encoder)
        for height, width in sorted({(plan.height, plan.width) for side in SIDES for plan in recipe.plans(side)}):
            eye.admit(height, width)
        width = recipe.projector.widths[-1]
        predictor = mlp(width, recipe.predictor) if recipe.uses(Predict) else None
        self.online = Branch(eye, mlp(eye.width, recipe.projector), predictor)
        # None, and not a second name of the online branch, which would put every weight into the state dict twice.
        self.momentum = recipe.target.copy(self.online)
        self.latest: tuple[Samples, Samples] | None = None  # what the last batch became: samples and targets
        if recipe.uses(Nearest):
            self.target.support = Support(recipe.support, width)

    @property
    def target(self) -> Branch:
        """The branch that makes the targets."""
        return self.online if self.momentum is None else self.momentum

    def forward(self, batch: Sequence[Float[Tensor, "_ b 3 _ _"]]) -> Float[Tensor, ""]:
        """The mean over all pairs. A batch holds the crops of each row of the table of views."""
        shared = self._shared(batch)
        targets = self._targets(shared)
        everyone = gather_later(targets.x.transpose(0, 1))  # they travel while the online branch is at work
        samples = self._samples(shared)
        self.latest = samples.detach(), targets
        own = rank() * targets.x.shape[1] + torch.arange(targets.x.shape[1], device=targets.x.device)
        met = meetings(self.recipe.pairs, samples.seen, targets.seen)
        gathered = everyone().unbind(1)
        losses = [
            self.recipe.contrast(take(samples.x, group), target, own)
            for group, target in zip(met, gathered, strict=True)
        ]
        return torch.cat(losses).mean()

    def _shared(self, batch: Sequence[Float[Tensor, "_ b 3 _ _"]]) -> list[Samples]:
        """The crops of each view, after the steps that one pass makes for both sides."""
        self._check(batch)
        if self.target.support is not None:
            self.target.support.noted.clear()  # of a batch that no update followed
        return [
            follow(view.online[: self.common(view)], Samples(x, seen), self.online)
            for view, seen, x in zip(self.recipe.views, self.recipe.seen(), batch, strict=True)
        ]

    @torch.no_grad()
    def _targets(self, shared: list[Samples]) -> Samples:
        views = zip(self.recipe.views, shared, strict=True)
        return join(
            [follow(view.target[self.common(view) :], x.detach(), self.target) for view, x in views if view.target]
        )

    def _samples(self, shared: list[Samples]) -> Samples:
        views = zip(self.recipe.views, shared, strict=True)
        return join([follow(view.online[self.common(view) :], x, self.online) for view, x in views if view.online])

    def common(self, view: View) -> int:
        """How many steps one pass makes for both sides: SimSiam's target is a point on its online path."""
        if self.momentum is not None:
            return 0
        same = [ours == theirs for ours, theirs in zip(view.online, view.target, strict=False)]
        return [*same, False].index(False)

    def _check(self, batch: Sequence[Tensor]) -> None:
        """A batch of another shape could pass every network and still pair the wrong samples."""
        given = [tuple(x.shape) for x in batch]
        images = given[0][1] if given and len(given[0]) == 5 else 0
        wanted = [(view.count, images, 3, view.size, view.size) for view in self.recipe.views]
        if given != wanted or images == 0:
            needs = ", ".join(f"({view.count}, images, 3, {view.size}, {view.size})" for view in self.recipe.views)
            raise ValueError(f"a batch of shapes {given} does not fit; this recipe needs {needs}")

    @torch.no_grad()
    def update(self) -> None:
        """After the optimiser's step: move the target branch (Eq. 1), and store this step's targets in the support."""
        self.recipe.target.update(self.online, self.target)
        if self.target.support is not None:
            self.target.support.store()

    def health(self) -> dict[str, Float[Tensor, ""]]:
        """How the last batch looks, over all ranks, and how the branches are; for those who watch over it."""
        assert self.latest is not None, "there is no batch yet"
        samples, targets = self.latest
        found = health.measure(samples.x, targets.x, self.recipe.meetings())
        found["health/off"] = health.off(self.online.encoder)
        if self.momentum is not None:
            found["health/drift"] = health.drift(self.online, self.momentum)
        return found
