"""Teachers' outputs for random views of every sample, computed once for all their students.

A view set is one random view of each sample, with the teachers' log probabilities for it. A student trains on
one view set per epoch, in an order of its own, and on none twice: for each student alone this is the same as
views drawn independently, and ten students cost the teachers no more than one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.errors import InputError
from surefoot.io import make_folder, replacing
from surefoot.lab.training.average import average_members
from surefoot.lab.training.data import Inputs, fetched, generator
from surefoot.lab.training.predict import predict
from surefoot.predictions.labels import LabelKind

ROWS_AT_ONCE = 512


def teacher_targets(
    teachers: Sequence[nn.Module],
    inputs: Inputs,
    kind: LabelKind,
    device: torch.device,
    temperatures: Tensor | None = None,
) -> Tensor:
    """The log of the teachers' mean probability for the test views; for many labels its log odds.

    Logits are divided by the teachers' temperatures first, where there are any.
    """
    return average_members(_scaled(predict(teachers, inputs, device), temperatures), kind)


def _scaled(logits: Tensor, temperatures: Tensor | None) -> Tensor:
    """The logits of each teacher, (teachers, n, classes), divided by its own T."""
    return logits if temperatures is None else logits / temperatures.to(logits)[:, None, None]


@dataclass(frozen=True, eq=False)
class TeacherEnsemble:
    """Teachers, and the device on which they are evaluated."""

    load: Callable[[], Sequence[nn.Module]]  # called only where something is missing from the cache
    kind: LabelKind
    classes: int
    device: torch.device
    temperatures: Tensor | None = None  # (teachers,): divide their logits; None: as they are

    @cached_property
    def teachers(self) -> list[nn.Module]:
        """On the device; on a GPU in the layout and the precision in which they compute there."""
        layout: Any = {"device": self.device, "memory_format": torch.channels_last}
        teachers = [teacher.to(**layout) for teacher in self.load()]
        if self.device.type == "cuda":
            for module in (module for teacher in teachers for module in teacher.modules()):
                if isinstance(module, (nn.Conv2d, nn.Linear)):  # autocast would convert them in every step
                    module.to(torch.bfloat16)
        return teachers

    def targets(self, inputs: Inputs, draws: Tensor) -> Tensor:
        """The log of the mean probability (n, classes) for the views that these random numbers make.

        For many labels its log odds.
        """
        on_gpu = self.device.type == "cuda"
        count = math.ceil(len(inputs) / ROWS_AT_ONCE)
        size = ROWS_AT_ONCE if on_gpu else math.ceil(len(inputs) / count)  # one size is one compilation
        rows = torch.arange(count * size) % len(inputs)
        logits = _compiled_logits() if on_gpu else _logits
        parts = []
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16, enabled=on_gpu):
            for batch, raw in fetched(inputs, torch.split(rows, size), self.device):
                views = inputs.training_views(raw, batch.to(self.device), draws[:, batch.to(draws.device)])
                members = torch.stack([logits(teacher, views) for teacher in self.teachers])
                members = _scaled(members, self.temperatures)
                parts.append(average_members(members, self.kind).float())
        return torch.cat(parts)[: len(inputs)].cpu()


def _logits(teacher: nn.Module, views: Tensor) -> Tensor:
    logits: Tensor = teacher(views)
    return logits.float()


@cache
def _compiled_logits() -> Callable[[nn.Module, Tensor], Tensor]:
    """One compilation for all teachers: their weights are arguments of it."""
    return cast(Callable[[nn.Module, Tensor], Tensor], torch.compile(_logits, dynamic=False))


@dataclass(frozen=True, eq=False)
class TeacherCache:
    """The view sets of some samples, stored as files; one that is missing is computed when it is read."""

    inputs: Inputs
    folder: Path
    seed: int  # of the views
    ensemble: TeacherEnsemble

    def draws(self, view_set: int) -> Tensor:
        """The random numbers of its views: (draws, n)."""
        return self.inputs.draws(1, len(self.inputs), generator(self.seed, "page", view_set))[0]

    def targets(self, view_set: int) -> Tensor:
        """The teachers' log probabilities (n, classes)."""
        path = self.folder / f"{view_set}.npy"
        if path.exists():
            return _read(path, (len(self.inputs), self.ensemble.classes))
        targets = self.ensemble.targets(self._on_device, self.draws(view_set).to(self.ensemble.device))
        make_folder(self.folder)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, targets.numpy(), allow_pickle=False)
        return targets

    @cached_property
    def _on_device(self) -> Inputs:
        return self.inputs.on(self.ensemble.device)


class SharedViews:
    """The views of a student's epochs: view sets in an order of its own; `targets` are set to theirs."""

    def __init__(self, caches: Sequence[TeacherCache], epochs: int, seed: int, targets: Tensor) -> None:
        self.caches, self.targets = caches, targets
        self.order = torch.randperm(epochs, generator=generator(seed, "pages")).tolist()

    def begin(self, epoch: int, batches: Sequence[Tensor]) -> Tensor:
        """The random numbers of each batch's views: (steps, draws, batch)."""
        view_set = self.order[epoch]
        self.targets.copy_(torch.cat([cache.targets(view_set) for cache in self.caches]))
        draws = torch.cat([cache.draws(view_set) for cache in self.caches], dim=1)
        return torch.stack([draws[:, rows] for rows in batches])


def _read(path: Path, shape: tuple[int, int]) -> Tensor:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        raise _damaged(path, "it is not a table of float32")
    if array.shape != shape:
        raise _damaged(path, f"it is {' x '.join(map(str, array.shape))}; needed: {shape[0]} x {shape[1]}")
    if np.isnan(array).any():
        raise _damaged(path, "it contains NaN")
    return torch.from_numpy(array)


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(f"cannot read {path}: {reason}; remove it, and it is computed again")
