"""What teachers say of random views of every sample, asked once for all their students.

A page is one random view of each sample and the teachers' answer to it. A student reads a page an epoch, in
an order of its own, and none twice: for each student alone this is the same as views drawn afresh, and ten
students cost the teachers no more than one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.errors import InputError
from surefoot.io import make_folder, replacing
from surefoot.predictions.labels import LabelKind
from surefoot.runtime import generator
from surefoot.training.data import Inputs, fetched
from surefoot.training.losses import placed, taught

ROWS_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class TeacherEnsemble:
    """Teachers, and the device that they are asked on."""

    load: Callable[[], Sequence[nn.Module]]  # called only if there is something to ask
    kind: LabelKind
    classes: int
    device: torch.device

    @cached_property
    def teachers(self) -> list[nn.Module]:
        """Ready to be asked."""
        return placed(self.load(), self.device)

    def ask(self, inputs: Inputs, draws: Tensor) -> Tensor:
        """Log probabilities (n, classes) of the views that these random numbers make; batches of one size."""
        on_gpu = self.device.type == "cuda"
        count = math.ceil(len(inputs) / ROWS_AT_ONCE)
        size = ROWS_AT_ONCE if on_gpu else math.ceil(len(inputs) / count)  # one size is one compilation
        rows = torch.arange(count * size) % len(inputs)
        parts = []
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16, enabled=on_gpu):
            for some, raw in fetched(inputs, torch.split(rows, size), self.device):
                views = inputs.training_views(raw, some.to(self.device), draws[:, some.to(draws.device)])
                parts.append(taught(self.teachers, views, self.kind).float())
        return torch.cat(parts)[: len(inputs)].cpu()


@dataclass(frozen=True, eq=False)
class TeacherCache:
    """The pages of some samples, kept as files; one that is missing is made when it is asked for."""

    inputs: Inputs
    folder: Path
    seed: int  # of the views
    room: TeacherEnsemble

    def draws(self, page: int) -> Tensor:
        """The random numbers of that page's views: (draws, n)."""
        return self.inputs.draws(1, len(self.inputs), generator(self.seed, "page", page))[0]

    def answers(self, page: int) -> Tensor:
        """Log probabilities (n, classes)."""
        path = self.folder / f"{page}.npy"
        if path.exists():
            return _read(path, (len(self.inputs), self.room.classes))
        said = self.room.ask(self._there, self.draws(page).to(self.room.device))
        make_folder(self.folder)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, said.numpy(), allow_pickle=False)
        return said

    @cached_property
    def _there(self) -> Inputs:
        return self.inputs.on(self.room.device)


class SharedViews:
    """The views of a student's epochs: pages in an order of its own, their answers laid out in `seen`."""

    def __init__(self, lessons: Sequence[TeacherCache], epochs: int, seed: int, seen: Tensor) -> None:
        self.lessons, self.seen = lessons, seen
        self.order = torch.randperm(epochs, generator=generator(seed, "pages")).tolist()

    def begin(self, epoch: int, batches: Sequence[Tensor]) -> Tensor:
        """The random numbers of each batch's views: (steps, draws, batch)."""
        page = self.order[epoch]
        self.seen.copy_(torch.cat([each.answers(page) for each in self.lessons]))
        draws = torch.cat([each.draws(page) for each in self.lessons], dim=1)
        return torch.stack([draws[:, rows] for rows in batches])


def _read(path: Path, shape: tuple[int, int]) -> Tensor:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(found, np.ndarray) or found.dtype != np.float32:
        raise _damaged(path, "it holds no table of float32")
    if found.shape != shape:
        raise _damaged(path, f"it is {' x '.join(map(str, found.shape))}; needed: {shape[0]} x {shape[1]}")
    if np.isnan(found).any():
        raise _damaged(path, "it holds NaN")
    return torch.from_numpy(found)


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"cannot read {path}: {why}; remove it, and it is made again")
