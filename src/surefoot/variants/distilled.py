"""Distilled networks: students of an ensemble."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from surefoot.errors import require_number
from surefoot.io import digest_of
from surefoot.recipes.recipe import Teachers
from surefoot.tasks.task import Split
from surefoot.variants.base import Variant

if TYPE_CHECKING:
    from surefoot.training.losses import Objective
    from surefoot.training.teachers import TeacherCache, TeacherEnsemble
    from surefoot.variants.build import Training


@dataclass(frozen=True, kw_only=True)
class Distilled(Variant):
    """A student of an ensemble (Hinton et al., 2015), also on unlabelled samples (Li & Hoiem, CVPR 2020)."""

    name: ClassVar[str] = "distilled"

    teachers: Teachers
    temperature: float = 2.0  # divides both the student's and the teachers' logits
    label_weight: float = 0.5  # of the classification loss
    unlabelled: float = 0.0  # unlabelled samples an epoch, as a share of the labelled ones

    def __post_init__(self) -> None:
        require_number("temperature", self.temperature, lambda v: 0 < v < math.inf, "a positive number")
        require_number("label_weight", self.label_weight, lambda v: 0 <= v < math.inf, "at least 0")
        require_number("unlabelled", self.unlabelled, lambda v: 0 <= v < math.inf, "at least 0")
        for name in ("temperature", "label_weight", "unlabelled"):
            object.__setattr__(self, name, float(getattr(self, name)))  # 2 and 2.0 are one recipe

    @property
    def needs(self) -> Teachers:
        """Its teachers."""
        return self.teachers

    @property
    def unlabelled_share(self) -> float:
        """The teachers need no labels."""
        return self.unlabelled

    def objective(self, training: "Training") -> "Objective":
        """The teachers' probabilities and the labels; student and teachers get the same views."""
        import torch

        from surefoot.training.losses import Distillation
        from surefoot.training.teachers import SharedViews, TeacherEnsemble, teacher_targets

        kind, device, inputs = training.task.kind, training.device, training.inputs
        smoothing = training.recipe.label_smoothing
        load = partial(training.build.teachers, training.phase)
        if not inputs.has_random_views:
            targets = teacher_targets(load(), inputs, kind, device)
            return Distillation(kind, self.temperature, self.label_weight, targets, smoothing=smoothing)
        classes = len(training.task.class_names)
        targets = torch.zeros(len(inputs), classes, device=device)
        ensemble = TeacherEnsemble(load, kind, classes, device)
        caches = [self._cache(split, training, ensemble) for split in training.splits]
        views = SharedViews(caches, training.recipe.epochs, training.seed, targets)
        return Distillation(kind, self.temperature, self.label_weight, targets, views, smoothing)

    def _cache(self, split: Split, training: "Training", ensemble: "TeacherEnsemble") -> "TeacherCache":
        """The teachers' outputs for a split; other teachers or other views have another folder."""
        from surefoot.runtime import derive_seed
        from surefoot.training.teachers import TeacherCache

        build, task, recipe = training.build, training.task, training.recipe
        key = {
            "task": task.identity,
            "split": str(split),
            "rows": task.splits[split].ids.tolist(),  # in their order, which the identity leaves out
            "views": [recipe.view, recipe.resize, recipe.augmentation],
            "weights": training.phase.weights,
            "teachers": [build.store.facts(teacher) for teacher in build.spec.needs()],
        }
        seed = derive_seed(task.training_identity, "lessons", split)
        folder = build.store.teacher_folder(digest_of(key))
        return TeacherCache(build.context.inputs[split], folder, seed, ensemble)
