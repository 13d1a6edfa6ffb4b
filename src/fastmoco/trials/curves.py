"""Figures of sweeps: two methods over epochs and minutes, and the paper's ablations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from fastmoco.merge import Beta, Weighted
from fastmoco.plots import COLOURS, MARKERS, QUIET, quieten, save, ticks
from fastmoco.recipe import Recipe
from fastmoco.recipes import find, rows
from fastmoco.steps import Combine, Divide
from fastmoco.transfer import carry
from fastmoco.trials.evidence import Evidence, average, comparable, measures, minutes
from fastmoco.trials.findings import KNN, WORDS, Finding
from fastmoco.trials.rivals import METHODS, NEW, OLD
from fastmoco.trials.tables import carried
from fastmoco.trials.tally import Score, length, score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Line = list[tuple[float, Score]]  # where each point stands, and the number there
STYLES = {OLD: ":", NEW: "--"}  # of lines across
COLUMNS = 3
BELOW = 4  # points of top-1 that are seen of what is on its way
LETTERS = 20  # that fit beside each other below a panel


def epochs(evidence: Evidence, path: Path) -> bool:
    """Draw what both methods are worth after more epochs and minutes; False if there is nothing to draw."""
    there = bool(_runs(evidence))
    if there:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(lambda: draw_epochs(evidence), path)
    return there


def ablations(evidence: Evidence, path: Path) -> bool:
    """Draw those of the paper's Figures 3a, 3b, 4a, 4b and 6 that have findings; False if none has."""
    panels = studies(evidence)
    if panels:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(lambda: draw_ablations(panels, evidence.title), path)
    return bool(panels)


# Epochs and minutes


def draw_epochs(evidence: Evidence) -> "Figure":
    """Points are runs that ended; faint lines are the kNN of each run on its way there."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    runs = _runs(evidence)
    shown = measures(runs)
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    figure.suptitle(f"More epochs, on {evidence.title}", x=0.01, ha="left", fontsize=13, fontweight="bold")
    ways = (False, True) if _timed(evidence) else (False,)
    panels = figure.subplots(1, len(ways), sharey=True, squeeze=False)[0]
    for panel, timed in zip(panels, ways, strict=True):
        for (method, row), colour, marker in zip(METHODS.items(), COLOURS, MARKERS, strict=False):
            recipe = carry(find(row).recipe, evidence.setting)
            groups = [evidence.of(recipe, number) for number in evidence.epochs([recipe])]
            others = [each for group in groups for each in group]
            for run in others:
                end = _where([run], others, timed)
                curve = [(end * epoch / run.recipe.epochs, top1) for epoch, _, top1 in run.curve if end and epoch > 0]
                panel.plot([x for x, _ in curve], [y for _, y in curve], color=colour, linewidth=0.8, alpha=0.25)
            for name in shown:
                means = [(_where(group, others, timed), average(group, name)) for group in groups]
                line = [(x, mean) for x, mean in means if x is not None and mean is not None]
                if not line:
                    continue
                _line(panel, line, f"{method}, {WORDS[name]}", colour, marker, hollow=name != KNN)
        quieten(panel)
    panels[0].set_xscale("log", base=2)
    after = sorted({run.recipe.epochs for run in runs})
    ticks(panels[0], after)
    panels[0].set_xlim(left=after[0] / 2)
    panels[0].set_xlabel("epochs")
    for panel in panels[1:]:
        panel.set_xlim(left=0)
        panel.set_xlabel("minutes of training, once compiled,\nwith the device to itself")
    panels[0].set_ylabel("top-1 (%), with its s.d. over seeds\nwhere there are several")
    scores = [top1 for run in runs for name in shown if (top1 := run.score(name)) is not None]
    panels[0].set_ylim(bottom=min(scores) - BELOW)
    bars, names = panels[0].get_legend_handles_labels()
    faint = Line2D([], [], color=QUIET, linewidth=0.8, alpha=0.5)
    figure.legend([*bars, faint], [*names, "kNN on the way"], loc="outside lower center", ncols=3, frameon=False)
    return figure


def _timed(evidence: Evidence) -> bool:
    """Whether each method that was trained has had the device to itself once, and all of these by the same means.

    One alone, or one on a better device, would look like the faster.
    """
    methods = [runs for runs in _by_method(evidence) if runs]
    alone = all(any(each.jobs == 1 for each in runs) for runs in methods)
    return alone and comparable(each for runs in methods for each in runs)


def _runs(evidence: Evidence) -> list[Finding]:
    """All runs of both methods that have a number to draw."""
    runs = [each for runs in _by_method(evidence) for each in runs]
    return runs if measures(runs) else []


def _by_method(evidence: Evidence) -> list[list[Finding]]:
    recipes = [carry(find(row).recipe, evidence.setting) for row in METHODS.values()]
    return [[each for number in evidence.epochs([one]) for each in evidence.of(one, number)] for one in recipes]


def _where(group: Sequence[Finding], others: Sequence[Finding], timed: bool) -> float | None:
    """The epochs of some trainings of a method, or their minutes if those are known."""
    if not timed:
        return float(group[0].recipe.epochs)
    mean = score(minutes(each, others) for each in group)
    return None if mean is None else mean.mean


# Ablations


@dataclass(frozen=True)
class Study:
    """One panel: lines by name, and what its axis is."""

    title: str
    axis: str
    lines: Mapping[str, Line]
    names: tuple[str, ...] = ()  # of the places 0, 1, 2, ..., where these are no numbers
    by_factors: bool = False
    levels: Mapping[str, Score] = field(default_factory=dict)  # of the two methods, to be seen beside

    @property
    def places(self) -> list[float]:
        return sorted({x for line in self.lines.values() for x, _ in line})


def studies(evidence: Evidence) -> list[Study]:
    """The panels for which there are findings of two rows or more, as the paper's figures are."""
    stages = ("input", "stage1", "stage2", "stage3", "final")
    heads = (*stages, "projector", "predictor")
    made = [
        _study(evidence, "figure3a", "patches are combined at", names=stages),
        _study(evidence, "figure3b", "patches that are combined, n"),
        _study(evidence, "figure4a", "weight of the first patch, gamma"),
        _study(evidence, "figure4b", "weights from Beta(alpha, alpha)", by_factors=True),
        _study(evidence, "figure6", "two patches are combined at", names=heads),
    ]
    return [study for study in made if study]


def _study(
    evidence: Evidence, table: str, axis: str, names: tuple[str, ...] = (), by_factors: bool = False
) -> Study | None:
    recipes, _ = carried(rows(table), evidence.setting)
    number = evidence.usual(list(recipes.values()))
    found = {row: evidence.of(recipe, number) for row, recipe in recipes.items()}
    beside = {method: evidence.row(row, number) for method, row in METHODS.items()}
    shown = measures([each for findings in (*found.values(), *beside.values()) for each in findings])
    lines: dict[str, Line] = {}
    for row, findings in found.items():
        if shown and (mean := average(findings, shown[0])):
            line, x = _place(row.partition("/")[2], recipes[row], names)
            lines.setdefault(line, []).append((x, mean))
    if sum(map(len, lines.values())) < 2:
        return None  # as there is nothing to compare
    lone = ", one seed" * (max(map(len, found.values())) == 1)
    title = f"Figure {table.removeprefix('figure')}, {length(number)}{lone}: {WORDS[shown[0]]}"
    levels = {method: mean for method, findings in beside.items() if (mean := average(findings, shown[0]))}
    return Study(title, axis, lines, names, by_factors, levels)


def _place(row: str, recipe: Recipe, names: tuple[str, ...]) -> tuple[str, float]:
    """Which line a row is on, and where."""
    if names:
        where, _, patches = row.partition("_")
        return f"{patches} patches", float(names.index(where))
    path = recipe.views[0].online
    combine = next(step for step in path if isinstance(step, Combine))
    if isinstance(combine.merge, Weighted):
        return "two patches", combine.merge.gamma
    if isinstance(combine.merge, Beta):
        return "two patches", combine.merge.alpha
    m = next(step.m for step in path if isinstance(step, Divide))
    return f"m = {m}", float(combine.n)


def draw_ablations(panels: Sequence[Study], where: str) -> "Figure":
    """A panel for each study; a line for each way to divide, and the levels of both methods."""
    from matplotlib.figure import Figure

    levels: dict[str, Line2D] = {}
    columns = min(COLUMNS, len(panels))
    down = -(-len(panels) // columns)
    figure = Figure(figsize=(0.6 + 4.1 * columns, 0.5 + 3.5 * down), layout="constrained")
    gap = "\n" if columns == 1 else " "  # a panel alone is narrower than the title
    figure.suptitle(f"Ablations on {where}:{gap}top-1 (%)", x=0.01, ha="left", fontsize=13, fontweight="bold")
    # One scale for all, so that a point of top-1 is as high in every panel.
    grid = figure.subplots(down, columns, squeeze=False, sharey=True).flatten()
    for panel, study in zip(grid, panels, strict=False):
        for (label, line), colour, marker in zip(study.lines.items(), cycle(COLOURS), cycle(MARKERS)):
            _line(panel, line, label, colour, marker)
        for method, level in study.levels.items():
            levels[method] = panel.axhline(level.mean, color=QUIET, linewidth=1, linestyle=STYLES[method], label=method)
        panel.set_title(study.title, loc="left", fontsize=11)
        panel.set_xlabel(study.axis)
        _scale(panel, study)
        quieten(panel)
        if len(study.lines) > 1:
            named = dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
            own = [named[label] for label in study.lines]
            panel.legend(own, list(study.lines), edgecolor="none", fontsize=9)  # on white, as lines may pass behind
    for panel in grid[len(panels) :]:
        panel.remove()
    if levels:
        figure.legend(list(levels.values()), list(levels), loc="outside lower right", ncols=len(levels), frameon=False)
    return figure


def _scale(panel: "Axes", study: Study) -> None:
    if study.by_factors:
        panel.set_xscale("log", base=2)
    ticks(panel, study.places)
    if study.names:
        panel.set_xticks(range(len(study.names)), study.names)
    if sum(len(label.get_text()) for label in panel.get_xticklabels()) > LETTERS:
        panel.tick_params(axis="x", labelrotation=30)
    panel.margins(x=0.06)


def _line(panel: "Axes", line: Line, label: str, colour: str, marker: str, hollow: bool = False) -> None:
    """Means, joined by a line, with their standard deviation where there is one."""
    spreads = [mean.spread for _, mean in line]
    panel.errorbar(
        [x for x, _ in line],
        [mean.mean for _, mean in line],
        yerr=None if all(each is None for each in spreads) else [nan if each is None else each for each in spreads],
        label=label,
        color=colour,
        marker=marker,
        markerfacecolor="none" if hollow else colour,  # which hides no other
        linestyle="--" if hollow else "-",
        markersize=5,
        linewidth=1.6,
        elinewidth=1.2,
        capsize=3.5,
    )
