"""
The report of one exporter: the time of its last delivery, and its last failure. JSON text; values in and out.

::

    {"kind":"exporter report","version":1,"last_success_at_ns":…,
     "last_failure":{"type":"storage","message":"…","at_ns":…}}

It is for human readers and metrics. No decision depends on it: it may be outdated, damaged or missing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from quiver.primitives.scan import Answer, Damage, Frame

__all__ = [
    "FAILURE_TYPES",
    "MESSAGE_CHARS_MAX",
    "REPORT_BYTES_MAX",
    "REPORT_VERSION",
    "ExporterReport",
    "Failure",
    "FailureType",
    "cut_message",
    "decode_report",
    "encode_report",
]

FailureType = Literal["unavailable", "denied", "refused", "data", "processor", "storage", "other"]
FAILURE_TYPES: tuple[FailureType, ...] = get_args(FailureType)

REPORT_VERSION = 1
REPORT_BYTES_MAX = 4096
MESSAGE_CHARS_MAX = 400

_KIND = "exporter report"
_TIME_NS_MAX = 1 << 63


@dataclass(frozen=True, slots=True)
class Failure:
    """
    Why an attempt to deliver failed.

    Attributes:
        type: one of `FAILURE_TYPES`.
        message: human-readable, one line of at most `MESSAGE_CHARS_MAX` characters.
        at_ns: the time of the failure, in nanoseconds since the epoch.
    """

    type: FailureType
    message: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class ExporterReport:
    """
    The outcome of an exporter's last attempts.

    Attributes:
        last_success_at_ns: time of the last delivery, in nanoseconds since the epoch; None if there was none.
        last_failure: the most recent failure; None if no attempt has failed.
    """

    last_success_at_ns: int | None = None
    last_failure: Failure | None = None

    @property
    def is_failing(self) -> bool:
        """Whether the exporter has delivered nothing since its last failure."""
        failure, success_ns = self.last_failure, self.last_success_at_ns
        return failure is not None and (success_ns is None or success_ns < failure.at_ns)


def cut_message(message: str) -> str:
    """Return *message* as it is stored in a report: one line, printable, cut to the maximum length."""
    line = " ".join(message.split())
    line = "".join(one if one.isprintable() else "?" for one in line[: MESSAGE_CHARS_MAX + 1])
    return line if len(line) <= MESSAGE_CHARS_MAX else f"{line[: MESSAGE_CHARS_MAX - 1]}…"


def encode_report(report: ExporterReport) -> bytes:
    """Return the text of a report."""
    value = {"kind": _KIND, "version": REPORT_VERSION, **asdict(report)}
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_report(view: memoryview) -> Answer[ExporterReport]:
    """Decode a complete report. Unknown members are skipped."""
    if len(view) > REPORT_BYTES_MAX:
        return Damage(0, f"not an exporter's report: it has more than {REPORT_BYTES_MAX} bytes")
    try:
        found = json.loads(bytes(view))
    except (ValueError, RecursionError):
        return Damage(0, "not an exporter's report: it is not JSON text")
    if not isinstance(found, dict) or found.get("kind") != _KIND:
        return Damage(0, "not an exporter's report: `kind` is missing or different")
    if found.get("version") != REPORT_VERSION:
        return Damage(0, f"unsupported version {str(found.get('version'))[:20]!r}")
    success_ns, failure = found.get("last_success_at_ns"), found.get("last_failure")
    if success_ns is not None and not _is_time(success_ns):
        return Damage(0, "not an exporter's report: last_success_at_ns is not a time")
    if failure is None:
        return Frame(ExporterReport(success_ns), len(view))
    if not isinstance(failure, dict) or not _is_failure(failure):
        return Damage(0, "not an exporter's report: last_failure is not valid")
    last = Failure(failure["type"], failure["message"], failure["at_ns"])
    return Frame(ExporterReport(success_ns, last), len(view))


def _is_failure(value: dict[str, Any]) -> bool:
    kind, message = value.get("type"), value.get("message")
    if kind not in FAILURE_TYPES or not _is_time(value.get("at_ns")) or not isinstance(message, str):
        return False
    return message.isprintable() and len(message) <= MESSAGE_CHARS_MAX


def _is_time(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TIME_NS_MAX
