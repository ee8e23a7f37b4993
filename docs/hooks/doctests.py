"""Examples in docstrings (`>>>`) become code blocks in the API pages."""

import re

from griffe import Extension, Object

EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", flags=re.MULTILINE | re.DOTALL)


class Doctests(Extension):
    """Puts each example between fences."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Change the text of one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
