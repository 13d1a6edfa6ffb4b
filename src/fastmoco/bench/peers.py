"""How others do what is measured here, with our probabilities and ranges: kornia, and torchvision on PIL images."""

import math
import random
import warnings
from collections.abc import Callable, Generator

import torch
from PIL import ImageFilter
from PIL.Image import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from fastmoco.album import read
from fastmoco.augment import MEAN, STD
from fastmoco.images import Images
from fastmoco.recipe import Augment, View

ENDLESS = 2**40  # images: more than any measurement takes


def by_kornia(augment: Augment) -> nn.Module:
    """Stacks of floats on any device, each sample in its own way but for the order of the jitter, one for a stack."""
    import kornia.augmentation as K

    assert not augment.solarise_p, "kornia's thresholds are drawn, ours is one half"
    width = 2 * math.ceil(3 * augment.blur_sigma[1]) + 1  # pixels of the Gaussian, as many as ours has
    return nn.Sequential(
        K.RandomHorizontalFlip(p=augment.flip_p),
        K.ColorJitter(*augment.jitter, p=augment.jitter_p),
        K.RandomGrayscale(p=augment.grey_p),
        K.RandomGaussianBlur((width, width), augment.blur_sigma, p=augment.blur_p),
        K.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
    )


def by_torchvision(augment: Augment, view: View | None = None) -> Callable[[Image], Tensor]:
    """One PIL image to one tensor, as scripts do it; first a random resized crop, if there is a view."""
    # PIL images and these transforms: v2 is no faster on them, and slower on tensors, for an image at a time.
    from torchvision import transforms as T

    assert not augment.solarise_p, "not among what scripts do by default"
    crop = []
    if view is not None:
        crop = [T.RandomResizedCrop(view.size, view.scale, interpolation=T.InterpolationMode(view.resize))]
    changes: Callable[[Image], Tensor] = T.Compose(
        [
            *crop,
            T.RandomApply([T.ColorJitter(*augment.jitter)], p=augment.jitter_p),
            T.RandomGrayscale(p=augment.grey_p),
            T.RandomApply([Soften(augment.blur_sigma)], p=augment.blur_p),
            T.RandomHorizontalFlip(p=augment.flip_p),
            T.ToTensor(),
            T.Normalize(MEAN, STD),
        ]
    )
    return changes


class Soften:
    """PIL's quick Gaussian, which is what scripts blur with."""

    def __init__(self, sigma: tuple[float, float]) -> None:
        self.sigma = sigma

    def __call__(self, image: Image) -> Image:
        return image.filter(ImageFilter.GaussianBlur(random.uniform(*self.sigma)))


class Views(Dataset[list[Tensor]]):
    """Each image as two views, made one after another in the worker."""

    def __init__(self, images: Images, change: Callable[[Image], Tensor]) -> None:
        self.images = images
        self.change = change

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> list[Tensor]:
        image = read(self.images, index)[0]
        return [self.change(image), self.change(image)]


class Decoded(Dataset[int]):
    """Each image read, decoded whole and thrown away: a loader that decodes whole images by PIL cannot be faster."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> int:
        return read(self.images, index)[0].width


def batches(dataset: Views | Decoded, batch: int, workers: int, pin: bool) -> Generator[object, None, None]:
    """From a usual DataLoader, epoch after epoch without a pause; to be closed, which ends its workers."""
    chance = torch.Generator()  # of its own: torch's stays where it is
    chance.seed()
    with warnings.catch_warnings():
        # Someone who asks for more workers than there are cores has a reason, such as a slow disk.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        made = iter(
            DataLoader(
                dataset,
                batch,
                sampler=RandomSampler(dataset, num_samples=ENDLESS, generator=chance),
                num_workers=workers,
                pin_memory=pin,
                generator=chance,
            )
        )
    try:
        yield from made
    finally:
        if workers:  # an exception would keep them
            made._shutdown_workers()  # type: ignore[attr-defined]
