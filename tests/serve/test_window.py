"""The rolling window: the monitor's own answers on the latest rows, in /health, in /metrics and on the page."""

import json
import shutil
import time
from dataclasses import replace

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import surefoot
from surefoot import InputError
from surefoot.lab.experiments.methods import METHODS
from surefoot.lab.tasks.task import Split
from surefoot.monitoring.monitor_text import monitor_verdict
from surefoot.predictions.predictions import concatenated
from surefoot.serve.limits import Watch
from surefoot.serve.window import ShiftWindow
from tests.serve.made import METHOD, PATIENCE, json_of, picture, served

ROWS = 40


@pytest.fixture(scope="module")
def bundle(made):
    return surefoot.load_bundle(made[1])


def drawn(bundle, seed, rows, *, spread=1.0):
    """Predictions of noise, which is no picture of the task; without spread, of grey."""
    rng = np.random.default_rng(seed)
    return bundle.predict((spread * rng.standard_normal((rows, *bundle.shape))).astype(np.float32)).average()


def familiar(bundle, seed, rows):
    """Rows of the reference itself: nothing is more familiar."""
    reference = bundle.reference
    chosen = reference.take(np.random.default_rng(seed).permutation(reference.n)[:rows])
    return replace(chosen, labels=np.full_like(chosen.labels, surefoot.IGNORE))


def test_each_check_is_monitor_s_own_of_the_latest_rows(bundle, tmp_path):
    """Also across a restart: the history goes on, and so do the levels."""
    batches = [familiar(bundle, seed, 7) for seed in range(8)] + [drawn(bundle, seed, 9) for seed in range(8)]
    watch = Watch(rows=ROWS, every=20, history=tmp_path / "ours.jsonl")
    window, new, states = ShiftWindow(bundle, watch), 0, []
    assert window.document()["verdict"] == ["Not enough rows yet: 0 of 40."]
    for count, batch in enumerate(batches, start=1):
        window.add(batch)
        new += batch.n
        rows = concatenated(batches[:count])
        assert window._is_due() == (rows.n >= ROWS and new >= 20)
        if not window._is_due():
            continue
        if not states:
            assert window.document()["verdict"] == ["Enough rows; the first check has not ended yet."]
        window.check()
        new = 0
        latest = rows.average().take(slice(rows.n - ROWS, None))
        right = surefoot.monitor(bundle.reference, latest, history=tmp_path / "right.jsonl")
        document = window.document()
        assert document["verdict"] == monitor_verdict(right)
        assert document["latest"]["shift_p"] == min(each.adjusted for each in right.findings)
        assert document["latest"]["shift_level"] == right.budget.level
        assert document["latest"]["smallest_detectable_drop"] == right.smallest_drop
        states.append((document["state"], document["checks"], document["alarms"]))
        if len(states) == 3:
            window = ShiftWindow(bundle, watch)
            for earlier in batches[:count]:
                window.add(earlier)
            window._new = 0
    assert states[0] == ("no shift detected", 1, 0)
    assert states[-1][0] == "shift detected"
    assert states[-1][1] == len(states) == len((tmp_path / "ours.jsonl").read_text().splitlines())
    assert states[-1][2] == sum(name == "shift detected" for name, _, _ in states)
    without = ShiftWindow(bundle, Watch(rows=ROWS))
    without.add(concatenated(batches[:8]).average())
    without.check()
    assert without.state.check.budget.level == pytest.approx(0.05 * 6 / np.pi**2)


def test_a_bundle_without_a_reference_says_so(made, bundle, tmp_path):
    old = ShiftWindow(replace(bundle, reference=None, about={}), Watch())
    assert old.document()["state"] == "off"
    assert old.document()["verdict"][0].startswith(
        "Shift is not checked: this bundle has no reference, as it was"
    )
    assert [each.name for each in old.collect()] == ["surefoot_shift_checked"]
    assert ShiftWindow(bundle, Watch(rows=0)).document()["state"] == "off"
    for wrong, says in (
        ({"rows": 24}, "window is 24; allowed: 0 for no checks, or 25"),
        ({"every": 0}, "check_every"),
    ):
        with pytest.raises(InputError, match=says):
            Watch(**wrong)
    (tmp_path / "history.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match="is not a history of checks"):
        ShiftWindow(bundle, Watch(history=tmp_path / "history.jsonl"))
    folder = tmp_path / "bundle"
    shutil.copytree(made[1], folder)
    (folder / "reference.npz").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"reference\.npz is not the file that was bundled"):
        surefoot.load_bundle(folder)


def state_after(client, data, checks):
    """/health when so many checks were made."""
    for start in range(0, len(data), 8):
        parts = [("image", (f"{i}.png", each, "image/png")) for i, each in enumerate(data[start : start + 8])]
        assert client.post("/predict", files=parts).status_code == 200
    end = time.monotonic() + PATIENCE
    while (found := json_of(client.get("/health"))["shift"])["checks"] < checks and time.monotonic() < end:
        time.sleep(0.05)
    return found


def test_a_server_that_sees_other_images(made, tmp_path):
    """Familiar test images of the task, then only blue ones: in /health, in /metrics and on the page."""
    run, bundle = made
    tested = run.stored(METHODS.named(METHOD)).before[Split.TEST_FAMILIAR].ids
    same = [(run.images / name).read_bytes() for name in tested[:48]]
    other = [picture(seed, label=2) for seed in range(48)]
    history = tmp_path / "history.jsonl"
    with (
        served(bundle, "--window", 48, "--history", history) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE) as client,
    ):
        found = state_after(client, same[:40], 0)
        assert (found["state"], found["verdict"]) == (
            "not enough rows yet",
            ["Not enough rows yet: 40 of 48."],
        )
        assert "Not enough rows yet: 40 of 48." in client.get("/").text
        found = state_after(client, same[40:48], 1)
        assert found["state"] == "no shift detected"
        assert found["verdict"][0].startswith(
            "No shift detected. With 48 rows, a drop in the estimated accuracy"
        )
        found = state_after(client, other, 2)
        assert (found["state"], found["alarms"], found["verdict"][0]) == (
            "shift detected",
            1,
            "The data has shifted.",
        )
        page = client.get("/").text
        assert 'class="shifted"' in page
        assert "Checks: 2, alarms: 1, the last at " in page
        metrics = {
            sample.name: sample.value
            for family in text_string_to_metric_families(client.get("/metrics").text)
            for sample in family.samples
            if "shift" in sample.name or "accuracy" in sample.name or "drop" in sample.name
        }
        assert server.end()[0] == 0
    checks = [json.loads(line) for line in history.read_text().splitlines()]
    assert [each["alarm"] for each in checks] == [False, True]
    latest = checks[-1]
    assert metrics == {
        "surefoot_shift_checked": 1,
        "surefoot_shift_window_rows": 48,
        "surefoot_shift_checks_total": 2,
        "surefoot_shift_alarms_total": 1,
        "surefoot_shift_detected": 1,
        "surefoot_shift_p": min(latest["adjusted"].values()),
        "surefoot_shift_level": latest["level"],
        "surefoot_estimated_accuracy": latest["accuracy"]["value"],
        "surefoot_estimated_accuracy_drop": latest["drop"]["value"],
        "surefoot_smallest_detectable_drop": found["latest"]["smallest_detectable_drop"],
    }


def test_the_verdict_states_its_rates_and_is_off_where_they_are_useless(made, bundle):
    """Of the few test images of this task, which are hardly unfamiliar, nothing useful can be said."""
    rates = bundle.familiar
    assert not rates.is_useful
    for options, shown in (((), False), (("--verdict", "on"), True)):
        with served(made[1], *options, "--window", 0) as server:
            answer = httpx.post(
                server.url + "/predict",
                content=picture(),
                headers={"content-type": "image/png"},
                timeout=PATIENCE,
            )
            page = httpx.get(server.url, timeout=PATIENCE).text
        result = json_of(answer)
        about = result["unfamiliar_verdict"]
        assert about["shown"] == shown == (result["predictions"][0]["verdict"] is not None)
        assert (about["detected"]["k"], about["detected"]["n"]) == (rates.found.k, rates.found.n)
        assert about["detected"]["value"] == rates.found.value
        assert about["false_alarms"]["value"] == rates.alarms.value
        assert ("twice as often" in page) == ("twice as often" in (about["reason"] or "")) == (not shown)
