"""Time and cost of 100 epochs of ImageNet by the number of GPUs: computed from the measured rate of one, not measured.

A step takes the time that one GPU was measured to need for its part of the batch, and the communication that nothing
hides. What travels is counted on the real networks. How fast it travels is stated below: change it to what you have.

    python benchmarks/scaling.py            # prints the tables
    python benchmarks/scaling.py --write    # puts them into docs/clusters.md
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fastmoco import cost
from fastmoco.learner import Learner
from fastmoco.recipe import Recipe
from fastmoco.recipes import find

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "clusters.md"
RECORD = ROOT / "benchmarks" / "records" / "rates-h200.json"
SYNCHRONISED = RECORD.with_name("rates-h200-synchronised.json")  # used if it is there
OPEN, CLOSE = "<!-- scaling -->", "<!-- /scaling -->"

ROW = "table4a/fast_moco"
IMAGES, EPOCHS = 1_281_167, 100
BATCHES = (512, 4096)
GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PRICE = 3.0  # dollars for an hour of one GPU; put yours in

NODE = 8  # GPUs of a node
NVLINK = 450e9  # bytes a second, each way, from a GPU to the others of its node
LATENCY = 20e-6  # seconds of a collective within a node, and once more for every doubling of the nodes
BUCKET = 25 * 2**20  # bytes of gradients that DDP sends at a time; behind the last no backward pass is left to hide
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Network:
    """Between nodes."""

    name: str
    bandwidth: float  # bytes a second, each way, of a whole node


NETWORKS = (
    Network("400 Gb/s a GPU", NODE * 400e9 / 8),
    Network("100 Gb/s a node", 100e9 / 8),
)


# What travels


@dataclass(frozen=True)
class Norm:
    """One pass of one norm; those of targets have no way back."""

    channels: int
    learns: bool


@dataclass(frozen=True)
class Traffic:
    """What a step sends, before it is known to how many."""

    gradients: int  # bytes
    norms: tuple[Norm, ...]
    targets: int  # bytes of an image
    online: float  # of a forward pass, the part after the targets are made, which hides them


@dataclass(frozen=True)
class Unasked:
    """No contrast: those of a recipe switch autocast off, which torch cannot on the meta device."""

    def __call__(self, samples: Tensor, target: Tensor, own: Tensor) -> Tensor:
        return samples.mean((1, 2))

    def chance(self, batch: int) -> float:
        return 0.0


def count(recipe: Recipe) -> Traffic:
    """Counted on the meta device: the norms are listened to while a batch without values passes."""
    with torch.device("meta"):
        learner = Learner(replace(recipe, contrast=Unasked()))
        batch = [torch.empty(view.count, 2, 3, view.size, view.size) for view in recipe.views]
    norms: list[Norm] = []
    for module in learner.modules():
        if isinstance(module, _BatchNorm):
            module.register_forward_hook(
                lambda norm, *_: norms.append(Norm(norm.num_features, torch.is_grad_enabled()))
            )
    learner(batch)
    assert learner.latest is not None
    _, targets = learner.latest
    learning = sum(weight.numel() for weight in learner.online.parameters() if weight.requires_grad)
    spent = cost.measure(recipe)
    online, target = (sum(sum(view.values()) for view in side) for side in (spent.online, spent.target))
    return Traffic(FLOAT * learning, tuple(norms), FLOAT * targets.x[:, 0].numel(), online / (online + target))


def gathered(ranks: int, size: float) -> float:
    """Bytes that each rank sends so that all have what each had, in a ring."""
    return (ranks - 1) * size


def reduced(ranks: int, size: float) -> float:
    """Bytes that each rank sends so that all have the sum, in a ring."""
    return 2 * (ranks - 1) / ranks * size


# How long it takes


@dataclass(frozen=True)
class Step:
    """Of `gpus` ranks, each with `batch` images. Bytes are those that each rank sends; times are in seconds."""

    gpus: int
    batch: int
    gradients: float
    norms: float
    targets: float
    compute: float
    waits_gradients: float
    waits_norms: float
    waits_targets: float

    @property
    def nodes(self) -> int:
        return ceil(self.gpus / NODE)

    @property
    def waits(self) -> float:
        return self.waits_gradients + self.waits_norms + self.waits_targets

    @property
    def rate(self) -> float:
        """Images a second of all."""
        return self.gpus * self.batch / (self.compute + self.waits)

    @property
    def hours(self) -> float:
        """An epoch drops its incomplete batch."""
        total = self.gpus * self.batch
        return EPOCHS * (IMAGES // total) * total / self.rate / 3600


def step(traffic: Traffic, alone: "Rates", grouped: "Rates", gpus: int, total: int, network: Network) -> Step | None:
    """One step of a batch of `total` images; None if one GPU was not measured with its part of it."""
    batch = total // gpus
    found = (alone if gpus == 1 else grouped).at(batch) if batch * gpus == total else None
    if found is None:
        return None
    compute, forward, backward = found
    if gpus == 1:
        return Step(gpus, batch, 0, 0, 0, compute, 0, 0, 0)
    nodes = ceil(gpus / NODE)
    bandwidth = NVLINK if nodes == 1 else min(NVLINK, network.bandwidth)
    latency = LATENCY * (1 + log2(nodes))
    back_and_forth = [
        *(gathered(gpus, FLOAT * (2 * norm.channels + 1)) for norm in traffic.norms),
        *(reduced(gpus, FLOAT * 2 * norm.channels) for norm in traffic.norms if norm.learns),
    ]
    norms = sum(back_and_forth)
    gradients = reduced(gpus, traffic.gradients)
    targets = gathered(gpus, traffic.targets * batch)
    last = latency + reduced(gpus, min(BUCKET, traffic.gradients)) / bandwidth
    all_gradients = latency * ceil(traffic.gradients / BUCKET) + gradients / bandwidth
    return Step(
        gpus,
        batch,
        gradients,
        norms,
        targets,
        compute,
        waits_gradients=max(last, all_gradients - backward),
        waits_norms=latency * len(back_and_forth) + norms / bandwidth,
        waits_targets=max(0.0, latency + targets / bandwidth - traffic.online * forward),
    )


@dataclass(frozen=True)
class Rates:
    """What was measured of one GPU."""

    record: Mapping[str, Any]

    @property
    def measured(self) -> list[Mapping[str, Any]]:
        return sorted(self.record["rates"], key=lambda rate: rate["batch"])

    @property
    def best(self) -> float:
        return max(rate["images_per_second"] for rate in self.measured)

    def at(self, batch: int) -> tuple[float, float, float] | None:
        """Seconds of a step, of its forward and of its backward part, between two measured batches; never beyond."""
        smaller = [rate for rate in self.measured if rate["batch"] <= batch]
        larger = [rate for rate in self.measured if rate["batch"] >= batch]
        if not smaller or not larger:
            return None
        one, other = smaller[-1], larger[0]
        part = (batch - one["batch"]) / max(1, other["batch"] - one["batch"])
        ends = [
            (rate["batch"] / rate["images_per_second"], rate["shares"]["forward"], rate["shares"]["backward"])
            for rate in (one, other)
        ]
        whole, forward, backward = (first + part * (last - first) for first, last in zip(*ends, strict=True))
        return whole, whole * forward, whole * backward


def read(path: Path) -> Rates:
    return Rates(json.loads(path.read_text()))


# What is shown


def report(alone: Rates, grouped: Rates, price: float = PRICE) -> str:
    traffic = count(find(ROW).recipe)
    return "\n\n".join(
        [measured(alone, grouped), *(scaled(traffic, alone, grouped, total, price) for total in BATCHES)]
    )


def measured(alone: Rates, grouped: Rates) -> str:
    both = [("plain norms", alone)] + ([("synchronised norms", grouped)] if grouped is not alone else [])
    lines = []
    for name, rates in both:
        record = rates.record
        lines += [
            "",
            f"**Measured**: one {record['hardware']}, `{record['recipe']}` ({record['encoder']}, {record['size']} px), "
            f"{record['precision']}, {'compiled' if record['compiled'] else 'not compiled'}, {name}, "
            f"torch {record['torch']}, commit {record['commit']}.",
            "",
            *table(
                ["batch", "images/s", "step, ms", "forward", "backward", "optimiser", "peak memory, GiB"],
                (
                    [
                        f"{rate['batch']}",
                        f"{rate['images_per_second']:,.0f}",
                        f"{1e3 * rate['batch'] / rate['images_per_second']:.1f}",
                        *(f"{100 * rate['shares'][part]:.0f} %" for part in ("forward", "backward", "optimiser")),
                        f"{rate['peak_gib']:.1f}",
                    ]
                    for rate in rates.measured
                ),
            ),
        ]
    return "\n".join(lines[1:])


def scaled(traffic: Traffic, alone: Rates, grouped: Rates, total: int, price: float) -> str:
    head = [
        *("GPUs", "nodes", "between nodes", "batch per GPU"),
        *("sent per GPU and step, MB: gradients", "norms", "targets"),
        *("step, ms: compute", "waits of norms", "other waits"),
        *("images/s", "efficiency", "hours", "GPU-hours", f"cost at ${price:g}"),
    ]
    rows = []
    for gpus in GPUS:
        nodes = ceil(gpus / NODE)
        for network in NETWORKS if nodes > 1 else NETWORKS[:1]:
            name = network.name if nodes > 1 else "-"
            made = step(traffic, alone, grouped, gpus, total, network)
            if made is None:
                rows.append([f"{gpus}", f"{nodes}", "-", f"{total // gpus}", *"-" * (len(head) - 4)])
                break
            rows.append([f"{gpus}", f"{nodes}", name, f"{made.batch}", *cells(made, alone.best, price)])
    return "\n".join([f"**Computed, not measured**: batch {total:,} in all.", "", *table(head, rows)])


def cells(made: Step, best: float, price: float) -> Iterator[str]:
    yield from (f"{size / 1e6:.1f}" for size in (made.gradients, made.norms, made.targets))
    yield from (f"{1e3 * time:.1f}" for time in (made.compute, made.waits_norms, made.waits - made.waits_norms))
    yield f"{made.rate:,.0f}"
    yield f"{100 * made.rate / (made.gpus * best):.0f} %"
    yield f"{made.hours:.1f}"
    yield f"{made.gpus * made.hours:.0f}"
    yield f"${made.gpus * made.hours * price:,.0f}"


def table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---:"] * len(head), *rows)]


def text(price: float = PRICE) -> str:
    """What stands in the document."""
    if not RECORD.exists():
        return f"Not measured yet: `benchmarks/rates.py` makes `{RECORD.relative_to(ROOT)}`."
    alone = read(RECORD)
    return report(alone, read(SYNCHRONISED) if SYNCHRONISED.exists() else alone, price)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"put the tables into {DOCUMENT.relative_to(ROOT)}")
    parser.add_argument("--price", type=float, default=PRICE, help="dollars for an hour of one GPU")
    flags = parser.parse_args()
    made = text(flags.price)
    if not flags.write:
        print(made)
        return
    before, _, rest = DOCUMENT.read_text().partition(OPEN)
    _, _, after = rest.partition(CLOSE)
    DOCUMENT.write_text(f"{before}{OPEN}\n\n{made}\n\n{CLOSE}{after}")


if __name__ == "__main__":
    main()
