"""From an experiment that was run to its use elsewhere: `predictions`, `bundle`, `predict`, `export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.run import run_folder, stoppable
from surefoot.cli.train import Device, StoreFolder, device_named
from surefoot.evaluation import RESAMPLES
from surefoot.text import count_of

if TYPE_CHECKING:
    from surefoot.deploy.make_bundle import Chosen

BundleFolder = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="A folder that 'surefoot bundle' wrote.")
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Build a network by your own function, which the bundle names.")
]
SHOWN = 5  # unreadable images that are named in the terminal


RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="An experiment that was run ('surefoot ls runs').")
]
MethodName = Annotated[str, typer.Argument(help="A method ('surefoot ls methods').")]
TaskName = Annotated[str | None, typer.Option(help="Which task, where the experiment has several.")]
NetworkName = Annotated[str | None, typer.Option(help="Which network, where a task has several.")]
RunNumber = Annotated[int, typer.Option(min=0, help="Which of the method's runs, from 0.")]
NewFolder = Annotated[Path, typer.Option("--output", "-o", help="The folder to write; a new one.")]
FILES = {"test_familiar": "familiar.npz", "test_unfamiliar": "unfamiliar.npz"}


def predictions(
    experiment: RunName,
    method: MethodName,
    output: NewFolder,
    task: TaskName = None,
    network: NetworkName = None,
    run: RunNumber = 0,
    store: StoreFolder = Path("runs"),
) -> None:
    """Write what a method of a run said of the test sets, for 'thresholds', 'monitor' and 'evaluate'."""
    from surefoot.deploy.make_bundle import method_predictions, remark_on_predictions
    from surefoot.io import new_folder
    from surefoot.predictions.files import write_predictions

    chosen = _chosen(store, experiment, method, task, network)
    said = method_predictions(chosen, run=run)
    with new_folder(output) as new:
        for split, each in said.items():
            write_predictions(each, new / FILES[split])
    _note(remark_on_predictions(chosen))
    for split, each in said.items():
        typer.echo(f"{output / FILES[split]} ({count_of(each.n, 'row')})")


def bundle(
    experiment: RunName,
    method: MethodName,
    output: NewFolder,
    task: TaskName = None,
    network: NetworkName = None,
    run: RunNumber = 0,
    thresholds: Annotated[
        Path | None, typer.Option(help="JSON with 'accept' and 'reject': when to trust a prediction.")
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=0, help="Bootstrap resamples of the metrics; 0 for no intervals.")
    ] = RESAMPLES,
    store: StoreFolder = Path("runs"),
) -> None:
    """Put a method's networks, calibration, preprocessing and metrics into one folder, to use elsewhere."""
    from surefoot.cli.terminal import progress
    from surefoot.deploy.decision import read_thresholds_file, remark_on
    from surefoot.deploy.make_bundle import write_bundle

    chosen = _chosen(store, experiment, method, task, network)
    classes = len(chosen.plan.class_names)
    given = None if thresholds is None else read_thresholds_file(thresholds, classes=classes)
    with progress("scoring and resampling", 2 * resamples) as tick:
        fitted = write_bundle(chosen, output, run=run, thresholds=given, resamples=resamples, tick=tick)
    _note(None if given is None else remark_on(given, fitted))
    size = sum(file.stat().st_size for file in output.iterdir())
    typer.echo(f"bundle: {output} ({size / 1e6:.1f} MB)")


def _chosen(store: Path, experiment: str, method: str, task: str | None, network: str | None) -> "Chosen":
    from surefoot.deploy.make_bundle import chosen_method
    from surefoot.experiments.changes import open_run
    from surefoot.store.store import Store

    opened = open_run(run_folder(Store(store), experiment))
    return chosen_method(opened, method, task=task, network=network)


def _note(remark: str | None) -> None:
    if remark is not None:
        typer.echo(f"note: {remark}", err=True)


def predict(
    folder: BundleFolder,
    images: Annotated[list[str], typer.Argument(help="Image files, folders (with all below), or patterns.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write: .parquet or .csv.")],
    thresholds: Annotated[
        Path | None, typer.Option(help="Other thresholds than the bundle's (JSON).")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write a column for the probability of every class, too.")
    ] = False,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Images that cannot be read are no failure.")
    ] = False,
    device: Device = "auto",
    allow_code: AllowCode = False,
) -> None:
    """Predict images: label, confidence, entropy, novelty, and with thresholds accept, review or reject.

    Exits with 1 if some images cannot be read; the others are predicted, and the output says which and why.
    """
    from surefoot.cli.terminal import progress
    from surefoot.deploy.bundle import load_bundle
    from surefoot.deploy.decision import read_thresholds_file, rule_from
    from surefoot.deploy.predict import images_among, predict_files

    with stoppable("stopped; nothing was written"):
        loaded = load_bundle(folder, allow_code=allow_code)
        other = None
        if thresholds is not None:
            classes = len(loaded.class_names)
            other = rule_from(read_thresholds_file(thresholds, classes=classes), classes=classes)
        paths = images_among(images)
        with progress("predicting", len(paths)) as tick:
            counted = predict_files(
                loaded,
                paths,
                output,
                thresholds=other,
                probabilities=probabilities,
                device=device_named(device),
                tick=tick,
            )
    typer.echo(f"predictions: {output} ({count_of(counted.images, 'image')})")
    if counted.unreadable:
        named = "; ".join(counted.unreadable[:SHOWN])
        more = f"; and {len(counted.unreadable) - SHOWN} more" if len(counted.unreadable) > SHOWN else ""
        count = f"{len(counted.unreadable):,} of {counted.images:,} images"
        typer.echo(f"{count} cannot be read, and have an error in place of a label: {named}{more}", err=True)
        if not skip_unreadable:
            raise typer.Exit(1)


def export(
    folder: BundleFolder,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write: .onnx or .pt2.")],
    allow_code: AllowCode = False,
) -> None:
    """Write a bundle as one graph, calibration and averaging inside, and hold it against PyTorch."""
    from surefoot.cli.terminal import busy
    from surefoot.deploy.bundle import load_bundle
    from surefoot.deploy.export import export_bundle

    with stoppable("stopped; nothing was written"):
        loaded = load_bundle(folder, allow_code=allow_code)
        with busy("exporting, and comparing with PyTorch"):
            parity = export_bundle(loaded, output)
    typer.echo(
        f"largest difference from PyTorch at batches of {', '.join(map(str, parity.batches))}: "
        f"{parity.probabilities:.1e} of a probability, {parity.logits:.1e} of a logit"
    )
    typer.echo(f"exported: {output} ({output.stat().st_size / 1e6:.1f} MB)")
