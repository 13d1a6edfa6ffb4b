from fastmoco.pairs import OtherViews, SameView, meetings

BOTH, FIRST, SECOND = frozenset({0, 1}), frozenset({0}), frozenset({1})


def test_a_sample_of_two_views_has_seen_the_targets_of_both():
    assert meetings(OtherViews(), [FIRST, SECOND, BOTH], [FIRST, SECOND]) == [(1,), (0,)]
    assert meetings(SameView(), [FIRST, SECOND, BOTH], [FIRST, SECOND]) == [(0, 2), (1, 2)]


def test_a_target_of_two_views_is_seen_by_samples_of_either():
    assert meetings(OtherViews(), [FIRST, frozenset({2})], [BOTH]) == [(1,)]
    assert meetings(SameView(), [FIRST, frozenset({2})], [BOTH]) == [(0,)]
