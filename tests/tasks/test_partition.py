"""Shares are exact within a row in every stratum, and rows of one key stay together."""

import random
from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from surefoot.tasks.split import partition
from surefoot.tasks.task import Split, shuffled

TRAIN, VAL, TEST = Split.TRAIN, Split.VAL, Split.TEST_FAMILIAR
share_maps = st.tuples(st.floats(0.05, 0.45), st.floats(0.05, 0.45)).map(
    lambda two: {TRAIN: 1 - sum(two), VAL: two[0], TEST: two[1]}
)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=80), share_maps, st.integers(0, 9))
def test_each_stratum_is_off_its_share_by_less_than_a_row(strata, shares, seed):
    splits = partition([f"{i}" for i in range(len(strata))], strata, shares, seed=seed)
    for stratum, size in Counter(strata).items():
        counts = Counter(split for split, here in zip(splits, strata, strict=True) if here == stratum)
        for split, share in shares.items():
            assert abs(counts[split] - share * size) < 1


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from("ab")), min_size=1, max_size=80), share_maps)
def test_what_belongs_together_stays_together(rows, shares):
    keys = [f"person {person}" for person, _ in rows]
    splits = partition(keys, [label for _, label in rows], shares, seed=0)
    places = defaultdict(set)
    for key, split in zip(keys, splits, strict=True):
        places[key].add(split)
    assert all(len(splits) == 1 for splits in places.values())


@given(st.lists(st.sampled_from("ab"), min_size=2, max_size=40), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(strata, chance):
    shares = {TRAIN: 0.5, VAL: 0.2, TEST: 0.3}
    rows = list(enumerate(strata))
    one = dict(
        zip(range(len(rows)), partition([str(i) for i, _ in rows], strata, shares, seed=3), strict=True)
    )
    chance.shuffle(rows)
    other = partition([str(i) for i, _ in rows], [s for _, s in rows], shares, seed=3)
    assert {i: split for (i, _), split in zip(rows, other, strict=True)} == one


def test_another_seed_is_another_draw_and_fixed_keys_count():
    keys = [f"{i}" for i in range(100)]
    shares = {TRAIN: 0.5, TEST: 0.5}
    assert partition(keys, ["x"] * 100, shares, seed=0) != partition(keys, ["x"] * 100, shares, seed=1)
    fixed = dict.fromkeys(keys[:40], TEST)
    splits = partition(keys, ["x"] * 100, shares, seed=0, fixed=fixed)
    assert splits[:40] == [TEST] * 40
    assert Counter(splits) == {TRAIN: 50, TEST: 50}


def test_the_authors_shuffle():
    """The loop of `random.shuffle(x, random=...)`, which Python has dropped since."""
    generator = random.Random(1234)
    expected = list(range(10))
    for i in reversed(range(1, 10)):
        j = int(generator.random() * (i + 1))
        expected[i], expected[j] = expected[j], expected[i]
    assert shuffled(range(10), random.Random(1234)) == expected
    assert shuffled([], random.Random(0)) == []
