"""NNCLR's support set: the targets of earlier steps, among which a target finds its nearest neighbour."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fastmoco.distributed import gather


class Support(nn.Module):
    """A first-in first-out set of unit vectors.

    A look-up never returns a target of its own step: `forward` only notes what to keep, and `store` keeps it later.
    """

    vectors: Tensor
    next: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        # The paper does not say how the set starts; we fill it with random directions, as NNCLR's reimplementations do.
        self.register_buffer("vectors", F.normalize(torch.randn(size, width), dim=1))
        self.register_buffer("next", torch.zeros((), dtype=torch.long))
        self.noted: list[Tensor] = []

    @torch.no_grad()
    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        """The nearest vector of the set for each embedding, by cosine."""
        unit = F.normalize(x.to(self.vectors.dtype), dim=1)
        self.noted.append(unit)
        with _exact(x.device):  # near ones of half precision would be equal, and any of them the nearest
            return self.vectors[(unit @ self.vectors.T).argmax(dim=1)]

    @torch.no_grad()
    def store(self) -> None:
        """Let the targets noted since the last call, of every view and every rank, replace the oldest vectors."""
        if not self.noted:
            return
        new = torch.cat([gather(unit) for unit in self.noted])[-len(self.vectors) :]
        places = (self.next + torch.arange(len(new), device=new.device)) % len(self.vectors)
        self.vectors[places] = new
        self.next.copy_((self.next + len(new)) % len(self.vectors))
        self.noted.clear()


def _exact(device: torch.device) -> AbstractContextManager[None]:
    """Without autocast, which the meta device, where costs are counted, does not know at all."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
