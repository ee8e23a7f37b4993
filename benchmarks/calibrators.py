"""Every calibrator on 20,000 rows, and the scikit-learn estimator, compared with other libraries, in one run.

python benchmarks/calibrators.py        (or with --rows 2000)
"""

import argparse
import math
import tempfile
from pathlib import Path

from turns import HERE, Contestant, Turn, against, draw, machine, table, versions

RIGHT = 2.5  # the true temperature
CLASSES = (2, 10)

LOGISTIC = "scikit-learn LogisticRegressionCV"
ROWS = (
    # name, ours, the peer's name, the peer, and what every way to do it needs, where that is measured
    ("vector", "surefoot_vector", "probmetrics vector scaling", "probmetrics_vector", ""),
    (
        "vector, cross-validated",
        "surefoot_vector_cv",
        "probmetrics SVS",
        "probmetrics_svs",
        "numpy_vector_cv_least",
    ),
    ("vector, cross-validated", "surefoot_vector_cv", LOGISTIC, "sklearn_matrix_cv", ""),
    ("matrix", "surefoot_matrix", "probmetrics matrix scaling", "probmetrics_matrix", ""),
    (
        "matrix, cross-validated",
        "surefoot_matrix_cv",
        "probmetrics SMS",
        "probmetrics_sms",
        "numpy_matrix_cv_least",
    ),
    ("matrix, cross-validated", "surefoot_matrix_cv", LOGISTIC, "sklearn_matrix_cv", ""),
    ("dirichlet", "surefoot_dirichlet", "probmetrics matrix scaling", "probmetrics_matrix", ""),
    ("platt", "surefoot_platt", "scikit-learn sigmoid", "sklearn_platt", ""),
    ("platt", "surefoot_platt", "netcal LogisticCalibration", "netcal_platt", ""),
    ("beta", "surefoot_beta", "netcal BetaCalibration", "netcal_beta", ""),
    ("isotonic", "surefoot_isotonic", "scikit-learn IsotonicRegression", "sklearn_isotonic", ""),
    ("isotonic", "surefoot_isotonic", "netcal IsotonicRegression", "netcal_isotonic", ""),
    (
        "histogram",
        "surefoot_histogram",
        "netcal HistogramBinning, equal widths",
        "netcal_histogram",
        "numpy_histogram_least",
    ),
)
ALONE = "numpy_estimator_alone"
ESTIMATORS = (
    ("temperature", "surefoot_estimator_temperature", "temperature", "sklearn_estimator_temperature", ALONE),
    ("platt", "surefoot_estimator_platt", "sigmoid", "sklearn_estimator_sigmoid", ALONE),
    ("isotonic", "surefoot_estimator_isotonic", "isotonic", "sklearn_estimator_isotonic", ALONE),
)

ABOUT = """# Calibrators compared with other libraries

{rows:,} rows of logits with T = {right}: the first half is fitted, and the NLL is that of the second.
Times are CPU seconds (user and system, one thread) of fit and application, from logits to
probabilities. Our runs and the peer's alternate, and the best counts. A peer for two classes is used on
each class against the others. Fits are not regularised unless it says cross-validated: then ours chooses
the regularisation among 11 strengths by five folds, 56 fits in all.

What the comparisons are:

- SVS and SMS of probmetrics fit once, with a fixed regularisation: a smaller job than ours.
- `LogisticRegressionCV` of scikit-learn does the same job: 11 strengths and five folds, chosen by the NLL of
  the rows left out, then a fit of all rows. It has a weight for each pair of classes, as matrix scaling, and
  its penalty is the sum of the squares of all weights. With two classes, vector scaling is the same family of
  functions; with more it has fewer parameters, and is not compared with it.
- probmetrics' Dirichlet calibration needs a package that is not installed: ours is compared with its matrix
  scaling, which has as many parameters.
- Our histogram has bins of equal numbers of rows, for which the rows near their edges are sorted; netcal's
  have equal widths, for which nothing is sorted; it does not implement equal numbers
  (`equal_intervals=False`).

The limit is the peer's time over that of a part of the work, in plain numpy: who needs that part cannot be
more times as fast.

- Cross-validation: for each of the 55 fits of the folds, one gradient of the rows to fit and one NLL of the
  rows left out. A fit that starts elsewhere than at its end needs more.
- Histogram: the scores of both halves, and the places of the second in bins that are known; no fit.
- Estimator: naive Bayes alone, its six fits and their predictions, without any calibration."""


def compared(folder: Path, rows: tuple[tuple[str, str, str, str, str], ...]) -> list[str]:
    """A line per pair: seconds, and NLL of the rows that were not fitted.

    Where it is known what both must do, also how many times as fast one could be that does nothing else.
    """
    lines = []
    for name, ours, peer_name, peer, least in rows:
        with Contestant(ours) as us, Contestant(peer) as them:
            mine, its = against(us, them, folder)
        ratio = its.seconds / mine.seconds
        seconds = ["failed", ""] if its.error else [f"{its.seconds:.4f}", f"{ratio:.1f}"]
        seconds.append(_limit(least, peer, folder) if least else "")
        values = [f"{mine.value:.5f}", "" if math.isnan(its.value) else f"{its.value:.5f}"]
        lines.append([name, peer_name, _seconds(mine), *seconds, *values])
        print(*lines[-1], its.error[:200], mine.error[:200], sep=" | ", flush=True)
    header = ["ours", "peer", "our CPU s", "its CPU s", "times ours", "limit", "our NLL", "its NLL"]
    return table(header, lines, left=2)


def _limit(least: str, peer: str, folder: Path) -> str:
    with Contestant(least) as floor, Contestant(peer) as them:
        lowest, again = against(floor, them, folder)
    if lowest.error:
        raise SystemExit(f"{least} failed: {lowest.error}")
    return "" if again.error else f"{again.seconds / lowest.seconds:.1f}"


def _seconds(turn: Turn) -> str:
    return "failed" if turn.error else f"{turn.seconds:.4f}"


def main() -> None:
    """Make the data, run all pairs, print and save the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    chosen = parser.parse_args()
    parts = []
    for classes in CLASSES:
        with tempfile.TemporaryDirectory() as folder:
            draw(Path(folder), chosen.rows, classes, RIGHT)
            rows = tuple(row for row in ROWS if classes == 2 or row[0][:6] != "vector" or row[2] != LOGISTIC)
            parts += [f"## {classes} classes", "", *compared(Path(folder), rows), ""]
            parts += [
                "`TemperatureScaledClassifier` and `CalibratedClassifierCV(ensemble=False)`, "
                f"{classes} classes, of naive Bayes with five folds; times of `fit` and `predict_proba`.",
                "",
                *compared(Path(folder), ESTIMATORS),
                "",
            ]
    text = "\n".join([ABOUT.format(rows=chosen.rows, right=RIGHT), "", *machine(), *versions(), "", *parts])
    print(text)
    if chosen.rows == 20_000:
        (HERE / "results" / "calibrators.md").write_text(text)


if __name__ == "__main__":
    main()
