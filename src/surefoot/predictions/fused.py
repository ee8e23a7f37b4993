"""Softmax facts and derivatives on a GPU, each in one reading of the logits, by Triton, which torch brings.

One operation of torch after another would read and write every logit twenty times, in float64.
"""
# mypy: disable-error-code="import-not-found, no-untyped-call, no-untyped-def, untyped-decorator"

from typing import Any

import torch
from torch import Tensor

MOST_CLASSES = 8192  # of which a row fits in the registers
NUMBERS_PER_PROGRAM = 2048

try:
    import triton
    import triton.language as tl
except ImportError:  # on a machine without a GPU
    triton = None


def fits(logits: Tensor) -> bool:
    """Whether these logits (members, n, classes) are of one member, with few enough classes."""
    members, _, classes = logits.shape
    return triton is not None and members == 1 and classes <= MOST_CLASSES and logits.stride(2) == 1


def softmax_facts(logits: Tensor, labels: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """(4, rows): log p(true), confidence, squared error, entropy; and whether the label is the top class."""
    facts = torch.empty(4, len(labels), dtype=torch.float64, device=logits.device)
    correct = torch.empty(len(labels), dtype=torch.bool, device=logits.device)
    _launch(_softmax_facts, logits, labels, rows, facts, correct)
    return facts, correct


def softmax_slopes(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    """(3, rows): the derivatives of each row's NLL in the scale that the logits are multiplied by."""
    slopes = torch.empty(3, len(labels), dtype=torch.float64, device=logits.device)
    _launch(_softmax_slopes, logits, labels, None, slopes, torch.tensor([scale], dtype=torch.float64))
    return slopes


def _launch(
    kernel: Any, logits: Tensor, labels: Tensor, rows: Tensor | None, result: Tensor, other: Tensor
) -> None:
    n, classes = len(labels), logits.shape[2]
    columns = triton.next_power_of_2(classes)
    at_once = max(1, NUMBERS_PER_PROGRAM // columns)
    rows = torch.arange(n, device=logits.device) if rows is None else rows
    inputs = (logits[0], labels.contiguous(), rows, result, other.to(logits.device))
    with torch.cuda.device_of(logits):
        kernel[(triton.cdiv(n, at_once),)](*inputs, n, classes, logits.stride(1), at_once, columns)


if triton is not None:

    @triton.jit
    def _rows(logits, labels, rows, n, classes, stride, at_once: tl.constexpr, columns: tl.constexpr):
        """The places of some rows and which there are; z - top, where there is a class, and the label's."""
        place = tl.program_id(0).to(tl.int64) * at_once + tl.arange(0, at_once)
        inside = place < n
        row = tl.load(rows + place, mask=inside, other=0)
        label = tl.load(labels + place, mask=inside, other=0)
        column = tl.arange(0, columns)
        known = inside[:, None] & (column < classes)[None, :]
        at = logits + row[:, None] * stride + column[None, :]
        z = tl.load(at, mask=known, other=float("-inf")).to(tl.float64)
        below_top = tl.where(known, z - tl.max(z, 1)[:, None], 0.0)
        is_label = column[None, :] == label[:, None]
        true = tl.sum(tl.where(is_label, below_top, 0.0), 1)
        return place, inside, below_top, known, is_label, true

    @triton.jit
    def _softmax_facts(
        logits,
        labels,
        rows,
        facts,
        correct,
        n,
        classes,
        stride,
        at_once: tl.constexpr,
        columns: tl.constexpr,
    ):
        place, inside, below_top, known, is_label, true = _rows(
            logits, labels, rows, n, classes, stride, at_once, columns
        )
        unnormalised = tl.where(known, tl.exp(below_top), 0.0)
        total = tl.sum(unnormalised, 1)
        products = tl.sum(below_top * unnormalised, 1)
        column = tl.arange(0, columns)[None, :]
        first = tl.min(tl.where(known & (below_top == 0.0), column, columns), 1)
        of_label = tl.max(tl.where(is_label, column, -1), 1)
        rest = tl.where(is_label, 0.0, unnormalised)
        others = tl.sum(rest, 1)
        squares = tl.sum(rest * rest, 1)
        log_total = tl.log(total)
        tl.store(facts + place, true - log_total, mask=inside)
        tl.store(facts + n + place, 1.0 / total, mask=inside)
        tl.store(facts + 2 * n + place, (others * others + squares) / (total * total) / classes, mask=inside)
        tl.store(facts + 3 * n + place, log_total - products / total, mask=inside)
        tl.store(correct + place, first == of_label, mask=inside)

    @triton.jit
    def _softmax_slopes(
        logits,
        labels,
        rows,
        slopes,
        scale,
        n,
        classes,
        stride,
        at_once: tl.constexpr,
        columns: tl.constexpr,
    ):
        place, inside, below_top, known, _, true = _rows(
            logits, labels, rows, n, classes, stride, at_once, columns
        )
        weights = tl.where(known, tl.exp(below_top * tl.load(scale)), 0.0)
        total = tl.sum(weights, 1)
        weights = weights * below_top
        mean = tl.sum(weights, 1) / total
        weights = weights * below_top
        square = tl.sum(weights, 1) / total
        cube = tl.sum(weights * below_top, 1) / total
        tl.store(slopes + place, mean - true, mask=inside)
        tl.store(slopes + n + place, square - mean * mean, mask=inside)
        tl.store(slopes + 2 * n + place, cube - mean * (3 * square - 2 * mean * mean), mask=inside)
