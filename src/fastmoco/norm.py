"""Batch norm over the batches of all ranks."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastmoco.distributed import world


def synchronise(module: nn.Module, device: torch.device, compile: bool = False) -> None:
    """Let every batch norm inside a module see all ranks. Weights, statistics and their names stay as they are.

    By torch's SyncBatchNorm where it can be. It refuses a CPU; and torch.compile cannot follow it, so that a network of
    which every layer has one would not be compiled at all.
    """
    if world() == 1:
        return
    if device.type == "cuda" and not compile:
        from timm.layers import norm_act  # its converter makes torch's own, and knows timm's norms with activations

        for name, child in module.named_children():
            setattr(module, name, norm_act.convert_sync_batchnorm(child))  # type: ignore[no-untyped-call]
        return
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                setattr(parent, name, BatchNorm(child))


class Normalise(torch.autograd.Function):
    """(x - mean) * scale * weight + bias, where mean and scale are those of x on all ranks.

    The gradient is written out, so that no more is kept for it than a plain batch norm keeps.
    """

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, scale: Tensor, count: Tensor
    ) -> Tensor:
        ctx.save_for_backward(given, weight, mean, scale, count)
        x, shape = _precise(given), _shape(given)
        y = (x - mean.view(shape)) * scale.view(shape)
        if weight is not None:
            y = y * weight.view(shape)
        if bias is not None:
            y = y + bias.view(shape)
        ctx.shifted = bias is not None
        return _as(y, given)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None, None, None]:
        given, weight, mean, scale, count = ctx.saved_tensors
        x, dims, shape = _precise(given), _dims(given), _shape(given)
        gradient = gradient.to(x.dtype)
        x = (x - mean.view(shape)) * scale.view(shape)
        for_bias, for_weight = gradient.sum(dims), (gradient * x).sum(dims)
        along, across = torch.split(_summed(torch.cat([for_bias, for_weight])) / count, x.shape[1])
        factor = scale if weight is None else scale * weight
        back = (gradient - along.view(shape) - x * across.view(shape)) * factor.view(shape)
        ours = (None if weight is None else for_weight, for_bias if ctx.shifted else None)
        return _as(back, given), *ours, None, None, None


@torch.no_grad()
def measure(given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each channel, and of how many values; ranks may have different numbers of images."""
    x, channels = _precise(given), given.shape[1]
    count = x.new_full((1,), x.numel() / channels)
    variance, mean = torch.var_mean(x, _dims(x), correction=0) if len(x) else x.new_zeros(2, channels)
    ranks = _gathered(torch.cat([count, mean, variance]))
    counts, means, variances = torch.split(ranks, [1, channels, channels], dim=1)
    whole = counts.sum()
    mean = (counts * means).sum(0) / whole
    # Of each rank's values around its own mean, and of the means around the mean of all.
    return mean, (counts * (variances + (means - mean).square())).sum(0) / whole, whole


# In a way that torch.compile can follow.


def _gathered(x: Float[Tensor, " *shape"]) -> Float[Tensor, " ranks *shape"]:
    """What each rank has, of the same shape."""
    everyone = x.new_empty(dist.get_world_size(), *x.shape)
    dist.all_gather_into_tensor(everyone, x[None].contiguous())
    return everyone


def _summed(x: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    """Added up over all ranks."""
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x)
    return x


def _precise(x: Tensor) -> Tensor:
    """At least float32, so that many values can be added up."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _dims(x: Tensor) -> list[int]:
    """Over which a channel is averaged: all but the second, which is that of the channels."""
    return [0, *range(2, x.dim())]


def _shape(x: Tensor) -> tuple[int, ...]:
    """In which one value for each channel broadcasts over `x`."""
    return (1, -1, *(1,) * (x.dim() - 2))


def _as(x: Tensor, given: Tensor) -> Tensor:
    """With the type of `given`. To convert what has it already makes torch 2.11 lose the gradient when it compiles."""
    return x if x.dtype == given.dtype else x.to(given.dtype)


class BatchNorm(_BatchNorm):
    """What torch's SyncBatchNorm does, of parts that any device has and torch.compile can follow."""

    def __init__(self, plain: _BatchNorm) -> None:
        super().__init__(plain.num_features, plain.eps, plain.momentum, plain.affine, plain.track_running_stats)
        self._parameters, self._buffers = plain._parameters, plain._buffers
        self.training = plain.training
        for name, module in plain.named_children():  # timm has norms with an activation inside
            setattr(self, name, module)

    def forward(self, x: Float[Tensor, " b c *shape"]) -> Float[Tensor, " b c *shape"]:
        y = self._normalise(x) if self.training else self._alone(x)
        for module in self.children():
            y = module(y)
        return y

    def _alone(self, x: Tensor) -> Tensor:
        batch = self.running_mean is None
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, batch, eps=self.eps)

    def _normalise(self, x: Tensor) -> Tensor:
        mean, variance, count = measure(x)
        if self.running_mean is not None:
            self._track(mean, variance * count / (count - 1))
        y: Tensor = Normalise.apply(x, self.weight, self.bias, mean, (variance + self.eps).rsqrt(), count)
        return y

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        part = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), part)
        self.running_var.lerp_(variance.to(self.running_var.dtype), part)
