"""What the metrics know of each decision, in float64.

A decision is a row (one label) or a row's answer for one class (many labels). Softmax logits are read about a
thousand rows at a time, so that the work stays in the processor's cache and nothing as large as the logits is
made a second time; many labels keep about fifty bytes for each label that is not ignored.

Confidences are rounded to twelve decimals: probabilities that were equal on paper (0.7, three votes of five)
differ in the last bit after a logarithm and an exponential, and must tie all the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from surefoot.combine import average_sigmoid, average_softmax

Array = NDArray[np.float64]
Index = NDArray[np.int64]

DECIMALS = 12
NUMBERS_AT_ONCE = 150_000  # logits held in float64 at a time, so that they stay in the second-level cache


@dataclass(frozen=True, eq=False)
class Ranking:
    """Decisions from the highest score to the lowest, with the places where a run of equal scores ends."""

    order: Index
    ends: Index

    @staticmethod
    def of(score: Array) -> "Ranking":
        order = np.argsort(-score)
        ordered = score[order]
        ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(score) else order
        return Ranking(order, ends)

    def accumulate(self, values: Array) -> Array:
        """Running sums from the top, read where a run of ties ends: nothing depends on the order of ties."""
        return np.cumsum(values[self.order])[self.ends]


@dataclass(frozen=True, eq=False)
class Curve:
    """Running sums over decisions, most confident first; knot 0 is 0 and between knots they are straight.

    Straight between knots means that each decision in a run of ties counts with the mean of its run.
    """

    mass: Array
    errors: Array
    confidence: Array

    @property
    def total(self) -> float:
        return float(self.mass[-1])


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Per decision: log probability of the truth, squared error, confidence, correctness, entropy.

    Decisions lie block by block: one block for one label, a block per class for many labels. Metrics that
    are averages over classes are means over blocks.
    """

    log_p_true: Array
    squared_error: Array  # one label: mean over classes of (p - onehot)^2; many labels: (p - y)^2
    confidence: Array
    correct: NDArray[np.bool_]
    entropy: Array
    row: Index  # which row of the predictions the decision belongs to
    blocks: tuple[slice, ...]
    score: Array | None = None  # many labels: log odds, and whether the class is truly there
    positive: NDArray[np.bool_] | None = None
    weight: Array | None = None  # whole-number counts per decision; None is one each

    @property
    def outcomes(self) -> "Outcomes":
        return self

    @property
    def total(self) -> float:
        return float(len(self.row)) if self.weight is None else float(self.weight.sum())

    def mean(self, values: Array) -> float:
        """Mean over decisions; NaN where there are none."""
        total = self.total
        if not total:
            return float("nan")
        return float(values.sum() if self.weight is None else values @ self.weight) / total

    def reweighted(self, row_weight: Array) -> "Outcomes":
        """The same decisions counted `row_weight[row]` times: a bootstrap resample without copying."""
        again = replace(self, weight=row_weight[self.row])
        # What was sorted once need not be sorted again; frozen or not, a cached property lives in __dict__.
        again.__dict__.update(
            block_rankings=self.block_rankings,
            pooled_ranking=self.pooled_ranking,
            score_rankings=self.score_rankings,
        )
        return again

    def split_by(self, member_of: Index) -> Iterator["Outcomes"]:
        """The decisions of each group in turn, where `member_of[row]` is a row's group from 0."""
        order = np.argsort(member_of[self.row], kind="stable")  # block by block within a group
        block_of = np.repeat(np.arange(len(self.blocks)), [b.stop - b.start for b in self.blocks])
        counts = np.bincount(member_of[self.row], minlength=int(member_of.max()) + 1)
        for chosen in np.split(order, np.cumsum(counts)[:-1]):
            yield self._only(chosen, np.bincount(block_of[chosen], minlength=len(self.blocks)))

    def _only(self, chosen: Index, block_sizes: Index) -> "Outcomes":
        ends = np.cumsum(block_sizes).tolist()
        return Outcomes(
            log_p_true=self.log_p_true[chosen],
            squared_error=self.squared_error[chosen],
            confidence=self.confidence[chosen],
            correct=self.correct[chosen],
            entropy=self.entropy[chosen],
            row=self.row[chosen],
            blocks=tuple(slice(start, end) for start, end in zip([0, *ends], ends, strict=False)),
            score=None if self.score is None else self.score[chosen],
            positive=None if self.positive is None else self.positive[chosen],
        )

    def counted(self, values: Array) -> Array:
        return values if self.weight is None else values * self.weight

    @cached_property
    def block_rankings(self) -> tuple[Ranking, ...]:
        return tuple(Ranking.of(self.confidence[block]) for block in self.blocks)

    @cached_property
    def pooled_ranking(self) -> Ranking:
        return self.block_rankings[0] if len(self.blocks) == 1 else Ranking.of(self.confidence)

    @cached_property
    def score_rankings(self) -> tuple[Ranking, ...]:
        if self.score is None:
            return ()
        return tuple(Ranking.of(self.score[block]) for block in self.blocks)

    @cached_property
    def block_curves(self) -> tuple[Curve, ...]:
        pairs = zip(self.blocks, self.block_rankings, strict=True)
        return tuple(self._curve(block, ranking) for block, ranking in pairs)

    @cached_property
    def pooled_curve(self) -> Curve:
        if len(self.blocks) == 1:
            return self.block_curves[0]
        return self._curve(slice(0, len(self.row)), self.pooled_ranking)

    def _curve(self, block: slice, ranking: Ranking) -> Curve:
        weight = np.ones(len(self.row[block])) if self.weight is None else self.weight[block]
        sums = (weight, weight * ~self.correct[block], weight * self.confidence[block])
        mass, errors, confidence = (np.append(0.0, ranking.accumulate(values)) for values in sums)
        return Curve(mass, errors, confidence)


class Judged(Protocol):
    """Anything the metrics can read: Predictions, or Outcomes themselves."""

    @property
    def outcomes(self) -> Outcomes: ...


def judge_one_label(logits: Tensor, labels: Tensor) -> Outcomes:
    """Outcomes under softmax; rows whose label is unknown (negative) are left out."""
    rows = torch.nonzero(labels >= 0).squeeze(1)
    if len(rows) < len(labels):
        logits, labels = logits[:, rows], labels[rows]
    facts = torch.empty(5, len(rows), dtype=torch.float64)
    for part, chunk in chunks(logits, average_softmax):
        _judge_softmax(chunk, labels[part].unsqueeze(1), facts[:, part])
    log_p_true, squared_error, confidence, correct, entropy = facts.numpy()
    return Outcomes(
        log_p_true=log_p_true,
        squared_error=squared_error,
        confidence=confidence.round(DECIMALS),
        correct=correct.astype(bool),
        entropy=entropy,
        row=rows.numpy(),
        blocks=(slice(0, len(rows)),),
    )


def _judge_softmax(logits: Tensor, label: Tensor, facts: Tensor) -> None:
    """Fill the five facts of some rows. `logits` is scratch and is overwritten."""
    top = logits.max(dim=1, keepdim=True)
    below_top = logits.sub_(top.values)
    unnormalised = below_top.exp()
    total = unnormalised.sum(dim=1)
    torch.sub(below_top.gather(1, label).squeeze(1), total.log(), out=facts[0])
    facts[2] = total.reciprocal()
    facts[3] = (top.indices == label).squeeze(1)
    # entropy = log(total) - sum p (z - top)
    facts[4] = total.log() - (unnormalised * below_top).sum(dim=1) / total
    # The true class is set to 0 first, so that 1 - p(true) is a sum and not a difference of near equals.
    unnormalised.scatter_(1, label, 0.0)
    others = unnormalised.sum(dim=1)
    squares = unnormalised.square_().sum(dim=1)
    facts[1] = (others.square() + squares) / total.square() / logits.shape[1]


def judge_many_labels(logits: Tensor, labels: Tensor) -> Outcomes:
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
        _judge_sigmoid(of_class[known], positive[block], facts[:, block])
    log_p_true, squared_error, confidence, score, entropy = facts.numpy()
    return Outcomes(
        log_p_true=log_p_true,
        squared_error=squared_error,
        confidence=confidence.round(DECIMALS),
        correct=(score >= 0) == positive.numpy(),  # a probability of exactly one half says 'present'
        entropy=entropy,
        row=row.numpy(),
        blocks=blocks,
        score=score,
        positive=positive.numpy(),
    )


def _judge_sigmoid(score: Tensor, positive: Tensor, facts: Tensor) -> None:
    """Fill the facts of one class. Signed towards the truth, every one is a function of one number."""
    towards_truth = torch.where(positive, score, -score)
    facts[0] = F.logsigmoid(towards_truth)
    facts[1] = torch.sigmoid(-towards_truth).square_()
    magnitude = score.abs()
    facts[2] = torch.sigmoid(magnitude)
    facts[3] = score
    facts[4] = F.softplus(-magnitude) + magnitude * torch.sigmoid(-magnitude)


def chunks(logits: Tensor, average: Callable[[Tensor], Tensor]) -> Iterator[tuple[slice, Tensor]]:
    """Rows about a thousand at a time: their place, and their averaged logits in float64.

    The logits are scratch: overwritten by the next turn, and the caller may overwrite them too.
    """
    members, n, classes = logits.shape
    rows = max(1, NUMBERS_AT_ONCE // classes)
    scratch = torch.empty(members, min(rows, n), classes, dtype=torch.float64)
    for start in range(0, n, rows):
        part = slice(start, min(start + rows, n))
        yield part, average(scratch[:, : part.stop - start].copy_(logits[:, part]))
