"""The copies of segments: packed files in `warm/` and objects. Each is complete and verified, or does not exist."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from quiver.aof.format.names import parse_object_key, parse_warm_name, warm_name
from quiver.aof.format.tier_entry import RemoteCopy, TierEntry
from quiver.aof.reading.catalog import SealedSegment
from quiver.aof.tiers.packed import PackedSegment, ReadAt, pack
from quiver.errors import CorruptionError, ObjectNotFoundError, QuiverError, UsageError
from quiver.objects import ObjectInfo, ObjectTier
from quiver.primitives.checksum import crc64_nvme
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX, remove_durably
from quiver.primitives.disk.disk_full import require_room
from quiver.primitives.disk.file_system import File, FileSystem

__all__ = ["Copies"]

_PIECE_BYTES = 8 << 20


class Copies:
    """
    Makes, finds and removes the copies of one log's segments.

    Args:
        folder: the folder of the packed files.
        objects: returns the object tier when it is first needed.
        level: the zstd level.

    Attributes:
        folder: the folder of the packed files.
    """

    def __init__(
        self, fs: FileSystem, folder: str, *, objects: Callable[[], ObjectTier] | None, level: int = 3
    ) -> None:
        self._fs = fs
        self.folder = folder
        self._open_objects = objects
        self._level = level
        self._tier: ObjectTier | None = None
        self._opening = threading.Lock()
        self._verified: dict[str, str] = {}

    @property
    def has_objects(self) -> bool:
        """Whether there is an object tier."""
        return self._open_objects is not None

    @property
    def _objects(self) -> ObjectTier:
        if self._open_objects is None:
            raise UsageError(
                f"{self.folder}: a segment is an object, and no object store was given: open the log with objects, or "
                "give --objects"
            )
        with self._opening:
            if self._tier is None:
                self._tier = self._open_objects()
            return self._tier

    # ---- packed files

    def warm_names(self) -> list[str]:
        """Return the names of the packed files, including unfinished ones."""
        if not self._fs.exists(self.folder):
            return []
        names = self._fs.list_dir(self.folder)
        return [name for name in names if parse_warm_name(name.removesuffix(TEMPORARY_SUFFIX)) is not None]

    def warm_bytes(self, entry: TierEntry) -> int | None:
        """Return the length of the packed file; None when there is none."""
        try:
            return self._fs.stat(f"{self.folder}/{entry.warm_name}").size_bytes
        except FileNotFoundError:
            return None

    def pack(self, sealed: SealedSegment, view: memoryview) -> TierEntry:
        """
        Write the packed file of a segment, whose file is *view*; on return it is durable and verified against *view*.

        Raises:
            OSError: the disk is full or failed.
            CorruptionError: the file differs when it is read back.
        """
        name = warm_name(sealed.segment_id, sealed.header.base_offset, sealed.footer.sealed_at)
        size, checksum = self._write(name, pack(view, sealed.end, sealed.footer, level=self._level))
        entry = TierEntry(sealed.header, sealed.footer, name, size, checksum, True, "resident_in_tier0")
        _compare(self.open_warm(entry), view)
        return entry

    def _write(self, name: str, pieces: Iterator[bytes]) -> tuple[int, int]:
        path = f"{self.folder}/{name}"
        file = self._fs.create_or_truncate(path + TEMPORARY_SUFFIX)
        offset = checksum = 0
        try:
            for piece in pieces:
                require_room(self._fs, self.folder, len(piece))
                file.pwrite(piece, offset)
                offset += len(piece)
                checksum = crc64_nvme(piece, checksum)
            file.sync_data()
        except (OSError, QuiverError):
            # On a full disk it takes the last space, which the log needs to continue.
            with contextlib.suppress(OSError):
                self._fs.remove(path + TEMPORARY_SUFFIX)
            raise
        finally:
            file.close()
        self._fs.rename(path + TEMPORARY_SUFFIX, path)
        self._fs.sync_dir(self.folder)
        return offset, checksum

    def open_warm(self, entry: TierEntry) -> PackedSegment:
        """
        Return the packed file for reading.

        Raises:
            CorruptionError: it is damaged, or belongs to another segment.
            OSError: the disk cannot be read.
        """
        return self._same(self._opened(entry.warm_name, entry.warm_bytes), entry)

    def verified_warm(self, entry: TierEntry) -> PackedSegment:
        """
        Read the complete packed file, verify its checksum and return it: record checksums do not cover timestamps.

        Raises:
            CorruptionError: it is damaged.
            OSError: the disk cannot be read.
        """
        packed = self.open_warm(entry)
        if entry.warm_crc64 and packed.checksum() != entry.warm_crc64:
            raise CorruptionError(packed.name, 0, "checksum mismatch in a packed segment")
        return packed

    def warm_problem(self, entry: TierEntry) -> str | None:
        """
        Read the complete packed file; return why it is not a valid copy of the segment, or None when it is.

        Raises:
            OSError: the disk cannot be read.
        """
        if not entry.has_warm or self.warm_bytes(entry) != entry.warm_bytes:
            return "the packed file is missing"
        try:
            self.verified_warm(entry)
        except CorruptionError as damaged:
            return damaged.reason
        return None

    def _opened(self, name: str, size: int) -> PackedSegment:
        return PackedSegment(f"{self.folder}/{name}", size, self._reads_file(name))

    def _reads_file(self, name: str) -> ReadAt:
        path = f"{self.folder}/{name}"

        def read_at(start: int, length: int) -> bytes:
            file = self._fs.open_read(path)
            try:
                return _read_exactly(file, start, length)
            finally:
                file.close()

        return read_at

    def salvage(self, entry: TierEntry, start: int, end: int) -> bytes | None:
        """
        Return the bytes of a segment from *start* to *end*, as far as a damaged copy can be unpacked, and zeros instead
        of the rest; None when no copy can be read at all.

        Raises:
            ObjectsUnavailableError: the object store does not answer; try again.
            OSError: the disk cannot be read.
        """
        copies = [(f"{self.folder}/{entry.warm_name}", self._reads_file(entry.warm_name))]
        if entry.remote is not None and self.has_objects:
            copies.append((entry.remote.object_key, self._reads_object(entry.remote.object_key)))
        for name, read_at in copies:
            with contextlib.suppress(CorruptionError, FileNotFoundError):
                packed = PackedSegment(name, entry.warm_bytes, read_at, known=(entry.header, entry.footer))
                return packed.read(start, end, is_salvage=True)
        return None

    def _same(self, packed: PackedSegment, entry: TierEntry) -> PackedSegment:
        if (packed.header, packed.footer) != (entry.header, entry.footer):
            raise CorruptionError(packed.name, 0, "it holds another segment than the one in the manifest")
        return packed

    def entry_of_file(self, name: str) -> TierEntry:
        """
        Return the entry of a packed file that the manifest does not know.

        Raises:
            CorruptionError: it is damaged.
        """
        size = self._fs.stat(f"{self.folder}/{name}").size_bytes
        packed = self._opened(name, size)
        return TierEntry(
            packed.header, packed.footer, name, size, packed.checksum(), has_warm=True, residency="staged_for_tier0"
        )

    def remove_warm(self, entry: TierEntry) -> None:
        """Remove the packed file, durably; it may be removed already."""
        remove_durably(self._fs, [f"{self.folder}/{entry.warm_name}"])

    # ---- objects

    def upload(self, entry: TierEntry, key: str) -> str | None:
        """
        Upload the packed file as object *key*, durably; return its etag.

        Raises:
            ObjectsUnavailableError: try again.
            CorruptionError: the packed file is damaged.
        """
        path = f"{self.folder}/{entry.warm_name}"
        file = self._fs.open_read(path)
        try:
            if self._checksum(file, entry.warm_bytes) != entry.warm_crc64:
                raise CorruptionError(path, 0, "checksum mismatch in a packed segment")

            def parts() -> Iterator[bytes]:
                for start in range(0, entry.warm_bytes, _PIECE_BYTES):
                    yield _read_exactly(file, start, min(_PIECE_BYTES, entry.warm_bytes - start))

            info = self._objects.put_parts(key, parts)
        finally:
            file.close()
        if info.size_bytes != entry.warm_bytes:
            raise CorruptionError(key, 0, f"the object has {info.size_bytes} bytes, the file {entry.warm_bytes}")
        self._note_verified(info)
        return info.etag

    def _note_verified(self, info: ObjectInfo) -> None:
        """Do not read an object back if the object store returned the digest of what was sent."""
        if info.is_verified and info.etag is not None:
            self._verified[info.key] = info.etag

    def upload_segment(self, sealed: SealedSegment, view: memoryview, key: str, now_ms: int) -> TierEntry:
        """
        Pack a segment, whose file is *view*, directly into the object *key*, durably and without a packed file.

        The object is not read back: `check_object` does that before the file is removed, if its digest is unknown.

        Raises:
            ObjectsUnavailableError: try again.
            CorruptionError: the object has another size than the bytes that were sent.
        """
        size = checksum = 0

        def pieces() -> Iterator[bytes]:
            nonlocal size, checksum
            size = checksum = 0  # each attempt starts over
            for piece in pack(view, sealed.end, sealed.footer, level=self._level, verify=True):
                size += len(piece)
                checksum = crc64_nvme(piece, checksum)
                yield piece

        info = self._objects.put_parts(key, pieces)
        if info.size_bytes != size:
            raise CorruptionError(key, 0, f"the object has {info.size_bytes} bytes, {size} were sent")
        self._note_verified(info)
        name = warm_name(sealed.segment_id, sealed.header.base_offset, sealed.footer.sealed_at)
        return TierEntry(
            sealed.header, sealed.footer, name, size, checksum, has_warm=False, residency="resident_in_tier0",
            remote=RemoteCopy(key, info.etag, size, now_ms),
        )  # fmt: skip

    def _checksum(self, file: File, size: int) -> int:
        value = 0
        for start in range(0, size, _PIECE_BYTES):
            value = crc64_nvme(_read_exactly(file, start, min(_PIECE_BYTES, size - start)), value)
        return value

    def check_object(self, entry: TierEntry) -> None:
        """
        Verify that the object of a segment exists and is, byte for byte, what was uploaded.

        The object is read completely, once for each etag, unless the object store returned its digest at the upload.

        Raises:
            CorruptionError: it is missing or differs.
            ObjectsUnavailableError: the object store does not answer.
        """
        if entry.remote is None:
            raise CorruptionError(
                f"{self.folder}/{entry.warm_name}", 0, "the packed file is missing, and there is no object"
            )
        key = entry.remote.object_key
        try:
            info = self._objects.head(key)
        except ObjectNotFoundError:
            raise CorruptionError(key, 0, "the object of a segment is missing") from None
        if info.size_bytes != entry.warm_bytes:
            raise CorruptionError(
                key, 0, f"the object of a segment has {info.size_bytes} bytes, not {entry.warm_bytes}"
            )
        if info.etag is not None and self._verified.get(key) == info.etag:
            return
        wanted = entry.warm_crc64 or self.open_warm(entry).checksum()
        if self.open_object(entry).checksum() != wanted:
            raise CorruptionError(key, 0, "checksum mismatch in the object of a segment")
        if info.etag is not None:
            self._verified[key] = info.etag

    def object_problem(self, entry: TierEntry) -> str | None:
        """
        Read the complete object of a segment; return why it is not a valid copy, or None when it is.

        The object is read in pieces. An object with a wrong size is not read.

        Raises:
            ObjectsUnavailableError, AccessDeniedError: the object store does not answer.
        """
        key = entry.remote.object_key if entry.remote else ""
        try:
            info = self._objects.head(key)
            if info.size_bytes != entry.warm_bytes:
                return f"the object of a segment has {info.size_bytes} bytes, not {entry.warm_bytes}"
            checksum, problem = self.open_object(entry).inspect()
        except ObjectNotFoundError:
            return "the object of a segment is missing"
        except CorruptionError as damaged:
            return damaged.reason
        if problem is None and entry.warm_crc64 and checksum != entry.warm_crc64:
            return "checksum mismatch in the object of a segment"
        return problem

    def open_object(self, entry: TierEntry) -> PackedSegment:
        """
        Return the object of a segment for reading in place.

        Raises:
            CorruptionError: it is missing or damaged.
            ObjectsUnavailableError: try again.
        """
        return self._same(self._open_key(entry.remote.object_key if entry.remote else "", entry.warm_bytes), entry)

    def _open_key(self, key: str, size: int) -> PackedSegment:
        return PackedSegment(key, size, self._reads_object(key))

    def _reads_object(self, key: str) -> ReadAt:
        def read_at(start: int, length: int) -> bytes:
            try:
                data = self._objects.get_range(key, start, length)
            except ObjectNotFoundError:
                raise CorruptionError(key, 0, "the object of a segment is missing") from None
            if len(data) != length:
                raise CorruptionError(key, start, f"{len(data)} bytes were returned, not {length}")
            return data

        return read_at

    def objects_below(self, folder: str) -> Iterator[ObjectInfo]:
        """
        Yield the objects of a log.

        Raises:
            ObjectsUnavailableError: try again.
        """
        return self._objects.list_below(folder)

    def entry_of_object(self, info: ObjectInfo, now_ms: int) -> TierEntry:
        """
        Return the entry of an object that the manifest does not know. Only its two ends are read.

        Raises:
            CorruptionError: it is missing or damaged, or holds another segment than its key names.
            ObjectsUnavailableError: try again.
        """
        packed = self._open_key(info.key, info.size_bytes)
        named = parse_object_key(info.key)
        if named is None or named[1:] != (packed.header.segment_index, packed.footer.sealed_at):
            what = f"segment {packed.header.segment_index}, sealed at {packed.footer.sealed_at}"
            raise CorruptionError(info.key, 0, f"it holds {what}: another one than its key names")
        problem = packed.end_problem()
        if problem is not None:
            raise CorruptionError(info.key, 0, problem)
        remote = RemoteCopy(info.key, info.etag, info.size_bytes, now_ms)
        name = warm_name(packed.header.segment_index, packed.header.base_offset, packed.footer.sealed_at)
        return TierEntry(
            packed.header, packed.footer, name, info.size_bytes, 0, has_warm=False, residency="uploaded_to_tier2",
            remote=remote,
        )  # fmt: skip

    def fetch(self, entry: TierEntry) -> None:
        """
        Download the object of a segment to its packed file, durable and verified on return.

        Raises:
            CorruptionError: the object is missing or damaged.
            ObjectsUnavailableError: try again.
            OSError: the disk is full or failed.
        """
        packed = self.open_object(entry)
        path = f"{self.folder}/{entry.warm_name}"

        def pieces() -> Iterator[bytes]:
            for start in range(0, entry.warm_bytes, _PIECE_BYTES):
                yield packed.read_packed(start, min(_PIECE_BYTES, entry.warm_bytes - start))

        file = self._fs.create_or_truncate(path + TEMPORARY_SUFFIX)
        try:
            offset = checksum = 0
            for piece in pieces():
                require_room(self._fs, self.folder, len(piece))
                file.pwrite(piece, offset)
                offset += len(piece)
                checksum = crc64_nvme(piece, checksum)
            file.sync_data()
        except (OSError, QuiverError):
            with contextlib.suppress(OSError):
                self._fs.remove(path + TEMPORARY_SUFFIX)
            raise
        finally:
            file.close()
        if entry.warm_crc64 and checksum != entry.warm_crc64:
            self._fs.remove(path + TEMPORARY_SUFFIX)
            raise CorruptionError(packed.name, 0, "checksum mismatch in the object of a segment")
        self._fs.rename(path + TEMPORARY_SUFFIX, path)
        self._fs.sync_dir(self.folder)

    def delete(self, key: str) -> None:
        """
        Delete an object, durably; it may be deleted already.

        Raises:
            ObjectsUnavailableError: try again.
        """
        self._verified.pop(key, None)
        self._objects.delete([key])

    def close(self) -> None:
        """Close connections. Idempotent."""
        with self._opening:
            tier, self._tier = self._tier, None
        if tier is not None:
            tier.close()


def _compare(packed: PackedSegment, view: memoryview) -> None:
    """
    Verify that the packed segment unpacks to *view*.

    Raises:
        CorruptionError: it does not.
    """
    offset = 0
    for piece in packed.plain():
        if piece != view[offset : offset + len(piece)]:
            raise CorruptionError(packed.name, 0, f"the segment unpacks to other bytes from {offset} on")
        offset += len(piece)


def _read_exactly(file: File, start: int, length: int) -> bytes:
    """
    Return exactly *length* bytes.

    Raises:
        CorruptionError: the file is shorter.
    """
    data = file.pread(length, start)
    if len(data) != length:
        raise CorruptionError(file.path, start + len(data), "the packed file is truncated")
    return data
