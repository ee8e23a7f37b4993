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

ALIGNMENT = 4  # numbers of 4 bytes that are loaded at once
MOST_CLASSES = 8192  # of which a row fits in the registers
NUMBERS_PER_WARP = 1024  # a row in one warp is added up without waiting for other warps
NO_WEIGHT = {torch.float32: -200.0, torch.float64: -800.0}  # e to these is 0

try:
    import triton
    import triton.language as tl
except ImportError:  # on a machine without a GPU
    triton = None


def fits(logits: Tensor) -> bool:
    """Whether these logits (members, n, classes) are of one member, with few enough classes."""
    members, _, classes = logits.shape
    return triton is not None and members == 1 and classes <= MOST_CLASSES and logits.stride(2) == 1


def softmax_facts(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(4, n): log p(true), confidence, squared error, entropy; whether the label is the top class; extremes.

    The extremes (2, n) are each row's lowest and highest logit; if a logit is NaN, its row's lowest is.
    Where a label is out of range, what depends on it may be any number.
    """
    n = len(labels)
    facts = torch.empty(4, n, dtype=torch.float64, device=logits.device)
    correct = torch.empty(n, dtype=torch.bool, device=logits.device)
    extremes = torch.empty(2, n, dtype=logits.dtype, device=logits.device)
    _launch(_softmax_facts, logits, labels, facts, correct, extremes)
    return facts, correct, extremes


def softmax_slopes(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    """(3, n): the derivatives of each row's NLL in the scale that the logits are multiplied by."""
    slopes = torch.empty(3, len(labels), dtype=torch.float64, device=logits.device)
    _launch(_softmax_slopes, logits, labels, slopes, torch.full_like(slopes[0, :1], scale))
    return slopes


def _launch(kernel: Any, logits: Tensor, labels: Tensor, *others: Tensor) -> None:
    n, classes = len(labels), logits.shape[2]
    columns = triton.next_power_of_2(classes)
    at_once = max(1, NUMBERS_PER_WARP // columns)
    warps = max(1, columns // NUMBERS_PER_WARP)
    unit = math.gcd(logits.stride(1), ALIGNMENT)  # known to the compiler, it allows loads of several numbers
    with torch.cuda.device_of(logits):
        kernel[(triton.cdiv(n, at_once),)](
            logits[0],
            labels.contiguous(),
            *others,
            n,
            logits.stride(1) // unit,
            unit,
            NO_WEIGHT[logits.dtype],
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
        n,
        units,
        unit: tl.constexpr,
        classes: tl.constexpr,
        at_once: tl.constexpr,
        columns: tl.constexpr,
    ):
        """The places of some rows and which there are; their labels; their logits, -inf beyond the classes;
        the top ones; and the labels' logits."""
        place = tl.program_id(0).to(tl.int64) * at_once + tl.arange(0, at_once)
        inside = place < n
        label = tl.load(labels + place, mask=inside, other=0)
        column = tl.arange(0, columns)[None, :]
        start = logits + place * units * unit
        z = tl.load(start[:, None] + column, mask=inside[:, None] & (column < classes), other=float("-inf"))
        known = inside & (label >= 0) & (label < classes)
        return place, inside, label, z, tl.max(z, 1), tl.load(start + label, mask=known, other=0.0)

    @triton.jit(do_not_specialize=["n", "units"])
    def _softmax_facts(
        logits,
        labels,
        facts,
        correct,
        extremes,
        n,
        units,
        unit: tl.constexpr,
        no_weight: tl.constexpr,
        classes: tl.constexpr,
        at_once: tl.constexpr,
        columns: tl.constexpr,
    ):
        place, inside, label, z, top, of_label = _rows(
            logits, labels, n, units, unit, classes, at_once, columns
        )
        column = tl.arange(0, columns)[None, :]
        below_top = tl.maximum(z - top[:, None], no_weight, propagate_nan=tl.PropagateNan.ALL)
        ratios = tl.exp(below_top)  # to the top class's probability
        whole = tl.sum(ratios, 1)
        products = tl.sum(below_top * ratios, 1).to(tl.float64)
        ratios = tl.where(below_top == 0, 0.0, ratios)
        rest, squares = tl.sum(ratios, 1), tl.sum(ratios * ratios, 1).to(tl.float64)
        more = tl.floor(whole - rest - 0.5)  # how many other classes are as high as the top one
        rest, squares = rest.to(tl.float64) + more, squares + more
        lowest = tl.min(tl.where(column < classes, z, top[:, None]), 1)
        lowest = tl.where(rest == rest, lowest, float("nan"))
        right = of_label == top
        if tl.max(more, 0) > 0:  # the first of them is the predicted one
            right = tl.min(tl.where(z == top[:, None], column, columns), 1) == label
        total = 1.0 + rest
        share = 1.0 / total
        log_total = tl.where(rest < 1e-5, rest - 0.5 * rest * rest, tl.log(total))
        ratio = tl.exp(of_label - top).to(tl.float64)
        others = tl.where(right, rest, total - ratio)
        squares = tl.where(right, squares, 1.0 + squares - ratio * ratio)
        true = of_label.to(tl.float64) - top.to(tl.float64)
        tl.store(facts + place, true - log_total, mask=inside)
        tl.store(facts + n + place, share, mask=inside)
        tl.store(facts + 2 * n + place, (others * others + squares) * (share * share) / classes, mask=inside)
        tl.store(facts + 3 * n + place, log_total - products * share, mask=inside)
        tl.store(correct + place, right, mask=inside)
        tl.store(extremes + place, lowest, mask=inside)
        tl.store(extremes + n + place, top, mask=inside)

    @triton.jit(do_not_specialize=["n", "units"])
    def _softmax_slopes(
        logits,
        labels,
        slopes,
        scale,
        n,
        units,
        unit: tl.constexpr,
        no_weight: tl.constexpr,
        classes: tl.constexpr,
        at_once: tl.constexpr,
        columns: tl.constexpr,
    ):
        place, inside, _, z, top, of_label = _rows(logits, labels, n, units, unit, classes, at_once, columns)
        factor = tl.load(scale)
        scaled = tl.maximum((z - top[:, None]) * factor.to(z.dtype), no_weight)
        weights = tl.exp(scaled)
        share = 1.0 / tl.sum(weights, 1).to(tl.float64)
        weights = weights * scaled  # moments of the scaled logits stay small, whatever the logits' size
        unscale = 1.0 / factor
        mean = tl.sum(weights, 1).to(tl.float64) * share * unscale
        weights = weights * scaled
        share = share * unscale
        square = tl.sum(weights, 1).to(tl.float64) * share * unscale
        share = share * unscale
        cube = tl.sum(weights * scaled, 1).to(tl.float64) * share * unscale
        true = of_label.to(tl.float64) - top.to(tl.float64)
        tl.store(slopes + place, mean - true, mask=inside)
        tl.store(slopes + n + place, square - mean * mean, mask=inside)
        tl.store(slopes + 2 * n + place, cube - mean * (3 * square - 2 * mean * mean), mask=inside)
