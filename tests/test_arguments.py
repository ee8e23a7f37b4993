"""Every public name, called with values of wrong types, shapes and ranges: one sentence, or it works."""

import inspect
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import pyplot

import surefoot
from surefoot import InputError, metrics, plots
from tests.conftest import draw_many_labels, draw_one_label

WRONG = {
    "None": None,
    "True": True,
    "zero": 0,
    "number": 3,
    "negative": -1,
    "fraction": 0.5,
    "nan": math.nan,
    "infinity": math.inf,
    "huge": 10**30,
    "text": "zebra",
    "empty text": "",
    "bytes": b"\x00",
    "object": object(),
    "function": len,
    "type": int,
    "empty list": [],
    "list of text": ["zebra"],
    "list of None": [None],
    "ragged list": [[1.0], [1.0, 2.0]],
    "empty dict": {},
    "dict": {"zebra": 3},
    "set": {1, 2},
    "generator": (each for each in ()),
    "empty array": np.zeros(0),
    "array": np.zeros((2, 3)),
    "4-d array": np.zeros((2, 2, 2, 2)),
    "text array": np.array(["a", "b"]),
    "object array": np.array([object()], dtype=object),
    "complex array": np.zeros((5, 3), dtype=complex),
    "tensor": torch.zeros(2, 3),
    "sparse tensor": torch.zeros(2, 3).to_sparse(),
    "no labels": surefoot.Predictions.from_logits(np.zeros((5, 3)), None, kind="one_label"),
    "other classes": draw_one_label(30, classes=7),
    "many labels": draw_many_labels(30),
    "path": Path("missing/zebra.npz"),
    "folder": Path(),
}


def fields_of(result):
    names = inspect.signature(type(result)).parameters
    return {name: getattr(result, name) for name in names}


def calls(folder):
    """Every public function and constructor with arguments that it takes, by name."""
    val, far = draw_one_label(60, classes=3), draw_one_label(60, classes=3, sharpness=4, seed=1)
    many = draw_many_labels(60, classes=3)
    calibration = surefoot.fit_calibration("temperature", val)
    chosen = surefoot.choose_thresholds(val, target_error=0.6)
    files = {name: folder / name for name in ("val.npz", "val.csv", "calibration.json", "thresholds.json")}
    for name in ("val.npz", "val.csv"):
        surefoot.write_predictions(val, files[name])
    surefoot.save_calibration(calibration, files["calibration.json"])
    surefoot.save_thresholds(chosen, files["thresholds.json"])
    model = torch.nn.Linear(4, 3)
    data = (torch.zeros(6, 4), torch.tensor([0, 1, 2] * 2))
    frame = {"a": [1.0, 2.0], "b": [2.0, 1.0], "truth": ["a", "b"], "site": ["x", "y"]}
    scores = np.array([[0.2, 0.8], [0.6, 0.4]])
    further = {
        "labels": [0, 1], "kind": "one_label", "class_names": ["a", "b"], "groups": ["x", "y"], "ids": [1, 2],
        "novelty": [0.1, 0.2], "attributes": {"site": [1, 2]}, "features": scores,
    }  # fmt: skip
    missing = str(folder / "missing.toml")
    entry = {"name": "mine", "title": "Mine", "formula": "x", "reference": "-"}
    few = {"resamples": 5, "seed": 0}
    columns = {"logits": ["a", "b"], "label": "truth", "class_names": ["a", "b"], "groups": "site"}
    results = {
        "Evaluation": surefoot.evaluate(val, far, resamples=5),
        "Check": surefoot.monitor(val, far),
        "Sets": surefoot.choose_sets(val),
        "Thresholds": chosen,
        "Unreachable": surefoot.choose_thresholds(val, target_error=0.0001),
        "Temperature": calibration,
        "Predictions": surefoot.Predictions.from_logits(scores, **further),
        "ScannedPredictions": surefoot.scan_predictions(files["val.csv"]),
    }
    constructors = {name: (type(result), fields_of(result)) for name, result in results.items()}
    methods = {
        f"{name}.{method}": (getattr(result, method), arguments)
        for name, result in results.items()
        for method, arguments in (("plot", {"ax": None}), ("save_report", {"folder": folder / "report"}))
        if hasattr(result, method) and (method == "plot" or name == "Sets")  # a report takes 0.1 s
    }
    table = results["Predictions"]
    return constructors | methods | {
        "Bundle": (surefoot.Bundle, dict.fromkeys(inspect.signature(surefoot.Bundle).parameters)),
        "Calibrated": (surefoot.Calibrated, {"model": model, "temperature": 2.0, "kind": "one_label", "report": None}),
        "Calibrator": (surefoot.Calibrator, entry | {"kind": "mine", "fit": len, "read": len, "options": ()}),
        "Calibration.__call__": (calibration, {"predictions": val}),
        "Ensemble": (surefoot.Ensemble, {"members": [model, model], "kind": "one_label"}),
        "ExperimentChange": (surefoot.ExperimentChange, dict.fromkeys(inspect.signature(surefoot.ExperimentChange).parameters)),
        "Method": (surefoot.Method, entry | {"page": "x", "training": "1", "inference": "1", "fit": None, "variant": None}),
        "Metric": (surefoot.Metric, entry | {"function": len, "better": "lower", "bounds": (0, 1), "pooled": False}),
        "Predictions.from_batches": (surefoot.Predictions.from_batches, {"batches": [(scores, [0, 1])]}),
        "Predictions.from_frame": (surefoot.Predictions.from_frame, {"frame": frame, "probs": None, "ids": None, "kind": None, **columns}),
        "Predictions.from_logits": (surefoot.Predictions.from_logits, {"logits": scores, **further}),
        "Predictions.from_prediction_output": (
            surefoot.Predictions.from_prediction_output,
            {"output": SimpleNamespace(predictions=scores, label_ids=[0, 1])},
        ),
        "Predictions.from_probs": (surefoot.Predictions.from_probs, {"probs": scores, **further}),
        "Predictions.grouped_by": (table.grouped_by, {"column": "site"}),
        "Predictions.member": (table.member, {"index": 0}),
        "Predictions.of_class": (many.of_class, {"name": "1"}),
        "Predictions.take": (table.take, {"rows": [0, 1]}),
        "Predictions.with_logits": (table.with_logits, {"logits": table.logits}),
        "Sets.of": (results["Sets"].of, {"predictions": val}),
        "Study": (surefoot.Study, {"experiment": None, "parts": (), "folder": None}),
        "TaskEntry": (surefoot.TaskEntry, {"name": "a", "title": "A", "description": "x", "load": len, "variants": ()}),
        "Thresholds.accepted": (chosen.accepted, {"predictions": val}),
        "Thresholds.prepare": (chosen.prepare, {"predictions": val}),
        "Thresholds.zones_of": (chosen.zones_of, {"predictions": val}),
        "calibrate": (surefoot.calibrate, {
            "model": model, "val": data, "method": "temperature", "budget": None, "reference": None, "regularisation": None,
            "bins": None, "force": False}),
        "choose_sets": (surefoot.choose_sets, {"val": val, "coverage": 0.9, "familiar_test": val, "unfamiliar": far, "calibration": None}),
        "choose_thresholds": (surefoot.choose_thresholds, {
            "val": val, "target_error": 0.4, "reject_error": 0.5, "level": 0.9, "familiar_test": val, "unfamiliar": far,
            "calibration": None, "split": None, "seed": 0, "for_class": None, "per": None}),
        "compare": (surefoot.compare, {"before": missing, "after": missing, "store": folder, "resamples": 5}),
        "evaluate": (surefoot.evaluate, {
            "familiar": val, "unfamiliar": far, "calibration": calibration, "metrics": ["nll"], "progress": False, **few}),
        "fit_calibration": (surefoot.fit_calibration, {
            "name": "histogram", "val": val, "weights": None, "force": False, "progress": False, "bins": 5}),
        "fit_member_temperatures": (surefoot.fit_member_temperatures, {"val": val}),
        "fit_temperature": (surefoot.fit_temperature, {"val": val, "weights": np.ones(60)}),
        "load_bundle": (surefoot.load_bundle, {"path": missing, "allow_code": False}),
        "load_calibration": (surefoot.load_calibration, {"path": files["calibration.json"]}),
        "load_study": (surefoot.load_study, {"experiment": missing, "store": folder, "values": None, "methods": None}),
        "load_thresholds": (surefoot.load_thresholds, {"path": files["thresholds.json"]}),
        "metrics.coverage_at_risk": (metrics.coverage_at_risk, {"predictions": val, "risk": 0.1}),
        "metrics.error_above": (metrics.error_above, {"predictions": val, "threshold": 0.5}),
        "metrics.error_above_count": (metrics.error_above_count, {"predictions": val, "threshold": 0.5}),
        "metrics.error_above_metric": (metrics.error_above_metric, {"threshold": 0.5}),
        "metrics.mean_average_precision": (metrics.mean_average_precision, {"predictions": many}),
        "metrics.risk_at_coverage": (metrics.risk_at_coverage, {"predictions": val, "coverage": 0.5}),
        "monitor": (surefoot.monitor, {
            "reference": val, "current": far, "calibration": None, "thresholds": None, "alpha": 0.05, "bound": None,
            "history": None, "source": "", "on_check": lambda _: None}),
        "paired_differences": (surefoot.paired_differences, {"first": val, "second": calibration(val), "metrics": [metrics.METRICS[0]], **few}),
        "plots.calibration_map": (plots.calibration_map, {"calibration": calibration, "ax": None}),
        "plots.compare_methods": (plots.compare_methods, {"familiar": val, "unfamiliar": far, "ax": None, "metric": "nll", **few}),
        "plots.nll_familiar_vs_unfamiliar": (
            plots.nll_familiar_vs_unfamiliar, {"familiar": val, "unfamiliar": far, "ax": None, "calibration": calibration}),
        "predictions_of": (surefoot.predictions_of, {"model": model, "val": data, "tick": lambda _: None}),
        "read_predictions": (surefoot.read_predictions, {"path": files["val.npz"], "unlabelled": None}),
        "register": (lambda entry: surefoot.register(entry), {"entry": metrics.METRICS[0]}),
        "run": (surefoot.run, {
            "experiment": missing, "values": None, "methods": None, "oracle": False, "calibrators": (), "root": None,
            "weights": None, "store": folder, "cache": None, "device": "auto", "workers": None, "engine": "local",
            "address": None, "cpus_per_network": None, "gpus_per_network": None, "progress": False}),
        "save_calibration": (surefoot.save_calibration, {"calibration": calibration, "path": folder / "out.json"}),
        "save_thresholds": (surefoot.save_thresholds, {
            "thresholds": chosen, "path": folder / "out.json", "sources": None, "elsewhere": None}),
        "scan_predictions": (surefoot.scan_predictions, {
            "path": files["val.csv"], "workers": None, "engine": "local", "address": None}),
        "write_predictions": (surefoot.write_predictions, {"predictions": val, "path": folder / "out.npz"}),
    } | {
        f"plots.{name}": (getattr(plots, name), {"predictions": val, "ax": None})
        for name in ("confidence_histogram", "reliability", "risk_coverage", "temperature_curve")
    } | {
        f"metrics.{name}": (function, {"predictions": val})
        for name, function in inspect.getmembers(metrics, callable)
        if name in metrics.__all__ and list(inspect.signature(function).parameters) == ["predictions"]
    }  # fmt: skip


# What cannot be called, or is Python's own
NOT_CALLED = {
    "CALIBRATORS",
    "IGNORE",
    "METHODS",
    "METRICS",
    "TASKS",
    "VARIANTS",
    "__version__",
    "metrics",
    "plots",
}
NOT_CALLED |= {"InputError", "LabelKind", "Variant", "Better", "IDENTITY", "ROOT", "Transform"}
NAMES = [name for name in surefoot.__all__ if name not in NOT_CALLED]
NAMES += [f"plots.{name}" for name in plots.__all__]
NAMES += [f"metrics.{name}" for name in metrics.__all__ if name not in {*NOT_CALLED, *NAMES}]


@pytest.fixture(scope="module")
def every_call(tmp_path_factory):
    return calls(tmp_path_factory.mktemp("arguments"))


def refusal(function, arguments):
    """What the error says; None if there is none. Any other error is a failure."""
    try:
        function(**arguments)
    except InputError as error:
        return str(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_argument_is_refused_in_one_sentence(every_call, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = {key: each for key, each in every_call.items() if key == name or key.startswith(f"{name}.")}
    assert own, "a public name without a call above"
    for function, valid in own.values():
        with pytest.raises((InputError, TypeError), match="zebra"):
            function(**valid, zebra=1)
        for argument, value in valid.items():
            for wrong in WRONG.values():
                if callable(value) and callable(wrong):
                    continue  # what a user's function raises is the user's
                sentence = refusal(function, {**valid, argument: wrong})
                assert sentence is None or (10 < len(sentence) < 500 and "\n" not in sentence)
    pyplot.close("all")


def test_the_sentence_says_what_was_given_and_what_is_allowed():
    val = draw_one_label(30)
    for call, says in (
        (lambda: surefoot.save_calibration(3, "c.json"), "calibration has type int; allowed: Calibration (fit_calibration, load_calibration)"),
        (lambda: surefoot.read_predictions(3), "path is 3; allowed: a path or a list of paths"),
        (lambda: plots.reliability(val, ax=3), "ax has type int; allowed: Axes of matplotlib or None"),
        (lambda: plots.reliability({"a": val, "b": 3}), "predictions['b'] has type int; allowed: Predictions (read_predictions, Predictions.from_logits)"),
        (lambda: surefoot.evaluate(val, metrics="nll"), "metrics has type str; allowed: a list of Metric or text"),
        (lambda: surefoot.evaluate(val, metrics=["nll", 3]), "metrics[1] is 3; allowed: Metric or text"),
        (lambda: surefoot.evaluate(val, resamples=10**9), "resamples is 1000000000; allowed: a whole number of at least 0 and at most 1,000,000"),
        (lambda: surefoot.choose_sets(val, coverage="0.9"), "coverage is '0.9'; allowed: a number"),
        (lambda: metrics.nll(np.zeros((2, 2))), "predictions has type ndarray; allowed: Predictions (read_predictions, Predictions.from_logits)"),
    ):  # fmt: skip
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value) == says


def test_numbers_and_lists_of_numpy_and_pandas_are_taken():
    val = draw_one_label(30, class_names=np.array([3, 5, 7, 11]))
    assert val.class_names == ("3", "5", "7", "11")
    assert draw_one_label(30, class_names=pd.Index(list("abcd"))).class_names == ("a", "b", "c", "d")
    result = surefoot.evaluate(val, metrics=np.array(["nll"]), resamples=np.int64(5), seed=np.array(1))
    assert result.to_dict()["resamples"] == 5
    assert json.dumps(result.to_dict())
