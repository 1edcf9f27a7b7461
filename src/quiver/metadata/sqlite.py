"""
Metadata in one SQLite file: durable, and safe for several processes of one machine.

SQLite syncs with every commit (``synchronous=FULL``). Its write-ahead mode lets readers continue during a write; it
requires a local disk, since the processes share memory.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from quiver.errors import CorruptionError, MetadataUnavailableError, StoreClosedError
from quiver.metadata.port import Entry, check_commit, check_limit

__all__ = ["SqliteMetadata"]

_BUSY_S = 10.0
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS counter (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL)",
    "INSERT OR IGNORE INTO counter VALUES (1, 0)",
)
_PUT = """
    INSERT INTO entries VALUES (?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = excluded.revision"""


class SqliteMetadata:
    """
    A `MetadataStore` in the file *path*, which is created if necessary.

    Raises:
        CorruptionError: the file is not an SQLite database, or is damaged.
        MetadataUnavailableError: it cannot be opened, or another process locks it for too long.
    """

    def __init__(self, path: str, *, busy_s: float = _BUSY_S) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        with self._translated():
            connection = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
        try:
            with self._translated():
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
                connection.execute("PRAGMA synchronous = FULL").fetchall()
                connection.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def __repr__(self) -> str:
        return f"SqliteMetadata({self._path!r})"

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise MetadataUnavailableError(f"metadata {self._path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise CorruptionError(self._path, 0, str(error)) from error

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._guard:
            if self._connection is None:
                raise StoreClosedError(f"metadata {self._path} is closed")
            with self._translated():
                yield self._connection

    def get(self, key: str) -> Entry | None:
        """Return the entry *key*, or None."""
        with self._connected() as connection:
            row = connection.execute("SELECT key, value, revision FROM entries WHERE key = ?", (key,)).fetchone()
        return Entry(*row) if row else None

    def range(self, prefix: str, *, start: str = "", limit: int = 1000) -> list[Entry]:
        """Return the first *limit* entries below *prefix* and not below *start*."""
        check_limit(limit)
        # Keys are compared by their bytes. No character is above U+10FFFF, so this is after all keys with the prefix.
        query = "SELECT key, value, revision FROM entries WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        first = max(prefix, start, key=str.encode)
        with self._connected() as connection:
            rows = connection.execute(query, (first, prefix + "\U0010ffff" * 4, limit)).fetchall()
        return [Entry(*row) for row in rows]

    def commit(self, changes: Mapping[str, bytes | None], *, expect: Mapping[str, int] | None = None) -> int | None:
        """Write and remove all of *changes*, durably, or nothing."""
        check_commit(changes, expect or {})
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                revision = self._apply(connection, changes, expect or {})
                connection.execute("COMMIT" if revision is not None else "ROLLBACK")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return revision

    @staticmethod
    def _apply(
        connection: sqlite3.Connection, changes: Mapping[str, bytes | None], expect: Mapping[str, int]
    ) -> int | None:
        for key, revision in expect.items():
            row = connection.execute("SELECT revision FROM entries WHERE key = ?", (key,)).fetchone()
            if (row[0] if row else 0) != revision:
                return None
        advance = "UPDATE counter SET revision = revision + 1 RETURNING revision"
        next_revision: int = connection.execute(advance).fetchall()[0][0]
        for key, value in changes.items():
            if value is None:
                connection.execute("DELETE FROM entries WHERE key = ?", (key,))
            else:
                connection.execute(_PUT, (key, bytes(value), next_revision))
        return next_revision

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._guard:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
