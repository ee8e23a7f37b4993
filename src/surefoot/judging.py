"""From logits and labels to outcomes.

Softmax logits are read about a thousand rows at a time, so that the work stays in the processor's cache and
nothing as large as the logits is made a second time; many labels keep about fifty bytes for each label that
is not ignored.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from surefoot.combine import average_sigmoid, average_softmax
from surefoot.outcomes import DECIMALS, Outcomes

NUMBERS_AT_ONCE = 150_000  # logits held in float64 at a time, so that they stay in the second-level cache


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
    rows = max(1, NUMBERS_AT_ONCE // (members * classes))
    scratch = torch.empty(members, min(rows, n), classes, dtype=torch.float64)
    for start in range(0, n, rows):
        part = slice(start, min(start + rows, n))
        yield part, average(scratch[:, : part.stop - start].copy_(logits[:, part]))
