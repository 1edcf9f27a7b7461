"""
Recently stored requests, in an SQLite file next to the store: known to all cores and after a restart.

The state of a request in the file, by its digest::

    STORING   a receiver is storing it                        after a crash: the store's data show whether it was stored
    STORED    it is in the store, perhaps not on disk          after a crash: the same
    DURABLE   it is on disk, and may have been delivered and deleted since

A request is claimed (STORING) before it is stored, by one statement that only one process wins, so no two cores store
it. Claims of a process that died, and all other entries that are not durable, are settled from the data: by the next
process of that core when it starts, or earlier by another core that receives the same request.

Before the store removes bundles of this process, their requests are recorded as DURABLE, and the file is synced
(`unrecorded.py`). A store keeps bundles of an earlier process long enough for a window to search them.

A power loss may remove the newest commits of the file, but never older ones. So when a process starts, it also searches
the data for requests that are newer than the newest row.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from quiver.clock import SYSTEM_CLOCK, Clock, SteadyTime
from quiver.errors import CapacityError, CorruptionError, DirectoryInUseError, UnsupportedFormatError
from quiver.invariant import invariant
from quiver.observe import Observer
from quiver.primitives.boot import boot_name
from quiver.primitives.disk.file_system import Lock
from quiver.primitives.disk.lock import hold, holder_of, is_held
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.receivers.dedupe import digests_of_batches, digests_of_entry
from quiver.receivers.unrecorded import UnrecordedRequests
from quiver.store.format.cores import core_directory, parse_core_directory
from quiver.store.reading.recent import recent_data, sync_log

__all__ = ["REQUESTS_NAME", "RequestWindow", "WindowStore"]

REQUESTS_NAME = "quiver.requests"
"""In the directory of a store, or above its cores. SQLite stores ``-wal`` and ``-shm`` next to it."""

ROW_BYTES = 160
"""The maximum size of a row with its index entries."""

_VERSION = 1
_STORING, _STORED, _DURABLE = range(3)
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS requests (digest BLOB PRIMARY KEY, state INTEGER NOT NULL, at_ns INTEGER NOT NULL,
       until_ns INTEGER NOT NULL, core TEXT NOT NULL, run TEXT NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS by_end ON requests (until_ns)",
    "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version = {_VERSION}",
)
_NOTE = """
    INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (digest) DO UPDATE SET
        state = excluded.state, at_ns = excluded.at_ns, until_ns = excluded.until_ns, core = excluded.core,
        run = excluded.run"""
_CLAIM = f"{_NOTE} WHERE until_ns < excluded.at_ns OR (state = {_STORING} AND run = excluded.run)"
_CANCEL = "DELETE FROM requests WHERE digest = ? AND run = ? AND state = 0"
_LOOK_UP = "SELECT state, core, run FROM requests WHERE digest = ? AND until_ns >= ?"
_LEFT = "SELECT digest, at_ns, run FROM requests WHERE core = ? AND state < 2"
_SETTLED = "UPDATE requests SET state = 2, run = '' WHERE digest = ? AND run = ? AND state < 2"
_LOST = "DELETE FROM requests WHERE digest = ? AND run = ? AND state < 2"
_MADE_DURABLE = "UPDATE requests SET state = 2 WHERE digest = ? AND state = 1"
_EXPIRE = "DELETE FROM requests WHERE digest IN (SELECT digest FROM requests WHERE until_ns < ? LIMIT 5000)"
_TABLES_UNTIL = """
    INSERT INTO facts VALUES ('tables_until_ns', ?)
    ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)"""
_NOT_AHEAD = "UPDATE requests SET at_ns = ?, until_ns = ? WHERE at_ns > ?"
_TABLES_NOT_AHEAD = "UPDATE facts SET value = ? WHERE name = 'tables_until_ns' AND value > ?"

_BUSY_S = 10.0
_POLL_S = 0.01
_PATIENCE_S = 5.0
_TICK_S = 1.0
_SLACK_NS = 2_000_000_000
"""The maximum difference between the time of a bundle and that of its row."""
_PLACES = 16
"""The maximum number of receivers in one process that have separate windows for one store."""


class WindowStore(Protocol):
    """The part of a store that the window needs; `quiver.Store` implements it."""

    path: str

    @property
    def internals(self) -> Any:
        """`StoreInternals`: reports which bundles are about to be removed."""

    def sync(self) -> None:
        """Make everything ingested so far durable."""

    def is_durable(self, receipt: Any) -> bool:
        """Return whether the bundle with the *receipt* from `ingest` survives a power loss."""


class RequestWindow:
    """
    The requests stored within the last *window_s* seconds. Thread-safe; several processes share it.

    Args:
        store: the store of the requests.
        directory: the directory of the file: that of the store, or the one above its cores.
        window_s: how long a stored request is known.
        needs_durable: confirm a request that another core stored only once it survives a power loss.
        entries_max: the maximum number of known requests. When it is reached, new ones are refused until older ones
            have expired.
        clock: measures the window.
        observer: receives events about a damaged file, and about requests that could not be recorded.

    Attributes:
        unread: the number of unreadable slots in stored bundles: a repeated request from one of them is stored again.

    Raises:
        UnsupportedFormatError: a newer version wrote the file.
        CorruptionError: the file is damaged, and other receivers have it open.
        StoreFailedError: the store could not be synced.
        CapacityError: another process held the file for too long, or the disk is full.
    """

    def __init__(
        self,
        store: WindowStore,
        directory: str,
        window_s: float,
        *,
        needs_durable: bool,
        entries_max: int,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer,
    ) -> None:
        self.unread = 0
        self.window_s = window_s
        self._store = store
        self._directory = directory
        self._core = "" if store.path == directory else store.path.rpartition("/")[2]
        self._window_ns = round(window_s * 1e9)
        self._entries_max = entries_max
        self._needs_durable = needs_durable
        self._clock = clock
        self._observer = observer
        self._boot = boot_name(REAL_FILES)
        self._time = SteadyTime(clock)
        self._path = f"{directory}/{REQUESTS_NAME}"
        self._guard = threading.Lock()
        self._changed = threading.Condition()
        self._in_flight: dict[bytes, int] = {}
        """Claimed requests, with a sequence number that none of their bundles is below."""
        self._unwritten: dict[bytes, int] = {}
        """Stored requests that could not be recorded in the file, with the end of their window."""
        self._unrecorded = UnrecordedRequests()
        self._tick_at_s = clock.monotonic()
        self._is_full = False
        lock, self._run = self._take_place()
        self._resources = _Resources(lock)
        self._close = weakref.finalize(self, self._resources.close)
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        store.internals.guard_removal(self._unrecorded.guard(self._may_remove))

    def __len__(self) -> int:
        found = self._ask("SELECT count(*) FROM requests WHERE state > 0 AND until_ns >= ?", self._now_ns())
        return int(found[0][0])

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._guard:
            self._close()

    # ── the file ─────────────────────────────────────────────────────────────────────────────────────

    def _take_place(self) -> tuple[Lock, str]:
        """Take a lock that shows that this window is open. Return it with the name that its claims use."""
        name = os.urandom(8).hex()
        for place in range(_PLACES):
            run = f"{place}:{name}"
            try:
                return hold(REAL_FILES, self._lock_path(self._core, run), owner=run), run
            except DirectoryInUseError:
                continue
        raise CapacityError(f"{self._path}: {_PLACES} receivers already have windows in this store")

    def _lock_path(self, core: str, run: str) -> str:
        return f"{self._path}.{core or 'store'}.{run.partition(':')[0]}.lock"

    def _is_alive(self, core: str, run: str) -> bool:
        """Return whether the window that made a claim is open; True if the system does not report it."""
        path = self._lock_path(core, run)
        return bool(run) and is_held(REAL_FILES, path) is not False and run in (holder_of(REAL_FILES, path) or "")

    def _open(self) -> None:
        try:
            self._database = self._resources.database = _connect(self._path)
            self._set_time()
            self._recover()
        except UnsupportedFormatError:
            raise
        except CorruptionError as damage:
            self._resources.close_database()
            self._quarantine(damage)
            self._database = self._resources.database = _connect(self._path)
            self._set_time()
            self._recover()

    def _set_time(self) -> None:
        """
        Continue the time of earlier windows of this boot, which share our monotonic clock: a step of the wall clock
        does not change the age of a request. The first window of a boot starts with the wall clock's time.
        """
        name = f"zero_ns of {self._boot}"
        with self._opened() as database:
            database.execute("BEGIN IMMEDIATE")
            found = database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
            if found is not None:
                self._time = SteadyTime(self._clock, found[0])
            elif self._boot is not None or not self._others_are_open():
                # The wall clock was set back since: without a limit a request would be known until the clock has caught
                # up. The data may have any time within the window.
                now_ns = self._now_ns()
                until_ns = now_ns + self._window_ns
                database.execute(_NOT_AHEAD, (now_ns - self._window_ns, until_ns, now_ns))
                database.execute(_TABLES_NOT_AHEAD, (until_ns, until_ns))
                if self._boot is not None:
                    database.execute("DELETE FROM facts WHERE name LIKE 'zero_ns of %'")
                    database.execute("INSERT INTO facts VALUES (?, ?)", (name, self._time.zero_ns))
            database.execute("COMMIT")

    def _quarantine(self, damage: CorruptionError) -> None:
        """
        Rename the damaged file, so that a new one is built from the data.

        Raises:
            CorruptionError: other receivers have it open, and would continue to use it.
        """
        if self._others_are_open():
            why = f"{damage.reason}; stop all receivers of this store and remove the file"
            raise CorruptionError(self._path, 0, why) from damage
        self._report("quiver.receiver.requests_set_aside", damage)
        for ending in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                REAL_FILES.rename(self._path + ending, f"{self._path}{ending}.damaged")

    def _others_are_open(self) -> bool:
        own = self._lock_path(self._core, self._run)
        names = [f"{self._directory}/{name}" for name in REAL_FILES.list_dir(self._directory)]
        locks = [name for name in names if name.startswith(f"{self._path}.") and name.endswith(".lock")]
        return any(is_held(REAL_FILES, path) is not False for path in locks if path != own)

    def _report(self, event: str, error: Exception) -> None:
        self._observer.event(event, level=logging.ERROR, path=self._path, reason=str(error))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """
        Yield the database, for one thread at a time. All changes are made together, or none.

        Raises:
            CapacityError: the disk is full, or another process held the file for too long.
            CorruptionError: the file is damaged.
        """
        with self._guard:
            try:
                yield self._database
            except sqlite3.Error as error:
                with contextlib.suppress(sqlite3.Error):
                    self._database.rollback()
                if isinstance(error, sqlite3.OperationalError | sqlite3.ProgrammingError):
                    raise CapacityError(f"{self._path}: {error}") from error
                raise CorruptionError(self._path, 0, str(error)) from error

    def _do(self, statement: str, *values: Any) -> int:
        with self._opened() as database:
            return database.execute(statement, values).rowcount

    def _ask(self, query: str, *values: Any) -> list[Any]:
        with self._opened() as database:
            return database.execute(query, values).fetchall()

    def _now_ns(self) -> int:
        return self._time.now_ns()

    # ── what receivers ask ───────────────────────────────────────────────────────────────────────────

    @property
    def holds_tables(self) -> bool:
        """Whether tables may exist whose request is unknown: a process died after storing and before recording them."""
        return bool(self._ask("SELECT 1 FROM facts WHERE name = 'tables_until_ns' AND value >= ?", self._now_ns()))

    def knows(self, digest: bytes) -> bool:
        """
        Return whether the request is stored. Unlike `begin`, this claims nothing.

        Raises:
            CapacityError, CorruptionError: the file cannot be read.
        """
        now_ns = self._now_ns()
        if self._unwritten.get(digest, -1) >= now_ns:
            return True
        return any(state != _STORING for state, _, _ in self._ask(_LOOK_UP, digest, now_ns))

    def remember(self, digest: bytes, *, receipt: Any = None, durable: bool = False) -> None:
        """Record that a request was stored now; *receipt* and *durable* as for `finish`."""
        now_ns = self._now_ns()
        state = _DURABLE if durable else _STORED
        try:
            self._do(_NOTE, digest, state, now_ns, now_ns + self._window_ns, self._core, self._run)
        except (CapacityError, CorruptionError) as error:
            # This process remembers it in memory, and the next one finds it in the data.
            self._unwritten[digest] = now_ns + self._window_ns
            self._unrecorded.add(None, receipt)
            self._report("quiver.receiver.requests_failed", error)
            return
        if not durable:
            self._unrecorded.add(digest, receipt)

    def begin(self, digest: bytes) -> bool:
        """
        Return whether the caller must store this request. If so, it must call `finish` in every case.

        False means that the request is stored. While another thread or core stores it, this one waits: it shares a
        success, and after a failure it stores the request itself.

        Raises:
            CapacityError: the request cannot be claimed: the window or the disk is full, or another core takes too
                long.
            CorruptionError: the file is damaged.
        """
        self._tick()
        with self._changed:
            while digest in self._in_flight:
                self._clock.wait(self._changed, None)
            if self._unwritten.get(digest, -1) >= self._now_ns():
                return False
            self._in_flight[digest] = self._store.internals.next_sequence_min()
        is_claimed = False
        try:
            is_claimed = self._claim(digest)
        finally:
            if not is_claimed:
                self._leave(digest)
        return is_claimed

    def _claim(self, digest: bytes) -> bool:
        deadline_s = self._clock.monotonic() + _PATIENCE_S
        while True:
            now_ns = self._now_ns()
            row = (digest, _STORING, now_ns, now_ns + self._window_ns, self._core, self._run)
            if not self._is_full and self._do(_CLAIM, *row):
                return True
            found = self._ask(_LOOK_UP, digest, now_ns)
            if not found and self._is_full:
                raise CapacityError(
                    f"dedupe_window: the maximum of {self._entries_max} requests of the last {self.window_s:g} s is "
                    "reached; a shorter window needs fewer"
                )
            for state, core, run in found:
                if state == _DURABLE or (state == _STORED and run == self._run):
                    return False
                if not self._is_alive(core, run):
                    self._settle(core)
                elif state == _STORED and (core == self._core or not self._needs_durable):
                    if self._needs_durable:
                        self._store.sync()  # another receiver of this store ingested it
                    return False
            if self._clock.monotonic() >= deadline_s:
                raise CapacityError("another receiver is still storing this request", retry_after_s=1.0)
            with self._changed:
                self._clock.wait(self._changed, _POLL_S)

    def finish(self, digest: bytes, *, stored: bool, receipt: Any = None, durable: bool = False) -> None:
        """
        End what `begin` started.

        Args:
            digest: the digest of the request.
            stored: whether it is in the store, and may be confirmed from now on.
            receipt: the store's receipt for the last part of it.
            durable: whether it survives a power loss.
        """
        invariant(digest in self._in_flight, "a request is recorded only by the receiver that claimed it")
        try:
            if stored:
                self.remember(digest, receipt=receipt, durable=durable)
            else:
                with contextlib.suppress(CapacityError, CorruptionError):  # this window can claim it again anyway
                    self._do(_CANCEL, digest, self._run)
        finally:
            self._leave(digest)

    def _leave(self, digest: bytes) -> None:
        with self._changed:
            self._in_flight.pop(digest, None)
            self._changed.notify_all()

    # ── from time to time ────────────────────────────────────────────────────────────────────────────

    def note_durable(self) -> None:
        """Record now which requests have become durable, not within a second: other cores may wait for it."""
        with contextlib.suppress(CapacityError, CorruptionError), self._recorded(self._store.is_durable):
            pass

    @contextlib.contextmanager
    def _recorded(self, is_due: Callable[[Any], bool]) -> Iterator[sqlite3.Connection]:
        """Record the requests whose receipt *is_due* as durable; yield the database, before anything else uses it."""
        due: list[tuple[bytes, Any]] = []
        with self._opened() as database:
            try:
                due = self._unrecorded.take(is_due)
                database.execute("BEGIN IMMEDIATE")
                database.executemany(_MADE_DURABLE, [(digest,) for digest, _ in due])
                database.execute("COMMIT")
            except BaseException:
                self._unrecorded.put_back(due)
                raise
            yield database

    def _may_remove(self, last: int) -> bool:
        """Record the requests with a sequence number up to *last*, durably; return False if some must be kept."""
        with self._changed:
            if any(first <= last for first in self._in_flight.values()):
                return False
        try:
            with self._recorded(
                lambda receipt: receipt.sequence <= last or self._store.is_durable(receipt)
            ) as database:
                _, frames, synced = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except (CapacityError, CorruptionError):
            return False
        return bool(frames == synced)

    def _tick(self) -> None:
        """Run once a second: remove expired entries, record what has become durable, and let SQLite sync its log."""
        now_s, now_ns = self._clock.monotonic(), self._now_ns()
        with self._changed:
            if now_s < self._tick_at_s:
                return
            self._tick_at_s = now_s + _TICK_S
            for digest in [digest for digest, until_ns in self._unwritten.items() if until_ns < now_ns]:
                del self._unwritten[digest]
        with self._recorded(self._store.is_durable) as database:
            database.execute(_EXPIRE, (now_ns,))
            database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            names = ("page_count", "freelist_count", "page_size")
            pages, free, size = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        self._is_full = (pages - free) * size >= self._entries_max * ROW_BYTES

    # ── after a crash ────────────────────────────────────────────────────────────────────────────────

    def _cores(self) -> list[str]:
        """Return the names of the core directories; a store without cores has one empty name."""
        if not self._core:
            return [""]
        found = map(parse_core_directory, REAL_FILES.list_dir(self._directory))
        return [core_directory(core) for core in found if core is not None]

    def _recover(self) -> None:
        """Settle the open entries of earlier processes, of this core and of others."""
        newest = dict(self._ask("SELECT core, max(at_ns) FROM requests GROUP BY core"))
        unsettled = {core for (core,) in self._ask("SELECT DISTINCT core FROM requests WHERE state < 2")}
        for core in self._cores():
            if core == self._core or core not in newest:
                self._settle(core, newest_ns=newest.get(core, 0))
            elif core in unsettled:
                self._settle(core)

    def _settle(self, core: str, *, newest_ns: int | None = None) -> None:
        """
        Search the data of *core* for requests of closed windows that are not recorded as durable. With *newest_ns*,
        also for all requests newer than that.
        """
        left = self._ask(_LEFT, core)
        # Searched after the claims were read: a window that opens now makes other claims.
        dead = {run for run in {run for _, _, run in left} if not self._is_alive(core, run)}
        left = [row for row in left if row[2] in dead]
        if not left and newest_ns is None:
            return
        now_ns, step_ns = self._now_ns(), self._time.step_ns()
        since_ns = min([at_ns for _, at_ns, _ in left] + ([] if newest_ns is None else [newest_ns]))
        # The data have wall clock times, from before or after a step of the clock.
        since_ns = max(since_ns - _SLACK_NS, now_ns - self._window_ns) + min(0, step_ns)
        found: dict[bytes, int] = {}
        tables_until_ns = 0
        root = f"{self._directory}/{core}" if core else self._directory
        for ingested_at_ns, requests, tables in self._digests_in(root, since_ns):
            # A time in the future counts as now.
            at_ns = min(max(ingested_at_ns, ingested_at_ns - step_ns), now_ns)
            found.update(dict.fromkeys((*requests, *tables), at_ns))
            if tables:
                tables_until_ns = max(tables_until_ns, at_ns + self._window_ns)
        # Entries of an earlier process may only be in the page cache, and a confirmation promises more.
        if core == self._core:
            self._store.sync()
        else:
            sync_log(REAL_FILES, root)
        rows = [(digest, _DURABLE, at_ns, at_ns + self._window_ns, core, "") for digest, at_ns in found.items()]
        with self._opened() as database:
            database.execute("BEGIN IMMEDIATE")
            database.executemany(_LOST, [(digest, run) for digest, _, run in left if digest not in found])
            database.executemany(_SETTLED, [(digest, run) for digest, _, run in left if digest in found])
            database.executemany("INSERT OR IGNORE INTO requests VALUES (?, ?, ?, ?, ?, ?)", rows)
            if tables_until_ns:
                database.execute(_TABLES_UNTIL, (tables_until_ns,))
            database.execute("COMMIT")

    def _digests_in(self, root: str, since_ns: int) -> Iterator[tuple[int, list[bytes], list[bytes]]]:
        """Yield the time of each bundle, with the digests of the requests and of the tables in it."""
        # The log is always read completely. Segments may be many, and those before *since_ns* are known.
        logged_since_ns = self._now_ns() - self._window_ns + min(0, self._time.step_ns())
        for ingested_at_ns, data in recent_data(REAL_FILES, root, since_ns, logged_since_ns=logged_since_ns):
            requests, tables = digests_of_batches(data) if isinstance(data, dict) else digests_of_entry(data)
            self.unread += sum(digest is None for digest in (*requests, *tables))
            yield ingested_at_ns, _known(requests), _known(tables)


def _known(digests: Iterable[bytes | None]) -> list[bytes]:
    return [digest for digest in digests if digest is not None]


class _Resources:
    """The resources that a window releases when it is closed or garbage-collected."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.database: sqlite3.Connection | None = None

    def close_database(self) -> None:
        if self.database is not None:
            self.database.close()

    def close(self) -> None:
        self.close_database()
        self._lock.release()


def _connect(path: str) -> sqlite3.Connection:
    with contextlib.suppress(FileExistsError):
        REAL_FILES.create(path).close()  # not readable by other users, like everything in a store
    if not Path(path).is_file():
        raise CorruptionError(path, 0, "it is not a regular file; move it away")
    database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _prepare(database, path)
    except sqlite3.OperationalError as error:
        database.close()
        raise CapacityError(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        database.close()
        raise CorruptionError(path, 0, str(error)) from error
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection, path: str) -> None:
    database.execute("PRAGMA journal_mode = WAL").fetchall()
    # Syncs when SQLite's log is copied into the file: a commit that a power loss removes is found in the data again.
    database.execute("PRAGMA synchronous = NORMAL").fetchall()
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version not in {0, _VERSION}:
        raise UnsupportedFormatError(path, 60, f"version {version} of the file; this release supports {_VERSION}")
    database.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        database.execute(statement)
    database.execute("COMMIT")
