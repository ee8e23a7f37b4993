"""Image files below one folder, and the promise that nothing leads out of it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from surefoot.errors import InputError

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True)
class ImageFiles:
    """Paths relative to `root`, with forward slashes; each stays inside it, links followed."""

    root: Path
    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.root.resolve())
        for row, path in enumerate(self.paths):
            if _leaves(path):
                raise InputError(
                    f"path {path!r} in row {row} leaves the image root; allowed: paths below {self.root}"
                )
        self._refuse_links_outside()

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, row: int) -> Path:
        """Where the image of a row lies."""
        return self.root / self.paths[row]

    def files(self) -> list[str]:
        """All of them, as text: a hundred thousand Path objects take a second."""
        return [os.path.join(self.root, path) for path in self.paths]  # noqa: PTH118

    def take(self, rows: Sequence[int]) -> "ImageFiles":
        """The named rows."""
        return ImageFiles(self.root, tuple(self.paths[row] for row in rows))

    def _refuse_links_outside(self) -> None:
        """Resolve every folder once, and those files that are links themselves."""
        inside: dict[str, bool] = {}
        for row, path in enumerate(self.paths):
            folder = path.rpartition("/")[0]
            if folder not in inside:
                inside[folder] = self._holds(self.root / folder)
            file = os.path.join(self.root, path)  # noqa: PTH118
            if not inside[folder] or (os.path.islink(file) and not self._holds(Path(file))):  # noqa: PTH114
                raise InputError(
                    f"path {path!r} in row {row} leaves the image root through a link; "
                    f"allowed: paths below {self.root}"
                )

    def _holds(self, place: Path) -> bool:
        try:
            return place.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError):  # a link that leads to itself
            return False


def image_paths_below(folder: Path) -> list[str]:
    """The path of every image file below a folder, in the order of their names."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; needed: a folder of images")
    found: list[str] = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        start = Path(place).relative_to(folder).as_posix()
        before = "" if start == "." else f"{start}/"
        found += [before + name for name in names if name.lower().endswith(ENDINGS) and name[0] != "."]
    if not found:
        raise InputError(f"{folder}: no images; allowed: {', '.join(ENDINGS)}")
    return sorted(found)


def _leaves(path: str) -> bool:
    """Whether a path as written is absolute, climbs, or names a drive.

    >>> [_leaves(path) for path in ("a/b.jpg", "../b.jpg", "a/../../b.jpg", "/b.jpg", "C:/b.jpg", "")]
    [False, True, True, True, True, True]
    """
    parts = PurePosixPath(path).parts
    drive = len(path) > 1 and path[1] == ":"
    return not parts or path.startswith("/") or ".." in parts or drive or "\\" in path or "\0" in path
