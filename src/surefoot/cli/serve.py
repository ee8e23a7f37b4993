"""`surefoot serve`: a bundle behind HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.deploy import AllowCode, BundleFolder
from surefoot.cli.run import stoppable
from surefoot.cli.train import Device, device_named
from surefoot.errors import InputError
from surefoot.serve.limits import Limits

INSTALL = "pip install 'surefoot[serve]'"


def serve(
    folder: BundleFolder,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 for all the world.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 8000,
    max_bytes: Annotated[int, typer.Option(min=1, help="Of a request.")] = Limits.max_bytes,
    max_image_bytes: Annotated[int, typer.Option(min=1, help="Of one image.")] = Limits.max_image_bytes,
    max_images: Annotated[int, typer.Option(min=1, help="In a request.")] = Limits.max_images,
    max_pixels: Annotated[int, typer.Option(min=1, help="Of one image.")] = Limits.max_pixels,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Images without an answer yet; more are sent away with 503.")
    ] = Limits.max_waiting,
    timeout: Annotated[
        float, typer.Option(help="Seconds in which a request must arrive, and again be answered.")
    ] = Limits.timeout,
    thresholds: Annotated[
        Path | None, typer.Option(help="Other thresholds than the bundle's (JSON).")
    ] = None,
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of the networks on a CPU; half the processors unless given.")
    ] = None,
    allow_code: AllowCode = False,
) -> None:
    """Serve a bundle: /predict for programs, a page at / for people, /health and /metrics.

    Ctrl-C or SIGTERM ends it, once what is under way has been answered.
    """
    limits = Limits(
        max_bytes=max_bytes,
        max_image_bytes=max_image_bytes,
        max_images=max_images,
        max_pixels=max_pixels,
        max_waiting=max_waiting,
        timeout=timeout,
    )
    try:
        from surefoot.serve.app import build_app
        from surefoot.serve.server import address_of, listening
        from surefoot.serve.server import serve as answer
    except ImportError as error:
        raise InputError(f"serving needs {error.name}; {INSTALL}") from error
    from surefoot.deploy.bundle import load_bundle
    from surefoot.deploy.decision import read_thresholds_file, rule_from
    from surefoot.serve.batching import Answerer, use_threads

    with stoppable("stopped before it began"):
        use_threads(threads)
        loaded = load_bundle(folder, allow_code=allow_code)
        classes, other = len(loaded.class_names), None
        if thresholds is not None:
            other = rule_from(read_thresholds_file(thresholds, classes=classes), classes=classes)
        answerer = Answerer(loaded, other, device_named(device))
        sock = listening(host, port)
    typer.echo(f"serving {loaded.name} on {address_of(sock)} (Ctrl-C ends it)")
    if answer(build_app(answerer, limits), sock, limits):
        typer.echo("stopped; every request that had come was answered", err=True)
    else:
        typer.echo("stopped at once; requests that were under way were sent away with 503", err=True)
