"""
A chunk of the MAN1 manifest log: header, checksum of all committed bytes, and records. Bytes only.

::

    0   u64  magic          0x414F46324D4C4F47
    8   u32  version        1
    12  u32  header_len     64
    16  u64  flags          bit 0: sealed, nothing more is appended
    24  u64  chunk_index    as in the file's name
    32  u64  base_record    records in the chunks before
    40  u64  tail_offset    the end of the last appended record
    48  u64  committed_len  the end of the last committed record
    56  u64  chunk_crc64    CRC-64/NVME of the bytes from 64 to committed_len; 0 when there are none
    64       records
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from quiver.aof.format.manifest_record import ManifestRecord, decode_manifest_record
from quiver.primitives.checksum import crc64_nvme
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "CHUNK_HEADER",
    "CHUNK_HEADER_BYTES",
    "CHUNK_MAGIC",
    "CHUNK_VERSION",
    "FLAG_SEALED",
    "ChunkHeader",
    "decode_chunk",
    "decode_chunk_header",
    "encode_chunk_header",
]

CHUNK_MAGIC = 0x414F46324D4C4F47
CHUNK_VERSION = 1
CHUNK_HEADER = struct.Struct("<QIIQQQQQQ")
CHUNK_HEADER_BYTES = CHUNK_HEADER.size
FLAG_SEALED = 1


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The header of a chunk."""

    chunk_index: int
    base_record: int
    tail_offset: int
    committed_len: int
    chunk_crc64: int
    flags: int = 0

    @property
    def sealed(self) -> bool:
        """Whether the chunk is complete."""
        return bool(self.flags & FLAG_SEALED)


def encode_chunk_header(header: ChunkHeader) -> bytes:
    """Return the 64 bytes of *header*."""
    return CHUNK_HEADER.pack(
        CHUNK_MAGIC, CHUNK_VERSION, CHUNK_HEADER_BYTES, header.flags, header.chunk_index, header.base_record,
        header.tail_offset, header.committed_len, header.chunk_crc64,
    )  # fmt: skip


def decode_chunk_header(view: memoryview) -> Answer[ChunkHeader]:
    """Decode the header that *view* starts with. Its checksum is not verified."""
    if not CHUNK_MAGIC.to_bytes(8, "little").startswith(bytes(view[:8])):
        return Damage(0, "not a manifest chunk: the magic does not match")
    if len(view) < CHUNK_HEADER_BYTES:
        return NeedMore(CHUNK_HEADER_BYTES - len(view))
    _, version, length, flags, index, base_record, tail, committed, crc = CHUNK_HEADER.unpack_from(view)
    if version != CHUNK_VERSION:
        return Damage(8, f"unsupported version {version} of a manifest chunk")
    if length != CHUNK_HEADER_BYTES:
        return Damage(12, f"header length {length} is not {CHUNK_HEADER_BYTES}")
    if not CHUNK_HEADER_BYTES <= committed <= tail:
        return Damage(48, f"{committed} committed bytes, but the tail is at {tail}")
    return Frame(ChunkHeader(index, base_record, tail, committed, crc, flags), CHUNK_HEADER_BYTES)


def decode_chunk(view: memoryview) -> Answer[tuple[ChunkHeader, Sequence[ManifestRecord]]]:
    """Decode a complete chunk and all its committed records. Bytes after them were never committed and are ignored."""
    answer = decode_chunk_header(view)
    if not isinstance(answer, Frame):
        return answer
    header = answer.value
    if header.committed_len > len(view):
        return NeedMore(header.committed_len - len(view))
    body = view[: header.committed_len]
    if header.committed_len > CHUNK_HEADER_BYTES and crc64_nvme(body[CHUNK_HEADER_BYTES:]) != header.chunk_crc64:
        return Damage(56, "checksum mismatch in a manifest chunk")
    records: list[ManifestRecord] = []
    offset = CHUNK_HEADER_BYTES
    while offset < header.committed_len:
        found = decode_manifest_record(body, offset)
        if isinstance(found, NeedMore):
            return Damage(offset, "the last manifest record extends past the committed bytes")
        if isinstance(found, Damage):
            return found
        records.append(found.value)
        offset = found.end
    return Frame((header, tuple(records)), offset)
