"""Softmax facts and derivatives on a GPU, each in one reading of the logits, by Triton, which torch brings.

One operation of torch after another would read and write every logit twenty times, in float64. What is done
for every logit is computed in the logits' own type, and what is done once for a row in float64: float32
logits give facts to about 1e-7, of very small ones as well, because the top class is left out of the sums.
"""
# mypy: disable-error-code="import-not-found, no-untyped-call, no-untyped-def, untyped-decorator"

import math
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 16
MOST_CLASSES = 8192  # of which a row fits in the registers
NUMBERS_PER_WARP = 1024  # a row in one warp is added up without waiting for other warps

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
    at_once = max(1, NUMBERS_PER_WARP // columns)
    warps = max(1, columns // NUMBERS_PER_WARP)
    unit = math.gcd(logits.stride(1), ALIGNMENT)  # known to the compiler, it allows loads of several numbers
    labels = labels.contiguous()
    inputs = (logits[0], labels, labels if rows is None else rows, result, other.to(logits.device), n)
    with torch.cuda.device_of(logits):
        kernel[(triton.cdiv(n, at_once),)](
            *inputs,
            logits.stride(1) // unit,
            unit,
            rows is not None,
            classes,
            at_once,
            columns,
            num_warps=warps,
        )


if triton is not None:

    @triton.jit
    def _rows(
        logits,
        labels,
        rows,
        n,
        units,
        unit: tl.constexpr,
        some: tl.constexpr,
        classes: tl.constexpr,
        at_once: tl.constexpr,
        columns: tl.constexpr,
    ):
        """The places of some rows and which there are; z - top of all classes but the first top one, which
        is -inf as are those beyond the classes; and z - top of the label, and whether it is that top one."""
        place = tl.program_id(0).to(tl.int64) * at_once + tl.arange(0, at_once)
        inside = place < n
        row = tl.load(rows + place, mask=inside, other=0) if some else place
        label = tl.load(labels + place, mask=inside, other=0)
        column = tl.arange(0, columns)[None, :]
        start = logits + row * units * unit
        z = tl.load(start[:, None] + column, mask=inside[:, None] & (column < classes), other=float("-inf"))
        of_label = tl.load(start + label, mask=inside, other=0.0)
        top = tl.max(z, 1)
        first = tl.min(tl.where(z == top[:, None], column, columns), 1)
        below_top = tl.where(column == first[:, None], float("-inf"), z - top[:, None])
        true = of_label.to(tl.float64) - top.to(tl.float64)
        return place, inside, below_top, true, first == label

    @triton.jit
    def _softmax_facts(
        logits,
        labels,
        rows,
        facts,
        correct,
        n,
        units,
        unit: tl.constexpr,
        some: tl.constexpr,
        classes: tl.constexpr,
        at_once: tl.constexpr,
        columns: tl.constexpr,
    ):
        place, inside, below_top, true, is_top = _rows(
            logits, labels, rows, n, units, unit, some, classes, at_once, columns
        )
        ratios = tl.exp(below_top)  # to the top class's probability
        rest = tl.sum(ratios, 1).to(tl.float64)
        squares = tl.sum(ratios * ratios, 1).to(tl.float64)
        products = tl.sum(tl.where(ratios > 0, below_top * ratios, 0.0), 1).to(tl.float64)
        total = 1.0 + rest
        log_total = tl.where(rest < 1e-5, rest - 0.5 * rest * rest, tl.log(total))
        of_label = tl.exp(true)
        others = tl.where(is_top, rest, total - of_label)
        squares = tl.where(is_top, squares, 1.0 + squares - of_label * of_label)
        tl.store(facts + place, true - log_total, mask=inside)
        tl.store(facts + n + place, 1.0 / total, mask=inside)
        tl.store(facts + 2 * n + place, (others * others + squares) / (total * total) / classes, mask=inside)
        tl.store(facts + 3 * n + place, log_total - products / total, mask=inside)
        tl.store(correct + place, is_top, mask=inside)

    @triton.jit
    def _softmax_slopes(
        logits,
        labels,
        rows,
        slopes,
        scale,
        n,
        units,
        unit: tl.constexpr,
        some: tl.constexpr,
        classes: tl.constexpr,
        at_once: tl.constexpr,
        columns: tl.constexpr,
    ):
        place, inside, below_top, true, _ = _rows(
            logits, labels, rows, n, units, unit, some, classes, at_once, columns
        )
        exact = tl.load(scale)
        rounded = exact.to(below_top.dtype)
        remainder = (exact - rounded.to(tl.float64)).to(below_top.dtype)
        scaled = below_top * rounded
        scaled = tl.where(scaled > float("-inf"), scaled + below_top * remainder, scaled)
        weights = tl.exp(scaled)
        scaled = tl.where(weights > 0, scaled, 0.0)
        total = 1.0 + tl.sum(weights, 1).to(tl.float64)
        weights = weights * scaled  # moments of the scaled logits stay small, whatever the logits' size
        mean = tl.sum(weights, 1).to(tl.float64) / total / exact
        weights = weights * scaled
        square = tl.sum(weights, 1).to(tl.float64) / total / exact / exact
        cube = tl.sum(weights * scaled, 1).to(tl.float64) / total / exact / exact / exact
        tl.store(slopes + place, mean - true, mask=inside)
        tl.store(slopes + n + place, square - mean * mean, mask=inside)
        tl.store(slopes + 2 * n + place, cube - mean * (3 * square - 2 * mean * mean), mask=inside)
