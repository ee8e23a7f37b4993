"""Training variants: each is a class with its values, its loss, and how it is produced and bundled."""

import dataclasses
from pathlib import Path
from typing import Any

from surefoot.errors import InputError, refuse_unknown
from surefoot.io import read_toml
from surefoot.lab.recipes.recipe import Recipe, Teachers
from surefoot.lab.variants.averaged import Averaged
from surefoot.lab.variants.base import PLAIN, Variant, variant_of
from surefoot.lab.variants.bayesian import Bayesian
from surefoot.lab.variants.distilled import Distilled
from surefoot.lab.variants.held_out import HeldOut
from surefoot.registry import Registry

# Plain training is not listed: it is a recipe without a variant.
VARIANTS: Registry[type[Variant]] = Registry("training variant", (Distilled, Bayesian, Averaged, HeldOut))


def recipe_from(values: dict[str, Any], *, base: Recipe | None = None) -> Recipe:
    """A recipe from plain values over a base; unknown names are refused."""
    refuse_unknown("recipe value", values, {field.name for field in dataclasses.fields(Recipe)})
    if isinstance(values.get("variant"), dict):
        values = {**values, "variant": variant_from(values["variant"])}
    base = base or Recipe()
    if values.get("network", base.network) != base.network:
        values = {"code": (), **values}  # that of another network's source
    return dataclasses.replace(base, **values)


def variant_from(values: dict[str, Any]) -> Variant:
    """A variant from plain values: its kind, its teachers where it has any, and its own."""
    own = dict(values)
    variant = VARIANTS.named(own.pop("kind", ""))
    fields = dataclasses.fields(variant)
    refuse_unknown(f"value of a {variant.name} network", own, {field.name for field in fields})
    for field in fields:
        if field.default is dataclasses.MISSING and field.name not in own:
            raise InputError(f"a network of kind {variant.name!r} needs a value for {field.name!r}")
    if (teachers := own.get("teachers")) is not None:
        try:
            recipe = recipe_from(teachers["recipe"])
            own["teachers"] = Teachers(recipe, tuple(int(seed) for seed in teachers["seeds"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"teachers are {teachers!r}; allowed: a recipe and seeds") from error
    return variant(**own)


def read_recipe(path: Path) -> Recipe:
    """A recipe from a TOML file, its values under [recipe]."""
    document = read_toml(path)
    if not isinstance(document.get("recipe"), dict):
        raise InputError(f"{path} has no [recipe] table; needed: one, such as written by 'surefoot tune'")
    try:
        return recipe_from(document["recipe"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


__all__ = [
    "PLAIN",
    "VARIANTS",
    "Averaged",
    "Bayesian",
    "Distilled",
    "HeldOut",
    "Variant",
    "read_recipe",
    "recipe_from",
    "variant_from",
    "variant_of",
]
