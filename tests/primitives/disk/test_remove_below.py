"""Directories whose files are nobody's any more: what goes, what stays, and what is an error all the same."""

import errno

import pytest

from quiver.primitives.disk.atomic import remove_files_below, remove_if_empty
from quiver.testing.crashfs import CrashFileSystem


def made(*names):
    fs = CrashFileSystem()
    fs.make_dirs("/d/part")
    for name in names:
        fs.create(f"/d/part/{name}").close()
    return fs


def test_a_directory_and_its_files_go():
    """One that is gone already is fine."""
    fs = made("a", "b")
    for _ in range(2):
        remove_files_below(fs, "/d/part")
        assert fs.list_dir("/d") == []


def test_what_has_something_in_it_stays():
    """Somebody may write there again."""
    fs = made("a")
    remove_if_empty(fs, "/d/part")
    assert fs.list_dir("/d/part") == ["a"]


class _Failing(CrashFileSystem):
    """A disk that removes nothing."""

    def remove_dir(self, path):
        raise OSError(errno.EIO, "the disk failed", path)


def test_any_other_refusal_is_told():
    """A disk that fails is no directory that is in use."""
    with pytest.raises(OSError, match="the disk failed"):
        remove_if_empty(_Failing(), "/d")
