"""Pocket recipes: Fast-MoCo and MoCo v3 for small images, on one GPU or none. Not from the paper.

Both methods of a set share one recipe, and so does every row of the paper that is trained on it by --recipe-base.
imagenette, cifar10 and shapes are tuned: of what was tried (docs/log.md), the best that MoCo v3 had by kNN. photos is a
guess. tau is lower than the paper's everywhere, as is usual for small sets.
"""

from dataclasses import replace

from fastmoco.contrast import InfoNCE
from fastmoco.heads import MLP
from fastmoco.methods import both, encode, patches
from fastmoco.optim import SGD, Schedule
from fastmoco.recipe import Augment, Recipe, Row, View
from fastmoco.steps import Path

# timm's smallest ResNet, 4 M multiply-adds at 32 px: two cores must see it learn within a minute.
_shapes = Recipe(
    both(patches, size=32),
    contrast=InfoNCE(0.2),
    encoder="timm/test_resnet",
    projector=MLP((256, 256), last="norm"),
    predictor=MLP((128, 256)),
    optim=SGD(lr=0.2, weight_decay=5e-4),
    epochs=20,
    batch=128,
)
# The paper's Fast-MoCo for a folder of photographs and one GPU: what `fastmoco pretrain` takes if it is not told.
_photos = Recipe(both(patches), contrast=InfoNCE(0.2), optim=SGD(lr=0.05), epochs=100, batch=256)
_imagenette = Recipe(
    both(patches, size=128),
    contrast=InfoNCE(0.2),
    encoder="resnet18",
    optim=SGD(lr=0.4, weight_decay=1e-3),
    schedule=Schedule(warmup=10.0),
    epochs=100,
    batch=256,
)


def _sharp(online: Path) -> tuple[View, ...]:
    """Two views of 32 px that are never blurred: there is little to see in them as it is."""
    return tuple(replace(view, augment=Augment(blur_p=0.0)) for view in both(online, size=32))


_cifar10 = replace(
    _imagenette,
    views=_sharp(patches),
    contrast=InfoNCE(0.1),
    encoder="resnet18-small",
    optim=SGD(lr=0.4, weight_decay=5e-4),
    epochs=200,
    batch=512,
)

shapes = Row(_shapes)
shapes_mocov3 = Row(replace(_shapes, views=both(encode, size=32)))
photos = Row(_photos)
photos_mocov3 = Row(replace(_photos, views=both(encode)))
imagenette = Row(_imagenette)
imagenette_mocov3 = Row(replace(_imagenette, views=both(encode, size=128)))
cifar10 = Row(_cifar10)
cifar10_mocov3 = Row(replace(_cifar10, views=_sharp(encode)))
