"""The steps that a path is made of. Each is a value without state: it plans what it will make, and makes it."""

from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Int64
from torch import Tensor

from fastmoco.branch import Branch
from fastmoco.distributed import permute, world
from fastmoco.merge import Mean, Merge
from fastmoco.patches import divide, stitch, take, tiles
from fastmoco.samples import EMBEDDING, IMAGE, LAST_MAP, MOST, PREDICTION, PROJECTION, Group, Plan, Samples, unite


@runtime_checkable
class Step(Protocol):
    def plan(self, plan: Plan) -> Plan:
        """What the step makes of samples like these; raises ValueError if it cannot."""

    def __call__(self, samples: Samples, branch: Branch) -> Samples:
        """Make it."""


Path = tuple[Step, ...]


def follow(path: Path, samples: Samples, branch: Branch) -> Samples:
    for step in path:
        samples = step(samples, branch)
    return samples


@dataclass(frozen=True)
class Divide:
    """Each view as an m x m grid of patches, on the device."""

    m: int

    def plan(self, plan: Plan) -> Plan:
        plan.require(self, IMAGE)
        if self.m < 1:
            raise ValueError(f"{self} makes no patches; use m of 1 or more")
        if len(plan.seen) * self.m**2 > MOST:
            raise ValueError(f"{self} makes more than {MOST:,} patches of an image; use a smaller m")
        if plan.height % self.m or plan.width % self.m:
            fits = -(-plan.width // self.m) * self.m
            raise ValueError(
                f"{self}: {plan.height}x{plan.width} pixels do not divide by {self.m}; use a view of {fits}"
            )
        seen = unite(plan.seen, self._sources(len(plan.seen)))
        return replace(plan, seen=seen, height=plan.height // self.m, width=plan.width // self.m, grid=self.m)

    def __call__(self, samples: Samples, branch: Branch) -> Samples:
        return samples.regroup(divide(samples.x, self.m), self._sources(len(samples.seen)), grid=self.m)

    def _sources(self, views: int) -> list[Group]:
        return [(view,) for view in range(views) for _ in range(self.m**2)]


@dataclass(frozen=True)
class Stitch:
    """Patches, or their feature maps, put together as rows x columns in their original place."""

    rows: int
    columns: int

    def plan(self, plan: Plan) -> Plan:
        plan.require(self, *range(IMAGE, EMBEDDING))
        if min(self.rows, self.columns) < 1:
            raise ValueError(f"{self} makes no image; use 1 or more rows and columns")
        groups = tiles(len(plan.seen), plan.grid, self.rows, self.columns)
        height, width = plan.height * self.rows, plan.width * self.columns
        return replace(plan, seen=unite(plan.seen, groups), height=height, width=width, grid=1)

    def __call__(self, samples: Samples, branch: Branch) -> Samples:
        groups = tiles(len(samples.seen), samples.grid, self.rows, self.columns)
        return samples.regroup(stitch(samples.x, groups, self.rows, self.columns), groups)


@dataclass(frozen=True)
class Encode:
    """The encoder, whole or from after stage `start` to after stage `stop`; stage 5 pools the map to an embedding."""

    start: int = IMAGE
    stop: int = EMBEDDING

    def plan(self, plan: Plan) -> Plan:
        if not IMAGE <= self.start < self.stop <= EMBEDDING:
            raise ValueError(
                f"{self}: stages run from 0 (image) over 1 to 4 (maps) to 5 (embedding), start before stop"
            )
        plan.require(self, self.start)
        return replace(plan, stage=self.stop)

    def __call__(self, samples: Samples, branch: Branch) -> Samples:
        return samples.through(lambda x: branch.encoder(x, self.start, self.stop))


@dataclass(frozen=True)
class Combine:
    """All n-subsets of a stack merged into new samples, or `count` of them in which all take part equally often."""

    n: int
    merge: Merge = field(default_factory=Mean)
    count: int | None = None

    def plan(self, plan: Plan) -> Plan:
        plan.require(self, EMBEDDING, PROJECTION, PREDICTION)
        try:
            groups = self.merge.groups(len(plan.seen), self.n, plan.grid, self.count)
        except ValueError as error:
            raise ValueError(f"Combine: {error}") from None
        return replace(plan, seen=unite(plan.seen, groups), grid=1)

    def __call__(self, samples: Samples, branch: Branch) -> Samples:
        groups = self.merge.groups(len(samples.seen), self.n, samples.grid, self.count)
        members = [take(samples.x, places) for places in zip(*groups, strict=True)]
        return samples.regroup(self.merge(members), groups)


@dataclass(frozen=True)
class Project:
    def plan(self, plan: Plan) -> Plan:
        plan.require(self, EMBEDDING)
        return replace(plan, stage=PROJECTION)

    def __call__(self, samples: Samples, branch: Branch) -> Samples:
        return samples.through(branch.projector)


@dataclass(frozen=True)
class Predict:
    def plan(self, plan: Plan) -> Plan:
        plan.require(self, PROJECTION)
        return replace(plan, stage=PREDICTION)

    def __call__(self, samples: Samples, branch: Branch) -> Samples:
        assert branch.predictor is not None, "a target path has no Predict"
        return samples.through(branch.predictor)


@dataclass(frozen=True)
class Nearest:
    """NNCLR: each target replaced by its nearest neighbour among the targets of earlier steps."""

    def plan(self, plan: Plan) -> Plan:
        plan.require(self, PROJECTION)
        return plan

    def __call__(self, samples: Samples, branch: Branch) -> Samples:
        assert branch.support is not None, "a recipe with Nearest has a support set"
        # Crop by crop, so that the set keeps one order, however the images are spread over ranks.
        return replace(samples, x=torch.stack([branch.support(x) for x in samples.x]))


@dataclass(frozen=True)
class MontageEncodeDivide:
    """JigClu: patches of different images share a montage of m x m, whose last map is divided into embeddings again."""

    m: int

    def plan(self, plan: Plan) -> Plan:
        plan.require(self, IMAGE)
        if self.m < 1 or len(plan.seen) % self.m**2:
            raise ValueError(
                f"{self}: {len(plan.seen)} patches an image do not fill montages; use a multiple of {self.m**2}"
            )
        return replace(plan, stage=EMBEDDING)

    def __call__(self, samples: Samples, branch: Branch) -> Samples:
        # The paper does not say among which images patches are shuffled; we take those of all ranks, as JigClu does.
        places = self._shuffle(*samples.x.shape[:2])
        mosaic = permute(samples.x.flatten(0, 1), places).reshape(self.m**2, -1, *samples.x.shape[2:])
        montages = stitch(mosaic, [tuple(range(self.m**2))], self.m, self.m)[0]
        maps = branch.encoder(montages, IMAGE, LAST_MAP)
        # A map of 7x7 does not divide by 2: JigClu resizes it to 8x8.
        height, width = (-(-side // self.m) * self.m for side in maps.shape[2:])
        if (height, width) != tuple(maps.shape[2:]):
            maps = F.interpolate(maps, size=(height, width), mode="bilinear", align_corners=False)
        divided = divide(maps.unsqueeze(0), self.m).flatten(0, 1)
        embeddings = permute(branch.encoder(divided, LAST_MAP, EMBEDDING), places.argsort())
        return Samples(embeddings.reshape(*samples.x.shape[:2], -1), samples.seen, samples.grid)

    def _shuffle(self, samples: int, images: int) -> Int64[Tensor, " places"]:
        """Which patch of all ranks is where in the montages of all ranks, each rank's in a row.

        The order is drawn for the joined batch, so that it is the same whatever the number of ranks.
        """
        ranks = world()
        order = torch.randperm(samples * images * ranks)
        joined = (
            torch.arange(len(order)).view(samples, ranks, images).transpose(0, 1).flatten()
        )  # places there, by rank
        wanted = order.view(self.m**2, ranks, -1).transpose(0, 1).flatten()
        return joined.argsort()[wanted]
