"""Every row of the paper by name: one module per table or figure, one name per row; and a user's own `file.py:name`."""

import functools
import importlib
import runpy
import sys
import traceback
from pathlib import Path

from fastmoco import methods
from fastmoco.names import unknown
from fastmoco.recipe import Recipe, Row

TABLES = (
    *("table1", "table2", "table3", "table4a", "table4b", "table7", "table8"),
    *("figure3a", "figure3b", "figure4a", "figure4b", "figure5", "figure6"),
    *("text", "pocket"),
)


def find(name: str, usual: str = "") -> Row:
    """A row by `table4a/fast_moco`, or from a user's own file by `my.py:name`.

    For one that does not exist, rows of the table that it names are proposed, or else of the usual one.
    """
    table, _, _ = name.partition("/")
    file = name if name.endswith(".py") else _file(name)
    known = _rows(file) if file else rows(table if table in TABLES else usual)
    if name not in known:
        way = f"`fastmoco recipes {usual}` lists the usual ones" if usual else "`fastmoco recipes` lists all"
        raise ValueError(unknown("row", name, list(known)) + (f" in {file}" if file else f"; {way}"))
    return known[name]


def rows(name: str = "") -> dict[str, Row]:
    """All rows by their full names, or those of one table, of a user's own `my.py`, or just one row."""
    if name.endswith(".py"):
        return _rows(name, imported=False) or _rows(name)
    if _file(name) or "/" in name:
        return {name: find(name)}
    if name and name not in TABLES:
        raise ValueError(unknown("table", name, [*TABLES, "my.py"]))
    modules = {table: importlib.import_module(f"fastmoco.recipes.{table}") for table in ([name] if name else TABLES)}
    return {
        f"{table}/{row}": value
        for table, module in modules.items()
        for row, value in vars(module).items()
        if isinstance(value, Row)
    }


def _file(name: str) -> str:
    """The file of `my.py:name`, or nothing."""
    file, colon, _ = name.rpartition(":")
    return file if colon and file.endswith(".py") else ""


def _rows(file: str, imported: bool = True) -> dict[str, Row]:
    """The rows of a user's file, which is Python and is run; a recipe in it need not be wrapped as a row.

    A method that is imported there may be meant as a row, or to build on. A file that is a recipe as training writes it
    is read, and that of a run folder never run: it may be a stranger's.
    """
    from fastmoco.notation import read

    if not Path(file).is_file():
        raise ValueError(f"no file {file!r}; give the path of a Python file that holds recipes")
    path = Path(file).resolve()
    try:
        value = read(path.read_text())
        if isinstance(value, Recipe):
            return {file: Row(value)}
    except ValueError as error:
        if path.name == "recipe.py" and (path.parent / "run.json").exists():
            raise ValueError(f"{file} is of a run folder, and so it is not run: {error}") from None
    found = _run(file, path, path.stat().st_mtime_ns)
    own = {name: value for name, value in found.items() if imported or value is not getattr(methods, name, None)}
    return {f"{file}:{name}": Row(value) if isinstance(value, Recipe) else value for name, value in own.items()}


@functools.lru_cache(maxsize=16)
def _run(file: str, path: Path, _changed: int) -> dict[str, Recipe | Row]:
    """Once for each state of the file: run again it makes its classes anew, and of two recipes no part is the same."""
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # so that it finds its neighbours, as when Python runs it
    try:
        names = runpy.run_path(file)
    except (Exception, SystemExit) as error:
        # Whatever goes wrong in a user's file is told by its line, not by a traceback through this package.
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        line = (error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None) or 1
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"{file}, line {line}: {kind}{' '.join(str(error).split())}") from None
    found = {
        name: value for name, value in names.items() if isinstance(value, Recipe | Row) and not name.startswith("_")
    }
    if not found:
        raise ValueError(f"{file} holds no recipe; assign a Recipe or a Row to a name in it")
    return found
