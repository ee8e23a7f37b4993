"""What each method fitted: for people in a table, for programs in files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.calibrators import (
    BudgetTemperature,
    Calibration,
    MemberTemperatures,
    NoveltyScaling,
    Temperature,
    save_calibration,
)
from surefoot.files import make_folder
from surefoot.report.study_tables import part_names, safe_name
from surefoot.results import Result
from surefoot.runner import PartStudy, Study


@dataclass(frozen=True)
class Fitted:
    """A method's fitted values over its runs, in words."""

    title: str
    values: str
    novelty: str  # the score, and how well it tells familiar from unfamiliar
    remarks: tuple[str, ...]  # on the first run


def fitted_rows(part: PartStudy) -> list[Fitted]:
    """A row for each method that fits something."""
    return [_row(result) for result in part.results if any(run.calibration for run in result.runs)]


def write_calibrations(study: Study, folder: Path) -> list[Path]:
    """Every fitted calibration as `folder/calibrations/<part>-<method>-run<k>.json`; their paths."""
    make_folder(folder / "calibrations")
    written = []
    for name, part in zip(part_names(study), study.parts, strict=True):
        for result in part.results:
            for run in result.runs:
                if run.calibration is not None:
                    file = f"{name}-{safe_name(result.method.name)}-run{run.run}.json"
                    save_calibration(run.calibration, folder / "calibrations" / file)
                    written.append(folder / "calibrations" / file)
    return written


def values_of(calibration: Calibration) -> dict[str, list[float]]:
    """The fitted numbers by name."""
    if isinstance(calibration, NoveltyScaling):
        return {"T0": [calibration.t0], "T1": [calibration.t1]}
    if isinstance(calibration, MemberTemperatures):
        return {"T of each member": [member.temperature for member in calibration.members]}
    return {"T": [calibration.temperature]}


def _row(result: Result) -> Fitted:
    calibrations = [run.calibration for run in result.runs if run.calibration is not None]
    parts = []
    for name in values_of(calibrations[0]):
        parts.append(f"{name} = {_list([value for c in calibrations for value in values_of(c)[name]])}")
    declined = [c.declined for c in calibrations if isinstance(c, Temperature) and c.declined is not None]
    if declined:
        parts.append(f"declined, as below 1: {_list(declined)}")
    best = [c.best.temperature for c in calibrations if isinstance(c, BudgetTemperature)]
    if best:
        parts.append(f"least NLL at T = {_list(best)}")
    if result.interpolation is not None:
        parts.append(_barrier(result.interpolation))
    remarks = tuple(calibrations[0].remarks())
    return Fitted(_title(result), "; ".join(parts), _novelty(result), remarks)


def _barrier(found: dict[str, Any]) -> str:
    """How the loss changes between two of the networks that were averaged."""
    return (
        f"validation NLL on the line between the first two networks: {_list(found['val_nll'])}; "
        f"barrier {found['barrier']:.3g}"
    )


def _title(result: Result) -> str:
    return f"{result.method.title} (cheating)" if result.method.cheating else result.method.title


def _novelty(result: Result) -> str:
    found = [run.novelty_auroc for run in result.runs if run.novelty_auroc is not None]
    defined = [value for value in found if math.isfinite(value)]
    return f"{result.method.novelty}: {_list(defined)}" if defined else ""


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
