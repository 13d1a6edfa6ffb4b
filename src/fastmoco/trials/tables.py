"""The paper's tables, with what was found in another setting beside what the paper reports; and all trainings."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fastmoco import compose
from fastmoco.alike import plain
from fastmoco.documents import Table
from fastmoco.kinds import brief
from fastmoco.notation import apart
from fastmoco.optim import shorten
from fastmoco.recipe import Recipe, Row
from fastmoco.recipes import rows
from fastmoco.transfer import carry
from fastmoco.trials.evidence import Evidence, average, cell, measures
from fastmoco.trials.findings import CACHED, KNN, LINEAR, WORDS, Finding
from fastmoco.trials.tally import Score, agreement, length, ranks

PAPER = "paper, ImageNet"  # linear, as the paper's tables are


def legend(seeds: Iterable[int]) -> str:
    """What numbers are, by how many seeds stand behind each."""
    over = "mean ± standard deviation over seeds" if max(seeds, default=0) > 1 else "of one seed"
    return f"Top-1 in percent, {over}; kNN of 20 neighbours."


def paper_table(evidence: Evidence, name: str, epochs: int | None = None) -> Table:
    """A table of the paper, or a user's own file, after the epochs that most of its rows have."""
    known = rows(name)
    recipes, others = carried(known, evidence.setting)
    title, epochs = f"{name} on {evidence.title}", epochs or evidence.usual(list(recipes.values()))
    found = {row: evidence.of(recipe, epochs) for row, recipe in recipes.items()}
    used = [each for findings in found.values() for each in findings]
    shown = measures(used)
    if not shown:
        return Table(title)
    twins = _twins(recipes)
    first: dict[str, Score] = {}
    for row, findings in found.items():
        if row not in twins and (mean := average(findings, shown[0])):
            first[row] = mean
    places = _places(known, first)
    columns = _columns(known, shown)
    lines = [
        _cells(known[row], _short(row), found[row], _short(twins.get(row, "")), places.get(row, ("", "")), columns)
        for row in found
    ]
    notes = [
        f"{length(epochs)}. {legend(map(len, found.values()))}",
        *_agree(known, first),
        *_troubled(found),
        *_missing(others),
        evidence.origin(used),
    ]
    return Table(f"{title}, {length(epochs)}", tuple(columns), tuple(lines), tuple(notes))


def carried(known: Mapping[str, Row], base: Recipe) -> tuple[dict[str, Recipe], list[str]]:
    """The recipes of rows in a setting, and the rows that cannot be in it, or are judged by another task."""
    recipes, others = {}, []
    for name, row in known.items():
        try:
            recipe = carry(row.recipe, base)
        except ValueError:
            others.append(name)
            continue
        if type(row.recipe.evaluation) is type(base.evaluation):
            recipes[name] = recipe
        else:
            others.append(name)
    return recipes, others


def settings(evidences: Sequence[Evidence]) -> Table:
    """What bases decide whatever the row, and how many trainings there are in each."""
    head = ("base", "images", "encoder", "px", "batch", "epochs", "optimiser", "rate", "decay", "contrast", "trainings")
    lines = []
    for evidence in evidences:
        recipe, findings = evidence.setting, evidence.findings
        lines.append(
            (
                f"`{evidence.base}`",
                f"{findings[0].images:,}" if findings else "",
                recipe.encoder,
                str(recipe.size()),
                str(recipe.batch),
                str(recipe.epochs),
                type(recipe.optim).__name__,
                f"{recipe.optim.lr:g}",
                f"{recipe.optim.weight_decay:g}",
                str(recipe.contrast),
                str(len(findings) or "none yet"),
            )
        )
    return Table("settings", head, tuple(lines))


def everything(findings: Iterable[Finding], epochs: int | None = None) -> Table:
    """All recipes that were trained, in whatever setting: those of a set together, and the best of them first."""
    sets = _by_set(list(findings), epochs)
    every = [each for groups in sets.values() for group in groups.values() for each in group.values()]
    unchanged = _unchanged(every)
    shown = [name for name in (LINEAR, CACHED, KNN) if any(each.score(name) is not None for each in every)]
    lines, counts = [], []
    for (data, images, *_), known in sorted(sets.items(), key=lambda each: each[0]):
        groups = [list(seeds.values()) for seeds in known.values()]
        by = measures([each for group in groups for each in group])
        for group in sorted(groups, key=lambda group: [-_mean(group, name) for name in by]):
            means = (cell(average(group, name), len(group)) for name in shown)
            about = (_title(group[0], unchanged), data, f"{images:,}", str(group[0].recipe.epochs))
            lines.append((*about, *means, str(len(group))))
            counts.append(len(group))
    head = ("row and changes", "set", "images", "epochs", *(WORDS[name] for name in shown), "seeds")
    note = "Changes are from the row as it is now; of a row in a file, from its first training here."
    return Table("all trainings", head, tuple(lines), (legend(counts), note))


def _by_set(
    findings: Sequence[Finding], epochs: int | None
) -> dict[tuple[str, int, str, str], dict[Recipe, dict[int, Finding]]]:
    """By set, recipe and seed; of a training that is told twice, the last.

    One that tells no pixels has those of its set. If the set is known in several versions, it joins none.
    """
    known: dict[tuple[str, int, str], set[str]] = {}
    for each in findings:
        known.setdefault((each.data, each.images, each.names), set()).update(filter(None, [each.pixels]))
    sets: dict[tuple[str, int, str, str], dict[Recipe, dict[int, Finding]]] = {}
    for each in findings:
        if epochs in (None, each.recipe.epochs):
            several = len(known[each.data, each.images, each.names]) > 1
            name = f"{each.data}, pixels {each.pixels[:6] or 'not told'}" if several else each.data
            place = (name, each.images, each.names, each.pixels if several else "")
            sets.setdefault(place, {}).setdefault(plain(each.recipe), {})[each.seed] = each
    return sets


def _unchanged(findings: Iterable[Finding]) -> dict[str, Recipe]:
    """What rows are without changes. Files that records name are not run: they may be anyone's."""
    builtin = rows()
    found: dict[str, Recipe] = {}
    for each in findings:
        name = compose.title(each.row, each.base)
        if name not in found:
            found[name] = each.recipe
            if {each.row, each.base or each.row} <= builtin.keys():
                with contextlib.suppress(ValueError):  # a base that could carry it once, and now cannot
                    found[name] = compose.start(each.row, each.base)
    return found


def _title(finding: Finding, unchanged: Mapping[str, Recipe]) -> str:
    """The row of a training, and in what its recipe differs from it beside epochs and what they bring."""
    return ", ".join([compose.title(finding.row, finding.base), *_changes(finding, unchanged)])


def changed(findings: Sequence[Finding]) -> dict[str, int]:
    """What flags had changed in trainings, as they are given to --set, and in how many of them."""
    unchanged = _unchanged(findings)
    return Counter(" ".join(_changes(each, unchanged)) for each in findings)


def _changes(finding: Finding, unchanged: Mapping[str, Recipe]) -> list[str]:
    usual, epochs = unchanged[compose.title(finding.row, finding.base)], finding.recipe.epochs
    row = replace(usual, epochs=epochs, schedule=shorten(usual.schedule, epochs, usual.epochs))
    return [f"{path}={brief(here)}" for path, _, here in apart(row, finding.recipe)]


def _mean(findings: Sequence[Finding], name: str) -> float:
    found = average(findings, name)
    return float("-inf") if found is None else found.mean


def _columns(known: Mapping[str, Row], shown: Sequence[str]) -> dict[str, str]:
    """The head of each column, and what is in it."""
    paper = any(LINEAR in row.paper for row in known.values())
    return {
        "row": "row",
        **({"samples": "samples"} if any(row.samples for row in known.values()) else {}),
        **({PAPER: "paper"} if paper else {}),
        **{f"here, {WORDS[name]}": name for name in shown},
        "seeds": "seeds",
        **({"order, paper": "order, paper", "order, here": "order, here"} if paper else {}),
    }


def _cells(
    row: Row, name: str, findings: Sequence[Finding], twin: str, place: tuple[str, str], columns: Mapping[str, str]
) -> tuple[str, ...]:
    """A line; it has only the paper's number if the row is the same as another here, or has not been run."""
    instead = f"as {twin}" if twin else "" if findings else "not run"
    words = {
        "row": name,
        "samples": str(row.samples or ""),
        "paper": f"{row.paper[LINEAR]:.1f}" if LINEAR in row.paper else "",
        "seeds": "" if instead else str(len(findings)),
        "order, paper": place[0],
        "order, here": place[1],
    }
    return tuple(
        words[what] if what in words else instead or cell(average(findings, what), len(findings))
        for what in columns.values()
    )


def _twins(recipes: Mapping[str, Recipe]) -> dict[str, str]:
    """Rows that compute the same as an earlier one here, as those of table8 do whose batch is the base's."""
    first: dict[Recipe, str] = {}
    alike = {name: plain(recipe) for name, recipe in recipes.items()}
    return {name: first[recipe] for name, recipe in alike.items() if first.setdefault(recipe, name) != name}


def _places(known: Mapping[str, Row], first: Mapping[str, Score]) -> dict[str, tuple[str, str]]:
    """The rank of each row in the paper and here, among those that have a number in both."""
    both = [name for name in first if LINEAR in known[name].paper]
    paper = ranks([known[name].paper[LINEAR] for name in both])
    here = ranks([first[name].mean for name in both])
    return {name: (str(one), str(other)) for name, one, other in zip(both, paper, here, strict=True)}


def _agree(known: Mapping[str, Row], first: Mapping[str, Score]) -> list[str]:
    both = [name for name in first if LINEAR in known[name].paper]
    told = agreement([known[name].paper[LINEAR] for name in both], [first[name] for name in both])
    return [told.text()] if told.pairs else []


def _troubled(found: Mapping[str, Sequence[Finding]]) -> list[str]:
    """Rows of which a training was not well at its end: their numbers say more about the setting than about the row."""
    words = {_short(row): dict.fromkeys(each.trouble for each in findings) for row, findings in found.items()}
    told = [f"{row} ({', '.join(filter(None, each))})" for row, each in words.items() if any(each)]
    return [f"Not well at the end of training: {', '.join(told)}."] if told else []


def _missing(others: Sequence[str]) -> list[str]:
    return [f"Not in this setting: {', '.join(map(_short, others))}."] if others else []


def _short(name: str) -> str:
    """A row without its table or file."""
    return name.rpartition(":")[2] if ":" in name else name.rpartition("/")[2]
