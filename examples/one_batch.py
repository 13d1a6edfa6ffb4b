"""A recipe as a value, a learner made of it, and a few steps on one batch of noise: the loss leaves chance."""

import torch

from fastmoco.learner import Learner
from fastmoco.recipes import find

torch.manual_seed(0)
recipe = find("pocket/shapes").recipe
learner = Learner(recipe)
optimizer = torch.optim.SGD(learner.online.parameters(), lr=recipe.optim.lr, momentum=0.9)

# One tensor for each row of the table of views: (crops, images, channels, height, width).
batch = [torch.randn(view.count, recipe.batch, 3, view.size, view.size) for view in recipe.views]
# The two views of an image must have something in common to be found by.
batch[1] = batch[0] + 0.5 * batch[1]

print(f"\nchance loss {recipe.contrast.chance(recipe.batch):.3f}")
for step in range(1, 31):
    loss = learner(batch)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(learner.online.parameters(), recipe.clip)
    optimizer.step()
    learner.update()
    if step == 1 or step % 10 == 0:
        print(f"step {step:3d}   loss {loss.item():.3f}")
