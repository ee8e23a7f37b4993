"""The most confident mistakes are the right ones, and their pictures are what was given."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from surefoot import Predictions
from surefoot.report import study_gallery as gallery
from surefoot.report.study_gallery import Mistake
from tests.conftest import draw_many_labels, draw_one_label

NAMES = ("<script>alert(1)</script>", "$\\frac{", "日本語" * 30, "d\x01")


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def decoded(uri):
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1])))


def test_one_label_mistakes_against_a_search_by_hand():
    before = draw_one_label(200, 4, sharpness=4, class_names=NAMES)
    after = before.with_logits(before.logits / 2)
    p, p_before = after.probs(), before.probs()
    predicted, true = p.argmax(axis=1), after.labels
    wrong = sorted(np.flatnonzero(predicted != true), key=lambda row: -p[row, predicted[row]])
    mistakes = gallery.most_confident_mistakes(after, 12, other=before)
    assert [each.row for each in mistakes] == wrong[:12]
    for each in mistakes:
        assert (each.true, each.predicted) == (NAMES[true[each.row]], NAMES[predicted[each.row]])
        assert each.confidence == pytest.approx(p[each.row].max())
        assert each.before == pytest.approx(p_before[each.row, predicted[each.row]])
    assert len(gallery.most_confident_mistakes(after, 10**6)) == len(wrong)


def test_many_label_mistakes_against_a_search_by_hand():
    predictions = draw_many_labels(seed=4)
    p, labels = predictions.probs(), predictions.labels
    answers = [
        (max(p[row, c], 1 - p[row, c]), row, c)
        for row, c in np.argwhere(labels >= 0)
        if (p[row, c] > 0.5) != (labels[row, c] == 1)
    ]
    expected = sorted(answers, key=lambda answer: -answer[0])[:8]
    mistakes = gallery.most_confident_mistakes(predictions, 8, other=predictions)
    assert [each.row for each in mistakes] == [row for _, row, _ in expected]
    for each, (confidence, row, c) in zip(mistakes, expected, strict=True):
        present = (f"class {c} is there", f"no class {c}")
        assert (each.true, each.predicted) == (present if labels[row, c] == 1 else present[::-1])
        assert (each.confidence, each.before) == pytest.approx((confidence, confidence))


def test_ties_go_by_row():
    predictions = Predictions.from_probs([[0.9, 0.1]] * 5, [1, 0, 1, 0, 1])
    assert [each.row for each in gallery.most_confident_mistakes(predictions, 2)] == [0, 2]


def test_an_image_is_embedded_as_it_is_or_as_a_thumbnail():
    small, large = noise(28, 20), np.full((300, 600, 3), (200, 100, 50), dtype=np.uint8)
    uris = [gallery.data_uri(image) for image in (small, large)]
    assert uris[0].startswith("data:image/png;base64,")
    assert (np.asarray(decoded(uris[0])) == small).all()
    assert uris[1].startswith("data:image/jpeg;base64,")
    thumbnail = np.asarray(decoded(uris[1]), dtype=int)
    assert thumbnail.shape == (80, 160, 3)
    assert np.abs(thumbnail - large[0, 0]).max() <= 3


def test_the_contact_figure_is_the_same_every_time_whatever_the_names():
    images = [noise(40 + i, 60, seed=i) for i in range(7)]
    mistakes = [Mistake(i, NAMES[i % 4], NAMES[-i % 4], 0.9, 0.95) for i in range(7)]
    png = gallery.gallery_png(images, mistakes, dpi=50)
    assert Image.open(io.BytesIO(png)).width == 360
    assert png == gallery.gallery_png(images, mistakes, dpi=50)
    assert png != gallery.gallery_png(images[::-1], mistakes, dpi=50)
