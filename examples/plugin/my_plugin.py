"""One of each: a metric, a calibrator, a training variant, a method and a task, as docs/extending.md says."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import surefoot
from surefoot.lab.tasks.task import Samples, Split, Task
from surefoot.predictions.labels import LabelKind

# A metric: a ratio of sums over decisions. It gets intervals, gaps and differences, and it can be streamed.
half_sure = surefoot.Metric(
    "half_sure",
    "Below 50% confidence",
    "share of decisions with confidence < 0.5",
    "my_plugin",
    numerator=lambda decisions: (decisions.confidence < 0.5).astype(float),
    better="neither",
)


# A calibrator: its `fit` takes validation predictions and returns a Calibration, whose fields are in files.
@dataclass(frozen=True, kw_only=True)
class Doubled(surefoot.Calibration):
    """Twice the best temperature."""

    kind: ClassVar[str] = "doubled"

    temperature: float

    @property
    def temperatures(self):
        return (self.temperature,)

    def apply(self, predictions):
        return predictions.with_logits(predictions.logits / self.temperature)

    def parameters(self):
        return {"T": [self.temperature]}


def fit_doubled(val):
    best = surefoot.fit_temperature(val)
    return Doubled(
        temperature=2 * best.temperature, n=best.n, label_kind=best.label_kind, classes=best.classes
    )


doubled = surefoot.Calibrator(
    "doubled", "Twice the temperature", "softmax(z / 2T)", "my_plugin",
    kind="doubled", fit=fit_doubled, read=Doubled.from_dict,
)  # fmt: skip


# A training variant: values that are part of the recipe's hash, and an objective.
@dataclass(frozen=True, kw_only=True)
class LabelSmoothing(surefoot.Variant):
    """Trained on smoothed labels (Szegedy et al., CVPR 2016)."""

    name: ClassVar[str] = "label-smoothing"

    smoothing: float = 0.1

    def objective(self, training):
        from torch.nn import functional

        from surefoot.lab.training.losses import Objective

        smoothing = self.smoothing

        class Smoothed(Objective):
            def __call__(self, outputs, views, rows, labels):
                return functional.cross_entropy(outputs.float(), labels, label_smoothing=smoothing)

        return Smoothed()


# A method: a row of the table. It names the networks that it uses and the calibrator that it fits.
smoothed = surefoot.Method(
    name="smoothed-doubled",
    title="Label smoothing + 2T",
    variant=lambda _setup, _run: LabelSmoothing(smoothing=0.2),
    fit="doubled",
    not_in_paper=True,
    reference="my_plugin",
    page="",
    formula="softmax(z / 2T), trained on smoothed labels",
    training="1",
    inference="1",
)


# A task: samples by split. Most people describe a task in a TOML file instead.
def load_blobs(_root, _variant):
    def drawn(split, centre, count, seed):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 2, count)
        points = rng.normal(size=(count, 2)) + np.where(labels[:, None] == 1, centre, -centre)
        ids = np.asarray([f"{split}-{index}" for index in range(count)])
        return Samples(ids=ids, labels=labels, inputs=points.astype(np.float32))

    return Task(
        name="blobs",
        kind=LabelKind.ONE_LABEL,
        class_names=("left", "right"),
        splits={
            Split.TRAIN: drawn("train", 1.5, 300, 0),
            Split.VAL: drawn("val", 1.5, 300, 1),
            Split.TEST_FAMILIAR: drawn("familiar", 1.5, 300, 2),
            Split.TEST_UNFAMILIAR: drawn("unfamiliar", 0.5, 300, 3),
        },
    )


blobs = surefoot.TaskEntry("blobs", "Blobs", "two Gaussian blobs; unfamiliar: closer together", load_blobs)

surefoot.register(half_sure, doubled, LabelSmoothing, smoothed, blobs)
