"""Training watched where there is no terminal: a line now and then for the log."""

import pytest

from surefoot.cli import progress as training_view
from surefoot.recipes.recipe import Recipe
from surefoot.workers.jobs import Job, WorkOrder

JOBS = tuple(Job(Recipe(network="mlp", epochs=4, protocol="holdout"), seed) for seed in range(2))
ORDER = WorkOrder(task="toy", root=None, jobs=JOBS, store="runs")


def epoch(number, job=0):
    return {"event": "epoch", "job": job, "phase": "train", "epoch": number, "epochs": 4, "loss": 0.25}


def told(events):
    with training_view.watch(ORDER, title="toy") as on_event:
        for event in events:
            on_event(event)


def test_a_log_gets_lines(monkeypatch, capsys):
    monkeypatch.setattr(training_view, "SECONDS_BETWEEN_LINES", 0)
    told([{"event": "ready"}, epoch(1), epoch(2), {"event": "done", "job": 0}])
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4
    assert said[2].startswith("toy: 0 of 2 networks; seed 0: epoch 2 of 4, loss 0.2500; 0:0")
    assert said[3].startswith("toy: 1 of 2 networks; ")
    assert said[3].endswith(" left")


@pytest.mark.parametrize("events", [1, 4])
def test_but_not_for_every_epoch(events, capsys):
    told([epoch(number + 1) for number in range(events)])
    assert capsys.readouterr().err == ""
