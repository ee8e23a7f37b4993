"""Counts and numbers as text."""


def count_of(number: int, one: str, many: str | None = None) -> str:
    """A number and what is counted, in the singular where it is one.

    >>> count_of(1, "picture"), count_of(1200, "picture"), count_of(0, "class", "classes")
    ('1 picture', '1,200 pictures', '0 classes')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
