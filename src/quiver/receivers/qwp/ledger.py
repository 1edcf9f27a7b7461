"""
The tables that QWP clients may send again, in an SQLite file: it outlives the process and may be larger than memory.

If the file or its end is lost, rows are repeated, but none are lost. So nothing waits for the disk here: a commit
survives the death of the process, and a power loss removes at most the newest ones.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from quiver.observe import Observer
from quiver.primitives.disk.real_files import REAL_FILES

__all__ = ["LEDGER_NAME", "Found", "ReplayLedger", "Stored"]

LEDGER_NAME = "quiver.qwp-replay"
"""In the directory of a store. SQLite stores ``-wal`` next to it."""

_VERSION = 1
_FILES_MAX = 8
_EVICTED_AT_ONCE = 4096
_EVERYTHING = 1 << 62
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS lives (life INTEGER PRIMARY KEY, sender BLOB NOT NULL, confirmed INTEGER NOT NULL,
       told INTEGER NOT NULL, alive_at REAL NOT NULL, ended_ns INTEGER)""",
    """CREATE TABLE IF NOT EXISTS tables (life INTEGER, position INTEGER, digest BLOB NOT NULL,
       sequence INTEGER NOT NULL, bytes INTEGER NOT NULL, stamped INTEGER NOT NULL,
       PRIMARY KEY (life, position)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS by_digest ON tables (digest, life)",
    "CREATE TABLE IF NOT EXISTS facts (one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL)",
    "INSERT OR IGNORE INTO facts VALUES (1, -1)",
    f"PRAGMA user_version = {_VERSION}",
)
# Earlier connections of the same sender come first, starting with the newest. A confirmed table of such a connection
# matches only if its rows have timestamps. Of other senders' connections, only unconfirmed tables match: no copy is
# ever confirmed to two senders.
_REPEATED = """
    SELECT t.life, t.position, t.sequence, t.bytes, l.sender = :sender FROM tables t JOIN lives l USING (life)
    WHERE t.digest = :digest AND t.life < :life AND l.ended_ns >= :since
      AND (t.position >= l.confirmed
           OR (l.sender = :sender AND l.alive_at < :opened_at AND (t.position >= l.told OR t.stamped)))
    ORDER BY l.sender = :sender DESC, t.position >= l.told DESC, t.life DESC, t.position LIMIT 1"""
_DROP_EMPTY = "DELETE FROM lives WHERE NOT EXISTS (SELECT 1 FROM tables WHERE tables.life = lives.life)"
_OLDEST_LIFE = """
    SELECT life FROM lives WHERE EXISTS (SELECT 1 FROM tables WHERE tables.life = lives.life)
    ORDER BY ended_ns IS NULL, life LIMIT 1"""
_EVICTED = "life = ? AND position IN (SELECT position FROM tables WHERE life = ? ORDER BY position LIMIT ?)"

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored table: its digest, its sequence number in the store, its size, and whether its rows have timestamps."""

    digest: bytes
    sequence: int
    nbytes: int
    is_stamped: bool


@dataclass(frozen=True, slots=True)
class Found:
    """The stored table that a connection repeats: its place in the ledger, its sequence number, and its owner."""

    life: int
    position: int
    sequence: int
    nbytes: int
    is_same_sender: bool


class ReplayLedger:
    """
    Tables by connection ("life") and position. Not thread-safe: the caller holds a lock.

    Args:
        path: the path of the file, created if missing; None keeps everything in memory. An unreadable file is
            quarantined. If another receiver of the same store has it open, the next name is used.
        entries_max: the maximum number of tables; the oldest are forgotten.
        observer: receives an event if the file was quarantined or cannot be written.
    """

    def __init__(self, path: str | None, *, entries_max: int, observer: Observer) -> None:
        self._entries_max = entries_max
        self._observer = observer
        self._is_failing = False
        self._path = path
        self._database = self._open()
        self._count: int = self._database.execute("SELECT count(*) FROM tables").fetchone()[0]

    def __len__(self) -> int:
        return self._count

    # ---- the file

    def _open(self) -> sqlite3.Connection:
        first = self._path
        for number in range(2, _FILES_MAX + 2) if first is not None else ():
            path, self._path = str(self._path), f"{first}-{number}"
            try:
                return _connect(path)
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    self._report("quiver.receiver.replay_ledger_failed", path, error)
                    break
            except (sqlite3.DatabaseError, OSError) as error:
                self._report("quiver.receiver.replay_ledger_set_aside", path, error)
                with contextlib.suppress(sqlite3.Error, OSError):
                    _quarantine(path)
                    return _connect(path)
                break
        return _connect(":memory:")

    def _report(self, event: str, path: str | None, error: BaseException) -> None:
        self._observer.event(event, level=logging.ERROR, path=path, reason=str(error))

    def _run(self, work: Callable[[sqlite3.Connection], Answer], otherwise: Answer) -> Answer:
        """Return the result of *work*; *otherwise* if the file cannot be read or written, which may repeat rows."""
        try:
            if not self._database.in_transaction:
                self._database.execute("BEGIN")
            return work(self._database)
        except sqlite3.Error as error:
            if not self._is_failing:
                self._is_failing = True
                self._report("quiver.receiver.replay_ledger_failed", self._path, error)
            self._observer.count("quiver.receiver.replay_ledger_failures_total")
            with contextlib.suppress(sqlite3.Error):
                self._database.rollback()
            return otherwise

    def commit(self) -> None:
        """Make all changes survive the death of the process."""

        def commit(database: sqlite3.Connection) -> None:
            database.execute("COMMIT")
            self._is_failing = False

        if self._database.in_transaction:
            self._run(commit, None)

    def close(self) -> None:
        """Close the file. Idempotent."""
        with contextlib.suppress(sqlite3.ProgrammingError):
            self.commit()
            self._database.close()

    # ---- connections

    def recover(self, *, next_sequence: int, now_ns: int) -> tuple[int, int]:
        """
        Import the state of an earlier process: its connections are over, and what their clients know is unknown.

        Tables from *next_sequence* on are removed, because the store lost them. Returns the highest number of a
        connection, and the highest sequence number that the ledger has seen (-1 if there is none).
        """

        def recover(database: sqlite3.Connection) -> tuple[int, int]:
            self._count -= database.execute("DELETE FROM tables WHERE sequence >= ?", (next_sequence,)).rowcount
            database.execute(
                "UPDATE lives SET confirmed = ?, told = ?, ended_ns = ? WHERE ended_ns IS NULL",
                (_EVERYTHING, _EVERYTHING, now_ns),
            )
            # The wall clock was set back since: otherwise they would be known until the clock has caught up.
            database.execute("UPDATE lives SET ended_ns = ? WHERE ended_ns > ?", (now_ns, now_ns))
            database.execute("UPDATE lives SET alive_at = -1")  # another process, another clock
            database.execute(_DROP_EMPTY)
            newest = database.execute("SELECT coalesce(max(life), 0) FROM lives").fetchone()[0]
            known_sequence = database.execute("SELECT sequence FROM facts").fetchone()[0]
            return newest, min(known_sequence, next_sequence - 1)

        return self._run(recover, (0, -1))

    def record_sequence(self, sequence: int) -> None:
        """Record that tables up to *sequence* need not be searched for in the log."""
        self._run(lambda database: database.execute("UPDATE facts SET sequence = max(sequence, ?)", (sequence,)), None)

    def open_life(self, life: int, sender: bytes) -> None:
        """Record the start of the connection *life* of *sender*."""
        row = (life, sender, _EVERYTHING, _EVERYTHING, -1.0)
        self._run(lambda database: database.execute("INSERT INTO lives VALUES (?, ?, ?, ?, ?, NULL)", row), None)

    def end_life(self, life: int, *, confirmed: int, released: int, alive_at: float, ended_ns: int) -> None:
        """Record that *life* gets no more answers. From now on its tables may be recognized as repeated."""
        row = (confirmed, released, alive_at, ended_ns, life)
        self._run(
            lambda database: database.execute(
                "UPDATE lives SET confirmed = ?, told = ?, alive_at = ?, ended_ns = ? WHERE life = ?", row
            ),
            None,
        )
        # A confirmed row without a timestamp is never treated as a repetition.
        self._forget("life = ? AND position < ? AND NOT stamped", life, released)

    def drop_life(self, life: int) -> None:
        """Forget a connection: its client knows that everything is stored."""
        self._forget("life = ?", life)
        self._run(lambda database: database.execute("DELETE FROM lives WHERE life = ?", (life,)), None)

    def expire(self, before_ns: int) -> None:
        """Forget connections that ended before *before_ns*."""
        self._forget("life IN (SELECT life FROM lives WHERE ended_ns < ?)", before_ns)
        self._run(lambda database: database.execute("DELETE FROM lives WHERE ended_ns < ?", (before_ns,)), None)

    # ---- tables

    def add(self, life: int, position: int, stored: Stored) -> None:
        """Record that the table at *position* of a connection is stored."""
        row = (life, position, stored.digest, stored.sequence, stored.nbytes, stored.is_stamped)

        def add(database: sqlite3.Connection) -> None:
            database.execute("INSERT INTO tables VALUES (?, ?, ?, ?, ?, ?)", row)
            database.execute("UPDATE facts SET sequence = max(sequence, ?)", (stored.sequence,))
            self._count += 1

        self._run(add, None)
        if self._count > self._entries_max:
            self._evict()

    def add_unclaimed(self, life: int, tables: Iterable[Stored], *, ended_ns: int) -> None:
        """Record tables of an unknown sender, as those of a closed connection."""
        self.open_life(life, b"")
        self.end_life(life, confirmed=0, released=0, alive_at=-1.0, ended_ns=ended_ns)
        for position, stored in enumerate(tables):
            self.add(life, position, stored)

    def find_repeated(
        self, life: int, digest: bytes, *, sender: bytes, opened_at: float, since_ns: int
    ) -> Found | None:
        """Return the table that *life*, a connection of *sender*, repeats, or None if it is new."""
        parameters = {"life": life, "digest": digest, "sender": sender, "opened_at": opened_at, "since": since_ns}
        row = self._run(lambda database: database.execute(_REPEATED, parameters).fetchone(), None)
        if row is None:
            return None
        former, position, sequence, nbytes, is_same_sender = row
        return Found(former, position, sequence, nbytes, bool(is_same_sender))

    def has(self, life: int, digest: bytes) -> bool:
        """Return whether *life* sent this table."""
        query = "SELECT 1 FROM tables WHERE digest = ? AND life = ?"
        return self._run(lambda database: database.execute(query, (digest, life)).fetchone(), None) is not None

    def claim(self, found: Found) -> None:
        """Take a table from its connection. A sender that repeats a table knows that the previous ones are stored."""
        if found.is_same_sender:
            self.forget(found.life, found.position + 1)
        else:
            self._forget("life = ? AND position = ?", found.life, found.position)

    def forget(self, life: int, position: int) -> None:
        """Forget the tables of a connection before *position*."""
        self._forget("life = ? AND position < ?", life, position)

    def _forget(self, which: str, *values: int) -> None:
        statement = f"DELETE FROM tables WHERE {which}"  # noqa: S608 - *which* comes from this module only
        self._count -= self._run(lambda database: database.execute(statement, values).rowcount, 0)

    def _evict(self) -> None:
        row = self._run(lambda database: database.execute(_OLDEST_LIFE).fetchone(), None)
        if row is not None:
            self._forget(_EVICTED, row[0], row[0], _EVICTED_AT_ONCE)


def _connect(path: str) -> sqlite3.Connection:
    if path != ":memory:":
        with contextlib.suppress(FileExistsError):
            REAL_FILES.create(path).close()  # not readable by other users, like everything in a store
        if not Path(path).is_file():
            raise OSError(f"{path} is not a regular file")
    database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        # A store belongs to one process. Without shared memory, two of its receivers cannot open the same file.
        database.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        database.execute("PRAGMA journal_mode = WAL").fetchall()
        database.execute("PRAGMA synchronous = NORMAL").fetchall()
        _check_version(database)
        database.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            database.execute(statement)
        database.execute("COMMIT")
    except BaseException:
        database.close()
        raise
    return database


def _check_version(database: sqlite3.Connection) -> None:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version not in {0, _VERSION}:
        raise sqlite3.DatabaseError(f"version {version} of the file; this release supports {_VERSION}")


def _quarantine(path: str) -> None:
    for ending in ("-wal", ""):
        with contextlib.suppress(FileNotFoundError):
            REAL_FILES.rename(path + ending, f"{path}{ending}.damaged")
