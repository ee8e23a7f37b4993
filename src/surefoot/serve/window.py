"""The latest predictions of a server, compared with its bundle's reference: has the data shifted?

`surefoot monitor` on a rolling window, with the same detectors, sentences and levels over repeated checks. A
thread of its own checks, at a lower priority and for about `BUSY` of the time; requests only add rows.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Condition, Thread
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from surefoot.deploy.bundle import Bundle
from surefoot.errors import InputError
from surefoot.monitoring.history import AlphaBudget, opened
from surefoot.monitoring.monitor import Check, check_shift, fingerprint, recorded_check
from surefoot.monitoring.monitor_text import monitor_verdict
from surefoot.monitoring.scores import scores_of
from surefoot.predictions.predictions import Predictions, concatenated
from surefoot.serve.limits import Watch, yield_to_others

LOG = logging.getLogger("surefoot.serve")
BUSY = 0.05  # of a processor, by the time of the thread that checks
SOURCE = "surefoot serve"  # in a history
OFF, COLLECTING, NO_SHIFT, SHIFT, FAILED = (
    "off",
    "not enough rows yet",
    "no shift detected",
    "shift detected",
    "failed",
)
NO_REFERENCE = (
    "this bundle has no reference, as it was written before bundles had one; write it again with 'surefoot "
    "bundle'"
)


@dataclass(frozen=True)
class State:
    """What the checks so far have found."""

    name: str
    sentences: tuple[str, ...]
    check: Check | None = None  # the latest
    checked_at: str | None = None
    checks: int = 0
    alarms: int = 0
    last_alarm: str | None = None


class ShiftWindow:
    """The latest rows, what they were compared with, and what was found."""

    def __init__(self, bundle: Bundle, watch: Watch) -> None:
        self.watch = watch
        self.every = watch.every or watch.rows
        self._batches: deque[Predictions] = deque()
        self._rows = self._new = 0  # in the window; since the latest check
        self._changed = Condition()
        self._closed = False
        self._thread: Thread | None = None
        self._reference = None
        if watch.rows == 0:
            self.state = State(OFF, ("Shift is not checked: the window has 0 rows.",))
        elif bundle.reference is None:
            reason = bundle.about.get("reference", {}).get("reason", NO_REFERENCE)
            self.state = State(OFF, (f"Shift is not checked: {reason}.",))
        else:
            self._reference = scores_of(bundle.reference)
            self.state = self._past()

    def _past(self) -> State:
        """Before the first check of this server; a history may have earlier ones."""
        state = State(COLLECTING, ())
        if self.watch.history is None:
            return state
        assert self._reference is not None
        name = fingerprint(self._reference)
        with opened(self.watch.history, alpha=self.watch.alpha, reference=name) as past:
            alarms = [each["at"] for each in past.checks if each["alarm"]]
            last = alarms[-1] if alarms else None
            return replace(state, checks=past.count, alarms=len(alarms), last_alarm=last)

    def add(self, predictions: Predictions) -> None:
        """Append rows; those that leave the window are dropped, in whole batches."""
        if self._reference is None:
            return
        with self._changed:
            self._batches.append(predictions)
            self._rows += predictions.n
            self._new += predictions.n
            while self._rows - self._batches[0].n >= self.watch.rows:
                self._rows -= self._batches.popleft().n
            if self._is_due():
                self._changed.notify()

    def _is_due(self) -> bool:
        return self._rows >= self.watch.rows and self._new >= self.every

    def start(self) -> None:
        """Start the thread that checks."""
        if self._reference is not None:
            self._thread = Thread(target=self._work, name="shift", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread, after a check in progress."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        yield_to_others()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._is_due())
            if self._closed:
                return
            start = time.thread_time()
            try:
                self.check()
            except Exception as error:  # whatever it is, the server must continue
                LOG.error("the check for shift failed", exc_info=error)
                sentence = str(error) if isinstance(error, InputError) else "see the server's log"
                self.state = replace(self.state, name=FAILED, sentences=(f"The check failed: {sentence}.",))
            pause = (time.thread_time() - start) * (1 - BUSY) / BUSY
            with self._changed:
                self._changed.wait_for(lambda: self._closed, pause)

    def check(self) -> None:
        """Compare the window with the reference."""
        with self._changed:
            batches = list(self._batches)
            self._new = 0
        rows = concatenated(batches).average()
        current = scores_of(rows.take(slice(rows.n - self.watch.rows, None)))
        reference, watch = self._reference, self.watch
        assert reference is not None
        if watch.history is None:
            number = self.state.checks + 1
            found = check_shift(reference, current, budget=AlphaBudget.of_check(number, watch.alpha))
        else:
            with recorded_check(
                reference, current, alpha=watch.alpha, bound=None, history=watch.history, source=SOURCE
            ) as recorded:
                found = recorded.check
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.state = State(
            name=SHIFT if found.alarm else NO_SHIFT,
            sentences=tuple(monitor_verdict(found)),
            check=found,
            checked_at=now,
            checks=found.budget.number,
            alarms=self.state.alarms + found.alarm,
            last_alarm=now if found.alarm else self.state.last_alarm,
        )

    def document(self) -> dict[str, Any]:
        """The state as plain data."""
        state, check = self.state, self.state.check
        sentences = state.sentences
        if state.name == COLLECTING:
            sentences = (f"Not enough rows yet: {self._rows:,} of {self.watch.rows:,}.",)
            if self._rows >= self.watch.rows:
                sentences = ("Enough rows; the first check has not ended yet.",)
        return {
            "state": state.name,
            "verdict": list(sentences),
            "rows": min(self._rows, self.watch.rows),
            "window": self.watch.rows,
            "check_every": self.every,
            "alpha": self.watch.alpha,
            "checks": state.checks,
            "checked_at": state.checked_at,
            "alarms": state.alarms,
            "last_alarm": state.last_alarm,
            "latest": None if check is None else _numbers(check),
        }

    def collect(self) -> Iterator[Metric]:
        """What Prometheus reads; what a check gives is there after the first one."""
        state = self.state
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        yield gauge(
            "surefoot_shift_checked",
            "Whether shift is checked; if not, /health gives the reason.",
            float(state.name != OFF),
        )
        if state.name == OFF:
            return
        yield gauge("surefoot_shift_window_rows", "Rows in the window.", min(self._rows, self.watch.rows))
        yield counter("surefoot_shift_checks", "Checks for shift.", state.checks)
        yield counter("surefoot_shift_alarms", "Checks that detected a shift.", state.alarms)
        if state.check is None:
            return
        yield gauge(
            "surefoot_shift_detected", "Whether the latest check detected a shift.", float(state.check.alarm)
        )
        for name, text in METRICS.items():
            yield gauge(f"surefoot_{name}", text, _numbers(state.check)[name])


METRICS: Mapping[str, str] = {
    "shift_p": "The smallest corrected p-value of the latest check.",
    "shift_level": "The significance level of the latest check.",
    "estimated_accuracy": "Estimated accuracy in the window, without labels.",
    "estimated_accuracy_drop": "Drop of the estimated accuracy from the reference's.",
    "smallest_detectable_drop": "Smallest drop that this many rows would detect with probability 0.8.",
}


def _numbers(check: Check) -> dict[str, float]:
    return {
        "shift_p": min(each.adjusted for each in check.findings),
        "shift_level": check.budget.level,
        "estimated_accuracy": check.accuracy.value,
        "estimated_accuracy_drop": check.drop.value,
        "smallest_detectable_drop": check.smallest_drop,
    }
