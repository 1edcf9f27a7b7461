"""
One object of a node, fetched completely and verified: its length, its checksum, and every structure in it.

The bytes are those of another machine, which may be broken or hostile. A checksum only proves that they are what that
machine sent, so Arrow data are validated, too, before anything reads them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from quiver.errors import (
    AccessDeniedError,
    CorruptionError,
    DataLossError,
    ObjectNotFoundError,
    QuiverError,
    UsageError,
)
from quiver.objects.port import ObjectTier
from quiver.primitives.scan import Frame
from quiver.store.cold.files import fetch_checked
from quiver.store.format.fleet.gone import GONE_BYTES_MAX, GoneSegments, decode_gone
from quiver.store.format.fleet.names import InboxObject, key_of
from quiver.store.segment.reader import SegmentReader

__all__ = ["OBJECT_BYTES_MAX", "decoding", "fetch_object", "open_segment", "read_gone", "validated"]

OBJECT_BYTES_MAX = 1 << 30
"""A larger object is not read: it is loaded into memory completely."""


def open_segment(
    tier: ObjectTier, identity: str, found: InboxObject, *, size_bytes_max: int = OBJECT_BYTES_MAX
) -> SegmentReader:
    """
    Fetch one segment and verify it. The reader holds its bytes in memory, and no file or connection.

    Use `validated` for each batch that comes out of it.

    Raises:
        DataLossError: the object does not exist. Look for a record that it is gone (`list_node`).
        CorruptionError: it is larger than *size_bytes_max*, or not the segment that its key describes. `path` is its
            key, which has the node and the number.
        UnsupportedFormatError: a newer version of Quiver wrote it.
        ObjectsUnavailableError: the object store does not answer.
        AccessDeniedError: the credentials do not allow it.
    """
    key, data = fetch_object(tier, identity, found, size_bytes_max=size_bytes_max)
    with decoding(key):
        reader = SegmentReader.from_view(key, memoryview(data))
        reader.verify()
    return reader


@contextlib.contextmanager
def decoding(path: str) -> Iterator[None]:
    """
    Report every unexpected error of the block as damage of *path*: the block only decodes bytes of another machine.

    Errors of the object store or of this machine's disk must not be reported as that, so fetch outside of the block.

    Raises:
        CorruptionError: in place of an error that is not one of Quiver's.
    """
    try:
        yield
    except QuiverError:
        raise
    except Exception as error:
        raise CorruptionError(path, 0, f"it cannot be decoded: {error!r}") from error


def fetch_object(
    tier: ObjectTier, identity: str, found: InboxObject, *, size_bytes_max: int = OBJECT_BYTES_MAX
) -> tuple[str, bytes]:
    """
    Fetch one segment; return its key and its bytes, whose checksum is right.

    Raises:
        DataLossError, CorruptionError, ObjectsUnavailableError, AccessDeniedError: as `open_segment`.
    """
    key = key_of(identity, found)
    if found.crc32 is None:
        raise DataLossError(key, 0, f"segments {found.first} to {found.last} are gone")
    if found.size_bytes > size_bytes_max:
        raise CorruptionError(key, 0, f"it has {found.size_bytes} bytes, more than {size_bytes_max}")
    try:
        return key, fetch_checked(tier, key, size_bytes=found.size_bytes, checksum=found.crc32)
    except ObjectNotFoundError:
        raise DataLossError(key, 0, "the object was removed before it was read") from None


def validated(batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
    """
    Return *batch* if all of its offsets, indexes and texts are valid.

    Raises:
        CorruptionError: they are not; `path` is *path*.
    """
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise CorruptionError(path, 0, f"its Arrow data are invalid: {error}") from error
    return batch


def read_gone(tier: ObjectTier, identity: str, found: InboxObject) -> GoneSegments:
    """
    Fetch one record of segments that are gone.

    Raises:
        DataLossError: the record does not exist.
        CorruptionError: it is damaged, or has other numbers than its key. `path` is its key.
        ObjectsUnavailableError: the object store does not answer.
    """
    key = key_of(identity, found)
    if found.size_bytes > GONE_BYTES_MAX:
        raise CorruptionError(key, 0, f"it has {found.size_bytes} bytes, more than {GONE_BYTES_MAX}")
    try:
        data = tier.get(key, size_max=GONE_BYTES_MAX)
    except ObjectNotFoundError:
        raise DataLossError(key, 0, "the record was removed before it was read") from None
    except AccessDeniedError:
        raise
    except UsageError as error:  # it was replaced by a larger one since it was listed
        raise CorruptionError(key, 0, str(error)) from error
    answer = decode_gone(memoryview(data))
    if not isinstance(answer, Frame):
        raise CorruptionError(key, answer.offset, answer.reason)
    gone = answer.value
    if (gone.first, gone.last) != (found.first, found.last):
        raise CorruptionError(key, 0, f"it is the record of segments {gone.first} to {gone.last}")
    return gone
