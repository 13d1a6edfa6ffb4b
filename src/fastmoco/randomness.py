"""Random numbers as a pure function of integers, so that workers, restarts and the order of reading change nothing."""

import functools

import torch
from jaxtyping import Float, Int64
from torch import Tensor

# SplitMix64 (Steele, Lea and Flood, 2014), its unsigned constants as torch's signed integers; products wrap around.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def key(*parts: int | Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
    """One well mixed integer for integers such as (seed, epoch, index, view); tensors broadcast."""
    mixed = torch.zeros((), dtype=torch.long)
    for part in parts:
        mixed = _mix(mixed + _STEP + part)
    return mixed


def uniform(keys: Int64[Tensor, "*n"], count: int) -> Float[Tensor, "*n {count}"]:
    """For each key its first `count` numbers, uniform on [0, 1)."""
    bits = _mix(keys[..., None] + _STEP * torch.arange(1, count + 1))
    return _shift(bits, 40).float() * 2.0**-24  # 24 bits are what a float32 holds exactly


@functools.lru_cache(maxsize=2)
def order(seed: int, epoch: int, images: int) -> Int64[Tensor, " {images}"]:
    """The order in which an epoch visits the images."""
    return key(seed, epoch, torch.arange(images)).argsort(stable=True)


def _mix(x: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x.bitwise_xor(_shift(x, 31))


def _shift(x: Int64[Tensor, "*n"], bits: int) -> Int64[Tensor, "*n"]:
    """To the right, filled with zeros: torch's own shift repeats the sign."""
    return (x >> bits).bitwise_and(2 ** (64 - bits) - 1)
