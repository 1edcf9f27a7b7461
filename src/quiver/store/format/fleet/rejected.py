"""
The record that a reader could not read a segment of a node. JSON text; values in and out.

::

    {"kind":"fleet rejected","version":1,"identity":…,"segment":…,"crc32":"a1b2c3d4","size_bytes":…,
     "cause":"damaged","reason":…}

A task writes it instead of failing its batch, so that one broken object delays no other node.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeGuard, get_args

from quiver.errors import UsageError
from quiver.primitives.scan import Damage, Frame
from quiver.store.format.fleet.names import is_identity
from quiver.store.format.names import U64_MAX

__all__ = [
    "REJECTED_BYTES_MAX",
    "REJECTED_VERSION",
    "RejectedCause",
    "RejectedSegment",
    "decode_rejected",
    "encode_rejected",
]

RejectedCause = Literal["missing", "damaged", "schema", "requests"]

REJECTED_VERSION = 1
REJECTED_BYTES_MAX = 16_384

_KIND = "fleet rejected"
_REASON_CHARS_MAX = 1_000
_CAUSES: tuple[RejectedCause, ...] = get_args(RejectedCause)


@dataclass(frozen=True, slots=True)
class RejectedSegment:
    """
    A segment that could not be read, or not completely.

    Attributes:
        identity: of the node.
        segment: its number.
        crc32: the checksum in its key.
        size_bytes: from the listing.
        cause: `missing`: the object did not exist; `damaged`: its bytes or structures are wrong; `schema`: its columns
            do not fit; `requests`: some requests in it could not be decoded, and all other rows were read.
        reason: for people.
    """

    identity: str
    segment: int
    crc32: int
    size_bytes: int
    cause: RejectedCause
    reason: str


def encode_rejected(rejected: RejectedSegment) -> bytes:
    """
    Return the text of a record. A long reason is cut.

    Raises:
        UsageError: it could not be read again.
    """
    line = " ".join(rejected.reason.split())[:_REASON_CHARS_MAX]
    value: dict[str, Any] = {"kind": _KIND, "version": REJECTED_VERSION, **asdict(rejected)}
    value |= {
        "crc32": f"{rejected.crc32:08x}",
        "reason": "".join(one if one.isprintable() else "?" for one in line),
    }
    data = json.dumps(value, separators=(",", ":")).encode()
    answer = decode_rejected(memoryview(data))
    if not isinstance(answer, Frame):
        raise UsageError(f"a record of a rejected segment cannot be written: {answer.reason}")
    return data


def decode_rejected(view: memoryview) -> Frame[RejectedSegment] | Damage:
    """Decode a complete record. Unknown members are skipped."""
    what = "not a record of a rejected segment"
    if len(view) > REJECTED_BYTES_MAX:
        return Damage(0, f"{what}: it has more than {REJECTED_BYTES_MAX} bytes")
    try:
        found = json.loads(bytes(view))
    except (ValueError, RecursionError):
        return Damage(0, f"{what}: it is not JSON text")
    if not isinstance(found, dict) or found.get("kind") != _KIND:
        return Damage(0, f"{what}: `kind` is missing or different")
    if found.get("version") != REJECTED_VERSION:
        return Damage(0, f"unsupported version {str(found.get('version'))[:20]!r}")
    identity, reason, checksum = (found.get(name) for name in ("identity", "reason", "crc32"))
    segment, size_bytes = found.get("segment"), found.get("size_bytes")
    cause = next((known for known in _CAUSES if known == found.get("cause")), None)
    if not isinstance(identity, str) or not is_identity(identity):
        return Damage(0, f"{what}: identity is not a UUID")
    if not _is_number(segment) or not _is_number(size_bytes):
        return Damage(0, f"{what}: segment or size_bytes is not a number")
    if cause is None or not isinstance(reason, str) or not reason.isprintable() or len(reason) > _REASON_CHARS_MAX:
        return Damage(0, f"{what}: cause or reason is not valid")
    if not isinstance(checksum, str) or len(checksum) != 8 or set(checksum) - set("0123456789abcdef"):
        return Damage(0, f"{what}: crc32 is not eight hexadecimal digits")
    return Frame(RejectedSegment(identity, segment, int(checksum, 16), size_bytes, cause, reason), len(view))


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < U64_MAX
