r"""
How the owner of a store and the processes that stage segments for it agree on disk space.

Both files are one number, in the layout of `sidecar`: `quiver.cap` with the magic b"QUIVER\0L", `quiver.wanted` with
b"QUIVER\0W". They are written in place and never synced: neither is a promise. The files are a Quiver extension:
engines that do not know them ignore them.
"""

from __future__ import annotations

from quiver.primitives.scan import Answer
from quiver.store.format.sidecar import decode_sidecar, encode_sidecar

__all__ = [
    "CAP_MAGIC",
    "CAP_NOTE",
    "ROOM_NOTE_BYTES_MAX",
    "ROOM_WANTED",
    "WANTED_MAGIC",
    "decode_cap_note",
    "decode_room_wanted",
    "encode_cap_note",
    "encode_room_wanted",
]

CAP_MAGIC = b"QUIVER\0L"
WANTED_MAGIC = b"QUIVER\0W"

CAP_NOTE = "quiver.cap"
"""The maximum size of all files in the directory together. It is in the store's root, as is the following."""
ROOM_WANTED = "quiver.wanted"
"""How many bytes a process waits to stage; the owner removes it after it has tried to free the space."""

ROOM_NOTE_BYTES_MAX = 4096


def encode_cap_note(cap_bytes: int) -> bytes:
    """Return the 24 bytes with the maximum size of all files in a store's directory together."""
    return encode_sidecar(CAP_MAGIC, cap_bytes)


def decode_cap_note(view: memoryview) -> Answer[int]:
    """Decode the maximum size of all files in a store's directory together."""
    return decode_sidecar(view, CAP_MAGIC, "note of the size cap")


def encode_room_wanted(wanted_bytes: int) -> bytes:
    """Return the 24 bytes that request space for *wanted_bytes* of staged data."""
    return encode_sidecar(WANTED_MAGIC, wanted_bytes)


def decode_room_wanted(view: memoryview) -> Answer[int]:
    """Decode how many bytes a process waits to stage."""
    return decode_sidecar(view, WANTED_MAGIC, "request for room")
