"""
The WAL files of a directory: found, ordered by their own position, scanned one at a time.

A file is read into memory, never mapped: the active one is truncated and overwritten while its entries are in use.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from quiver.errors import CorruptionError
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Frame
from quiver.store.format.names import WAL_ACTIVE, parse_wal_rotated_name
from quiver.store.format.wal_entry import ENTRY_BYTES_MAX, WalEntry
from quiver.store.format.wal_file import decode_wal_header
from quiver.store.segment.schemas import has_dictionaries
from quiver.store.wal.scan import WalFileScan, scan_wal_file

__all__ = ["WalFileFound", "decode_slots", "find_wal_files", "logged_entries", "read_file", "scan_file"]

FILE_BYTES_MAX = 4 * ENTRY_BYTES_MAX
"""A WAL file is retired at its rotation target plus one entry; no log writes a larger one."""

_MESSAGE_HEAD = struct.Struct("<II")
"""The start of every Arrow message: the continuation marker, and the length of its metadata."""

_CONTINUATION = 0xFFFFFFFF
_END_OF_STREAM = _MESSAGE_HEAD.pack(_CONTINUATION, 0)
_SCHEMA_BYTES_MAX = 64 * 1024
_SCHEMAS_KEPT = 256
_ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, OSError, EOFError)


@dataclass(frozen=True, slots=True)
class WalFileFound:
    """A WAL file by name. `number` is None for the active one, `position_start` is None if the header is unreadable."""

    path: str
    number: int | None
    position_start: int | None
    config_hash: bytes | None


def find_wal_files(fs: FileSystem, directory: str) -> list[WalFileFound]:
    """
    Return the WAL files of *directory*: rotated ones by number, the active one last.

    Each position comes from the file's own header and is never computed from the files that survive.
    """
    found: list[WalFileFound] = []
    for name in fs.list_dir(directory):
        number = parse_wal_rotated_name(name)
        if number is None and name != WAL_ACTIVE:
            continue
        path = f"{directory}/{name}"
        try:
            file = fs.open_read(path)
        except FileNotFoundError:
            continue  # next to a live writer: renamed or purged since the directory was listed
        try:
            answer = decode_wal_header(memoryview(file.pread(64 * 1024, 0)))
        finally:
            file.close()
        header = answer.value if isinstance(answer, Frame) else None
        found.append(
            WalFileFound(
                path,
                number,
                header.position_start if header else None,
                header.config_hash if header else None,
            )
        )
    return sorted(found, key=lambda file: (file.number is None, file.number or 0))


def scan_file(fs: FileSystem, path: str) -> WalFileScan:
    """
    Read and scan one WAL file.

    Raises:
        OSError: it cannot be read, or is larger than any log file (EFBIG).
    """
    return scan_wal_file(memoryview(read_file(fs, path)), path)


def read_file(fs: FileSystem, path: str) -> bytes:
    """
    Return the bytes of one WAL file.

    Raises:
        OSError: it cannot be read, or is larger than any log file (EFBIG).
    """
    return fs.read_all(path, size_max=FILE_BYTES_MAX)


def logged_entries(fs: FileSystem, directory: str) -> Iterator[WalEntry]:
    """Yield the entries of all WAL files of *directory*, oldest first. A file that is purged meanwhile is skipped."""
    for found in find_wal_files(fs, directory):
        try:
            scan = scan_file(fs, found.path)
        except FileNotFoundError:
            continue  # its bundles are in segments
        for scanned in scan.entries:
            yield scanned.entry


def decode_slots(entry: WalEntry, *, path: str, position: int) -> dict[int, pa.RecordBatch]:
    """
    Return slot → RecordBatch for an entry whose checksum is verified.

    Raises:
        CorruptionError: a payload is not one Arrow stream with one batch.
    """
    batches: dict[int, pa.RecordBatch] = {}
    for slot in entry.slots:
        batches[slot.slot] = _decode_payload(slot.payload, slot.slot, path, position)
    return batches


def _decode_payload(payload: memoryview, slot: int, path: str, position: int) -> pa.RecordBatch:
    batch = _decode_usual(payload)
    if batch is not None:
        return batch
    try:
        with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
            found = list(reader)
    except _ARROW_ERRORS as error:
        raise CorruptionError(path, position, f"slot {slot} is not an Arrow stream: {error}") from error
    if len(found) != 1:
        raise CorruptionError(path, position, f"slot {slot} has {len(found)} batches instead of one")
    return found[0]


def _decode_usual(payload: memoryview) -> pa.RecordBatch | None:
    """
    Decode a stream of a known schema with one batch and the end of the stream; return None for any other.

    Decoding a schema costs more than decoding a small batch, and so does comparing it with an equal schema object.
    """
    if len(payload) < _MESSAGE_HEAD.size:
        return None
    marker, length = _MESSAGE_HEAD.unpack_from(payload)
    schema_end = _MESSAGE_HEAD.size + length
    if marker != _CONTINUATION or schema_end > min(len(payload), _SCHEMA_BYTES_MAX):
        return None
    schema = _plain_schema(bytes(payload[:schema_end]))
    if schema is None:
        return None
    rest = pa.BufferReader(pa.py_buffer(payload[schema_end:]))
    try:
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(rest), schema)
    except _ARROW_ERRORS:
        return None
    return batch if payload[schema_end + rest.tell() :] == _END_OF_STREAM else None


@lru_cache(maxsize=_SCHEMAS_KEPT)
def _plain_schema(message: bytes) -> pa.Schema | None:
    """
    Return the schema in *message*; None if there is none, or if it has dictionaries, which are separate
    messages.
    """
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(message))
    except _ARROW_ERRORS:
        return None
    return None if has_dictionaries(schema) else schema
