"""Unrelated entries next to topics, such as the ``lost+found`` of a disk, which only root may read."""

from __future__ import annotations

import os

import pytest
from typer.testing import CliRunner

from quiver.cli.main import build_app
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.topics.reading.listing import topics_below
from quiver.topics.store import TopicStore


class LostAndFound:
    """A file system on which ``lost+found`` cannot be read."""

    def __getattr__(self, name):
        return getattr(REAL_FILES, name)

    def list_dir(self, path):
        if path.endswith("lost+found"):
            raise PermissionError(13, "Permission denied", path)
        return REAL_FILES.list_dir(path)


@pytest.mark.parametrize("where", ["", "a/"])
def test_topics_may_be_on_their_own_disk(tmp_path, where):
    """Its `lost+found` has no topics, and neither open nor list reads it."""
    (tmp_path / where / "lost+found").mkdir(parents=True)
    with TopicStore.open(tmp_path, fs=LostAndFound(), background=False) as store:
        store.topic("a/b").append(b"1")
        assert store.topics() == ["a/b"]
    assert topics_below(LostAndFound(), str(tmp_path), file_name="wal.log") == ["a/b"]


@pytest.mark.parametrize("follow", [(), ("--follow", "-n", "1")])
@pytest.mark.parametrize("command", ["tail", "inspect", "verify", "subscriptions", "repair"])
@pytest.mark.parametrize("name", ["wal.log", "wal.1.log", "wal.ckpt"])
def test_the_error_for_a_pipe_instead_of_a_file_has_its_path(tmp_path, command, follow, name):
    """A pipe has no size, so it was taken for an empty file: `tail` printed and reported nothing."""
    if follow and command != "tail":
        return
    with TopicStore.open(tmp_path / "topics", background=False) as store:
        store.topic("a/b").append(b"1")
    path = tmp_path / "topics/a/b" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    done = CliRunner().invoke(build_app(), ["topic", command, str(tmp_path / "topics"), "a/b", *follow])
    assert done.exit_code == 2
    assert f"{path}: a pipe, a socket or a device is in the place of a file: move it away" in done.stderr
    assert done.stdout == ""
