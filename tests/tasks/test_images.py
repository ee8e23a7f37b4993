"""No path in a user's file leads out of the image root."""

import pytest

from surefoot import InputError
from surefoot.tasks.task import ImageFiles, image_paths_below


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root" / "deep").mkdir(parents=True)
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    (tmp_path / "root" / "in.jpg").touch()
    return tmp_path / "root"


@pytest.mark.parametrize(
    "path",
    [
        "../secret.jpg",
        "deep/../../secret.jpg",
        "/etc/passwd",
        "",
        ".",
        "..",
        "C:/x.jpg",
        "..\\secret.jpg",
        "a\0b",
        "deep/..",
    ],
)
def test_paths_that_climb_are_refused(root, path):
    with pytest.raises(InputError, match=r"in row 1 leaves the image root"):
        ImageFiles(root, ("in.jpg", path))


def test_links_that_lead_out_are_refused(root, tmp_path):
    (root / "file.jpg").symlink_to(tmp_path / "secret.jpg")
    (root / "folder").symlink_to(tmp_path)
    (root / "step").symlink_to(root / "folder")
    for path in ("file.jpg", "folder/secret.jpg", "step/secret.jpg"):
        with pytest.raises(InputError, match=r"leaves the image root through a link"):
            ImageFiles(root, (path,))


def test_links_that_stay_are_fine(root):
    (root / "again.jpg").symlink_to(root / "in.jpg")
    (root / "other").symlink_to(root / "deep")
    assert (
        ImageFiles(root, ("again.jpg", "other/x.jpg", "missing.jpg")).file(2)
        == root.resolve() / "missing.jpg"
    )


def test_the_root_itself_may_be_a_link(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    assert ImageFiles(tmp_path / "link", ("in.jpg",)).files() == [str(root.resolve() / "in.jpg")]


def test_a_folder_is_listed_by_name(root):
    for name in ("b.PNG", "deep/a.jpeg", "notes.txt", ".hidden.jpg"):
        (root / name).touch()
    assert image_paths_below(root) == ["b.PNG", "deep/a.jpeg", "in.jpg"]
    with pytest.raises(InputError, match=r"no such folder"):
        image_paths_below(root / "nowhere")
    (root / "empty").mkdir()
    with pytest.raises(InputError, match=r"no images"):
        image_paths_below(root / "empty")
