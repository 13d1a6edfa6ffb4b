"""Figures: whether pre-training has helped, and what a step costs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

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
    save(lambda: draw(records, title), path)


def growth(record: Mapping[str, Any], path: Path) -> None:
    """Draw how the rate of a step changes with batch, image size and patches, into a .png or .svg."""
    save(lambda: draw_growth(record), path)


def save(make: "Callable[[], Figure]", path: Path) -> None:
    """Draw something into a .png or .svg."""
    from matplotlib import style

    kind = path.suffix.lower()
    if kind not in (".png", ".svg"):
        raise ValueError(f"figure {str(path)!r} ends in {kind or 'nothing'!r}; use .png or .svg")
    # The same records make the same bytes, whatever the date and a user's own settings are.
    nothing = {"Date": None, "Creator": None} if kind == ".svg" else {"Software": None}
    with style.context(["default", {"svg.hashsalt": "fastmoco"}]):
        figure = make()
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
    panel.set_title(title, loc="left", fontsize=11)
    panel.set_xscale("log")
    panel.set_xlabel("labels used (%)")
    ticks(panel, shares)
    quieten(panel)


def ticks(panel: "Axes", places: Sequence[int | float]) -> None:
    """Plain numbers, where something was measured."""
    from matplotlib.ticker import NullLocator

    panel.set_xticks(places, [f"{place:g}" for place in places])
    panel.xaxis.set_minor_locator(NullLocator())


def quieten(panel: "Axes") -> None:
    """Only what helps to read a number."""
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


# The growth of cost

# The question, batch, size, m, n, samples, whether it fits; if so the rate, and a GPU's peak memory.
Point = Mapping[str, Any]

AXES = {  # for each question: the number that grows, its name, whether by factors, and what stays the same
    "batch": ("batch", "images in a step", True, "{size} px"),
    "size": ("size", "pixels of a side", False, "batch {batch}"),
    "patches": ("samples", "samples of an image", True, "batch {batch}"),
}


def draw_growth(record: Mapping[str, Any]) -> "Figure":
    """A panel of rates for each question, above a strip of the memory that they take where that was measured."""
    from matplotlib.figure import Figure

    asked = {name: [point for point in record["points"] if name in point["asked"]] for name in AXES}
    asked = {name: points for name, points in asked.items() if any(point["fits"] for point in points)}
    assert asked, "there is nothing to draw"
    memory = any(point.get("peak_gib") for point in record["points"])
    figure = Figure(figsize=(0.6 + 4.1 * len(asked), 5.4 if memory else 4.2), layout="constrained")
    how = [f"{'' if record[name] else 'not '}{name}" for name in ("compiled", "recorded")]
    title = ", ".join([f"A step of {record['encoder']} on {record['hardware']}: {record['precision']}", *how])
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", wrap=True)
    heights = [3.2, 1] if memory else [1]
    rows = figure.subplots(len(heights), len(asked), sharex="col", squeeze=False, height_ratios=heights)
    for column, (name, points) in zip(rows.T, asked.items(), strict=True):
        _compare(column[0], name, points)
        if memory:
            _lines(column[1], AXES[name][0], points, "peak_gib", 1.2)
            column[1].set_ylim(bottom=0)
        for panel in column:
            quieten(panel)
        ticks(column[-1], sorted({point[AXES[name][0]] for point in points}))
        column[-1].set_xlabel(AXES[name][1])
    for panel, words in zip(rows[:, 0], ("images a second", "peak, GiB"), strict=False):
        panel.set_ylabel(words)
    return figure


def _compare(panel: "Axes", name: str, points: Sequence[Point]) -> None:
    """The rates of one question, and what they are to be seen beside."""
    key, _, by_factors, held = AXES[name]
    panel.set_title(f"{name}, at {held.format(**points[0])}", loc="left", fontsize=11)
    if by_factors:
        panel.set_xscale("log", base=2)
    _lines(panel, key, points, "images_per_second", 1.8)
    if name == "patches":
        _label_patches(panel, points)
    else:
        for point in points:
            rate = point.get("images_per_second", 0)
            place = "right" if name == "size" else "above"
            _say(panel, f"{rate:,.0f}" if point["fits"] else "does\nnot fit", point[key], rate, place)
    if name == "size":
        _show_pixels(panel, [point for point in points if point["fits"]])
    panel.margins(x=0.08)
    panel.set_ylim(0, 1.1 * panel.get_ylim()[1])
    panel.yaxis.set_major_formatter("{x:,.0f}")


def _lines(panel: "Axes", key: str, points: Sequence[Point], value: str, width: float) -> None:
    """A line for each division, which has its colour in all panels."""
    for m in sorted({point["m"] for point in points}):
        line = sorted((point[key], point[value]) for point in points if point["m"] == m and point["fits"])
        size = next(point["size"] for point in points if point["m"] == m)
        panel.plot(
            [x for x, _ in line],
            [y for _, y in line],
            label="MoCo v3" if m == 1 else f"m = {m}, {size} px",
            color=COLOURS[(m - 2) % len(COLOURS)],
            marker=MARKERS[(m - 2) % len(MARKERS)],
            markersize=3 * width,
            linewidth=width,
            clip_on=False,
        )


def _label_patches(panel: "Axes", points: Sequence[Point]) -> None:
    """Whole views as a line across; n at each point, several where they give as many samples."""
    together: dict[tuple[int, int], list[Point]] = {}
    for point in sorted(points, key=lambda point: point["n"]):
        if point["m"] == 1 and point["fits"]:
            panel.axhline(point["images_per_second"], color=COLOURS[-1], linewidth=0.8, linestyle=":")
        elif point["m"] > 1:
            together.setdefault((point["m"], point["samples"]), []).append(point)
    for (_, samples), group in together.items():
        rate = min(point.get("images_per_second", 0) for point in group)
        words = ", ".join(str(point["n"]) for point in group)
        _say(panel, words if rate else f"{words}: does\nnot fit", samples, rate, "below" if rate else "above")
    panel.legend(title="n is at each point", title_fontsize=9, loc="lower left", alignment="left", frameon=False)


def _show_pixels(panel: "Axes", points: Sequence[Point]) -> None:
    """What rates would be if a step cost as much as it has pixels."""
    largest = max(points, key=lambda point: float(point["size"]))
    sides = sorted(point["size"] for point in points)
    rates = [largest["images_per_second"] * (largest["size"] / side) ** 2 for side in sides]
    panel.plot(sides, rates, color=QUIET, linewidth=1, linestyle=":")
    panel.legend(panel.lines[-1:], ["if only pixels counted"], loc="upper right", frameon=False)


# Where words stand: how far from their point, and which of their corners is there.
PLACES = {"above": (0, 8, "center", "bottom"), "below": (0, -8, "center", "top"), "right": (7, 4, "left", "bottom")}


def _say(panel: "Axes", words: str, x: int, y: int | float, place: str) -> None:
    """Words beside a point. A thin line that passes there is covered."""
    right, up, across, along = PLACES[place]
    note = panel.annotate(words, (x, y), (right, up), textcoords="offset points", fontsize=9, color=QUIET)
    note.set(ha=across, va=along, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
