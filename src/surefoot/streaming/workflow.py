"""`evaluate` and `fit_calibration` of predictions in memory, or of files larger than memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from surefoot.arguments import checked
from surefoot.errors import InputError, one_of, refuse_unknown, require_whole
from surefoot.evaluation import RESAMPLES
from surefoot.evaluation.scores import require_resampling
from surefoot.metrics import METRICS, Metric
from surefoot.predictions.labels import ONE_HOT, LabelKind
from surefoot.predictions.paths import files_named
from surefoot.progress import Progress, progress_of
from surefoot.runtime import usable_cores
from surefoot.streaming.engines import Engine, RayTasks, Threads
from surefoot.streaming.evaluate import IN_MEMORY, Source, evaluate_files
from surefoot.text import count_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from surefoot.calibrators import Calibration
    from surefoot.evaluation.scores import Evaluation
    from surefoot.predictions.predictions import Predictions

ENGINES = ("local", "ray")


@checked
@dataclass(frozen=True, eq=False)
class ScannedPredictions:
    """Prediction files that are read in batches whenever something is computed from them."""

    files: tuple[Path, ...]
    workers: int | None = None
    engine: str = "local"
    address: str | None = None

    @cached_property
    def source(self) -> Source:
        """The files' parts and shape, from their first rows."""
        return Source.of(self.files)

    @property
    def kind(self) -> LabelKind:
        """Of the labels."""
        return self.source.shape.kind

    @property
    def classes(self) -> int:
        """How many."""
        return self.source.shape.classes

    @property
    def members(self) -> int:
        """How many."""
        return self.source.shape.members

    def __repr__(self) -> str:
        rows = "unknown" if self.source.rows is None else self.source.rows
        files = count_of(len(self.files), "file")
        return (
            f"ScannedPredictions({self.kind}, members={self.members}, n={rows}, classes={self.classes}, "
            f"{files})"
        )

    @contextmanager
    def reader(self, progress: Progress) -> Iterator[Engine]:
        """What reads the files; a Ray cluster is connected for as long as it is used."""
        if self.engine == "local":
            yield Threads(self.workers or usable_cores())
            return
        from surefoot.ray_cluster import connected

        with ExitStack() as stack:
            with progress.busy("starting Ray"):
                ray = stack.enter_context(connected(self.address))
            yield RayTasks(ray)


@checked
def scan_predictions(
    path: str | Path | Sequence[str | Path],
    *,
    workers: int | None = None,
    engine: str = "local",
    address: str | None = None,
) -> ScannedPredictions:
    """Predictions in files larger than memory, for `evaluate` and `fit_calibration`.

    `path` is a .parquet or .csv file, a folder of them, a pattern such as 'val/*.parquet', or several.
    They are read in batches by so many `workers` (threads; one per core by default), or by the tasks of a
    Ray cluster if `engine` is 'ray': that at `address`, else one that is started here.

    >>> evaluate(scan_predictions("familiar/*.parquet"), progress=True)  # doctest: +SKIP
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    files = tuple(file for each in paths for file in files_named(each))
    if not files:
        raise InputError("the list of prediction files is empty; needed: at least one")
    one_of("engine", engine, ENGINES)
    if address is not None and engine == "local":
        raise InputError("the address is that of a Ray cluster; allowed: with the engine 'ray'")
    if workers is not None:
        require_whole("workers", workers, 1)
    return ScannedPredictions(files, workers, engine, address)


@checked
def evaluate(
    familiar: "Predictions | ScannedPredictions",
    unfamiliar: "Predictions | ScannedPredictions | None" = None,
    *,
    calibration: "Calibration | None" = None,
    metrics: Sequence[Metric | str] = METRICS,
    resamples: int = RESAMPLES,
    seed: int = 0,
    progress: bool | Progress = False,
) -> "Evaluation":
    """Score one or two sets of predictions, in memory or scanned; `progress` shows a bar.

    `metrics` are entries of `METRICS`, or their names; by default all, for scanned predictions all that can
    be streamed.

    Intervals are from the bootstrap over samples, over whole groups where there are groups, and exact
    (Clopper-Pearson) for proportions. What the calibration changed is paired: the same resamples before
    and after. Those of scanned predictions are explained in docs/streaming.md.

    >>> from surefoot import Predictions
    >>> val = Predictions.from_logits([[2.0, 0.0], [0.0, 2.0]] * 100, labels=[0, 1, 0, 0] * 50)
    >>> result = evaluate(val, metrics=["label_error", "nll"])
    >>> result.sides["familiar"].metrics["label_error"].value
    0.25
    """
    given = {"familiar": familiar} | ({} if unfamiliar is None else {"unfamiliar": unfamiliar})
    require_resampling(resamples, seed)
    if not metrics:
        raise InputError("metrics are empty; allowed: names of METRICS, by default all")
    shown = progress_of(progress)
    if _are_scanned(given):
        return _evaluate_scanned(given, calibration, metrics, resamples, seed, shown)
    from surefoot.evaluation.evaluate import evaluate as evaluate_in_memory

    with shown.bar("resampling", resamples * len(given)) as tick:
        return evaluate_in_memory(
            *cast("dict[str, Predictions]", given).values(),
            calibration=calibration,
            metrics=metrics,
            resamples=resamples,
            seed=seed,
            tick=tick,
        )


@checked
def fit_calibration(
    name: str,
    val: "Predictions | ScannedPredictions",
    *,
    weights: "ArrayLike | str | None" = None,
    force: bool = False,
    progress: bool | Progress = False,
    **options: Any,
) -> "Calibration":
    """Fit the named calibrator on `val`, in memory or scanned, with its effect on `val` as evidence.

    `weights` are those of the rows, or the name of the column that has them. Options are those of the
    calibrator: for "budget" the `budget`, a number or "surplus", and for "surplus" the `reference`, the plain
    model's predictions of the same rows; for "vector", "matrix" and "dirichlet" the `regularisation`, chosen
    by cross-validation by default; for "histogram" the number of `bins`.

    A T whose interval spans orders of magnitude is declined, and T = 1 used instead, unless `force`.
    `progress` shows a bar.

    >>> from surefoot import Predictions
    >>> val = Predictions.from_logits([[2.0, 0.0], [0.0, 2.0]] * 100, labels=[0, 1, 0, 0] * 50)
    >>> calibration = fit_calibration("temperature", val)
    >>> calibration.lines()
    ['T = 1.8205 (95% interval 1.357 to 2.4423), n = 200']
    >>> calibration(val).probs()[0].round(4)
    array([0.75, 0.25])
    """
    from surefoot.calibrators import CALIBRATORS
    from surefoot.calibrators import fit_calibration as fit_in_memory

    shown = progress_of(progress)
    scanned = {"val": val}
    if not _are_scanned(scanned):
        with shown.busy("fitting"):
            return fit_in_memory(name, cast("Predictions", val), weights=weights, force=force, **options)
    from surefoot.streaming.temperature import fit_files, require_streamable

    require_streamable(name)
    refuse_unknown(f"option of method {name}:", options, CALIBRATORS.named(name).option_names)
    for option in ["weights"] * (weights is not None) + list(options):
        raise InputError(f"{option} cannot be streamed; allowed: {IN_MEMORY}")
    files = scanned["val"]
    with files.reader(shown) as engine:
        fitted = fit_files(name, files.source, engine=engine, watch=shown.bar)
    return fitted if force else fitted.cautious()


def _are_scanned(given: Mapping[str, object]) -> TypeGuard[Mapping[str, ScannedPredictions]]:
    """Whether all are scanned; some only are refused."""
    scanned = {name for name, each in given.items() if isinstance(each, ScannedPredictions)}
    for name in given.keys() - scanned if scanned else ():
        raise InputError(f"{name} is in memory and {', '.join(scanned)} scanned; allowed: both the same")
    return bool(scanned)


def _evaluate_scanned(
    given: Mapping[str, ScannedPredictions],
    calibration: "Calibration | None",
    metrics: Sequence[Metric | str],
    resamples: int,
    seed: int,
    shown: Progress,
) -> "Evaluation":
    chosen = [METRICS.named(metric) if isinstance(metric, str) else metric for metric in metrics]
    if metrics is METRICS:
        for name in [metric.name for metric in chosen if not metric.can_be_streamed]:
            shown.note(f"note: metric {name!r} cannot be streamed and is left out; needed: {IN_MEMORY}")
        chosen = [metric for metric in chosen if metric.can_be_streamed]
    with given["familiar"].reader(shown) as engine:
        streamed = evaluate_files(
            {side: each.source for side, each in given.items()},
            calibration=calibration,
            metrics=chosen,
            resamples=resamples,
            seed=seed,
            engine=engine,
            watch=shown.bar,
        )
    for side in streamed.one_hot:
        shown.note(ONE_HOT.format(given[side].files[0]))
    rows = sum(scores.n for scores in streamed.evaluation.sides.values())
    passes = "" if streamed.readings == 1 else f", in {streamed.readings} passes"
    rate = f"{rows / streamed.seconds / 1e6:.2f} million rows/s{passes}"
    shown.note(f"streamed {count_of(rows, 'row')} in {streamed.seconds:.1f} s: {rate}")
    return streamed.evaluation
