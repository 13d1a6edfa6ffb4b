"""The line for a name that does not exist, with the nearest ones that do."""

import difflib


def unknown(kind: str, name: str, known: list[str]) -> str:
    """What to say of a name of some kind, such as a row or an encoder."""
    plain = {each.lower(): each for each in known}
    near = [plain[each] for each in difflib.get_close_matches(name.lower(), plain, n=4, cutoff=0.4)]
    if near:
        return f"unknown {kind} {name[:60]!r}; the nearest known: {', '.join(near)}"
    some = known if len(known) <= 16 else [*known[:16], "..."]
    return f"unknown {kind} {name[:60]!r}; known: {', '.join(some) or 'none'}"
