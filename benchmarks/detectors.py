"""The power of shift detectors and of their combinations; protocol: monitoring_protocol.md.

A part of monitoring.py. Every detector sees the same windows and is compared at exactly 5% false alarms.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from rules import CLASS_COSINE, COSINE, FEATURES, ONE_SIDED, detection_rates
from scipy.sparse import csr_array

from surefoot import read_predictions
from surefoot.deploy.monitor import energies
from surefoot.deploy.thresholds import confidences
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.predictions import Predictions

Array = np.ndarray
Cell = tuple[int, str]  # rows, kind of the window
HALVES = ("choose", "confirm")
SIZES = (25, 50, 100, 200, 500, 1000, 2000)
SHARES = {"100%": 1.0, "30%": 0.3, "10%": 0.1}  # of unfamiliar rows
KINDS = ("familiar", *SHARES, "label shift", "other mix")
DECIDING: tuple[Cell, ...] = ((25, "100%"), (100, "100%"), (200, "30%"), (500, "10%"))
WINDOWS = 25  # of each cell and split
FAMILIAR_WINDOWS = 100  # of each size and split, for the critical values
TASKS = ("animals64", "cat-dog", "gender-utkface", "objects96")
CLASSIFIED = (25, 200)  # rows of the windows for the domain classifier, which is slow

SEEDS = {"choose": (0, 1, 2, 3, 4), "confirm": (9, 10, 11, 12, 13)}


@dataclass(frozen=True)
class Sample:
    """How much is drawn of each task."""

    splits: int = 40  # of the familiar rows, shared by the networks
    choosing: int = 20  # splits of the choosing half
    checked: int = 240  # windows of a deciding cell that the monitor itself checks
    others: int = 96  # of the other cells
    histories: int = 60  # shared by the networks
    peers: int = 2  # splits for frouros


@dataclass(frozen=True, eq=False)
class Network:
    """Familiar test rows, the unfamiliar ones of a half, and features of both, the familiar first."""

    name: str
    familiar: Predictions
    unfamiliar: Predictions
    val: Predictions | None = None
    features: Array | None = None


def recipes(store: Path, task: str) -> tuple[list[list[Path]], list[list[Path]]]:
    """The networks' folders of the recipes with ten or more seeds, and of the others (ablations)."""
    found = [
        sorted(path.parent for path in recipe.glob("seed*/test_unfamiliar.npz"))
        for recipe in sorted((store / "networks" / task).iterdir())
    ]
    return [each for each in found if len(each) >= 10], [each for each in found if 0 < len(each) < 10]


def of_half_rows(unfamiliar: Predictions, half: str) -> Array:
    """The rows of the groups at even places choose, the others confirm; without groups, every other row."""
    place = np.arange(unfamiliar.n)
    if unfamiliar.groups is not None:
        place = np.unique(unfamiliar.groups, return_inverse=True)[1]
    return np.flatnonzero(place % 2 == HALVES.index(half))


def load(folder: Path, half: str) -> Network:
    val, familiar, unfamiliar = (
        read_predictions(folder / f"{split}.npz") for split in ("val", "test_familiar", "test_unfamiliar")
    )
    chosen = of_half_rows(unfamiliar, half)
    stored = folder / "features.npz"
    features = None
    if stored.is_file():
        with np.load(stored) as arrays:
            sides = arrays["test_familiar"], arrays["test_unfamiliar"][chosen]
            features = np.concatenate(sides).astype(float)
    return Network(folder.parts[-3], familiar, unfamiliar.take(chosen), val, features)


def networks(store: Path, task: str, half: str) -> list[Network]:
    tens, _ = recipes(store, task)
    return [load(recipe[seed], half) for recipe in tens for seed in SEEDS[half]]


@cache
def pets() -> tuple[Predictions, Predictions, Array, Array]:
    """Logistic regression on the embeddings in the package; features are random projections of them."""
    from sklearn.linear_model import LogisticRegression

    from surefoot.tasks.pets import load_pets

    splits = {str(split): samples for split, samples in load_pets().splits.items()}
    train = [splits[name] for name in ("train", "val")]
    model = LogisticRegression(C=0.01, max_iter=500)
    model.fit(np.concatenate([s.inputs for s in train]), np.concatenate([s.labels for s in train]))
    projection = np.random.default_rng(0).standard_normal((512, 64)) / 8
    sides = [splits[name] for name in ("test_familiar", "test_unfamiliar")]
    predictions = [
        Predictions.from_logits(model.decision_function(s.inputs), s.labels, groups=s.groups) for s in sides
    ]
    features = [np.asarray(s.inputs) @ projection for s in sides]
    return predictions[0], predictions[1], features[0], features[1]


def embedded(half: str) -> Network:
    familiar, unfamiliar, inside, outside = pets()
    rows = of_half_rows(unfamiliar, half)
    return Network("pets", familiar, unfamiliar.take(rows), None, np.concatenate([inside, outside[rows]]))


@dataclass(frozen=True, eq=False)
class Numbers:
    """What the detectors compare, the familiar rows first."""

    scores: dict[str, Array]  # larger is more unfamiliar
    probs: Array
    logits: Array
    many: bool
    familiar: int
    features: Array | None

    @property
    def n(self) -> int:
        return len(self.probs)


def numbers(network: Network) -> Numbers:
    sides = network.familiar, network.unfamiliar
    many = network.familiar.kind is LabelKind.MANY_LABELS
    probs = np.concatenate([side.probs().astype(np.float64) for side in sides])
    clipped = np.clip(probs, 1e-12, 1)
    entropy = -(clipped * np.log(clipped)).sum(axis=1)
    if many:
        entropy -= ((1 - probs) * np.log(np.clip(1 - probs, 1e-12, 1))).sum(axis=1)
    scores = {
        "confidence": -np.concatenate([confidences(side) for side in sides]),
        "entropy": entropy,
        "energy": np.concatenate([energies(side) for side in sides]),
    }
    scores = {name: values for name, values in scores.items() if np.ptp(values) > 0}  # one logit: no energy
    logits = np.concatenate([side.average().logits[0].astype(np.float64) for side in sides])
    return Numbers(scores, probs, logits, many, network.familiar.n, network.features)


def ranks_in(reference: Array, values: Array) -> Array:
    """The share of the reference below each value, ties half."""
    ordered = np.sort(reference)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / (
        2 * len(ordered)
    )


def tails(ranks: Array, n: int) -> Array:
    """Savage scores."""
    return -np.log1p(-ranks * n / (n + 1))


def fourier(values: Array, reference: Array) -> Array:
    """Random Fourier features of a Gaussian kernel whose width is the reference's median distance."""
    rng = np.random.default_rng(1)
    some = reference[:400]
    squares = ((some[:, None] - some[None]) ** 2).sum(axis=2)
    width = np.sqrt(np.median(squares[squares > 0]))
    angle = values @ (rng.standard_normal((values.shape[1], 64)) / width)
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1)


def neighbour_ranks(features: Array, reference: Array) -> Array:
    """Ranks of the distance to the tenth nearest row of a third of the reference, among the other rows."""
    bank, rest = np.split(reference, [len(reference) // 3])
    squares = (features**2).sum(axis=1)
    distances = squares[:, None] + squares[bank] - 2 * features @ features[bank].T
    tenth = np.partition(distances, 9, axis=1)[:, 9]
    ranks = ranks_in(tenth[rest], tenth)
    return ranks - ranks[rest].mean() + ranks[reference].mean()


def whitened(values: Array, reference: Array, ridge: float) -> Array:
    """In units of the reference's covariance, with a ridge in units of the mean variance."""
    spread = np.atleast_2d(np.cov(values[reference].T))
    spread = spread + ridge * np.trace(spread) / len(spread) * np.eye(len(spread))
    shifted: Array = values - values[reference].mean(axis=0)
    return shifted @ np.linalg.cholesky(np.linalg.inv(spread))


def within_classes(data: Numbers, reference: Array) -> Array:
    """Features less the reference's mean of the same predicted class."""
    assert data.features is not None
    predicted = data.probs.argmax(axis=1)
    found = data.features.copy()
    for each in np.unique(predicted[reference]):
        known = reference[predicted[reference] == each]
        found[predicted == each] -= data.features[known].mean(axis=0)
    return found


NEIGHBOUR = 10
SUBSPACE = 16  # principal directions


def row_novelty(data: Numbers, reference: Array) -> dict[str, Array]:
    """Scores of a row from its features; a row of the reference is not compared with itself."""
    assert data.features is not None
    features = data.features
    norms = np.linalg.norm(features, axis=1)
    directions = features / norms[:, None]
    similar = directions @ directions[reference].T
    similar[reference, np.arange(len(reference))] = -np.inf
    nearest = np.partition(similar, (-NEIGHBOUR, -1), axis=1)
    overall = (whitened(features, reference, 0.1) ** 2).sum(axis=1)
    found = {
        COSINE: -nearest[:, -NEIGHBOUR],
        f"{COSINE}, nearest": -nearest[:, -1],
        CLASS_COSINE: class_cosine(directions, data.probs.argmax(axis=1), reference),
        "norm": norms,
        "low norm": -norms,
        "distance": overall,
    }
    centred = features - features[reference].mean(axis=0)
    axes = np.linalg.svd(centred[reference], full_matrices=False)[2][:SUBSPACE]
    rest = (centred**2).sum(axis=1) - ((centred @ axes.T) ** 2).sum(axis=1)
    found["outside the subspace"] = rest / (features**2).sum(axis=1)
    if not data.many:
        to_class = mahalanobis(data, reference)
        found |= {"Mahalanobis": to_class, "relative Mahalanobis": to_class - overall}
    return found


def class_cosine(directions: Array, classes: Array, reference: Array) -> Array:
    """The negative cosine with the sum of the reference's (other) rows of the predicted class."""
    centred = directions - directions[reference].mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1)[:, None]
    sums = np.zeros((classes.max() + 1, centred.shape[1]))
    np.add.at(sums, classes[reference], centred[reference])
    others = sums[classes]
    others[reference] -= centred[reference]
    length = np.linalg.norm(others, axis=1)
    found: Array = -(centred * others).sum(axis=1) / np.where(length > 0, length, 1)
    return found


def mahalanobis(data: Numbers, reference: Array) -> Array:
    """The squared distance to the nearest mean of a predicted class, by the covariance within classes."""
    assert data.features is not None
    features, predicted = data.features, data.probs.argmax(axis=1)
    spread = np.cov(within_classes(data, reference)[reference].T)
    inverse = np.linalg.inv(spread + 0.1 * np.trace(spread) / len(spread) * np.eye(len(spread)))
    to_means = []
    for each in np.unique(predicted[reference]):
        apart = features - features[reference[predicted[reference] == each]].mean(axis=0)
        to_means.append(np.einsum("nd,de,ne->n", apart, inverse, apart))
    nearest: Array = np.min(to_means, axis=0)
    return nearest


@dataclass(frozen=True, eq=False)
class Columns:
    """Numbers of each row, for one reference: means compared one by one, as vectors, and by KS."""

    one: dict[str, Array]  # (n,)
    several: dict[str, Array]  # (n, d)
    distributions: dict[str, Array]  # (n, d): ranks in the reference


def columns(data: Numbers, reference: Array) -> Columns:
    one: dict[str, Array] = {}
    for name, values in data.scores.items():
        one[name] = ranks_in(values[reference], values)
        one[f"{name} tail"] = tails(one[name], len(reference))
    by_class = np.stack([ranks_in(each[reference], each) for each in data.probs.T], axis=1)
    centred = data.logits - data.logits[reference].mean(axis=0)
    scaled = centred / (data.logits[reference].std(axis=0) + 1e-9)
    chosen = np.eye(data.probs.shape[1])[data.probs.argmax(axis=1)]
    if data.many:
        chosen = (data.probs >= 0.5).astype(float)
        unsure = 1 - np.maximum(data.probs, 1 - data.probs)
        each = [tails(ranks_in(u[reference], u), len(reference)) for u in unsure.T]
        one["labels"] = ranks_in(np.mean(each, axis=0)[reference], np.mean(each, axis=0))
        parts = (one["labels"], one["energy"])
        one["labels and energy"] = np.sum([part / part[reference].std() for part in parts], axis=0)
    expected = np.maximum(chosen[reference].mean(axis=0), 1 / len(reference))
    names = [name for name in ONE_SIDED if name in one]
    one["sum"] = sum(one[name] / one[name][reference].std() for name in names)
    several = {
        "MMD": fourier(scaled, scaled[reference]),
        "classes": by_class / (by_class[reference].std(axis=0) + 1e-9),
        "class counts (chi-square)": chosen / np.sqrt(expected),
        "entropy, t": data.scores["entropy"][:, None],
        "whitened logits": whitened(data.logits, reference, 0.1),
    }
    if data.features is not None:
        several[FEATURES[0]] = whitened(data.features, reference, 0.1)
        several[FEATURES[1]] = whitened(data.features, reference, 1.0)
        several[FEATURES[2]] = several[FEATURES[1]]
        if not data.many:
            several[FEATURES[2]] = whitened(within_classes(data, reference), reference, 1.0)
        deviation = data.features / data.features[reference].std(axis=0)
        several["MMD of features"] = fourier(deviation, deviation[reference])
        one["kNN of features"] = neighbour_ranks(deviation, reference)
        for name, values in row_novelty(data, reference).items():
            one[name] = ranks_in(values[reference], values)
        one[f"{CLASS_COSINE} tail"] = tails(one[CLASS_COSINE], len(reference))
    single = {f"{name} KS": one[name][:, None] for name in data.scores if name != "entropy"}
    return Columns(one, several, {"BBSD": by_class, **single})


def windows(
    network: Network,
    data: Numbers,
    pool: Array,
    rng: np.random.Generator,
    sizes: Sequence[int] = SIZES,
    count: int = WINDOWS,
    familiar: int = FAMILIAR_WINDOWS,
) -> Iterator[tuple[Cell, Array]]:
    """Cells, and the rows (count, size) of its windows, for the cells that the data suffice for."""
    labels = network.familiar.labels
    first = labels == 0 if labels.ndim == 1 else labels[:, labels.clip(0).sum(axis=0).argmax()] == 1
    weight = np.where(first[pool], 3.0, 1.0)
    groups = network.familiar.groups
    strange = data.n - data.familiar
    for size in sizes:
        if size > len(pool):
            break  # without familiar windows there is no critical value
        for kind in KINDS:
            k = round(SHARES.get(kind, 0) * size)
            if k > strange or (kind == "other mix" and groups is None):
                continue
            rows = np.empty((familiar if kind == "familiar" else count, size), dtype=int)
            for row in rows:
                if kind == "label shift":
                    row[:] = rng.choice(pool, size, p=weight / weight.sum())
                elif kind == "other mix":
                    names = rng.permutation(np.unique(groups))
                    some = pool[np.isin(groups[pool], names[: len(names) // 2])]
                    row[:] = rng.choice(some, size, replace=size > len(some))
                else:
                    row[:k] = data.familiar + rng.choice(strange, k, replace=False)
                    row[k:] = rng.choice(pool, size - k, replace=False)
            yield (size, kind), rows


def statistics(found: Columns, data: Numbers, reference: Array, rows: Array) -> dict[str, Array]:
    """Every detector's statistic for each window; larger is more evidence of a shift."""
    count, size = rows.shape
    share = csr_array((np.full(rows.size, 1 / size), rows.ravel(), np.arange(0, rows.size + 1, size)),
                      shape=(count, data.n))  # fmt: skip

    def changes(each: Array) -> Array:
        """Of the mean, for each window."""
        change: Array = share @ each - each[reference].mean(axis=0)
        return change

    values = {name: changes(each) for name, each in found.one.items()}
    for name in data.scores:
        values[f"{name}, two-sided"] = np.abs(values[name])
    for name, each in found.several.items():
        change = changes(each)
        values[name] = np.abs(change).max(axis=1) if name == "classes" else (change**2).sum(axis=1)
    step = np.arange(size + 1) / size
    for name, ranks in found.distributions.items():
        ordered = np.sort(ranks[rows], axis=1)
        apart = np.maximum(np.abs(ordered - step[1:, None]), np.abs(ordered - step[:-1, None]))
        values[name] = apart.max(axis=(1, 2))
    if data.features is not None and size in CLASSIFIED:
        known = [_scattered(data.features[part]) for part in (reference[::2], reference[1::2])]
        values["domain classifier"] = np.array(
            [_classifier(known, data.features[each]) for each in rows[:WINDOWS]]
        )
    return values


Scattered = tuple[Array, Array, Array]


def _scattered(rows: Array) -> Scattered:
    """Rows, their mean, and the sum of the squares around it."""
    mean = rows.mean(axis=0)
    centred = rows - mean
    return rows, mean, centred.T @ centred


def _classifier(reference: Sequence[Scattered], window: Array) -> float:
    """The area under the ROC curve of two linear discriminants, each on the rows it was not fitted on."""
    parts = list(zip(reference, (_scattered(window[::2]), _scattered(window[1::2])), strict=True))
    areas = []
    for (a, b), (c, d) in (parts, parts[::-1]):
        spread = (a[2] + b[2]) / (len(a[0]) + len(b[0]))
        spread += 0.1 * np.trace(spread) / len(spread) * np.eye(len(spread))
        direction = np.linalg.solve(spread, b[1] - a[1])
        areas.append(ranks_in(c[0] @ direction, d[0] @ direction).mean())
    return float(np.mean(areas))


@dataclass(frozen=True, eq=False)
class Drawn:
    """Windows of one split, for the detectors that are run elsewhere."""

    network: Network
    data: Numbers
    reference: Array
    cell: Cell
    rows: Array


def draws(members: list[Network], seed: int, splits: int) -> Iterator[Drawn]:
    """The windows of a task and half; the same for everything that is compared."""
    rng = np.random.default_rng(seed)
    for network in members:
        data = numbers(network)
        for _ in range(max(1, splits // len(members))):
            order = rng.permutation(data.familiar)
            reference, pool = np.split(order, [data.familiar // 2])
            for cell, rows in windows(network, data, pool, rng):
                yield Drawn(network, data, reference, cell, rows)


def rates(drawn: Iterable[Drawn]) -> dict[Cell, dict[str, float]]:
    """The detection rate of each detector and rule at 5% false alarms."""
    values: dict[Cell, dict[str, list[Array]]] = {}
    known: tuple[Array, Columns] | None = None
    many = False
    for each in drawn:
        if known is None or known[0] is not each.reference:
            known = each.reference, columns(each.data, each.reference)
        many = each.data.many
        cell = values.setdefault(each.cell, {})
        for name, value in statistics(known[1], each.data, each.reference, each.rows).items():
            cell.setdefault(name, []).append(value)
    joined = {cell: {name: np.stack(parts) for name, parts in each.items()} for cell, each in values.items()}
    return {
        cell: detection_rates(
            found, joined[cell[0], "familiar"], cell[0], many, whole_family=cell[1] in SHARES
        )
        for cell, found in joined.items()
        if cell[1] != "familiar"
    }
