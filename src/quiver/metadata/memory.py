"""Metadata in a dictionary: for tests and for logs in memory. It ends with the process."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from quiver.metadata.port import Entry, check_commit, check_limit

__all__ = ["MemoryMetadata"]


class MemoryMetadata:
    """A `MetadataStore` in memory."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._revision = 0

    def clone(self) -> MemoryMetadata:
        """Return an independent copy of this store."""
        other = MemoryMetadata()
        with self._guard:
            other._entries = dict(self._entries)
            other._revision = self._revision
        return other

    def get(self, key: str) -> Entry | None:
        """Return the entry *key*, or None."""
        return self._entries.get(key)

    def range(self, prefix: str, *, start: str = "", limit: int = 1000) -> list[Entry]:
        """Return the first *limit* entries below *prefix* and not below *start*."""
        check_limit(limit)
        with self._guard:
            entries = list(self._entries.values())
        first = start.encode()
        found = [one for one in entries if one.key.startswith(prefix) and one.key.encode() >= first]
        return sorted(found, key=lambda one: one.key.encode())[:limit]

    def commit(self, changes: Mapping[str, bytes | None], *, expect: Mapping[str, int] | None = None) -> int | None:
        """Write and remove all of *changes*, or nothing."""
        check_commit(changes, expect or {})
        with self._guard:
            for key, revision in (expect or {}).items():
                found = self._entries.get(key)
                if (found.revision if found else 0) != revision:
                    return None
            self._revision += 1
            for key, value in changes.items():
                if value is None:
                    self._entries.pop(key, None)
                else:
                    self._entries[key] = Entry(key, bytes(value), self._revision)
            return self._revision

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
