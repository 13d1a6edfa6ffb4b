"""One step of learning, the same wherever one is made."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from fastmoco.learner import Learner


def descend(
    learner: Learner,
    optimizer: torch.optim.Optimizer,
    views: Sequence[Float[Tensor, "_ b 3 _ _"]],
    bf16: bool = False,
    forward: Callable[..., Tensor] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Forward, backward, the optimiser, the target branch; the loss, and the gradient's norm before it is clipped.

    `forward` is the learner, or what wraps it to bring the gradients of all ranks together.
    """
    with torch.autocast(views[0].device.type, torch.bfloat16, enabled=bf16):
        loss = (forward or learner)(views)
    optimizer.zero_grad()
    loss.backward()
    weights = [weight for weight in learner.online.parameters() if weight.grad is not None]
    norm = get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    if learner.recipe.clip:
        clip_grads_with_norm_(weights, learner.recipe.clip, norm)
    optimizer.step()
    learner.update()
    return loss.detach(), norm
