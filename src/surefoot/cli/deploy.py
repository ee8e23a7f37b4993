"""Using a trained method elsewhere: `predictions`, `bundle`, `predict`, `serve`, `export`."""

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.inputs import (
    Device,
    Resamples,
    StoreFolder,
    refuse_ending,
    refuse_missing,
    refuse_missing_bundle,
    refuse_wrong_outputs,
    stoppable,
)
from surefoot.cli.terminal import busy, echo, progress
from surefoot.errors import InputError
from surefoot.evaluation import RESAMPLES
from surefoot.serve.limits import Limits, VerdictMode, Watch
from surefoot.text import count_of

if TYPE_CHECKING:
    from surefoot.decisions.decision import Rule
    from surefoot.deploy.bundle import Bundle
    from surefoot.deploy.make_bundle import Chosen

ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
BundleFolder = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="A folder that 'surefoot bundle' wrote.")
]
AllowCode = Annotated[
    bool,
    typer.Option("--allow-code", help="Allow the bundle to run the code of your own network."),
]
AllowUnseen = Annotated[
    bool,
    typer.Option(
        "--allow-unseen", help="Predict rows with values that training never had, instead of refusing them."
    ),
]
OtherThresholds = Annotated[
    Path | None, typer.Option("--thresholds", help="Other thresholds than the bundle's (JSON).")
]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="An experiment that was run ('surefoot ls runs').")
]
MethodName = Annotated[str, typer.Argument(help="A method ('surefoot ls methods').")]
TaskName = Annotated[str | None, typer.Option(help="Which task, if the experiment has several.")]
NetworkName = Annotated[str | None, typer.Option(help="Which network, if a task has several.")]
RunNumber = Annotated[int, typer.Option(min=0, help="Which of the method's runs, from 0.")]
NewFolder = Annotated[Path, typer.Option("--output", "-o", help="The folder to write; must be new.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        help="Accept requests for this host name, such as a proxy's; repeat for more, * for any. "
        "IP addresses and names without a dot are always accepted."
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads for the networks; by default half the cores.")
]
Window = Annotated[
    int, typer.Option(help="How many of the latest predictions are checked for shift; 0: no checks.")
]
CheckEvery = Annotated[
    int | None, typer.Option(help="New predictions between checks; by default the size of the window.")
]
Alpha = Annotated[float, typer.Option(help="The probability of any false alarm, over all checks.")]
History = Annotated[
    Path | None, typer.Option(help="JSON lines, one per check; a restart continues the history.")
]
Verdict = Annotated[
    VerdictMode, typer.Option(help="Mark predictions as familiar or unfamiliar; auto: if it is useful.")
]
LISTED = 5  # unreadable images that are named in the terminal
FILES = {"test_familiar": "familiar", "test_unfamiliar": "unfamiliar"}


class FileType(StrEnum):
    """Of predictions files."""

    NPZ = "npz"
    PARQUET = "parquet"


def predictions(
    experiment: RunName,
    method: MethodName,
    output: NewFolder,
    task: TaskName = None,
    network: NetworkName = None,
    run: RunNumber = 0,
    features: Annotated[
        bool,
        typer.Option(
            "--features", help="Also write the inputs of the last layer, projected; needs the task's data."
        ),
    ] = False,
    file_type: Annotated[FileType, typer.Option("--type", help="The type of the files.")] = FileType.NPZ,
    device: Device = "auto",
    store: StoreFolder = Path("runs"),
) -> None:
    """Write a method's predictions on the test sets, for 'thresholds', 'monitor' and 'evaluate'."""
    from surefoot.lab.experiments.workflow import run_folder
    from surefoot.lab.store.store import Store

    folder = run_folder(Store(store), experiment)
    from surefoot.deploy.make_bundle import add_features, method_predictions, remark_on_predictions
    from surefoot.io import new_folder
    from surefoot.lab.workers.local import device_named
    from surefoot.predictions.files import write_predictions

    chosen = _chosen(folder, method, task, network)
    by_split = method_predictions(chosen, run=run)
    if features:
        with progress("features", sum(each.n for each in by_split.values())) as tick:
            by_split = add_features(chosen, by_split, run=run, device=device_named(device), tick=tick)
    names = {split: f"{FILES[split]}.{file_type}" for split in by_split}
    with new_folder(output) as new:
        for split, each in by_split.items():
            write_predictions(each, new / names[split])
    _note(remark_on_predictions(chosen))
    for split, each in by_split.items():
        echo(f"{output / names[split]} ({count_of(each.n, 'row')})")


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
    resamples: Resamples = RESAMPLES,
    features: Annotated[
        bool,
        typer.Option("--features", help="Add features to the reference of 'serve'; needs the task's data."),
    ] = False,
    store: StoreFolder = Path("runs"),
    allow_code: Annotated[
        bool,
        typer.Option("--allow-code", help="Allow the code of your own network to run, to verify the bundle."),
    ] = False,
) -> None:
    """Write a method's networks, calibration, preprocessing and metrics to one folder, to use elsewhere."""
    from surefoot.lab.experiments.workflow import run_folder
    from surefoot.lab.store.store import Store

    folder = run_folder(Store(store), experiment)
    refuse_missing(thresholds)
    from surefoot.decisions.decision import read_thresholds_file, remark_on
    from surefoot.deploy.bundle import BUNDLE
    from surefoot.deploy.make_bundle import write_bundle
    from surefoot.deploy.self_check import remark_on_check
    from surefoot.io import read_json

    chosen = _chosen(folder, method, task, network)
    names = chosen.plan.class_names
    given = None if thresholds is None else read_thresholds_file(thresholds, names)
    with progress("scoring and resampling", 2 * resamples) as tick:
        fitted = write_bundle(
            chosen,
            output,
            run=run,
            thresholds=given,
            resamples=resamples,
            features=features,
            tick=tick,
            allow_code=allow_code,
        )
    _note(None if given is None else remark_on(given, fitted))
    about = read_json(output / BUNDLE, "a bundle's description")
    _note(about.get("own_code"))
    _note(remark_on_check(about["checked"]))
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    echo(f"bundle: {output} ({size / 1e6:.1f} MB)")


def _chosen(folder: Path, method: str, task: str | None, network: str | None) -> "Chosen":
    from surefoot.deploy.make_bundle import chosen_method
    from surefoot.lab.experiments.changes import open_run

    return chosen_method(open_run(folder), method, task=task, network=network)


def _note(remark: str | None) -> None:
    if remark is not None:
        echo(f"note: {remark}", err=True)


def predict(
    folder: BundleFolder,
    images: Annotated[
        list[str],
        typer.Argument(help="Image files, folders (recursive) or patterns; or one table of rows."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write: .parquet or .csv.")],
    thresholds: OtherThresholds = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write a column with the probability of each class.")
    ] = False,
    features: Annotated[
        bool,
        typer.Option("--features", help="Also write the inputs of the last layer, projected (.parquet)."),
    ] = False,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Exit with 0 even if some images cannot be read.")
    ] = False,
    allow_unseen: AllowUnseen = False,
    device: Device = "auto",
    allow_code: AllowCode = False,
) -> None:
    """Predict images or rows: label, confidence, entropy, novelty, and the decision if there are thresholds.

    Exits with 1 if some images cannot be read; the others are predicted, and the output says which and why.
    """
    refuse_missing_bundle(folder)
    refuse_missing(thresholds)
    refuse_ending(output, ".parquet", ".csv")
    refuse_wrong_outputs([thresholds], [output])
    from surefoot.deploy.bundle import load_bundle
    from surefoot.deploy.predict import images_among, predict_files
    from surefoot.lab.workers.local import device_named

    with stoppable("stopped; nothing was written"):
        loaded = load_bundle(folder, allow_code=allow_code)
        if loaded.encoding is not None:
            _predict_table(
                loaded,
                images,
                output,
                allow_unseen=allow_unseen,
                thresholds=_rule(thresholds, loaded),
                probabilities=probabilities,
                features=features,
                device=device_named(device),
            )
            return
        paths = images_among(images)
        with progress("predicting", len(paths)) as tick:
            result = predict_files(
                loaded,
                paths,
                output,
                thresholds=_rule(thresholds, loaded),
                probabilities=probabilities,
                features=features,
                device=device_named(device),
                tick=tick,
            )
    echo(f"predictions: {output} ({count_of(result.images, 'image')})")
    if result.unreadable:
        names = "; ".join(result.unreadable[:LISTED])
        more = f"; and {len(result.unreadable) - LISTED} more" if len(result.unreadable) > LISTED else ""
        count = f"{len(result.unreadable):,} of {result.images:,} images"
        echo(f"{count} cannot be read and have an error instead of a label: {names}{more}", err=True)
        if not skip_unreadable:
            raise typer.Exit(1)


def _predict_table(
    bundle: "Bundle",
    given: list[str],
    output: Path,
    *,
    allow_unseen: bool,
    thresholds: "Rule | None",
    probabilities: bool,
    features: bool,
    device: str,
) -> None:
    """Predict the rows of a table."""
    from surefoot.deploy.predict import predict_rows
    from surefoot.deploy.rows import read_rows

    if len(given) != 1:
        raise InputError(f"{len(given)} files; the bundle takes {bundle.taken}: allowed is one table")
    file = Path(given[0])
    refuse_missing(file)
    refuse_wrong_outputs([file], [output])
    assert bundle.encoding is not None
    rows = read_rows(bundle.encoding, file, allow_unseen=allow_unseen)
    with progress("predicting", len(rows)) as tick:
        unseen = predict_rows(
            bundle,
            rows,
            output,
            thresholds=thresholds,
            probabilities=probabilities,
            features=features,
            device=device,
            tick=tick,
        )
    for first in unseen:
        _note(f"{first}; {count_of(first.rows, 'row')} of this column predicted as unseen")
    echo(f"predictions: {output} ({count_of(len(rows), 'row')})")


def _rule(thresholds: Path | None, bundle: "Bundle") -> "Rule | None":
    from surefoot.decisions.decision import read_thresholds_file, rule_from

    if thresholds is None:
        return None
    names = bundle.class_names
    return rule_from(read_thresholds_file(thresholds, names), classes=len(names), class_names=names)


def serve(
    folder: BundleFolder,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 for all networks.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free port.")] = 8000,
    max_bytes: Annotated[int, typer.Option(min=1, help="Maximum bytes of a request.")] = Limits.max_bytes,
    max_image_bytes: Annotated[
        int, typer.Option(min=1, help="Maximum bytes of an image.")
    ] = Limits.max_image_bytes,
    max_images: Annotated[int, typer.Option(min=1, help="Maximum images in a request.")] = Limits.max_images,
    max_pixels: Annotated[int, typer.Option(min=1, help="Maximum pixels of an image.")] = Limits.max_pixels,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Images in the queue; further requests are refused with 503.")
    ] = Limits.max_waiting,
    timeout: Annotated[
        float, typer.Option(help="Seconds for a request to arrive, and again for its response.")
    ] = Limits.timeout,
    thresholds: OtherThresholds = None,
    allow_unseen: AllowUnseen = False,
    device: Device = "auto",
    allow_host: AllowHost = None,
    threads: Threads = None,
    window: Window = Watch.rows,
    check_every: CheckEvery = None,
    alpha: Alpha = Watch.alpha,
    history: History = None,
    verdict: Verdict = VerdictMode.AUTO,
    allow_code: AllowCode = False,
) -> None:
    """Serve a bundle over HTTP: /predict for programs, a web page at /, /health and /metrics.

    Ctrl-C or SIGTERM stops it after the requests in progress are answered.
    """
    refuse_missing_bundle(folder)
    refuse_missing(thresholds)
    limits = Limits(
        max_bytes=max_bytes,
        max_image_bytes=max_image_bytes,
        max_images=max_images,
        max_pixels=max_pixels,
        max_waiting=max_waiting,
        timeout=timeout,
    )
    watch = Watch(rows=window, every=check_every, alpha=alpha, history=history)
    refuse_wrong_outputs([thresholds], [history])
    try:
        from surefoot.serve.app import build_app
        from surefoot.serve.hosts import Hosts
        from surefoot.serve.server import listen, run_server, url_of
    except ImportError as error:
        raise InputError(f"serving needs {error.name}; install it: pip install 'surefoot[serve]'") from error
    from surefoot.deploy.bundle import load_bundle
    from surefoot.lab.workers.local import device_named
    from surefoot.serve.batching import Predictor, use_threads

    with stoppable("stopped before the server started"):
        use_threads(threads)
        loaded = load_bundle(folder, allow_code=allow_code)
        rule, where = _rule(thresholds, loaded), device_named(device)
        predictor = Predictor(loaded, rule, where, allow_unseen=allow_unseen, verdict=verdict)
        app = build_app(predictor, limits, Hosts.of(host, *(allow_host or ())), watch)
        sock = listen(host, port)
    started = f"serving {loaded.name} on {url_of(sock)} (Ctrl-C stops it)"
    if run_server(app, sock, limits, announce=lambda: echo(started)):
        echo("stopped; all requests were answered", err=True)
    else:
        echo("stopped at once; requests in progress were refused with 503", err=True)


def export(
    folder: BundleFolder,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write: .onnx or .pt2.")],
    preprocessed: Annotated[
        bool,
        typer.Option(
            "--preprocessed", help="A graph that takes batches of preprocessed images, not one image."
        ),
    ] = False,
    allow_code: AllowCode = False,
) -> None:
    """Write a bundle as one graph, with preprocessing and calibration, and compare it with PyTorch.

    Next to an .onnx that takes an image, it writes predict_onnx.py, which needs neither torch nor Surefoot.
    """
    refuse_missing_bundle(folder)
    refuse_ending(output, ".onnx", ".pt2")
    refuse_wrong_outputs([], [output])
    absent = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    if output.suffix == ".onnx" and absent:
        raise InputError(f"an .onnx needs {', '.join(absent)}; install it: pip install 'surefoot[export]'")
    from surefoot.deploy.bundle import load_bundle
    from surefoot.deploy.export import export_bundle, export_preprocessed, program_of

    with stoppable("stopped; nothing was written"):
        loaded = load_bundle(folder, allow_code=allow_code)
        with busy("exporting and comparing with PyTorch"):
            parity = (export_preprocessed if preprocessed else export_bundle)(loaded, output)
    echo(
        f"largest difference from PyTorch for {parity.compared}: "
        f"{parity.probabilities:.1e} of a probability, {parity.logits:.1e} of a logit"
    )
    echo(f"exported: {output} ({output.stat().st_size / 1e6:.1f} MB)")
    program = None if preprocessed else program_of(loaded, output)
    if program is not None:
        echo(f"use it: python {program} {output} IMAGE")
