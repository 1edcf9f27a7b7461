"""The permissions and durability of a file that a task writes."""

from __future__ import annotations

from quiver.primitives.disk.real_files import REAL_FILES

__all__ = ["begin_file", "synced_bytes"]


def begin_file(path: str, mode: int | None) -> None:
    """
    Create the empty file *path* with permission bits *mode*, so that no other user can read it while it is written.

    Without a mode do nothing: the writer creates the file with the umask of the process.
    """
    if mode is not None:
        file = REAL_FILES.create_or_truncate(path, mode=mode)
        try:
            file.set_mode(mode)  # the umask may have removed bits
        finally:
            file.close()


def synced_bytes(path: str) -> int:
    """
    Make the file *path* durable and return its length.

    Call it before its name is reported: a power cut must not destroy the contents of a committed file.
    """
    file = REAL_FILES.open_write(path)
    try:
        file.sync()
        return file.size()
    finally:
        file.close()
