"""Which networks each method reads in each run: enough to recompute the results without the data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from surefoot.calibrators.budget import SURPLUS
from surefoot.errors import InputError
from surefoot.lab.experiments.methods import METHODS, Method, Setup, held_out_networks, obstacle
from surefoot.lab.recipes.recipe import Recipe, Spec
from surefoot.lab.tasks.features import Encoding, encoding_from
from surefoot.lab.variants import recipe_from
from surefoot.lab.workers.jobs import Job
from surefoot.predictions.labels import LabelKind

LONGEST_NAME = 255  # bytes of a folder's name, on every usual file system


@dataclass(frozen=True)
class MethodPlan:
    """A method, the networks of each of its runs, and those trained without held-out subgroups."""

    method: Method
    runs: tuple[tuple[Spec, ...], ...]
    held_out: tuple[Spec, ...] = ()
    plain: Recipe | None = None  # of the networks from which a surplus is measured

    def reference(self, run: Sequence[Spec]) -> Spec | None:
        """The plain network from which a run's surplus is measured: that of the run's first seed."""
        return None if self.plain is None else replace(run[0], recipe=self.plain)

    def specs(self) -> Iterator[Spec]:
        """Every network that it reads."""
        for run in self.runs:
            yield from run
            if (reference := self.reference(run)) is not None:
                yield reference
        yield from self.held_out


@dataclass(frozen=True)
class Plan:
    """The networks and methods of one task."""

    task: str
    task_identity: str
    kind: LabelKind
    class_names: tuple[str, ...]
    recipe: Recipe
    methods: tuple[MethodPlan, ...]
    skipped: tuple[str, ...] = ()  # why a requested method does not apply
    encoding: Encoding | None = None  # from the rows of a table to the networks' inputs
    remarks: tuple[str, ...] = field(default=(), compare=False)  # on the task, where it was just read

    def spec(self, job: Job) -> Spec:
        """The network that a job makes."""
        return Spec(self.task, self.task_identity, job.recipe, job.seed)

    def jobs(self) -> tuple[Job, ...]:
        """Every network once, teachers before students, with what methods need to be computed from it."""
        scores: dict[Spec, dict[str, None]] = {}
        sampled: set[Spec] = set()
        for planned in self.methods:
            for spec in planned.specs():
                for needed in _with_needs(spec):
                    scores.setdefault(needed, {})
                if planned.method.novelty is not None:
                    scores[spec][planned.method.novelty] = None
                if planned.method.scales_samples:
                    sampled.add(spec)
        return tuple(
            Job(spec.recipe, spec.seed, tuple(names), spec in sampled) for spec, names in scores.items()
        )

    def with_budget(self, budget: float | str) -> "Plan":
        """With another rule for every risk-budget T."""
        methods = (
            _planned(p.method.with_budget(budget), p.runs, p.held_out, self.recipe) for p in self.methods
        )
        return replace(self, methods=tuple(methods))

    def as_dict(self) -> dict[str, Any]:
        """Plain values; a recipe is written once, however many networks have it."""
        recipes = {spec.recipe.digest: spec.recipe.as_dict() for p in self.methods for spec in p.specs()}

        def short(spec: Spec) -> dict[str, Any]:
            return {"recipe": spec.recipe.digest, "seed": spec.seed}

        return {
            "task": self.task,
            "task_identity": self.task_identity,
            "kind": str(self.kind),
            "class_names": list(self.class_names),
            "recipe": self.recipe.as_dict(),
            "recipes": recipes,
            "methods": [
                {
                    "name": planned.method.name,
                    "runs": [[short(spec) for spec in run] for run in planned.runs],
                    "held_out": [short(spec) for spec in planned.held_out],
                    **({} if planned.method.budget is None else {"budget": planned.method.budget}),
                }
                for planned in self.methods
            ],
            "skipped": list(self.skipped),
            **({} if self.encoding is None else {"features": self.encoding.as_dict()}),
        }


def plan_of(setup: Setup, methods: Sequence[Method]) -> Plan:
    """What the methods need on a task; those that do not apply are skipped, with the reason."""
    reasons = {method.name: obstacle(method, setup) for method in methods}
    planned = []
    for method in (method for method in methods if reasons[method.name] is None):
        runs = tuple(
            tuple(setup.spec(*network) for network in method.networks(setup, run))
            for run in range(method.count(setup))
        )
        folds = held_out_networks(setup, method.sharpness_aware) if method.held_out else ()
        held_out = tuple(setup.spec(*each) for each in folds)
        planned.append(_planned(method, runs, held_out, setup.recipe))
    return Plan(
        task=setup.task.name,
        task_identity=setup.task.identity,
        kind=setup.task.kind,
        class_names=setup.task.class_names,
        recipe=setup.recipe,
        methods=tuple(planned),
        skipped=tuple(reason for reason in reasons.values() if reason is not None),
        encoding=setup.task.encoding,
        remarks=setup.task.remarks[setup.task.encoding is not None :],  # the first is on the features
    )


def _planned(
    method: Method, runs: tuple[tuple[Spec, ...], ...], held_out: tuple[Spec, ...], plain: Recipe
) -> MethodPlan:
    return MethodPlan(method, runs, held_out, plain if method.budget == SURPLUS else None)


def plan_from(document: Mapping[str, Any]) -> Plan:
    """The plan that `as_dict` gave."""
    from surefoot.predictions.validate import check_class_names

    try:
        recipes = {digest: recipe_from(values) for digest, values in document["recipes"].items()}
        texts = (document["task"], document["task_identity"], *document["class_names"], *document["skipped"])
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("text in the task, its classes or what is skipped")
        if any(len(part.encode("utf-8", "replace")) > LONGEST_NAME for part in document["task"].split("/")):
            raise TypeError("name of the task, which is too long for a folder")
        check_class_names(document["class_names"])

        def spec(short: Mapping[str, Any]) -> Spec:
            seed = int(short["seed"])
            return Spec(document["task"], document["task_identity"], recipes[short["recipe"]], seed)

        plain = recipe_from(document["recipe"])
        methods = tuple(
            _planned(
                METHODS.named(each["name"]).with_budget(each.get("budget")),
                tuple(tuple(spec(short) for short in run) for run in each["runs"]),
                tuple(spec(short) for short in each["held_out"]),
                plain,
            )
            for each in document["methods"]
        )
        if not all(run for planned in methods for run in planned.runs):
            raise TypeError("networks of a run")
        return Plan(
            document["task"],
            document["task_identity"],
            LabelKind(document["kind"]),
            tuple(document["class_names"]),
            plain,
            methods,
            tuple(document["skipped"]),
            encoding_from(document["features"]) if "features" in document else None,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"not the plan of an experiment: missing or wrong {error}") from error


def replanned(plan: Plan, methods: Sequence[Method]) -> tuple[Plan, tuple[str, ...]]:
    """The plan for other methods that read the same networks, and the names of those it has none for."""
    known = {planned.method.name: planned for planned in plan.methods}
    planned, without = [], []
    for method in methods:
        same = [
            p for p in plan.methods if p.method.network_kind == method.network_kind and not method.held_out
        ]
        if method.name in known:
            planned.append(known[method.name])
        elif same:
            planned.append(_planned(method, same[0].runs, (), plan.recipe))
        else:
            without.append(method.name)
    return replace(plan, methods=tuple(planned)), tuple(without)


def _with_needs(spec: Spec) -> Iterator[Spec]:
    for teacher in spec.needs():
        yield from _with_needs(teacher)
    yield spec
