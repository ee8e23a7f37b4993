"""The power of shift detectors and of their combinations: the study of monitoring_protocol.md.

    python benchmarks/detectors.py STORE [--embeddings pets-embeddings.npz] [--turns 200]

STORE has networks with predictions on familiar and unfamiliar test rows; the embeddings come from
experiments/pets_embeddings.py. Results go to benchmarks/results/detectors.md.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np

from surefoot import read_predictions
from surefoot.deploy.monitor import energies
from surefoot.deploy.thresholds import confidences
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.predictions import Predictions

Array = np.ndarray
Rates = dict[str, dict[str, dict[str, dict[str, float]]]]  # half, network, window, detector
RESULTS = Path(__file__).parent / "results" / "detectors.md"
SIZES = (25, 50, 100, 200, 500, 1000, 2000)
CELLS = ((25, "100%"), (100, "100%"), (200, "30%"), (500, "10%"))  # that decide
RANKS = ("confidence rank-sum", "energy rank-sum")
ONE_SIDED = ("confidence lower", "energy higher", "confidence lower Savage", "energy higher Savage")
SETS = {
    "two KS tests (before)": ("confidence KS", "energy KS"),
    "rank-sums": RANKS,
    "rank-sums, BBSD": (*RANKS, "BBSD"),
    "rank-sums, MMD": (*RANKS, "MMD of logits"),
    "rank-sums, MMD, chi-square": (*RANKS, "MMD of logits", "classes chi-square"),
    "rank-sums, Savage": (*RANKS, "confidence Savage", "energy Savage"),
    "one-sided": ONE_SIDED,
    "one-sided, MMD": (*ONE_SIDED, "MMD of logits"),
    "one-sided, KS": (*ONE_SIDED, "confidence KS"),
    "one-sided, rank-sums": (*ONE_SIDED, *RANKS),
    "one-sided, MMD with a quarter": (*ONE_SIDED, "MMD of logits"),
}
WEIGHTED = ("one-sided, MMD with a quarter", "one-sided, MMD with a quarter, features")
QUARTER = 4  # times the p-value of MMD in these sets: it gets a quarter of the weight
FEATURES = ("MMD of features", "kNN rank-sum")
FREQUENCIES = 64  # random Fourier features of the kernel


@dataclass(frozen=True, eq=False)
class Side:
    """The columns of some rows: one score per row, and the vectors of the kernel tests."""

    scores: Array  # (n, 3): confidence, entropy, energy
    classes: Array  # (n, classes) probabilities
    logits: Array  # (n, d) random Fourier features
    features: Array | None  # (n, 64)
    fourier: Array | None  # (n, d) random Fourier features of them

    def take(self, rows: Array) -> "Side":
        return Side(*(None if each is None else each[rows] for each in vars(self).values()))

    def joined(self, other: "Side") -> "Side":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Side(*(None if a is None else np.concatenate([a, b]) for a, b in pairs))


@dataclass(frozen=True, eq=False)
class Data:
    """One network: familiar rows, and the unfamiliar rows of each half of the groups."""

    name: str
    familiar: Side
    first_class: Array  # which familiar rows are of the first class
    unfamiliar: dict[str, Side]  # 'choose' and 'confirm'


def fourier(values: Array, centre: Array, rng: np.random.Generator) -> Array:
    """Random Fourier features of a Gaussian kernel whose width is the median distance of `centre`'s rows."""
    some = centre[rng.permutation(len(centre))[:500]]
    squares = ((some[:, None] - some[None]) ** 2).sum(axis=2)
    width = np.sqrt(np.median(squares[squares > 0]))
    frequency = rng.standard_normal((values.shape[1], FREQUENCIES)) / width
    angle = values @ frequency
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1) / np.sqrt(FREQUENCIES)


def side_of(predictions: Predictions, features: Array | None) -> Side:
    probs = predictions.probs().numpy()
    clipped = np.clip(probs, 1e-12, 1)
    entropy = -(clipped * np.log(clipped)).sum(axis=1)
    if predictions.kind is LabelKind.MANY_LABELS:
        entropy -= ((1 - probs) * np.log(np.clip(1 - probs, 1e-12, 1))).sum(axis=1)
    scores = np.stack([confidences(predictions), entropy, energies(predictions)], axis=1)
    return Side(scores, probs, predictions.average().logits[0].double().numpy(), features, features)


def with_kernels(familiar: Side, others: dict[str, Side]) -> tuple[Side, dict[str, Side]]:
    """The same with random Fourier features, of logits scaled to variance 1 and of features."""
    rng = np.random.default_rng(1)
    found = []
    sides = [familiar, *others.values()]
    for name in ("logits", "fourier"):
        values = [getattr(side, name) for side in sides]
        if values[0] is None:
            found.append([None] * len(sides))
            continue
        scale = values[0].std(axis=0) + 1e-12
        seed = int(rng.integers(1000))
        found.append(
            [fourier(each / scale, values[0] / scale, np.random.default_rng(seed)) for each in values]
        )
    made = [
        Side(side.scores, side.classes, logits, side.features, features)
        for side, logits, features in zip(sides, *found, strict=True)
    ]
    return made[0], dict(zip(others, made[1:], strict=True))


def halves(groups: Array | None, n: int) -> dict[str, Array]:
    """The rows of the groups at even places choose, the others confirm."""
    if groups is None:
        return {"confirm": np.arange(n)}
    place = np.unique(groups, return_inverse=True)[1]
    return {"choose": np.flatnonzero(place % 2 == 0), "confirm": np.flatnonzero(place % 2 == 1)}


def load(folder: Path) -> Data:
    familiar, unfamiliar = (read_predictions(folder / f"test_{s}.npz") for s in ("familiar", "unfamiliar"))
    recipe = json.loads((folder / "spec.json").read_text())["recipe"]
    kind = "sharpness-aware" if recipe.get("sharpness") else "standard"
    return data_of(f"{folder.parts[-3]}, {kind}", familiar, unfamiliar, None, None)


def data_of(
    name: str, familiar: Predictions, unfamiliar: Predictions, inside: Array | None, outside: Array | None
) -> Data:
    rows = halves(unfamiliar.groups, unfamiliar.n)
    strange = side_of(unfamiliar, outside)
    own, others = with_kernels(
        side_of(familiar, inside), {half: strange.take(chosen) for half, chosen in rows.items()}
    )
    labels = familiar.labels.numpy()
    first = labels == 0 if labels.ndim == 1 else labels[:, labels.clip(0).sum(axis=0).argmax()] == 1
    return Data(name, own, first, others)


def embedded(path: Path) -> Data:
    """Logistic regression on the embeddings of training photographs, with features of 64 dimensions."""
    from sklearn.linear_model import LogisticRegression

    with np.load(path) as stored:
        columns = {name: stored[name] for name in ("splits", "labels", "groups", "vectors")}
    rng = np.random.default_rng(0)
    projection = rng.standard_normal((columns["vectors"].shape[1], 64)) / 8
    parts = {name: columns["splits"] == name for name in np.unique(columns["splits"])}
    train = parts["train"] | parts["val"]
    model = LogisticRegression(C=0.01, max_iter=500).fit(columns["vectors"][train], columns["labels"][train])
    sides = []
    for name in ("test_familiar", "test_unfamiliar"):
        rows = parts[name]
        odds = model.decision_function(columns["vectors"][rows])
        labels, groups = columns["labels"][rows], columns["groups"][rows]
        sides.append(Predictions.from_logits(odds, labels, groups=groups))
    vectors = [columns["vectors"][parts[n]] @ projection for n in ("test_familiar", "test_unfamiliar")]
    return data_of("Pets embeddings", *sides, *vectors)


def statistics(reference: Side, window: Side, bank: Side) -> dict[str, float]:
    """Every detector's statistic; larger is more evidence of a shift. The bank has more familiar rows."""
    n, m = len(reference.scores), len(window.scores)
    found = {}
    for column, name in enumerate(("confidence", "entropy", "energy")):
        ordered, values = np.sort(reference.scores[:, column]), window.scores[:, column]
        above = _above(ordered, values)
        found[f"{name} rank-sum"] = abs(above)
        if name == "entropy":
            found["entropy t"] = abs(float(values.mean() - ordered.mean()))
            continue
        found[f"{name} KS"] = _distance(ordered, np.sort(values))
        sign, word = (-1, "lower") if name == "confidence" else (1, "higher")
        found[f"{name} {word}"] = sign * above
        tail = _savage(np.sort(sign * ordered), sign * values)
        found[f"{name} {word} Savage"] = tail
        found[f"{name} Savage"] = abs(tail)
    found["BBSD"] = max(
        _distance(np.sort(reference.classes[:, c]), np.sort(window.classes[:, c]))
        for c in range(reference.classes.shape[1])
    )
    counts = np.array(
        [
            np.bincount(side.classes.argmax(axis=1), minlength=side.classes.shape[1])
            for side in (reference, window)
        ]
    )
    seen = counts.sum(axis=0) > 0
    expected = np.outer([n, m], counts.sum(axis=0)[seen]) / (n + m)
    found["classes chi-square"] = float(((counts[:, seen] - expected) ** 2 / expected).sum())
    found["MMD of logits"] = float(((reference.logits.mean(axis=0) - window.logits.mean(axis=0)) ** 2).sum())
    if reference.features is not None:
        assert reference.fourier is not None
        assert window.fourier is not None
        assert window.features is not None
        found["MMD of features"] = float(
            ((reference.fourier.mean(axis=0) - window.fourier.mean(axis=0)) ** 2).sum()
        )
        distances = (_neighbours(side.features, bank) for side in (reference, window))
        found["kNN rank-sum"] = abs(_above(np.sort(next(distances)), next(distances)))
        found["domain classifier"] = _domain_classifier(reference.features, window.features)
    return found


def _above(ordered: Array, values: Array) -> float:
    """P(a value is above one of the reference) less 0.5, ties half."""
    below = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2
    return float(below.mean()) / len(ordered) - 0.5


def _savage(ordered: Array, values: Array) -> float:
    """The mean of -log(1 - rank / (N + 1)) over the values, ranked among all rows, less its expectation."""
    both = np.sort(np.concatenate([ordered, values]))
    rank = (np.searchsorted(both, values, "left") + np.searchsorted(both, values, "right") + 1) / 2
    scores = -np.log1p(-np.arange(1, len(both) + 1) / (len(both) + 1))
    return float(-np.log1p(-rank / (len(both) + 1)).mean() - scores.mean())


def _distance(first: Array, second: Array) -> float:
    both = np.concatenate([first, second])
    shares = [np.searchsorted(each, both, "right") / len(each) for each in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())


def _neighbours(features: Array, bank: Side) -> Array:
    """The distance to the tenth nearest row of the bank, all scaled to length 1."""
    assert bank.features is not None
    a, b = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (features, bank.features))
    return np.partition(2 - 2 * a @ b.T, 9, axis=1)[:, 9]


def _domain_classifier(reference: Array, window: Array) -> float:
    """The area under the ROC curve of two linear discriminants, each on the rows it was not fitted on."""
    parts = [(reference[::2], window[::2]), (reference[1::2], window[1::2])]
    areas = []
    for (a, b), (c, d) in (parts, parts[::-1]):
        spread = (np.cov(a.T) * len(a) + (np.cov(b.T) * len(b) if len(b) > 1 else 0)) / (len(a) + len(b))
        ridge = 0.1 * np.trace(spread) / len(spread) * np.eye(len(spread))
        direction = np.linalg.solve(spread + ridge, b.mean(axis=0) - a.mean(axis=0))
        ordered, values = np.sort(c @ direction), d @ direction
        areas.append(np.searchsorted(ordered, values).mean() / len(ordered))
    return float(np.mean(areas))


def windows(
    data: Data, half: str, sizes: Sequence[int], rng: np.random.Generator
) -> Iterator[tuple[int, str, Side, Side, Side]]:
    """Size, kind, window, reference and bank; one of each."""
    n = len(data.familiar.scores)
    order = rng.permutation(n)
    bank, reference = (data.familiar.take(part) for part in np.split(order[: n // 2], [n // 8]))
    if data.familiar.features is None:
        reference = data.familiar.take(order[: n // 2])
    pool, strange = order[n // 2 :], data.unfamiliar[half]
    first = data.first_class[pool]
    weight = np.where(first, 3.0, 1.0)
    for size in sizes:
        if size <= len(pool):
            yield size, "familiar", data.familiar.take(rng.permutation(pool)[:size]), reference, bank
            chosen = rng.choice(pool, size, p=weight / weight.sum())
            yield size, "label shift", data.familiar.take(chosen), reference, bank
        for kind, share in (("100%", 1.0), ("30%", 0.3), ("10%", 0.1)):
            k = round(share * size)
            if k <= len(strange.scores) and size - k <= len(pool):
                rows = strange.take(rng.permutation(len(strange.scores))[:k])
                same = data.familiar.take(rng.permutation(pool)[: size - k])
                yield size, kind, rows.joined(same), reference, bank


def powers(
    data: Data, half: str, turns: int, sizes: Sequence[int] = SIZES
) -> dict[tuple[int, str], dict[str, float]]:
    """The detection rate of each detector and set, by size and kind of the window, at 5% false alarms."""
    rng = np.random.default_rng(0)
    found: dict[tuple[int, str], dict[str, list[float]]] = {}
    for _ in range(turns):
        for size, kind, window, reference, bank in windows(data, half, sizes, rng):
            cell = found.setdefault((size, kind), {})
            for name, value in statistics(reference, window, bank).items():
                cell.setdefault(name, []).append(value)
    rates: dict[tuple[int, str], dict[str, float]] = {}
    for (size, kind), cell in found.items():
        null = found.get((size, "familiar"))
        if null is None:
            continue
        p = {name: _p_values(np.array(null[name]), np.array(values)) for name, values in cell.items()}
        p_null = {name: _p_values(np.array(values), np.array(values)) for name, values in null.items()}
        tested = {name: (-values, -p_null[name]) for name, values in p.items()}
        for name, members in all_sets("kNN rank-sum" in p).items():
            weight = {
                member: QUARTER if name in WEIGHTED and member.startswith("MMD") else 1 for member in members
            }
            smallest = [
                -np.min([weight[member] * each[member] for member in members], axis=0) for each in (p, p_null)
            ]
            tested[name] = (smallest[0], smallest[1])
        rates[(size, kind)] = {name: _rate(values, nulls) for name, (values, nulls) in tested.items()}
    return rates


def all_sets(features: bool) -> dict[str, tuple[str, ...]]:
    """The combinations; with features, each also with the detectors on features."""
    with_features = {f"{name}, features": (*members, *FEATURES) for name, members in SETS.items()}
    return SETS | (with_features if features else {})


def _p_values(null: Array, values: Array) -> Array:
    ordered = np.sort(null)
    return (1 + len(ordered) - np.searchsorted(ordered, values, "left")) / (len(ordered) + 1)


def _rate(values: Array, null: Array) -> float:
    """How often a value is above the 95% quantile; a tie with it counts with the share that makes it 5%."""
    limit = np.sort(null)[int(np.ceil(0.95 * len(null))) - 1]
    above, at = (null > limit).mean(), (null == limit).mean()
    tie = 0.0 if at == 0 else max(0.0, 0.05 - above) / at
    return float((values > limit).mean() + tie * (values == limit).mean())


def folders_of(store: Path) -> list[Path]:
    """Seed 0 of every recipe that has test predictions."""
    return sorted(path.parent for path in store.glob("networks/*/*/seed000*/test_unfamiliar.npz"))


def table(header: list[str], lines: list[list[str]]) -> str:
    ruled = ["|" + "|".join(f" {cell} " for cell in line) + "|" for line in (header, *lines)]
    return "\n".join([ruled[0], "|:--" + "|--:" * (len(header) - 1) + "|", *ruled[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--embeddings", type=Path)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--json", type=Path, default=Path("detectors.json"), help="all rates, as they come")
    given = parser.parse_args()
    every = [load(folder) for folder in folders_of(given.store)]
    every += [embedded(given.embeddings)] if given.embeddings else []
    rates: Rates = {}
    for half in ("choose", "confirm"):
        for data in every:
            if half in data.unfamiliar:
                found = powers(data, half, given.turns, given.sizes)
                rates.setdefault(half, {})[data.name] = {f"{n}, {k}": cell for (n, k), cell in found.items()}
                print(data.name, half, "done", flush=True)
                given.json.write_text(json.dumps(rates))
    write(rates, given.turns)


def write(rates: Rates, turns: int) -> None:
    """A table for each half: a row per detector and set, a column per deciding cell and network."""
    tables = []
    for half, networks in rates.items():
        cells = [(name, f"{n}, {k}") for n, k in CELLS for name in networks if f"{n}, {k}" in networks[name]]
        detectors = dict.fromkeys(each for name, cell in cells for each in networks[name][cell])
        lines = []
        for detector in detectors:
            values = [networks[name][cell].get(detector) for name, cell in cells]
            known = [value for value in values if value is not None]
            texts = ["" if value is None else f"{value:.0%}" for value in values]
            lines.append([detector, f"{np.mean(known):.1%}", *texts])
        header = ["detector or set", "mean", *(f"{name}: {cell}" for name, cell in cells)]
        tables.append(f"## Groups that {half}\n\n{table(header, lines)}\n")
    RESULTS.write_text(
        f"""# The power of shift detectors

{date.today()}, `benchmarks/detectors.py`, {turns} repetitions, protocol:
[monitoring_protocol.md](../monitoring_protocol.md). Detection rate at 5% false alarms by rows in the window
and share of unfamiliar rows among them.

"""
        + "\n".join(tables)
    )


if __name__ == "__main__":
    main()
