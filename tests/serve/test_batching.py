"""The thread that answers many at once."""

from threading import Event

import pytest

from surefoot.errors import InputError
from surefoot.serve.batching import Batcher, PredictionError


class Counting:
    """Doubles numbers, batch by batch, and refuses one of them; waits where it is told to."""

    def __init__(self, bad=None):
        self.batches, self.bad = [], bad
        self.entered, self.go = Event(), Event()

    def __call__(self, numbers):
        self.batches.append(list(numbers))
        self.entered.set()
        assert self.go.wait(60)
        if self.bad in numbers:
            raise RuntimeError("not this one")
        return [2 * number for number in numbers]


@pytest.mark.parametrize(
    ("at_once", "sizes"), [(64, [1, 10]), (4, [1, 4, 4, 2]), (1, [1] * 11)], ids=["all", "four", "one"]
)
def test_whatever_waits_is_answered_together(at_once, sizes):
    process, sizes_seen = Counting(), []
    batcher = Batcher(process, batch=at_once, on_batch=sizes_seen.append)
    first = batcher.submit(0)
    assert process.entered.wait(60)
    others = [batcher.submit(number) for number in range(1, 11)]
    process.go.set()
    assert [first.result(60), *(each.result(60) for each in others)] == list(range(0, 22, 2))
    batcher.close()
    assert [len(batch) for batch in process.batches] == sizes_seen == sizes
    assert [number for batch in process.batches for number in batch] == list(range(11)), (
        "first come, first answered"
    )


def test_one_that_fails_spoils_no_other(caplog):
    process = Counting(bad=3)
    batcher = Batcher(process, batch=64)
    futures = [batcher.submit(9)]
    assert process.entered.wait(60)
    futures += [batcher.submit(number) for number in range(5)]
    process.go.set()
    assert [each.result(60) for i, each in enumerate(futures) if i != 4] == [18, 0, 2, 4, 8]
    with pytest.raises(PredictionError):
        futures[4].result(60)
    assert "not this one" in caplog.text
    assert batcher.submit(1).result(60) == 2
    batcher.close()


def test_an_error_of_the_user_is_given_as_it_is():
    def process(items):
        raise InputError("too large")

    batcher = Batcher(process, batch=4)
    with pytest.raises(InputError, match="too large"):
        batcher.submit(1).result(5)
    batcher.close()


def test_what_is_cancelled_is_passed_over_and_what_waits_at_the_end_is_answered():
    process = Counting()
    batcher = Batcher(process, batch=64)
    batcher.submit(0)
    assert process.entered.wait(60)
    cancelled, kept = batcher.submit(1), batcher.submit(2)
    assert cancelled.cancel()
    process.go.set()
    batcher.close()
    assert kept.result(0) == 4
    assert process.batches == [[0], [2]]
    assert not batcher.alive
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(3)
