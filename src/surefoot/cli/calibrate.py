"""`surefoot calibrate` and `surefoot apply`: fit a calibration, and apply it."""

from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from surefoot.cli.inputs import (
    Engine,
    EngineName,
    GroupBy,
    Stream,
    input_files,
    is_streamed,
    read,
    read_or_scan,
    refuse_ending,
    refuse_missing,
    refuse_predictions_name,
    refuse_wrong_outputs,
)
from surefoot.cli.notebook import progress_shown
from surefoot.cli.terminal import busy, echo, echo_written
from surefoot.errors import refuse_unknown
from surefoot.text import count_of

if TYPE_CHECKING:
    from surefoot.calibrators import Calibration, Option

GIVEN = "surefoot.calibrators"  # in the context: the values of the flags

Validation = Annotated[
    Path,
    typer.Argument(
        help="Predictions on held-out familiar data: .npz, .parquet or .csv; a folder or 'p/*.parquet'."
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Use a T even if its interval spans orders of magnitude.")
]


class CalibrateCommand(TyperCommand):
    """Has a flag for each option that a calibrator declares, also for those of plugins.

    They are made when they are needed: no other command imports calibrators for them.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Those of `calibrate`, with the flags after --method."""
        params = super().get_params(ctx)
        names = [param.name for param in params]
        flags = [flag for flag in _flags() if flag.name not in names]
        place = names.index("method") + 1
        return [*params[:place], *flags, *params[place:]]


def _flags() -> list[Any]:
    """The options of all calibrators, each once; their values, as texts, are kept for `calibrate`."""
    from surefoot.calibrators import CALIBRATORS

    def flags() -> None: ...

    methods: dict[str, list[str]] = {}
    for each in CALIBRATORS:
        for option in each.options:
            methods.setdefault(option.name, []).append(each.name)
            flags.__annotations__[option.name] = Annotated[
                str | None,
                typer.Option(
                    help=_help(option, methods[option.name], len(CALIBRATORS)),
                    show_default=option.default_text or False,
                    expose_value=False,
                    callback=_keep,
                ),
            ]
    hints = {name: flags.__annotations__[name] for name in methods}
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint) for name, hint in hints.items()
    ]
    flags.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(flags)
    command: Any = typer.main.get_command(app)
    return [param for param in command.params if param.name in methods]


def _help(option: "Option", methods: list[str], among: int) -> str:
    """What an option does, and with which of so many methods unless most have it."""
    text = (f"column of {option.help}" if option.type is object else option.help) + "."
    if len(methods) > among / 2:
        return text[0].upper() + text[1:]
    *others, last = methods
    names = f"{', '.join(others)} or {last}" if others else last
    return f"With --method {names}: {text}"


def _keep(context: typer.Context, param: typer.CallbackParam, value: str | None) -> None:
    """Keep a flag's value for `calibrate`, whose signature does not have it."""
    if value is not None:
        context.meta.setdefault(GIVEN, {})[param.name] = value


def calibrate(
    context: typer.Context,
    val: Validation,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the calibration (JSON).")],
    method: Annotated[str, typer.Option(help="See 'surefoot ls calibrators'.")] = "temperature",
    force: Force = False,
    group_by: GroupBy = None,
    stream: Stream = None,
    engine: Engine = EngineName.LOCAL,
) -> None:
    """Fit a calibration on validation predictions, never on the data that it is evaluated on."""
    files = input_files(val)
    from surefoot.calibrators import CALIBRATORS, fit_calibration, save_calibration

    calibrator = CALIBRATORS.named(method)
    texts: dict[str, str] = context.meta.get(GIVEN, {})
    refuse_unknown(f"option of method {method}:", texts, calibrator.option_names)
    declared = {each.name: each for each in calibrator.options if each.name in texts}
    references = [Path(texts[name]) for name, each in declared.items() if each.type is Path]
    refuse_predictions_name(output, "calibrations")
    refuse_wrong_outputs([*files, *input_files(*references)], [output])

    streamed = is_streamed(
        {"val": files}, stream, engine, {"--group-by": group_by, "--weights": texts.get("weights")}
    )
    options = {name: _value(each, texts[name]) for name, each in declared.items()}
    predictions = read_or_scan(val, group_by, streamed, engine)
    fitted = fit_calibration(method, predictions, force=force, progress=progress_shown(), **options)
    save_calibration(fitted, output)
    _print(fitted)
    echo_written(f"calibration: {output}")


def _value(option: "Option", text: str) -> Any:
    """What a text on the command line stands for: predictions in a file, a column, or the value itself."""
    if option.type is Path:
        return read(Path(text))
    return text if option.type is object else option.read(text)


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
    from surefoot.predictions.files import read_predictions, write_predictions
    from surefoot.predictions.paths import SUFFIXES

    refuse_ending(output, *SUFFIXES)
    refuse_wrong_outputs([calibration, *files], [output])
    fitted = load_calibration(calibration)
    with busy(f"calibrating {predictions}"):
        calibrated = fitted(read_predictions(predictions, unlabelled=fitted.label_kind))
        write_predictions(calibrated, output)
    echo_written(f"calibrated predictions: {output} ({count_of(calibrated.n, 'row')})")
