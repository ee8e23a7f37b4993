"""Recipes as TOML files."""

from pathlib import Path

from surefoot.errors import InputError
from surefoot.files import read_toml, write_toml
from surefoot.recipes.recipe import Recipe, recipe_from


def read_recipe(path: Path) -> Recipe:
    """A recipe from a TOML file, its values under [recipe]."""
    document = read_toml(path)
    if not isinstance(document.get("recipe"), dict):
        raise InputError(f"{path} has no [recipe] table; needed: one, such as written by 'surefoot tune'")
    try:
        return recipe_from(document["recipe"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def write_recipe(recipe: Recipe, path: Path, *, comment: str = "") -> None:
    """A recipe as a TOML file."""
    write_toml({"recipe": recipe.as_dict()}, path, comment=comment)
