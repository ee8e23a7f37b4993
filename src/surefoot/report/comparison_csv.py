"""A comparison's summary as CSV: a line per method, side and metric, in full precision."""

from surefoot.comparison import Comparison, Difference
from surefoot.comparison.scores import csv_text, number_text
from surefoot.report.comparison_tables import Setting

DIFFERENCES = ("baseline", "best")
HEADER = (
    *(
        "task",
        "backbone",
        "method",
        "title",
        "cheating",
        "beyond",
        "side",
        "metric",
        "runs",
        "defined",
        "missing",
    ),
    *("mean", "deviation", "k", "n", "mark", "p", "variance_of", "paper"),
    *(f"from_{other}{end}" for other in DIFFERENCES for end in ("", "_low", "_high", "_pairs", "_resampled")),
    *("seconds_training", "seconds_per_sample", "parameters"),
)


def summary_csv(comparison: Comparison, setting: Setting) -> str:
    """Means, tests, differences, the paper's numbers and the cost; empty where undefined or not known."""
    lines = []
    for method in comparison.methods:
        about = method.about
        flags = ("yes" if flag else "no" for flag in (about.cheating, about.beyond))
        what = (setting.task, setting.backbone, about.name, about.title, *flags)
        cost = [number_text(v) for v in (about.seconds_training, about.seconds_per_sample, about.parameters)]
        for metric in comparison.metrics:
            for side in comparison.sides:
                cell = method.cells[side, metric.name]
                k, n = cell.count or (None, None)
                numbers = (number_text(v) for v in (cell.mean, cell.deviation, k, n))
                paper = number_text(setting.paper(method, metric, side))
                runs = (len(cell.runs), cell.defined, "; ".join(about.missing))
                test = (cell.mark.value, number_text(cell.p), cell.borrowed or "", paper)
                gaps = (*_difference(cell.from_baseline), *_difference(cell.from_best))
                lines.append((*what, side, metric.name, *runs, *numbers, *test, *gaps, *cost))
    return csv_text(HEADER, lines)


def _difference(found: Difference | None) -> tuple[str, ...]:
    if found is None:
        return ("",) * 5
    numbers = (found.value, found.low, found.high, found.pairs, found.resampled)
    return tuple(number_text(number) for number in numbers)
