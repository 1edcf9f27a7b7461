"""
Dead letters: frames that a policy dropped, kept for operators. No I/O.

::

    file     0   4   magic      b"QDL1"
             4   u16 version    1
             6   u16 size       8: all bytes of this header
    record   0   u32 crc32c     of all following bytes of the record
             4   u32 length     of what follows
             8   i64 frame      its sequence number in the slot
             16  i64 at         nanoseconds since the Unix epoch
             24  u8 status      the server's answer, 0: it was not asked
             25  u8 zero
             26  u16 text       bytes of the server's reason
             28  reason, then the message as it was sent

Records are only ever appended. A truncated or invalid record at the end was never finished.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from quiver.primitives.checksum import crc32c
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "DEAD_LETTER",
    "DEAD_LETTERS_HEADER",
    "DEAD_LETTERS_MAGIC",
    "DEAD_LETTER_BYTES_MAX",
    "DEAD_LETTER_HEAD_BYTES",
    "DeadLetterRecord",
    "decode_dead_letter",
    "decode_dead_letters_header",
    "encode_dead_letter",
    "encode_dead_letters_header",
    "end_of_dead_letter",
    "find_dead_letter",
]

DEAD_LETTERS_HEADER = struct.Struct("<4sHH")
DEAD_LETTER = struct.Struct("<IIqqBBH")
DEAD_LETTERS_MAGIC = b"QDL1"
DEAD_LETTER_BYTES_MAX = 1 << 30
DEAD_LETTER_HEAD_BYTES = DEAD_LETTER.size
_VERSION = 1
_LENGTH_AT, _LENGTH_END = 4, 8
_RESERVED_AT = 25
_SEARCHED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A dropped frame, with the time and the reason."""

    fsn: int
    at_ns: int
    status: int
    reason: str
    message: bytes


def encode_dead_letters_header() -> bytes:
    """Return the 8 bytes at the start of the file."""
    return DEAD_LETTERS_HEADER.pack(DEAD_LETTERS_MAGIC, _VERSION, DEAD_LETTERS_HEADER.size)


def decode_dead_letters_header(view: memoryview) -> Answer[None]:
    """Check the start of the file; records begin at the answer's end."""
    if not DEAD_LETTERS_MAGIC.startswith(bytes(view[:4])):
        return Damage(0, "not a file of dead letters: the magic does not match")
    if len(view) < DEAD_LETTERS_HEADER.size:
        return NeedMore(DEAD_LETTERS_HEADER.size - len(view))
    _, version, size = DEAD_LETTERS_HEADER.unpack_from(view)
    if version != _VERSION:
        return Damage(4, f"unsupported version {version} of a file of dead letters")
    if size < DEAD_LETTERS_HEADER.size:
        return Damage(6, f"size {size} is below {DEAD_LETTERS_HEADER.size}")
    if len(view) < size:
        return NeedMore(size - len(view))
    return Frame(None, size)


def encode_dead_letter(letter: DeadLetterRecord) -> bytes:
    """Return the bytes of one record; a reason of more than 64 KiB is truncated."""
    reason = letter.reason.encode()[:0xFFFF].decode("utf-8", "ignore").encode()
    length = DEAD_LETTER.size - _LENGTH_END + len(reason) + len(letter.message)
    fields = DEAD_LETTER.pack(0, length, letter.fsn, letter.at_ns, letter.status, 0, len(reason))
    body = fields[4:] + reason + letter.message
    return crc32c(body).to_bytes(4, "little") + body


def decode_dead_letter(view: memoryview, offset: int) -> Answer[DeadLetterRecord]:
    """Decode the record at *offset*."""
    if len(view) - offset < DEAD_LETTER.size:
        return NeedMore(DEAD_LETTER.size - (len(view) - offset))
    crc, length, fsn, at_ns, status, reserved, reason_bytes = DEAD_LETTER.unpack_from(view, offset)
    fixed = DEAD_LETTER.size - _LENGTH_END
    if not fixed + reason_bytes <= length <= DEAD_LETTER_BYTES_MAX:
        return Damage(offset + 4, f"invalid record length {length}")
    end = offset + _LENGTH_END + length
    if len(view) < end:
        return NeedMore(end - len(view))
    if crc32c(view[offset + 4 : end]) != crc:
        return Damage(offset, "checksum mismatch in a dead letter")
    if reserved:
        return Damage(offset + 25, "a reserved byte is not zero")
    start = offset + DEAD_LETTER.size
    reason = bytes(view[start : start + reason_bytes]).decode("utf-8", "replace")
    return Frame(DeadLetterRecord(fsn, at_ns, status, reason, bytes(view[start + reason_bytes : end])), end)


def end_of_dead_letter(head: bytes, offset: int) -> int | None:
    """
    Return the end of the record at *offset*, which begins with *head*, according to its length; None if it cannot be
    one.
    """
    if len(head) < DEAD_LETTER.size:
        return None
    _, length, _, _, _, reserved, reason_bytes = DEAD_LETTER.unpack_from(head)
    if reserved or not DEAD_LETTER.size - _LENGTH_END + reason_bytes <= length <= DEAD_LETTER_BYTES_MAX:
        return None
    return offset + _LENGTH_END + length


def find_dead_letter(view: memoryview, damaged: int) -> int | None:
    """Return the start of the next record after the *damaged* one, or None if there is none."""
    end = end_of_dead_letter(bytes(view[damaged : damaged + DEAD_LETTER.size]), damaged)
    if end is not None and isinstance(decode_dead_letter(view, end), Frame):
        return end
    last = len(view) - DEAD_LETTER.size
    for start in range(damaged + 1, last + 1, _SEARCHED_AT_ONCE):
        for offset in _possible_records(view, start, min(start + _SEARCHED_AT_ONCE, last + 1)):
            if isinstance(decode_dead_letter(view, offset), Frame):
                return offset
    return None


def _possible_records(view: memoryview, start: int, stop: int) -> list[int]:
    """
    Return the offsets from *start* to *stop* at which length and reserved byte are valid. A fast filter: few offsets
    remain.
    """
    reserved = np.frombuffer(view, np.uint8, offset=_RESERVED_AT)
    room = min(len(view) - start - _LENGTH_END, DEAD_LETTER_BYTES_MAX)
    found: list[int] = []
    for first in range(start, min(start + 4, stop)):
        count = (stop - first + 3) // 4
        lengths = np.frombuffer(view, "<u4", count, first + _LENGTH_AT)
        is_possible = (lengths >= DEAD_LETTER.size - _LENGTH_END) & (lengths <= room)
        is_possible &= reserved[first : first + 4 * count : 4] == 0
        found += (first + 4 * np.flatnonzero(is_possible)).tolist()
    return sorted(found)
