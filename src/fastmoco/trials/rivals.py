"""MoCo v3 beside Fast-MoCo: what patches bring with the same seeds, after more epochs, and in which encoder."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import exp, log

from fastmoco.documents import Table
from fastmoco.recipes import find
from fastmoco.transfer import carry
from fastmoco.trials.evidence import Evidence, average, cell, comparable, measures, minutes
from fastmoco.trials.findings import CACHED, KNN, LINEAR, PLAIN, WORDS, Finding
from fastmoco.trials.tables import PAPER, legend
from fastmoco.trials.tally import Score, length, score

METHODS = {"MoCo v3": "table4b/mocov3", "Fast-MoCo": "table4b/fast_moco"}
OLD, NEW = METHODS
ENCODERS = (PLAIN, "online, recalibrated", "target", "target, recalibrated")
Take = Callable[[Finding], float | None]
LONG = 600  # seconds, from which on times are told in minutes
OTHER_MEANS = "trainings differ in hardware, threads, precision, loader or how steps are computed"


def paired(evidence: Evidence, epochs: int | None = None) -> tuple[list[Finding], list[Finding]]:
    """Both methods after as many epochs, of the seeds that both have."""
    epochs = epochs or _usual(evidence)
    old, new = (evidence.row(row, epochs) for row in METHODS.values())
    seeds = {each.seed for each in old} & {each.seed for each in new}
    return [each for each in old if each.seed in seeds], [each for each in new if each.seed in seeds]


def headline(evidence: Evidence, epochs: int | None = None) -> Table:
    """Both methods with the same seeds, and their difference, seed by seed."""
    title = f"{OLD} and {NEW} on {evidence.title}"
    old, new = paired(evidence, epochs)
    if not measures([*old, *new]):
        return Table(title)
    unit, word = (60, "minutes") if max(each.seconds for each in (*old, *new)) >= LONG else (1, "seconds")
    columns: dict[str, tuple[Take, int]] = {WORDS[name]: (_scored(name), 1) for name in (LINEAR, CACHED, KNN)}
    if all(each.jobs == 1 for each in (*old, *new)) and comparable((*old, *new)):  # or times are no measure of speed
        columns[word] = (lambda each: each.seconds / unit, 1)
        columns["images/s"] = (lambda each: each.images_per_second, 0)
    columns = {name: way for name, way in columns.items() if any(way[0](each) is not None for each in (*old, *new))}
    lines = []
    for method, findings in ((OLD, old), (NEW, new)):
        means = [cell(score(map(take, findings)), len(old), digits) for take, digits in columns.values()]
        lines.append((method, f"{find(METHODS[method]).paper[LINEAR]:.1f}", *means, str(len(old))))
    apart = find(METHODS[NEW]).paper[LINEAR] - find(METHODS[OLD]).paper[LINEAR]
    means = [
        cell(_apart(map(take, old), map(take, new)), len(old), digits, sign=True) for take, digits in columns.values()
    ]
    lines.append(("difference", f"{apart:+.1f}", *means, str(len(old))))
    after = old[0].recipe.epochs
    way = " The difference is taken seed by seed, and then its mean and deviation." * (len(old) > 1)
    shared = [each.seconds / unit for each in (*old, *new) if each.jobs > 1]
    notes = [f"{length(after)}. {legend([len(old)])}{way}"]
    if shared:
        notes.append(f"Beside others on the device a training took {_span(shared)} {word}: no measure of speed.")
    head = ("", PAPER, *columns, "seeds")
    return Table(f"{title}, {length(after)}", head, tuple(lines), (*notes, evidence.origin([*old, *new])))


def encoders(evidence: Evidence, epochs: int | None = None) -> Table:
    """Which encoder to take: of the online or of the target branch, with batch statistics as they are or made anew."""
    title = f"encoders on {evidence.title}"
    epochs = epochs or _usual(evidence)
    found = {method: evidence.row(row, epochs) for method, row in METHODS.items()}
    lines, used = [], []
    for method, findings in found.items():
        for encoder in ENCODERS:
            held = [each for each in findings if encoder in each.results]
            used += [each for each in held if encoder != PLAIN]
            if held:
                cells = [each for name in (CACHED, KNN) for each in _changed(held, name, encoder)]
                lines.append((f"{method}, {encoder}", *cells, str(len(held))))
    if not used:
        return Table(title)
    head = ("", WORDS[CACHED], "change", WORDS[KNN], "change", "seeds")
    origin = evidence.origin([each for findings in found.values() for each in findings])
    note = f"{length(epochs)}. {legend(map(len, found.values()))} A change is from the online encoder, seed by seed."
    return Table(f"{title}, {length(epochs)}", head, tuple(lines), (note, origin))


def _changed(findings: Sequence[Finding], name: str, encoder: str) -> tuple[str, str]:
    """A number of an encoder, and its change from the online one."""
    here = [each.score(name, encoder) for each in findings]
    change = None if encoder == PLAIN else _apart((each.score(name) for each in findings), here)
    return cell(score(here), len(findings)), cell(change, len(findings), sign=True)


def summary(evidences: Sequence[Evidence]) -> Table:
    """What a reader who reads one table should read: each set, by each measure."""
    lines = []
    for evidence in evidences:
        old, new = paired(evidence)
        for name in measures([*old, *new]):
            lines.append(
                (
                    f"{old[0].data}, {length(old[0].recipe.epochs)}, {WORDS[name]}",
                    *(cell(average(each, name), len(old)) for each in (old, new)),
                    cell(_apart(map(_scored(name), old), map(_scored(name), new)), len(old), sign=True),
                    str(len(old)),
                )
            )
    return Table("summary", ("top-1", OLD, NEW, "difference", "seeds"), tuple(lines))


def lengths(evidence: Evidence) -> Table:
    """Both methods after more and more epochs, and when the old one is where the new one was."""
    title = f"epochs on {evidence.title}"
    recipes = [carry(find(row).recipe, evidence.setting) for row in METHODS.values()]
    after = list(evidence.epochs(recipes))
    found = [{epochs: evidence.of(recipe, epochs) for epochs in after} for recipe in recipes]
    used = [each for method in found for findings in method.values() for each in findings]
    if not measures(used):
        return Table(title)
    shown, timed = measures(used), comparable(used)
    lines = []
    for name, method in zip(METHODS, found, strict=True):
        for epochs, findings in method.items():
            if findings:
                means = (cell(average(findings, measure), len(findings)) for measure in shown)
                taken = _minutes(method, epochs) if timed else None  # whose spread is that of one rate, or of none
                spent = "" if taken is None else f"{taken.mean:.1f}"
                lines.append((f"{name}, {length(epochs)}", *means, spent, str(len(findings))))
    head = ("", *(WORDS[measure] for measure in shown), "minutes", "seeds")
    old, new = found
    said = [_overtaken(old, new, evidence.setting.epochs, name) for name in shown]
    lone = [str(epochs) for epochs, findings in old.items() if len(findings) == 1]
    if lone and any(said):
        said.append(f"Of {OLD}, one seed stands behind each of: {', '.join(lone)} epochs.")
    waits = [each.first_step for each in used if each.jobs == 1]
    if not timed:
        said.append(f"Minutes are not told: {OTHER_MEANS}.")
    elif waits:
        said.append(
            "Minutes are those of all images at the rate of trainings that had the device to themselves: "
            f"{_rates(found)}. Until its first step such a training takes {_span(waits)} seconds more."
        )
    seeds = legend(len(findings) for method in found for findings in method.values())
    notes = (seeds, *(line for line in said if line), evidence.origin(used))
    return Table(title, head, tuple(lines), notes)


def reach(points: Sequence[tuple[int, float]], goal: float) -> float | None:
    """After how many epochs a number is first reached: linear over their logarithm, between runs that ended."""
    if points and points[0][1] >= goal:
        return float(points[0][0])
    for (before, low), (after, high) in pairwise(points):
        if high >= goal:
            needed = exp(log(before) + (goal - low) / (high - low) * (log(after) - log(before)))
            return min(max(needed, float(before)), float(after))  # which rounding can leave
    return None


def _overtaken(old: dict[int, list[Finding]], new: dict[int, list[Finding]], epochs: int, name: str) -> str:
    """In words: when MoCo v3 has what Fast-MoCo has after the epochs of the base."""
    goal = average(new.get(epochs, ()), name)
    points = [(number, mean.mean) for number, findings in old.items() if (mean := average(findings, name))]
    if goal is None or [number for number, _ in points] in ([], [epochs]):  # one length tells nothing of when
        return ""
    said = f"By {WORDS[name]}, {NEW} has {goal.mean:.1f} after {length(epochs)}; {OLD} "
    needed = reach(points, goal.mean)
    if needed is None:
        nearest, best = max(points, key=lambda point: point[1])
        seeds = "one seed" if len(old[nearest]) == 1 else f"{len(old[nearest])} seeds"
        gap = round(goal.mean, 1) - round(best, 1)  # as a reader would take it
        below = f"{best:.1f}, {gap:.1f} below, after {nearest} with {seeds}"
        return f"{said}does not have it within {points[-1][0]}: its best is {below}."
    if needed == points[0][0]:
        return f"{said}has it after {points[0][0]} already, its shortest run."
    said += f"has it after about {needed:.0f} ({_bounds(points, new[epochs], name)}between runs that ended)"
    said += f", {needed / epochs:.1f} times as many"
    if not comparable(each for method in (old, new) for findings in method.values() for each in findings):
        return f"{said} (times are not compared: {OTHER_MEANS})."
    mine, theirs = _minutes(new, epochs), _between(old, needed)
    if mine is None or theirs is None:
        return f"{said} (times are not compared: trainings shared the device)."
    return f"{said}, and {theirs:.1f} minutes instead of {mine.mean:.1f}, {theirs / mine.mean:.1f} times as long."


def _bounds(points: Sequence[tuple[int, float]], findings: Sequence[Finding], name: str) -> str:
    """In words: when MoCo v3 has what single seeds of Fast-MoCo have, if there are several."""
    needed = [reach(points, goal) for each in findings if (goal := each.score(name)) is not None]
    known = [each for each in needed if each is not None]
    return f"{_span(known)} by single seeds of {NEW}; " if len(known) == len(needed) > 1 else ""


def _between(old: dict[int, list[Finding]], needed: float) -> float | None:
    """Minutes after some epochs, which lie between two runs whose times are known; time goes with epochs."""
    times = [(epochs, _minutes(old, epochs)) for epochs, findings in old.items() if findings]
    for (before, short), (after, long) in pairwise(times):
        if before <= needed <= after and short and long:
            return short.mean + (needed - before) / (after - before) * (long.mean - short.mean)
    return None


def _apart(old: Iterable[float | None], new: Iterable[float | None]) -> Score | None:
    """The difference of two numbers, seed by seed."""
    both = zip(old, new, strict=True)
    return score(other - one for one, other in both if one is not None and other is not None)


def _scored(name: str) -> Take:
    return lambda each: each.score(name)


def _span(values: Sequence[float]) -> str:
    """From the least to the most, in whole numbers; one number if that is all."""
    return " to ".join(dict.fromkeys(f"{each(values):.0f}" for each in (min, max)))


def _minutes(method: dict[int, list[Finding]], epochs: int) -> Score | None:
    """Of the trainings of a method after some epochs, if they had the device to themselves or others of it did."""
    others = [each for findings in method.values() for each in findings]
    return score(minutes(each, others) for each in method.get(epochs, ()))


def _rates(found: Sequence[dict[int, list[Finding]]]) -> str:
    """In words: how many images a second each method had, alone on the device."""
    words = []
    for name, method in zip(METHODS, found, strict=True):
        alone = [each for findings in method.values() for each in findings if each.jobs == 1]
        if rate := score(each.images_per_second for each in alone):
            words.append(f"{rate.mean:,.0f} images a second for {name} ({rate.count} training{'s' * (rate.count > 1)})")
    return ", ".join(words)


def _usual(evidence: Evidence) -> int | None:
    """The epochs of the base where both methods have them, else those that most trainings have."""
    recipes = [carry(find(row).recipe, evidence.setting) for row in METHODS.values()]
    own = evidence.setting.epochs
    return own if evidence.epochs(recipes).get(own) == len(recipes) else evidence.usual(recipes)
