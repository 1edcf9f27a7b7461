"""A metadata store that becomes unavailable on demand: for one call, for longer, or after an unconfirmed commit."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from quiver.errors import MetadataUnavailableError
from quiver.metadata.port import Entry, MetadataStore

__all__ = ["FaultMetadata"]


class FaultMetadata:
    """
    Wraps *inner* and makes it unavailable on demand. Thread-safe.

    Attributes:
        calls: operation (``get``, ``range``, ``commit``) → number of calls.
        is_away: while True, every call fails.
        on_call: called with each operation before it runs; a crash test can take its copies here.
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
        """Make the *call*-th further call of *operation* fail without any effect."""
        with self._guard:
            self._fail_at[operation] = self.calls[operation] + call

    def lose_answer(self, call: int = 1) -> None:
        """Execute the *call*-th further commit, but raise an error to its caller."""
        with self._guard:
            self._lose_answer_at = self.calls["commit"] + call

    def heal(self) -> None:
        """Stop all failures."""
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
            raise MetadataUnavailableError(f"metadata: injected failure of {operation}")
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
            raise MetadataUnavailableError("metadata: injected loss of the answer to a commit")
        return revision

    def close(self) -> None:
        """Close the inner store. Never fails."""
        self._inner.close()
