"""Batches of an epoch: every row, even sizes, and on a GPU sizes in eights."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from surefoot.lab.training.data import images_from
from surefoot.lab.training.loop import FreshViews, Unlabelled, epoch_batches


def order(seed=0):
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 700), st.integers(1, 150), st.sampled_from([1, 8]))
@example(n=9, batch=8, multiple=8)
@example(n=4, batch=3, multiple=8)
@example(n=128 * 3 + 1, batch=128, multiple=8)
def test_every_row_is_there_and_as_few_as_can_be_twice(n, batch, multiple):
    batches = epoch_batches(n, batch, order(n), multiple=multiple)
    size, rows = len(batches[0]), torch.cat(batches)
    assert {len(each) for each in batches} == {size}
    assert len(batches) == math.ceil(n / batch)
    assert size <= batch
    assert set(rows.tolist()) == set(range(n))
    assert sorted(rows[:n].tolist()) == list(range(n))
    assert torch.equal(rows[n:], rows[: len(rows) - n])
    even = math.ceil(n / len(batches))
    assert size - even < multiple
    if len(batches) == 1:
        assert size == n
    else:
        assert size % multiple == 0 or size == batch


@pytest.mark.parametrize(
    ("n", "batch", "multiple", "count", "size"),
    [
        (1200, 128, 1, 10, 120),
        (1200, 128, 8, 10, 120),  # already a multiple
        (1300, 128, 1, 11, 119),
        (1300, 128, 8, 11, 120),
        (1301, 128, 8, 11, 120),  # tasks of nearly one size have one size of batches
        (100, 128, 8, 1, 100),  # below the batch: all of them, and none twice
        (128, 128, 8, 1, 128),
        (129, 128, 8, 2, 72),
        (990, 100, 8, 10, 100),  # 99 would be 104, which is above the batch
        (700, 100, 8, 7, 100),
        (30, 5, 8, 6, 5),
    ],
)
def test_sizes(n, batch, multiple, count, size):
    batches = epoch_batches(n, batch, order(), multiple=multiple)
    assert (len(batches), len(batches[0])) == (count, size)


def test_unlabelled_rows_go_by_the_size_that_the_batches_have():
    batches = epoch_batches(129, 128, order(), unlabelled=Unlabelled(20, 0.25), multiple=8)
    assert [len(each) for each in batches] == [72 + 18] * 2
    beside = torch.cat([each[72:] for each in batches])
    assert ((beside >= 129) & (beside < 149)).all()
    assert len(set(beside.tolist())) == 20, "each of them before any comes twice"


def test_the_order_is_drawn_the_same_whatever_the_sizes_are():
    plain, eights = (torch.cat(epoch_batches(300, 128, order(), multiple=each))[:300] for each in (1, 8))
    assert torch.equal(plain, eights)
    assert not torch.equal(plain, torch.cat(epoch_batches(300, 128, order(1)))[:300])


def test_fresh_views_are_others_in_each_epoch_and_the_same_when_gone_on():
    pixels = torch.zeros(10, 4, 4, 3, dtype=torch.uint8).numpy()
    inputs = images_from(pixels, view=4, resize=4, augmentation="inception")
    batches = epoch_batches(10, 6, order())
    first, second = (FreshViews(inputs, 3).begin(epoch, batches) for epoch in (0, 1))
    assert first.shape[::2] == (2, 5)
    assert not torch.equal(first, second)
    assert torch.equal(FreshViews(inputs, 3).begin(1, batches), second)
    assert not torch.equal(FreshViews(inputs, 4).begin(1, batches), second)
