"""Work divided between threads: the same results, and nobody else's settings changed."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from surefoot import Predictions, fit_temperature, runtime
from surefoot.evaluation.evaluate import replicates
from surefoot.metrics import METRICS
from surefoot.runtime import in_parallel, start_workers
from tests.conftest import draw_many_labels, draw_one_label


@pytest.fixture
def threads(monkeypatch):
    """Sets how many threads may be used, on any machine."""
    before = torch.get_num_threads()

    def use(count):
        monkeypatch.setattr(runtime, "usable_cores", lambda: count)
        torch.set_num_threads(count)

    yield use
    torch.set_num_threads(before)


def settings():
    """The threads of torch here, and in a thread that is started now."""
    with ThreadPoolExecutor(1) as pool:
        return torch.get_num_threads(), pool.submit(torch.get_num_threads).result()


def test_parts_are_worked_on_at_once_by_threads_with_one_torch_thread_each(threads):
    threads(3)
    before = settings()
    together = threading.Barrier(3)

    def work(part):
        together.wait(timeout=60)  # only if three are at work at once
        return part, torch.get_num_threads(), in_parallel(lambda inner: inner * part, [1, 2])

    assert in_parallel(work, [5, 6, 7]) == [(part, 1, [part, 2 * part]) for part in (5, 6, 7)]
    assert settings() == before == (3, 3)


def test_few_numbers_and_one_allowed_thread_stay_in_the_calling_thread(threads):
    here = threading.get_ident()
    threads(2)
    assert in_parallel(lambda _: threading.get_ident(), range(3), numbers=100) == [here] * 3
    assert here not in in_parallel(lambda _: threading.get_ident(), range(3))
    torch.set_num_threads(1)
    assert in_parallel(lambda _: threading.get_ident(), range(3)) == [here] * 3


def test_a_failure_is_raised_and_the_rest_is_left(threads):
    threads(2)
    done = []

    def work(part):
        if part == 3:
            raise ValueError("part 3")
        done.append(part)

    with pytest.raises(ValueError, match="part 3"):
        in_parallel(work, range(100_000))
    assert len(done) < 99_999
    assert in_parallel(str, [1]) == ["1"]  # the threads are still there


def test_a_fork_gets_threads_of_its_own(threads):
    threads(2)
    assert in_parallel(str, range(2)) == ["0", "1"]
    child = os.fork()
    if not child:
        os._exit(0 if in_parallel(str, range(2)) == ["0", "1"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_started_workers_do_not_start_more(threads):
    threads(2)
    with start_workers(2) as pool:
        assert pool.submit(runtime.worker_count).result() == 1
        assert pool.submit(torch.get_num_threads).result() == 1
    assert settings() == (2, 2)


@pytest.mark.parametrize("make", [draw_one_label, draw_many_labels])
@pytest.mark.parametrize("members", [1, 2])
def test_results_do_not_depend_on_the_number_of_threads(make, members, threads, monkeypatch):
    monkeypatch.setattr("surefoot.predictions.logits.NUMBERS_AT_ONCE", 5_000)
    monkeypatch.setattr("surefoot.metrics.calibration.ROWS_AT_ONCE", 700)
    monkeypatch.setattr("surefoot.runtime.NUMBERS_TO_DIVIDE", 0)
    drawn = make(2_000, 12, members=members, sharpness=2)

    def results():
        predictions = Predictions(drawn.logits, drawn.labels, drawn.kind)
        rng = np.random.default_rng(0)
        (spread,) = replicates([predictions], METRICS, resamples=7, rng=rng)
        averaged = predictions.average().logits.tolist()
        return fit_temperature(predictions).to_dict(), averaged, str(spread.tolist())

    threads(1)
    alone = results()
    for count in (2, 3):
        threads(count)
        assert results() == alone
