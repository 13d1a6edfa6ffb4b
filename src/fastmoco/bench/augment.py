"""`fastmoco bench augment`: images a second from 8-bit crops to one view that a network sees.

What is in a piece and what is not:

- Ours: crops lie on the device as 8-bit pixels. In: sending the looks, and all from 8 bits to normalised floats. Out:
  drawing the looks, which is the workers' work; `draw_milliseconds` of the record is what it takes one of them.
- kornia: crops lie on the device as floats from 0 to 1. In: drawing its parameters, which it does in the call. Out: the
  way from 8 bits to floats.
- torchvision: crops are PIL images in one process on the CPU, changed one by one. In: drawing, and the way to floats.
  Out: collating, and sending floats to the device. A piece is of fewer images; the ratio is by time an image.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import UInt8
from PIL.Image import fromarray
from torch import Tensor

from fastmoco.augment import draw
from fastmoco.bench import peers
from fastmoco.bench.clock import Contender, compete, enter
from fastmoco.bench.record import conclude
from fastmoco.loader import finish
from fastmoco.methods import both, encode
from fastmoco.randomness import key
from fastmoco.recipe import View

CPU = torch.device("cpu")
FEW = 64  # images in a piece for what changes them one by one


def measure(
    size: int, batch: int, device: torch.device, compile: bool, seconds: float, out: str, commit: str = ""
) -> dict[str, Any]:
    """One view of `batch` crops with the augmentations of the paper, in rounds of so many seconds."""
    if batch < 1:
        raise ValueError(f"batch={batch} has no crops; use 1 or more")
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # as a training has it
    view = both(encode, size=size)[0]
    sharp = replace(view, augment=replace(view.augment, blur_p=0.0))
    shape = (1, batch, 3, size, size)
    crops = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    there = crops.to(device)
    contenders = [_ours("ours", there, view, compile)]
    if compile:
        contenders.append(_ours("ours, not compiled", there, view, False))
    contenders.append(_ours("ours, no blur", there, sharp, compile))
    kornia = find_spec("kornia") is not None
    if kornia:
        contenders.append(_kornia(there[0], view))
    else:
        print("kornia is not installed, so it has no row; pip install kornia")
    contenders.append(_torchvision(crops[0, :FEW], view))
    compete(contenders, device, seconds)
    about = {"size": size, "batch": batch, "compile": compile, "round_seconds": seconds}
    return conclude("augment", contenders, device, about | _versions(kornia) | _drawing(view, batch), out, commit)


def _ours(name: str, crops: UInt8[Tensor, "1 b 3 s s"], view: View, compile: bool) -> Contender:
    """As `Stream.views` does it: looks are pinned, sent in the step, and crops are changed as one stack."""
    device, images = crops.device, crops.shape[1]
    look = draw(view.augment, key(0, torch.arange(images))[None])
    if device.type == "cuda":
        look = look.pin_memory()

    def make() -> Callable[[], object]:
        change = torch.compile(finish, dynamic=False) if compile else finish
        return lambda: change(crops, look.to(device), view)

    return enter(name, make, device, images)


def _kornia(crops: UInt8[Tensor, "b 3 s s"], view: View) -> Contender:
    floats = crops.float() / 255  # before the clock and the memory are looked at: it gets them for nothing
    change = peers.by_kornia(view.augment).to(crops.device)
    return enter("kornia", lambda: partial(change, floats), crops.device, len(crops))


def _torchvision(crops: UInt8[Tensor, "few 3 s s"], view: View) -> Contender:
    images = [fromarray(crop.permute(1, 2, 0).contiguous().numpy()) for crop in crops]
    change = peers.by_torchvision(view.augment)
    return enter("torchvision, one by one", lambda: lambda: [change(image) for image in images], CPU, len(images))


def _versions(kornia: bool) -> dict[str, str]:
    import torchvision

    found = {"torchvision": str(torchvision.__version__)}
    if kornia:
        import kornia as library

        found["kornia"] = str(library.__version__)
    return found


def _drawing(view: View, batch: int) -> dict[str, float]:
    """What a worker pays for the looks of such a view."""
    drawing = enter("draw", lambda: lambda: draw(view.augment, key(0, torch.arange(batch))[None]), CPU)
    compete([drawing], CPU, seconds=0.1)
    return {"draw_milliseconds": round(1e3 * drawing.seconds, 3)}
