"""Which segment files this process has found sound, so that none is read for its checksum twice."""

from __future__ import annotations

import threading

__all__ = ["VerifiedSegments"]


class VerifiedSegments:
    """
    Paths of sealed segments, each with what its file said of itself when it was verified. Thread-safe.

    A sealed segment never changes. A file that has another length or another checksum under the same name (one that
    was repaired, or restored) is another one, and is verified again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, bytes]] = {}

    def has(self, path: str, size_bytes: int, stored_crc32: bytes) -> bool:
        """Return whether the file of this length and stored checksum was found sound."""
        return self._known.get(path) == (size_bytes, stored_crc32)

    def add(self, path: str, size_bytes: int, stored_crc32: bytes) -> None:
        """Take note that it was."""
        with self._lock:
            self._known[path] = size_bytes, stored_crc32

    def forget(self, path: str) -> None:
        """Know nothing of *path* any more."""
        with self._lock:
            self._known.pop(path, None)
