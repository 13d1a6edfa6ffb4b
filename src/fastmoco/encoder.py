"""Encoders by name: torchvision ResNets cut into stages, and any timm model as `timm/NAME`."""

import inspect
import warnings
from functools import cache
from textwrap import shorten
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fastmoco.names import unknown
from fastmoco.samples import EMBEDDING, IMAGE
from fastmoco.stem import convolve

RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2")
# Without a suffix the stem is ImageNet's; "-small" is a 3x3 convolution of stride 1, no max-pool, for up to 64 px.
NAMES = tuple(name + stem for name in RESNETS for stem in ("", "-small"))


class ResNet(nn.Module):
    """A torchvision ResNet without its classifier. The state dict of `net` has torchvision's own keys."""

    net: Any

    def __init__(self, name: str) -> None:
        super().__init__()
        import torchvision

        self.name = name
        builder, _, stem = name.partition("-")
        net = getattr(torchvision.models, builder)(zero_init_residual=True)
        self.width: int = net.fc.in_features
        net.fc = nn.Identity()
        if stem == "small":
            net.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
            nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
            net.maxpool = nn.Identity()
        self.net = net

    def forward(
        self, x: Float[Tensor, "b c height width"], start: int = IMAGE, stop: int = EMBEDDING
    ) -> Float[Tensor, " b *out"]:
        """From after one stage to after another: 0 is the image, 1 to 4 are maps, 5 is the pooled embedding."""
        net = self.net
        stages = (
            (self.stem, net.layer1),
            (net.layer2,),
            (net.layer3,),
            (net.layer4,),
            (net.avgpool, nn.Flatten()),
        )
        for stage in stages[start:stop]:
            for layer in stage:
                x = layer(x)
        return x

    def stem(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d high wide"]:
        """What is before the first residual block."""
        net = self.net
        first, even = net.conv1, not (x.shape[2] % 2 or x.shape[3] % 2)
        folded = even and first.stride == (2, 2) and _compiled_for_gpu(x)
        y: Tensor = net.maxpool(net.relu(net.bn1(convolve(x, first.weight) if folded else first(x))))
        return y

    def admit(self, height: int, width: int) -> None:
        """A ResNet takes images of every size."""


def _compiled_for_gpu(x: Float[Tensor, "b c height width"]) -> bool:
    """Elsewhere it costs more to fold an image than it gains."""
    return x.is_cuda and torch.compiler.is_compiling()


class Timm(nn.Module):
    """Any timm model without its classifier, for whole images only. The state dict of `net` has timm's own keys."""

    net: Any

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.net = _make(name)
        # timm has no one word for the width of an embedding, so one is made.
        self.width: int = _width(name, *self.net.pretrained_cfg["input_size"])

    def forward(
        self, x: Float[Tensor, "b c height width"], start: int = IMAGE, stop: int = EMBEDDING
    ) -> Float[Tensor, "b d"]:
        assert (start, stop) == (IMAGE, EMBEDDING), "a recipe with a timm encoder encodes whole images"
        embedding: Tensor = self.net(x)
        return embedding

    def admit(self, height: int, width: int) -> None:
        """Refuse an image of a size that the model cannot take."""
        try:
            _width(self.name, 3, height, width)
        except ValueError as error:
            own = self.net.pretrained_cfg["input_size"][-1]
            whole = f"whole images of --size {own} fit it, as rows without patches take, such as pocket/photos_mocov3"
            raise ValueError(f"{error}; {whole}") from None


@cache
def _width(name: str, channels: int, height: int, width: int) -> int:
    """How many numbers a timm model makes of an image of this size, whatever its weights are: nothing is computed."""
    with torch.device("meta"):
        trial = _make(name).eval()
    try:
        embedding: Tensor = trial(torch.empty(1, channels, height, width, device="meta"))
    except Exception as error:  # a model can fail in any way on an image that it was not made for
        reason = shorten(str(error).rstrip("."), 160, placeholder=" ...") or type(error).__name__
        raise ValueError(f"encoder timm/{name} cannot take {height}x{width} images: {reason}") from None
    if embedding.dim() != 2 or not embedding.numel():  # the head of some makes nothing, if it has no classes
        made = f"makes {tuple(embedding.shape)} of an image, not one embedding"
        raise ValueError(f"encoder timm/{name} {made}; take another")
    return embedding.shape[1]


def _make(name: str) -> nn.Module:
    import timm

    with warnings.catch_warnings():  # about a head of no classes, which is refused
        warnings.filterwarnings("ignore", "Initializing zero-element tensors", UserWarning)
        made: nn.Module = timm.create_model(name, num_classes=0, **timm_options(name))
    return made


Encoder = ResNet | Timm


@cache
def timm_options(name: str) -> dict[str, Any]:
    """What timm must be told so that a ViT takes patches smaller than its native images, and resamples positions."""
    import timm

    with torch.device("meta"):
        draft = timm.create_model(name)
    kinds = [kind for kind in type(draft).__mro__ if issubclass(kind, nn.Module)]
    known = {option for kind in kinds for option in inspect.signature(kind).parameters}
    return {"dynamic_img_size": True} if "dynamic_img_size" in known else {}


def build(name: str) -> Encoder:
    """A new encoder with random weights."""
    check(name)
    if not name.startswith("timm/"):
        return ResNet(name)
    import timm

    model = name.removeprefix("timm/")
    if "." in model:
        raise ValueError(
            f"encoder {name!r} names weights, but learning starts from random ones; leave out the part after the dot"
        )
    if not timm.is_model(model):
        raise ValueError(unknown("encoder", name, [f"timm/{known}" for known in timm.list_models()]))
    return Timm(model)


def check(name: str) -> None:
    """Refuse an unknown name; names in timm are checked when built, so that a recipe needs no timm to be read."""
    if name not in NAMES and not name.startswith("timm/"):
        raise ValueError(unknown("encoder", name, list(NAMES)) + ", or any timm model as timm/NAME")


def whole_only(name: str) -> bool:
    """Whether an encoder cannot be stopped between its stages."""
    return name.startswith("timm/")
