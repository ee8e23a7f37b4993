"""Results as people look at them: text, HTML, frames, plain values, plots and pages."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from surefoot import (
    Evaluation,
    InputError,
    choose_sets,
    choose_thresholds,
    evaluate,
    fit_calibration,
    fit_temperature,
    monitor,
)
from surefoot.calibrators import Calibration, load_calibration, save_calibration
from surefoot.lab.comparison.comparison import Difference
from surefoot.lab.experiments.changes import (
    Change,
    ExperimentChange,
    MethodChange,
    Opened,
    Setting,
    TaskChange,
)
from surefoot.lab.experiments.experiment import Experiment, Part
from surefoot.lab.experiments.run import Study
from surefoot.metrics import METRICS
from surefoot.predictions.labels import LabelKind
from tests.conftest import draw_many_labels, draw_one_label
from tests.experiments.test_methods import RECIPE
from tests.report.studies import HOSTILE, Row, by_hand

NLL = METRICS.named("nll")


def experiment(name):
    return Experiment(name=name, parts=(Part(task="letters", recipe=RECIPE),), methods=("single",))


def change():
    opened = [Opened(Path(name), experiment(name), (), None) for name in ("old", "new")]
    gaps = {"familiar": Difference(-0.1, -0.2, 0.0), "unfamiliar": Difference(-0.3, -0.4, -0.2)}
    changes = tuple(Change(side, NLL, 0.5, 0.5 + gap.value, gap, 2, True) for side, gap in gaps.items())
    task = TaskChange("letters", (MethodChange("single", f"Single{HOSTILE}", changes),), (), (), ())
    return ExperimentChange(*opened, (Setting("runs", "2", HOSTILE),), (task,), (), ())


@pytest.fixture(scope="module")
def results():
    names = [HOSTILE, "b", "c", "d"]
    val, familiar = (draw_one_label(400, sharpness=2, seed=s, class_names=names) for s in (0, 1))
    groups = [HOSTILE, "plain"] * 200
    unfamiliar = draw_one_label(400, sharpness=5, seed=2, class_names=names, groups=groups)
    calibration = fit_calibration("temperature", val)
    part = by_hand({"single": Row((0.9, 1.0), (0.3, 0.4)), "ensemble": Row((0.6,))})
    return {
        "evaluation": evaluate(familiar, unfamiliar, calibration=calibration, resamples=10),
        "calibration": calibration,
        "thresholds": choose_thresholds(val, target_error=0.3, unfamiliar=unfamiliar),
        "thresholds per class": choose_thresholds(val, target_error=0.6, per="class"),
        "sets": choose_sets(val, unfamiliar=unfamiliar),
        "vector": fit_calibration("vector", val),
        "unreachable": choose_thresholds(val, target_error=0.0001),
        "check": monitor(familiar, unfamiliar),
        "change": change(),
        "study": Study(experiment("tiny"), (part,)),
    }


KINDS = (
    "evaluation",
    "calibration",
    "vector",
    "thresholds",
    "thresholds per class",
    "sets",
    "unreachable",
    "check",
    "change",
    "study",
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_result_can_be_looked_at(results, kind, tmp_path):
    result = results[kind]
    text = repr(result)
    assert 2 <= len(text.splitlines()) < 41
    widest = max(
        len(line) - len(HOSTILE) * (HOSTILE in line or kind == "change") for line in text.splitlines()
    )
    assert widest <= 100
    assert "Result object" not in text
    fragment = result._repr_html_()
    assert fragment.startswith('<div class="surefoot">')
    assert "<script" not in fragment
    frame = result.to_frame()
    assert len(frame)
    json.dumps(result.to_dict(), allow_nan=False)
    axes = Figure().subplots()
    assert result.plot(axes) is axes
    assert axes.lines
    page = result.save_report(tmp_path / "new" / "folder").read_text()
    assert "<script" not in page
    assert "<svg" in page or kind == "study"  # a study without runs has nothing to draw
    json.loads((tmp_path / "new" / "folder" / "report.json").read_text())


def test_hostile_names_are_escaped_where_they_are_shown(results):
    assert "&lt;script&gt;" in results["evaluation"]._repr_html_()
    assert "&lt;script&gt;" in results["change"]._repr_html_()


def test_control_characters_are_shown_as_text(tmp_path):
    names = ["\x1b[31mred", "\u202eback", "c", "d"]
    val = draw_one_label(60, class_names=names, groups=names * 15)
    result = evaluate(val, resamples=5)
    page = result.save_report(tmp_path).read_text()
    for html in (result._repr_html_(), page):
        assert "\x1b" not in html
        assert "\u202e" not in html
        assert r"\x1b[31mred" in html


def test_frames_have_the_numbers(results):
    evaluation = results["evaluation"]
    frame = evaluation.to_frame().set_index(["metric", "part"])
    row = frame.loc[("e99", "unfamiliar")]
    score = evaluation.sides["unfamiliar"].metrics["e99"]
    assert (row.value, row.low, row.high, row.k, row.n) == (
        score.value,
        score.low,
        score.high,
        score.k,
        score.n,
    )
    assert len(frame) == len(METRICS) * 7  # two sides before, after and their change, and the gap
    fitted = results["calibration"]
    first = fitted.to_frame().iloc[0]
    assert (first["name"], first["value"], first["low"]) == ("T", fitted.temperature, fitted.low)
    zones = results["thresholds"].to_frame().set_index(["data", "decision"])
    assert zones.loc[("unfamiliar", "accept"), "share_value"] == pytest.approx(
        results["thresholds"].measured["unfamiliar"]["accept"].share.value
    )
    assert zones.groupby("data")["share_k"].sum().tolist() == [400, 400]
    study = results["study"].to_frame().set_index(["method", "side", "metric"])
    assert study.loc[("single", "unfamiliar", "nll"), "mean"] == pytest.approx(0.95)
    gaps = results["change"].to_frame()
    assert gaps["difference"].tolist() == [-0.1, -0.3]


def test_text_shows_whole_tables_and_says_what_is_left_out(results):
    text = repr(results["evaluation"])
    assert "Before and after calibration" in text
    assert "Coverage, 1% risk" in text
    assert "Worst group" in text
    study = results["study"]
    assert (
        repr(replace(study, parts=study.parts * 20)).splitlines()[-1].endswith("to_frame() has every number")
    )
    assert f"T = {results['calibration'].temperature:.5g} (95% interval" in repr(results["calibration"])


def test_without_pandas_one_sentence_says_so(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"^to_frame needs pandas; install it with: pip install pandas$"):
        results["check"].to_frame()


def test_a_streamed_evaluation_has_no_predictions_to_draw(results):
    streamed = replace(results["evaluation"], predictions={})
    assert isinstance(streamed, Evaluation)
    with pytest.raises(InputError, match="needs the predictions, and these were streamed"):
        streamed.plot()


@pytest.mark.parametrize("name", ["member-temperatures", "novelty", "temperature-before-averaging"])
def test_every_calibration_has_a_map_from_confidence_to_confidence(name, tmp_path):
    optional = {"novelty": [0.0, 0.5, 1.0, 0.7] * 50} if name == "novelty" else {}
    fitted = fit_calibration(name, draw_many_labels(200, members=2, sharpness=3, **optional))
    save_calibration(fitted, tmp_path / "c.json")
    axes = load_calibration(tmp_path / "c.json").plot(Figure().subplots())
    assert len(axes.lines) == (4 if name == "novelty" else 2)


def test_the_map_of_a_temperature_is_its_formula():
    fitted = fit_temperature(draw_one_label(sharpness=3))
    x, y = fitted.plot(Figure().subplots()).lines[1].get_data()
    odds = x / (1 - x) * 3  # against each of three equal others
    assert y == pytest.approx(odds ** (1 / fitted.temperature) / (odds ** (1 / fitted.temperature) + 3))


@dataclass(frozen=True, kw_only=True)
class Halved(Calibration):
    """A user's own calibration."""

    kind = "halved"
    n: int = 1
    label_kind: LabelKind = LabelKind.ONE_LABEL
    classes: int = 4

    def apply(self, predictions):
        return predictions.with_logits(predictions.logits / 2)

    def parameters(self):
        return {"half": [0.5]}

    @classmethod
    def from_dict(cls, _document):
        return cls()


def test_a_user_s_own_calibration_is_shown_too():
    assert repr(Halved()).splitlines()[1] == "half = 0.5, n = 1"
    assert Halved().to_frame()["value"].tolist() == [0.5]
    assert Halved().plot(Figure().subplots()).lines[1].get_ydata()[-1] < 1
