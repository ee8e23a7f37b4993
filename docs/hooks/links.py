"""Links from a page to files outside docs/ work on the site too: those files become pages below repository/.

The Markdown is written for reading in the repository, so its links are relative paths there.
"""

import os.path
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = "repository/"
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
SHOWN = {".py": "python", ".toml": "toml", ".csv": "text", ".txt": "text"}  # as a page with the file's text


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page, or a copy, of each file outside docs/ that a page links to."""
    waiting = [ROOT / "docs" / file.src_uri for file in files if file.src_uri.endswith(".md")]
    waiting = [path for path in waiting if path.is_file()]
    waiting.append(ROOT / "CONTRIBUTING.md")
    seen = set(waiting)
    for path in waiting:
        uri = site_uri(path)
        if uri.startswith(OUTSIDE):
            files.append(_outside(path, uri, config))
        if path.suffix == ".md":
            new = set(_targets(path)) - seen
            seen |= new
            waiting.extend(sorted(new))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    here = page.file.src_uri
    folder = (ROOT / here.removeprefix(OUTSIDE) if here.startswith(OUTSIDE) else ROOT / "docs" / here).parent

    def on_site(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        target = Path(os.path.normpath(folder / link))
        if "://" in link or not target.is_file():
            return match.group()  # a generated page, or a mistake that the strict build reports
        return before + os.path.relpath(site_uri(target), Path(here).parent) + after

    parts = CODE.split(markdown)
    return "".join(part if CODE.fullmatch(part) else LINK.sub(on_site, part) for part in parts)


def site_uri(path: Path) -> str:
    """Where a file of the repository is on the site."""
    relative = path.relative_to(ROOT).as_posix()
    if relative == "README.md":
        return "README.md"  # the site's first page says the same
    if relative.startswith("docs/"):
        return relative.removeprefix("docs/")
    return OUTSIDE + relative + (".md" if path.suffix in SHOWN else "")


def _targets(page: Path) -> Iterator[Path]:
    text = CODE.sub("", page.read_text())
    for _, link, _ in LINK.findall(text):
        target = Path(os.path.normpath(page.parent / link))
        if "://" not in link and target.is_file() and target.is_relative_to(ROOT):
            yield target


def _outside(path: Path, uri: str, config: MkDocsConfig) -> File:
    if path.suffix not in SHOWN:
        return File.generated(config, uri, abs_src_path=str(path))
    name = path.relative_to(ROOT).as_posix()
    text = f"# {path.name}\n\n`{name}`\n\n````{SHOWN[path.suffix]}\n{path.read_text()}````\n"
    return File.generated(config, uri, content=text)
