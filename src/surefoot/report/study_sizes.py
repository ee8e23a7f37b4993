"""What each further member of an ensemble is worth."""

from surefoot.metrics import METRICS
from surefoot.report.table import Table
from surefoot.runner import PartStudy
from surefoot.sizes import by_size

SHOWN = ("nll", "label_error", "ece", "e99")
METHODS = ("ensemble", "ensemble-of-t")


def size_tables(part: PartStudy) -> list[Table]:
    """For ensembles as they are and of T-scaled members: each metric by the number of members, first run."""
    metrics = [metric for metric in METRICS if metric.name in SHOWN]
    found = []
    for result in part.results:
        if result.method.name in METHODS and result.runs:
            sizes = by_size(result.runs[0], metrics)
            sides = [side for side in ("familiar", "unfamiliar") if (side, "nll") in sizes[0].values]
            header = ("members", *(f"{m.title} {side[0].upper()}" for m in metrics for side in sides))
            rows = tuple(
                (
                    str(each.members),
                    *(_text(each.values[side, metric.name]) for metric in metrics for side in sides),
                )
                for each in sizes
            )
            found.append(Table(result.method.title, header, rows))
    return found


def _text(value: float) -> str:
    return f"{value:.4f}" if value == value else "\N{EN DASH}"
