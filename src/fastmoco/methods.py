"""The methods of the paper: each is a table of views, a target and a contrast."""

from dataclasses import replace

from fastmoco.contrast import Cosine
from fastmoco.recipe import Augment, Recipe, View
from fastmoco.steps import Combine, Divide, Encode, Nearest, Path, Predict, Project
from fastmoco.target import StopGradient

encode: Path = (Encode(), Project(), Predict())
patches: Path = (Divide(2), Encode(), Combine(2), Project(), Predict())
whole: Path = (Encode(), Project())
neighbours: Path = (Encode(), Project(), Nearest())

# MoCo v3 and BYOL change their two views differently: one is always blurred, the other sometimes solarised.
mocov3_augment = (
    Augment(jitter=(0.4, 0.4, 0.2, 0.1), blur_p=1.0),
    Augment(jitter=(0.4, 0.4, 0.2, 0.1), blur_p=0.1, solarise_p=0.2),
)


def two(first: Path, second: Path, target: Path = whole, size: int = 224) -> tuple[View, View]:
    """Two views, each of them both sample and target: two rows, so that each goes through the networks by itself."""
    return View(size, online=first, target=target), View(size, online=second, target=target)


def both(online: Path, target: Path = whole, size: int = 224) -> tuple[View, View]:
    """Two views with the same online path."""
    return two(online, online, target, size)


targets_only = both((), whole)

mocov3 = Recipe(both(encode))
byol = replace(mocov3, contrast=Cosine())
simsiam = replace(byol, target=StopGradient())
# NNCLR itself has no momentum. The paper does not say how NNCLR met the patches; as it needs no second pass for them,
# unlike SimSiam, we give it a momentum target, and a support set as large as that of its reimplementations.
nnclr = replace(mocov3, views=both(encode, target=neighbours), support=65_536)

fast_moco = replace(mocov3, views=both(patches))
byol_patches = replace(byol, views=fast_moco.views)
simsiam_patches = replace(simsiam, views=fast_moco.views)
nnclr_patches = replace(nnclr, views=both(patches, target=neighbours))
