"""The findings that a report is made of: read from files, and what to ask for where none are of what was asked."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastmoco.flags import place
from fastmoco.names import unknown
from fastmoco.recipes import rows
from fastmoco.trials.evidence import Evidence
from fastmoco.trials.findings import Finding
from fastmoco.trials.findings import read as read_findings
from fastmoco.trials.job import FINDINGS
from fastmoco.trials.tables import changed

WAYS = 3  # in which findings differ from a base, that are told at once
LOOK = "look at --table all"


def read(records: Sequence[str], data: str) -> dict[str, list[Finding]]:
    """Findings by the name of their file; there is at least one."""
    paths = [path for each in records or [FINDINGS] for path in _files(place(each))]
    known: dict[str, list[Finding]] = {}
    for path in paths:
        known.setdefault(path.name, []).extend(read_findings([path]))
    sets = dict.fromkeys(each.data for findings in known.values() for each in findings)
    if not sets:
        raise ValueError(f"no findings in {' '.join(records) or FINDINGS}; `fastmoco sweep` makes them")
    if data and data not in sets:
        raise ValueError(f"--data: {unknown('set', data, [*sets])}")
    return {name: [each for each in found if data in ("", each.data)] for name, found in known.items()}


def _files(path: Path) -> list[Path]:
    if not path.exists() and str(path) != FINDINGS:
        raise ValueError(f"no records {str(path)!r}; give files that `fastmoco sweep` has written, or their folder")
    return sorted(path.glob("*.jsonl")) if path.is_dir() or not path.exists() else [path]


def usual_base(records: Mapping[str, Sequence[Finding]], preferred: str) -> str:
    """The preferred one if there are any of it, or the base of most trainings that are as it is, or else of most.

    Files that records name are not run.
    """
    known = rows()
    every = [each for findings in records.values() for each in findings if (each.base or each.row) in known]
    bases = Counter(each.base or each.row for each in every if not any(changed([each])))
    there = [base for base, _ in (bases or Counter(each.base or each.row for each in every)).most_common()]
    return preferred if preferred in there or not there else there[0]


def refuse_other_settings(evidences: Sequence[Evidence], records: Mapping[str, Sequence[Finding]]) -> None:
    """Records of other settings only; which those are is said."""
    if not any(evidence.findings for evidence in evidences):
        base = evidences[0].base
        there = any((each.base or each.row) == base for findings in records.values() for each in findings)
        setting = "that setting" if there else "the setting"
        raise ValueError(f"no findings in {setting} of {base}, but {other_trainings(base, records)}")


def other_trainings(base: str, records: Mapping[str, Sequence[Finding]]) -> str:
    """Which trainings there are, and how to ask for them."""
    every, known = [each for findings in records.values() for each in findings], rows()
    here = [each for each in every if (each.base or each.row) == base]
    # What flags had changed of a row in a file is not known without the file, which is not run.
    own = [each for each in here if {each.row, base} <= known.keys()]
    if here and not own:
        return f"{len(here)} of rows in files: {LOOK}, or give --table FILE.py with the --batch and --set of the sweep"
    if own and not any(changed(own)):
        return f"{len(own)} with the base as it is: leave out --batch and --set if given, or {LOOK}"
    if own:
        ways = [f"{count} with {said or 'the base as it is'}" for said, count in changed(own).items()]
        found = "; ".join([*ways[:WAYS], *([f"others in {len(ways) - WAYS} more ways"] if len(ways) > WAYS else [])])
        return f"{found}: say the same by --batch and --set, or {LOOK}"
    there = Counter(each.base or each.row for each in every)
    found = ", ".join(f"{count} of {name}" for name, count in there.items())
    return f"{found}: give that as --recipe-base, with the --batch and --set of the sweep, or {LOOK}"


def refuse_other_epochs(epochs: int | None, records: Mapping[str, Sequence[Finding]]) -> None:
    after = sorted({each.recipe.epochs for findings in records.values() for each in findings})
    if epochs is not None and epochs not in after:
        raise ValueError(f"--epochs {epochs}: no training had so many; use {', '.join(map(str, after))}")
