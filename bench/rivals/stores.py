"""
What the store is measured against: a bare framed log, LMDB, RocksDB, and a queue in SQLite.

All of them keep the same Arrow bytes: schema message, batch message, end of stream.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
from pathlib import Path

import lmdb
import pyarrow as pa
import rocksdict
from isal.isal_zlib import crc32

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_HEAD = struct.Struct("<IBqQQH32sII")
_CRC = struct.Struct("<I")
FINGERPRINT = bytes(32)


class BareLog:
    """
    The least a log can do: the very bytes of the store's entries, their checksum, one gathered write.

    Args:
        sync_each: fdatasync after every append, as `ingest(durable=True)`; else every *interval_s* by a thread.
        zeroed_bytes: fill the file with zeros first (not timed), which makes its syncs cheaper.
    """

    def __init__(self, directory: Path, *, sync_each: bool, interval_s: float = 0.025, zeroed_bytes: int = 0) -> None:
        self.fd = os.open(directory / "log", os.O_RDWR | os.O_CREAT)
        self.offset = 0
        self.sequence = 0
        self.sync_each = sync_each
        self.schema_message = b""
        for start in range(0, zeroed_bytes, 1 << 20):
            os.pwrite(self.fd, bytes(1 << 20), start)
        os.fsync(self.fd)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if not sync_each:
            self._thread = threading.Thread(target=self._sync_often, args=(interval_s,), daemon=True)
            self._thread.start()

    def _sync_often(self, interval_s: float) -> None:
        while not self._stop.wait(interval_s):
            os.fdatasync(self.fd)

    def append(self, batch: pa.RecordBatch) -> None:
        schema_message = self.schema_message or batch.schema.serialize().to_pybytes()
        self.schema_message = schema_message
        message = batch.serialize()
        payload_bytes = len(schema_message) + message.size + 8
        body_bytes = _HEAD.size - 4 + payload_bytes
        head = (
            _HEAD.pack(body_bytes, 0, 0, self.sequence, 1 << 30, 30, FINGERPRINT, batch.num_rows, payload_bytes)
            + schema_message
        )
        checksum = crc32(END_OF_STREAM, crc32(message, crc32(head[4:])))
        os.pwritev(self.fd, [head, message, END_OF_STREAM + _CRC.pack(checksum)], self.offset)
        self.offset += body_bytes + 8
        self.sequence += 1
        if self.sync_each:
            os.fdatasync(self.fd)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        os.fdatasync(self.fd)
        os.close(self.fd)


class GroupLog(BareLog):
    """The bare log for many producers: an append under a lock, and one sync for all who wait."""

    def __init__(self, directory: Path, *, zeroed_bytes: int = 0) -> None:
        super().__init__(directory, sync_each=True, zeroed_bytes=zeroed_bytes)
        self.sync_each = False
        self._append_lock = threading.Lock()
        self._turn = threading.Condition()
        self._syncing = False
        self._synced = 0

    def append(self, batch: pa.RecordBatch) -> None:
        with self._append_lock:
            super().append(batch)
            end = self.offset
        with self._turn:
            while self._synced < end and self._syncing:
                self._turn.wait()
            if self._synced >= end:
                return
            self._syncing = True
        target = self.offset
        os.fdatasync(self.fd)
        with self._turn:
            self._syncing = False
            self._synced = max(self._synced, target)
            self._turn.notify_all()


def replay_bare_log(path: Path, header_bytes: int) -> int:
    """Read a log of such entries the cheapest way: every checksum, every batch. Returns how many entries there were."""
    whole = memoryview(path.read_bytes())
    at, count = header_bytes, 0
    while at + _HEAD.size < len(whole) and (body_bytes := int.from_bytes(whole[at : at + 4], "little")):
        end = at + 4 + body_bytes
        if crc32(whole[at + 4 : end]) != _CRC.unpack_from(whole, end)[0]:
            raise ValueError(f"{path}: damaged at {at}")
        with pa.ipc.open_stream(pa.py_buffer(whole[at + _HEAD.size : end])) as reader:
            reader.read_next_batch()
        at, count = end + _CRC.size, count + 1
    return count


def as_stream(batch: pa.RecordBatch) -> pa.Buffer:
    """Return *batch* as a whole Arrow stream, as people store it elsewhere."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


class LmdbQueue:
    """LMDB, one transaction per bundle."""

    def __init__(self, directory: Path, *, sync_each: bool) -> None:
        self.env = lmdb.open(str(directory), map_size=4 << 30, sync=sync_each, metasync=sync_each)
        self.sequence = 0

    def append(self, batch: pa.RecordBatch) -> None:
        with self.env.begin(write=True) as transaction:
            transaction.put(self.sequence.to_bytes(8, "big"), as_stream(batch), append=True)
        self.sequence += 1

    def close(self) -> None:
        self.env.sync(True)
        self.env.close()


class RocksQueue:
    """RocksDB, one put per bundle; its own log is synced with each put, or not at all."""

    def __init__(self, directory: Path, *, sync_each: bool) -> None:
        self.db = rocksdict.Rdict(str(directory), rocksdict.Options(raw_mode=True))
        self.options = rocksdict.WriteOptions()
        self.options.sync = sync_each
        self.sequence = 0

    def append(self, batch: pa.RecordBatch) -> None:
        self.db.put(self.sequence.to_bytes(8, "big"), as_stream(batch).to_pybytes(), write_opt=self.options)
        self.sequence += 1

    def close(self) -> None:
        self.db.flush_wal(sync=True)
        self.db.close()


class SqliteQueue:
    """A queue as people write it: a table in WAL mode, one transaction per bundle."""

    def __init__(self, directory: Path, *, sync_each: bool) -> None:
        self.db = sqlite3.connect(directory / "queue.db", isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute(f"PRAGMA synchronous={'FULL' if sync_each else 'NORMAL'}")
        self.db.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, bundle BLOB)")

    def append(self, batch: pa.RecordBatch) -> None:
        self.db.execute("INSERT INTO queue (bundle) VALUES (?)", (as_stream(batch),))

    def close(self) -> None:
        self.db.close()
