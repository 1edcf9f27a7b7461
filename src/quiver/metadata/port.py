"""
The metadata port: ordered keys, small values, and conditional commits.

Keys are texts, ordered by their UTF-8 bytes. Every commit has a revision, higher than all before it, and every entry
has the revision that wrote it last. A key that does not exist has revision 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from quiver.errors import UsageError

__all__ = ["CHANGES_MAX", "VALUE_BYTES_MAX", "Entry", "MetadataStore", "check_commit", "check_limit", "end_of_prefix"]

VALUE_BYTES_MAX = 1 << 20
"""An etcd accepts requests of 1.5 MB, in which a value is a third longer."""

CHANGES_MAX = 64
"""An etcd accepts 128 operations in a transaction, including checks."""

KEY_CHARS_MAX = 1024
LIMIT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, its value, and the revision that wrote it last."""

    key: str
    value: bytes
    revision: int


class MetadataStore(Protocol):
    """
    A key-value store. Thread-safe. A commit that returned is durable.

    Every call may raise `MetadataUnavailableError`; if a commit does, it is unknown whether it happened.
    """

    def get(self, key: str) -> Entry | None:
        """Return the entry *key*, or None."""

    def range(self, prefix: str, *, start: str = "", limit: int = 1000) -> list[Entry]:
        """Return the first *limit* entries whose keys begin with *prefix* and are not below *start*, in order."""

    def commit(self, changes: Mapping[str, bytes | None], *, expect: Mapping[str, int] | None = None) -> int | None:
        """
        Write every value of *changes*, and remove the keys whose value is None: all of it, or nothing.

        Args:
            changes: key → value, or None to remove it; it need not exist.
            expect: key → the revision that it must have for the commit to happen; 0 for a key that must not exist.

        Returns:
            The commit's revision, durable; None when an expectation did not hold and nothing happened.

        Raises:
            UsageError: a key or value is too long, or there are too many.
        """

    def close(self) -> None:
        """Close connections. Idempotent."""


def check_commit(changes: Mapping[str, bytes | None], expect: Mapping[str, int]) -> None:
    """
    Check that every store accepts this commit.

    Raises:
        UsageError: one of them would not.
    """
    if len(changes) + len(expect) > CHANGES_MAX:
        raise UsageError(f"metadata: a commit has at most {CHANGES_MAX} changes and checks, not {len(changes)}")
    for key in (*changes, *expect):
        if not 0 < len(key) <= KEY_CHARS_MAX or "\0" in key:
            raise UsageError(f"metadata: {key[:100]!r} is not a key: 1 to {KEY_CHARS_MAX} characters, none of them NUL")
    for key, value in changes.items():
        if value is not None and len(value) > VALUE_BYTES_MAX:
            raise UsageError(f"metadata: the value of {key} has {len(value)} bytes, more than {VALUE_BYTES_MAX}")


def check_limit(limit: int) -> None:
    """
    Check that *limit* is valid.

    Raises:
        UsageError: it is not 1 to 10,000.
    """
    if not 1 <= limit <= LIMIT_MAX:
        raise UsageError(f"metadata: limit is 1 to {LIMIT_MAX}, not {limit}")


def end_of_prefix(prefix: bytes) -> bytes:
    """Return the first key after all that begin with *prefix*, or nothing when there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""
