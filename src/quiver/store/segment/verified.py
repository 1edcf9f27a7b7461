"""The segment files that this process has verified, so that no checksum is computed twice."""

from __future__ import annotations

import threading

__all__ = ["VerifiedSegments"]


class VerifiedSegments:
    """
    Paths of sealed segments, each with length and checksum of the file at its verification. Thread-safe.

    A sealed segment never changes. A file with another length or another checksum under the same name (one that
    was repaired or restored) is another file, and is verified again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, bytes]] = {}

    def has(self, path: str, size_bytes: int, stored_crc32: bytes) -> bool:
        """Return whether the file with this length and stored checksum was verified."""
        return self._known.get(path) == (size_bytes, stored_crc32)

    def add(self, path: str, size_bytes: int, stored_crc32: bytes) -> None:
        """Record that the file was verified."""
        with self._lock:
            self._known[path] = size_bytes, stored_crc32

    def forget(self, path: str) -> None:
        """Forget *path*."""
        with self._lock:
            self._known.pop(path, None)
