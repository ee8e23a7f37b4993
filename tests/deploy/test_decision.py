"""The verdict: a limit from data not trained on that keeps its promise, and rates that are counted."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import binomtest

from surefoot.decisions.decision import familiar_from, fit_familiar, rule_from
from surefoot.errors import InputError
from surefoot.lab.experiments.methods import METHODS
from surefoot.lab.tasks.task import Split
from surefoot.metrics.intervals import Proportion
from tests.serve.made import METHOD, bundled


def test_one_more_familiar_sample_is_seldom_called_unfamiliar():
    """At most 5%, whatever the distribution; and not far below, or the verdict would say nothing."""
    rng = np.random.default_rng(0)
    alarms = []
    for _ in range(4000):
        drawn = rng.lognormal(size=41)
        found = fit_familiar(drawn[:40], drawn[40:], None)
        alarms.append(found.verdict(drawn[40]) == "unfamiliar")
        assert found.alarms.k == alarms[-1]
    assert binomtest(sum(alarms), len(alarms), 2 / 41).pvalue > 1e-4  # the two largest of 41 places
    assert 2 / 41 <= 0.05


@pytest.mark.parametrize(("n", "above"), [(19, 0), (20, 0), (39, 1), (99, 4), (1000, 49), (5, 0)])
def test_the_limit_by_hand(n, above):
    found = fit_familiar(np.arange(n, dtype=float), np.arange(n, dtype=float), np.array([-1.0, n]))
    assert (found.alarms.k, found.alarms.n) == (above, n)
    assert (found.found.k, found.found.n) == (1, 2)
    assert found.verdict(found.limit) == "familiar"
    assert found.verdict(found.limit + 1e-9) == "unfamiliar"


def test_it_is_kept_in_a_bundle_with_the_reference(tmp_path):
    """Again from the stored logits: the energy's mean over members, its rank, and who lies above."""
    import surefoot

    made, folder = bundled(tmp_path)
    bundle = surefoot.load_bundle(folder)
    specs = made.opened.plans[0].methods[0].runs[0]
    assert made.opened.plans[0].methods[0].method.name == METHOD

    def novelty(split):
        each = [made.store.predictions(spec, split).logits.astype(float)[0] for spec in specs]
        return np.mean([-logsumexp(logits, axis=1) for logits in each], axis=0)

    scores = {split: novelty(split) for split in (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)}
    familiar = scores[Split.TEST_FAMILIAR]
    drawn = np.random.default_rng(23).permutation(len(familiar))
    measured, held_out = np.split(familiar[drawn], [len(drawn) // 2])
    rank = min(len(held_out), int(np.ceil(0.95 * (len(held_out) + 1))))
    assert bundle.familiar.limit == pytest.approx(np.sort(held_out)[rank - 1], rel=1e-9)
    assert bundle.familiar.n == len(held_out)
    for rate, found in (("alarms", measured), ("found", scores[Split.TEST_UNFAMILIAR])):
        counted = getattr(bundle.familiar, rate)
        assert (counted.k, counted.n) == ((found > bundle.familiar.limit).sum(), len(found))
        exact = binomtest(counted.k, counted.n).proportion_ci()
        assert (counted.low, counted.high) == pytest.approx((exact.low, exact.high))
    document = json.loads((folder / "calibration.json").read_text())["novelty"]["familiar"]
    assert familiar_from(document) == bundle.familiar
    assert bundle.familiar.sentences()[0] in (folder / "README.md").read_text()
    old = familiar_from({name: value for name, value in document.items() if name != "source"})
    assert "familiar validation samples are at or below it" in old.sentences()[0]

    reference, stored = bundle.reference, made.stored(METHODS.named(METHOD)).after[Split.TEST_FAMILIAR]
    np.testing.assert_allclose(reference.novelty, familiar)
    np.testing.assert_allclose(reference.probs(), stored.probs(), atol=1e-6)
    assert (reference.labels == stored.labels).all()
    assert (reference.members, reference.ids, reference.groups) == (1, None, None)


def test_the_verdict_is_useful_if_it_finds_twice_as_many():
    """By the ends of exact intervals: 5 of 100 is up to 11.3%, so 22.6% must be certain."""
    high = binomtest(5, 100).proportion_ci().high
    for k, n, useful in ((100, 400, False), (110, 400, True), (20, 20, True), (3, 4, False)):
        found = fit_familiar(np.arange(100.0), np.arange(100.0), np.array([99.5] * k + [0.0] * (n - k)))
        assert (found.alarms.k, found.found.k) == (4, k)
        found = replace(found, alarms=Proportion.of(5, 100))
        assert found.is_useful == useful == (binomtest(k, n).proportion_ci().low >= 2 * high)
    assert not replace(found, found=None).is_useful


def test_there_may_be_nothing_unfamiliar():
    found = fit_familiar(np.arange(40.0), np.arange(40.0), None)
    assert familiar_from(json.loads(json.dumps(found.as_dict()))) == found
    assert found.sentences()[1].endswith("there were no unfamiliar test samples.")


def test_a_rule_from_plain_values():
    rule = rule_from({"accept": 0.9, "reject": 0.5, "classes": 3, "for_class": None}, classes=3)
    assert (rule.accept, rule.reject) == (0.9, 0.5)
    for accept, reject in ((0, 0), (1, 1), (0.5, 0.5), (1 + 1e-10, 0)):
        assert rule_from({"accept": accept, "reject": reject}, classes=2).accept == accept
    nothing = rule_from({"accept": None, "reject": None}, classes=2)
    assert (nothing.accept, nothing.reject) == (math.inf, -math.inf)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "no thresholds; needed: an object"),
        ({"accept": 1, "reject": 0, "for_class": "cat"}, "thresholds for 'cat' alone"),
        ({"accept": 1, "reject": 0, "classes": 3}, "thresholds for 3 classes, and the bundle has 2"),
        ({"accept": 1}, "no threshold 'reject'"),
        ({"reject": 0}, "no threshold 'accept'"),
        ({"accept": True, "reject": 0}, "accept is True; allowed: a confidence"),
        ({"accept": "1", "reject": 0}, "accept is '1'; allowed: a confidence"),
        ({"accept": 1.01, "reject": 0}, r"accept is 1\.01; allowed: a confidence"),
        ({"accept": 1, "reject": -0.1}, r"reject is -0\.1; allowed: a confidence"),
        ({"accept": 0.5, "reject": 0.6}, r"reject is 0\.6, above accept, which is 0\.5"),
    ],
)
def test_a_rule_that_is_wrong_is_refused(document, message):
    with pytest.raises(InputError, match=message):
        rule_from(document, classes=2)
