import math

import pytest
import torch

from fastmoco.contrast import Cosine, InfoNCE

S, B, N, D = 3, 4, 6, 8
GENERATOR = torch.Generator().manual_seed(0)
SAMPLES, TARGET = torch.randn(S, B, D, generator=GENERATOR), torch.randn(N, D, generator=GENERATOR)
OWN = torch.tensor([1, 2, 3, 4])


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


@pytest.mark.parametrize("tau", [0.1, 0.2, 1.0])
def test_infonce_equals_eq_2_written_as_a_loop(tau):
    samples, target = SAMPLES.double().tolist(), TARGET.double().tolist()
    for s, loss in enumerate(InfoNCE(tau)(SAMPLES, TARGET, OWN).tolist()):
        terms = []
        for i in range(B):
            scores = [math.exp(cosine(samples[s][i], z) / tau) for z in target]
            terms.append(-math.log(scores[OWN[i]] / sum(scores)))
        assert loss == pytest.approx(sum(terms) / B, rel=1e-5)


def test_cosine_equals_a_loop():
    samples, target = SAMPLES.double().tolist(), TARGET.double().tolist()
    for s, loss in enumerate(Cosine()(SAMPLES, TARGET, OWN).tolist()):
        assert loss == pytest.approx(-sum(cosine(samples[s][i], target[OWN[i]]) for i in range(B)) / B, rel=1e-5)


@pytest.mark.parametrize("batch", [2, 64, 512])
def test_embeddings_that_know_nothing_lose_ln_n(batch):
    same, own = torch.ones(1, batch, D), torch.arange(batch)
    assert InfoNCE()(same, same[0], own).item() == pytest.approx(math.log(batch), rel=1e-6)
    assert InfoNCE().chance(batch) == math.log(batch)


def test_unrelated_directions_have_no_cosine():
    torch.manual_seed(0)
    wide = torch.randn(1, 512, 4096), torch.randn(512, 4096)
    assert Cosine()(*wide, torch.arange(512)).item() == pytest.approx(Cosine().chance(512), abs=1e-2)


@pytest.mark.parametrize("contrast", [InfoNCE(0.2), Cosine()])
def test_a_half_precision_network_is_contrasted_in_float32(contrast):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = contrast(SAMPLES, TARGET, OWN)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, contrast(SAMPLES, TARGET, OWN))
    half = SAMPLES.bfloat16(), TARGET.bfloat16()
    assert torch.equal(contrast(*half, OWN), contrast(half[0].float(), half[1].float(), OWN))
