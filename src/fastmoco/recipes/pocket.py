"""Pocket recipes: Fast-MoCo and MoCo v3 for small images, on one GPU or none. Not from the paper.

Both methods of a set share one recipe, and so does every row of the paper that is trained on it by --recipe-base. What
they reach is in docs/results.md; what else was tried, in docs/log.md.

    row              images                   Fast-MoCo takes, once compiled     was chosen by
    shapes           the drawn set, 32 px     two minutes on two cores           kNN of MoCo v3
    imagenette       Imagenette, 128 px       a minute on an H200                kNN of MoCo v3
    imagenette_long  the same, 800 epochs     eight minutes there                kNN and linear of Fast-MoCo
    cifar10          CIFAR-10, 32 px          six minutes there                  kNN of MoCo v3
    photos           any folder, 224 px       7 minutes there for 10,000 images  one short trial of Fast-MoCo

A name with _mocov3 is MoCo v3 in that setting:

    fastmoco pretrain imagenette --recipe pocket/imagenette_mocov3 --download

tau is lower than the paper's everywhere, as is usual for small sets.
"""

from dataclasses import replace

from fastmoco.contrast import InfoNCE
from fastmoco.heads import MLP
from fastmoco.methods import both, encode, patches
from fastmoco.optim import SGD, Schedule
from fastmoco.recipe import Augment, Recipe, Row

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
_imagenette = Recipe(
    both(patches, size=128),
    contrast=InfoNCE(0.2),
    encoder="resnet18",
    optim=SGD(lr=0.4, weight_decay=1e-3),
    schedule=Schedule(warmup=10.0),
    epochs=100,
    batch=256,
)
# After some hundred epochs of so few images kNN falls in the setting above: to tell them apart has become easy. Smaller
# crops and a higher tau put that off; norms that decay would turn off channels in so long a time.
_long = replace(
    _imagenette,
    views=tuple(replace(view, scale=(0.08, 1.0)) for view in _imagenette.views),
    contrast=InfoNCE(0.8),
    optim=SGD(lr=0.4, weight_decay=1e-3, decay_norms=False),
    epochs=800,
)
# A folder of photographs and one GPU: what `fastmoco pretrain` takes if it is not told. The paper's rate and decay are
# for a million images; on ten thousand they learn far less than these in the same epochs.
_photos = replace(_imagenette, views=both(patches), encoder="resnet50")
# Views of 32 px are never blurred: there is little to see in them as it is.
_cifar10 = replace(
    _imagenette,
    views=tuple(replace(view, augment=Augment(blur_p=0.0)) for view in both(patches, size=32)),
    contrast=InfoNCE(0.1),
    encoder="resnet18-small",
    optim=SGD(lr=0.4, weight_decay=5e-4),
    epochs=200,
    batch=512,
)


def _whole(recipe: Recipe) -> Recipe:
    """The same without patches, which is MoCo v3."""
    return replace(recipe, views=tuple(replace(view, online=encode) for view in recipe.views))


shapes = Row(_shapes)
shapes_mocov3 = Row(_whole(_shapes))
imagenette = Row(_imagenette)
imagenette_mocov3 = Row(_whole(_imagenette))
imagenette_long = Row(_long)
imagenette_long_mocov3 = Row(_whole(_long))
cifar10 = Row(_cifar10)
cifar10_mocov3 = Row(_whole(_cifar10))
photos = Row(_photos)
photos_mocov3 = Row(_whole(_photos))
