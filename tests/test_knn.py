import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import paint_subject

from fastmoco.evaluate import knn
from fastmoco.evaluate.features import finite
from fastmoco.evaluate.knn import vote, votes
from fastmoco.evaluate.scores import top, top1

CLASSES = 5


def features(count, seed, width=16):
    """Loose clusters, one for each class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    centres = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(9))
    return centres[labels] + 1.5 * torch.randn(count, width, generator=generator), labels


BANK, LABELS = features(90, seed=0)
QUERIES, TRUTH = features(40, seed=1)


def by_hand(queries, bank, labels, k, temperature, own=False):
    queries, bank, labels = queries.double().numpy(), bank.double().numpy(), labels.numpy()
    scores = np.zeros((len(queries), CLASSES))
    for i, query in enumerate(queries):
        cosines = [query @ other / np.linalg.norm(query) / np.linalg.norm(other) for other in bank]
        order = sorted((j for j in range(len(bank)) if not (own and i == j)), key=lambda j: -cosines[j])
        for j in order[:k]:
            scores[i, labels[j]] += np.exp(cosines[j] / temperature)
    return scores / scores.sum(1, keepdims=True)


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (7, 0.07), (20, 0.07), (20, 1.0), (89, 0.2)])
@pytest.mark.parametrize("own", [False, True])
def test_votes_equal_a_loop_by_hand(k, temperature, own):
    queries = BANK if own else QUERIES
    ours = vote(queries, BANK, LABELS, CLASSES, k, temperature, own)
    np.testing.assert_allclose(ours, by_hand(queries, BANK, LABELS, k, temperature, own), rtol=1e-4, atol=1e-6)


def test_lengths_do_not_count():
    scale = torch.logspace(-3, 3, len(BANK))[:, None]
    torch.testing.assert_close(
        vote(QUERIES * 50, BANK * scale, LABELS, CLASSES), vote(QUERIES, BANK, LABELS, CLASSES), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("spend", [False, True])
def test_lengths_beyond_float32_do_not_count_either(spend):
    scale = torch.tensor([1.0, 1e19, 1e37]).repeat(len(BANK) // 3)[:, None]
    bank, queries = BANK * scale, QUERIES * 1e20
    before = bank.clone(), queries.clone()
    (found,) = votes(queries, bank, LABELS, CLASSES, (20,), spend=spend)
    torch.testing.assert_close(found, vote(QUERIES, BANK, LABELS, CLASSES), rtol=1e-4, atol=1e-6)
    assert torch.equal(queries, before[1])
    assert torch.equal(bank, before[0]) != spend


@pytest.mark.parametrize("block", [1, 7, 40, 1000])
@pytest.mark.parametrize("own", [False, True])
def test_blocks_do_not_change_the_result(block, own):
    queries = BANK if own else QUERIES
    whole = vote(queries, BANK, LABELS, CLASSES, own=own)
    torch.testing.assert_close(vote(queries, BANK, LABELS, CLASSES, own=own, block=block), whole, rtol=1e-4, atol=1e-6)


def test_an_image_is_not_its_own_neighbour():
    labels = torch.arange(len(BANK))
    assert top1(vote(BANK, BANK, labels, len(BANK), k=1), labels) == 100.0
    assert top1(vote(BANK, BANK, labels, len(BANK), k=1, own=True), labels) == 0.0


@pytest.mark.parametrize("own", [False, True])
def test_k_is_limited_to_the_images_there_are(own):
    queries = BANK if own else QUERIES
    everyone = vote(queries, BANK, LABELS, CLASSES, len(BANK) - own, own=own)
    assert torch.equal(vote(queries, BANK, LABELS, CLASSES, 10**6, own=own), everyone)


def test_of_equal_neighbours_the_first_of_the_bank_vote():
    bank = torch.eye(2)[[1, 0, 0, 0, 0, 1]]
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    scores = vote(torch.tensor([[2.0, 0.0]]), bank, labels, CLASSES, k=2)
    torch.testing.assert_close(scores, torch.tensor([[0.0, 0.5, 0.5, 0.0, 0.0]]))
    # The nearer of the two is beyond the equals, and only one of those is left to choose.
    bank = torch.tensor([[0.0, 1.0], [0.0, 2.0], [1.0, 0.0]])
    scores = vote(torch.tensor([[1.0, 0.0]]), bank, torch.tensor([3, 4, 1]), CLASSES, k=2, temperature=1.0)
    part = np.e / (np.e + 1)
    torch.testing.assert_close(scores, torch.tensor([[0.0, part, 0.0, 1 - part, 0.0]], dtype=torch.float))


def test_collapsed_features_are_judged_as_chance():
    scores = vote(torch.ones(40, 8), torch.ones(90, 8), LABELS, CLASSES, k=90)
    torch.testing.assert_close(scores[0], LABELS.bincount(minlength=CLASSES) / 90)
    assert torch.equal(scores, scores[:1].expand(40, -1))


def test_votes_are_in_all_one_at_any_temperature_and_in_half_precision():
    for scores in (
        vote(QUERIES, BANK, LABELS, CLASSES, temperature=1e-4),
        vote(QUERIES.bfloat16(), BANK.bfloat16(), LABELS.int(), CLASSES),
    ):
        assert scores.dtype == torch.float
        torch.testing.assert_close(scores.sum(1), torch.ones(len(QUERIES)))


def test_autocast_does_not_blur_the_neighbours():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        blurred = vote(QUERIES, BANK, LABELS, CLASSES)
    assert torch.equal(blurred, vote(QUERIES, BANK, LABELS, CLASSES))


def test_no_query_has_no_scores():
    assert vote(QUERIES[:0], BANK, LABELS, CLASSES).shape == (0, CLASSES)


def test_what_cannot_be_judged_is_refused_in_a_line():
    with pytest.raises(ValueError, match="no neighbour can vote"):
        vote(BANK[:1], BANK[:1], LABELS[:1], CLASSES, own=True)
    with pytest.raises(ValueError, match="not finite"):
        vote(QUERIES, BANK * float("nan"), LABELS, CLASSES)


def test_top1_is_in_percent_and_the_first_of_equals_counts():
    scores = torch.tensor([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1], [0.4, 0.6]])
    assert top1(scores, torch.tensor([1, 0, 0, 0])) == 75.0
    assert top1(scores, torch.tensor([1, 1, 0, 0])) == 50.0


def test_scores_that_are_no_numbers_are_not_right():
    scores = torch.tensor([[torch.nan] * 6, [0.9, torch.nan, 0.0, 0.0, 0.0, 0.0], [0.9, 0.1, 0.0, 0.0, 0.0, 0.0]])
    labels = torch.tensor([0, 1, 0])
    assert top1(scores, labels) == pytest.approx(100 / 3)
    assert top(5, scores, labels) == pytest.approx(100 / 3)


# Few values, so that many are equal, of which two are the same zero; and all of a range, however small.
VALUES = st.sampled_from([-math.inf, -1.0, -0.5, -1e-40, -0.0, 0.0, 1e-40, 0.5, 0.75, 1.0])


@settings(deadline=None)
@given(data=st.data(), group=st.integers(1, 5), groups=st.integers(1, 12), rows=st.integers(1, 3))
def test_the_nearest_are_the_first_of_all_in_order(data, group, groups, rows):
    count = group * groups
    values = data.draw(st.sampled_from([VALUES, st.floats(-1, 1, width=32)]))
    table = [data.draw(st.lists(values, min_size=count, max_size=count)) for _ in range(rows)]
    k = data.draw(st.integers(1, count))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knn, "GROUP", group)
        patch.setattr(knn, "WORTH", data.draw(st.sampled_from([1, 8])))  # most often by groups, and hardly ever
        found = knn._nearest(torch.tensor(table), k)
    # Python's sort keeps equals in their order, and -0.0 == 0.0.
    assert found.tolist() == [sorted(range(count), key=lambda place: -row[place])[:k] for row in table]


def lattice(count, seed):
    """Of length 2 and in few directions: cosines are multiples of a quarter without rounding, and most have equals."""
    corners = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=4)))
    return corners[torch.randint(16, (count,), generator=torch.Generator().manual_seed(seed))]


@settings(deadline=None, max_examples=60)
@given(
    bank=st.integers(2, 60),
    queries=st.integers(1, 20),
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    group=st.integers(1, 9),
    block=st.integers(1, 25),
    own=st.booleans(),
    seed=st.integers(0, 99),
)
def test_one_search_for_several_counts_equals_a_loop_by_hand_for_each(bank, queries, counts, group, block, own, seed):
    others = lattice(bank, seed)
    asked, labels = others if own else lattice(queries, seed + 1), torch.arange(bank) % CLASSES
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knn, "GROUP", group)
        patch.setattr(knn, "WORTH", 1 + 7 * (seed % 2))
        found = votes(asked, others, labels, CLASSES, counts, own=own, block=block)
    assert len(found) == len(counts)
    for k, scores in zip(counts, found, strict=True):
        np.testing.assert_allclose(scores, by_hand(asked, others, labels, k, 0.07, own), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("room", [1, 5 * 7 * 20 * 3, 2**20])
def test_votes_are_added_up_as_a_gpu_does_it(room):
    weights, chosen = torch.rand(10, 20), torch.randint(7, (10, 20))
    expected = torch.stack(
        [weight.new_zeros(7).index_add(0, own, weight) for weight, own in zip(weights, chosen, strict=True)]
    )
    assert torch.allclose(knn._add(weights, chosen, 7, room), expected, atol=1e-6)


def test_votes_of_several_counts_have_the_bits_of_each_alone(monkeypatch):
    monkeypatch.setattr(knn, "GROUP", 3)
    monkeypatch.setattr(knn, "WORTH", 1)
    for k, scores in zip((20, 5, 1000), votes(QUERIES, BANK, LABELS, CLASSES, (20, 5, 1000)), strict=True):
        assert scores.equal(vote(QUERIES, BANK, LABELS, CLASSES, k))


def test_both_numbers_of_neighbours_are_of_one_search_which_leaves_what_is_kept_as_it_is(tmp_path, monkeypatch):
    subject, searched, search = paint_subject(tmp_path / "images", 40), [], knn._nearest
    monkeypatch.setattr(knn, "_nearest", lambda cosines, k: searched.append(k) or search(cosines, k))
    monkeypatch.setattr(knn, "COUNTS", (2, 6))
    first = dict(knn.evaluate(subject))
    assert searched == [6]
    assert list(first) == ["knn2/top1", "knn2/top5", "knn6/top1", "knn6/top5"]
    kept = {file: file.read_bytes() for file in (tmp_path / "store" / "features").iterdir()}
    assert len(kept) == 2
    assert dict(knn.evaluate(subject)) == first  # from the disk, and as it was before the bank was spent
    assert all(file.read_bytes() == content for file, content in kept.items())
    bank, queries = subject.features()
    assert first["knn6/top1"] == top1(vote(queries.x, bank.x, bank.labels, subject.classes, 6), queries.labels)


def test_a_bank_is_spent_only_on_request():
    bank, before = BANK.clone(), vote(QUERIES, BANK, LABELS, CLASSES)
    assert vote(QUERIES, bank, LABELS, CLASSES).equal(before)
    assert bank.equal(BANK)
    assert votes(QUERIES, bank, LABELS, CLASSES, (20,), spend=True)[0].equal(before)
    torch.testing.assert_close(bank.norm(dim=1), torch.ones(len(bank)))


@pytest.mark.parametrize(
    ("bank", "block"), [(1, 1024), (50_000, 1024), (1_281_167, 768), (14_000_000, 76), (10**10, 1)]
)
def test_a_block_has_room_and_is_of_whole_tiles_where_it_can_be(bank, block):
    assert knn._block(bank) == block
    assert block == 1 or 4 * block * bank <= 2**32


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_found_anywhere(value):
    x = torch.full((5, 4), 3e38)  # finite, although a sum of them is not
    assert finite(x)
    assert finite(x.bfloat16()[:0])
    x[3, 2] = value
    assert not finite(x)
