"""Softmax facts and derivatives on a GPU, each in one reading of the logits, by Triton, which torch brings.

What is added up over all rows comes from one reading of the facts, so that nobody waits for each sum.

One operation of torch after another would read and write every logit twenty times, in float64. What is done
for every logit is computed in the logits' own type, and what is done once for a row in float64: float32
logits give facts to about 1e-7, of very small ones as well, because the top class is left out of the sums.
"""
# mypy: disable-error-code="import-not-found, no-untyped-call, no-untyped-def, untyped-decorator"

import math
from typing import Any

import torch
from torch import Tensor

from surefoot.predictions.outcomes import ONE
from surefoot.predictions.parts import LOG_CLIP, SURE

ALIGNMENT = 4  # numbers of 4 bytes that are loaded at once
MOST_CLASSES = 8192  # of which a row fits in the registers
NUMBERS_PER_WARP = 1024  # a row in one warp is added up without waiting for other warps
ROWS_PER_PROGRAM = 2048  # that are added up
KEYS_PER_PROGRAM = 1024  # that are compared with every place
RANGES, SUMS = 4, 7
MOST_KEY = 2**62  # above every key
NO_WEIGHT = {torch.float32: -200.0, torch.float64: -800.0}  # e to these is 0

try:
    import triton
    import triton.language as tl
except ImportError:  # on a machine without a GPU
    triton = None
IS_AVAILABLE = triton is not None


def fits(logits: Tensor) -> bool:
    """Whether these logits (members, n, classes) are of one member, with few enough classes."""
    members, _, classes = logits.shape
    return triton is not None and members == 1 and classes <= MOST_CLASSES and logits.stride(2) == 1


def softmax_facts(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The `facts`, `correct` and `keys` of `DeviceFacts`; and extremes.

    The extremes (2, n) are each row's lowest and highest logit; if a logit is NaN, its row's lowest is.
    Where a label is out of range, what depends on it may be any number.
    """
    n = len(labels)
    facts = torch.empty(4, n, dtype=torch.float64, device=logits.device)
    correct = torch.empty(n, dtype=torch.bool, device=logits.device)
    keys = torch.empty(n, dtype=torch.int64, device=logits.device)
    extremes = torch.empty(2, n, dtype=logits.dtype, device=logits.device)
    _launch(_softmax_facts, logits, labels, facts, correct, keys, extremes)
    return facts, correct, keys, extremes


def totals(facts: Tensor, correct: Tensor, extremes: Tensor, labels: Tensor) -> Tensor:
    """(RANGES + SUMS, parts), each of some rows: lowest logit and label (or 0), highest, and sums.

    The sums are those of `parts.SUMMED`, in that order.
    """
    n = len(labels)
    parts = max(1, triton.cdiv(n, ROWS_PER_PROGRAM))
    result = torch.empty(RANGES + SUMS, parts, dtype=torch.float64, device=facts.device)
    with torch.cuda.device_of(facts):
        _totals[(parts,)](
            facts, correct, extremes, labels.contiguous(), result, n, ROWS_PER_PROGRAM, num_warps=8
        )
    return result


def sums_below(keys: Tensor, places: Tensor) -> Tensor:
    """(3, 2, places) of ascending keys of `DeviceFacts`: how many are below, their errors, and their doubt.

    Below the ties of the key at each place, and below the next doubt after these.
    """
    parts = max(1, triton.cdiv(len(keys), KEYS_PER_PROGRAM))
    count = triton.next_power_of_2(len(places))
    result = torch.empty(3, 2, count, parts, dtype=torch.float64, device=keys.device)
    with torch.cuda.device_of(keys):
        _sums_below[(parts,)](
            keys, places, result, len(keys), len(places), count, KEYS_PER_PROGRAM, num_warps=4
        )
    return result.sum(-1)[..., : len(places)]


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
        keys,
        extremes,
        n,
        units,
        unit: tl.constexpr,
        no_weight: tl.constexpr,
        classes: tl.constexpr,
        at_once: tl.constexpr,
        columns: tl.constexpr,
        one: tl.constexpr = float(ONE),
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
        units = tl.floor(share * one + 0.5)  # so that equal probabilities tie
        tl.store(facts + n + place, units / one, mask=inside)
        tl.store(facts + 2 * n + place, (others * others + squares) * (share * share) / classes, mask=inside)
        tl.store(facts + 3 * n + place, log_total - products * share, mask=inside)
        tl.store(correct + place, right, mask=inside)
        tl.store(keys + place, 2 * (one - units).to(tl.int64) + tl.where(right, 0, 1), mask=inside)
        tl.store(extremes + place, lowest, mask=inside)
        tl.store(extremes + n + place, top, mask=inside)

    @triton.jit(do_not_specialize=["n"])
    def _totals(
        facts,
        correct,
        extremes,
        labels,
        result,
        n,
        rows: tl.constexpr,
        lowest_log: tl.constexpr = LOG_CLIP[0],
        highest_log: tl.constexpr = LOG_CLIP[1],
        sure: tl.constexpr = SURE,
    ):
        place = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
        inside = place < n
        lowest = tl.load(extremes + place, mask=inside, other=float("inf"))
        highest = tl.load(extremes + n + place, mask=inside, other=float("-inf"))
        label = tl.load(labels + place, mask=inside, other=0)
        log_p = tl.load(facts + place, mask=inside, other=0.0)
        confidence = tl.load(facts + n + place, mask=inside, other=0.0)
        squared_error = tl.load(facts + 2 * n + place, mask=inside, other=0.0)
        entropy = tl.load(facts + 3 * n + place, mask=inside, other=0.0)
        wrong = tl.where(tl.load(correct + place, mask=inside, other=1) != 0, 0.0, 1.0)
        # Triton compares with a constant in float32, but subtracts it in float64.
        clipped = tl.where(log_p - highest_log > 0.0, highest_log, log_p)
        clipped = tl.where(clipped - lowest_log < 0.0, lowest_log, clipped)
        above = tl.where(confidence - sure > 0.0, 1.0, 0.0)
        not_a_number = tl.sum(tl.where(lowest == lowest, 0.0, float("nan")), 0)
        parts = tl.num_programs(0)
        result += tl.program_id(0)
        tl.store(result, tl.min(lowest, 0) + not_a_number)
        tl.store(result + parts, tl.min(label, 0).to(tl.float64))
        tl.store(result + 2 * parts, tl.max(highest, 0))
        tl.store(result + 3 * parts, tl.max(label, 0).to(tl.float64))
        tl.store(result + 4 * parts, -tl.sum(log_p, 0))
        tl.store(result + 5 * parts, -tl.sum(tl.where(inside, clipped, 0.0), 0))
        tl.store(result + 6 * parts, tl.sum(squared_error, 0))
        tl.store(result + 7 * parts, tl.sum(entropy, 0))
        tl.store(result + 8 * parts, tl.sum(wrong, 0))
        tl.store(result + 9 * parts, tl.sum(above, 0))
        tl.store(result + 10 * parts, tl.sum(above * wrong, 0))

    @triton.jit(do_not_specialize=["n"])
    def _sums_below(
        keys, places, result, n, known, count: tl.constexpr, rows: tl.constexpr, most: tl.constexpr = MOST_KEY
    ):
        number = tl.arange(0, count)
        at = tl.load(places + number, mask=number < known, other=0)
        ties = tl.load(keys + at) & -2
        place = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
        key = tl.load(keys + place, mask=place < n, other=most)[None, :]
        error = (key & 1).to(tl.float64)
        doubt = (key >> 1).to(tl.float64)
        parts = tl.num_programs(0)
        result += number * parts + tl.program_id(0)
        for after in tl.static_range(2):
            below = key < (ties + 2 * after)[:, None]
            start = result + after * count * parts
            tl.store(start, tl.sum(tl.where(below, 1.0, 0.0).to(tl.float64), 1))
            tl.store(start + 2 * count * parts, tl.sum(tl.where(below, error, 0.0), 1))
            tl.store(start + 4 * count * parts, tl.sum(tl.where(below, doubt, 0.0), 1))

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
