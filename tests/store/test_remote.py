"""A store at a URL: what is there is complete, and each machine's copy is the same to the byte."""

import json
import os
import shutil

import fsspec
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

from surefoot.errors import InputError
from surefoot.lab.store.remote import Remote, is_url
from surefoot.lab.store.store import Store
from tests import warm
from tests.store.made import OTHER, SPEC, make


@pytest.fixture(params=["file", "memory"])
def remote(request, tmp_path):
    if request.param == "file":
        yield Remote(f"file://{tmp_path}/bucket/runs")
        return
    yield Remote("memory://bucket/runs")
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def made(store):
    make(store)
    return store


def content(store, spec=SPEC):
    return {path.name: path.read_bytes() for path in store.folder(spec).iterdir()}


def test_what_is_sent_is_fetched_to_the_byte(remote, made, tmp_path):
    copy = Store(tmp_path / "copy")
    remote.send(SPEC, made)
    assert remote.is_done(SPEC, copy)
    assert not remote.is_done(OTHER, copy)
    assert remote.fetch(SPEC, copy)
    assert content(copy) == content(made)
    assert list(copy.root.glob(".*")) == []


def test_damaged_weights_are_not_fetched(remote, made, tmp_path):
    path = made.weights_file(SPEC)
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    remote.send(SPEC, made)
    copy = Store(tmp_path / "copy")
    with pytest.raises(
        InputError, match=r"weights\.safetensors is damaged .*; remove that folder from the store"
    ):
        remote.fetch(SPEC, copy)
    assert not copy.is_done(SPEC)
    assert list(copy.root.glob(".*")) == []


def test_what_is_not_there_is_not_fetched(remote, tmp_path):
    copy = Store(tmp_path / "copy")
    assert not remote.fetch(SPEC, copy)
    assert not copy.root.exists()


def test_what_is_added_later_goes_both_ways(remote, made, tmp_path):
    copy = Store(tmp_path / "copy")
    remote.sync([SPEC], made)
    remote.sync([SPEC], copy)
    copy.save_novelty(SPEC, "energy", {"val": np.arange(4.0)})
    remote.sync([SPEC], copy)
    remote.sync([SPEC], made)
    assert content(made) == content(copy)
    assert made.novelty(SPEC, "energy")["val"].tolist() == [0, 1, 2, 3]


def test_what_is_there_is_never_replaced(remote, made, tmp_path):
    remote.send(SPEC, made)
    other = Store(tmp_path / "other")
    make(other)
    other.folder(SPEC).joinpath("done.json").write_text(json.dumps({"seconds": 99.0}))
    remote.send(SPEC, other)
    copy = Store(tmp_path / "copy")
    remote.fetch(SPEC, copy)
    assert content(copy) == content(made)


def test_the_first_to_be_done_stays(remote, made, tmp_path):
    """While this one sends, another sends the same network whole."""
    other = Store(tmp_path / "other")
    make(other)
    for path in other.folder(SPEC).iterdir():
        path.write_bytes(b"another's " + path.read_bytes())

    class Overtaken(Remote):
        def _put(self, path, to):
            super()._put(path, to)
            if path.name != "done.json":
                remote.send(SPEC, other)

    Overtaken(remote.location).send(SPEC, made)
    system, root = fsspec.core.url_to_fs(remote.location)
    found = {path.rpartition("/")[2]: system.cat_file(path) for path in system.find(root)}
    assert found == content(other), "and nothing hidden is left"


KILLED = """
import os, sys
from pathlib import Path
from surefoot.lab.store.store import Store
from surefoot.lab.store.remote import Remote
from tests.store.made import SPEC
class Mortal(Remote):
    files = 0
    def _put(self, path, to):
        if Mortal.files == int(sys.argv[3]):
            os.kill(os.getpid(), 9)
        Mortal.files += 1
        super()._put(path, to)
Mortal(sys.argv[1]).send(SPEC, Store(Path(sys.argv[2])))
"""


def test_a_sender_killed_on_the_way_leaves_nothing_that_counts(made, tmp_path):
    """Here after all files but done.json, which goes last."""
    remote, copy = Remote(f"file://{tmp_path}/bucket"), Store(tmp_path / "copy")
    ended = warm.run(KILLED, remote.location, made.root, 4)
    assert ended.returncode == -9
    assert len([path for path in (tmp_path / "bucket").rglob("*") if path.is_file()]) == 4
    assert not remote.fetch(SPEC, copy)
    remote.send(SPEC, made)
    assert remote.fetch(SPEC, copy)
    assert content(copy) == content(made)


def test_hidden_files_and_names_that_lead_out_stay_there(made, tmp_path):
    remote, copy = Remote(f"file://{tmp_path}/bucket"), Store(tmp_path / "copy")
    remote.send(SPEC, made)
    (folder,) = (tmp_path / "bucket").glob("networks/*/*/*")
    for name in (".hidden", "a b", "-rf", "..."):
        (folder / name).write_text("no")
    remote.fetch(SPEC, copy)
    assert content(copy) == content(made)


@pytest.fixture
def remembering(tmp_path):
    """A folder by way of a file system that remembers what it listed until it is told to forget, as s3fs does."""

    class Remembering(LocalFileSystem):
        protocol = ("remembering",)
        cachable = False

        def __init__(self, **options):
            super().__init__(**options)
            self.listed = {}

        def ls(self, path, detail=False, **options):
            if path not in self.listed:
                try:
                    self.listed[path] = super().ls(path, detail=True, **options)
                except FileNotFoundError:
                    self.listed[path] = None
            if self.listed[path] is None:
                raise FileNotFoundError(path)
            return self.listed[path] if detail else [each["name"] for each in self.listed[path]]

        def exists(self, path):
            return path in self.ls(path.rpartition("/")[0])

        def invalidate_cache(self):
            self.listed.clear()

    fsspec.register_implementation("remembering", Remembering, clobber=True)
    (tmp_path / "bucket").mkdir()
    return Remote(f"remembering://{tmp_path}/bucket"), Remote(f"file://{tmp_path}/bucket")


def test_a_network_that_another_machine_finished_since_the_last_listing_is_seen(remembering, made, tmp_path):
    here, elsewhere = remembering
    copy = Store(tmp_path / "copy")
    assert not here.is_done(SPEC, copy)
    assert not here.fetch(SPEC, copy)
    elsewhere.send(SPEC, made)
    assert here.is_done(SPEC, copy)
    assert here.fetch(SPEC, copy)
    assert content(copy) == content(made)


def test_files_that_another_machine_added_since_the_last_listing_are_fetched(remembering, made, tmp_path):
    here, elsewhere = remembering
    copy = Store(tmp_path / "copy")
    elsewhere.send(SPEC, made)
    here.fetch(SPEC, copy)
    made.save_novelty(SPEC, "energy", {"val": np.arange(4.0)})
    elsewhere.send(SPEC, made)
    assert here.fetch(SPEC, copy)
    assert copy.novelty(SPEC, "energy")["val"].tolist() == [0, 1, 2, 3]


def test_what_another_machine_sent_since_the_last_listing_is_never_replaced(remembering, made, tmp_path):
    here, elsewhere = remembering
    other = Store(tmp_path / "other")
    make(other)
    other.folder(SPEC).joinpath("done.json").write_text(json.dumps({"seconds": 99.0}))
    assert not here.is_done(SPEC, other)
    elsewhere.send(SPEC, made)
    here.send(SPEC, other)
    copy = Store(tmp_path / "copy")
    here.fetch(SPEC, copy)
    assert content(copy) == content(made)


def test_a_network_that_another_machine_removed_is_not_there(remembering, made, tmp_path):
    here, elsewhere = remembering
    elsewhere.send(SPEC, made)
    assert here.is_done(SPEC, made)
    shutil.rmtree(tmp_path / "bucket" / "networks")
    copy = Store(tmp_path / "copy")
    assert not here.is_done(SPEC, copy)
    assert not here.fetch(SPEC, copy)


def test_a_mark_that_another_machine_left_since_the_last_listing_is_seen(remembering):
    here, elsewhere = remembering
    assert not here.has_marker("none")
    with elsewhere.marked() as mark:
        assert here.has_marker(mark)
    assert not here.has_marker(mark)


def test_files_of_a_network_that_another_machine_never_finished_are_replaced(remote, made, tmp_path):
    """Without done.json nothing there counts, whatever the files are called."""
    system, root = fsspec.core.url_to_fs(remote.location)
    folder = f"{root}/{made.folder(SPEC).relative_to(made.root).as_posix()}"
    system.makedirs(folder, exist_ok=True)
    system.pipe_file(f"{folder}/val.npz", b"half of it")
    remote.send(SPEC, made)
    copy = Store(tmp_path / "copy")
    assert remote.fetch(SPEC, copy)
    assert content(copy) == content(made)


def test_a_folder_that_another_machine_made_in_a_network_is_left_there(remote, made, tmp_path):
    remote.send(SPEC, made)
    system, root = fsspec.core.url_to_fs(remote.location)
    folder = f"{root}/{made.folder(SPEC).relative_to(made.root).as_posix()}/plots"
    system.makedirs(folder, exist_ok=True)
    system.pipe_file(f"{folder}/a.svg", b"drawn")
    copy = Store(tmp_path / "copy")
    assert remote.fetch(SPEC, copy)
    assert content(copy) == content(made)


def test_another_machine_sees_nothing_of_a_network_until_all_of_it_is_there(made, tmp_path):
    elsewhere, seen = Remote(f"file://{tmp_path}/bucket"), []

    class Watched(LocalFileSystem):
        protocol = ("watched",)

        def mv(self, path1, path2, **options):
            super().mv(path1, path2, **options)
            seen.append(elsewhere.is_done(SPEC, made))

    fsspec.register_implementation("watched", Watched, clobber=True)
    Remote(f"watched://{tmp_path}/bucket").send(SPEC, made)
    assert seen == [False] * (len(content(made)) - 1) + [True]


def test_a_file_that_another_machine_removed_after_the_listing_is_a_sentence(made, tmp_path):
    class Removed(Remote):
        def _get(self, path, to, size):
            shutil.rmtree(tmp_path / "bucket", ignore_errors=True)
            super()._get(path, to, size)

    remote, copy = Removed(f"file://{tmp_path}/bucket"), Store(tmp_path / "copy")
    remote.send(SPEC, made)
    with pytest.raises(InputError, match=r"cannot read the store at .*\.(json|npz|safetensors|jsonl)$"):
        remote.fetch(SPEC, copy)
    assert not copy.is_done(SPEC)
    assert list(copy.root.glob(".*")) == []


def test_a_mark_is_seen_while_it_lasts(remote):
    with remote.marked() as mark:
        assert remote.has_marker(mark)
        assert not remote.has_marker(mark[::-1])
    assert not remote.has_marker(mark)


def test_a_folder_goes_with_all_that_is_below_it(remote, store, tmp_path):
    folder = store.experiment_folder("mine")
    (folder / "tables").mkdir(parents=True)
    (folder / "report.html").write_text("page")
    (folder / "tables" / "a.csv").write_text("table")
    remote.send_folder(folder, store)
    (folder / "report.html").write_text("newer page")
    remote.send_folder(folder, store)
    system, root = fsspec.core.url_to_fs(remote.location)
    assert system.cat_file(f"{root}/experiments/mine/report.html") == b"newer page"
    assert system.cat_file(f"{root}/experiments/mine/tables/a.csv") == b"table"


def test_copies_of_different_urls_lie_apart(tmp_path):
    places = ["s3://a/b", "s3://a-b", "s3://a/b/", "s3://" + "a" * 90, "s3://" + "a" * 91]
    assert len({Remote(place).local_copy(tmp_path).root for place in places}) == len(places)
    assert all(Remote(place).local_copy(tmp_path).root.parent == tmp_path / "stores" for place in places)


def test_what_is_a_url(tmp_path):
    assert is_url("s3://bucket/runs")
    assert not is_url(str(tmp_path))
    assert not is_url("runs")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nosuch://x", r"cannot reach the store at nosuch://x: Protocol not known: nosuch"),
        ("file:///dev/null/x", r"cannot write the store at file:///dev/null/x: .*Not a directory"),
    ],
)
def test_a_url_that_cannot_be_used_is_a_sentence(place, said):
    with pytest.raises(InputError, match=said), Remote(place).marked():
        pass


def test_a_file_cut_short_on_the_way_is_refused(made, tmp_path):
    class Cut(LocalFileSystem):
        protocol = ("cut",)

        def get_file(self, path, local, **_):
            shutil.copyfile(path, local)
            if path.endswith("val.npz"):
                os.truncate(local, 10)

    fsspec.register_implementation("cut", Cut, clobber=True)
    Remote(f"file://{tmp_path}/bucket").send(SPEC, made)
    copy = Store(tmp_path / "copy")
    with pytest.raises(
        InputError, match=r"cannot read the store at .*val\.npz has \d+ bytes, but 10 were downloaded"
    ):
        Remote(f"cut://{tmp_path}/bucket").fetch(SPEC, copy)
    assert not copy.is_done(SPEC)


def test_an_error_without_a_message_is_named_by_its_type(tmp_path):
    class Silent(LocalFileSystem):
        protocol = ("silent",)

        def ls(self, *_, **__):
            raise PermissionError

    fsspec.register_implementation("silent", Silent, clobber=True)
    with pytest.raises(InputError, match=r"cannot read the store at silent://.*: PermissionError$"):
        Remote(f"silent://{tmp_path}").is_done(SPEC, Store(tmp_path))


def test_downloads_go_to_a_hidden_folder_of_the_copy(made, tmp_path, monkeypatch):
    """There they are on the same file system, so that they can be renamed, and are not listed."""
    remote, copy, folders = Remote(f"file://{tmp_path}/bucket"), Store(tmp_path / "copy"), set()
    remote.send(SPEC, made)
    get = Remote._get

    def watched(self, path, to, size):
        folders.add(to.parent.parent)
        get(self, path, to, size)

    monkeypatch.setattr(Remote, "_get", watched)
    remote.fetch(SPEC, copy)
    (folder,) = folders
    assert folder.parent == copy.root
    assert folder.name.startswith(".fetched-")


def test_a_download_that_another_process_finished_first_is_done(made, tmp_path, monkeypatch):
    remote, copy = Remote(f"file://{tmp_path}/bucket"), Store(tmp_path / "copy")
    remote.send(SPEC, made)
    get = Remote._get

    def slow(self, path, to, size):
        get(self, path, to, size)
        if not copy.is_done(SPEC):
            shutil.copytree(made.folder(SPEC), copy.folder(SPEC))

    monkeypatch.setattr(Remote, "_get", slow)
    assert remote.fetch(SPEC, copy)
    assert content(copy) == content(made)


def test_a_download_that_cannot_be_renamed_is_an_error(made, tmp_path):
    remote, copy = Remote(f"file://{tmp_path}/bucket"), Store(tmp_path / "copy")
    remote.send(SPEC, made)
    copy.folder(SPEC).mkdir(parents=True)
    (copy.folder(SPEC) / "in-the-way").touch()
    with pytest.raises(InputError, match=r"cannot write .*: Directory not empty"):
        remote.fetch(SPEC, copy)
