"""A file that a task writes for others to read: who may read it, and when its bytes are on the disk."""

from __future__ import annotations

from quiver.primitives.disk.real_files import REAL_FILES

__all__ = ["begin_file", "synced_bytes"]


def begin_file(path: str, mode: int | None) -> None:
    """
    Make the empty file *path* with permission bits *mode*, so that nobody else reads what is written into it. Without a
    mode do nothing: whoever opens it makes it, as the umask says.
    """
    if mode is not None:
        file = REAL_FILES.create_or_truncate(path, mode=mode)
        try:
            file.set_mode(mode)  # the umask may have taken bits away
        finally:
            file.close()


def synced_bytes(path: str) -> int:
    """
    Make the file *path* durable and return its length.

    Call it before its name is reported: a committed name must not stand for bytes that a power cut can take.
    """
    file = REAL_FILES.open_write(path)
    try:
        file.sync()
        return file.size()
    finally:
        file.close()
