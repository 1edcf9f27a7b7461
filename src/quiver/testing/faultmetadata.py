"""
A metadata store that goes away when told: for one call, for minutes, or just before it says that it
has committed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from quiver.errors import MetadataUnavailableError
from quiver.metadata.port import Entry, MetadataStore

__all__ = ["FaultMetadata"]


class FaultMetadata:
    """
    *inner*, away when told. Thread-safe.

    Attributes:
        calls: operation (``get``, ``range``, ``commit``) → calls so far.
        is_away: while True, every call fails.
        on_call: is told each operation before it happens; a crash test takes its copies here.
    """

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self._guard = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.is_away = False
        self.on_call: Callable[[str], None] = lambda _operation: None
        self._fail_at: dict[str, int] = {}
        self._lose_answer_at = 0

    def fail_on(self, operation: str, call: int = 1) -> None:
        """Let the *call*-th further call of *operation* fail, and do nothing."""
        with self._guard:
            self._fail_at[operation] = self.calls[operation] + call

    def lose_answer(self, call: int = 1) -> None:
        """Let the *call*-th further commit happen, and its caller not hear of it."""
        with self._guard:
            self._lose_answer_at = self.calls["commit"] + call

    def heal(self) -> None:
        """Let nothing fail any more."""
        with self._guard:
            self._fail_at.clear()
            self._lose_answer_at = 0
            self.is_away = False

    def _enter(self, operation: str) -> bool:
        with self._guard:
            self.calls[operation] += 1
            number = self.calls[operation]
            fails = self.is_away or self._fail_at.get(operation) == number
            loses = operation == "commit" and number == self._lose_answer_at
        self.on_call(operation)
        if fails:
            raise MetadataUnavailableError(f"metadata: {operation} was told to fail")
        return loses

    def get(self, key: str) -> Entry | None:
        """Return the entry *key*, or None, or fail."""
        self._enter("get")
        return self._inner.get(key)

    def range(self, prefix: str, *, start: str = "", limit: int = 1000) -> list[Entry]:
        """Return entries below *prefix*, or fail."""
        self._enter("range")
        return self._inner.range(prefix, start=start, limit=limit)

    def commit(self, changes: Mapping[str, bytes | None], *, expect: Mapping[str, int] | None = None) -> int | None:
        """Commit, or fail, or both."""
        loses = self._enter("commit")
        revision = self._inner.commit(changes, expect=expect)
        if loses:
            raise MetadataUnavailableError("metadata: the answer to a commit was told to be lost")
        return revision

    def close(self) -> None:
        """Close the store inside. Never fails."""
        self._inner.close()
