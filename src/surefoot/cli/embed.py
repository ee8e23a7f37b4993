"""`surefoot embed`."""

from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.inputs import (
    Device,
    refuse_ending,
    refuse_missing,
    refuse_wrong_outputs,
    stoppable,
)
from surefoot.cli.terminal import echo, progress
from surefoot.text import count_of


def embed(
    images: Annotated[
        Path, typer.Argument(help="A folder of images (recursive), or a manifest: .csv or .parquet.")
    ],
    network: Annotated[
        str, typer.Option(help="Such as resnet18, torchvision:NAME, timm:NAME or hf:NAME (Hugging Face).")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write: .parquet.")],
    weights: Annotated[
        Path | None, typer.Option(help="The network's weights; timm: and hf: networks load their own.")
    ] = None,
    view: Annotated[int, typer.Option(min=1, help="Side of the network's input in pixels.")] = 224,
    resize: Annotated[
        int, typer.Option(min=1, help="Short side that images are resized to before the centre crop.")
    ] = 256,
    number_type: Annotated[
        str, typer.Option("--type", help="float32, or float16: half the size.")
    ] = "float32",
    root: Annotated[
        Path | None, typer.Option(help="Folder that a manifest's paths start from; by default its own.")
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be read.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Write the embedding of every image by a frozen network: the input of its last layer.

    The same command resumes where it was stopped or killed.
    """
    refuse_missing(images, weights)
    refuse_ending(output, ".parquet")
    refuse_wrong_outputs([images, weights], [output])
    from surefoot.deploy.embed import encoder_named, read_images, write_embeddings
    from surefoot.lab.workers.local import device_named

    with stoppable():
        given = read_images(images, root=root)
        chosen = device_named(device)
        encoder = encoder_named(network, weights, view=view, resize=resize, device=chosen)
        with progress("embedding", len(given.images)) as tick:
            result = write_embeddings(
                given,
                encoder,
                output,
                number_type=number_type,
                skip_unreadable=skip_unreadable,
                device=chosen,
                tick=tick,
            )
    if result.unreadable:
        echo(f"{count_of(len(result.unreadable), 'image')} could not be read and were left out", err=True)
    echo(f"embeddings: {output} ({count_of(result.rows, 'image')}, {result.width} numbers each)")
