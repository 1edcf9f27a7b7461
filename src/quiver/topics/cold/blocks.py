"""
Packed objects: frames compressed block by block, so that a reader can start at any block.

Each block is a complete frame of zstd or lz4. Concatenated, the blocks are a valid stream, which the ordinary tools
decompress to the plain object.
"""

from __future__ import annotations

import struct
from typing import Any

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore
from quiver.topics.format.descriptor import ObjectCompression
from quiver.topics.format.frame import FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX

__all__ = ["BLOCK_BYTES", "BLOCK_BYTES_MAX", "find_block_end", "pack_block", "unpack_block"]

BLOCK_BYTES = 4 * 1024 * 1024
"""A block is closed when its plain bytes reach this, or with its thousandth message."""

BLOCK_BYTES_MAX = BLOCK_BYTES + FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX
"""The maximum plain size of a block: more bytes than this are damage and are not decompressed."""

_STEP_BYTES = 1024 * 1024
_HEAD = struct.Struct("<IB")
_BLOCK = struct.Struct("<HB")
_U32 = struct.Struct("<I")
_ZSTD_MAGIC = 0xFD2FB528
_LZ4_MAGIC = 0x184D2204


def _pyarrow() -> Any:
    import pyarrow as pa  # noqa: PLC0415 - heavy, and only for packed objects

    return pa


def pack_block(data: Buffer, compression: ObjectCompression) -> bytes:
    """
    Return *data* as one compressed frame.

    Raises:
        UsageError: the compression is ``"none"``.
    """
    if compression == "none":
        raise UsageError("a plain object has no blocks")
    pa = _pyarrow()
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, compression) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def unpack_block(data: Buffer, compression: ObjectCompression) -> bytes:
    """
    Return the plain bytes of a block.

    Raises:
        ValueError: it is not a block, is truncated, or is larger than `BLOCK_BYTES_MAX`.
    """
    pa = _pyarrow()
    pieces = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), compression) as stream:
            while piece := stream.read(_STEP_BYTES):
                pieces.append(piece)
                size += len(piece)
                if size > BLOCK_BYTES_MAX:
                    raise ValueError(f"a block of more than {BLOCK_BYTES_MAX} bytes")
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"a block that cannot be decompressed: {error}") from error
    return b"".join(pieces)


def find_block_end(data: Buffer, start: int, compression: ObjectCompression) -> Answer[int]:
    """Return where the block at *start* ends, without decompressing it: for rebuilding an index."""
    view = memoryview(data)
    try:
        end = _zstd_end(view, start) if compression == "zstd" else _lz4_end(view, start)
    except struct.error:
        return NeedMore(1)
    except ValueError as error:
        return Damage(start, str(error))
    return Frame(end, end) if end <= len(view) else NeedMore(end - len(view))


def _zstd_end(view: memoryview, start: int) -> int:
    magic, flags = _HEAD.unpack_from(view, start)
    if magic != _ZSTD_MAGIC:
        raise ValueError("there is no zstd block here")
    is_single = bool(flags & 0x20)
    size_bytes = (1 if is_single else 0, 2, 4, 8)[flags >> 6]
    at = start + _HEAD.size + (0 if is_single else 1) + (0, 1, 2, 4)[flags & 3] + size_bytes
    while True:
        low, high = _BLOCK.unpack_from(view, at)
        header = low | high << 16
        kind, size = header >> 1 & 3, header >> 3
        if kind == 3:
            raise ValueError("a zstd block of an unknown kind")
        at += _BLOCK.size + (1 if kind == 1 else size)
        if header & 1:
            return at + (4 if flags & 4 else 0)


def _lz4_end(view: memoryview, start: int) -> int:
    magic, flags = _HEAD.unpack_from(view, start)
    if magic != _LZ4_MAGIC or flags >> 6 != 1:
        raise ValueError("there is no lz4 block here")
    at = start + _HEAD.size + 1 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0) + 1
    while True:
        (size,) = _U32.unpack_from(view, at)
        at += _U32.size
        if size == 0:
            return at + (4 if flags & 4 else 0)
        at += (size & 0x7FFFFFFF) + (4 if flags & 16 else 0)
