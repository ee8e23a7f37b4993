"""The store that a command was given: a folder, or this machine's copy of one at a URL."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from surefoot.cli.terminal import busy
from surefoot.images.cache import default_cache
from surefoot.recipes.recipe import Spec
from surefoot.store.remote import Remote, is_url
from surefoot.store.store import Store
from surefoot.text import count_of


@dataclass(frozen=True)
class OpenedStore:
    """A store, and the URL that it is a copy of, if it is one."""

    store: Store
    url: str | None = None

    def sync(self, specs: Sequence[Spec]) -> None:
        """Fetch and send what either side lacks of these networks."""
        if self.url is not None:
            with busy(f"comparing {count_of(len(specs), 'network')} with {self.url}"):
                Remote(self.url).sync(specs, self.store)

    def send(self, folder: Path) -> None:
        """Put an experiment's folder there too."""
        if self.url is not None:
            Remote(self.url).send_folder(folder, self.store)
            typer.echo(f"{self.url} has all of it; the copy on this machine: {self.store.root}")


def opened_store(place: str, cache: Path | None) -> OpenedStore:
    """The store of that name."""
    if not is_url(place):
        return OpenedStore(Store(Path(place)))
    remote = Remote(place)
    with remote.marked():  # whether it can be written to is better known before the hours of training
        return OpenedStore(remote.local_copy(cache or default_cache()), place)
