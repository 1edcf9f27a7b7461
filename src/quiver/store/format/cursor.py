r"""
The WAL cursor: the earliest position of the log that recovery still needs. Bytes only.

Everything before it is in durable segments. The layout is that of `sidecar`, with the magic b"QUIVER\0T".
"""

from __future__ import annotations

from quiver.primitives.scan import Answer
from quiver.store.format.sidecar import decode_sidecar, encode_sidecar

__all__ = ["CURSOR_MAGIC", "decode_cursor", "encode_cursor"]

CURSOR_MAGIC = b"QUIVER\0T"


def encode_cursor(wal_position: int) -> bytes:
    """Return the 24 bytes of a cursor file at *wal_position*."""
    return encode_sidecar(CURSOR_MAGIC, wal_position)


def decode_cursor(view: memoryview) -> Answer[int]:
    """Decode the WAL position from a cursor file."""
    return decode_sidecar(view, CURSOR_MAGIC, "WAL cursor")
