"""
Removing a topic's directory: rename it, then empty it.

A crash in between leaves a directory whose name begins with a dot, which is not a valid topic name. It is removed when
the store is opened again, or when another topic is deleted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from quiver.primitives.disk.atomic import remove_files_below
from quiver.primitives.disk.file_system import FileSystem
from quiver.topics.format.names import QUARANTINE_DIR, SUBSCRIPTIONS_DIR, is_namespace

__all__ = ["remove_deleted", "remove_topic_directory"]

_PREFIX = ".deleted-"


def remove_topic_directory(fs: FileSystem, root: str, topic: str) -> None:
    """
    Remove the directory of *topic*, which must not be open, if there is one. Durable on return.

    Raises:
        OSError: the directory was not renamed, or it was and is not empty yet.
    """
    namespace, _, name = topic.partition("/")
    if not fs.exists(f"{root}/{topic}"):
        return
    names = (f"{root}/{namespace}/{_PREFIX}{name}.{number}" for number in itertools.count())
    fs.rename(f"{root}/{topic}", next(one for one in names if not fs.exists(one)))
    fs.sync_dir(f"{root}/{namespace}")
    remove_deleted(fs, root)


def remove_deleted(fs: FileSystem, root: str) -> None:
    """
    Remove the remains of deleted topics below *root*.

    Raises:
        OSError: some remain; the next call continues.
    """
    for directory in list(_deleted(fs, root)):
        for inside in (f"{directory}/{SUBSCRIPTIONS_DIR}", f"{directory}/{QUARANTINE_DIR}", directory):
            remove_files_below(fs, inside)


def _deleted(fs: FileSystem, root: str) -> Iterator[str]:
    for namespace in filter(is_namespace, fs.list_dir(root)):
        try:
            names = fs.list_dir(f"{root}/{namespace}")
        except (NotADirectoryError, FileNotFoundError):
            continue
        yield from (f"{root}/{namespace}/{name}" for name in names if name.startswith(_PREFIX))
