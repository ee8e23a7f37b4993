"""Every variant survives its file, keeps its hash, refuses wrong values, and loads without torch."""

import json
import subprocess
import sys

import pytest

from surefoot.errors import InputError
from surefoot.lab.recipes.recipe import Recipe, Spec, Teachers, write_recipe
from surefoot.lab.variants import (
    PLAIN,
    VARIANTS,
    Averaged,
    Bayesian,
    Distilled,
    HeldOut,
    read_recipe,
    recipe_from,
    variant_of,
)

TEACHERS = Teachers(Recipe(), (0, 1))
DIGESTS = {  # of stored networks: with another digest they would not be found
    "plain": (None, "44136fa355b3"),
    "distilled": (Distilled(teachers=TEACHERS), "58d37d435435"),
    "on unlabelled samples": (Distilled(teachers=TEACHERS, unlabelled=0.25, temperature=3), "a648a67808a8"),
    "with all options": (
        Distilled(
            teachers=TEACHERS,
            unlabelled=1,
            unlabelled_folder="large",
            teacher_temperatures=True,
            separate_batches=True,
        ),
        "6b5657008783",
    ),
    "bayesian": (Bayesian(), "c9d465b3e44d"),
    "sampled in every layer": (Bayesian(sampled="network", dropout=0), "c17dcb1da55d"),
    "averaged": (Averaged(teachers=TEACHERS), "1a2675de3399"),
    "held-out": (HeldOut(fold=1, folds=3), "aa84fc8b4e1e"),
    "held-out clusters": (HeldOut(fold=0, teachers=Teachers(Recipe(), (0,))), "a1daf1a800ca"),
}


@pytest.mark.parametrize("case", DIGESTS)
def test_the_hash_is_stable(case):
    variant, digest = DIGESTS[case]
    assert Recipe(variant=variant).digest == digest


@pytest.mark.parametrize("case", DIGESTS)
def test_it_survives_json_and_its_file(case, tmp_path):
    recipe = Recipe(variant=DIGESTS[case][0])
    assert recipe_from(json.loads(json.dumps(recipe.as_dict()))) == recipe
    write_recipe(recipe, tmp_path / "r.toml")
    assert read_recipe(tmp_path / "r.toml") == recipe


def test_every_variant_is_among_these():
    assert {type(variant) for variant, _ in DIGESTS.values() if variant is not None} == set(VARIANTS)


def test_a_recipe_without_a_variant_is_plain():
    assert variant_of(Recipe()) is PLAIN
    assert Spec("toy", "abc", Recipe(), 0).needs() == ()
    assert [spec.seed for spec in Spec("toy", "abc", Recipe(variant=DIGESTS["averaged"][0]), 5).needs()] == [
        0,
        1,
    ]


REFUSED = {
    "no kind": ({}, "unknown training variant ''; have: distilled, bayesian, averaged, held-out"),
    "unknown value": (
        {"kind": "bayesian", "noise": 1},
        "unknown value of a bayesian network 'noise'; have: ",
    ),
    "no teachers": ({"kind": "averaged"}, "a network of kind 'averaged' needs a value for 'teachers'"),
    "no fold": ({"kind": "held-out"}, "a network of kind 'held-out' needs a value for 'fold'"),
    "bad teachers": (
        {"kind": "averaged", "teachers": "all"},
        "teachers are 'all'; allowed: a recipe and seeds",
    ),
    "no seeds": ({"kind": "distilled", "teachers": {"recipe": {}}}, "allowed: a recipe and seeds"),
    "bad fold": ({"kind": "held-out", "fold": 5}, "fold is 5; allowed: from 0 to below folds"),
    "bad folds": (
        {"kind": "held-out", "fold": 0, "folds": 1},
        "folds is 1; allowed: a whole number of at least 2",
    ),
    "bad sampled": ({"kind": "bayesian", "sampled": "all"}, "sampled is 'all'; allowed: head, network"),
    "bad samples": (
        {"kind": "bayesian", "samples": 0},
        "samples is 0; allowed: a whole number of at least 1",
    ),
    "bad dropout": ({"kind": "bayesian", "dropout": 1}, "dropout is 1; allowed: at least 0 and below 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_values_are_refused_by_name(case):
    values, message = REFUSED[case]
    with pytest.raises(InputError) as caught:
        recipe_from({"variant": values})
    assert message in str(caught.value)


def test_variants_and_methods_load_without_torch():
    code = (
        "import sys; import surefoot.lab.variants; import surefoot.lab.experiments.methods; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
