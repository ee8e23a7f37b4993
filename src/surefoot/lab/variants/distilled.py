"""Distilled networks: students of an ensemble."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import InputError, require_number
from surefoot.io import digest_of
from surefoot.lab.recipes.recipe import Recipe, Teachers
from surefoot.lab.tasks.task import Split, Task
from surefoot.lab.variants.base import Variant

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.lab.training.losses import Objective
    from surefoot.lab.training.teachers import TeacherCache, TeacherEnsemble
    from surefoot.lab.variants.build import Training


@dataclass(frozen=True, kw_only=True)
class Distilled(Variant):
    """A student of an ensemble (Hinton et al., 2015), also on unlabelled samples (Li & Hoiem, CVPR 2020)."""

    name: ClassVar[str] = "distilled"

    teachers: Teachers
    temperature: float = 2.0  # divides both the student's and the teachers' logits
    label_weight: float = 0.5  # of the classification loss
    unlabelled: float = 0.0  # unlabelled samples an epoch, as a share of the labelled ones
    unlabelled_folder: str = ""  # use only the unlabelled samples below this folder; empty: all
    teacher_temperatures: bool = False  # divide each teacher's logits by its own T before averaging
    separate_batches: bool = False  # labelled and unlabelled samples are two batches for BatchNorm

    def __post_init__(self) -> None:
        require_number("temperature", self.temperature, lambda v: 0 < v < math.inf, "a positive number")
        require_number("label_weight", self.label_weight, lambda v: 0 <= v < math.inf, "at least 0")
        require_number("unlabelled", self.unlabelled, lambda v: 0 <= v < math.inf, "at least 0")
        for name in ("temperature", "label_weight", "unlabelled"):
            object.__setattr__(self, name, float(getattr(self, name)))  # 2 and 2.0 are one recipe
        if not isinstance(self.unlabelled_folder, str):
            raise InputError(f"unlabelled_folder is {self.unlabelled_folder!r}; allowed: a folder's name")
        object.__setattr__(self, "unlabelled_folder", self.unlabelled_folder.strip("/"))
        for name in ("teacher_temperatures", "separate_batches"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {getattr(self, name)!r}; allowed: true or false")
        for name in ("unlabelled_folder", "separate_batches"):
            if getattr(self, name) and not self.unlabelled:
                raise InputError(
                    f"{name} is {getattr(self, name)!r} and unlabelled 0; needed: unlabelled samples"
                )

    @property
    def needs(self) -> Teachers:
        """Its teachers."""
        return self.teachers

    @property
    def unlabelled_share(self) -> float:
        """The teachers need no labels."""
        return self.unlabelled

    def unlabelled_rows(self, task: Task) -> NDArray[np.bool_] | None:
        """Which unlabelled samples are used; None: all."""
        if not self.unlabelled_folder or Split.UNLABELLED not in task.splits:
            return None
        prefix = f"{Split.UNLABELLED}/{self.unlabelled_folder}/"
        return np.char.startswith(task.splits[Split.UNLABELLED].ids, prefix)

    def obstacle(self, recipe: Recipe, task: Task) -> str | None:
        """Teachers must have seen no more than the student does, and samples of two batches are not mixed."""
        if (reason := super().obstacle(recipe, task)) is not None:
            return reason
        if (rows := self.unlabelled_rows(task)) is not None and not rows.any():
            return f"needs unlabelled samples in the folder {self.unlabelled_folder!r}, and there are none"
        if self.separate_batches and (recipe.mixup or recipe.regmixup):
            return "has separate batches, across which mixup and regmixup would mix samples; allowed: neither"
        if recipe.protocol is not self.teachers.recipe.protocol:
            return (
                f"has protocol {str(recipe.protocol)!r} and its teachers "
                f"{str(self.teachers.recipe.protocol)!r}, which train on other splits; allowed: the same"
            )
        return None

    def objective(self, training: "Training") -> "Objective":
        """The teachers' probabilities and the labels; student and teachers get the same views."""
        import torch

        from surefoot.lab.training.losses import Distillation
        from surefoot.lab.training.teachers import SharedViews, TeacherEnsemble, teacher_targets

        if (reason := self.obstacle(training.recipe, training.task)) is not None:
            raise InputError(f"a {self.name} network of task {training.task.name!r} {reason}")
        kind, device, inputs = training.task.kind, training.device, training.inputs
        load = partial(training.build.teachers, training.phase)
        temperatures = self._teacher_temperatures(training)
        views = None
        if inputs.has_random_views:
            classes = len(training.task.class_names)
            targets = torch.zeros(len(inputs), classes, device=device)
            ensemble = TeacherEnsemble(load, kind, classes, device, temperatures)
            caches = [self._cache(split, training, ensemble) for split in training.splits]
            views = SharedViews(caches, training.recipe.epochs, training.seed, targets)
        else:
            targets = teacher_targets(load(), inputs, kind, device, temperatures)
        return Distillation(
            kind,
            self.temperature,
            self.label_weight,
            targets,
            views,
            training.recipe.label_smoothing,
            self._labelled_per_batch(training),
        )

    def _teacher_temperatures(self, training: "Training") -> "Tensor | None":
        """Each teacher's T, of its validation predictions; None where teachers are not scaled."""
        if not self.teacher_temperatures:
            return None
        import torch

        from surefoot.calibrators.temperature import fit_temperature

        build = training.build
        fitted = [fit_temperature(build.store.predictions(each, Split.VAL)) for each in build.spec.needs()]
        return torch.tensor([each.temperature for each in fitted])

    def _labelled_per_batch(self, training: "Training") -> int | None:
        """How many rows of a batch are labelled, and come first; None where they are one BatchNorm batch."""
        if not self.separate_batches:
            return None
        from surefoot.lab.training.loop import Unlabelled, batch_multiple, batch_sizes

        rows = len(training.task.splits[Split.UNLABELLED])
        labelled, unlabelled = batch_sizes(
            len(training.inputs) - rows,
            training.recipe.batch,
            unlabelled=Unlabelled(rows, self.unlabelled),
            multiple=batch_multiple(training.device),
        )
        if min(labelled, unlabelled) < 2:
            raise InputError(
                f"separate batches have {labelled} labelled and {unlabelled} unlabelled samples; "
                "needed for BatchNorm: two of each (a larger batch, or more unlabelled samples)"
            )
        return labelled

    def _cache(self, split: Split, training: "Training", ensemble: "TeacherEnsemble") -> "TeacherCache":
        """The teachers' outputs for a split; other teachers or other views have another folder."""
        from surefoot.lab.training.teachers import TeacherCache
        from surefoot.runtime import derive_seed

        build, task, recipe = training.build, training.task, training.recipe
        key = {
            "task": build.spec.task_identity,  # of all unlabelled samples, so that students of some share it
            "split": str(split),
            "rows": task.splits[split].ids.tolist(),  # in their order, which the identity leaves out
            "views": [recipe.view, recipe.resize, recipe.augmentation],
            "weights": training.phase.weights,
            "teachers": [build.store.facts(teacher) for teacher in build.spec.needs()],
        }
        if recipe.feature_noise or recipe.feature_dropout:
            key["features"] = [recipe.feature_noise, recipe.feature_dropout]
        if ensemble.temperatures is not None:
            key["temperatures"] = ensemble.temperatures.tolist()
        seed = derive_seed(task.training_identity, "lessons", split)
        folder = build.store.teacher_folder(digest_of(key))
        return TeacherCache(build.context.inputs[split], folder, seed, ensemble)
