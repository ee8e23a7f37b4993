"""The rows of the paper's table and a few more: which networks a method uses, and what it fits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from surefoot.calibrators import CALIBRATORS, Calibrator
from surefoot.calibrators.budget import BUDGET, SURPLUS
from surefoot.calibrators.declaration import read_options
from surefoot.errors import InputError, refuse_unknown
from surefoot.lab.recipes.recipe import Recipe, Spec, Teachers
from surefoot.lab.tasks.task import Split, Task
from surefoot.lab.variants import Averaged, Bayesian, Distilled, Variant, recipe_from
from surefoot.lab.variants.held_out import all_folds
from surefoot.predictions.arguments import checked
from surefoot.predictions.labels import LabelKind
from surefoot.registry import Registry

if TYPE_CHECKING:
    from surefoot.calibrators import Calibration
    from surefoot.predictions.predictions import Predictions

FOLDS = 5
UNLABELLED_SHARE = 0.25  # of G to F-train in an epoch
SHARPNESS_AWARE_BUDGET: float | str = 0.02  # chosen by rotations: docs/results/protocol.md

# What a sharpness-aware recipe changes in the plain one, where an experiment does not say.
SHARPNESS_AWARE: Mapping[str, Any] = {
    "sharpness": 0.1,
    "schedule": "cosine",
    "weight_average": 0.99,
    "weight_decay": 0.0005,
    "augmentation": "strong",  # only where the plain recipe's is "inception"
}
# What it may change: both kinds of networks read the same inputs and have the same layers.
CHANGEABLE = (
    "learning_rate",
    "epochs",
    "batch",
    "momentum",
    "dropout",
    *SHARPNESS_AWARE,
    "label_smoothing",
    "feature_noise",
    "feature_dropout",
    "mixup",
    "regmixup",
)


def sharpness_aware_changes(recipe: Recipe) -> dict[str, Any]:
    """What the sharpness-aware recipe changes in a plain one, where an experiment does not say."""
    is_augmented = recipe.augmentation == "inception"
    return {name: value for name, value in SHARPNESS_AWARE.items() if is_augmented or name != "augmentation"}


def sharpness_aware_recipe(recipe: Recipe, changes: Mapping[str, Any] | None = None) -> Recipe:
    """The plain recipe with changes; None: the default ones."""
    chosen = sharpness_aware_changes(recipe) if changes is None else dict(changes)
    refuse_unknown("value of sharpness_aware", chosen, set(CHANGEABLE))
    return recipe_from(chosen, base=recipe)


def _limit(budget: float | str) -> str:
    """The NLL that a rule allows, in a formula."""
    return "the plain network's min NLL_val" if budget == SURPLUS else f"{1 + float(budget):.6g} min NLL_val"


@dataclass(frozen=True, eq=False)
class Setup:
    """What all methods of an experiment share."""

    task: Task
    recipe: Recipe  # of a plain network; those of variants differ from it by the variant
    members: int
    runs: int
    folds: int = FOLDS
    ensembles: int = 1  # at least
    changes: Mapping[str, Any] | None = None  # of the recipe, for sharpness-aware networks; None: the default

    @property
    def sharpness_aware(self) -> Recipe:
        """The recipe of a sharpness-aware network."""
        return sharpness_aware_recipe(self.recipe, self.changes)

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
    """The only data for fitting a method: validation, and held-out familiar subgroups; never test data."""

    val: "Predictions"
    held_out: "Predictions | None" = None
    reference: "Predictions | None" = None  # the plain network's, of validation data


@checked
@dataclass(frozen=True, kw_only=True)
class Method:
    """A row of the table."""

    name: str
    title: str
    is_ensemble: bool = False  # a run uses all members of an ensemble; else each run is a network of its own
    variant: Callable[[Setup, int], Variant] | None = None  # of a run's one network; None: plain networks
    sharpness_aware: bool = False  # its networks have the sharpness-aware recipe
    fit: str | None = None  # the calibrator's name; None: the networks' probabilities as they are
    budget: float | str | None = None  # of a risk-budget T; None: the calibrator's own
    options: tuple[tuple[str, Any], ...] = ()  # of the calibrator
    novelty: str | None = None  # the score that the calibrator needs
    held_out: bool = False  # fitted on held-out subgroups instead of validation data
    paper: str | None = None  # the row's name in the paper's table
    variance_from: str | None = None  # run once: the method whose runs' variance the paper takes for its own
    not_in_paper: bool = False
    oracle: bool = False  # fitted on the test data
    reference: str
    page: str  # of docs/methods
    formula: str
    training: str  # the cost, in trainings of one network
    inference: str  # in passes of one network

    @property
    def origin(self) -> str:
        """Whether it is from the paper, an addition, or an oracle."""
        if self.oracle:
            return "oracle: tuned on the test sets"
        return "not in the paper" if self.not_in_paper else "the paper"

    @property
    def fitted_on(self) -> str:
        """The data on which its calibration is fitted, in words."""
        if self.fit is None:
            return "nothing: the probabilities as they are"
        if self.oracle:
            return "both test sets (oracle: it uses their labels)"
        if self.held_out:
            return "familiar subgroups held out of training"
        return "validation data, which are familiar"

    def count(self, setup: Setup) -> int:
        """How many runs there are."""
        return setup.networks // setup.members if self.is_ensemble else setup.runs

    def own_setup(self, setup: Setup) -> Setup:
        """The setup with the recipe that its networks have, be they members, teachers or students."""
        return replace(setup, recipe=setup.sharpness_aware, changes={}) if self.sharpness_aware else setup

    def networks(self, setup: Setup, run: int) -> tuple[tuple[Recipe, int], ...]:
        """The recipe and seed of each network of a run."""
        setup = self.own_setup(setup)
        if self.variant is not None:
            return ((replace(setup.recipe, variant=self.variant(setup, run)), run),)
        seeds = setup.teachers(run).seeds if self.is_ensemble else (run,)
        return tuple((setup.recipe, seed) for seed in seeds)

    @property
    def scales_samples(self) -> bool:
        """Whether its T is inside the samples of a Bayesian network: fitted where these are in memory."""
        return self.fit == BEFORE_AVERAGING and self.variant is not None

    @property
    def network_kind(self) -> tuple[object, bool, bool]:
        """Equal for two methods whose runs use the same networks."""
        return self.variant, self.is_ensemble, self.sharpness_aware

    def with_budget(self, budget: float | str | None) -> "Method":
        """With another rule for its risk-budget T, if it has one; None: its own."""
        if self.fit != "budget" or budget is None or budget == self.budget:
            return self
        BUDGET.check(budget)
        before = BUDGET.default if self.budget is None else self.budget
        formula = self.formula.replace(_limit(before), _limit(budget))
        training = self.training.removesuffix(PLAIN_TOO)
        if self.sharpness_aware and budget == SURPLUS:
            training += PLAIN_TOO
        return replace(self, budget=budget, formula=formula, training=training)

    def calibration(self, data: FitData) -> "Calibration | None":
        """What the method fits."""
        if self.fit is None:
            return None
        assert not self.scales_samples, "the samples are not stored, but the fitted T is"
        predictions = data.held_out if self.held_out else data.val
        assert predictions is not None, "held-out predictions were not made"
        options = dict(self.options)
        if self.budget is not None:
            options |= {"budget": self.budget, "reference": data.reference}
        return CALIBRATORS.named(self.fit).fitted(predictions, **options)


def _distilled(setup: Setup, _run: int) -> Variant:
    return Distilled(teachers=setup.teachers())


def _g_distilled(setup: Setup, _run: int) -> Variant:
    return Distilled(teachers=setup.teachers(), unlabelled=UNLABELLED_SHARE)


def _bayesian(setup: Setup, _run: int) -> Variant:
    return Bayesian(sampled="network" if setup.recipe.network == "densenet161" else "head")


def _averaged(setup: Setup, run: int) -> Variant:
    return Averaged(teachers=setup.teachers(run))


BEFORE_AVERAGING = "temperature-before-averaging"
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
FORET = "Foret et al., ICLR 2021"
OURS = "this package"

CALIBRATED = "calibrators"  # their page, and that of the methods made of them
ROWS = {"temperature": ("single-t", "t-of-ensemble"), "budget": ("budget-t", "ensemble-budget-t"),
        "member-temperatures": ("ensemble-of-t",)}  # that have names of their own  # fmt: skip

PLAIN_TOO = " + 1"  # in the cost of training: the plain network that a surplus is measured from


def calibrated_rows(calibrator: str) -> tuple[str, ...]:
    """The methods that fit a calibrator on single networks and on their ensemble, by its name and options.

    >>> calibrated_rows("temperature"), calibrated_rows("histogram(bins=5)")
    (('single-t', 't-of-ensemble'), ('single-histogram(bins=5)', 'ensemble-histogram(bins=5)'))
    """
    if calibrator == "novelty":
        raise InputError("calibrator 'novelty' needs a score of each sample; allowed: the method 'novelty'")
    _with_options(calibrator)
    return ROWS.get(calibrator, (f"single-{calibrator}", f"ensemble-{calibrator}"))


def _with_options(named: str) -> tuple[Calibrator, dict[str, Any]]:
    """The calibrator and its options: `name`, or `name(option=value; option=value)`."""
    name, opening, rest = named.partition("(")
    calibrator = CALIBRATORS.named(name)
    if not opening:
        return calibrator, {}
    given = [each.partition("=") for each in rest.removesuffix(")").split(";")]
    if not rest.endswith(")") or not all(equals for _, equals, _ in given):
        raise InputError(f"calibrator is {named!r}; allowed: NAME or NAME(OPTION=VALUE; OPTION=VALUE)")
    texts = {option.strip(): value for option, _, value in given}
    return calibrator, read_options(f"option of method {name}:", texts, calibrator.options)


class Methods(Registry[Method]):
    """Also knows `single-NAME` and `ensemble-NAME` of every calibrator; no experiment has them by default."""

    def named(self, name: str) -> Method:
        """The entry of that name, or the method made of a calibrator, which may have options."""
        if all(each.name != name for each in self):
            _, dash, calibrator = str(name).partition("-")
            plain = calibrator.partition("(")[0]
            known = plain != "novelty" and any(each.name == plain for each in CALIBRATORS)
            if dash and known and name in calibrated_rows(calibrator):
                return _calibrated_by(*_with_options(calibrator), name)
        return super().named(name)


def _calibrated_by(calibrator: Calibrator, options: dict[str, Any], name: str) -> Method:
    is_ensemble, (_, _, shown) = name.startswith("ensemble-"), name.partition("-")
    count = "M" if is_ensemble else "1"
    return Method(
        name=name,
        title=f"{'Ensemble' if is_ensemble else 'Single'} + {shown}",
        is_ensemble=is_ensemble,
        fit=calibrator.name,
        options=tuple(options.items()),
        not_in_paper=True,
        variance_from=f"single-{shown}" if is_ensemble else None,
        reference=calibrator.reference,
        page=CALIBRATED,
        formula=calibrator.formula,
        training=count,
        inference=count,
    )


# fmt: off
METHODS: Registry[Method] = Methods("method", (
    Method(name="single", title="Single", paper="Single Model",
           reference=PAPER, page="single",
           formula="softmax(z)", training="1", inference="1"),
    Method(name="single-t", title="Single + T", paper="Single + T-scaling",
           fit="temperature",
           reference=GUO, page="temperature-scaling",
           formula="softmax(z / T), T = argmin NLL on val", training="1", inference="1"),
    Method(name="ensemble", title="Ensemble", paper="Ensemble", is_ensemble=True,
           variance_from="single",
           reference=LAKSHMINARAYANAN, page="ensemble",
           formula="mean_m softmax(z_m)", training="M", inference="M"),
    Method(name="ensemble-of-t", title="Ensemble of T-scaled", paper="Ensemble of T-scaled models",
           is_ensemble=True, fit="member-temperatures",
           variance_from="single-t",
           reference=PAPER, page="ensemble",
           formula="mean_m softmax(z_m / T_m)", training="M", inference="M"),
    Method(name="t-of-ensemble", title="T-scaled ensemble", is_ensemble=True,
           fit="temperature", variance_from="single-t",
           reference=GUO, page="ensemble",
           formula="softmax(log(mean_m softmax(z_m)) / T)", training="M", inference="M"),
    Method(name="distill", title="Distill", paper="Distill", variant=_distilled,
           reference=HINTON, page="distillation",
           formula="taught by the ensemble on F-train", training="M + 1", inference="1"),
    Method(name="distill-t", title="Distill + T", paper="Distill + T-scaling", variant=_distilled,
           fit="softening",
           reference=PAPER, page="distillation",
           formula="distill, then T if T >= 1", training="M + 1", inference="1"),
    Method(name="g-distill", title="G-distill", paper="G-distill", variant=_g_distilled,
           reference=PAPER, page="distillation",
           formula="taught by the ensemble on F-train and on G", training="M + 1", inference="1"),
    Method(name="g-distill-t", title="G-distill + T", paper="G-distill + T-scaling",
           variant=_g_distilled, fit="softening",
           reference=PAPER, page="distillation",
           formula="G-distill, then T if T >= 1", training="M + 1", inference="1"),
    Method(name="novelty", title="Novelty scaling (ODIN)", paper="Novelty scaling",
           fit="novelty", novelty=ODIN,
           reference=PAPER, page="novelty-scaling",
           formula="softmax(z / (T0 + T1 novelty(x)))", training="1", inference="2 and a gradient"),
    Method(name="bayesian", title="Bayesian", paper="Bayesian", variant=_bayesian,
           reference=KENDALL, page="bayesian",
           formula="mean_s softmax(z_s), z_s ~ dropout and N(mean, variance)", training="1",
           inference="1 and samples of the head"),
    Method(name="bayesian-t", title="Bayesian + T", paper="Bayesian + T-scaling", variant=_bayesian,
           fit=BEFORE_AVERAGING,
           reference=PAPER, page="bayesian",
           formula="mean_s softmax(z_s / T), T = argmin NLL on val", training="1",
           inference="1 and samples of the head"),
    Method(name="t-of-bayesian", title="T-scaled Bayesian", variant=_bayesian,
           fit="temperature", not_in_paper=True,
           reference=GUO, page="bayesian",
           formula="softmax(log(mean_s softmax(z_s)) / T)", training="1",
           inference="1 and samples of the head"),
    Method(name="budget-t", title="Single + risk-budget T",
           fit="budget", budget=BUDGET.default, not_in_paper=True,
           reference=OURS, page="risk-budget-temperature",
           formula=f"the largest T with NLL_val(T) <= {_limit(BUDGET.default)}", training="1", inference="1"),
    Method(name="held-out-t", title="Single + held-out-group T", fit="temperature",
           held_out=True, not_in_paper=True,
           reference=OURS, page="held-out-group-temperature",
           formula="T = argmin NLL on familiar subgroups left out of training", training="1 + folds",
           inference="1"),
    Method(name="averaged-t", title="Weight-averaged + T", variant=_averaged, is_ensemble=True,
           fit="temperature", not_in_paper=True,
           reference=WORTSMAN, page="weight-averaging",
           formula="the network of the members' mean weights, then T", training="M", inference="1"),
    Method(name="ensemble-budget-t", title="Ensemble + risk-budget T", is_ensemble=True,
           fit="budget", budget=BUDGET.default, not_in_paper=True, variance_from="budget-t",
           reference=OURS, page="risk-budget-temperature",
           formula="as risk-budget T, on the ensemble", training="M", inference="M"),
    Method(name="novelty-knn", title="Novelty scaling (neighbours)",
           fit="novelty", novelty=KNN, not_in_paper=True,
           reference=SUN, page="novelty-scaling",
           formula="as novelty scaling; distance to the k-th training feature", training="1",
           inference="1 and a search"),
    Method(name="novelty-energy", title="Novelty scaling (energy)",
           fit="novelty", novelty=ENERGY, not_in_paper=True,
           reference=LIU, page="novelty-scaling",
           formula="as novelty scaling; -logsumexp(z)", training="1", inference="1"),
    Method(name="novelty-max-probability", title="Novelty scaling (top probability)",
           fit="novelty", novelty=MAX_PROBABILITY, not_in_paper=True,
           reference=HENDRYCKS, page="novelty-scaling",
           formula="as novelty scaling; 1 - max softmax(z)", training="1", inference="1"),
    Method(name="sharpness-aware", title="Sharpness-aware", sharpness_aware=True, not_in_paper=True,
           reference=FORET, page="sharpness-aware",
           formula="softmax(z) of the weights w = argmin max_{|e| <= rho} loss(w + e)", training="2",
           inference="1"),
    Method(name="sharpness-aware-t", title="Sharpness-aware + T", sharpness_aware=True,
           fit="temperature", not_in_paper=True,
           reference=FORET, page="sharpness-aware",
           formula="a sharpness-aware network, then T", training="2", inference="1"),
    Method(name="sharpness-aware-budget-t", title="Sharpness-aware + risk-budget T", sharpness_aware=True,
           fit="budget", budget=BUDGET.default, not_in_paper=True,
           reference=f"{FORET}, and {OURS}", page="sharpness-aware",
           formula="a sharpness-aware network, then the largest T with NLL_val(T) <= "
                   f"{_limit(BUDGET.default)}",
           training="2", inference="1").with_budget(SHARPNESS_AWARE_BUDGET),
    Method(name="ensemble-of-sharpness-aware-t", title="Ensemble of sharpness-aware + T",
           sharpness_aware=True, is_ensemble=True, fit="member-temperatures",
           not_in_paper=True, variance_from="sharpness-aware-t",
           reference=FORET, page="sharpness-aware",
           formula="mean_m softmax(z_m / T_m), members sharpness-aware", training="2 M", inference="M"),
    Method(name="oracle-t", title="Single + T", fit="temperature",
           oracle=True,
           reference=PAPER, page="oracle",
           formula="T = argmin NLL on both test sets", training="1", inference="1"),
    Method(name="oracle-ensemble-t", title="T-scaled ensemble", is_ensemble=True,
           fit="temperature", oracle=True, variance_from="oracle-t",
           reference=PAPER, page="oracle",
           formula="T = argmin NLL on both test sets", training="M", inference="M"),
    Method(name="oracle-novelty", title="Novelty scaling (ODIN)",
           fit="novelty", novelty=ODIN, oracle=True,
           reference=PAPER, page="oracle",
           formula="T0, T1 = argmin NLL on both test sets", training="1", inference="2 and a gradient"),
))
# fmt: on


def held_out_networks(setup: Setup, sharpness_aware: bool = False) -> tuple[tuple[Recipe, int], ...]:
    """The recipe and seed of the network of each fold of familiar subgroups.

    The folds are the same for both recipes: where the task names no subgroups, they are clusters of the plain
    network's features.
    """
    recipe = setup.sharpness_aware if sharpness_aware else setup.recipe
    folds = all_folds(setup.recipe, setup.task, setup.folds)
    return tuple((replace(recipe, variant=variant), 0) for variant in folds)


def obstacle(method: Method, setup: Setup) -> str | None:
    """Why a method does not apply to a task, in a sentence; None where it does."""
    task, own = setup.task, method.own_setup(setup)
    recipe = own.recipe
    if method.is_ensemble and setup.members < 2:
        return f"{method.title} needs two members or more, and there is {setup.members}"
    if method.oracle and Split.TEST_UNFAMILIAR not in task.splits:
        return f"{method.title} is tuned on unfamiliar samples, and task {task.name!r} has none"
    fits_one_label = method.fit is not None and CALIBRATORS.named(method.fit).one_label_only
    if fits_one_label and task.kind is LabelKind.MANY_LABELS:
        return f"{method.title} needs classes that exclude each other, and task {task.name!r} has many labels"
    variants = [] if method.variant is None else [method.variant(own, 0)]
    if method.held_out:
        variants += all_folds(setup.recipe, task, setup.folds)[:1]
    for variant in variants:
        if reason := variant.obstacle(recipe, task):
            return f"{method.title} {reason}"
    if method.novelty == KNN and not recipe.gives_features:
        return f"{method.title} needs the features, and {recipe.network!r} gives logits only"
    return None
