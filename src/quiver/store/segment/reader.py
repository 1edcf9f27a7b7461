"""
A segment file → bundles, without copying, never without its checksum.

Opening reads the end of the file only: trailer, footer, directory, manifest. The first batch that is asked for,
or `SegmentReader.verify`, reads the whole file once for its checksum; no byte reaches Arrow's decoder before
that, since Arrow trusts the offsets it finds. Batches point into the mapped file and keep it mapped, also after
the reader is closed and the file is unlinked.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Container, Iterator, Mapping
from typing import Any

import pyarrow as pa

from quiver.errors import Damaged, FormatUnsupported, StoreClosed
from quiver.primitives.files import FileSystem
from quiver.primitives.scan import Damage, NeedMore
from quiver.store.format.manifest import Manifest, check_manifest, decode_manifest
from quiver.store.format.names import parse_segment_name
from quiver.store.format.segment_file import (
    SegmentFooter,
    StreamEntry,
    check_directory,
    check_segment_checksum,
    decode_directory,
    decode_segment_footer,
)
from quiver.store.segment.info import SegmentInfo

__all__ = ["SegmentReader"]

_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError)


class SegmentReader:
    """
    One sealed segment, mapped. Thread-safe. Make one with `SegmentReader.open`.

    Attributes:
        path: where it lies.
        info: counts, sizes, log positions and times. Until `verify` has passed, a flipped bit may be in them.
        manifest: which chunks of which streams make up each bundle; the same holds.
        streams: the directory, by stream id; the same holds.
    """

    def __init__(
        self,
        path: str,
        view: memoryview,
        footer: SegmentFooter,
        streams: Mapping[int, StreamEntry],
        manifest: Manifest,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.streams = streams
        self.info = _info(path, len(view), manifest)
        self._footer = footer
        self._lock = threading.Lock()
        self._view: memoryview | None = view
        self._verified = False
        self._files: dict[int, Any] = {}

    @classmethod
    def open(cls, fs: FileSystem, path: str) -> SegmentReader:
        """
        Map the segment at *path* and read its directory and manifest.

        Raises:
            Damaged: it is not a whole segment; says where and why.
            FormatUnsupported: a sound segment of a newer version.
            OSError: it cannot be read; FileNotFoundError when it is gone.
        """
        mapping = fs.map_read(path)
        view = mapping.view()
        mapping.close()
        answer = decode_segment_footer(view)
        if isinstance(answer, NeedMore):
            raise Damaged(path, len(view), f"cut short: {answer.missing} more bytes are needed for a segment")
        if isinstance(answer, Damage):
            raise _footer_damage(path, view, answer)
        footer = answer.value
        directory = decode_directory(
            _region(view, footer.directory_offset, footer.directory_length), at=footer.directory_offset
        )
        if isinstance(directory, Damage):
            raise Damaged(path, directory.offset, directory.reason)
        problem = check_directory(directory, footer)
        if problem is not None:
            raise Damaged(path, problem.offset, problem.reason)
        region = _region(view, footer.manifest_offset, footer.manifest_length)
        manifest = decode_manifest(region, footer.bundle_count, at=footer.manifest_offset)
        if isinstance(manifest, Damage):
            raise Damaged(path, manifest.offset, manifest.reason)
        return cls(path, view, footer, {stream.stream_id: stream for stream in directory}, manifest)

    @property
    def bundle_count(self) -> int:
        """
        Number of bundles.
        """
        return self.manifest.bundle_count

    def verify(self) -> None:
        """
        Return when every byte is as it was written and the tables agree. The first success is remembered.

        Raises:
            Damaged: the checksum does not match, or directory and manifest contradict each other.
            StoreClosed: the reader was closed.
        """
        if self._verified:
            return
        problem = check_segment_checksum(self._open_view())
        if problem is None:
            problem = check_manifest(self.manifest, tuple(self.streams.values()), at=self._footer.manifest_offset)
        if problem is not None:
            raise Damaged(self.path, problem.offset, problem.reason)
        self._verified = True

    def bundle(self, index: int, slots: Container[int] | None = None) -> dict[int, pa.RecordBatch]:
        """
        Return bundle *index* as slot → batch, ascending; only *slots* when given.

        Raises:
            BundleUnavailable: there is no such bundle.
            Damaged: the file is not what was written.
            StoreClosed: the reader was closed.
        """
        self.verify()
        refs = sorted(self.manifest.refs(index))
        return {
            ref.slot: self.batch(ref.stream_id, ref.chunk_index) for ref in refs if slots is None or ref.slot in slots
        }

    def batch(self, stream_id: int, chunk_index: int) -> pa.RecordBatch:
        """
        Return one batch of one stream. Its buffers point into the file and stay valid while they are held.

        Raises:
            Damaged: the file is not what was written, or has no such stream or chunk.
            StoreClosed: the reader was closed.
        """
        self.verify()
        # A file reader of Arrow's loads its dictionaries on first use and is not safe to share without this.
        with self._lock:
            file = self._file(stream_id)
            try:
                return file.get_batch(chunk_index)
            except _ARROW_ERRORS as error:
                raise self._unreadable(stream_id, error) from error

    def stream_batches(self, stream_id: int) -> Iterator[pa.RecordBatch]:
        """
        Yield all batches of one stream in the order of their bundles.

        Raises:
            Damaged: the file is not what was written, or has no such stream.
            StoreClosed: the reader was closed.
        """
        self.verify()
        with self._lock:
            count = self._file(stream_id).num_record_batches
        for chunk_index in range(count):
            yield self.batch(stream_id, chunk_index)

    def ingested_at_ns(self, index: int) -> int | None:
        """
        Return when bundle *index* was ingested, nanoseconds since the epoch; None when that was not recorded.

        Raises:
            BundleUnavailable: there is no such bundle.
        """
        return self.manifest.ingested_at_ns(index)

    def close(self) -> None:
        """
        Let go of the file. Batches that were handed out stay valid. Idempotent.
        """
        with self._lock:
            self._view = None
            self._files.clear()

    def _open_view(self) -> memoryview:
        view = self._view
        if view is None:
            raise StoreClosed(f"{self.path}: the reader was closed")
        return view

    def _file(self, stream_id: int) -> Any:
        file = self._files.get(stream_id)
        if file is not None:
            return file
        view = self._open_view()
        stream = self.streams.get(stream_id)
        if stream is None:
            raise Damaged(self.path, self._footer.directory_offset, f"there is no stream {stream_id}")
        try:
            file = pa.ipc.open_file(pa.py_buffer(_region(view, stream.byte_offset, stream.byte_length)))
        except _ARROW_ERRORS as error:
            raise self._unreadable(stream_id, error) from error
        if file.num_record_batches != stream.chunk_count:
            reason = f"stream {stream_id} has {file.num_record_batches} chunks, the directory says {stream.chunk_count}"
            raise Damaged(self.path, stream.byte_offset, reason)
        self._files[stream_id] = file
        return file

    def _unreadable(self, stream_id: int, error: Exception) -> Damaged:
        reason = f"stream {stream_id} is not a readable Arrow IPC file: {error}"
        return Damaged(self.path, self.streams[stream_id].byte_offset, reason)


def _region(view: memoryview, offset: int, length: int) -> memoryview:
    return view[offset : offset + length]


def _footer_damage(path: str, view: memoryview, damage: Damage) -> Damaged:
    # A newer version says so in a file whose checksum is right; a flipped bit says so in one whose is not.
    if damage.reason.startswith("unsupported version") and check_segment_checksum(view) is None:
        return FormatUnsupported(path, damage.offset, damage.reason)
    return Damaged(path, damage.offset, damage.reason)


def _info(path: str, size_bytes: int, manifest: Manifest) -> SegmentInfo:
    seq = parse_segment_name(posixpath.basename(path))
    times = manifest.ingested_times_ns
    return SegmentInfo(
        seq=-1 if seq is None else seq,
        path=path,
        bundle_count=manifest.bundle_count,
        size_bytes=size_bytes,
        wal_position_start=manifest.wal_position_start,
        wal_position_end=manifest.wal_position_end,
        sequence_first=manifest.sequence_first,
        sequence_last=manifest.sequence_last,
        ingested_min_ns=min(times) if times else None,
        ingested_max_ns=max(times) if times else None,
    )
