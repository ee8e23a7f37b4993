"""Which engine makes the networks, by the command line's options."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli.train import device_named
from surefoot.errors import InputError

if TYPE_CHECKING:
    from surefoot.engines.orders import Order

ENGINES = ("local", "ray")

Engine = Annotated[str, typer.Option(help="What makes the networks: local, or ray (docs/ray.md).")]
Address = Annotated[
    str | None,
    typer.Option(help="Of a Ray cluster: HOST:PORT, ray://HOST:PORT or auto; else one is started here."),
]
CpusPerNetwork = Annotated[
    float | None, typer.Option(help="With ray: CPUs that a network takes; 1 unless given.")
]
GpusPerNetwork = Annotated[
    float | None,
    typer.Option(help="With ray: GPUs that a network takes, e.g. 0.25; half of one unless given."),
]


@dataclass(frozen=True)
class Made:
    """How networks are made: on which device, and by what."""

    device: str
    carry_out: Callable[["Order", Callable[[dict[str, Any]], None]], None]


def chosen_engine(
    name: str,
    device: str,
    workers: int | None,
    address: str | None,
    cpus: float | None,
    gpus: float | None,
) -> AbstractContextManager[Made]:
    """The engine of that name; a cluster is connected to when there is something to make."""
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; have: {', '.join(ENGINES)}")
    if name == "ray":
        from surefoot.engines.ray_cluster import Cluster, load_ray

        given = {} if cpus is None else {"cpus": cpus}
        cluster = Cluster(address=address, gpus=gpus, most=workers, **given)
        load_ray(cluster)  # whether it is there is said before anything is planned
        return _ray(cluster, device)
    options = {"--address": address, "--cpus-per-network": cpus, "--gpus-per-network": gpus}
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option} is {value!r} and the engine is 'local'; needed: --engine ray")
    return _local(device_named(device), workers)


@contextmanager
def _local(device: str, workers: int | None) -> Iterator[Made]:
    from surefoot.engines.local import carry_out, sensible_workers

    yield Made(
        device, lambda order, tell: carry_out(order, workers=workers or sensible_workers(device), tell=tell)
    )


@contextmanager
def _ray(cluster: Any, device: str) -> Iterator[Made]:
    from surefoot.engines.ray import engine

    if device not in ("auto", "cpu", "cuda"):  # whether there is one is the nodes' to say
        raise InputError(f"device is {device!r}; allowed: auto, cpu, cuda")
    with engine(cluster) as carry_out:
        yield Made(device, carry_out)
