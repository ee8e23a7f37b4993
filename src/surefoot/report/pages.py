"""The templates of every HTML page."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from surefoot.text import without_controls

TEMPLATES = Path(__file__).parent / "templates"


def template_named(name: str) -> Template:
    """A template by its file's name."""
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_printable
    )
    return environment.get_template(name)


def _printable(value: Any) -> Any:
    """What a template writes; text that is not yet HTML without control characters."""
    return without_controls(value) if type(value) is str else value
