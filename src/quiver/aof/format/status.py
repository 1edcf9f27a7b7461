"""
The status of a log's writer: what it had in memory when it wrote this. JSON text, values in and out.

::

    {"kind":"aof status","version":1,"state":"open","writer":"pid 7 quiver aof","written_at_ns":…,"figures":{…}}

It is for human readers and monitoring. Nothing depends on it: it may be outdated, damaged or missing.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from quiver.primitives.scan import Answer, Damage, Frame

__all__ = ["STATUS_BYTES_MAX", "STATUS_VERSION", "WriterState", "WriterStatus", "decode_status", "encode_status"]

STATUS_BYTES_MAX = 1 << 16
STATUS_VERSION = 1
WriterState = Literal["open", "failed", "closed"]

_KIND = "aof status"
_WRITER_CHARS_MAX = 200
_DEPTH_MAX = 4
_NUMBER_MAX = 1 << 64
_KEY = re.compile(r"[a-z0-9_]{1,64}")


@dataclass(frozen=True, slots=True)
class WriterStatus:
    """
    The status of a writer.

    Attributes:
        state: "failed": the log refuses every call until it is opened again; "closed": the final status of a writer.
        writer: the process, according to its lock.
        figures: name → number, boolean, or another such mapping.
    """

    state: WriterState
    writer: str
    written_at_ns: int
    figures: dict[str, Any]


def encode_status(status: WriterStatus) -> bytes:
    """Return the text of a status."""
    return json.dumps({"kind": _KIND, "version": STATUS_VERSION, **asdict(status)}, separators=(",", ":")).encode()


def decode_status(view: memoryview) -> Answer[WriterStatus]:
    """Decode a complete status file. Unknown members are ignored."""
    if len(view) > STATUS_BYTES_MAX:
        return Damage(0, f"not a writer's status: it has more than {STATUS_BYTES_MAX} bytes")
    try:
        found = json.loads(bytes(view))
    except (ValueError, RecursionError):
        return Damage(0, "not a writer's status: it is not JSON text")
    if not isinstance(found, dict) or found.get("kind") != _KIND:
        return Damage(0, "not a writer's status: its kind is missing")
    if found.get("version") != STATUS_VERSION:
        return Damage(0, f"unsupported version {str(found.get('version'))[:20]!r}")
    state, writer, written_at_ns, figures = (found.get(key) for key in WriterStatus.__slots__)
    known: tuple[WriterState, ...] = get_args(WriterState)
    if state not in known or not isinstance(writer, str) or len(writer) > _WRITER_CHARS_MAX:
        return Damage(0, "not a writer's status: its writer or state is missing or invalid")
    if not writer.isprintable() or not _is_number(written_at_ns) or not isinstance(written_at_ns, int):
        return Damage(0, "not a writer's status: its time is missing or invalid")
    if not isinstance(figures, dict) or not _are_figures(figures, _DEPTH_MAX):
        return Damage(0, "not a writer's status: its figures are invalid")
    return Frame(WriterStatus(state, writer, written_at_ns, figures), len(view))


def _are_figures(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        return depth > 0 and all(_KEY.fullmatch(key) and _are_figures(one, depth - 1) for key, one in value.items())
    return value is None or isinstance(value, bool) or _is_number(value)


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and -_NUMBER_MAX < value < _NUMBER_MAX
        and math.isfinite(value)
    )
