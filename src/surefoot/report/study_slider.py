"""What the slider for T moves: the single network's and the ensemble's NLL on both sides, by T."""

from typing import Any

import numpy as np

from surefoot.calibrators import BudgetTemperature, Temperature
from surefoot.report.comparison_data import temperature_curve_data
from surefoot.report.study_drawn import BOTH, drawable
from surefoot.runner import PartStudy

STEPS = 48
TEMPERATURES = tuple(sorted({1.0, *np.geomspace(0.5, 5.0, STEPS + 1).round(4).tolist()}))
CURVES = (("single", "single-t"), ("ensemble", "t-of-ensemble"))  # a method, and who fits a T to it


def slider_data(part: PartStudy) -> dict[str, Any] | None:
    """Curves of the first run by T, and the T that validation chose; None without both sides."""
    results = {result.method.name: result for result in drawable(part)}
    curves = []
    for name, scaled in CURVES:
        if name not in results:
            continue
        before = results[name].runs[0].before
        curve: dict[str, Any] = temperature_curve_data(before[BOTH[0]], before[BOTH[1]], TEMPERATURES)
        used = results[scaled].runs[0].calibration if scaled in results else None
        fitted = used.temperature if isinstance(used, Temperature | BudgetTemperature) else None
        curves.append({**curve, "title": results[name].method.title, "fitted": fitted})
    return {"curves": curves, "start": TEMPERATURES.index(1.0)} if curves else None
