"""Less memory for more time: what the online encoder has computed is not kept for the backward pass, but made again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from fastmoco.encoder import ResNet
from fastmoco.learner import Learner
from fastmoco.samples import EMBEDDING, IMAGE


def spare(learner: Learner, recompute: bool, micro: int) -> None:
    """Let a learner take less memory; it learns the same. Before its networks are compiled.

    `recompute` keeps of the online encoder only what enters each block. `micro` shows the encoder of either branch at
    most that many images at once, and keeps only their embeddings; 0 shows it all at once.
    """
    if micro < 0:
        raise ValueError(f"--micro {micro}: use a number of images, or 0 for all at once")
    if micro:
        _refuse_norms(learner, micro)
        for branch in (learner.online, learner.momentum):
            if branch is not None:
                branch.encoder.micro = micro  # type: ignore[assignment]
                _become(branch.encoder, InParts)
    if recompute:
        encoder = learner.online.encoder
        if isinstance(encoder, ResNet):
            _become(encoder, StemAgain)
        for block in blocks(encoder) or [encoder]:
            _become(block, Again)


def blocks(module: nn.Module) -> list[nn.Module]:
    """The innermost modules that have parts and stand in a row: residual blocks, layers of a transformer."""
    return [one for one in _in_rows(module) if not _in_rows(one)]


def _in_rows(module: nn.Module) -> list[nn.Module]:
    rows = [row for row in module.modules() if isinstance(row, (nn.Sequential, nn.ModuleList))]
    return [one for row in rows for one in row if any(True for _ in one.children())]


def _refuse_norms(learner: Learner, micro: int) -> None:
    """Refuse what looks across the batch: a batch norm, or what keeps running statistics as one does."""
    for module in learner.online.encoder.modules():
        if isinstance(module, _BatchNorm) or "running_var" in dict(module.named_buffers(recurse=False)):
            raise ValueError(
                f"--micro {micro}: {learner.recipe.encoder} has batch norm, which looks across the batch, so parts of "
                "it would learn something else; use an encoder without, such as timm/vit_small_patch16_224 or "
                "timm/convnext_tiny, or --recompute"
            )


def _become(module: nn.Module, kind: type[nn.Module]) -> None:
    """Another class for one module, and not a module around it, which would give every weight another name."""
    base = type(module)
    module.__class__ = type(f"{kind.__name__}{base.__name__}", (kind, base), {})


class Again(nn.Module):
    """A module whose activations are made again."""

    def forward(self, *args: Any, **options: Any) -> Any:
        return _again(self, super().forward, *args, **options)


class StemAgain(nn.Module):
    """A ResNet whose stem, which is no module of its own, is made again."""

    net: Any

    def stem(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d high wide"]:
        y: Tensor = _again(self.net.bn1, super().stem, x)  # type: ignore[misc]
        return y


class InParts(nn.Module):
    """An encoder that sees a batch in parts. It is split before the call, so that what is compiled is one part."""

    micro: int

    def __call__(
        self, x: Float[Tensor, "b c height width"], start: int = IMAGE, stop: int = EMBEDDING
    ) -> Float[Tensor, " b *out"]:
        call = super().__call__
        parts = x.tensor_split(-(-len(x) // self.micro))  # as even as can be: most often of one shape
        if torch.is_grad_enabled():
            # Random numbers are the same again, as torch keeps the state of its generators at each part.
            return torch.cat([checkpoint(call, part, start, stop, use_reentrant=False) for part in parts])
        return torch.cat([call(part, start, stop) for part in parts])


def _again(module: nn.Module, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A call without its activations, and with the buffers of a module written once."""
    if not torch.is_grad_enabled():
        return call(*args, **options)
    if torch.compiler.is_compiling():  # a graph writes buffers when its forward pass ends, and never again
        return checkpoint(call, *args, use_reentrant=False, **options)
    return checkpoint(
        call, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), _set_aside(module)), **options
    )


@contextmanager
def _set_aside(module: nn.Module) -> Iterator[None]:
    """Copies in the place of all buffers, so that batch norm does not count a batch twice."""
    kept = [(owner, dict(owner._buffers)) for owner in module.modules() if owner._buffers]
    for owner, buffers in kept:
        owner._buffers.update({name: None if x is None else x.clone() for name, x in buffers.items()})
    try:
        yield
    finally:
        for owner, buffers in kept:
            owner._buffers.update(buffers)
