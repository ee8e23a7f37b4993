"""From logits and labels to outcomes; the average over ensemble members in log space."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import DECIMALS, Array, Bools, Index, Outcomes


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
FEW_CLASSES = 32  # up to so many, logits are copied column by column: short sums along rows are slow
HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"


def one_label_outcomes(logits: Tensor, labels: Tensor) -> Outcomes:
    """Outcomes under softmax; rows whose label is unknown (negative) are left out."""
    rows = torch.nonzero(labels >= 0).squeeze(1) if labels.min() < 0 else None
    labels = (labels if rows is None else labels[rows]).unsqueeze(1)
    row: Index | Callable[[], Index] = partial(np.arange, len(labels)) if rows is None else rows.numpy()
    if len(logits) > 1:
        return _members_outcomes(logits, labels, rows, row)
    softmax = _Softmax(logits, labels, rows)
    return Outcomes(
        log_p_true=lambda: softmax.likelihood[0],
        squared_error=lambda: softmax.spread[0],
        confidence=lambda: softmax.likelihood[1],
        correct=softmax.is_correct,
        entropy=lambda: softmax.spread[1],
        row=row,
        blocks=(slice(0, len(labels)),),
    )


def _members_outcomes(
    logits: Tensor, labels: Tensor, rows: Tensor | None, row: Index | Callable[[], Index]
) -> Outcomes:
    """All facts at once: averaging the members is most of the work, and the average is not stored."""
    facts = np.empty((4, len(labels)))
    correct = np.empty(len(labels), dtype=bool)
    for part, averaged in chunks(logits, average_softmax, rows):
        softmax = _Softmax(averaged.unsqueeze(0), labels[part])
        facts[:2, part], facts[2:, part] = softmax.likelihood, softmax.spread
        correct[part] = softmax.is_correct()
    log_p_true, confidence, squared_error, entropy = facts
    return Outcomes(
        log_p_true=log_p_true,
        squared_error=squared_error,
        confidence=confidence,
        correct=correct,
        entropy=entropy,
        row=row,
        blocks=(slice(0, len(labels)),),
    )


@dataclass(frozen=True, eq=False)
class _Softmax:
    """One member's labelled rows; their logits are read when a metric first needs a fact."""

    logits: Tensor  # (1, n, classes)
    labels: Tensor  # (rows, 1)
    rows: Tensor | None = None  # where the labels are; None is everywhere

    @cached_property
    def likelihood(self) -> tuple[Array, Array]:
        """Log p(true), and confidence."""
        true, total = torch.empty(2, len(self.labels), 1, dtype=torch.float64)
        for part, below_top, _ in self._below_top():
            torch.gather(below_top, 1, self.labels[part], out=true[part])
            torch.sum(exp_(below_top), dim=1, keepdim=True, out=total[part])
        below, sums = true.numpy()[:, 0], total.numpy()[:, 0]
        return below - np.log(sums), (1 / sums).round(DECIMALS)

    @cached_property
    def spread(self) -> tuple[Array, Array]:
        """Squared error, and the entropy log(total) - sum p (z - top)."""
        sums = torch.empty(4, len(self.labels), dtype=torch.float64)
        for part, below_top, buffer in self._below_top():
            total, products, others, squares = sums[:, part]
            unnormalised = exp_(buffer.copy_(below_top))
            torch.sum(unnormalised, dim=1, out=total)
            torch.sum(below_top.mul_(unnormalised), dim=1, out=products)
            # The true class is set to 0, so that 1 - p(true) is a sum and not a difference of near equals.
            torch.sum(unnormalised.scatter_(1, self.labels[part], 0.0), dim=1, out=others)
            torch.sum(unnormalised.square_(), dim=1, out=squares)
        totals, products, others, squares = sums.numpy()
        squared_error = (np.square(others) + squares) / np.square(totals) / self.logits.shape[2]
        return squared_error, np.log(totals) - products / totals

    def is_correct(self) -> Bools:
        """Whether a row's label is its top class."""
        top = top_class(self.logits[0].numpy())
        return np.asarray((top if self.rows is None else top[self.rows.numpy()]) == self.labels[:, 0].numpy())

    def _below_top(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        for part, logits, buffer in chunks_with_scratch(self.logits, average_softmax, self.rows):
            yield part, logits.sub_(logits.amax(dim=1, keepdim=True)), buffer


def top_class(logits: NDArray[np.floating]) -> NDArray[np.integer]:
    """The class with the highest logit of each row; the first of them where logits are equal."""
    n, classes = logits.shape
    if classes > FEW_CLASSES:
        return np.asarray(logits.argmax(axis=1))
    result = np.zeros(n, dtype=np.uint8)
    rows = NUMBERS_AT_ONCE // classes
    for start in range(0, n, rows):
        some = slice(start, start + rows)
        top, *others = np.array(logits[some].T, order="C")
        for number, column in enumerate(others, start=1):
            np.maximum(result[some], (column > top) * np.uint8(number), out=result[some])
            np.maximum(top, column, out=top)
    return result


def exp_(values: Tensor) -> Tensor:
    """e to the values, in place: with AVX-512 numpy takes half of torch's time, without it more."""
    if not HAS_AVX512:
        return values.exp_()
    np.exp(values.numpy(), out=values.numpy())
    return values


def many_label_outcomes(logits: Tensor, labels: Tensor) -> Outcomes:
    """Outcomes under sigmoid, a block per class; ignored labels (negative) are left out."""
    log_odds = torch.empty(logits.shape[2], logits.shape[1], dtype=torch.float64)
    for part, chunk in chunks(logits, average_sigmoid):
        log_odds[:, part] = chunk.T
    ends = torch.cumsum((labels >= 0).sum(dim=0), 0).tolist()
    blocks = tuple(slice(start, end) for start, end in zip([0, *ends], ends, strict=False))
    facts = torch.empty(5, ends[-1], dtype=torch.float64)
    positive, row = torch.empty(ends[-1], dtype=torch.bool), torch.empty(ends[-1], dtype=torch.int64)
    for block, of_class, label in zip(blocks, log_odds, labels.T, strict=True):
        row[block] = known = torch.nonzero(label >= 0).squeeze(1)
        positive[block] = label[known] == 1
        score = of_class[known]
        # Signed towards the truth, every fact is a function of one number.
        towards_truth, magnitude = torch.where(positive[block], score, -score), score.abs()
        facts[0, block] = F.logsigmoid(towards_truth)
        facts[1, block] = torch.sigmoid(-towards_truth).square_()
        facts[2, block] = torch.sigmoid(magnitude)
        facts[3, block] = score
        facts[4, block] = F.softplus(-magnitude) + magnitude * torch.sigmoid(-magnitude)
    log_p_true, squared_error, confidence, scores, entropy = facts.numpy()
    return Outcomes(
        log_p_true=log_p_true,
        squared_error=squared_error,
        confidence=confidence.round(DECIMALS),
        correct=(scores >= 0) == positive.numpy(),  # a probability of exactly one half predicts 'present'
        entropy=entropy,
        row=row.numpy(),
        blocks=blocks,
        score=scores,
        positive=positive.numpy(),
    )


def chunks(
    logits: Tensor, average: Callable[[Tensor], Tensor], rows: Tensor | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """NUMBERS_AT_ONCE logits at a time, of all rows or those numbered: their place, and averages in float64.

    The logits are scratch: the next chunk overwrites them, and the caller may too.
    """
    for part, averaged, _ in chunks_with_scratch(logits, average, rows):
        yield part, averaged


def chunks_with_scratch(
    logits: Tensor, average: Callable[[Tensor], Tensor], rows: Tensor | None = None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """The same with as much scratch space again.

    Both are allocated once: small allocations are returned to the system and cleared each time, which for few
    classes took longer than the work.
    """
    members, n, classes = logits.shape
    n = n if rows is None else len(rows)
    at_once = max(1, NUMBERS_AT_ONCE // (members * classes))
    rows_at_once = min(at_once, n)
    if classes > FEW_CLASSES:
        scratch = torch.empty(members + 1, rows_at_once, classes, dtype=torch.float64)
    else:
        scratch = torch.empty(members + 1, classes, rows_at_once, dtype=torch.float64).transpose(1, 2)
    for start in range(0, n, at_once):
        part = slice(start, min(start + at_once, n))
        chosen = logits[:, part if rows is None else rows[part]]
        *_, buffer = work = scratch[:, : part.stop - start]
        yield part, average(work[:-1].copy_(chosen)), buffer
