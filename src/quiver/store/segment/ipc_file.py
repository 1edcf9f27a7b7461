"""
An Arrow IPC file around existing messages: head, messages, tail. Nothing is serialized twice.

::

    head   "ARROW1", zeros up to 64 │ schema message
           dictionary messages, batch messages, unchanged
    tail   end of stream │ footer │ its length │ "ARROW1"

A message is what `RecordBatch.serialize` returns: continuation marker, metadata length, metadata, body, each
padded so that the next one starts at a multiple of 8. The footer is a flatbuffer (`Footer` in Arrow's File.fbs)
and is encoded manually, since its only variable parts are two vectors of fixed-size blocks; its schema is copied from
the schema message byte for byte.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Any

from quiver.primitives.yielding import yielding_slices
from quiver.store.segment.log_backed import any_elsewhere, loaded, prefix_of
from quiver.store.segment.pieced import PiecedMessage

__all__ = ["END_OF_STREAM", "HEAD_ALIGNMENT", "IpcFile", "assemble", "body_length_place", "is_one_batch_message"]

MAGIC = b"ARROW1"
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

HEAD_ALIGNMENT = 64
"""Arrow asks for 8; with 64, the first message starts on a cache line if the stream does."""

_METADATA_V5 = 4
_MESSAGE_PREFIX = struct.Struct("<Ii")
_METADATA_LENGTH = struct.Struct("<4xi")
_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3

# In the flatbuffer `Message`: where the vtable has the places of `header_type` and `bodyLength`.
_KIND_AND_BODY = struct.Struct("<6xH2xH")
_U32, _I32, _I64 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<q")

# The footer's root table after its vtable, then the count of the first vector.
#   0  u32 position of the root table
#   4  vtable: its size, the table's size, the places of the fields version, schema, dictionaries and recordBatches
#  16  root table: distance back to the vtable, version, padding, three forward offsets (from their own position)
#  36  u32 number of dictionary blocks; the blocks, 24 bytes each, follow at 40
_FOOTER_ROOT = struct.Struct("<I HHHHHH iH2xIII I")
_VTABLE_POSITION = 4
_TABLE_POSITION = 16
_SCHEMA_FIELD, _DICTIONARIES_FIELD, _BATCHES_FIELD = 24, 28, 32
_DICTIONARY_COUNT = 36
_BLOCK_BYTES = 24
_GROUP_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class IpcFile:
    """
    One Arrow IPC file in pieces: the bytes of *head*, each of *messages*, *tail*, in this order.

    Attributes:
        nbytes: length of the complete file.
    """

    head: bytes
    messages: Sequence[Any]
    tail: bytes
    nbytes: int

    def groups(self) -> Iterable[Sequence[Any]]:
        """Yield the file's pieces in order; short ones together, because a loop over each of them would cost more."""
        if any_elsewhere(self.messages):
            for part in self.parts():
                yield (part,)
            return
        yield (self.head,)
        step = max(1, _GROUP_BYTES * len(self.messages) // self.nbytes)
        for start in range(0, len(self.messages), step):
            yield self.messages[start : start + step]
        yield (self.tail,)

    def parts(self) -> Iterable[Any]:
        """Yield the file's pieces in order."""
        yield self.head
        for message in self.messages:
            if type(message) is PiecedMessage:
                yield from message.pieces
            else:
                yield loaded(message)
        yield self.tail


def assemble(schema_message: bytes, dictionaries: Sequence[Any], batches: Sequence[Any]) -> IpcFile:
    """
    Return the IPC file with these messages.

    *dictionaries* must have every dictionary of the schema, once each. All messages are encapsulated and have a
    length that is a multiple of 8, which every Arrow writer guarantees.
    """
    head = MAGIC + bytes(HEAD_ALIGNMENT - len(MAGIC)) + schema_message
    messages = [*dictionaries, *batches]
    blocks, end = _blocks(messages, len(head))
    split = len(dictionaries) * _BLOCK_BYTES
    footer = _footer(schema_message, memoryview(blocks)[:split], memoryview(blocks)[split:])
    tail = b"".join((END_OF_STREAM, footer, struct.pack("<i", len(footer)), MAGIC))
    return IpcFile(head, messages, tail, end + len(tail))


def is_one_batch_message(message: memoryview) -> bool:
    """Whether *message* is exactly one encapsulated message of a record batch, as far as its lengths show."""
    try:
        marker, metadata_bytes = _MESSAGE_PREFIX.unpack_from(message)
        (table,) = _U32.unpack_from(message, 8)
        table += 8
        vtable = table - _I32.unpack_from(message, table)[0]
        header_type, body_length = _KIND_AND_BODY.unpack_from(message, vtable)
        (body_bytes,) = _I64.unpack_from(message, table + body_length)
        return (
            marker == _CONTINUATION
            and message[table + header_type] == _RECORD_BATCH
            and header_type > 0 < body_length
            and _MESSAGE_PREFIX.size + metadata_bytes + body_bytes == len(message)
        )
    except (struct.error, IndexError):
        return False


def body_length_place(message: memoryview) -> tuple[int, int] | None:
    """
    Return where a message that passes `is_one_batch_message` has the length of its body (an i64), and where the bytes
    end that the check depends on. Return None if that length is also another part of these bytes.

    A message with the same bytes up to that end, except for the length, passes the check if its lengths add up.
    """
    (table,) = _U32.unpack_from(message, _MESSAGE_PREFIX.size)
    table += _MESSAGE_PREFIX.size
    vtable = table - _I32.unpack_from(message, table)[0]
    header_type, body_length = _KIND_AND_BODY.unpack_from(message, vtable)
    start, end = table + body_length, table + body_length + _I64.size
    checked = [
        (0, _MESSAGE_PREFIX.size + _U32.size),
        (table, table + _I32.size),
        (vtable, vtable + _KIND_AND_BODY.size),
        (table + header_type, table + header_type + 1),
    ]
    if vtable < 0 or any(first < end and start < past for first, past in checked):
        return None
    return start, max(end, *(past for _, past in checked))


def _blocks(messages: Sequence[Any], start: int) -> tuple[bytes, int]:
    """
    Return the flatbuffer structs `Block` of *messages*, the first of which is at *start*, and where the last one ends.

    A `Block` is i64 offset, i32 metadata length, 4 bytes of padding, i64 body length.
    """
    blocks = array("q")
    unpack = _METADATA_LENGTH.unpack_from
    for some in yielding_slices(messages):
        sizes = array("q", map(len, some))
        prefixes = map(prefix_of, some) if any_elsewhere(some) else some
        metadata = array("q", [length + _MESSAGE_PREFIX.size for (length,) in map(unpack, prefixes)])
        *offsets, end = accumulate(sizes, initial=start)
        # The metadata length is positive and little-endian, so as an i64 it includes its padding.
        flat = array("q", bytes(_BLOCK_BYTES * len(some)))
        flat[0::3] = array("q", offsets)
        flat[1::3] = metadata
        flat[2::3] = array("q", map(sub, sizes, metadata))
        blocks += flat
        start = end
    if sys.byteorder == "big":
        blocks.byteswap()
    return blocks.tobytes(), start


def _footer(schema_message: bytes, dictionary_blocks: memoryview, batch_blocks: memoryview) -> bytes:
    # The u32 count of a vector of 8-aligned structs is 4 bytes before a multiple of 8.
    batch_count = _DICTIONARY_COUNT + 4 + len(dictionary_blocks) + 4
    schema_start = batch_count + 4 + len(batch_blocks)
    schema_table = schema_start + _schema_table(schema_message)
    root = _FOOTER_ROOT.pack(
        _TABLE_POSITION,
        12,
        20,
        4,
        _SCHEMA_FIELD - _TABLE_POSITION,
        _DICTIONARIES_FIELD - _TABLE_POSITION,
        _BATCHES_FIELD - _TABLE_POSITION,
        _TABLE_POSITION - _VTABLE_POSITION,
        _METADATA_V5,
        schema_table - _SCHEMA_FIELD,
        _DICTIONARY_COUNT - _DICTIONARIES_FIELD,
        batch_count - _BATCHES_FIELD,
        len(dictionary_blocks) // _BLOCK_BYTES,
    )
    counted = struct.pack("<4xI", len(batch_blocks) // _BLOCK_BYTES)
    return b"".join(
        (root, dictionary_blocks, counted, batch_blocks, memoryview(schema_message)[_MESSAGE_PREFIX.size :])
    )


def _schema_table(schema_message: bytes) -> int:
    """Return the place of the `Schema` table in the message's metadata: field 2 (`header`) of the root `Message`."""
    metadata = memoryview(schema_message)[_MESSAGE_PREFIX.size :]
    (table,) = struct.unpack_from("<I", metadata)
    (back,) = struct.unpack_from("<i", metadata, table)
    (field,) = struct.unpack_from("<H", metadata, table - back + 4 + 2 * 2)
    (forward,) = struct.unpack_from("<I", metadata, table + field)
    return table + field + forward
