"""Tables of numbers that are made and never typed, and the places in documents where they stand."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

NOTHING = "No records yet."


@dataclass(frozen=True)
class Table:
    """Rows under a head, and sentences below; one without rows says that there are no records yet."""

    title: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """As it stands in a document, whose own headings say what it is of."""
        return "\n\n".join(["\n".join(table(self.head, self.rows)), *self.notes]) if self.rows else NOTHING


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of Markdown; columns of numbers are aligned on the right."""
    rule = ["---:" if each else "---" for each in numeric(head, rows)]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def numeric(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns hold numbers; the first is of names."""
    return [False, *(any(re.match(r"[-+]?\d", row[place]) for row in rows) for place in range(1, len(head)))]


def read(path: Path) -> str:
    """The text of a document, with the ends that its lines have."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text; give a Markdown document") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give a Markdown document") from None


def marked(document: str) -> list[str]:
    """All names between <!-- name --> and <!-- /name -->, known or not."""
    return re.findall(r"<!-- ([^/\n]+?) -->(?=.*?<!-- /\1 -->)", document, re.DOTALL)


def places(document: str, names: Sequence[str], where: str) -> list[str]:
    """Those of the names that have a place in a document, which is between <!-- name --> and <!-- /name -->."""
    found = []
    for name in names:
        marks = re.findall(rf"<!-- /?{re.escape(name)} -->", document)
        if marks and marks != [f"<!-- {name} -->", f"<!-- /{name} -->"]:
            raise ValueError(f"{where}: {name} needs <!-- {name} --> and then <!-- /{name} -->, both once")
        found += [name] if marks else []
    spans = sorted(_span(name).search(document).span() for name in found)  # type: ignore[union-attr]
    if any(end > begin for (_, end), (begin, _) in pairwise(spans)):
        raise ValueError(f"{where}: a place is inside another; end each before the next")
    return found


def fill(document: str, makers: Mapping[str, Callable[[], str]], where: str) -> str:
    """A document with what is made in each place that it has, with the ends that most lines have; all else stays.

    So does what a place holds that there are no records for.
    """
    ends = "\r\n" if 2 * document.count("\r\n") > document.count("\n") else "\n"
    for name in places(document, list(makers), where):
        made = makers[name]()
        before, held, after = _span(name).split(document, maxsplit=1)
        if made != NOTHING or not held.strip():
            put = f"<!-- {name} -->\n\n{made}\n\n<!-- /{name} -->".replace("\n", ends)
            document = f"{before}{put}{after}"
    return document


def _span(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {re.escape(name)} -->(.*?)<!-- /{re.escape(name)} -->", re.DOTALL)
