"""Whether records of a log are durable, and waiting until they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from quiver.aof.append.flush import Flusher
from quiver.aof.append.notify import deadline_of
from quiver.aof.append.segment import Segment
from quiver.aof.append.tail import Tail
from quiver.aof.append.upload_waiting import UploadWaiting
from quiver.aof.format.record import RECORD_HEAD, RECORD_HEAD_BYTES, split_record_id
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.reading.catalog import Catalog
from quiver.aof.reading.search import read_one
from quiver.aof.segment_index import OpenSegments
from quiver.clock import Clock
from quiver.errors import CorruptionError, StoreClosedError, UnknownRecordError, UsageError
from quiver.primitives.checksum import crc64_nvme_function

__all__ = ["DurabilityTracker", "Durable"]

_HALF = 0xFFFF_FFFF

Durable = bool | Literal["object"]
"""False: written; True: synced; "object": also in the object store."""

T = TypeVar("T")


class DurabilityTracker:
    """Answers whether records of one open log survive a power loss, and waits until they do. Thread-safe."""

    def __init__(
        self,
        name: str,
        tail: Tail,
        catalog: Catalog,
        flusher: Flusher,
        segments: OpenSegments,
        uploads: UploadWaiting,
        *,
        clock: Clock,
        is_closed: Callable[[], bool],
    ) -> None:
        self._name = name
        self._tail = tail
        self._catalog = catalog
        self._flusher = flusher
        self._segments = segments
        self._uploads = uploads
        self._clock = clock
        self._is_closed = is_closed

    def durably(self, append: Callable[[float | None], T], level: Durable, timeout: float | None) -> T:
        """
        Call *append* with *timeout*, wait until its last record is durable, and return its result.

        Raises:
            UsageError: *level* has another value, or the log has no object store; nothing was appended.
            NotDurableError: *timeout* passed, or syncs failed; the records are appended.
        """
        if level not in (True, "object"):
            raise UsageError(f'durable is False, True or "object", not {level!r}; nothing was written')
        if level == "object":
            self._uploads.require_objects()
        deadline = deadline_of(self._clock, timeout)
        appended = append(timeout)
        last = appended[-1] if isinstance(appended, list) and appended else appended
        if isinstance(last, int):
            left = None if deadline is None else max(0.0, deadline - self._clock.monotonic())
            if level == "object":
                self._uploads.until(last, left)
            else:
                self.flush_until(last, left)
        return appended

    def wait_until_uploaded(self, record_id: int, timeout: float | None) -> None:
        """
        Wait until the record is in the object store.

        Raises:
            NotDurableError, UnknownRecordError, CorruptionError, StoreClosedError, StoreFailedError, UsageError: as
            `Aof.wait_until_uploaded`.
        """
        self._uploads.require_objects()
        self._require_record(record_id)
        self._uploads.until(record_id, timeout)

    def _require_record(self, record_id: int) -> None:
        segment_id, offset = split_record_id(record_id)
        segment = self._unsealed(segment_id)
        if segment is not None:
            _end_of_record(segment, offset)
            return
        sealed = self._catalog.get(segment_id)
        if sealed is None or not HEADER_BYTES <= offset < sealed.end:
            raise UnknownRecordError(f"no record {record_id} is in the log")

    def flush_until(self, record_id: int, timeout: float | None) -> None:
        """
        Wait until the record and all records before it are durable.

        Raises:
            NotDurableError, UnknownRecordError, StoreClosedError, StoreFailedError: as `Aof.flush_until`.
        """
        segment_id, offset = split_record_id(record_id)
        segment = self._unsealed(segment_id)
        if segment is None:
            sealed = self._catalog.get(segment_id)
            if sealed is None:
                if self._is_closed():
                    raise StoreClosedError(
                        f"the log {self._name} was closed; open it to see whether it has {record_id}"
                    )
                raise UnknownRecordError(f"no record {record_id}: there is no segment {segment_id}")
            if not HEADER_BYTES <= offset < sealed.end:
                raise UnknownRecordError(
                    f"no record {record_id}: the records of segment {segment_id} end at {sealed.end}"
                )
            return
        if not HEADER_BYTES <= offset <= segment.last_offset or not segment.record_count:
            raise UnknownRecordError(f"no record {record_id} is in segment {segment_id} yet")
        end = _end_of_record(segment, offset)
        for earlier in self._earlier(segment_id):
            self._flusher.until(earlier, earlier.size, record_id, timeout)
        self._flusher.until(segment, end, record_id, timeout)

    def flush(self, timeout: float | None) -> None:
        """
        Make all records that were appended before the call durable.

        Raises:
            NotDurableError, StoreFailedError: as `Aof.flush_until`.
        """
        with self._tail.lock:
            written = [(one, one.size) for one in self._tail.unsealed() if one.record_count]
        for segment, size in written:
            self._flusher.until(segment, size, segment.id_base | segment.last_offset, timeout)

    def is_durable(self, record_id: int) -> bool:
        """Return whether the record survives a power loss."""
        segment_id, offset = split_record_id(record_id)
        segment = self._unsealed(segment_id)
        if segment is not None:
            if not HEADER_BYTES <= offset < segment.durable:
                return False
        else:
            sealed = self._catalog.get(segment_id)
            if sealed is None or not HEADER_BYTES <= offset < sealed.end:
                return False
        try:
            read_one(self._segments, record_id)
        except UnknownRecordError:
            return False
        except CorruptionError:
            return True  # the record exists and was durable; reading it raises the error
        return True

    def _unsealed(self, segment_id: int) -> Segment | None:
        with self._tail.lock:
            return next((one for one in self._tail.unsealed() if one.segment_id == segment_id), None)

    def _earlier(self, segment_id: int) -> list[Segment]:
        with self._tail.lock:
            return [one for one in self._tail.pending if one.segment_id < segment_id]


def _end_of_record(segment: Segment, offset: int) -> int:
    """
    Return where the record at *offset* ends.

    Raises:
        UnknownRecordError: no record begins there: the bytes do not match a checksum.
    """
    start = offset + RECORD_HEAD_BYTES
    if start < segment.size:
        (length, checksum, *_) = RECORD_HEAD.unpack_from(segment.view, offset)
        value = crc64_nvme_function()(segment.view[start : start + length])
        if length and start + length <= segment.size and (value >> 32) ^ (value & _HALF) == checksum:
            return start + int(length)
    raise UnknownRecordError(f"no record {segment.id_base | offset}: none begins at byte {offset} of its segment")
