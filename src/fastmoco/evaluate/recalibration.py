"""Running statistics of batch norm, estimated again."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from fastmoco.distributed import total, world
from fastmoco.encoder import Encoder
from fastmoco.evaluate.gallery import Frame, Gallery, show
from fastmoco.evaluate.progress import Progress
from fastmoco.images import Images, Part
from fastmoco.randomness import order


@torch.no_grad()
def recalibrate(encoder: Encoder, images: Images, frame: Frame, device: torch.device, threads: int) -> None:
    """Estimate the running statistics of batch norm again, on whole images: training may have shown it patches only."""
    norms = [module for module in encoder.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        raise ValueError("--recalibrate: this encoder has no batch norm; leave it out")
    # In a mixed order: class folders are sorted, and the variance of a block of one class lacks that between classes.
    gallery = Gallery(Part(images, order(0, 0, len(images)).numpy()), frame, threads)
    if min(len(gallery), gallery.block) < 2:
        raise ValueError("--recalibrate: of one image there is no spread; give more of them, or a smaller --size")
    kept = [value for norm in norms for value in (norm.running_mean, norm.running_var) if value is not None]
    # In double precision, so that the mean over all images does not depend on which rank has added which blocks.
    added = torch.zeros(2 + sum(len(value) for value in kept), dtype=torch.double)
    with Progress("recalibrating", len(gallery)) as progress, _tracking_the_last_block(encoder, norms):
        for places, pixels in gallery:
            progress.add(gallery.block * world())
            if len(places) > 1:
                encoder(show(pixels, device))
                # By its images: the last block may have few.
                added[1:] += len(places) * torch.cat([torch.ones(1, device=device), *kept]).double().cpu()
                added[0] += 1
    blocks, count, *sums = torch.split(total(added), [1, 1, *(len(value) for value in kept)])
    if not blocks:
        raise ValueError(f"--recalibrate: no two images near {images.name(0)} can be read")
    for value, summed in zip(kept, sums, strict=True):
        value.copy_(summed / count)
    for norm in norms:
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.fill_(blocks.item())


@contextmanager
def _tracking_the_last_block(encoder: Encoder, norms: list[_BatchNorm]) -> Iterator[None]:
    """With a momentum of 1, running statistics are those of the last batch."""
    training, momenta = encoder.training, [norm.momentum for norm in norms]
    encoder.train()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = 1.0
    yield
    encoder.train(training)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
