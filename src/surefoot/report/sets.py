"""The result of `surefoot sets` as a table, a verdict and a plot."""

from collections.abc import Iterator
from typing import Any

from matplotlib.axes import Axes

import surefoot.plots as plots
from surefoot.deploy.groups import of_groups, repeated_sentences
from surefoot.deploy.sets import Sets, sets_document
from surefoot.report.tables import Table
from surefoot.report.thresholds import proportion_text
from surefoot.report.views import View, flat
from surefoot.text import percent_range


def sets_table(sets: Sets) -> Table:
    """For each set of data: how often the true class is in the set, and how large the sets are."""
    rows = [
        (name, proportion_text(each.coverage), f"{each.mean_size:.2f}", proportion_text(each.single))
        for name, each in sets.measured.items()
        if each.coverage.n
    ]
    return Table.of_text(
        f"All classes with a probability of {sets.least_probability:.4g} or more; "
        f"{'exact ' if sets.groups is None else ''}95% intervals",
        ("data", "contain the true class", "mean size", "one class only"),
        rows,
    )


def _new_row(sets: Sets) -> str:
    if sets.groups is None:
        return "a new one"
    return "a new one of this group" if sets.groups == 1 else "one of a new group"


def sets_verdict(sets: Sets) -> list[str]:
    """What is guaranteed, for which data, and what is not."""
    sentences = [
        f"Guaranteed over the draw of these {sets.n:,} rows{of_groups(sets.groups)} and of {_new_row(sets)}: "
        f"on familiar data the set contains the true class with probability {sets.coverage:.3g} or more."
    ]
    rows = "rows" if sets.groups is None else "groups"
    if sets.least_probability == 0:
        sentences.append(f"That takes every class in every set: too few {rows} for this coverage.")
    sentences += repeated_sentences(sets.repeated)
    scope = "The guarantee does not cover unfamiliar data"
    strange = sets.measured.get("unfamiliar")
    if strange is None:
        return [*sentences, f"{scope}; give unfamiliar predictions to measure the coverage there."]
    share = strange.coverage
    found = f"there {share.value:.1%} of the sets contain it ({percent_range(share.low, share.high)})"
    if share.high < sets.coverage:
        return [*sentences, f"{scope}: {found}, less than on familiar data."]
    return [*sentences, f"{scope}, but these rows are within it: {found}."]


def sets_view(sets: Sets) -> View:
    """How prediction sets look."""

    def rows() -> Iterator[dict[str, Any]]:
        for data, each in sets.measured.items():
            size = {"mean_size": each.mean_size}
            yield {"data": data, **flat(coverage=each.coverage), **size, **flat(single=each.single)}

    def draw(ax: Axes | None) -> Axes:
        """How many sets contain the true class, with 95% intervals, and what is guaranteed."""
        axes = plots.given_or_new(ax)
        shares = {name: each.coverage for name, each in sets.measured.items() if each.coverage.n}
        for place, share in enumerate(shares.values()):
            axes.plot([share.low, share.high], [place, place], color="C0", linewidth=1.4)
            axes.plot(share.value, place, "o", color="C0")
        axes.axvline(sets.coverage, color="C3", linewidth=1, label="guaranteed on familiar data")
        axes.set_yticks(range(len(shares)), list(shares))
        axes.set_ylim(len(shares) - 0.5, -0.5)
        axes.set_xlabel("sets that contain the true class")
        axes.legend()
        return axes

    return View(
        "Prediction sets",
        tuple(sets_verdict(sets)),
        (sets_table(sets),),
        rows,
        lambda: sets_document(sets),
        draw,
    )
