"""A command for many processes: those that torchrun has started, or those that --devices asks for."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def spread(verb: str, read: Callable[..., R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A command of WEIGHTS, DATA, flags and terms, for as many processes as there are or as its terms ask for.

    Those of --devices leave what they have found in files; `read(weights, out, terms)` finds it there.
    """

    def decorate(command: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(command)
        def begin(*args: P.args, **kwargs: P.kwargs) -> R:
            from fastmoco.distributed import same
            from fastmoco.launch import check, launch
            from fastmoco.meeting import joined

            given = inspect.signature(command).bind(*args, **kwargs)
            given.apply_defaults()
            flags: dict[str, Any] = dict(given.arguments)
            weights, data, terms = (flags.pop(name) for name in ("weights", "data", "terms"))
            if not check(terms.devices, terms.device):
                with joined():
                    known = {"weights": weights, "data": data, **flags, **vars(terms)}
                    same({name: str(known[name]) for name in known if name not in ("device", "workers")})
                    return command(*args, **kwargs)
            launch(terms.devices, verb, [str(weights), str(data)], {**flags, **vars(terms), "devices": None})
            return read(str(weights), flags["out"], terms)

        return begin

    return decorate


def say(text: str) -> None:
    """One rank speaks for all."""
    from fastmoco.distributed import leads

    if leads():
        print(text, flush=True)


def alike(mine: Callable[[], object], what: str) -> None:
    """Refuse what is not the same for all ranks: their machines may hold different files under one name."""
    from fastmoco.distributed import tell, together, world

    if world() == 1:
        return
    ours = mine()
    theirs = tell(lambda: ours)
    with together():
        if theirs != ours:
            raise ValueError(f"{what} are others here than for rank 0; give all ranks the same")
