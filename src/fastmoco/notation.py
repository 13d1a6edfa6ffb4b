"""Recipes as text: read a value without running code, change a value by its path, write a value briefly."""

import ast
import contextlib
import dataclasses
import typing
from collections.abc import Iterable
from typing import Any

from fastmoco import contrast, heads, merge, optim, pairs, protocols, recipe, steps, target
from fastmoco.kinds import brief, fit, hints, spell
from fastmoco.names import unknown
from fastmoco.recipe import Recipe, Row

NAMES: dict[str, Any] = {
    name: value
    for module in (steps, merge, target, contrast, pairs, heads, optim, protocols, recipe)
    for name, value in vars(module).items()
    if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == module.__name__
    if value is not Row
}

MOST_TEXT = 100_000


def read(text: str, field: str = "") -> Any:
    """The value that `repr` or `brief` wrote: only the kernel's own names and literals; nothing is imported or run.

    Or just one field of it; the others may be of parts that are not the kernel's.
    """
    if len(text) > MOST_TEXT:
        raise ValueError(f"a text of {len(text):,} characters is no recipe; the longest has a few thousand")
    mistake = ValueError(f"cannot read {text[:60]!r}; write a value such as 0.1 or (Encode(), Project())")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last of what nests too deep
        raise mistake from None
    try:
        return _value(_keyword(tree.body, field) if field else tree.body)
    except RecursionError:
        raise mistake from None


def _keyword(call: ast.expr, name: str) -> ast.expr:
    found = [each.value for each in call.keywords if each.arg == name] if isinstance(call, ast.Call) else []
    if not found:
        raise ValueError(f"it has no {name}")
    return found[0]


def override(value: Recipe, settings: Iterable[str]) -> Recipe:
    """The recipe with settings such as `optim.lr=0.15`, `views.0.size=128` or, for every view, `views.*.size=128`.

    All settings are made before the recipe is checked, so that two that belong together can come in any order.
    """
    opened = _open(value)
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting}: not NAME=VALUE; write for example optim.lr=0.15")
        try:
            _set(opened, Recipe, path.strip().split("."), text.strip())
        except ValueError as error:
            raise ValueError(f"--set {setting}: {error}") from None
    changed = _close(opened)
    assert isinstance(changed, Recipe)
    return changed


def differences(there: Any, here: Any) -> list[str]:
    """Where two values differ, such as `optim.lr 0.1 there, 0.2 here`."""
    return [f"{path} {brief(one)} there, {brief(other)} here" for path, one, other in apart(there, here)]


def apart(there: Any, here: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Where two values differ, and by what: a path as in `override`, and both values."""
    if there == here:
        return []
    if dataclasses.is_dataclass(there) and type(there) is type(here):
        pairs = [
            (field.name, getattr(there, field.name), getattr(here, field.name)) for field in dataclasses.fields(there)
        ]
    elif isinstance(there, tuple) and isinstance(here, tuple) and len(there) == len(here):
        pairs = [(str(place), a, b) for place, (a, b) in enumerate(zip(there, here, strict=True))]
    else:
        return [(path, there, here)]
    return [found for name, a, b in pairs for found in apart(a, b, f"{path}.{name}" if path else name)]


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() as number) if number.bit_length() > 63:
            raise ValueError(f"a whole number of {number.bit_length()} bits is too large")
        case ast.Constant(value=bool() | int() | float() | str() | None as literal):
            return literal
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as operand) if type(operand.value) in (int, float):
            return -_value(operand)
        case ast.Tuple(elts=items):
            return tuple(_value(item) for item in items)
        case ast.Name(id=name):
            return _make(name, [], [])
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            return _make(name, args, keywords)
    raise ValueError(
        f"{ast.unparse(node)[:60]!r} is not a value of a recipe; use numbers, words in quotes, tuples and steps"
    )


def _make(name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Any:
    """A value of the kernel from its written form, each field checked before anything is made of it."""
    if name not in NAMES:
        raise ValueError(unknown("name", name, sorted(NAMES)))
    kind = NAMES[name]
    names = [field.name for field in dataclasses.fields(kind)]
    if len(args) > len(names):
        raise ValueError(f"{name} takes {len(names)} values ({', '.join(names)}), not {len(args)}")
    given = dict(zip(names, args, strict=False))
    for keyword in keywords:
        if keyword.arg not in names:
            raise ValueError(unknown(f"field of {name}", str(keyword.arg), names))
        if keyword.arg in given:
            raise ValueError(f"{name} is given {keyword.arg} twice")
        given[keyword.arg] = keyword.value
    values = {each: _value(node) for each, node in given.items()}
    for field in dataclasses.fields(kind):
        if field.name in values:
            try:
                values[field.name] = fit(values[field.name], hints(kind)[field.name])
            except ValueError as error:
                raise ValueError(f"{field.name} of {name}: {error}") from None
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{name} needs {field.name}: {spell(hints(kind)[field.name])}")
    return kind(**values)


@dataclasses.dataclass
class _Opened:
    """A value of the kernel taken apart, so that its fields can be set before it is checked as a whole."""

    kind: Any
    fields: dict[str, Any]


def _open(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_open(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    given = [field.name for field in dataclasses.fields(value) if field.init]
    return _Opened(type(value), {name: _open(getattr(value, name)) for name in given})


def _close(opened: Any) -> Any:
    if isinstance(opened, list):
        return tuple(_close(item) for item in opened)
    if isinstance(opened, _Opened):
        return opened.kind(**{name: _close(item) for name, item in opened.fields.items()})
    return opened


def _set(opened: Any, hint: Any, path: list[str], text: str) -> Any:
    """The opened value with the place at the end of the path set to what the text says, which must be of its type."""
    if not path:
        return _open(_parse(text, hint))
    name, *rest = path
    if isinstance(opened, _Opened):
        if name not in opened.fields:
            raise ValueError(unknown(f"{opened.kind.__name__} field", name, list(opened.fields)))
        opened.fields[name] = _set(opened.fields[name], hints(opened.kind)[name], rest, text)
        return opened
    if isinstance(opened, list):
        places = range(len(opened)) if name == "*" else [int(name)] if name.isdecimal() else []
        if not places or max(places) >= len(opened):
            known = f"use 0 to {len(opened) - 1}, or * for all" if opened else "there is nothing here yet"
            raise ValueError(f"unknown place {name[:20]!r}; {known}")
        parts = typing.get_args(hint)
        if not parts:
            raise ValueError(f"nothing says what is in {hint.__name__}; set it as a whole")
        for place in places:
            opened[place] = _set(opened[place], parts[0] if parts[-1] is Ellipsis else parts[place], rest, text)
        return opened
    raise ValueError(f"{opened!r} has nothing inside it; leave out {'.'.join(path)!r}")


def _parse(text: str, hint: Any) -> Any:
    """A value of the wanted type; words need no quotes."""
    with contextlib.suppress(ValueError):
        return fit(read(text), hint)
    with contextlib.suppress(ValueError):
        return fit(text, hint)
    if hint in (int, float, bool) or typing.get_origin(hint) is typing.Literal:
        raise ValueError(f"expected {spell(hint)}, got {text[:80]}")
    return fit(read(text), hint)
