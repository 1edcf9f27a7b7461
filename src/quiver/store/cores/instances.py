"""Which directories below a path are stores: the path itself, or one for each core."""

from __future__ import annotations

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.format.cores import core_directory, parse_core_directory
from quiver.store.format.names import SEGMENTS_DIR, STORE_LOCK, WAL_DIR

__all__ = ["find_cores", "instance_roots", "is_store"]


def find_cores(fs: FileSystem, root: str) -> list[int]:
    """Return the numbers of all cores that have a directory in *root*, ascending."""
    found = (parse_core_directory(name) for name in fs.list_dir(root))
    return sorted(core for core in found if core is not None)


def is_store(fs: FileSystem, root: str) -> bool:
    """Return whether *root* looks like the directory of one store."""
    return any(fs.exists(f"{root}/{name}") for name in (WAL_DIR, SEGMENTS_DIR, STORE_LOCK))


def instance_roots(fs: FileSystem, root: str) -> list[str]:
    """
    Return the stores of *root*: ``core_<n>`` directories by number, after *root* itself if that is one, too.

    Raises:
        UsageError: *root* does not exist or has no files of a store.
    """
    if not fs.exists(root):
        raise UsageError(f"{root}: there is no such directory")
    candidates = [root, *(f"{root}/{core_directory(core)}" for core in find_cores(fs, root))]
    found = [one for one in candidates if is_store(fs, one)]
    if not found:
        raise UsageError(
            f"{root} is not a store: it has neither {WAL_DIR}/ nor {SEGMENTS_DIR}/; for topics there is "
            "`quiver topic`, for logs in the AOF2 format `quiver aof`"
        )
    return found
