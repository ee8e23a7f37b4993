"""Deep nearest neighbours: a sample is strange if few training samples have features like its own."""

import torch
from torch import Tensor
from torch.nn import functional as F

from surefoot.errors import InputError

NEIGHBOURS = 50
QUERIES_AT_ONCE = 1024
REFERENCES_AT_ONCE = 16_384  # with the above, 128 MiB of distances in float64


def neighbour_distances(features: Tensor, reference: Tensor, *, device: torch.device) -> Tensor:
    """Each row's distance to its k-th nearest row of the reference, all scaled to length 1, in float64.

    |a / |a| - r / |r||, k = 50, or all but one of a smaller reference. Sun et al., "Out-of-distribution
    detection with deep nearest neighbors", ICML 2022.
    """
    return _distances(features, reference, None, device)


def distances_within(reference: Tensor, *, device: torch.device) -> Tensor:
    """The same for the reference's own rows: none is its own neighbour."""
    return _distances(reference, reference, torch.arange(len(reference)), device)


def _distances(features: Tensor, reference: Tensor, own: Tensor | None, device: torch.device) -> Tensor:
    if len(reference) < 2:
        raise InputError(f"{len(reference)} reference samples; allowed: two or more to be neighbours")
    k = min(NEIGHBOURS, len(reference) - 1)
    parts = []
    for start in range(0, len(features), QUERIES_AT_ONCE):
        part = slice(start, start + QUERIES_AT_ONCE)
        queries = _of_length_one(features[part], device)
        nearest = _nearest(queries, reference, None if own is None else own[part].to(device), k)
        parts.append(nearest.cpu())
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)


def _nearest(queries: Tensor, reference: Tensor, own: Tensor | None, k: int) -> Tensor:
    """The k-th smallest distance, over the reference some rows at a time."""
    best = torch.empty(len(queries), 0, dtype=torch.float64, device=queries.device)
    for start in range(0, len(reference), REFERENCES_AT_ONCE):
        rows = _of_length_one(reference[start : start + REFERENCES_AT_ONCE], queries.device)
        squares = torch.addmm(rows.new_full((1, 1), 2.0), queries, rows.T, alpha=-2.0)
        if own is not None:
            here = torch.arange(start, start + len(rows), device=queries.device)
            squares.masked_fill_(own.unsqueeze(1) == here, torch.inf)
        best = torch.cat([best, squares.topk(min(k, len(rows)), largest=False).values], dim=1)
        best = best.topk(min(k, best.shape[1]), largest=False).values
    return best.amax(dim=1).clamp(min=0).sqrt()


def _of_length_one(features: Tensor, device: torch.device) -> Tensor:
    return F.normalize(features.to(device, torch.float64), dim=1)
