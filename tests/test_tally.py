import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastmoco.trials.tally import Score, agreement, ranks, score

NUMBERS = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=7)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=6))
def test_a_score_is_numpys_mean_and_deviation(values):
    found = score([None, *values])
    assert found.count == len(values)
    np.testing.assert_allclose([found.mean, found.spread], [np.mean(values), np.std(values, ddof=1)], atol=1e-9)


def test_one_value_has_no_spread_and_none_no_score():
    assert score([3.0]) == Score(3.0, None, 1)
    assert score([None]) is None


def test_a_score_in_words():
    assert Score(69.04, 0.25, 3).text() == "69.0 ± 0.2"
    assert Score(69.04, None, 1).text(of=1) == "69.0"
    assert Score(69.04, 0.25, 2).text(of=3) == "69.0 ± 0.2 (n = 2)"
    assert Score(3.21, 1.0, 2).text(sign=True) == "+3.2 ± 1.0"
    assert Score(-0.04, 1.0, 2).text(sign=True) == "+0.0 ± 1.0"
    assert Score(12345.6, 7.0, 2).text(digits=0) == "12,346 ± 7"


@given(NUMBERS)
def test_ranks_are_places_in_a_sorted_list(values):
    assert ranks(values) == [sorted(values, reverse=True).index(value) + 1 for value in values]


def test_agreement_is_by_hand():
    # The paper has 1 < 2 < 3 = 3: five pairs. Here the second is above the third, and so close that it means little.
    found = agreement(
        [1.0, 2.0, 3.0, 3.0], [Score(10.0, 1.0, 3), Score(20.5, 1.0, 3), Score(20.0, 1.0, 3), Score(30.0, 1.0, 3)]
    )
    assert (found.pairs, found.agree, found.clear, found.clear_agree, found.unsure) == (5, 4, 4, 4, 0)
    assert found.text() == (
        "4 of 5 pairs of rows stand in the paper's order; of the 4 whose means here differ by more than the larger "
        "of their standard deviations, 4 do."
    )


def test_a_pair_of_which_one_has_few_seeds_is_not_called_clear():
    found = agreement([1.0, 2.0, 3.0], [Score(1.0, None, 1), Score(9.0, 1.0, 3), Score(5.0, 1.0, 3)])
    assert (found.pairs, found.agree, found.clear, found.clear_agree, found.unsure) == (3, 2, 1, 0, 2)
    assert found.text() == (
        "2 of 3 pairs of rows stand in the paper's order; the one whose means here differ by more than the larger of "
        "their standard deviations does not. Of the pairs, 2 have a row of one seed or two, too few to tell."
    )
    alone = agreement([1.0, 2.0], [Score(1.0, None, 1), Score(9.0, None, 1)])
    assert alone.text().startswith("1 of 1 pairs of rows stand in the paper's order. Of the pairs, all have")
    # Two seeds may be as near each other by chance as they like.
    two = agreement([1.0, 2.0], [Score(1.0, 0.0, 2), Score(9.0, 1.0, 3)])
    assert (two.clear, two.unsure) == (0, 1)


def test_pairs_within_their_spread_are_said_to_be():
    assert agreement([1.0, 2.0], [Score(1.0, 1.0, 3), Score(1.5, 0.1, 3)]).text() == (
        "1 of 1 pairs of rows stand in the paper's order; no two means here differ by more than the larger of their "
        "standard deviations."
    )


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=7))
def test_pairs_in_order_are_those_that_sort_alike(points):
    paper, here = [float(x) for x, _ in points], [float(y) for _, y in points]
    found = agreement(paper, [Score(y, 0.0, 3) for y in here])
    alike = pairs = 0
    for i, j in itertools.permutations(range(len(points)), 2):
        pairs += paper[i] < paper[j] and here[i] != here[j]
        alike += paper[i] < paper[j] and here[i] < here[j]
    assert (found.pairs, found.agree, found.clear_agree) == (pairs, alike, alike)


def test_as_many_numbers_are_compared_as_there_are():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        agreement([1.0, 2.0], [Score(1.0, 1.0, 2)])
