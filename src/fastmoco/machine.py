"""What this machine has, and what "auto" means on it."""

from typing import Literal, get_args

import torch

from fastmoco.distributed import grouped, launched, local_rank, local_world, world
from fastmoco.engine import recordable
from fastmoco.flags import Switch
from fastmoco.launch import cores
from fastmoco.recipe import Recipe

Precision = Literal["auto", "bf16", "float32"]


def settle(
    device: str, precision: Precision, compile: Switch, workers: int | None
) -> tuple[torch.device, bool, bool, int]:
    """What "auto" means on this machine: the device, whether bfloat16, whether to compile, how many workers.

    Of several processes on a machine each takes its own GPU, and its part of the cores.
    """
    for name, given, known in (("precision", precision, Precision), ("compile", compile, Switch)):
        if given not in get_args(known):
            raise ValueError(f"--{name} {given}: use {', '.join(get_args(known))}")
    try:
        chosen = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        if chosen.type == "cuda" and launched() and torch.cuda.is_available():
            chosen = _own(device)
        if chosen.type == "cuda" and chosen.index is not None:
            torch.cuda.set_device(chosen)  # or what asks for no device in particular, such as a stream, gets the first
        torch.zeros(1, device=chosen).item()  # a device that is not there, or holds no numbers, cannot do this
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(absent(device)) from None
    cuda = chosen.type == "cuda"
    if precision == "bf16" and not cuda:
        raise ValueError(f"--precision bf16 needs a GPU; on {chosen} use float32")
    # Older cards only pretend to have bfloat16, and are slower with it.
    able = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    usual = min(max(1, cores() // local_world()), 16 if cuda else 2)
    return (
        chosen,
        able if precision == "auto" else precision == "bf16",
        cuda if compile == "auto" else compile == "on",
        usual if workers is None else workers,
    )


def _own(device: str) -> torch.device:
    """The GPU of this process."""
    if ":" in device and world() > 1:
        raise ValueError(f"--device {device}: {world()} processes would share it; use cuda, and each takes its own")
    there = torch.cuda.device_count()
    if local_rank() >= there:
        raise ValueError(
            f"{local_world()} processes on a machine with {there} GPUs; start {there}, or use --device cpu"
        )
    own = torch.device("cuda", local_rank())
    torch.cuda.set_device(own)
    return own


def absent(device: str) -> str:
    """The line for a device that is not there."""
    return f"--device {device}: not on this machine; use auto, cpu, or a GPU that is there"


def records_steps(graph: Switch, recipe: Recipe, device: torch.device, thrifty: bool) -> bool:
    """Whether a GPU is to record a step: wherever it can, unless told otherwise."""
    if graph not in get_args(Switch):
        raise ValueError(f"--graph {graph}: use {', '.join(get_args(Switch))}")
    against = {
        f"it needs a GPU, and this is {device}": device.type != "cuda",
        "it is for one process": grouped(),
        "--recompute and --micro do not go with it": thrifty,
        "this recipe draws on the way, has an encoder of timm, or has parts of your own": not recordable(recipe),
    }
    reason = next((reason for reason, holds in against.items() if holds), None)
    if graph == "on" and reason is not None:
        raise ValueError(f"--graph on: {reason}; use --graph off")
    return graph != "off" and reason is None


def name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
