r"""
The segment floor: every segment number below it was given out once and is never given out again. Bytes only.

A store whose segments are all delivered and deleted has no file name left that says how far it had counted;
the floor does. The layout is that of `sidecar`, with the magic b"QUIVER\0F". The file is an addition of ours:
engines that do not know it ignore it.
"""

from __future__ import annotations

from quiver.primitives.scan import Answer
from quiver.store.format.sidecar import decode_sidecar, encode_sidecar

__all__ = ["FLOOR_MAGIC", "decode_floor", "encode_floor"]

FLOOR_MAGIC = b"QUIVER\0F"


def encode_floor(floor: int) -> bytes:
    """
    Return the 24 bytes of a floor file: the next segment number is *floor* or above.
    """
    return encode_sidecar(FLOOR_MAGIC, floor)


def decode_floor(view: memoryview) -> Answer[int]:
    """
    Decode the floor from a floor file.
    """
    return decode_sidecar(view, FLOOR_MAGIC, "segment floor")
