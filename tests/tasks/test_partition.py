"""Shares are exact within a row in every stratum, and rows of one key stay together."""

import random
from collections import Counter, defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from surefoot.lab.tasks.split import MOST_LABELS, balance_labels, partition
from surefoot.lab.tasks.task import Split, shuffled

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


balanced_rows = st.lists(
    st.tuples(st.sampled_from((TRAIN, TEST, None)), st.sampled_from("ab"), st.sampled_from("xyz")),
    min_size=1,
    max_size=60,
)


def balance(rows, seed=0):
    splits, labels, groups = (list(column) for column in zip(*rows, strict=True))
    ids = [f"{i:02d}" for i in range(len(rows))]
    return balance_labels(splits, labels, np.asarray(groups), ids=ids, seed=seed)[0]


@given(balanced_rows, st.integers(0, 9))
def test_groups_of_a_balanced_label_are_as_even_as_they_can_be(rows, seed):
    result = balance(rows, seed)
    assert all(split in (None, before) for split, (before, _, _) in zip(result, rows, strict=True))
    before = Counter(row for row in rows if row[0])
    after = Counter((split, *row[1:]) for split, row in zip(result, rows, strict=True) if split)
    for split in {row[0] for row in before}:
        totals = {}
        for label in {row[1] for row in before if row[0] is split}:
            cells = [(split, label, group) for group in "xyz"]
            totals[label] = sum(before[cell] for cell in cells)
            largest = max(after[cell] for cell in cells)
            # a group with fewer than the largest group has kept all of its rows, or is one row behind
            assert all(after[cell] >= min(before[cell], largest - 1) for cell in cells)
        for label in totals:
            assert sum(after[split, label, group] for group in "xyz") == min(totals.values())


def test_every_row_and_every_group_is_equally_likely_to_stay():
    rows = [(TRAIN, "a", "xyz"[i % 3]) for i in range(12)] + [(TRAIN, "b", "x")] * 4
    kept = Counter(row for seed in range(900) for row, split in enumerate(balance(rows, seed)[:12]) if split)
    assert kept.total() == 900 * 4
    assert all(abs(kept[row] - 300) < 70 for row in range(12))  # five standard deviations


def test_a_remark_lists_the_labels_with_the_most_rows_left_out():
    labels = [f"{label:02d}" for label in range(20) for _ in range(label + 1)]
    ids = [f"{i}" for i in range(len(labels))]
    _, (remark,) = balance_labels([VAL] * len(ids), labels, None, ids=ids, seed=0)
    assert remark.startswith(
        "val has 1 rows per label; to balance the labels, 190 rows are left out (19 19, 18 18,"
    )
    assert remark.endswith(f", 08 8, {19 - MOST_LABELS} other labels {sum(range(1, 8))})")


def test_the_authors_shuffle():
    """The loop of `random.shuffle(x, random=...)`, which Python has dropped since."""
    generator = random.Random(1234)
    expected = list(range(10))
    for i in reversed(range(1, 10)):
        j = int(generator.random() * (i + 1))
        expected[i], expected[j] = expected[j], expected[i]
    assert shuffled(range(10), random.Random(1234)) == expected
    assert shuffled([], random.Random(0)) == []
