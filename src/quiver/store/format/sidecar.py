"""
The layout that the cursor, the floor and other small files share: one number in 24 bytes. Bytes only.

::

    0   8   magic
    8   u16 version   1
    10  u16 size      24: all bytes, including the checksum
    12  u64 value
    20  u32 crc32     IEEE, over all bytes before it

A later version may only add fields, so its value is readable, too, as long as a checksum confirms it. The specification
leaves open where fields are added: the checksum may be at the end or stay in its place.
"""

from __future__ import annotations

import struct

from quiver.primitives.checksum import crc32
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = ["SIDECAR", "SIDECAR_BYTES", "SIDECAR_VERSION", "decode_sidecar", "encode_sidecar"]

SIDECAR = struct.Struct("<8sHHQI")
SIDECAR_BYTES = SIDECAR.size
SIDECAR_VERSION = 1
_FIELDS = struct.Struct("<8sHHQ")
_PREFIX = struct.Struct("<8sHH")
_CRC = struct.Struct("<I")


def encode_sidecar(magic: bytes, value: int) -> bytes:
    """Return the 24 bytes that store *value*, 0 to 2^64 - 1; *magic* has 8 bytes."""
    fields = _FIELDS.pack(magic, SIDECAR_VERSION, SIDECAR_BYTES, value)
    return fields + _CRC.pack(crc32(fields))


def decode_sidecar(view: memoryview, magic: bytes, what: str) -> Answer[int]:
    """Decode the value from the file at the start of *view*; *what* names the file kind in a damage report."""
    if not magic.startswith(bytes(view[: len(magic)])):
        return Damage(0, f"not a {what}: the magic does not match")
    if len(view) < _PREFIX.size:
        return NeedMore(_PREFIX.size - len(view))
    _, version, size = _PREFIX.unpack_from(view)
    if version == 0:
        return Damage(8, f"unsupported version {version} of a {what}")
    if size < SIDECAR_BYTES:
        return Damage(10, f"size {size} is below {SIDECAR_BYTES}")
    if len(view) < size:
        return NeedMore(size - len(view))
    if not any(_checksum_at(view, end) for end in {size - _CRC.size, _FIELDS.size}):
        return Damage(size - _CRC.size, f"checksum mismatch in the {what}")
    return Frame(_FIELDS.unpack_from(view)[3], size)


def _checksum_at(view: memoryview, end: int) -> bool:
    return bool(_CRC.unpack_from(view, end)[0] == crc32(view[:end]))
