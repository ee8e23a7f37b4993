"""The rows of the paper's table and a few beyond it: which networks a method reads, and what it fits."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from surefoot.calibrators import Calibration
from surefoot.calibrators.novelty import fit_novelty_scaling
from surefoot.calibrators.temperature import (
    fit_budget_temperature,
    fit_member_temperatures,
    fit_temperature,
    fit_temperature_at_least_one,
)
from surefoot.predictions.predictions import Predictions
from surefoot.recipes.recipe import Recipe, Spec, Teachers
from surefoot.recipes.variants import Averaged, Bayesian, Distilled, HeldOut
from surefoot.registry import Registry
from surefoot.tasks.task import Split, Task
from surefoot.training.folds import NEVER, deal_groups

FOLDS = 5
UNLABELLED_SHARE = 0.25  # of G to F-train in an epoch


@dataclass(frozen=True, eq=False)
class Setup:
    """What an experiment gives every method."""

    task: Task
    recipe: Recipe  # of a plain network; the others' are made from it
    members: int
    runs: int
    folds: int = FOLDS
    ensembles: int = 1  # at least

    @property
    def networks(self) -> int:
        """Plain networks trained: each is a run of the single ones, or a member of an ensemble, or both."""
        return max(self.ensembles * self.members, self.runs)

    def spec(self, recipe: Recipe, seed: int) -> Spec:
        """The network of that recipe and seed."""
        return Spec(self.task.name, self.task.identity, recipe, seed)

    def teachers(self, ensemble: int = 0) -> Teachers:
        """The members of an ensemble; no two ensembles share one."""
        first = ensemble * self.members
        return Teachers(self.recipe, tuple(range(first, first + self.members)))


@dataclass(frozen=True, eq=False)
class FitData:
    """All that a method may fit on: validation, and held-out familiar subgroups. Nothing it is tested on."""

    val: Predictions
    held_out: Predictions | None = None


Networks = Callable[[Setup, int], tuple[tuple[Recipe, int], ...]]  # (recipe, seed) of each, for a run
Fit = Callable[[FitData], Calibration]


def _plain(setup: Setup, run: int) -> tuple[tuple[Recipe, int], ...]:
    return ((setup.recipe, run),)


def _members(setup: Setup, run: int) -> tuple[tuple[Recipe, int], ...]:
    teachers = setup.teachers(run)
    return tuple((teachers.recipe, seed) for seed in teachers.seeds)


def _distilled(setup: Setup, run: int) -> tuple[tuple[Recipe, int], ...]:
    return ((replace(setup.recipe, variant=Distilled(teachers=setup.teachers())), run),)


def _g_distilled(setup: Setup, run: int) -> tuple[tuple[Recipe, int], ...]:
    variant = Distilled(teachers=setup.teachers(), unlabelled=UNLABELLED_SHARE)
    return ((replace(setup.recipe, variant=variant), run),)


def _bayesian(setup: Setup, run: int) -> tuple[tuple[Recipe, int], ...]:
    sampled = "network" if setup.recipe.network == "densenet161" else "head"
    return ((replace(setup.recipe, variant=Bayesian(sampled=sampled)), run),)


def _averaged(setup: Setup, run: int) -> tuple[tuple[Recipe, int], ...]:
    return ((replace(setup.recipe, variant=Averaged(teachers=setup.teachers(run))), run),)


def held_out_networks(setup: Setup) -> tuple[tuple[Recipe, int], ...]:
    """A network per fold of familiar subgroups, or of clusters of the first network's features."""
    folds, used = _named_folds(setup)
    teachers = None
    if len(used) < 2:
        folds, used, teachers = setup.folds, tuple(range(setup.folds)), Teachers(setup.recipe, (0,))
    return tuple(
        (replace(setup.recipe, variant=HeldOut(fold=fold, folds=folds, teachers=teachers)), 0)
        for fold in used
    )


def _named_folds(setup: Setup) -> tuple[int, tuple[int, ...]]:
    """How many folds the task's own subgroups make, and which of them hold any."""
    parts = [setup.task.splits[split] for split in (Split.TRAIN, Split.VAL)]
    named = [part.groups for part in parts if part.groups is not None]
    if len(named) < len(parts):
        return 0, ()
    groups, labels = np.concatenate(named), np.concatenate([part.labels for part in parts])
    folds = min(setup.folds, len(np.unique(groups)))
    if folds < 2:
        return 0, ()
    trained = np.arange(len(labels)) < len(parts[0])
    fold = deal_groups(groups, labels, trained, folds, setup.task.kind)
    return folds, tuple(sorted(set(fold.tolist()) - {NEVER}))


def _on_val(fit: Callable[[Predictions], Calibration]) -> Fit:
    return lambda shown: fit(shown.val)


def _on_held_out(shown: FitData) -> Calibration:
    assert shown.held_out is not None
    return fit_temperature(shown.held_out)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A row of the table."""

    name: str
    title: str
    networks: Networks
    is_ensemble: bool = False  # reads several networks at once; else each run is a network of its own
    fit: Fit | None = None  # None: the networks' probabilities as they are
    novelty: str | None = None  # the score that `fit` needs
    held_out: bool = False  # whether `fit` needs held-out subgroups
    paper: str | None = None  # the row's name in the paper's table
    variance_from: str | None = None  # run once: the method whose runs' variance the paper takes for its own
    not_in_paper: bool = False  # not in the paper
    oracle: bool = False  # fitted on what it is tested on
    reference: str
    page: str  # of docs/methods
    formula: str
    training: str  # the cost, in trainings of one network
    inference: str  # in passes of one network

    @property
    def origin(self) -> str:
        """Whether it is of the paper, beyond it, or cheats."""
        if self.oracle:
            return "cheating: tuned on the test sets"
        return "beyond the paper" if self.not_in_paper else "the paper"

    @property
    def fitted_on(self) -> str:
        """What it learns its calibration from, in words."""
        if self.fit is None:
            return "nothing: the probabilities as they are"
        if self.oracle:
            return "both test sets, which is cheating"
        return (
            "familiar subgroups held out of training"
            if self.held_out
            else "validation data, which are familiar"
        )

    def count(self, setup: Setup) -> int:
        """How many runs there are."""
        return setup.networks // setup.members if self.is_ensemble else setup.runs


ODIN, KNN, ENERGY, MAX_PROBABILITY = "odin", "knn", "energy", "max-probability"

PAPER = "Li & Hoiem, CVPR 2020"
GUO = "Guo et al., ICML 2017"
LAKSHMINARAYANAN = "Lakshminarayanan et al., NeurIPS 2017"
HINTON = "Hinton et al., 2015"
KENDALL = "Kendall & Gal, NeurIPS 2017"
WORTSMAN = "Wortsman et al., ICML 2022"
SUN = "Sun et al., ICML 2022, for the score"
LIU = "Liu et al., NeurIPS 2020, for the score"
HENDRYCKS = "Hendrycks & Gimpel, ICLR 2017, for the score"
OURS = "this package"

# fmt: off
METHODS: Registry[Method] = Registry("method", (
    Method(name="single", title="Single", paper="Single Model", networks=_plain,
           reference=PAPER, page="single",
           formula="softmax(z)", training="1", inference="1"),
    Method(name="single-t", title="Single + T", paper="Single + T-scaling", networks=_plain,
           fit=_on_val(fit_temperature),
           reference=GUO, page="temperature-scaling",
           formula="softmax(z / T), T = argmin NLL on val", training="1", inference="1"),
    Method(name="ensemble", title="Ensemble", paper="Ensemble", networks=_members, is_ensemble=True,
           variance_from="single",
           reference=LAKSHMINARAYANAN, page="ensemble",
           formula="mean_m softmax(z_m)", training="M", inference="M"),
    Method(name="ensemble-of-t", title="Ensemble of T-scaled", paper="Ensemble of T-scaled models",
           networks=_members, is_ensemble=True, fit=_on_val(fit_member_temperatures),
           variance_from="single-t",
           reference=PAPER, page="ensemble",
           formula="mean_m softmax(z_m / T_m)", training="M", inference="M"),
    Method(name="t-of-ensemble", title="T-scaled ensemble", networks=_members, is_ensemble=True,
           fit=_on_val(fit_temperature), variance_from="single-t",
           reference=GUO, page="ensemble",
           formula="softmax(log(mean_m softmax(z_m)) / T)", training="M", inference="M"),
    Method(name="distill", title="Distill", paper="Distill", networks=_distilled,
           reference=HINTON, page="distillation",
           formula="taught by the ensemble on F-train", training="M + 1", inference="1"),
    Method(name="distill-t", title="Distill + T", paper="Distill + T-scaling", networks=_distilled,
           fit=_on_val(fit_temperature_at_least_one),
           reference=PAPER, page="distillation",
           formula="distill, then T if T >= 1", training="M + 1", inference="1"),
    Method(name="g-distill", title="G-distill", paper="G-distill", networks=_g_distilled,
           reference=PAPER, page="distillation",
           formula="taught by the ensemble on F-train and on G", training="M + 1", inference="1"),
    Method(name="g-distill-t", title="G-distill + T", paper="G-distill + T-scaling",
           networks=_g_distilled, fit=_on_val(fit_temperature_at_least_one),
           reference=PAPER, page="distillation",
           formula="G-distill, then T if T >= 1", training="M + 1", inference="1"),
    Method(name="novelty", title="Novelty scaling (ODIN)", paper="Novelty scaling", networks=_plain,
           fit=_on_val(fit_novelty_scaling), novelty=ODIN,
           reference=PAPER, page="novelty-scaling",
           formula="softmax(z / (T0 + T1 novelty(x)))", training="1", inference="2 and a gradient"),
    Method(name="bayesian", title="Bayesian", paper="Bayesian", networks=_bayesian,
           reference=KENDALL, page="bayesian",
           formula="mean_s softmax(z_s), z_s ~ dropout and N(mean, variance)", training="1",
           inference="1 and samples of the head"),
    Method(name="bayesian-t", title="Bayesian + T", paper="Bayesian + T-scaling", networks=_bayesian,
           fit=_on_val(fit_temperature),
           reference=PAPER, page="bayesian",
           formula="softmax(log(mean_s softmax(z_s)) / T)", training="1",
           inference="1 and samples of the head"),
    Method(name="budget-t", title="Single + risk-budget T", networks=_plain,
           fit=_on_val(fit_budget_temperature), not_in_paper=True,
           reference=OURS, page="risk-budget-temperature",
           formula="the largest T with NLL_val(T) <= 1.02 min NLL_val", training="1", inference="1"),
    Method(name="held-out-t", title="Single + held-out-group T", networks=_plain, fit=_on_held_out,
           held_out=True, not_in_paper=True,
           reference=OURS, page="held-out-group-temperature",
           formula="T = argmin NLL on familiar subgroups left out of training", training="1 + folds",
           inference="1"),
    Method(name="averaged-t", title="Weight-averaged + T", networks=_averaged, is_ensemble=True,
           fit=_on_val(fit_temperature), not_in_paper=True,
           reference=WORTSMAN, page="weight-averaging",
           formula="the network of the members' mean weights, then T", training="M", inference="1"),
    Method(name="ensemble-budget-t", title="Ensemble + risk-budget T", networks=_members, is_ensemble=True,
           fit=_on_val(fit_budget_temperature), not_in_paper=True, variance_from="budget-t",
           reference=OURS, page="risk-budget-temperature",
           formula="as risk-budget T, on the ensemble", training="M", inference="M"),
    Method(name="novelty-knn", title="Novelty scaling (neighbours)", networks=_plain,
           fit=_on_val(fit_novelty_scaling), novelty=KNN, not_in_paper=True,
           reference=SUN, page="novelty-scaling",
           formula="as novelty scaling; distance to the k-th training feature", training="1",
           inference="1 and a search"),
    Method(name="novelty-energy", title="Novelty scaling (energy)", networks=_plain,
           fit=_on_val(fit_novelty_scaling), novelty=ENERGY, not_in_paper=True,
           reference=LIU, page="novelty-scaling",
           formula="as novelty scaling; -logsumexp(z)", training="1", inference="1"),
    Method(name="novelty-max-probability", title="Novelty scaling (top probability)", networks=_plain,
           fit=_on_val(fit_novelty_scaling), novelty=MAX_PROBABILITY, not_in_paper=True,
           reference=HENDRYCKS, page="novelty-scaling",
           formula="as novelty scaling; 1 - max softmax(z)", training="1", inference="1"),
    Method(name="oracle-t", title="Single + T", networks=_plain, fit=_on_val(fit_temperature),
           oracle=True,
           reference=PAPER, page="oracle",
           formula="T = argmin NLL on both test sets", training="1", inference="1"),
    Method(name="oracle-ensemble-t", title="T-scaled ensemble", networks=_members, is_ensemble=True,
           fit=_on_val(fit_temperature), oracle=True, variance_from="oracle-t",
           reference=PAPER, page="oracle",
           formula="T = argmin NLL on both test sets", training="M", inference="M"),
    Method(name="oracle-novelty", title="Novelty scaling (ODIN)", networks=_plain,
           fit=_on_val(fit_novelty_scaling), novelty=ODIN, oracle=True,
           reference=PAPER, page="oracle",
           formula="T0, T1 = argmin NLL on both test sets", training="1", inference="2 and a gradient"),
))
# fmt: on


def obstacle(method: Method, setup: Setup) -> str | None:
    """Why a method does not apply to a task, in a sentence; None where it does."""
    if method.networks is _g_distilled and Split.UNLABELLED not in setup.task.splits:
        return f"{method.title} needs unlabelled samples, and task {setup.task.name!r} has none"
    if method.is_ensemble and setup.members < 2:
        return f"{method.title} needs two members or more, and there is {setup.members}"
    if method.oracle and Split.TEST_UNFAMILIAR not in setup.task.splits:
        return f"{method.title} is tuned on unfamiliar samples, and task {setup.task.name!r} has none"
    if method.held_out and _gives_logits_only(setup.recipe) and len(_named_folds(setup)[1]) < 2:
        return f"{method.title} needs subgroups, or features to make them from, and there are neither"
    if _gives_logits_only(setup.recipe) and (method.networks is _bayesian or method.novelty == KNN):
        return f"{method.title} needs the features, and {setup.recipe.network!r} gives logits only"
    return None


def _gives_logits_only(recipe: Recipe) -> bool:
    """Whether the network is a user's own function, of whose parts we know nothing."""
    return ":" in recipe.network and not recipe.network.startswith(("timm:", "torchvision:"))
