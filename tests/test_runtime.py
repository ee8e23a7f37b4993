"""Work divided between threads: the same results, and nobody else's settings changed."""

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from surefoot import Predictions, fit_temperature, runtime
from surefoot.evaluation.bootstrap import Draw, resampled
from surefoot.metrics import METRICS
from surefoot.runtime import in_parallel, in_processes, may_fork, start_workers
from tests.conftest import draw_many_labels, draw_one_label


@pytest.fixture
def threads(monkeypatch):
    """Sets how many threads may be used, on any machine."""
    before = torch.get_num_threads()

    def use(count):
        monkeypatch.delitem(sys.modules, "ray", raising=False)  # another file's test may have imported it
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
    others = threading.Barrier(2, timeout=10)  # passed only if two threads work at once
    assert here in in_parallel(lambda _: (others.wait(), threading.get_ident())[1], range(2))
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


def slowly(part):
    """So slow that several processes get parts."""
    time.sleep(0.02)
    return part, os.getpid()


needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks a process with libraries")


@needs_fork
def test_forks_work_on_parts_in_any_order_and_are_gone_afterwards(threads, tmp_path):
    threads(3)
    before = settings()

    def work(part):
        """Waits until three processes have begun: on a busy machine two could do everything."""
        (tmp_path / str(os.getpid())).touch()
        end = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        return part, os.getpid()

    with may_fork():
        results = in_processes(work, list("abcdefghijkl"))
    assert [part for part, _ in results] == list("abcdefghijkl")
    processes = {process for _, process in results}
    assert len(processes) == 3
    assert settings() == before


@needs_fork
def test_within_a_fork_there_is_one_thread_and_no_other_fork(threads):
    threads(2)

    def work(part):
        time.sleep(0.02)
        return torch.get_num_threads(), len({process for _, process in in_processes(slowly, "abcd")})

    with may_fork():
        assert in_processes(work, range(4)) == [(1, 1)] * 4


@needs_fork
def test_if_a_fork_is_killed_the_work_is_done_here(threads):
    threads(2)
    here = os.getpid()

    def work(part):
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return slowly(part)

    with may_fork():
        assert in_processes(work, range(6)) == [(part, here) for part in range(6)]


@needs_fork
def test_a_failure_in_any_process_is_raised_and_no_fork_is_left(threads):
    threads(2)

    def work(part):
        if part == 3:
            raise ValueError("part 3")
        return slowly(part)

    with may_fork(), pytest.raises(ValueError, match="part 3"):
        in_processes(work, range(50))


def test_without_leave_no_process_is_forked(threads):
    threads(2)
    assert {process for _, process in in_processes(slowly, range(4))} == {os.getpid()}


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
    monkeypatch.setattr("surefoot.runtime.NUMBERS_TO_DIVIDE", 0)
    drawn = make(2_000, 12, members=members, sharpness=2)

    def results():
        predictions = Predictions(drawn.logits, drawn.labels, drawn.kind)
        draw = Draw.of(predictions.n, predictions.groups, resamples=7, rng=np.random.default_rng(0))
        spread = resampled(predictions.outcomes, METRICS, draw)
        averaged = predictions.average().logits.tolist()
        return fit_temperature(predictions).to_dict(), averaged, str(spread.tolist())

    threads(1)
    alone = results()
    for count in (2, 3):
        threads(count)
        assert results() == alone
