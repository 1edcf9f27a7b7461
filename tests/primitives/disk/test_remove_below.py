"""Removing a directory and its files: what is removed, what stays, and which errors are raised."""

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


def test_a_directory_and_its_files_are_removed():
    """A missing directory is ignored."""
    fs = made("a", "b")
    for _ in range(2):
        remove_files_below(fs, "/d/part")
        assert fs.list_dir("/d") == []


def test_a_directory_that_is_not_empty_stays():
    """Another process may be writing there."""
    fs = made("a")
    remove_if_empty(fs, "/d/part")
    assert fs.list_dir("/d/part") == ["a"]


class _Failing(CrashFileSystem):
    """A disk that removes nothing."""

    def remove_dir(self, path):
        raise OSError(errno.EIO, "the disk failed", path)


def test_any_other_error_is_raised():
    """A failing disk does not mean that the directory is in use."""
    with pytest.raises(OSError, match="the disk failed"):
        remove_if_empty(_Failing(), "/d")
