"""
The MAN1 manifest log of one stream: the tier events of its segments.

::

    append   records after the committed ones ▸ sync ▸ header with the new length and checksum ▸ sync
    rotate   the chunk is full: mark it sealed ▸ a new chunk that begins with the complete state ▸ remove the oldest

A crash during an append leaves the old length or the new one. A crash during a rotation leaves only the old chunk or
both, and the new one has the complete state. So the newest chunk is sufficient, and the size of the log stays within a
few times the size of the state. The chunk before it is kept in case the newest cannot be read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from quiver.aof.format.manifest_chunk import (
    CHUNK_HEADER_BYTES,
    FLAG_SEALED,
    ChunkHeader,
    decode_chunk,
    decode_chunk_header,
    encode_chunk_header,
)
from quiver.aof.format.manifest_record import Event, ManifestRecord, decode_manifest_record, encode_manifest_record
from quiver.aof.format.names import chunk_name, parse_chunk_name, stream_folder
from quiver.aof.tiers.state import TierState
from quiver.clock import Clock
from quiver.observe import Observer
from quiver.primitives.checksum import crc64_nvme
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX, remove_durably, replace_file
from quiver.primitives.disk.disk_full import is_full_disk, require_room
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.primitives.scan import Frame, as_damage

__all__ = ["CHUNK_BYTES", "ManifestLog", "ReplayedManifest", "replay_manifest"]

CHUNK_BYTES = 256 * 1024
"""A chunk is rotated above this size, or above twice its initial size."""

_CHUNK_BYTES_MAX = 1 << 30
_KEPT = 2


@dataclass(slots=True)
class ReplayedManifest:
    """
    The result of replaying the chunks of a stream.

    Attributes:
        damaged: path of a chunk → its damage, for chunks that no later complete snapshot replaces.
        last: the header of the newest chunk if it can be appended to.
        last_ms: when the newest record was written, in milliseconds; None when there is none.
    """

    state: TierState = field(default_factory=TierState)
    damaged: dict[str, str] = field(default_factory=dict)
    indexes: list[int] = field(default_factory=list)
    last: ChunkHeader | None = None
    records: int = 0
    last_ms: int | None = None


def replay_manifest(fs: FileSystem, root: str, stream_id: int) -> ReplayedManifest:
    """
    Read the manifest log of a stream without changing it. Uncommitted records are ignored.

    Raises:
        OSError: the disk cannot be read.
    """
    folder = f"{root}/{stream_folder(stream_id)}"
    found = ReplayedManifest()
    if not fs.exists(folder):
        return found
    found.indexes = sorted(index for name in fs.list_dir(folder) if (index := parse_chunk_name(name)) is not None)
    for index in found.indexes:
        path = f"{folder}/{chunk_name(index)}"
        try:
            data = fs.read_all(path, size_max=_CHUNK_BYTES_MAX)
        except FileNotFoundError:
            continue  # the writer rotated meanwhile
        _take(found, path, index, memoryview(data))
    return found


def _take(found: ReplayedManifest, path: str, index: int, view: memoryview) -> None:
    answer = decode_chunk(view)
    reason = ""
    found.last = None
    records: Sequence[ManifestRecord]
    if not isinstance(answer, Frame):
        reason, records = as_damage(answer, len(view)).reason, _salvage(view)
    elif answer.value[0].chunk_index != index:
        reason, records = "the chunk has the name of another one", _salvage(view)
    else:
        found.last, records = answer.value
    for record in records:
        if record.kind == Event.SNAPSHOT_MARKER:
            found.damaged.clear()
        wrong = found.state.apply(record)
        found.records += 1
        found.last_ms = max(found.last_ms or 0, record.timestamp_ms)
        if wrong is not None:
            reason = wrong.reason
    if reason:
        found.damaged[path] = reason
        found.last = None


def _salvage(view: memoryview) -> list[ManifestRecord]:
    """Return the complete records at the beginning of a chunk with a damaged header or checksum."""
    header = decode_chunk_header(view)
    limit = min(len(view), header.value.tail_offset) if isinstance(header, Frame) else len(view)
    records = []
    offset = CHUNK_HEADER_BYTES
    while isinstance(answer := decode_manifest_record(view[:limit], offset), Frame):
        records.append(answer.value)
        offset = answer.end
    return records


class ManifestLog:
    """
    The log of one stream, open for writing. One thread at a time.

    Args:
        fs, root, stream_id: the place of its chunks.
        chunk_bytes: a chunk is rotated above this size.

    Attributes:
        state: the tier state; `write` applies every record after it is durable.
        damaged: path of a chunk → its damage, as found when the log was opened.
        is_new: whether there was no chunk.
        replay_chunks, replay_journal_lag_bytes: the number of chunks, and uncommitted bytes at their end, when the log
            was opened.
        replay_chunk_lag_seconds: the age of their newest record; 0 when there was none.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        stream_id: int,
        *,
        clock: Clock,
        observer: Observer,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._fs = fs
        self._folder = f"{root}/{stream_folder(stream_id)}"
        self._clock = clock
        self._chunk_bytes = chunk_bytes
        self._file: File | None = None
        replayed = replay_manifest(fs, root, stream_id)
        self.state = replayed.state
        self.damaged = dict(replayed.damaged)
        self.is_new = not replayed.indexes
        for path, reason in self.damaged.items():
            observer.count("aof_manifest_replay_corruption_events_total")
            observer.event("aof.manifest.damaged", level=logging.WARNING, path=path, reason=reason)
        self._next_index = max(replayed.indexes, default=-1) + 1
        self._records = replayed.records
        self.replay_chunks = len(replayed.indexes)
        self.replay_journal_lag_bytes = 0
        newest_ms = self.now_ms if replayed.last_ms is None else replayed.last_ms
        self.replay_chunk_lag_seconds = max(0.0, (self.now_ms - newest_ms) / 1000)
        self._header = replayed.last
        self._limit = chunk_bytes
        self._lacks_space = False
        if self._header is not None and not self._header.sealed:
            self._continue(self._header)
        else:
            self._header = None

    @property
    def now_ms(self) -> int:
        """The time for records, in milliseconds."""
        return self._clock.now_ns() // 1_000_000

    def _continue(self, header: ChunkHeader) -> None:
        path = f"{self._folder}/{chunk_name(header.chunk_index)}"
        self._file = self._fs.open_write(path)
        self.replay_journal_lag_bytes = max(0, self._file.size() - header.committed_len)
        if self.replay_journal_lag_bytes:
            self._file.truncate(header.committed_len)  # a torn end, which was never committed
        self._limit = max(self._chunk_bytes, header.committed_len)

    def write(self, records: Sequence[ManifestRecord]) -> None:
        """
        Append all of *records* or none, durably.

        Raises:
            OSError: it is unknown until the next opening whether they were written. The next write begins a new chunk
                without them.
        """
        data = b"".join(map(encode_manifest_record, records))
        self._lacks_space = False
        try:
            if self._file is None or self._header is None or self._is_to_rotate(self._header, len(data)):
                self._rotate(data)
            else:
                self._append(self._file, self._header, data)
        except OSError:
            if not self._lacks_space:
                self.close()
            raise
        self._records += len(records)
        for record in records:
            self.state.apply(record)

    @property
    def needs_chunk(self) -> bool:
        """Whether nothing can be written until there is space for a new chunk."""
        return self._file is None

    def _is_to_rotate(self, header: ChunkHeader, size: int) -> bool:
        if header.committed_len + size <= self._limit:
            return False
        try:
            require_room(self._fs, self._folder, 2 * self._limit)
        except OSError as error:
            if not is_full_disk(error):
                raise
            return False  # a new chunk holds the complete state: on a full disk append to the old one instead
        return True

    def rotate(self) -> None:
        """
        Begin a new chunk with the complete state.

        Raises:
            OSError: as `write`.
        """
        try:
            self._rotate(b"")
        except OSError:
            self.close()
            raise

    def _append(self, file: File, header: ChunkHeader, data: bytes) -> None:
        end = header.committed_len + len(data)
        try:
            file.pwrite(data, header.committed_len)
        except OSError as error:
            # Nothing is committed before the header is updated: the chunk stays usable and no new one is needed.
            self._lacks_space = is_full_disk(error)
            raise
        # The length must never reach the disk before the records that it covers.
        file.sync_data()
        grown = replace(header, tail_offset=end, committed_len=end, chunk_crc64=crc64_nvme(data, header.chunk_crc64))
        file.pwrite(encode_chunk_header(grown), 0)
        file.sync_data()
        self._header = grown

    def _rotate(self, data: bytes) -> None:
        if self._file is not None and self._header is not None:
            self._file.pwrite(encode_chunk_header(replace(self._header, flags=FLAG_SEALED)), 0)
            self._file.sync_data()
            self.close()
        index = self._next_index
        self._next_index = index + 1
        snapshot = self.state.snapshot(index, self.now_ms)
        body = b"".join(map(encode_manifest_record, snapshot)) + data
        end = CHUNK_HEADER_BYTES + len(body)
        header = ChunkHeader(index, self._records, end, end, crc64_nvme(body))
        path = f"{self._folder}/{chunk_name(index)}"
        self._fs.make_dirs(self._folder)
        replace_file(self._fs, path, encode_chunk_header(header) + body)
        self._file, self._header = self._fs.open_write(path), header
        self._records += len(snapshot)
        self._limit = max(self._chunk_bytes, 2 * end)
        self._remove_old(index)

    def _remove_old(self, newest: int) -> None:
        names = self._fs.list_dir(self._folder)
        old = [name for name in names if (index := parse_chunk_name(name)) is not None and index <= newest - _KEPT]
        old += [name for name in names if name.endswith(TEMPORARY_SUFFIX)]
        remove_durably(self._fs, [f"{self._folder}/{name}" for name in sorted(old)])

    def close(self) -> None:
        """Close the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
