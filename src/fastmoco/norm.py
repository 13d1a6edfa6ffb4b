"""Batch norm over the batches of all ranks."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastmoco.distributed import gathered, world


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


class BatchNorm(_BatchNorm):
    """What torch's SyncBatchNorm does, of parts that any device has and torch.compile can follow."""

    def __init__(self, plain: _BatchNorm) -> None:
        super().__init__(plain.num_features, plain.eps, plain.momentum, plain.affine, plain.track_running_stats)
        self._parameters, self._buffers = plain._parameters, plain._buffers
        self.training = plain.training
        for name, module in plain.named_children():  # timm has norms with an activation inside
            setattr(self, name, module)

    def forward(self, x: Float[Tensor, " b c *shape"]) -> Float[Tensor, " b c *shape"]:
        y = self._normalise(x) if self.training or self.running_mean is None else self._by_running(x)
        for module in self.children():
            y = module(y)
        return y

    def _by_running(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)

    def _normalise(self, given: Tensor) -> Tensor:
        """By mean and variance over all ranks, which may have different numbers of images; in float32 at least."""
        x = given.to(torch.promote_types(given.dtype, torch.float32))
        channels, dims, shape = x.shape[1], [0, *range(2, x.dim())], (1, -1, *(1,) * (x.dim() - 2))
        count = x.new_full((1,), x.numel() / channels)
        variance, mean = torch.var_mean(x, dims, correction=0) if len(x) else x.new_zeros(2, channels)
        counts, means, variances = torch.split(gathered(torch.cat([count, mean, variance])), [1, channels, channels], 1)
        whole = counts.sum()
        mean = (counts * means).sum(0) / whole
        # Of each rank's values around its own mean, and of the means around the mean of all.
        variance = (counts * (variances + (means - mean).square())).sum(0) / whole
        if self.running_mean is not None and self.running_var is not None:
            self._track(mean.detach(), (variance * whole / (whole - 1)).detach())
        y: Tensor = (x - mean.view(shape)) * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(given.dtype)

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        part = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, part)
        self.running_var.lerp_(variance, part)

    def _check_input_dim(self, x: Tensor) -> None:
        """Every number of dimensions will do."""
