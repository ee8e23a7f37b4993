"""Streamed evaluations and fits against those in memory; with threads, and with a real Ray."""

import re
from threading import Event

import numpy as np
import pytest

from surefoot import (
    InputError,
    Predictions,
    evaluate,
    fit_calibration,
    fit_temperature,
    scan_predictions,
    write_predictions,
)
from surefoot.calibrators import streamed as temperature
from surefoot.calibrators.streamed import Rescaling
from surefoot.metrics import METRICS
from surefoot.predictions import engines as local
from surefoot.predictions import readers as reading
from surefoot.predictions.predictions import concatenated
from surefoot.progress import Progress
from tests.conftest import draw_many_labels, draw_one_label

EXACT = ("nll", "nll_unclipped", "brier", "brier_true_class", "entropy", "signed_ece", "smooth_ece", "e99")


def written(folder, parts, workers=2):
    for index, part in enumerate(parts):
        write_predictions(part, folder / f"p{index}.parquet")
    return scan_predictions(folder, workers=workers)


DRAWN = {
    "one label": [draw_one_label(400 + i, sharpness=2.5, seed=i, dtype=np.float32) for i in range(5)],
    "many labels": [draw_many_labels(300 + i, 4, sharpness=2, seed=i) for i in range(3)],
    "members": [draw_one_label(300, sharpness=2, members=2, seed=i) for i in range(3)],
}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("workers", [1, 3])
def test_many_files_are_as_one_in_memory(name, workers, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_ROWS", 128)
    source, whole = written(tmp_path, DRAWN[name], workers), concatenated(DRAWN[name])
    ticked = []

    def watch(doing, total):
        from contextlib import nullcontext

        ticked.append((doing, total))
        return nullcontext(lambda _: None)

    found = evaluate(source, resamples=0, progress=Progress(bar=watch))
    expected = evaluate(whole, resamples=0).sides["familiar"].metrics
    scores = found.sides["familiar"].metrics
    assert ticked[0] == ("reading familiar", whole.n)
    for metric in METRICS:
        mine, its = scores[metric.name], expected[metric.name]
        if metric.name in EXACT:
            assert mine.value == pytest.approx(its.value, rel=1e-12)
            assert (mine.k, mine.n) == (its.k, its.n)
        elif mine.bound is not None and np.isfinite(mine.bound) and metric.name != "label_error":
            assert mine.bound <= 1e-4
            assert mine.value == pytest.approx(its.value, abs=mine.bound + 1e-12)


def test_a_narrow_band_is_read_again_until_the_bound_holds(tmp_path):
    rng = np.random.default_rng(0)
    top = 0.7 + 1e-8 * rng.random(3000)
    labels = (rng.random(3000) > 0.7).astype(int)
    said = Predictions.from_probs(np.stack([top, 1 - top], axis=1), labels)
    notes = []
    found = evaluate(written(tmp_path, [said]), resamples=0, progress=Progress(note=notes.append))
    assert re.search(r", in [2-4] passes$", notes[-1])
    scores, expected = (
        found.sides["familiar"].metrics,
        evaluate(said, resamples=0).sides["familiar"].metrics,
    )
    for name in ("ece", "aurc", "augrc", "risk_at_80", "risk_at_90"):
        assert scores[name].bound <= 1e-4
        assert scores[name].value == pytest.approx(expected[name].value, abs=scores[name].bound + 1e-12)


def test_a_failure_in_one_thread_ends_the_others(tmp_path, monkeypatch):
    """One thread has read p0 and would read p2 and p4; it waits there until the other has failed with p5."""
    source = written(tmp_path, [*DRAWN["one label"], draw_one_label(50, 7)])
    stop, waiting, begun, told = Event(), Event(), [], []

    def patiently(part, shape):
        begun.append(part)
        if part == source.parts[5]:
            waiting.wait(60)
        yield from reading.batches(part, shape)
        if part == source.parts[0]:
            waiting.set()
            told.append(stop.wait(60))

    monkeypatch.setattr(local, "Event", lambda: stop)
    monkeypatch.setattr(local, "batches", patiently)
    with pytest.raises(InputError, match=r"classes differ: other files 4, .*p5\.parquet 7"):
        evaluate(source)
    assert told == [True]
    assert source.parts[4] not in begun


SORTED = draw_one_label(4000, sharpness=3, seed=3)
SORTED = SORTED.take(np.argsort(SORTED.outcomes.confidence))
LARGE_LAST = draw_one_label(5000, seed=4)  # the first rows say nothing of how large the logits are
LARGE_LAST = Predictions.from_logits(
    LARGE_LAST.logits * np.repeat([1e-3, 1e3], [4900, 100])[:, None], LARGE_LAST.labels
)
WRONG_LAST = draw_one_label(2000, seed=5)  # T of the first rows is about 1, and of all as large as can be
WRONG_LAST = Predictions.from_logits(
    WRONG_LAST.logits * np.repeat([1, -1], [100, 1900])[:, None], WRONG_LAST.labels
)
FITTED = {
    **DRAWN,
    "underconfident": [draw_one_label(500, sharpness=0.3)],
    "sorted by confidence": [SORTED.take(slice(i, i + 500)) for i in range(0, 4000, 500)],
    "large at the end": [LARGE_LAST],
    "small at the end": [LARGE_LAST.take(np.arange(4999, -1, -1))],
    "all correct": [Predictions.from_logits(np.eye(3) * 4, [0, 1, 2])],
    "all wrong": [Predictions.from_logits(np.eye(3) * 4, [1, 2, 0])],
    "wrong but for the first": [WRONG_LAST],
    "flat": [Predictions.from_logits(np.ones((5, 3)), [0, 1, 2, 0, 1])],
    "many labels, all correct": [Predictions.from_logits([[2.0, -3.0]] * 4, [[1, 0]] * 4)],
    "unknown labels": [Predictions.from_logits([[4.0, 0.0]] * 5, [0, 0, 0, 1, -100])],
}


@pytest.mark.parametrize("name", FITTED)
def test_the_temperature_is_the_one_in_memory(name, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_ROWS", 100)
    monkeypatch.setattr(temperature, "PILOT_NUMBERS", 800)  # a poor start, so that the search must work
    found = fit_calibration("temperature", written(tmp_path, FITTED[name]), force=True)
    expected = fit_calibration("temperature", concatenated(FITTED[name]), force=True)
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-6)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=0.02)
    for what in ("n", "label_kind", "classes", "at_bound", "separable", "flat"):
        assert getattr(found, what) == getattr(expected, what), what
    assert found.evidence.nll_after == pytest.approx(expected.evidence.nll_after, rel=1e-6, abs=1e-9)
    assert found.evidence.nll_before == pytest.approx(expected.evidence.nll_before, rel=1e-6)
    assert found.evidence.ece_before == pytest.approx(expected.evidence.ece_before, abs=1e-4)
    assert found.evidence.ece_after == pytest.approx(expected.evidence.ece_after, abs=1e-4)


def test_softening_streams_and_what_cannot_says_so(tmp_path):
    source = written(tmp_path, FITTED["underconfident"])
    softened = fit_calibration("softening", source, force=True)
    assert (softened.temperature, softened.declined) == (
        1.0,
        pytest.approx(fit_temperature(FITTED["underconfident"][0]).temperature, rel=1e-6),
    )
    with pytest.raises(InputError, match="method 'budget' cannot be streamed; have: temperature, softening"):
        fit_calibration("budget", source)


def test_a_calibration_must_fit_what_is_streamed(tmp_path):
    source = written(tmp_path, DRAWN["members"])
    with pytest.raises(InputError, match="fitted for one_label with 3 classes"):
        Rescaling.of(fit_temperature(draw_one_label(50, 3)), source.shape)
    three = fit_calibration("member-temperatures", draw_one_label(50, members=3))
    with pytest.raises(InputError, match="fitted for 3 members, but the predictions have 2"):
        Rescaling.of(three, source.shape)


@pytest.mark.parametrize(("name", "drawn"), [("vector", "many labels"), ("isotonic", "members")])
def test_from_python_as_in_memory(name, drawn, tmp_path):
    """Any calibration that needs nothing but logits is applied while streaming."""
    whole = concatenated(DRAWN[drawn])
    written(tmp_path, DRAWN[drawn])
    fitted = fit_calibration(name, whole)
    found, expected = (
        evaluate(each, each, calibration=fitted, metrics=["nll", "ece", "label_error"], resamples=0)
        for each in (scan_predictions(tmp_path, workers=1), whole)
    )
    for metric in ("nll", "ece", "label_error"):
        for part in ("sides", "uncalibrated"):
            ours, theirs = (getattr(each, part)["unfamiliar"].metrics[metric] for each in (found, expected))
            assert ours.value == pytest.approx(theirs.value, abs=1e-9 if metric == "nll" else 1e-4)
    scanned = scan_predictions([tmp_path / "p0.parquet", str(tmp_path / "p[1-9].parquet")])
    fitted, again = (fit_calibration("temperature", each) for each in (scanned, whole))
    assert fitted.temperature == pytest.approx(again.temperature, rel=1e-6)
    assert repr(scanned) == (
        f"ScannedPredictions({whole.kind}, members={whole.members}, n={whole.n}, classes={whole.classes}, "
        f"{len(DRAWN[drawn])} files)"
    )


def test_what_python_refuses_of_files(tmp_path):
    write_predictions(DRAWN["one label"][0], tmp_path / "p.parquet")
    scanned, memory = scan_predictions(tmp_path / "p.parquet"), DRAWN["one label"][0]
    for call, says in (
        (
            lambda: evaluate("p.parquet"),
            r"familiar has type str; allowed: Predictions .* or ScannedPredictions \(scan_predictions\)",
        ),
        (lambda: evaluate(scanned, memory), "unfamiliar is in memory and familiar scanned; allowed: both"),
        (lambda: fit_calibration("temperature", memory.logits), "val has type ndarray; allowed: Predictions"),
        (lambda: fit_calibration("temperature", scanned, weights="w"), "weights cannot be streamed"),
        (lambda: scan_predictions([]), "the list of prediction files is empty"),
        (lambda: scan_predictions(tmp_path, engine="spark"), "engine is 'spark'; allowed: local, ray"),
        (lambda: scan_predictions(tmp_path, address="x:1"), "allowed: with the engine 'ray'"),
        (lambda: scan_predictions(tmp_path, workers=0), "workers is 0; allowed: a whole number"),
        (lambda: evaluate(memory, progress="bar"), "progress is 'bar'; allowed: True or False"),
    ):
        with pytest.raises(InputError, match=says):
            call()


def test_no_labels_no_fit(tmp_path):
    unlabelled = Predictions.from_logits(np.eye(3), [-100] * 3)
    with pytest.raises(InputError, match="no labels to fit a temperature on"):
        fit_calibration("temperature", written(tmp_path, [unlabelled]))


def test_defaults_are_those_in_memory(tmp_path):
    """500 resamples with seed 0."""
    source = written(tmp_path, [draw_one_label(60, sharpness=2)])
    by_default, as_given = (evaluate(source, **options) for options in ({}, {"resamples": 500, "seed": 0}))
    assert by_default.resamples == 500
    assert by_default.sides["familiar"].metrics["aurc"] == as_given.sides["familiar"].metrics["aurc"]
    other = evaluate(source, seed=1)
    assert other.sides["familiar"].metrics["aurc"] != as_given.sides["familiar"].metrics["aurc"]


def test_one_hot_labels_are_recognised(tmp_path):
    logits = draw_one_label(40).logits[0]
    one_hot = np.eye(4, dtype=int)[np.arange(40) % 4]
    two, none, unknown = one_hot.copy(), one_hot.copy(), one_hot.copy()
    two[39], none[39], unknown[39, 0] = [1, 1, 0, 0], 0, -100
    for index, (labels, expected) in enumerate(
        [(one_hot, True), (two, False), (none, False), (unknown, False), (one_hot.argmax(axis=1), False)]
    ):
        folder = tmp_path / str(index)
        folder.mkdir()
        parts = [Predictions.from_logits(logits[rows], labels[rows]) for rows in np.split(np.arange(40), 2)]
        notes = []
        evaluate(written(folder, parts), resamples=2, progress=Progress(note=notes.append))
        assert any("exactly one label" in note for note in notes) == expected
