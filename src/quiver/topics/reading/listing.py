"""The topics below a directory."""

from __future__ import annotations

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.staging import names_in
from quiver.topics.format.names import WAL_CHECKPOINT, check_topic, is_namespace, parse_wal_file_name

__all__ = ["topics_below"]


def topics_below(fs: FileSystem, root: str, *, file_name: str) -> list[str]:
    """
    Return the topics that have files below *root*, in order of names. Takes no lock.

    Raises:
        OSError: the directory cannot be read.
    """
    found = []
    for namespace in filter(is_namespace, fs.list_dir(root)):
        for name in names_in(fs, f"{root}/{namespace}"):
            try:
                topic = check_topic(f"{namespace}/{name}")
                inside = fs.list_dir(f"{root}/{topic}")
            except (UsageError, NotADirectoryError):
                continue
            if any(one == WAL_CHECKPOINT or parse_wal_file_name(one, file_name) is not None for one in inside):
                found.append(topic)
    return sorted(found)
