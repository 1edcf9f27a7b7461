"""
What the append-only log is measured against: a bare framed log, LMDB, RocksDB, a queue in SQLite, and queuelib.

Each appends a list of records as it does best, reads them all in order, and reads one by its number where it can.
"""

from __future__ import annotations

import mmap
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import lmdb
import queuelib.queue
import rocksdict
from isal.isal_zlib import crc32

_HEAD = struct.Struct("<II")
_KEY = struct.Struct(">Q")


class Rival(Protocol):
    """A log of numbered records."""

    def append(self, records: Sequence[bytes]) -> None: ...
    def sync(self) -> None: ...
    def read(self) -> Iterator[bytes]: ...
    def get(self, number: int) -> bytes: ...
    def close(self) -> None: ...


class BareLog:
    """The least a log can do: length, CRC-32 and bytes; one write for a batch; checksums verified when read."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "log"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT)
        self._offsets: list[int] = []
        self._end = 0

    def append(self, records: Sequence[bytes]) -> None:
        parts = []
        for record in records:
            self._offsets.append(self._end)
            parts.append(_HEAD.pack(len(record), crc32(record)))
            parts.append(record)
            self._end += 8 + len(record)
        os.pwrite(self._fd, b"".join(parts), self._end - sum(map(len, parts)))

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def _at(self, view: mmap.mmap, offset: int) -> bytes:
        length, checksum = _HEAD.unpack_from(view, offset)
        record = view[offset + 8 : offset + 8 + length]
        if crc32(record) != checksum:
            raise ValueError(offset)
        return record

    def read(self) -> Iterator[bytes]:
        view = mmap.mmap(self._fd, self._end, access=mmap.ACCESS_READ)
        offset = 0
        while offset < self._end:
            record = self._at(view, offset)
            yield record
            offset += 8 + len(record)

    def get(self, number: int) -> bytes:
        offset = self._offsets[number]
        head = os.pread(self._fd, 8, offset)
        length, checksum = _HEAD.unpack(head)
        record = os.pread(self._fd, length, offset + 8)
        if crc32(record) != checksum:
            raise ValueError(offset)
        return record

    def close(self) -> None:
        os.close(self._fd)


class LmdbLog:
    """Numbers as integer keys, appended; one transaction for a batch. Without sync until asked."""

    def __init__(self, directory: Path) -> None:
        self._env = lmdb.open(str(directory / "lmdb"), map_size=16 << 30, sync=False, metasync=False, writemap=True)
        self._count = 0

    def append(self, records: Sequence[bytes]) -> None:
        with self._env.begin(write=True) as transaction:
            for number, record in enumerate(records, self._count):
                transaction.put(_KEY.pack(number), record, append=True)
        self._count += len(records)

    def sync(self) -> None:
        self._env.sync(True)

    def read(self) -> Iterator[bytes]:
        with self._env.begin() as transaction:
            yield from transaction.cursor().iternext(keys=False, values=True)

    def get(self, number: int) -> bytes:
        with self._env.begin() as transaction:
            return transaction.get(_KEY.pack(number))

    def close(self) -> None:
        self._env.close()


class RocksLog:
    """Numbers as raw keys; one write batch for a batch; the write-ahead log is flushed when a sync is asked for."""

    def __init__(self, directory: Path) -> None:
        self._db = rocksdict.Rdict(str(directory / "rocks"), rocksdict.Options(raw_mode=True))
        self._count = 0

    def append(self, records: Sequence[bytes]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for number, record in enumerate(records, self._count):
            batch.put(_KEY.pack(number), record)
        self._db.write(batch)
        self._count += len(records)

    def sync(self) -> None:
        self._db.flush_wal(True)

    def read(self) -> Iterator[bytes]:
        yield from self._db.values()

    def get(self, number: int) -> bytes:
        return self._db[_KEY.pack(number)]

    def close(self) -> None:
        self._db.close()


class SqliteLog:
    """A table in WAL mode; one transaction for a batch; a sync is a full checkpoint of the log."""

    def __init__(self, directory: Path) -> None:
        self._db = sqlite3.connect(directory / "queue.db", isolation_level=None)
        for line in ("journal_mode=WAL", "synchronous=OFF"):
            self._db.execute(f"PRAGMA {line}")
        self._db.execute("CREATE TABLE queue (number INTEGER PRIMARY KEY, record BLOB)")
        self._wal = directory / "queue.db-wal"

    def append(self, records: Sequence[bytes]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO queue (record) VALUES (?)", [(record,) for record in records])
        self._db.execute("COMMIT")

    def sync(self) -> None:
        fd = os.open(self._wal, os.O_RDWR)
        os.fdatasync(fd)
        os.close(fd)

    def read(self) -> Iterator[bytes]:
        for (record,) in self._db.execute("SELECT record FROM queue ORDER BY number"):
            yield record

    def get(self, number: int) -> bytes:
        return self._db.execute("SELECT record FROM queue WHERE number = ?", (number + 1,)).fetchone()[0]

    def close(self) -> None:
        self._db.close()


class QueuelibLog:
    """A first-in first-out queue of chunk files; reading takes out; it has no numbers, and no sync of its own."""

    def __init__(self, directory: Path) -> None:
        self._queue = queuelib.queue.FifoDiskQueue(str(directory / "queue"))

    def append(self, records: Sequence[bytes]) -> None:
        for record in records:
            self._queue.push(record)

    def sync(self) -> None:
        self._queue.headf.flush()
        os.fdatasync(self._queue.headf.fileno())

    def read(self) -> Iterator[bytes]:
        while (record := self._queue.pop()) is not None:
            yield record

    def close(self) -> None:
        self._queue.close()


RIVALS: dict[str, Callable[[Path], Rival]] = {
    "bare log": BareLog,
    "LMDB": LmdbLog,
    "RocksDB": RocksLog,
    "SQLite queue": SqliteLog,
    "queuelib": QueuelibLog,
}
