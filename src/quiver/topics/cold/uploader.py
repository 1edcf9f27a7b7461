"""
The upload of one topic's log into the object store. It reads the log's files and never changes them.

====  ======================================================  ====================================================
step  action                                                  a crash after it leaves …; the next cycle …
====  ======================================================  ====================================================
1     upload the range as ``data-<first>-pending.dnb1``       a pending object; removes it and uploads again
2     copy it to ``data-<first>-<last>.dnb1``                 an object without a descriptor; the same
3     read that one back and compare it                       the same
4     publish its descriptor, if this is the owner            a pending object next to a published one; removes it
5     remove the pending object                               an old checkpoint; continues from the catalog
6     replace `uploader.ckpt`                                 nothing to do
====  ======================================================  ====================================================

Only the catalog determines what is in the object store. The checkpoint only records where in which file to continue
reading, and that place is searched again if it does not fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from quiver.clock import Clock
from quiver.errors import CorruptionError, ObjectExistsError, ObjectsUnavailableError, QuiverError
from quiver.invariant import invariant
from quiver.objects.port import ObjectInfo, ObjectTier
from quiver.observe import Observer
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.small_file import read_if_valid
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.cold.source import ObjectSource, SourceRange
from quiver.topics.format.checkpoint import (
    CHECKPOINT_BYTES_MAX,
    UploaderCheckpoint,
    decode_uploader_checkpoint,
    encode_uploader_checkpoint,
)
from quiver.topics.format.descriptor import ObjectDescriptor, object_id, object_key, parse_object_id
from quiver.topics.format.names import (
    UPLOADER_CHECKPOINT,
    objects_prefix,
    parse_object_name,
    parse_wal_file_name,
    pending_object_name,
)
from quiver.topics.settings import UploaderSettings
from quiver.topics.wal.files import ReadStart
from quiver.topics.wal.writer import Wal

__all__ = ["PARTS_PARALLEL", "PART_BYTES", "READ_BYTES", "Uploader", "uploaded_from"]

PART_BYTES = 8 * 1024 * 1024
PARTS_PARALLEL = 4
READ_BYTES = 4 * 1024 * 1024
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Uploaded:
    descriptor: ObjectDescriptor
    seq: int
    next_position: int


class Uploader:
    """
    Uploads one topic, one cycle at a time. Not thread-safe: one thread drives it.

    Args:
        wal: the log; it has a directory.
        fs: its file system.
        objects: the object store.
        catalog: of the topic.
        settings: see `UploaderSettings`.
        check: raises if this is not the owner now; called before anything is removed or written.
        clock, observer: time, and where counts are sent.
        file_name: of the log's first file.
    """

    def __init__(
        self,
        wal: Wal,
        fs: FileSystem,
        objects: ObjectTier,
        catalog: ObjectCatalog,
        *,
        settings: UploaderSettings,
        check: Callable[[], None],
        clock: Clock,
        observer: Observer,
        file_name: str,
    ) -> None:
        self._wal = wal
        self._fs = fs
        self._objects = objects
        self._catalog = catalog
        self._settings = settings
        self._check = check
        self._clock = clock
        self._observer = observer
        self._file_name = file_name
        self._topic = catalog.topic
        self._is_tidy = False
        self._after_damage = 0
        self._stopping = False
        self._hint = _read_checkpoint(fs, self._checkpoint_path())
        self._uploaded = wal.start_offset if self._hint is None else self._hint.last_committed_offset + 1
        self._all_up_s = clock.monotonic()

    # ── a cycle ──────────────────────────────────────────────────────────────────────────────────────────

    def run_once(self) -> list[ObjectDescriptor]:
        """
        Upload everything that is synced now; return the descriptors of the new objects.

        Raises:
            ObjectsUnavailableError, MetadataUnavailableError: the next cycle continues; published objects stay.
            AccessDeniedError, CorruptionError: an operator has to act; the next cycle tries again.
            FencedError: another owner took over.
            OSError: the log cannot be read.
        """
        began = self._clock.monotonic()
        limit = self._wal.synced_offset  # later messages belong to the next cycle, after the other topics
        made = []
        try:
            if not self._is_tidy:
                self._tidy()
            while not self._stopping and (wanted := self._next_range(limit)) is not None:
                uploaded = self._upload(wanted)
                if uploaded is not None:
                    made.append(uploaded.descriptor)
                    self._uploaded = uploaded.descriptor.end_offset + 1
                    self._keep_checkpoint(uploaded)
        except (QuiverError, OSError) as error:
            # The contents of the store are unknown: the next cycle lists it and removes objects without a descriptor.
            self._is_tidy = False
            self._observer.count("danube_uploader_errors_total", 1, reason=type(error).__name__)
            raise
        self._uploaded = max(self._uploaded, self._catalog.next_offset, self._after_damage)
        if self._uploaded >= limit:
            self._all_up_s = began
        self._observer.record("danube_uploader_cycle_duration_seconds", self._clock.monotonic() - began)
        return made

    def lag(self) -> dict[str, float]:
        """
        Return how much is not in objects yet: messages, their share of the files' bytes, and for how many seconds there
        have been any.
        """
        uploaded, next_offset = self._uploaded, self._wal.next_offset
        waiting = [file for file in self._wal.files() if file.next_offset > max(uploaded, file.first_offset)]
        size = 0
        for file in waiting:
            first = max(uploaded, file.first_offset)
            size += file.size_bytes * (file.next_offset - first) // (file.next_offset - file.first_offset)
        return {
            "upload_lag_messages": max(0, next_offset - max(uploaded, self._wal.start_offset)),
            "upload_lag_bytes": size,
            "upload_lag_seconds": self._clock.monotonic() - self._all_up_s if waiting else 0.0,
        }

    @property
    def uploaded_offset(self) -> int:
        """The offset below which everything is in objects or lost, as far as this uploader knows."""
        return self._uploaded

    def stop(self) -> None:
        """Let a cycle in another thread end after its current object."""
        self._stopping = True

    def _tidy(self) -> None:
        """Read the catalog, and remove objects that a crash, a failure or a former owner left."""
        named: set[str] = set()
        self._catalog.refresh(names=named)
        prefix = objects_prefix(self._topic)
        leftover = []
        names = [info.key.removeprefix(prefix) for info in self._objects.list_below(prefix)]
        if not names and len(self._catalog):
            # Objects uploaded there now would make the old ones look lost, one by one.
            reason = "no object of this topic is there: is it the right place, and is it mounted?"
            raise ObjectsUnavailableError("list", prefix, f"{reason} If all are lost, run quiver topic rebuild-catalog")
        for name in names:
            is_ours = parse_object_id(name) is not None or parse_object_name(name) is not None
            if is_ours and name not in named:
                leftover.append(prefix + name)
        if leftover:
            self._check()
            self._objects.delete(leftover)
            self._observer.count("danube_uploader_leftovers_total", len(leftover))
            self._observer.event("danube.uploader.leftovers", topic=self._topic, objects=len(leftover))
        self._is_tidy = True

    def _next_range(self, limit: int) -> SourceRange | None:
        wal = self._wal
        known = self._catalog.next_offset
        first = max(known, self._after_damage, wal.start_offset)
        if len(self._catalog) and first > known and self._after_damage < first:
            self._observer.event(
                "danube.uploader.gap", level=logging.ERROR, topic=self._topic, first_offset=known, next_offset=first
            )
        if first >= limit:
            return None
        span = wal.locate(first)
        if span is None:
            local = wal.next_local(first)
            if local is None or local >= limit or local == first:
                return None
            self._after_damage = local
            return self._next_range(limit)
        return SourceRange(
            self._nearest(span, first), first, min(limit, span.next_offset), self._settings.max_batch_bytes
        )

    def _nearest(self, span: ReadStart, first: int) -> ReadStart:
        # The end of the last upload is nearer than the log's own marks, if the range starts there.
        hint = self._hint
        if hint is None or hint.last_committed_offset + 1 != first or hint.last_read_byte_position > span.end:
            return span
        if parse_wal_file_name(span.path.rpartition("/")[2], self._file_name) != hint.last_read_file_seq:
            return span
        return ReadStart(span.path, hint.last_read_byte_position, first, span.end, span.next_offset)

    # ── an object ────────────────────────────────────────────────────────────────────────────────────────

    def _upload(self, wanted: SourceRange) -> _Uploaded | None:
        self._wal.take_hold(wanted.span.path, self)
        try:
            source = ObjectSource(self._fs, wanted, self._settings.compression)
            pending = object_key(self._topic, pending_object_name(wanted.first_offset))
            self._check()
            sent = self._objects.put_parts(pending, source.parts, part_bytes=PART_BYTES, parallel=PARTS_PARALLEL)
        finally:
            self._wal.drop_hold(wanted.span.path, self)
        if source.next_offset == wanted.first_offset:
            self._objects.delete([pending])
            if self._hint is not None:
                self._hint = None  # the checkpoint may be wrong; the log's own marks are not
            else:
                self._skip_lost(wanted, source)
            return None
        if source.lost is not None:
            self._skip_lost(wanted, source)
        return self._finish(wanted, source, pending, is_verified=sent.is_verified)

    def _skip_lost(self, wanted: SourceRange, source: ObjectSource) -> None:
        lost = source.lost
        after = wanted.next_offset if lost is None else lost.next_offset
        self._after_damage = wanted.span.next_offset if after is None else after
        self._observer.event(
            "danube.uploader.damage", level=logging.ERROR, topic=self._topic, path=wanted.span.path,
            offset=source.next_position if lost is None else lost.start,
            first_offset=source.next_offset, next_offset=self._after_damage,
        )  # fmt: skip

    def _finish(self, wanted: SourceRange, source: ObjectSource, pending: str, *, is_verified: bool) -> _Uploaded:
        name = object_id(wanted.first_offset, source.next_offset - 1, self._settings.compression)
        final = object_key(self._topic, name)
        self._check()
        # An existing object may be this very one: a request can be executed twice. It may also be a new owner's, with
        # the same offsets, if this process does not know that owner yet: never replace an object with a finished name.
        try:
            info = self._objects.copy(pending, final, if_absent=True)
            is_same = is_verified and info.size_bytes == source.size_bytes
        except ObjectExistsError:
            is_same = False
        if not is_same:
            info = self._verified(final, source)
        descriptor = ObjectDescriptor(
            object_id=name,
            start_offset=wanted.first_offset,
            end_offset=source.next_offset - 1,
            size=source.size_bytes,
            etag=info.etag,
            created_at=self._clock.now_ns() // _NS_PER_S,
            offset_index=tuple(source.index),
            compression=self._settings.compression,
        )
        began = self._clock.monotonic()
        invariant(self._catalog.next_offset <= descriptor.start_offset, "no object replaces or overlaps another one")
        self._catalog.publish(descriptor)
        self._observer.record("danube_etcd_put_latency_seconds", self._clock.monotonic() - began)
        self._observer.count("danube_etcd_descriptor_write_total", 1)
        self._observer.count("danube_uploader_objects_created_total", 1)
        self._observer.count("danube_uploader_bytes_uploaded_total", source.size_bytes)
        seq = parse_wal_file_name(wanted.span.path.rpartition("/")[2], self._file_name) or 0
        self._observer.event(
            "danube.uploader.object", topic=self._topic, object_id=descriptor.object_id, file_seq=seq,
            first_offset=wanted.first_offset, next_offset=source.next_offset, size_bytes=source.size_bytes,
        )  # fmt: skip
        self._objects.delete([pending])
        return _Uploaded(descriptor, seq, source.next_position)

    def _verified(self, key: str, source: ObjectSource) -> ObjectInfo:
        """Return the metadata of *key* after checking that it equals, byte for byte, what was read from the log."""
        info = self._objects.head(key)
        checksum = 0
        for at in range(0, source.size_bytes, READ_BYTES):
            wanted = min(READ_BYTES, source.size_bytes - at)
            piece = self._objects.get_range(key, at, wanted)
            if len(piece) != wanted:
                raise CorruptionError(
                    key, at + len(piece), f"the object store returned {len(piece)} bytes, not {wanted}"
                )
            checksum = crc32(piece, checksum)
        if info.size_bytes != source.size_bytes or checksum != source.checksum:
            raise CorruptionError(key, 0, "the object store has other bytes than were sent; they are uploaded again")
        return info

    # ── the checkpoint ───────────────────────────────────────────────────────────────────────────────────

    def _checkpoint_path(self) -> str:
        return f"{self._wal.directory}/{UPLOADER_CHECKPOINT}"

    def _keep_checkpoint(self, uploaded: _Uploaded) -> None:
        checkpoint = UploaderCheckpoint(
            last_committed_offset=uploaded.descriptor.end_offset,
            last_read_file_seq=uploaded.seq,
            last_read_byte_position=uploaded.next_position,
            last_object_id=uploaded.descriptor.object_id,
            updated_at=self._clock.now_ns() // _NS_PER_S,
        )
        self._hint = checkpoint
        try:
            replace_file(self._fs, self._checkpoint_path(), encode_uploader_checkpoint(checkpoint))
        except OSError as error:
            # Only a hint: without it the next cycle after a restart searches the place.
            self._observer.event("danube.uploader.checkpoint_failed", level=logging.WARNING, problem=str(error))


def uploaded_from(fs: FileSystem, directory: str) -> int:
    """
    Return the offset below which everything in *directory* was uploaded from there; 0 if that is unknown.

    Raises:
        OSError: the disk cannot be read.
    """
    checkpoint = _read_checkpoint(fs, f"{directory}/{UPLOADER_CHECKPOINT}")
    return 0 if checkpoint is None else checkpoint.last_committed_offset + 1


def _read_checkpoint(fs: FileSystem, path: str) -> UploaderCheckpoint | None:
    return read_if_valid(fs, path, decode_uploader_checkpoint, CHECKPOINT_BYTES_MAX)
