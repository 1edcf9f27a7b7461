"""
The report of one exporter: when it last delivered, and what its last failure was. JSON text, values in and out.

::

    {"kind":"exporter report","version":1,"last_success_at_ns":…,
     "last_failure":{"type":"storage","message":"…","at_ns":…}}

It is for people and for metrics. Nothing is decided by it: it may be old, damaged or gone.
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
        message: for people, in a line of at most `MESSAGE_CHARS_MAX` characters.
        at_ns: when, in nanoseconds since 1970.
    """

    type: FailureType
    message: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class ExporterReport:
    """
    How the last attempts of an exporter ended.

    Attributes:
        last_success_at_ns: when it last delivered something, in nanoseconds since 1970; None: never.
        last_failure: of all its attempts; None: none has failed.
    """

    last_success_at_ns: int | None = None
    last_failure: Failure | None = None

    @property
    def is_failing(self) -> bool:
        """Whether nothing was delivered since the last failure."""
        failure, success_ns = self.last_failure, self.last_success_at_ns
        return failure is not None and (success_ns is None or success_ns < failure.at_ns)


def cut_message(message: str) -> str:
    """Return *message* as a report has it: in a line, printable, cut."""
    line = " ".join(message.split())
    line = "".join(one if one.isprintable() else "?" for one in line[: MESSAGE_CHARS_MAX + 1])
    return line if len(line) <= MESSAGE_CHARS_MAX else f"{line[: MESSAGE_CHARS_MAX - 1]}…"


def encode_report(report: ExporterReport) -> bytes:
    """Return the text of a report."""
    value = {"kind": _KIND, "version": REPORT_VERSION, **asdict(report)}
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_report(view: memoryview) -> Answer[ExporterReport]:
    """Decode a whole report. Members that are not known are passed over."""
    if len(view) > REPORT_BYTES_MAX:
        return Damage(0, f"not an exporter's report: it has more than {REPORT_BYTES_MAX} bytes")
    try:
        found = json.loads(bytes(view))
    except (ValueError, RecursionError):
        return Damage(0, "not an exporter's report: it is no JSON text")
    if not isinstance(found, dict) or found.get("kind") != _KIND:
        return Damage(0, "not an exporter's report: it does not say that it is one")
    if found.get("version") != REPORT_VERSION:
        return Damage(0, f"unsupported version {str(found.get('version'))[:20]!r}")
    success_ns, failure = found.get("last_success_at_ns"), found.get("last_failure")
    if success_ns is not None and not _is_time(success_ns):
        return Damage(0, "not an exporter's report: its last success is no time")
    if failure is None:
        return Frame(ExporterReport(success_ns), len(view))
    if not isinstance(failure, dict) or not _is_failure(failure):
        return Damage(0, "not an exporter's report: its last failure is none")
    last = Failure(failure["type"], failure["message"], failure["at_ns"])
    return Frame(ExporterReport(success_ns, last), len(view))


def _is_failure(value: dict[str, Any]) -> bool:
    kind, message = value.get("type"), value.get("message")
    if kind not in FAILURE_TYPES or not _is_time(value.get("at_ns")) or not isinstance(message, str):
        return False
    return message.isprintable() and len(message) <= MESSAGE_CHARS_MAX


def _is_time(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TIME_NS_MAX
