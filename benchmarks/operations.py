"""The library's main operations, each as a function of one size, timed by `benchmarks/growth.py`.

Data is drawn once and cut to size. `prepare(size)` does the untimed preparation and returns the timed
function, without cached results of earlier runs.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from surefoot import Predictions, evaluate, scan_predictions
from surefoot.calibrators import CALIBRATORS
from surefoot.deploy.history import AlphaBudget
from surefoot.deploy.monitor import check_shift
from surefoot.deploy.scores import scores_of
from surefoot.deploy.thresholds import choose_thresholds
from surefoot.evaluation.compare import compare_runs as compare
from surefoot.evaluation.comparison import Comparison, MethodRun, MethodRuns
from surefoot.metrics import METRICS, Metric
from surefoot.metrics.accumulate import Request, accumulate
from surefoot.predictions.files import read_predictions, write_predictions
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import DECIMALS, Outcomes
from surefoot.predictions.readers import Batch, Shape
from surefoot.report.study_tables import TableContext, comparison_tables

Array = np.ndarray
Work = Callable[[], object]

RIGHT = 2.5  # the logits are multiplied by this, so it is the true temperature
DRAWN_AT_ONCE = 5_000_000  # logits
CLASSES = 10  # unless the number of classes varies
BATCH_ROWS = 100_000  # rows of a batch, as in a row group of a file
RESAMPLES = 10  # of an evaluation; each costs the same
COMPARED_RESAMPLES = 200
SUMS = ("nll", "nll_unclipped", "brier", "brier_true_class", "e99", "entropy", "nll_minus_entropy")
FLOORS = ("ece_floor", "ece_floor_95")  # the first one computed draws for both

ARGSORT = "numpy's argsort"  # and reading in its order: the reference for operations that sort

ROWS = tuple(round(10 ** (3 + third / 3)) for third in range(13))  # 1,000 to 10 million
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
COLUMN_ROWS = 20
COLUMN_COUNTS = tuple(20_000 // 2**half for half in range(7, -1, -1))  # 156 to 20,000
CLASS_COUNTS = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
MATRICES = ("fit matrix", "fit dirichlet")  # with classes x classes parameters, all fitted to all logits
MOST_OF_MATRICES = 200  # classes; more take minutes
GROUPED_ROWS = 50_000
RESAMPLE_COUNTS = (25, 50, 100, 200, 400, 800, 1600, 3200)


@dataclass(frozen=True)
class Operation:
    """An operation of the library, as a function of one size."""

    name: str
    axis: str
    sizes: tuple[int, ...]
    prepare: Callable[[int], Work]

    @property
    def is_metric(self) -> bool:
        return any(self.name == metric.name for metric in METRICS)

    @property
    def sorts(self) -> bool:
        """Whether it sorts its decisions, directly or indirectly."""
        if self.is_metric:
            return self.name not in (*SUMS, "smooth_ece") and (self.name, self.axis) != (
                "label_error",
                "rows",
            )
        return self.name.startswith(("evaluate", "compare", "thresholds", "monitor: check", ARGSORT))


def up_to(most: int) -> tuple[int, ...]:
    return tuple(size for size in ROWS if size <= most)


@lru_cache(maxsize=1)
def pool(rows: int, classes: int, members: int) -> tuple[Array, Array, Array]:
    """Logits (members, rows, classes) in float32, labels drawn from the softmax, novelty from 0 to 1."""
    rng = np.random.default_rng(0)
    logits = np.empty((members, rows, classes), dtype=np.float32)
    labels = np.empty(rows, dtype=np.int64)
    step = max(1, DRAWN_AT_ONCE // classes)
    for start in range(0, rows, step):
        drawn = 2 * rng.standard_normal((min(step, rows - start), classes), dtype=np.float32)
        race = rng.standard_exponential(drawn.shape, dtype=np.float32) * np.exp(-drawn)
        labels[start : start + step] = race.argmin(axis=1)
        for member in logits:
            noise = 0.0 if members == 1 else rng.standard_normal(drawn.shape, dtype=np.float32)
            member[start : start + step] = RIGHT * (drawn + noise)
    return logits, labels, rng.random(rows)


def by_rows(most: int, n: int) -> Predictions:
    """The first n rows of the data."""
    logits, labels, novelty = pool(most, CLASSES, 1)
    return Predictions.from_logits(logits[:, :n], labels[:n], novelty=novelty[:n])


def by_classes(classes: int) -> Predictions:
    logits, labels, novelty = pool(5_000, classes, 1)
    return Predictions.from_logits(logits, labels, novelty=novelty)


def by_members(members: int) -> Predictions:
    logits, labels, novelty = pool(20_000, CLASSES, max(COUNTS))
    return Predictions.from_logits(logits[:members], labels, novelty=novelty)


def many_labels(predictions: Predictions) -> Predictions:
    """The same logits as multi-label data, with about half of the labels positive."""
    there = np.random.default_rng(1).random((predictions.n, predictions.classes)) < 0.5
    return Predictions.from_logits(predictions.logits, there.astype(np.int8))


@lru_cache(maxsize=1)
def outcomes(n: int) -> Outcomes:
    """Single-label outcomes, drawn without logits."""
    rng = np.random.default_rng(0)
    confidence = (1 - 0.9 * rng.random(n) ** 3).round(DECIMALS)
    return Outcomes(
        log_p_true=np.log(confidence),
        squared_error=(1 - confidence) ** 2,
        confidence=confidence,
        correct=rng.random(n) < confidence,
        entropy=1 - confidence,
        row=np.arange(n),
        blocks=(slice(0, n),),
    )


def some_outcomes(most: int, n: int) -> Outcomes:
    """The first n outcomes, without a cached order."""
    every = outcomes(most)
    facts = {name: getattr(every, name)[:n] for name in ("log_p_true", "squared_error", "confidence",
             "correct", "entropy", "row")}  # fmt: skip
    return Outcomes(**facts, blocks=(slice(0, n),))


@lru_cache(maxsize=1)
def block_outcomes(classes: int) -> Outcomes:
    logits, _, _ = pool(500, max(CLASS_COUNTS), 1)
    there = np.random.default_rng(1).random((500, classes)) < 0.5
    return Predictions.from_logits(logits[:, :, :classes], there.astype(np.int8)).outcomes


def compared(rows: int, runs: int, methods: int, rows_a_group: int | None) -> list[MethodRuns]:
    """Methods with different logits on the same rows."""
    rng = np.random.default_rng(2)
    base = 2 * rng.standard_normal((rows, 5), dtype=np.float32)
    labels = (base + rng.gumbel(size=base.shape)).argmax(axis=1)
    groups = None if rows_a_group is None else np.arange(rows) // rows_a_group

    def predicted(run: int) -> MethodRun:
        noise = rng.standard_normal(base.shape, dtype=np.float32)
        return MethodRun.of_sides(run, Predictions.from_logits(base + noise, labels, groups=groups))

    names = ["single", *(f"method {index}" for index in range(1, methods))]
    return [MethodRuns(name, name, tuple(predicted(run) for run in range(runs))) for name in names]


def _fit(name: str, data: Callable[[int], Predictions], size: int) -> Work:
    return partial(CALIBRATORS.named(name).fit, data(size))


def _apply(name: str, data: Callable[[int], Predictions], size: int) -> Work:
    return partial(_fitted(name, data, size), data(size))


@lru_cache(maxsize=1)
def _fitted(name: str, data: Callable[[int], Predictions], size: int) -> Callable[[Predictions], Predictions]:
    return CALIBRATORS.named(name).fit(data(size))


def _score(data: Callable[[int], Predictions], size: int) -> Work:
    predictions = data(size)
    return lambda: predictions.outcomes


def _score_many(data: Callable[[int], Predictions], size: int) -> Work:
    predictions = many_labels(data(size))
    return lambda: predictions.outcomes


def _metric(metric: Metric, made: Callable[[int], Outcomes], size: int) -> Work:
    return partial(metric.function, replace(made(size)))


def _evaluate(data: Callable[[int], Predictions], rows_a_group: int | None, size: int) -> Work:
    predictions = data(size)
    if rows_a_group is not None:
        predictions = replace(predictions, groups=np.arange(predictions.n) // rows_a_group)
    return partial(evaluate, predictions, resamples=RESAMPLES)


def _compare(shape: Callable[[int], list[MethodRuns]], size: int) -> Work:
    return partial(compare, shape(size), resamples=COMPARED_RESAMPLES)


def _tables(shape: Callable[[int], list[MethodRuns]], size: int) -> Work:
    return partial(comparison_tables, _comparison(shape, size), TableContext("drawn"))


@lru_cache(maxsize=1)
def _comparison(shape: Callable[[int], list[MethodRuns]], size: int) -> Comparison:
    return compare(shape(size), resamples=COMPARED_RESAMPLES)


def _accumulate(data: Callable[[int], Predictions], size: int) -> Work:
    predictions = data(size)
    logits, labels = predictions.logits, predictions.labels
    shape = Shape(LabelKind.ONE_LABEL, predictions.classes, predictions.members)
    request = Request.of(shape, METRICS)
    starts = range(0, predictions.n, BATCH_ROWS)
    batches = [Batch(logits[:, at : at + BATCH_ROWS], labels[at : at + BATCH_ROWS]) for at in starts]
    return partial(accumulate, batches, request)


def _thresholds(data: Callable[[int], Predictions], size: int) -> Work:
    return partial(choose_thresholds, data(size), target_error=0.3)


def _scores(data: Callable[[int], Predictions], size: int) -> Work:
    return partial(scores_of, data(size))


def _check(data: Callable[[int], Predictions], size: int) -> Work:
    """A window with half as many rows as the reference, and lower confidence; coverage is compared too."""
    predictions = data(size)
    window = predictions.take(slice(0, size // 2 - 1))
    found = [scores_of(predictions), scores_of(window.with_logits(0.8 * window.logits))]
    sides = [replace(side, accepted=(side.confidence > 0.8).astype(float)) for side in found]
    return partial(check_shift, *sides, budget=AlphaBudget.only(0.05))


def _sorting(most: int, size: int) -> Work:
    values = outcomes(most).confidence[:size]
    return lambda: values[np.argsort(-values)]


def operations(most: int) -> list[Operation]:
    """All timed operations, in an order that shares data; `most` limits the rows."""
    return [
        *_against_rows(most),
        *_against_classes(),
        *against_columns(),
        *_against_members(),
        *_against_runs(),
        *_against_groups_and_resamples(),
    ]


def _against_rows(most: int) -> list[Operation]:
    data = partial(by_rows, min(most, 1_000_000))
    limits: list[tuple[str, int, Callable[[int], Work]]] = [
        ("fit temperature", 1_000_000, partial(_fit, "temperature", data)),
        ("fit member-temperatures", 1_000_000, partial(_fit, "member-temperatures", data)),
        ("fit softening", 1_000_000, partial(_fit, "softening", data)),
        ("fit budget", 1_000_000, partial(_fit, "budget", data)),
        ("fit novelty", 1_000_000, partial(_fit, "novelty", data)),
        ("apply temperature", 1_000_000, partial(_apply, "temperature", data)),
        ("apply novelty", 1_000_000, partial(_apply, "novelty", data)),
        ("score rows, one label", 1_000_000, partial(_score, data)),
        ("score rows, many labels", 1_000_000, partial(_score_many, data)),
        ("accumulate a stream", 1_000_000, partial(_accumulate, data)),
        ("thresholds", 1_000_000, partial(_thresholds, data)),
        ("monitor: scores", 1_000_000, partial(_scores, data)),
        ("monitor: check", 1_000_000, partial(_check, data)),
        ("evaluate", 100_000, partial(_evaluate, data, None)),
        ("evaluate, groups", 100_000, partial(_evaluate, data, 100)),
        ("compare, rows", 47_000, partial(_compare, partial(_two_by_two, None))),
        ("compare, groups", 100_000, partial(_compare, partial(_two_by_two, 10))),
        (ARGSORT, 1_000_000, partial(_sorting, most)),
    ]
    found = [Operation(name, "rows", up_to(min(limit, most)), work) for name, limit, work in limits]
    for metric in METRICS:
        limit = 10_000_000 if metric.name in SUMS else 220_000 if metric.name in FLOORS else 1_000_000
        work = partial(_metric, metric, partial(some_outcomes, most))
        found.append(Operation(metric.name, "rows", up_to(min(limit, most)), work))
    return found


def _two_by_two(rows_a_group: int | None, rows: int) -> list[MethodRuns]:
    return compared(rows, 2, 2, rows_a_group)


def _against_classes() -> list[Operation]:
    work = {
        **{f"fit {each.name}": partial(_fit, each.name, by_classes) for each in CALIBRATORS},
        "apply temperature": partial(_apply, "temperature", by_classes),
        "score rows, one label": partial(_score, by_classes),
        "score rows, many labels": partial(_score_many, by_classes),
        "accumulate a stream": partial(_accumulate, by_classes),
        "thresholds": partial(_thresholds, by_classes),
        "monitor: scores": partial(_scores, by_classes),
        "evaluate": partial(_evaluate, by_classes, None),
    }
    found = [Operation(name, "classes", _class_counts(name), each) for name, each in work.items()]
    for metric in METRICS:
        sizes = tuple(size for size in CLASS_COUNTS if size <= 50 or metric.name not in FLOORS)
        found.append(Operation(metric.name, "classes", sizes, partial(_metric, metric, block_outcomes)))
    return found


def _class_counts(name: str) -> tuple[int, ...]:
    return tuple(size for size in CLASS_COUNTS if size <= MOST_OF_MATRICES or name not in MATRICES)


def _against_groups_and_resamples() -> list[Operation]:
    data = partial(by_rows, GROUPED_ROWS)

    def grouped(groups: int) -> Work:
        return _evaluate(data, GROUPED_ROWS // groups, GROUPED_ROWS)

    def resampled(resamples: int) -> Work:
        return partial(evaluate, data(GROUPED_ROWS), resamples=resamples)

    return [
        Operation("evaluate", "groups", tuple(size for size in ROWS if size < GROUPED_ROWS), grouped),
        Operation("evaluate", "resamples", RESAMPLE_COUNTS, resampled),
    ]


def against_columns() -> list[Operation]:
    """Files with a column per class, and with columns that are no scores."""
    found = []
    for suffix in (".csv", ".parquet"):
        for kind, table in (("classes", _class_columns), ("other columns", _other_columns)):
            work = partial(_read_table, suffix, table)
            found.append(Operation(f"read {suffix}, {kind}", "columns", COLUMN_COUNTS, work))
        work = partial(_command, suffix)
        found.append(Operation(f"evaluate {suffix}, classes", "columns", COLUMN_COUNTS, work))
        work = partial(_write_table, suffix)
        found.append(Operation(f"write {suffix}, other columns", "columns", COLUMN_COUNTS, work))
    stream = partial(_stream_table, ".csv")
    return [*found, Operation("stream .csv, classes", "columns", COLUMN_COUNTS, stream)]


def _class_columns(count: int) -> pa.Table:
    logits = np.random.default_rng(0).standard_normal((COLUMN_ROWS, count))
    columns = {f"logit_class {index}": logits[:, index] for index in range(count)}
    return pa.table(columns | {"label": [f"class {row % count}" for row in range(COLUMN_ROWS)]})


def _other_columns(count: int) -> pa.Table:
    columns = {f"column {index}": np.arange(COLUMN_ROWS) for index in range(count)}
    return pa.table({"logit": np.linspace(-1, 1, COLUMN_ROWS), "label": np.arange(COLUMN_ROWS) % 2} | columns)


def _written(table: pa.Table, suffix: str) -> Path:
    path = Path(tempfile.gettempdir(), f"growth-columns-{os.getpid()}{suffix}")
    (pyarrow.parquet.write_table if suffix == ".parquet" else pyarrow.csv.write_csv)(table, path)
    return path


def _read_table(suffix: str, table: Callable[[int], pa.Table], count: int) -> Work:
    return partial(read_predictions, _written(table(count), suffix))


def _write_table(suffix: str, count: int) -> Work:
    predictions = read_predictions(_written(_other_columns(count), ".parquet"))
    return partial(
        write_predictions, predictions, Path(tempfile.gettempdir(), f"growth-written-{os.getpid()}{suffix}")
    )


def _stream_table(suffix: str, count: int) -> Work:
    path = _written(_class_columns(count), suffix)
    return lambda: evaluate(scan_predictions(path), metrics=["nll"], resamples=0)


def _command(suffix: str, count: int) -> Work:
    """All metrics, as `surefoot evaluate --resamples 0` has them."""
    path = _written(_class_columns(count), suffix)
    return lambda: evaluate(read_predictions(path), resamples=0)


def _against_members() -> list[Operation]:
    work = {
        **{f"fit {each.name}": partial(_fit, each.name, by_members) for each in CALIBRATORS},
        "apply temperature": partial(_apply, "temperature", by_members),
        "apply member-temperatures": partial(_apply, "member-temperatures", by_members),
        "score rows, one label": partial(_score, by_members),
        "score rows, many labels": partial(_score_many, by_members),
        "accumulate a stream": partial(_accumulate, by_members),
        "monitor: scores": partial(_scores, by_members),
    }
    return [Operation(name, "members", COUNTS, each) for name, each in work.items()]


def _against_runs() -> list[Operation]:
    by_runs = partial(_shaped, methods=3)
    by_methods = partial(_shaped, runs=3)
    return [
        Operation("compare", "runs", COUNTS, partial(_compare, lambda size: by_runs(runs=size))),
        Operation("tables", "runs", COUNTS, partial(_tables, lambda size: by_runs(runs=size))),
        Operation("compare", "methods", COUNTS, partial(_compare, lambda size: by_methods(methods=size))),
        Operation("tables", "methods", COUNTS, partial(_tables, lambda size: by_methods(methods=size))),
    ]


def _shaped(*, runs: int, methods: int) -> list[MethodRuns]:
    return compared(1_000, runs, methods, 10)
