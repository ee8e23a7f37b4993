"""Run an experiment, read one that was run, compare two: the functions behind the commands."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot.errors import InputError, did_you_mean, one_of, refuse_unknown, require_whole
from surefoot.evaluation import RESAMPLES
from surefoot.lab.experiments.experiment import Experiment, Part, experiment_named, overridden
from surefoot.lab.experiments.methods import METHODS, calibrated_rows
from surefoot.lab.experiments.plan import Plan
from surefoot.lab.experiments.run import (
    PLANS,
    Study,
    open_folder,
    order_for,
    plans_for,
    read_folder,
    resolved,
    study,
    with_methods,
)
from surefoot.lab.recipes.recipe import Spec
from surefoot.lab.store.remote import Remote, is_url
from surefoot.lab.store.store import Store
from surefoot.lab.workers.jobs import WorkOrder
from surefoot.predictions.arguments import checked
from surefoot.progress import OnEvent, Progress, progress_of
from surefoot.text import count_of

if TYPE_CHECKING:
    from surefoot.lab.experiments.changes import ExperimentChange
    from surefoot.lab.workers.ray import Cluster

ENGINES = ("local", "ray")
REPORT_VALUES = ("methods", "metrics", "resamples", "budget")  # that can change without training


@checked
def run(
    experiment: str | Path | Experiment,
    *,
    values: Mapping[str, Any] | None = None,
    methods: Sequence[str] | None = None,
    oracle: bool = False,
    calibrators: Sequence[str] = (),
    root: str | Path | None = None,
    weights: str | Path | None = None,
    store: str | Path = "runs",
    cache: str | Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    engine: str = "local",
    address: str | None = None,
    cpus_per_network: float | None = None,
    gpus_per_network: float | None = None,
    progress: bool | Progress = True,
) -> Study:
    """Train what is missing, then score and compare every method on familiar and unfamiliar data.

    `experiment` is a name (`surefoot ls experiments`) or a TOML file; `values` replace those of the
    experiment or of its recipes, as `--set` does: {"runs": 3, "epochs": 12}. `calibrators` add rows with each
    of them on single networks and on the ensemble. `progress` is shown in terminals and notebooks, unless
    False. The same call resumes where it was stopped. `study.save_report(study.folder)` writes the page.

    >>> run("quickstart", values={"runs": 3}, methods=["single", "single-t"])  # doctest: +SKIP
    """
    if workers is not None:
        require_whole("workers", workers, 1)
    chosen = chosen_experiment(experiment, values or {}, methods, oracle, calibrators, root, weights)
    where = Training(str(store), cache, device, workers, engine, address, cpus_per_network, gpus_per_network)
    shown = progress_of(progress)
    trained = train(chosen, where, shown)
    with shown.busy("scoring and resampling"):
        result = load_study(trained.folder)
    trained.opened.send(trained.folder, shown)
    return result


@checked
def load_study(
    experiment: str | Path,
    *,
    store: str | Path = "runs",
    values: Mapping[str, Any] | None = None,
    methods: Sequence[str] | None = None,
) -> Study:
    """Score and compare an experiment that was run, from the networks in the store; nothing is trained.

    `experiment` is its name in the store, or its folder. `values` may have other metrics, resamples or
    budget.

    >>> load_study("quickstart").to_frame()  # doctest: +SKIP
    """
    folder = run_folder(Store(Path(store)), str(experiment))
    read, plans = narrowed(*read_folder(folder), values or {}, methods)
    return replace(study(read, plans, Store.containing(folder)), folder=folder)


@checked
def compare(
    before: str | Path, after: str | Path, *, store: str | Path = "runs", resamples: int = RESAMPLES
) -> "ExperimentChange":
    """What changed between two experiments that were run: their values, and each method's numbers.

    Each is a name in the store, or an experiment's folder in any store.

    >>> compare("quickstart", "quickstart-ab12cd")  # doctest: +SKIP
    """
    folders = [run_folder(Store(Path(store)), str(name)) for name in (before, after)]
    from surefoot.lab.experiments.changes import experiment_change, open_run

    return experiment_change(*map(open_run, folders), resamples=resamples)


@dataclass(frozen=True)
class OpenedStore:
    """A store, and the URL that it is a copy of, if it is one."""

    store: Store
    url: str | None = None

    def sync(self, specs: Sequence[Spec], progress: Progress) -> None:
        """Copy these networks both ways between the copy and the URL."""
        if self.url is not None:
            with progress.busy(f"comparing {count_of(len(specs), 'network')} with {self.url}"):
                Remote(self.url).sync(specs, self.store)

    def send(self, folder: Path, progress: Progress) -> None:
        """Upload an experiment's folder."""
        if self.url is not None:
            Remote(self.url).send_folder(folder, self.store)
            progress.note(f"all results are in {self.url}; the copy on this machine: {self.store.root}")


@dataclass(frozen=True)
class Trained:
    """An experiment whose networks are all in the store."""

    folder: Path
    opened: OpenedStore


@dataclass(frozen=True)
class Training:
    """Where and by what networks are trained; none of this changes a weight."""

    store: str
    cache: str | Path | None
    device: str
    workers: int | None
    engine: str
    address: str | None
    cpus_per_network: float | None
    gpus_per_network: float | None


def train(experiment: Experiment, training: Training, progress: Progress) -> Trained:
    """Train what is missing."""
    chosen = resolved(experiment)
    engine = _training_engine(training)
    plans = plans_for(chosen)
    images = None if training.cache is None else Path(training.cache)
    opened = _open_store(training.store, images)
    with progress.busy("verifying the networks in the store"):
        opened.store.verify(plan.spec(job) for plan in plans for job in plan.jobs())
    folder = open_folder(chosen, plans, opened.store)
    _note_remarks(chosen, plans, progress)
    with engine as trainer:
        for index, (part, plan) in enumerate(zip(chosen.parts, plans, strict=True), 1):
            of_all = f"task {index} of {len(plans)}, " if len(plans) > 1 else ""
            _train_part(part, plan, opened, images, trainer, progress, title=f"{of_all}{plan.task}")
    return Trained(folder, opened)


def chosen_experiment(
    experiment: str | Path | Experiment,
    values: Mapping[str, Any],
    methods: Sequence[str] | None,
    oracle: bool,
    calibrators: Sequence[str],
    root: str | Path | None,
    weights: str | Path | None,
) -> Experiment:
    """The experiment of that name or file with values replaced."""
    given = dict(values)
    for key, value in (("root", root), ("weights", weights)):
        if value is not None:
            given[key] = str(value)
    if methods:
        given["methods"] = list(methods)
    named = experiment if isinstance(experiment, Experiment) else experiment_named(str(experiment))
    chosen = overridden(named, given)
    added = [each.name for each in METHODS if oracle and each.oracle]
    added += [row for calibrator in calibrators for row in calibrated_rows(calibrator)]
    return replace(chosen, methods=tuple(dict.fromkeys((*chosen.methods, *added))))


@dataclass(frozen=True)
class _Trainer:
    """How networks are trained: the device, and the engine's function."""

    device: str
    execute: Callable[[WorkOrder, OnEvent], None]


def _training_engine(training: Training) -> AbstractContextManager[_Trainer]:
    """The engine of that name; a cluster is connected to when there is something to train."""
    refuse_unknown("engine", [training.engine], ENGINES)
    address, cpus, gpus = training.address, training.cpus_per_network, training.gpus_per_network
    if training.engine == "ray":
        # Whether there is a GPU depends on the nodes.
        one_of("device", training.device, ("auto", "cpu", "cuda"))
        from surefoot.lab.workers.ray import Cluster
        from surefoot.predictions.ray_cluster import load_ray

        given = {} if cpus is None else {"cpus": cpus}
        cluster = Cluster(address=address, gpus=gpus, most=training.workers, **given)
        load_ray(address)  # a missing installation is reported before anything is planned
        return _on_ray(cluster, training.device)
    options = {"address": address, "cpus per network": cpus, "gpus per network": gpus}
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option} is {value!r} and the engine is 'local'; needed: the engine 'ray'")
    from surefoot.lab.workers.local import default_workers, device_named, execute

    device = device_named(training.device)
    count = training.workers or default_workers(device)
    return nullcontext(
        _Trainer(device, lambda order, on_event: execute(order, workers=count, on_event=on_event))
    )


@contextmanager
def _on_ray(cluster: "Cluster", device: str) -> Iterator[_Trainer]:
    from surefoot.lab.workers.ray import engine

    with engine(cluster) as execute:
        yield _Trainer(device, execute)


def _open_store(location: str, cache: Path | None) -> OpenedStore:
    """A store in a folder, or this machine's copy of a store at a URL."""
    if not is_url(location):
        return OpenedStore(Store(Path(location)))
    from surefoot.lab.images.cache import default_cache

    remote = Remote(location)
    with remote.marked():  # fails before the hours of training where it cannot be written to
        return OpenedStore(remote.local_copy(cache or default_cache()), location)


def _note_remarks(experiment: Experiment, plans: Sequence[Plan], progress: Progress) -> None:
    """What a user should know before the hours of training."""
    for part, plan in zip(experiment.parts, plans, strict=True):
        for reason in dict.fromkeys((*plan.remarks, *plan.skipped)):
            progress.note(f"{plan.task}: {reason}")
        if part.paper is not None and part.recipe.pretrained is None:
            progress.note(
                f"{plan.task}: without pretrained weights the networks start randomly, unlike the paper's"
            )


def _train_part(
    part: Part,
    plan: Plan,
    opened: OpenedStore,
    cache: Path | None,
    trainer: _Trainer,
    progress: Progress,
    *,
    title: str,
) -> None:
    specs = [plan.spec(job) for job in plan.jobs()]
    opened.sync(specs, progress)
    order = order_for(part, plan, store=opened.store, cache=cache, device=trainer.device, remote=opened.url)
    with progress.watch(order, title=title, done_before=len(specs) - len(order.jobs)) as on_event:
        trainer.execute(order, on_event)
    if order.jobs:
        opened.sync(specs, progress)


def run_folder(store: Store, name: str) -> Path:
    """The folder of an experiment that was run, by its name in a store or by its path."""
    folders = {folder.name: folder for folder in store.experiments()}
    if name in folders:
        return folders[name]
    if (Path(name) / PLANS).is_file():
        return Path(name)
    have = ", ".join(folders) or "none yet"
    near = did_you_mean(name, folders)
    raise InputError(f"no experiment {name!r} was run in {store.root}{near}; have: {have}")


def narrowed(
    experiment: Experiment, plans: tuple[Plan, ...], values: Mapping[str, Any], methods: Sequence[str] | None
) -> tuple[Experiment, tuple[Plan, ...]]:
    """With other metrics, resamples, methods or budget than it was run with; the networks stay the same."""
    for name in values:
        if name not in REPORT_VALUES:
            raise InputError(f"a report cannot change {name!r}; it can change: {', '.join(REPORT_VALUES)}")
    changed = overridden(experiment, {**values, **({"methods": list(methods)} if methods else {})})
    if "budget" in values:
        plans = tuple(plan.with_budget(values["budget"]) for plan in plans)
    if changed.methods == experiment.methods:
        return changed, plans
    return with_methods(changed, plans, changed.methods)
