"""Everything that decides a network's weights, as values; their hash is the network's name."""

from surefoot.recipes.files import read_recipe, write_recipe
from surefoot.recipes.recipe import Protocol, Recipe, Teachers, digest_of, recipe_from
from surefoot.recipes.spec import Spec
from surefoot.recipes.variants import Averaged, Bayesian, Distilled, HeldOut, Variant

__all__ = [
    "Averaged",
    "Bayesian",
    "Distilled",
    "HeldOut",
    "Protocol",
    "Recipe",
    "Spec",
    "Teachers",
    "Variant",
    "digest_of",
    "read_recipe",
    "recipe_from",
    "write_recipe",
]
