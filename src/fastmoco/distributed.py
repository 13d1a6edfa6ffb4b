"""The few collective operations, each of which is an identity on one process."""

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor


def world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world() > 1 else 0


@torch.no_grad()
def gather(x: Shaped[Tensor, " b *shape"]) -> Shaped[Tensor, " n *shape"]:
    """The rows of every rank, in the order of ranks; without gradient, since only targets are gathered."""
    if world() == 1:
        return x.detach()
    x = x.contiguous()
    parts = [torch.empty_like(x) for _ in range(world())]
    dist.all_gather(parts, x)
    return torch.cat(parts)
