"""What a field may hold, by its annotation: values are checked, and written, without knowing what they are for."""

import contextlib
import dataclasses
import functools
import inspect
import math
import sys
import types
import typing
from typing import Any

PLAIN = {int: "a whole number", float: "a number", bool: "True or False", str: "a word", types.NoneType: "None"}


def brief(value: object) -> str:
    """As `repr`, without the fields that have their default: `Combine(2, count=4)`, `Encode`."""
    if isinstance(value, tuple):
        return f"({', '.join(brief(item) for item in value)}{',' * (len(value) == 1)})"
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return repr(value)
    parts: list[str] = []
    for number, field in enumerate(dataclasses.fields(value)):
        item = getattr(value, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if item != default:
            parts.append(brief(item) if number == len(parts) else f"{field.name}={brief(item)}")
    return f"{type(value).__name__}({', '.join(parts)})" if parts else type(value).__name__


@functools.cache
def hints(kind: Any) -> dict[str, Any]:
    """The annotations of a dataclass."""
    try:
        return typing.get_type_hints(kind)
    except NameError as error:  # written as text, in a file whose names are gone
        raise ValueError(
            f"the annotations of {kind.__name__}: {error}; write them without quotes or __future__"
        ) from None


def check(value: Any) -> None:
    """Refuse a dataclass one of whose fields holds what its annotation does not allow."""
    kind: Any = type(value)
    for field in dataclasses.fields(value):
        try:
            fit(getattr(value, field.name), hints(kind)[field.name])
        except ValueError as error:
            raise ValueError(f"{field.name}: {error}") from None


def fit(value: Any, hint: Any) -> Any:
    """The value as a field of this type holds it: a whole number becomes a float where one is asked for."""
    parts = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        for part in parts:
            if isinstance(part, type) and isinstance(value, part) and dataclasses.is_dataclass(value):
                return fit(value, part)  # whose complaint says more
            with contextlib.suppress(ValueError):
                return fit(value, part)
    elif typing.get_origin(hint) is tuple and isinstance(value, tuple):
        wanted = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        if len(value) == len(wanted):
            return tuple(map(fit, value, wanted))
    elif hint is float and type(value) in (int, float):
        if math.isfinite(value):
            return float(value)
    elif typing.get_origin(hint) is typing.Literal:
        if value in parts:
            return value
    elif _protocol(hint):
        return _part(value, hint)
    elif hint in PLAIN:
        if type(value) is hint:  # and no number of numpy's, whose text is another
            return value
    elif isinstance(hint, type) and isinstance(value, hint):
        if dataclasses.is_dataclass(hint):
            check(value)
        return value
    raise ValueError(f"expected {spell(hint)}, got {brief(value)[:80]}")


def spell(hint: Any) -> str:
    """An annotation in words."""
    if typing.get_origin(hint) is typing.Literal or isinstance(hint, types.UnionType):
        parts = typing.get_args(hint)
        return " or ".join(repr(part) if isinstance(part, str) else spell(part) for part in parts)
    if typing.get_origin(hint) is tuple:
        return f"a tuple of {spell(typing.get_args(hint)[0])}"
    if _protocol(hint):
        return " or ".join(_ours(hint))
    return PLAIN.get(hint, str(getattr(hint, "__name__", hint)))


def _part(value: Any, hint: type) -> Any:
    """What does the work of a protocol: one of ours, or of someone else's file."""
    if isinstance(value, type):
        raise ValueError(f"expected a value, got the class {value.__name__}; write {value.__name__}()")
    lacking = [name for name in _members(hint) if not hasattr(value, name)]
    if lacking:
        which = f", which has no {' and no '.join(lacking)}" if dataclasses.is_dataclass(value) else ""
        raise ValueError(f"expected {spell(hint)}, got {brief(value)[:80]}{which}")
    # A recipe is compared as a value, and a run folder holds its text.
    if not _frozen(value):
        raise ValueError(f"{type(value).__name__} is no frozen dataclass; write @dataclass(frozen=True) above it")
    if type(value).__module__ == hint.__module__:
        check(value)
    for field in dataclasses.fields(value):
        if not _plain(getattr(value, field.name)):
            held = repr(getattr(value, field.name))[:60]
            raise ValueError(f"{field.name} of {type(value).__name__} is {held}; use numbers, words, tuples and such")
    return value


def _frozen(value: Any) -> bool:
    known = getattr(value, "__dataclass_params__", None)
    return known is not None and bool(known.frozen and known.eq)


def _plain(value: Any) -> bool:
    """Whether a value is the same wherever it is written down."""
    if isinstance(value, tuple):
        return all(map(_plain, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _frozen(value) and all(_plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    return type(value) in PLAIN


def _protocol(hint: Any) -> bool:
    return isinstance(hint, type) and typing.Protocol in hint.__bases__


def _members(hint: type) -> list[str]:
    """What a protocol asks for."""
    return [
        name for name, item in vars(hint).items() if inspect.isfunction(item) and item.__module__ == hint.__module__
    ]


def _ours(hint: type) -> list[str]:
    """The dataclasses beside a protocol that do its work."""
    beside = vars(sys.modules[hint.__module__]).values()
    return [
        each.__name__
        for each in beside
        if isinstance(each, type) and dataclasses.is_dataclass(each) and all(hasattr(each, n) for n in _members(hint))
    ]
