"""A fixed slice of the fuzzer, and the fuzzer itself: it must see what it is there to see."""

import os
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import surefoot.cli
from tests import warm
from tests.fuzz import driver, oracle, worker
from tests.fuzz.steps import REFUSED, VALID, Step
from tests.metrics import oracles

CASES, SEED = 400, 19


WORK = "import faulthandler, sys; from tests.fuzz.driver import main; faulthandler.enable(); sys.exit(main())"


def forked(command, *, stderr, cwd, env, **_):
    """The driver's worker, in a fork of the process that has everything loaded."""
    options = {"cwd": cwd, "environment": env, "new_session": True, "stderr": stderr.fileno()}
    process = warm.Process(WORK, command[3:], **options)
    process.stdout = process.stdout.detach()  # the driver reads bytes
    return process


def test_a_slice_of_the_cases(monkeypatch):
    """`make fuzz CASES=100000` runs the rest."""
    monkeypatch.setattr(driver, "subprocess", SimpleNamespace(Popen=forked, PIPE=subprocess.PIPE))
    tally = driver.fuzz(CASES, SEED)
    assert tally.cases == CASES
    assert tally.compared > CASES / 4
    assert tally.refused > CASES / 4
    assert not tally.failures, "\n".join(
        f"{kind}: case {case}: {detail}" for kind, case, _, _, detail in tally.failures
    )


def test_the_oracle_agrees_with_loops():
    rng = np.random.default_rng(0)
    logits = np.round(2 * rng.standard_normal((40, 3)), 1)
    labels = rng.integers(0, 3, 40)
    probs = [oracles.softmax(row) for row in logits.tolist()]
    top = np.round(np.max(probs, axis=1), 12)
    correct = np.argmax(probs, axis=1) == labels
    found = oracle.scores(logits[None], labels)
    assert found["nll"] == pytest.approx(oracles.nll(probs, labels))
    assert found["brier"] == pytest.approx(oracles.brier(probs, labels))
    assert found["ece"] == pytest.approx(oracles.ece(top, correct))
    assert found["aurc"] == pytest.approx(oracles.aurc(top, correct))


def _outcome(monkeypatch, tmp_path, main, step):
    """The kinds of failure of a case with this one step, where the command line does that."""
    for name in ("base", "scratch"):
        (tmp_path / name).mkdir()
    for name in ("COLUMNS", "TMPDIR", "SUREFOOT_CACHE"):  # which the worker sets; put back afterwards
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    monkeypatch.setattr(surefoot.cli, "app", surefoot.cli.app)
    running = worker.Worker(tmp_path / "base", tmp_path / "scratch", 0)
    running.main = main

    def family(place, rng):
        yield step

    monkeypatch.setattr(worker, "family_of", lambda *_: family)
    monkeypatch.chdir(tmp_path)
    return [kind for kind, *_ in running.run(0)["failures"]]


def _exits(code, error="", then=lambda: None):
    def main():
        import sys

        sys.stderr.write(error)
        then()
        sys.exit(code)

    return main


def _raises():
    raise KeyError("x")


@pytest.mark.parametrize(
    ("main", "step", "kinds"),
    [
        (_exits(0), Step(("x",)), []),
        (_exits(2, "surefoot: a sentence\n"), Step(("x",), REFUSED), []),
        (_raises, Step(("x",)), ["traceback"]),
        (_exits(0), Step(("x",), REFUSED), ["wrong exit"]),
        (_exits(1), Step(("x",)), ["wrong exit"]),
        (_exits(2, "surefoot: two\nlines\n"), Step(("x",), REFUSED), ["unclear refusal"]),
        (_exits(2, "surefoot: \x1b[31m\n"), Step(("x",), REFUSED), ["unclear refusal"]),
        (_exits(2), Step(("x",), REFUSED), ["unclear refusal"]),
        (_exits(0), Step(("x",), VALID, lambda _: "n is 1, not 2"), ["wrong number"]),
        (_exits(0, "a note\n"), Step(("x",), notes=("a note",)), []),
        (_exits(0), Step(("x",), notes=("a note",)), ["no warning"]),
        (_exits(3, "surefoot: unexpected\n"), Step(("x",)), ["traceback"]),
        (
            _exits(2, "surefoot: a sentence\n", lambda: Path("new").touch()),
            Step(("x",), REFUSED),
            ["file changed"],
        ),
    ],
)
def test_every_kind_of_failure_is_seen(main, step, kinds, monkeypatch, tmp_path):
    assert _outcome(monkeypatch, tmp_path, main, step) == kinds


@pytest.mark.parametrize(
    ("body", "kind"),
    [("os.kill(os.getpid(), 11)", "crash"), ("time.sleep(600)", "hang"), ("while True: pass", "hang")],
)
def test_a_worker_that_dies_or_waits_names_its_case(body, kind, monkeypatch, tmp_path):
    code = f"import json, os, time\nprint(json.dumps({{'begin': 3}}), flush=True)\n{body}"
    real = driver.subprocess.Popen
    monkeypatch.setattr(driver, "SECONDS", 1)
    monkeypatch.setattr(driver, "IDLE_LOOKS", 1)
    monkeypatch.setattr(driver, "prepare", lambda base: base.mkdir())
    monkeypatch.setattr(
        driver.subprocess,
        "Popen",
        lambda _, **options: real([driver.sys.executable, "-c", code], **options),
    )
    tally = driver.fuzz(1, 0, first=3)
    assert [(failure, case) for failure, case, *_ in tally.failures] == [(kind, 3)]
