import pytest
import torch
import torch.nn.functional as F

from fastmoco import encoder, stem


@pytest.mark.parametrize(
    ("channels", "height", "width"), [(3, 224, 224), (3, 32, 48), (3, 2, 2), (1, 6, 4), (4, 10, 8)]
)
def test_it_is_the_7x7_convolution_of_stride_2_and_padding_3(channels, height, width):
    generator = torch.Generator().manual_seed(height)
    x = torch.randn(2, channels, height, width, dtype=torch.double, generator=generator, requires_grad=True)
    weight = torch.randn(5, channels, 7, 7, dtype=torch.double, generator=generator, requires_grad=True)
    expected = F.conv2d(x, weight, stride=2, padding=3)
    found = stem.convolve(x, weight)
    assert torch.allclose(found, expected, atol=1e-12)
    towards = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, (x, weight), towards),
        torch.autograd.grad(expected, (x, weight), towards),
        strict=True,
    ):
        assert torch.allclose(ours, theirs, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "side", "expected"), [("resnet18", 32, 1), ("resnet18", 33, 0), ("resnet18-small", 32, 0)]
)
def test_an_encoder_takes_it_where_it_fits_and_makes_the_same_of_an_image(name, side, expected, monkeypatch):
    calls = []
    made = stem.convolve
    monkeypatch.setattr(encoder, "convolve", lambda x, weight: calls.append(x.shape) or made(x, weight))
    network = encoder.build(name).double().eval()
    x = torch.randn(2, 3, side, side, dtype=torch.double)
    plain = network(x)
    assert not calls, "it is for compiled networks on a GPU"
    monkeypatch.setattr(encoder, "_compiled_for_gpu", lambda x: True)
    assert torch.allclose(network(x), plain, atol=1e-10)
    assert len(calls) == expected
