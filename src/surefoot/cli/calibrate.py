"""`surefoot calibrate` and `surefoot apply`: fit a calibration, and apply it."""

import math
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli.inputs import (
    Address,
    Engine,
    EngineName,
    Stream,
    Workers,
    input_files,
    is_streamed,
    read,
    read_or_scan,
    refuse_ending,
    refuse_missing,
    refuse_wrong_outputs,
)
from surefoot.cli.terminal import echo, echo_written
from surefoot.errors import InputError, is_numeric, refuse_unknown
from surefoot.text import count_of

if TYPE_CHECKING:
    from surefoot.calibrators import Calibration


Validation = Annotated[
    Path,
    typer.Argument(
        help="Predictions on held-out familiar data: .npz, .parquet or .csv; a folder or 'p/*.parquet'."
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        help="With --method budget: how far the NLL may rise above its minimum, e.g. 5% or 0.05; "
        "or surplus: up to the minimum NLL of --reference.",
        show_default="2%",
    ),
]
Reference = Annotated[
    Path | None, typer.Option(help="With --budget surplus: the plain model's predictions of the same rows.")
]
Regularisation = Annotated[
    float | None,
    typer.Option(
        help="With --method vector, matrix or dirichlet: strength of the regularisation.",
        show_default="chosen by cross-validation",
    ),
]
Bins = Annotated[int | None, typer.Option(help="With --method histogram: number of bins.", show_default="10")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="An option of the method as NAME=VALUE, also of one from a plugin."),
]
Weights = Annotated[str | None, typer.Option(help="Column of sample weights: how much each row counts.")]
Force = Annotated[
    bool, typer.Option("--force", help="Use a T even if its interval spans orders of magnitude.")
]
GroupBy = Annotated[
    str | None,
    typer.Option(help="Column of groups: intervals are clustered, and folds never split a group."),
]


def calibrate(
    val: Validation,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the calibration (JSON).")],
    method: Annotated[str, typer.Option(help="See 'surefoot ls calibrators'.")] = "temperature",
    budget: Budget = None,
    reference: Reference = None,
    regularisation: Regularisation = None,
    bins: Bins = None,
    option: Options = None,
    weights: Weights = None,
    force: Force = False,
    group_by: GroupBy = None,
    stream: Stream = None,
    engine: Engine = EngineName.LOCAL,
    address: Address = None,
    workers: Workers = None,
) -> None:
    """Fit a calibration on validation predictions, never on the data that it is evaluated on."""
    files, reference_files = input_files(val), input_files(reference)
    from surefoot.calibrators import CALIBRATORS, save_calibration
    from surefoot.calibrators.declaration import read_options

    options: dict[str, Any] = {
        "budget": budget_of(budget),
        "reference": reference,
        "regularisation": regularisation,
        "bins": bins,
        "weights": weights,
    }
    options = {name: value for name, value in options.items() if value is not None}
    calibrator = CALIBRATORS.named(method)
    refuse_unknown(f"option of method {method}:", options, calibrator.option_names)
    options |= read_options(f"option of method {method}:", _pairs(option or [], options), calibrator.options)
    if output.suffix.lower() in (".npz", ".parquet", ".csv"):
        raise InputError(
            f"the calibration is JSON, and {output} is a file name for predictions; allowed: another ending"
        )
    refuse_wrong_outputs([*files, *reference_files], [output])
    from surefoot.cli.notebook import progress_shown
    from surefoot.streaming.workflow import fit_calibration

    streamed = is_streamed({"val": files}, stream, engine, {"--group-by": group_by, "--weights": weights})
    predictions = read_or_scan(val, group_by, streamed, engine, address, workers)
    if reference is not None:
        options["reference"] = read(reference)
    fitted = fit_calibration(method, predictions, force=force, progress=progress_shown(), **options)
    save_calibration(fitted, output)
    _print(fitted)
    echo_written(f"calibration: {output}")


def _pairs(given: Sequence[str], others: Container[str]) -> dict[str, str]:
    """The values by name; each once, and not also as an option of its own."""
    result: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--option is {pair!r}; allowed: NAME=VALUE")
        if name in result or name in others:
            raise InputError(f"option {name!r} is given twice; allowed: once")
        result[name] = value
    return result


def _print(fitted: "Calibration") -> None:
    """The fitted numbers and their effect; notes to standard error."""
    echo(*fitted.lines())
    if fitted.evidence is not None:
        echo(f"NLL {fitted.evidence.nll_before:.4f} -> {fitted.evidence.nll_after:.4f} (unclipped)")
        echo(f"ECE {fitted.evidence.ece_before:.4f} -> {fitted.evidence.ece_after:.4f}")
        if fitted.evidence.nll_held_out is not None and fitted.evidence.ece_held_out is not None:
            nll, ece = fitted.evidence.nll_held_out, fitted.evidence.ece_held_out
            echo(f"on rows left out of the fit: NLL {nll:.4f}, ECE {ece:.4f}")
    for remark in fitted.notes():
        echo("note: " + remark.replace("force=True", "--force"), err=True)


def budget_of(text: str | None) -> float | str | None:
    """A budget from the command line: `5%` and `0.05` are the same share, a word is itself.

    >>> budget_of("5%"), budget_of("0.05"), budget_of("surplus")
    (0.05, 0.05, 'surplus')
    """
    if text is None or text == "surplus":
        return text
    percent = text.endswith("%")
    number = text.removesuffix("%")
    share = float(number) / (100 if percent else 1) if is_numeric(number) else math.nan
    if not 0 <= share < math.inf or (share > 1 and not percent):  # 5 more likely means 5% than 500%
        raise InputError(
            f"--budget is {text!r}; allowed: a percentage such as 5%, a share from 0 to 1 such as 0.05, "
            "or surplus"
        )
    return share


def apply(
    calibration: Annotated[Path, typer.Argument(help="A file that 'surefoot calibrate' wrote.")],
    predictions: Annotated[
        Path, typer.Argument(help="Predictions, with or without labels; a file, a folder or 'p/*.parquet'.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write: .npz, .parquet or .csv.")],
) -> None:
    """Calibrate predictions: the same rows with calibrated logits."""
    refuse_missing(calibration)
    files = input_files(predictions)
    from surefoot.calibrators import load_calibration
    from surefoot.cli.terminal import busy
    from surefoot.predictions.files import read_predictions, write_predictions
    from surefoot.predictions.paths import SUFFIXES

    refuse_ending(output, *SUFFIXES)
    refuse_wrong_outputs([calibration, *files], [output])
    fitted = load_calibration(calibration)
    with busy(f"calibrating {predictions}"):
        calibrated = fitted(read_predictions(predictions, unlabelled=fitted.label_kind))
        write_predictions(calibrated, output)
    echo_written(f"calibrated predictions: {output} ({count_of(calibrated.n, 'row')})")
