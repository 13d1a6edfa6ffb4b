"""Figures: whether pre-training has helped."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from fastmoco.checkpoint import write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, object]  # encoder, method, labels (percent), seed, top1 (percent)

PANELS = {"linear": "linear probe", "finetune": "fine-tuning"}
# Okabe and Ito (2008), who chose them for all kinds of colour vision; markers tell the lines apart without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^v"
QUIET = "#666666"
LETTERS = 44  # that fit beside each other below a panel


def gain(records: Sequence[Record], path: Path, title: str) -> None:
    """Draw top-1 over the share of labels, a line for each encoder, into a .png or .svg."""
    from matplotlib import style

    kind = path.suffix.lower()
    if kind not in (".png", ".svg"):
        raise ValueError(f"figure {str(path)!r} ends in {kind or 'nothing'!r}; use .png or .svg")
    # The same records make the same bytes, whatever the date and a user's own settings are.
    nothing = {"Date": None, "Creator": None} if kind == ".svg" else {"Software": None}
    with style.context(["default", {"svg.hashsalt": "fastmoco"}]):
        figure = draw(records, title)
        write(path, lambda file: figure.savefig(file, format=kind[1:], dpi=200, metadata=nothing))


def draw(records: Sequence[Record], title: str) -> "Figure":
    """A panel for each method, with the mean over seeds and, of several, their standard deviation."""
    from matplotlib.figure import Figure

    assert records, "there is nothing to draw"
    assert all(record["method"] in PANELS for record in records), "a method without a panel"
    encoders = list(dict.fromkeys(str(record["encoder"]) for record in records))
    methods = [method for method in PANELS if any(record["method"] == method for record in records)]
    columns = max(1, min(len(encoders), LETTERS * len(methods) // (8 + max(map(len, encoders)))))
    rows = -(-len(encoders) // columns)
    figure = Figure(figsize=(1.4 + 3.6 * len(methods), 3.8 + 0.25 * rows), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", wrap=True)
    panels = figure.subplots(1, len(methods), sharey=True, squeeze=False)[0]
    for panel, method in zip(panels, methods, strict=True):
        shown = [record for record in records if record["method"] == method]
        _arrange(panel, PANELS[method], sorted({_number(record, "labels") for record in shown}))
        for encoder, colour, marker in zip(encoders, cycle(COLOURS), cycle(MARKERS)):
            _line(panel, encoder, average(record for record in shown if record["encoder"] == encoder), colour, marker)
    panels[0].set_ylabel("top-1 ± s.d. over seeds (%)" if _repeated(records) else "top-1 (%)")
    bars, names = panels[0].get_legend_handles_labels()
    figure.legend([bar[0] for bar in bars], names, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def average(records: Iterable[Record]) -> list[tuple[float, float, float]]:
    """For each share of labels, in rising order: the share, the mean, and the spread, which one seed does not have."""
    scores: dict[float, list[float]] = {}
    for record in records:
        scores.setdefault(_number(record, "labels"), []).append(_number(record, "top1"))
    return [
        (share, fmean(each), stdev(each) if len(each) > 1 else float("nan")) for share, each in sorted(scores.items())
    ]


def _repeated(records: Sequence[Record]) -> bool:
    """Whether anything was done with more than one seed."""
    return len({(record["encoder"], record["method"], record["labels"]) for record in records}) < len(records)


def _number(record: Record, name: str) -> float:
    value = record[name]
    assert isinstance(value, int | float), f"{name}={value!r} is no number"
    return float(value)


def _arrange(panel: "Axes", title: str, shares: list[float]) -> None:
    from matplotlib.ticker import NullLocator

    panel.set_title(title, loc="left", fontsize=11)
    panel.set_xscale("log")
    panel.set_xlabel("labels used (%)")
    panel.set_xticks(shares, [f"{share:g}" for share in shares])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(QUIET)
    panel.tick_params(axis="y", length=0)
    panel.tick_params(axis="x", color=QUIET)


def _line(panel: "Axes", encoder: str, points: list[tuple[float, float, float]], colour: str, marker: str) -> None:
    shares, means, spreads = zip(*points, strict=True) if points else ((), (), ())
    panel.errorbar(
        shares,
        means,
        yerr=spreads,
        label=encoder,
        color=colour,
        marker=marker,
        markersize=5,
        linewidth=1.8,
        elinewidth=1.2,
        capsize=3.5,
        clip_on=False,
    )
