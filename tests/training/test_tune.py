"""The search for a learning rate: by validation, with a plateau, and never by what is unfamiliar."""

import math
from dataclasses import replace

import pytest
import torch

from surefoot.errors import InputError
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.tasks import task_named
from surefoot.lab.tasks.task import Split
from surefoot.lab.training.data import task_inputs
from surefoot.lab.training.tune import (
    LADDER,
    RATES,
    Trial,
    TuneContext,
    next_rate,
    try_rate,
    tune,
    within_one_standard_error,
)

RECIPE = Recipe(network="mlp", width=32, weight_decay=1e-4)


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    task = task_named("toy")
    inputs = task_inputs(task, RECIPE, cache=tmp_path_factory.mktemp("cache"))
    return TuneContext(task, inputs, RECIPE, torch.device("cpu"), patience=2, most_epochs=9)


@pytest.fixture(scope="module")
def searched(context):
    seen = []
    best, trials = tune(replace(context, on_event=seen.append), (1e30, 0.1, 1e-6))
    return best, trials, seen


def test_a_sensible_rate_wins_and_the_rest_of_the_recipe_stays(searched):
    best, trials, _ = searched
    assert best == replace(RECIPE, learning_rate=0.1, epochs=trials[1].epochs)
    assert trials[1].error < 0.1 < trials[2].error


def test_a_diverged_rate_is_said_to_have_diverged(searched):
    _, trials, _ = searched
    assert [trial.diverged for trial in trials] == [True, False, False]
    assert math.isnan(trials[0].error)


def test_every_epoch_is_seen_and_the_last_is_the_trial_s(searched):
    _, trials, seen = searched
    glimpses = [each for each in seen if each.learning_rate == 0.1]
    assert [each.epoch for each in glimpses[:-1]] == list(range(1, len(glimpses)))
    assert (glimpses[-1].error, glimpses[-1].nll) == (trials[1].error, trials[1].nll)


def test_the_epochs_are_those_to_the_plateau_and_a_third_again(searched, context):
    _, trials, seen = searched
    before = [each for each in seen if each.learning_rate == 0.1][:-1]
    reached = min(before, key=lambda each: (each.error, each.nll)).epoch
    assert trials[1].epochs == reached + math.ceil(reached / 3)
    assert replace(RECIPE, epochs=trials[1].epochs).drop_epoch == reached


def test_the_same_search_finds_the_same(searched, context):
    assert try_rate(context, 0.1) == searched[1][1]


def test_every_rate_diverged_is_an_error(context):
    with pytest.raises(InputError, match=r"diverged at every learning rate of 1e\+30; try lower ones"):
        tune(context, (1e30,))


def test_what_is_unfamiliar_has_no_part_in_it(searched, context):
    left = {split: context.inputs[split] for split in (Split.TRAIN, Split.VAL)}
    assert try_rate(replace(context, inputs=left), 0.1) == searched[1][1]


def test_a_task_without_val_is_refused(context):
    bare = replace(context.task, splits={Split.TRAIN: context.task.splits[Split.TRAIN]})
    with pytest.raises(InputError, match="has no val split; needed: one, to search on"):
        tune(replace(context, task=bare), (0.1,))


def trials(errors):
    """One for each rate; None is one that diverged."""
    return [
        Trial(rate, 9, math.nan if error is None else error, 0.5, diverged=error is None)
        for rate, error in errors.items()
    ]


BEYOND = {
    "the best is inside": ([0.3, 0.1, 0.2, 0.3, 0.4], None),
    "the best is the highest": ([0.1, 0.2, 0.3, 0.4, 0.5], 0.3),
    "the best is the lowest": ([0.5, 0.4, 0.3, 0.2, 0.1], 0.0003),
    "the highest diverged": ([None, 0.1, 0.2, 0.3, 0.4], None),
    "all diverged": ([None] * 5, 0.0003),
}


@pytest.mark.parametrize(("errors", "beyond"), BEYOND.values(), ids=BEYOND)
def test_the_search_goes_on_where_the_best_is_at_an_end(errors, beyond):
    assert next_rate(trials(dict(zip(RATES, errors, strict=True)))) == beyond


def test_the_search_ends_with_the_ladder():
    assert next_rate(trials({rate: rate for rate in LADDER})) is None
    assert next_rate(trials({rate: -rate for rate in LADDER})) is None


def test_a_search_left_alone_ends_inside_of_what_it_tried(context):
    slow = replace(context, recipe=replace(RECIPE, width=24, batch=1200), patience=1, most_epochs=1)
    best, found = tune(slow)
    tried = [trial.learning_rate for trial in found]
    assert len(tried) > len(RATES)  # one step of 0.1 is too small
    assert min(tried) < best.learning_rate < max(tried)
    assert tried[: len(RATES)] == list(RATES)


def test_rates_within_the_best_one_s_standard_error_are_named():
    trials = [Trial(0.3, 9, 0.25, 1.0), Trial(0.1, 9, 0.20, 1.0), Trial(0.03, 9, 0.219, 1.0)]
    diverged = Trial(1.0, 9, math.nan, math.nan, diverged=True)
    error, others = within_one_standard_error([*trials, diverged], samples=400)
    assert error == pytest.approx(0.02)  # the root of 0.2 x 0.8 / 400
    assert others == [trials[2]]
    assert within_one_standard_error(trials, samples=40_000)[1] == []


def test_no_wrong_sample_is_not_known_better_than_one_wrong_sample():
    trials = [Trial(0.3, 9, 0.02, 1.0), Trial(0.1, 9, 0.0, 1.0), Trial(0.03, 9, 0.01, 1.0)]
    assert within_one_standard_error(trials, samples=100) == (0.01, [trials[2]])
