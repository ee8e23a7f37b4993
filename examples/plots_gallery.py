"""Draw every function of `surefoot.plots`, as in docs/plots.md.

python examples/plots_gallery.py docs/images        (without a folder: here)
"""

import sys
from pathlib import Path

import matplotlib
from clusters import CLASSES
from matplotlib.axes import Axes
from pytorch_loop import outputs, train

import surefoot
from surefoot import Predictions, plots

NAMES = (
    "reliability",
    "confidence_histogram",
    "risk_coverage",
    "temperature_curve",
    "nll_familiar_vs_unfamiliar",
    "compare_methods",
    "calibration_map",
)


def figures() -> dict[str, Axes]:
    """The axes of each figure, by the name of its function."""
    from matplotlib import pyplot

    model = train()
    val, familiar, unfamiliar = (
        Predictions.from_batches(outputs(model, part), class_names=CLASSES)
        for part in ("val", "familiar", "unfamiliar")
    )
    calibration = surefoot.fit_temperature(val)
    sides = {"familiar": familiar, "unfamiliar": unfamiliar}
    before_and_after = {"network": familiar, "calibrated": calibration(familiar)}
    on_unfamiliar = {"network": unfamiliar, "calibrated": calibration(unfamiliar)}
    axes = {name: pyplot.subplots(figsize=(4.8, 3.6), layout="constrained")[1] for name in NAMES}
    plots.reliability(on_unfamiliar, axes["reliability"])
    plots.confidence_histogram(sides, axes["confidence_histogram"])
    plots.risk_coverage(sides, axes["risk_coverage"])
    plots.temperature_curve(sides, axes["temperature_curve"])
    plots.nll_familiar_vs_unfamiliar(
        familiar, unfamiliar, axes["nll_familiar_vs_unfamiliar"], calibration=calibration
    )
    plots.compare_methods(before_and_after, on_unfamiliar, axes["compare_methods"])
    plots.calibration_map(calibration, axes["calibration_map"])
    return axes


def main() -> None:
    """Write a file for each figure."""
    matplotlib.use("agg")
    folder = Path(sys.argv[1] if sys.argv[1:] else ".")
    folder.mkdir(parents=True, exist_ok=True)
    for name, axes in figures().items():
        axes.figure.savefig(folder / f"plot-{name.replace('_', '-')}.png", dpi=150)


if __name__ == "__main__":
    main()
