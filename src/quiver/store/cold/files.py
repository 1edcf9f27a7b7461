"""
A file system for readers that shows segments of the object tier at their former local paths.

Local files take precedence. If the file of a segment is missing and the cold list has its object as verified, the
segment is read from the tier: parts of it by range, or all of it into memory, which always verifies its checksum. This
module never writes anything itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from quiver.errors import (
    AccessDeniedError,
    CorruptionError,
    ObjectNotFoundError,
    ObjectsUnavailableError,
    UsageError,
)
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.objects.port import ObjectTier
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import Buffer, File, FileStat, FileSystem, WriteMapping
from quiver.primitives.disk.file_system import Mapping as FileMapping
from quiver.primitives.disk.mapping import ReadMapping
from quiver.store.cold.location import load_cold_list, location_from_list, object_key
from quiver.store.format.cold_list import ColdSegment
from quiver.store.format.names import COLD_LIST, SEGMENTS_DIR, parse_segment_name, segment_name

__all__ = [
    "COLD_INODE",
    "ColdFiles",
    "OpenTier",
    "fetch_checked",
    "fetch_segment",
    "object_problem",
    "read_cold_list",
    "require_place",
]

COLD_INODE = 0
"""The inode that `stat` returns for a segment in the tier; no local file has it."""

_CRC_BYTES = 4
_PIECE_BYTES = 4 * 1024 * 1024
_TRIES = 3
"""How often an object is requested when its contents are wrong: they may have been damaged in transit."""

OpenTier = Callable[[ObjectLocation], ObjectTier]


@dataclass(frozen=True, slots=True)
class ColdListing:
    """A cold list as read from disk: the location of the objects, and the verified ones by segment number."""

    location: ObjectLocation
    folder: str
    verified: Mapping[int, ColdSegment]


def read_cold_list(fs: FileSystem, directory: str) -> ColdListing | None:
    """
    Return the cold list in *directory*, where the segments are; None when the store has none.

    Raises:
        CorruptionError: the list is damaged or missing.
        SettingsError: another version wrote it.
        OSError: the disk could not be read.
    """
    found = load_cold_list(fs, directory, consequence="the segments in the object tier are unknown")
    if found is None:
        return None
    location, folder = location_from_list(found.location)
    verified = {entry.seq: entry for entry in found.entries if entry.state == "verified"}
    return ColdListing(location, folder, verified)


def require_place(tier: ObjectTier, missing: str) -> None:
    """
    Check that the folder of the object *missing* contains any object: then only that one is missing.

    In an empty directory where a disk should be mounted, or in another bucket, all objects seem to be missing.

    Raises:
        ObjectsUnavailableError: the folder is empty.
    """
    folder = missing.rpartition("/")[0]
    if next(iter(tier.list_below(f"{folder}/")), None) is None:
        reason = "there are no objects of this store: is this the right location, and is it mounted?"
        raise ObjectsUnavailableError("get", missing, reason)


def fetch_segment(tier: ObjectTier, key: str, entry: ColdSegment) -> bytes:
    """
    Return the complete segment, every byte as it was written.

    Raises:
        CorruptionError: the object is another one, or is missing; `path` is its key.
        ObjectsUnavailableError: the tier does not answer, or has no objects of this store.
    """
    try:
        return fetch_checked(tier, key, size_bytes=entry.size_bytes, checksum=entry.crc32)
    except ObjectNotFoundError:
        require_place(tier, key)
        raise CorruptionError(key, 0, "the object is missing in the tier") from None


def fetch_checked(tier: ObjectTier, key: str, *, size_bytes: int, checksum: int) -> bytes:
    """
    Return a complete segment of *size_bytes*, whose bytes have this *checksum*, and end with it.

    Raises:
        ObjectNotFoundError: the object does not exist.
        CorruptionError: the object is another one; `path` is its key.
        ObjectsUnavailableError: the tier does not answer.
    """
    reason = ""
    for _ in range(_TRIES):
        try:
            data = tier.get(key, size_max=size_bytes)
        except (ObjectNotFoundError, AccessDeniedError):
            raise
        except UsageError as error:
            raise CorruptionError(key, 0, str(error)) from error
        if len(data) != size_bytes:
            reason = f"{len(data)} bytes were received, the segment has {size_bytes}"
        elif crc32(memoryview(data)[:-_CRC_BYTES]) != checksum or data[-_CRC_BYTES:] != checksum.to_bytes(
            _CRC_BYTES, "little"
        ):
            reason = f"the object's checksum is not {checksum:08x}"
        else:
            return data
    raise CorruptionError(key, 0, reason)


def object_problem(tier: ObjectTier, key: str, entry: ColdSegment) -> str | None:
    """
    Return why the object differs from the segment; None when it does not. Reads in pieces to limit memory.

    Raises:
        ObjectsUnavailableError: the tier does not answer, or has no objects of this store.
    """
    reason = ""
    for _ in range(_TRIES):
        try:
            # The cheap check first: if the checksum at the end differs, the rest of the object is not read.
            end = tier.get_range(key, max(0, entry.size_bytes - _CRC_BYTES), _CRC_BYTES)
            if end != entry.crc32.to_bytes(_CRC_BYTES, "little"):
                reason = f"the object does not end with {entry.crc32:08x}"
                continue
            computed = offset = 0
            while offset < entry.size_bytes - _CRC_BYTES:
                wanted = min(_PIECE_BYTES, entry.size_bytes - _CRC_BYTES - offset)
                piece = tier.get_range(key, offset, wanted)
                computed = crc32(piece, computed)
                offset += len(piece)
                if len(piece) < wanted:
                    computed = ~entry.crc32  # it ends too early
                    break
        except ObjectNotFoundError:
            require_place(tier, key)
            return "the object is missing in the tier"
        if computed == entry.crc32:
            return None
        reason = f"the object's checksum is not {entry.crc32:08x}"
    return reason


class _ColdFile:
    """A segment in the tier, opened for reading by range."""

    def __init__(self, path: str, tier: ObjectTier, key: str, entry: ColdSegment) -> None:
        self.path = path
        self._tier = tier
        self._key = key
        self._entry = entry

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to *size* bytes at *offset*; fewer only at the end."""
        length = max(0, min(size, self._entry.size_bytes - offset))
        if not length:
            return b""
        try:
            data = self._tier.get_range(self._key, offset, length)
        except ObjectNotFoundError:
            require_place(self._tier, self._key)
            raise CorruptionError(self._key, offset, "the object is missing in the tier") from None
        if len(data) != length:
            raise ObjectsUnavailableError("get_range", self._key, f"{len(data)} bytes received instead of {length}")
        return data

    def size(self) -> int:
        """Return the length in bytes."""
        return self._entry.size_bytes

    def close(self) -> None:
        """Do nothing: no connection is held."""

    def _refuse(self, *_: object, **__: object) -> OSError:
        return OSError(errno.EROFS, os.strerror(errno.EROFS), self.path)

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Refuse: the tier is read-only here."""
        raise self._refuse(data, offset)

    def pwritev(self, parts: object, offset: int, size: int = -1) -> None:
        """Refuse, as `pwrite` does."""
        raise self._refuse(parts, offset, size)

    def truncate(self, size: int) -> None:
        """Refuse, as `pwrite` does."""
        raise self._refuse(size)

    def reserve(self, start: int, length: int) -> None:
        """Refuse, as `pwrite` does."""
        raise self._refuse(start, length)

    def map_write(self) -> WriteMapping:
        """Refuse, as `pwrite` does."""
        raise self._refuse()

    def set_mode(self, mode: int) -> None:
        """Refuse, as `pwrite` does."""
        raise self._refuse(mode)

    def sync(self) -> None:
        """Do nothing: there are no writes to make durable."""

    def sync_data(self) -> None:
        """Do nothing: there are no writes to make durable."""


class ColdFiles:
    """
    The file system *fs*, with the segments in cold lists. Thread-safe.

    Args:
        fs: the file system.
        open_tier: opens a tier; by default at the location in the list, with credentials from the provider's usual
            places.
        on_damage: called with a damaged list, whose segments are not shown then; raises it by default.
    """

    def __init__(
        self,
        fs: FileSystem,
        *,
        open_tier: OpenTier | None = None,
        on_damage: Callable[[CorruptionError], None] | None = None,
    ) -> None:
        self._fs = fs
        self._open_tier = open_tier or (lambda location: open_objects(location, writable=False, fs=fs))
        self._on_damage = on_damage
        self._lock = threading.Lock()
        self._lists: dict[str, tuple[FileStat | None, ColdListing | None]] = {}
        self._tiers: dict[str, ObjectTier] = {}
        # Writes, and calls that are never made for a segment, are passed to the file system.
        self.open_write = fs.open_write
        self.create = fs.create
        self.create_or_truncate = fs.create_or_truncate
        self.rename = fs.rename
        self.link = fs.link
        self.remove = fs.remove
        self.remove_dir = fs.remove_dir
        self.sync_dir = fs.sync_dir
        self.make_dirs = fs.make_dirs
        self.try_lock = fs.try_lock
        self.free_bytes = fs.free_bytes

    def _listing(self, directory: str) -> ColdListing | None:
        status: FileStat | None = None
        with contextlib.suppress(FileNotFoundError):
            status = self._fs.stat(f"{directory}/{COLD_LIST}")
        with self._lock:
            known = self._lists.get(directory)
        if status is not None and known is not None and known[0] == status:
            return known[1]
        try:
            found = read_cold_list(self._fs, directory)
        except CorruptionError as damage:
            if self._on_damage is None:
                raise
            self._on_damage(damage)
            found = None
        with self._lock:
            self._lists[directory] = status, found
        return found

    def _find(self, path: str) -> tuple[ColdListing, ColdSegment] | None:
        directory, _, name = path.rpartition("/")
        seq = parse_segment_name(name)
        listing = None if seq is None else self._listing(directory)
        entry = None if listing is None or seq is None else listing.verified.get(seq)
        return None if listing is None or entry is None else (listing, entry)

    def _tier(self, listing: ColdListing) -> ObjectTier:
        with self._lock:
            tier = self._tiers.get(str(listing.location))
            if tier is None:
                tier = self._tiers[str(listing.location)] = self._open_tier(listing.location)
            return tier

    def open_read(self, path: str) -> File:
        """Open a file or a segment of the tier."""
        try:
            return self._fs.open_read(path)
        except FileNotFoundError:
            found = self._find(path)
            if found is None:
                raise
            listing, entry = found
            return _ColdFile(path, self._tier(listing), object_key(listing.folder, entry), entry)

    def map_read(self, path: str) -> FileMapping:
        """
        Map a file, or load a segment of the tier into memory and verify its checksum.

        Raises:
            CorruptionError: the object is damaged; `path` is its key.
            ObjectsUnavailableError: the tier does not answer.
        """
        try:
            return self._fs.map_read(path)
        except FileNotFoundError as missing:
            found = self._find(path)
            if found is None:
                raise
            listing, entry = found
            try:
                return ReadMapping(fetch_segment(self._tier(listing), object_key(listing.folder, entry), entry))
            except CorruptionError:
                again = self._find(path)
                if again is None or again[1] != entry:
                    raise missing from None  # it was deleted after the list was read, which is not damage
                raise

    def list_dir(self, path: str) -> list[str]:
        """Return the names in *path*, including those of segments in the tier."""
        # The list first: a file that moves to the tier in between is in both, never in neither.
        names = self._fs.list_dir(path)
        if path.rpartition("/")[2] != SEGMENTS_DIR:
            return names
        listing = self._listing(path)
        if listing is None:
            return names
        return sorted({*names, *map(segment_name, listing.verified)})

    def stat(self, path: str) -> FileStat:
        """Return size, times, inode and mode. A segment in the tier has inode 0 and the time of its newest bundle."""
        try:
            return self._fs.stat(path)
        except FileNotFoundError:
            found = self._find(path)
            if found is None:
                raise
            entry = found[1]
            newest_ns = 0 if entry.ingested_ns is None else entry.ingested_ns[1]
            return FileStat(entry.size_bytes, newest_ns, COLD_INODE, 0o440)

    def exists(self, path: str) -> bool:
        """Return whether *path* is a file, a directory, or a segment of the tier."""
        return self._fs.exists(path) or self._find(path) is not None

    def read_all(self, path: str, *, size_max: int) -> bytes:
        """Return the contents of a small file; raise OSError (EFBIG) when it is larger than *size_max*."""
        try:
            return self._fs.read_all(path, size_max=size_max)
        except FileNotFoundError:
            found = self._find(path)
            if found is None:
                raise
            if found[1].size_bytes > size_max:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path) from None
            return bytes(self.map_read(path).view())
