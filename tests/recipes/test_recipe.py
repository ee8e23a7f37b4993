"""A recipe says what it allows, keeps its hash, and survives its file."""

import dataclasses
import math

import pytest

from surefoot.errors import InputError
from surefoot.lab.recipes.recipe import Protocol, Recipe, Spec, Teachers, non_default_values, write_recipe
from surefoot.lab.variants import Distilled, read_recipe, recipe_from

REFUSED = {
    "protocol": ("both", "protocol is 'both'; allowed: paper, holdout, search"),
    "stem": ("tiny", "stem is 'tiny'; allowed: large, small"),
    "augmentation": ("much", "augmentation is 'much'; allowed: inception, strong, none"),
    "epochs": (0, "epochs is 0; allowed: a whole number of at least 1"),
    "batch": (1, "batch is 1; allowed: a whole number of at least 2"),
    "width": (True, "width is True; allowed: a whole number of at least 1"),
    "view": ("224", "view is '224'; allowed: a whole number of at least 1"),
    "learning_rate": (-0.1, "learning_rate is -0.1; allowed: a positive number"),
    "momentum": (1, "momentum is 1; allowed: at least 0 and below 1"),
    "dropout": (-0.1, "dropout is -0.1; allowed: at least 0 and below 1"),
    "weight_decay": (math.inf, "weight_decay is inf; allowed: at least 0"),
    "schedule": ("linear", "schedule is 'linear'; allowed: step, cosine"),
    "sharpness": (-1, "sharpness is -1; allowed: at least 0"),
    "weight_average": (1, "weight_average is 1; allowed: at least 0 and below 1"),
    "label_smoothing": ("some", "label_smoothing is 'some'; allowed: at least 0 and below 1"),
    "mixup": (math.nan, "mixup is nan; allowed: at least 0"),
    "regmixup": (math.inf, "regmixup is inf; allowed: at least 0"),
    "network": (5, "network is 5; allowed: text"),
    "pretrained": ("", "pretrained is ''; allowed: text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_out_of_bounds_is_refused_by_name(name):
    value, message = REFUSED[name]
    with pytest.raises(InputError, match="allowed") as caught:
        Recipe(**{name: value})
    assert str(caught.value) == message


def test_nan_is_no_learning_rate():
    with pytest.raises(InputError, match="learning_rate is nan"):
        Recipe(learning_rate=math.nan)


def test_samples_are_mixed_in_one_way_only():
    with pytest.raises(InputError, match=r"mixup is 0\.2 and regmixup 5; allowed: one of them"):
        Recipe(mixup=0.2, regmixup=5)


def test_an_unknown_value_is_refused_by_name():
    with pytest.raises(InputError, match="unknown recipe value 'lr'; have: augmentation, batch"):
        recipe_from({"lr": 0.1})


def test_the_hash_is_stable():
    """A changed hash would leave every network in every store unfound; this one is written down."""
    assert Recipe().digest == "44136fa355b3"
    assert Recipe().digest == Recipe(network="resnet18", protocol=Protocol("paper")).digest
    assert Recipe(epochs=25).digest != Recipe().digest
    changed = {"sharpness": 0.1, "schedule": "cosine", "weight_average": 0.99, "weight_decay": 0.0005}
    assert Recipe(**changed, augmentation="strong").digest == "35c4047b4db0"


def test_one_and_one_point_zero_are_one_recipe():
    assert Recipe(learning_rate=1, weight_decay=0) == Recipe(learning_rate=1.0, weight_decay=0.0)
    assert Recipe(learning_rate=1, weight_decay=0).digest == Recipe(learning_rate=1.0).digest
    assert Recipe(sharpness=1, mixup=0, weight_average=0).digest == Recipe(sharpness=1.0).digest


def test_the_key_goes_by_task_recipe_and_seed_and_not_by_the_task_s_name():
    spec = Spec("toy", "abc", Recipe(), 0)
    assert spec.key == Spec("another name", "abc", Recipe(), 0).key
    others = [
        Spec("toy", "abd", Recipe(), 0),
        Spec("toy", "abc", Recipe(epochs=1), 0),
        Spec("toy", "abc", Recipe(), 1),
    ]
    assert len({spec.key, *(other.key for other in others)}) == 4


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(network="mlp", learning_rate=1e-05, epochs=7, protocol=Protocol.HOLDOUT, pretrained="ab12"),
        Recipe(network='my.package:build "quoted" \\ 😀 é', learning_rate=3),
    ],
)
def test_a_recipe_survives_its_file(recipe, tmp_path):
    write_recipe(recipe, tmp_path / "r.toml", comment="two\nlines")
    assert (tmp_path / "r.toml").read_text().startswith("# two\n# lines\n[recipe]\n")
    assert read_recipe(tmp_path / "r.toml") == recipe
    assert read_recipe(tmp_path / "r.toml").digest == recipe.digest


FILES = {
    "unknown": ("[recipe]\nlr = 1\n", "r.toml: unknown recipe value 'lr'; have: "),
    "bad value": ("[recipe]\nepochs = 0\n", "r.toml: epochs is 0; allowed: "),
    "no table": ("epochs = 1\n", "r.toml has no [recipe] table"),
    "not TOML": ("epochs: 1\n", "r.toml is not TOML: "),
    "not text": (b"\xff\xfe", "r.toml is not TOML: "),
    "long key": ("a" + ".a" * 50_000 + " = 1\n", "r.toml is not TOML: a key has more than 100 parts"),
    "long quoted key": ("x = {" + "\"a\" . 'b'." * 50_000 + "a = 1}\n", "a key has more than 100 parts"),
    "many parts": ("a" + ".a" * 99 + " = 1\n", "r.toml has no [recipe] table"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_is_refused_by_name(case, tmp_path):
    content, message = FILES[case]
    (tmp_path / "r.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        read_recipe(tmp_path / "r.toml")
    assert message in str(caught.value)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*none\.toml: No such file"):
        read_recipe(tmp_path / "none.toml")


def test_the_learning_rate_falls_to_a_tenth_at_three_quarters():
    recipe = Recipe(learning_rate=0.5, epochs=8)
    assert [recipe.rate(epoch) for epoch in range(8)] == pytest.approx([0.5] * 6 + [0.05] * 2)
    assert {n: Recipe(epochs=n).drop_epoch for n in (1, 2, 3, 4, 24, 128)} == {
        1: 1,
        2: 1,
        3: 2,
        4: 3,
        24: 18,
        128: 96,
    }


@pytest.mark.parametrize("reached", range(1, 100))
def test_what_tune_trained_is_what_the_recipe_says(reached):
    """Tune trains `reached` epochs and a third as many again, rounded up."""
    assert Recipe(epochs=reached + math.ceil(reached / 3)).drop_epoch == reached


def test_an_option_added_later_renames_no_network():
    """The hash leaves out values that equal their default, also in teachers and variants."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(Recipe):
        sharpness: float = 0.0

    old = {"epochs": 3, "network": "mlp"}
    assert Later(**old).digest == Recipe(**old).digest
    assert Later(**old, sharpness=0.1).digest != Recipe(**old).digest
    teachers, later = Teachers(Recipe(**old), (0, 1)), Teachers(Later(**old), (0, 1))
    assert (
        Recipe(variant=Distilled(teachers=teachers)).digest
        == Recipe(variant=Distilled(teachers=later)).digest
    )
    spec, new = Spec("toy", "t", Recipe(**old), 0), Spec("toy", "t", Later(**old), 0)
    assert spec.key == new.key
    assert non_default_values(Recipe(variant=Distilled(teachers=teachers))) == {
        "variant": {"kind": "distilled", "teachers": {"recipe": old, "seeds": (0, 1)}}
    }
