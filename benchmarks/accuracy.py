"""The error of accuracy estimated without labels: the last part of monitoring_protocol.md.

    python benchmarks/accuracy.py STORE

Each network of STORE with predictions on familiar and unfamiliar test rows: the estimators get half of the
familiar rows with labels as the reference and estimate the accuracy on unfamiliar rows of each half of the
groups, and on the other familiar rows. Results go to benchmarks/results/accuracy.md.
"""

import argparse
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np
import torch
from detectors import halves, table
from sklearn.isotonic import IsotonicRegression

from surefoot import Predictions, fit_calibration, fit_temperature, read_predictions
from surefoot.deploy.accuracy import ESTIMATORS, Reference, agreement
from surefoot.predictions.labels import LabelKind

RESULTS = Path(__file__).parent / "results" / "accuracy.md"
SPLITS = ("val", "test_familiar", "test_unfamiliar")
CBPE = "CBPE's formula (isotonic)"


def networks(store: Path) -> Iterator[tuple[str, str, list[Predictions]]]:
    """Task, kind, and the predictions on val and both test sets: every network, and their ensembles."""
    for recipe in sorted(store.glob("networks/*/*")):
        folders = sorted(f.parent for f in recipe.glob("seed*/test_unfamiliar.npz"))
        if not folders:
            continue
        found = [[read_predictions(folder / f"{split}.npz") for split in SPLITS] for folder in folders]
        if found[0][0].kind is LabelKind.MANY_LABELS:
            continue
        spec = json.loads((folders[0] / "spec.json").read_text())["recipe"]
        kind = "sharpness-aware" if spec.get("sharpness") else "standard"
        for each in found:
            yield recipe.parts[-2], kind, each
        if len(found) > 2:
            joined = [
                each[0].with_logits(torch.cat([part.logits for part in each]))
                for each in zip(*found, strict=True)
            ]
            yield recipe.parts[-2], f"ensemble of {kind}", joined


def reference_of(predictions: Predictions) -> Reference:
    outcomes = predictions.outcomes
    return Reference(outcomes.confidence, outcomes.correct.astype(float))


def cbpe(reference: Predictions, current: Predictions) -> float:
    """Isotonic calibration of each class on the reference, one against the rest, then the mean confidence."""
    fitted = np.empty((current.n, current.classes))
    before, now, labels = reference.probs().numpy(), current.probs().numpy(), reference.labels.numpy()
    for label in range(current.classes):
        model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
        fitted[:, label] = model.fit(before[:, label], labels == label).predict(now[:, label])
    total = fitted.sum(axis=1, keepdims=True)
    fitted = np.where(total > 0, fitted / np.where(total > 0, total, 1), 1 / current.classes)
    return float(fitted[np.arange(current.n), now.argmax(axis=1)].mean())


def estimates(
    val: Predictions, familiar: Predictions, unfamiliar: Predictions
) -> Iterator[tuple[str, str, str, float, float]]:
    """Calibration, estimator, rows, the estimate, and the true accuracy."""
    calibrations = {"no T": None, "T": fit_temperature(val), "budget T": fit_calibration("budget", val)}
    order = np.random.default_rng(0).permutation(familiar.n)
    first, rest = np.split(order, [familiar.n // 2])
    windows = {"familiar": familiar.take(rest)}
    windows |= {half: unfamiliar.take(rows) for half, rows in halves(unfamiliar.groups, unfamiliar.n).items()}
    for calibrated, calibration in calibrations.items():
        reference = familiar.take(first)
        reference = reference if calibration is None else calibration(reference)
        for where, rows in windows.items():
            window = rows if calibration is None else calibration(rows)
            true = float(window.outcomes.correct.mean())
            for name, estimate in ESTIMATORS.items():
                yield (
                    calibrated,
                    name,
                    where,
                    estimate(reference_of(reference), window.outcomes.confidence),
                    true,
                )
            if calibration is None:
                yield calibrated, CBPE, where, cbpe(reference, window), true
                if window.members > 2:
                    yield calibrated, "agreement", where, agreement(window), true


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    given = parser.parse_args()
    errors: dict[tuple[str, str, str], dict[str, list[tuple[float, float]]]] = {}
    for task, kind, sides in networks(given.store):
        single = "ensemble" if kind.startswith("ensemble") else "single"
        for calibrated, name, where, estimate, true in estimates(*sides):
            cell = errors.setdefault((single, calibrated, name), {})
            cell.setdefault(where, []).append((estimate, true))
            cell.setdefault(f"{where} {task}", []).append((estimate, true))
    tasks = sorted({where.split(" ", 1)[1] for cell in errors.values() for where in cell if " " in where})
    lines = []
    for (single, calibrated, name), cell in sorted(errors.items()):
        columns = [
            "choose",
            "confirm",
            "familiar",
            *(f"{half} {t}" for t in tasks for half in ("choose", "confirm")),
        ]
        values = {where: np.array(cell[where]) for where in columns if where in cell}
        lines.append([
            single, calibrated, name,
            *(f"{100 * np.abs(v[:, 0] - v[:, 1]).mean():.1f}" for v in values.values()),
            f"{100 * (values['confirm'][:, 0] - values['confirm'][:, 1]).mean():+.1f}",
        ])  # fmt: skip
    header = ["network", "calibration", "estimator", "choose", "confirm", "familiar"]
    header += [f"{task}, {half}" for task in tasks for half in ("choose", "confirm")] + ["bias, confirm"]
    RESULTS.write_text(
        f"""# The error of accuracy estimated without labels

{date.today()}, `benchmarks/accuracy.py`, protocol: [monitoring_protocol.md](../monitoring_protocol.md). Mean
absolute error in percentage points, over ten networks and two recipes for each of {len(tasks)} tasks, or
their two ensembles. The reference is half of the familiar test rows, with labels. Unfamiliar groups at even
places *choose* the default, those at odd places *confirm*. T and the budget's T are fitted on val. CBPE's
formula is NannyML's, computed with scikit-learn. *Bias*: the mean of the estimate less the truth.

{table(header, lines)}
"""
    )
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()
