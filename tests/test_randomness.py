import torch
from hypothesis import given
from hypothesis import strategies as st

from fastmoco.randomness import key, order, uniform

MASK = 2**64 - 1


def mix(x):
    """SplitMix64's finaliser in Python's own integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def reference_key(*parts):
    mixed = 0
    for part in parts:
        mixed = mix((mixed + 0x9E3779B97F4A7C15 + part) & MASK)
    return mixed


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4))
def test_a_key_is_splitmix64_in_integers_of_any_size(parts):
    assert int(key(*parts)) & MASK == reference_key(*parts)


@given(st.integers(-(2**63), 2**63 - 1))
def test_uniform_numbers_are_the_upper_bits_of_splitmix64(start):
    expected = [(mix((start + 0x9E3779B97F4A7C15 * (i + 1)) & MASK) >> 40) / 2**24 for i in range(3)]
    assert uniform(torch.tensor(start), 3).tolist() == expected


def test_splitmix64_as_published():
    # The first outputs of the generator started at 0, as in the reference implementation's test vectors.
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    assert uniform(torch.tensor(0), 1).item() == (0xE220A8397B1DCDAF >> 40) / 2**24


def test_numbers_fill_the_unit_interval_evenly_and_keys_do_not_depend_on_each_other():
    numbers = uniform(key(0, 1, torch.arange(20_000), 0), 2).double()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = torch.histc(numbers[:, 0], 20, 0, 1)
    assert ((counts - 1000) ** 2 / 1000).sum() < 44  # chi-squared with 19 degrees of freedom, p = 0.001
    assert torch.corrcoef(numbers.T)[0, 1].abs() < 0.025
    other = uniform(key(0, 1, torch.arange(20_000), 1), 2).double()
    assert torch.corrcoef(torch.stack([numbers[:, 0], other[:, 0]]))[0, 1].abs() < 0.025


def test_keys_of_many_parts_are_those_of_each_by_itself():
    many = key(7, torch.arange(4)[:, None], torch.arange(3))
    assert many.tolist() == [[int(key(7, a, b)) for b in range(3)] for a in range(4)]


def test_an_epoch_visits_every_image_once_and_epochs_differ():
    first, second = order(0, 0, 1000), order(0, 1, 1000)
    assert sorted(first.tolist()) == list(range(1000))
    assert (first == second).float().mean() < 0.02
    assert (first == order(1, 0, 1000)).float().mean() < 0.02
