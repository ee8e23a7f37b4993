"""From logits and labels to outcomes; the average over ensemble members in log space."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from threading import local
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from surefoot import kernels
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.on_device import DeviceFacts, on_host, started_copy
from surefoot.predictions.outcomes import DECIMALS, Array, Bools, Index, Outcomes
from surefoot.predictions.parts import LOG_CLIP, SURE, Part, by_name, name_of, wrong
from surefoot.runtime import in_parallel


def average_softmax(logits: Tensor) -> Tensor:
    """Log of the members' mean softmax probability.

    log p(k) = logsumexp_m(log softmax(z_m)_k) - log M, for logits of shape (members, n, classes).

    >>> average_softmax(torch.tensor([[[0.0, 0.0]], [[0.0, 0.0]]])).exp()
    tensor([[0.5000, 0.5000]])
    """
    if len(logits) == 1:
        return logits[0]
    return torch.logsumexp(F.log_softmax(logits, dim=-1), dim=0) - math.log(len(logits))


def average_sigmoid(logits: Tensor) -> Tensor:
    """Log odds of the members' mean sigmoid probability.

    >>> average_sigmoid(torch.tensor([[[3.0]], [[-3.0]]]))
    tensor([[0.]])
    """
    if len(logits) == 1:
        return logits[0]
    log_p = torch.logsumexp(F.logsigmoid(logits), dim=0)
    log_not_p = torch.logsumexp(F.logsigmoid(-logits), dim=0)
    return log_p - log_not_p


def average_members(logits: Tensor, kind: LabelKind) -> Tensor:
    """The average of that kind: log probabilities for one label, log odds for many."""
    return (average_softmax if kind is LabelKind.ONE_LABEL else average_sigmoid)(logits)


NUMBERS_AT_ONCE = 300_000  # logits converted to float64 at a time, so that they stay in the cache
NUMBERS_ON_A_GPU = 2**26  # the same on a GPU, where starting an operation takes longer than most chunks would
FEW_CLASSES = 32  # up to so many, logits are copied column by column: short sums along rows are slow
MANY_CLASSES = 100  # above so many, torch's own softmax is as fast
HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"


def one_label_outcomes(logits: Tensor, labels: Tensor) -> Outcomes:
    """Outcomes under softmax, of logits in the memory of the host; unknown labels (negative) are left out."""
    rows = _labelled(labels)
    labels = (labels if rows is None else labels[rows]).unsqueeze(1)
    softmax = _Softmax(logits, labels, rows)
    return Outcomes(
        log_p_true=lambda: softmax.facts[0][0],
        confidence=lambda: softmax.facts[0][1],
        squared_error=lambda: softmax.facts[0][2],
        entropy=lambda: softmax.facts[0][3],
        correct=lambda: softmax.correct,
        row=partial(np.arange, len(labels)) if rows is None else rows.numpy(),
        blocks=(slice(0, len(labels)),),
        known_sums=softmax.sums_of,
    )


def outcomes_on_device(facts: DeviceFacts, labels: Tensor | None) -> Outcomes:
    """Outcomes from the facts of all rows; labels are needed where some are unknown.

    A fact is copied to the host when a metric reads it there.
    """
    rows = None if labels is None else _labelled(labels)
    known = facts if rows is None else facts.take(rows)
    return Outcomes(
        log_p_true=lambda: on_host(known.log_p_true),
        squared_error=lambda: on_host(known.squared_error),
        confidence=lambda: on_host(known.confidence),
        correct=lambda: on_host(known.correct),
        entropy=lambda: on_host(known.entropy),
        row=partial(np.arange, len(facts.correct)) if rows is None else on_host(rows),
        blocks=(slice(0, len(known.correct)),),
        on_device=known if len(known.correct) else None,
        known_sums=known.sums_of if len(known.correct) else None,
    )


def facts_on_device(logits: Tensor, labels: Tensor) -> DeviceFacts:
    """The facts of all rows, operation by operation; where a label is unknown, as if it were 0."""
    return DeviceFacts.of(*_read_facts(logits, labels.clamp(min=0).unsqueeze(1), None))


def _labelled(labels: Tensor) -> Tensor | None:
    """The rows with a known label; None where all have one."""
    return torch.nonzero(labels >= 0).squeeze(1) if lowest(labels) < 0 else None


@dataclass(frozen=True, eq=False)
class _Softmax:
    """Some labelled rows; their logits are read when a metric first needs a fact."""

    logits: Tensor  # (members, n, classes)
    labels: Tensor  # (rows, 1)
    rows: Tensor | None = None  # where the labels are; None is everywhere

    @cached_property
    def facts(self) -> tuple[Array, Bools, dict[object, float]]:
        """(4, rows): log p(true), confidence, squared error, entropy; what is correct; and known sums."""
        if self._for_kernels is not None:
            facts, correct, sums = kernels.softmax_facts(*self._for_kernels, (*LOG_CLIP, SURE))
            return facts, correct, by_name(sums)
        of_rows, is_correct = _read_facts(self.logits, self.labels, self.rows)
        return of_rows.numpy(), is_correct.numpy(), {}

    def sums_of(self, *parts: Part) -> list[float] | None:
        """Sums over rows of functions of the facts, where known; errors alone take less than all facts."""
        names = [name_of(part) for part in parts]
        if self._for_kernels is None or (names == [wrong] and "facts" not in self.__dict__):
            return None
        known = self.facts[2]
        return [known[name] for name in names] if known.keys() >= set(names) else None

    @cached_property
    def correct(self) -> Bools:
        """Whether a row's label is its top class, which takes less than all facts."""
        if self._for_kernels is None or "facts" in self.__dict__:
            return self.facts[1]
        return kernels.top_is_label(*self._for_kernels)

    @property
    def _for_kernels(self) -> tuple[NDArray[np.floating], Index, Index | None] | None:
        """Logits, labels and rows, if there is compiled code for them."""
        logits = self.logits[0].numpy()
        if len(self.logits) > 1 or not kernels.fits(logits):
            return None
        rows = None if self.rows is None else self.rows.numpy()
        return logits, np.ascontiguousarray(self.labels[:, 0].numpy()), rows


def _read_facts(logits: Tensor, labels: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """The facts of `_Softmax`, operation by operation; the entropy is log(total) - sum p (z - top)."""
    facts = torch.empty(4, len(labels), dtype=torch.float64, device=logits.device)
    correct = torch.empty(len(labels), dtype=torch.bool, device=logits.device)

    def read(part: slice, chunk: Tensor, unnormalised: Tensor) -> None:
        label = labels[part]
        below_top = chunk.sub_(chunk.amax(dim=1, keepdim=True))
        correct[part] = below_top.argmax(dim=1) == label[:, 0]
        true = below_top.gather(1, label).squeeze(1)
        total = exp_into(unnormalised, below_top).sum(dim=1)
        log_total = total.log()
        facts[0, part] = true - log_total
        facts[1, part] = torch.round(1 / total, decimals=DECIMALS)
        facts[3, part] = log_total - below_top.mul_(unnormalised).sum(dim=1) / total
        # The true class is set to 0, so that 1 - p(true) is a sum and not a difference of near equals.
        others = unnormalised.scatter_(1, label, 0.0).sum(dim=1)
        squares = unnormalised.square_().sum(dim=1)
        facts[2, part] = (others.square_() + squares) / total.square_() / chunk.shape[1]

    map_chunks(logits, average_softmax, read, rows)
    return facts, correct


def can_fuse(logits: Tensor) -> bool:
    """Whether these logits (members, n, classes) are on a GPU, and can be read there by one operation."""
    if logits.device.type != "cuda":
        return False
    from surefoot.predictions.fused import fits

    return fits(logits)


def fused_facts(logits: Tensor, labels: Tensor) -> tuple[DeviceFacts, list[float]]:
    """The facts of all rows in one reading, and the lowest logit and label, and the highest."""
    from surefoot.predictions.fused import softmax_facts, totals

    facts, correct, keys, extremes = softmax_facts(logits, labels)
    copied = started_copy(totals(facts, correct, extremes, labels))
    known = DeviceFacts(facts, correct, keys)
    _ = known.ranked  # started now, it takes none of the host's time: the host would be waiting
    parts = copied()
    ranges = [*parts[:2].min(axis=1).tolist(), *parts[2:4].max(axis=1).tolist()]
    known.sums.update(by_name(parts[4:].sum(axis=1)))
    return known, ranges


def extremes_of(logits: Tensor) -> tuple[float, float]:
    """The lowest and the highest logit, in the memory of the host."""
    if logits.is_contiguous() and kernels.reads(logits.numpy()):
        return kernels.extremes(logits.numpy())
    parts = spans(logits.shape[1], max(1, NUMBERS_AT_ONCE // (len(logits) * logits.shape[2])))
    ends = in_parallel(lambda part: torch.aminmax(logits[:, part]), parts, numbers=logits.numel())
    return min(float(low) for low, _ in ends), max(float(high) for _, high in ends)


def lowest(labels: Tensor) -> int:
    """The lowest label, on one thread."""
    return int(labels.min() if labels.is_cuda else labels.numpy().min())


def exp_into(result: Tensor, values: Tensor) -> Tensor:
    """e to the values: with AVX-512 numpy takes half of torch's time, without it more."""
    if values.is_cuda or not HAS_AVX512:
        return torch.exp(values, out=result)
    np.exp(values.numpy(), out=result.numpy())
    return result


def softmax(logits: Tensor) -> Tensor:
    """Probabilities (n, classes) in float64 of logits (n, classes).

    >>> softmax(torch.tensor([[0.0, 0.0], [800.0, -800.0]]))
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000]], dtype=torch.float64)
    """
    if logits.device.type != "cpu" or logits.shape[1] > MANY_CLASSES:
        return logits.to(torch.float64).softmax(dim=1)
    result = torch.empty(logits.shape, dtype=torch.float64)
    if logits.shape[1] == 2:
        _write_two(logits.detach().numpy(), result.numpy())
        return result

    def write(part: slice, chunk: Tensor, _buffer: Tensor) -> None:
        exp_into(chunk, chunk.sub_(chunk.amax(dim=1, keepdim=True)))
        torch.div(chunk, chunk.sum(dim=1, keepdim=True), out=result[part])

    map_chunks(logits.detach().unsqueeze(0), average_softmax, write)
    return result


def _write_two(logits: NDArray[np.floating], result: Array) -> None:
    """The softmax of two classes, from one exponential; the same numbers as by the sum of two."""

    def write(part: slice) -> None:
        difference = np.subtract(logits[part, 1], logits[part, 0], dtype=np.float64)
        small = np.negative(np.abs(difference))
        np.exp(small, out=small)
        total = 1 + small
        small /= total
        large = np.divide(1, total, out=total)
        is_first = difference < 0
        result[part, 0], result[part, 1] = np.where(is_first, large, small), np.where(is_first, small, large)

    in_parallel(write, spans(len(result), NUMBERS_AT_ONCE // 2), numbers=result.size)


def many_label_outcomes(logits: Tensor, labels: Tensor) -> Outcomes:
    """Outcomes under sigmoid, a block per class; ignored labels (negative) are left out."""
    device, (_, n, classes) = logits.device, logits.shape
    log_odds = torch.empty(classes, n, dtype=torch.float64, device=device)

    def transpose(part: slice, chunk: Tensor, _buffer: Tensor) -> Tensor:
        log_odds[:, part] = chunk.T
        return (labels[part] >= 0).sum(dim=0)

    known_labels = torch.stack(map_chunks(logits, average_sigmoid, transpose)).sum(dim=0)
    ends = torch.cumsum(known_labels, 0).tolist()
    blocks = tuple(slice(start, end) for start, end in zip([0, *ends], ends, strict=False))
    facts = torch.empty(5, ends[-1], dtype=torch.float64, device=device)
    positive = torch.empty(ends[-1], dtype=torch.bool, device=device)
    row = torch.empty(ends[-1], dtype=torch.int64, device=device)

    def score_class(number: int) -> None:
        block, label = blocks[number], labels[:, number]
        row[block] = known = torch.nonzero(label >= 0).squeeze(1)
        positive[block] = label[known] == 1
        score = log_odds[number][known]
        # Signed towards the truth, every fact is a function of one number.
        towards_truth, magnitude = torch.where(positive[block], score, -score), score.abs()
        facts[0, block] = F.logsigmoid(towards_truth)
        facts[1, block] = torch.sigmoid(-towards_truth).square_()
        facts[2, block] = torch.sigmoid(magnitude)
        facts[3, block] = score
        facts[4, block] = F.softplus(-magnitude) + magnitude * torch.sigmoid(-magnitude)

    in_parallel(score_class, range(classes), numbers=n)
    log_p_true, squared_error, confidence, scores, entropy = facts.cpu().numpy()
    is_positive = positive.cpu().numpy()
    return Outcomes(
        log_p_true=log_p_true,
        squared_error=squared_error,
        confidence=confidence.round(DECIMALS),
        correct=(scores >= 0) == is_positive,  # a probability of exactly one half predicts 'present'
        entropy=entropy,
        row=row.cpu().numpy(),
        blocks=blocks,
        score=scores,
        positive=is_positive,
    )


Result = TypeVar("Result")


def map_chunks(
    logits: Tensor,
    average: Callable[[Tensor], Tensor],
    work: Callable[[slice, Tensor, Tensor], Result],
    rows: Tensor | None = None,
) -> list[Result]:
    """`work` of some logits at a time, of all rows or those numbered: place, averages in float64, scratch.

    Several chunks are worked on at once, each on one thread; the results are in the order of the rows. The
    averages and the scratch space, which is as large, may be overwritten; the next chunk overwrites them.
    """
    members, n, classes = logits.shape
    rows_in_all = n if rows is None else len(rows)

    def load(part: slice) -> Result:
        space = _scratch(members + 1, part.stop - part.start, classes, logits.device)
        space[:-1].copy_(logits[:, part if rows is None else rows[part]])
        return work(part, average(space[:-1]), space[-1])

    parts = spans(rows_in_all, _rows_at_once(logits))
    if logits.device.type != "cpu":
        return [load(part) for part in parts]
    return in_parallel(load, parts, numbers=members * rows_in_all * classes)


def _rows_at_once(logits: Tensor) -> int:
    """The rows of a chunk; there are a multiple of four chunks, which two or four threads share evenly."""
    members, n, classes = logits.shape
    if logits.device.type != "cpu":
        return max(1, NUMBERS_ON_A_GPU // (members * classes))
    most = max(1, NUMBERS_AT_ONCE // (members * classes))
    return max(1, -(-n // (4 * -(-n // (4 * most))))) if n > most else most


def spans(n: int, rows: int, *, start: int = 0) -> list[slice]:
    """0, or another start, to n in parts of so many rows."""
    return [slice(first, min(first + rows, n)) for first in range(start, n, rows)]


class _Space(local):
    """Memory of a thread, used again: the system clears what it gives, which for few classes took long."""

    def __init__(self) -> None:
        self.numbers = torch.empty(0)


_SPACE = _Space()


def _scratch(copies: int, rows: int, classes: int, device: torch.device) -> Tensor:
    """(copies, rows, classes) in float64, which may hold anything; of few classes, each is contiguous."""
    size = copies * rows * classes
    if device.type != "cpu":
        numbers = torch.empty(size, dtype=torch.float64, device=device)
    else:
        if len(_SPACE.numbers) < size:
            _SPACE.numbers = torch.empty(size, dtype=torch.float64)
        numbers = _SPACE.numbers[:size]
    if classes > FEW_CLASSES:
        return numbers.view(copies, rows, classes)
    return numbers.view(copies, classes, rows).transpose(1, 2)
