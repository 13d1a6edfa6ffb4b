"""An encoder as detectron2 reads it, and back."""

import io
import pickle
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastmoco.checkpoint import write

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of pixels from 0 to 255, as in training
_COUNT = "num_batches_tracked"  # of batch normalisation; detectron2 has none
_ARRAYS = {
    *(("numpy", "ndarray"), ("numpy", "dtype")),
    *(("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")),
}


def rename(key: str) -> str:
    """What detectron2 calls a weight of a torchvision ResNet."""
    key = re.sub(r"^layer(\d)", lambda stage: f"res{int(stage[1]) + 1}", key)
    key = key.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")
    key = re.sub(r"\bbn(\d)", r"conv\1.norm", key)
    return key if key.startswith("res") else f"stem.{key}"


def save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    arrays = {rename(key): value.numpy() for key, value in tensors.items() if not key.endswith(_COUNT)}
    content = pickle.dumps({"model": arrays, "__author__": "fastmoco", "matching_heuristics": True}, protocol=3)
    # The name before numpy 2, which later versions know, too. Only the first: other matches may be weights.
    content = content.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n", 1)
    write(path, lambda file: file.write(content))


def load(path: Path, keys: Iterable[str]) -> dict[str, Tensor]:
    """The weights under the names that torchvision has for them; `keys` are those that are wanted."""
    arrays = _Arrays(io.BytesIO(path.read_bytes())).load()["model"]
    back = {rename(key): key for key in keys if not key.endswith(_COUNT)}
    if arrays.keys() != back.keys():
        strange = sorted(arrays.keys() ^ back.keys())
        raise ValueError(f"{path} has other keys than a ResNet of detectron2, such as {strange[0]!r}")
    return {back[key]: torch.from_numpy(array) for key, array in arrays.items()}


class _Arrays(pickle.Unpickler):
    """Reads numpy's arrays and runs nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAYS:
            raise ValueError(f"the file holds more than numbers, and was not run: {module}.{name}")
        return super().find_class(module, name)


def settings(path: Path, name: str) -> str:
    """The lines of detectron2's configuration that these weights need."""
    wide, depth = name.startswith("wide"), int(re.findall(r"resnet(\d+)", name)[0])
    lines = [
        *("MODEL:", f'  WEIGHTS: "{path}"'),
        *(f"  PIXEL_MEAN: {list(MEAN)}", f"  PIXEL_STD: {list(STD)}"),
        *("  RESNETS:", f"    DEPTH: {depth}", "    STRIDE_IN_1X1: False"),
        *(["    WIDTH_PER_GROUP: 128"] if wide else []),
        *(["    RES2_OUT_CHANNELS: 64"] if depth < 50 else []),  # detectron2 asks for it
        *("INPUT:", '  FORMAT: "RGB"'),
    ]
    return "\n".join(lines)
