"""
The names of a store's files, built and parsed.

Parsing accepts exactly what the matching function builds: a name with a sign, or with a missing or extra zero, belongs
to another program and stays untouched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from quiver.errors import UsageError

__all__ = [
    "AUDIT_PREVIOUS",
    "AUDIT_TRAIL",
    "COLD_LIST",
    "COLD_MARK",
    "CURSOR_NAME",
    "DEAD_LETTER_DIR",
    "DROP_LEDGER",
    "EARLY_PROGRESS",
    "QUARANTINE_DIR",
    "RESERVE",
    "SEGMENTS_DIR",
    "SEGMENT_FLOOR",
    "STORE_ID",
    "STORE_LOCK",
    "SUBSCRIBER_ID_LENGTH_MAX",
    "U64_MAX",
    "WAL_ACTIVE",
    "WAL_DIR",
    "WAL_NEXT",
    "check_subscriber_id",
    "is_subscriber_id",
    "parse_progress_name",
    "parse_report_name",
    "parse_retry_set_name",
    "parse_segment_name",
    "parse_skip_ledger_name",
    "parse_wal_rotated_name",
    "progress_backup_name",
    "progress_name",
    "report_name",
    "retry_lock_name",
    "retry_set_name",
    "segment_name",
    "segment_numbers",
    "skip_ledger_name",
    "subscriber_lock_name",
    "wal_rotated_name",
]

WAL_DIR = "wal"
WAL_ACTIVE = "quiver.wal"
WAL_NEXT = "quiver.wal.next"
"""The next active file while it is being prepared; a leftover is removed at open."""
CURSOR_NAME = "quiver.wal.cursor"
SEGMENTS_DIR = "segments"
SEGMENT_FLOOR = "quiver.segment.floor"
"""In `SEGMENTS_DIR`."""
COLD_LIST = "quiver.cold"
"""In `SEGMENTS_DIR`: which segments the object tier has."""
COLD_MARK = "quiver.tier"
"""In the root as long as there is a `COLD_LIST`: if this file exists and the list does not, the list was lost."""
QUARANTINE_DIR = "quarantine"
DEAD_LETTER_DIR = "dead-letter"
STORE_LOCK = "quiver.lock"
STORE_ID = "quiver.id"
"""One line: a UUID created with the directory, by which a Spark offset recognizes its store."""

DROP_LEDGER = "quiver.drops"
"""Segments that a policy dropped and not every subscriber has recorded yet."""
EARLY_PROGRESS = "quiver.early"
"""The bundles that subscribers have resolved although no segment file has them yet."""
RESERVE = "quiver.reserve"
"""Reserved disk space, freed when the disk is full, so that progress can still be written."""

AUDIT_TRAIL = "quiver.audit.jsonl"
AUDIT_PREVIOUS = "quiver.audit.1.jsonl"
"""The audit trail that is being written, and the one before it."""

SUBSCRIBER_ID_LENGTH_MAX = 64
U64_MAX = 2**64 - 1

_NUMBER = "0|[1-9][0-9]{0,19}"
_WAL_ROTATED = re.compile(rf"quiver\.wal\.({_NUMBER})")
_SEGMENT = re.compile(r"([0-9]{16}|[1-9][0-9]{16,19})\.qseg")
_PROGRESS_PREFIX = "quiver.sub."
_RETRY_PREFIX = "quiver.retry."
_REPORT_PREFIX = "quiver.exporter."
_SUBSCRIBER_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{SUBSCRIBER_ID_LENGTH_MAX}}}")
_RESERVED = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]", re.IGNORECASE)


def wal_rotated_name(rotation: int) -> str:
    """Return the name of the WAL file with rotation number *rotation*, 1 upwards."""
    return f"{WAL_ACTIVE}.{rotation}"


def parse_wal_rotated_name(name: str) -> int | None:
    """Return the rotation number in *name*, or None when it is not a rotated WAL file."""
    return _bounded(_WAL_ROTATED.fullmatch(name))


def segment_name(seq: int) -> str:
    """Return the name of segment *seq*: at least sixteen digits, so that names sort like numbers."""
    return f"{seq:016d}.qseg"


def parse_segment_name(name: str) -> int | None:
    """Return the segment number in *name*, or None when it is not a segment (a temporary name is not)."""
    return _bounded(_SEGMENT.fullmatch(name))


def segment_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the segments among *names*, ascending."""
    return sorted(seq for name in names if (seq := parse_segment_name(name)) is not None)


def progress_name(subscriber: str) -> str:
    """
    Return the name of the progress file of *subscriber*, in the root of the store.

    Raises:
        UsageError: *subscriber* is not a valid id.
    """
    check_subscriber_id(subscriber)
    return f"{_PROGRESS_PREFIX}{subscriber}"


def parse_progress_name(name: str) -> str | None:
    """Return the subscriber id in *name*, or None: temporary and lock files are not progress files."""
    if not name.startswith(_PROGRESS_PREFIX):
        return None
    subscriber = name.removeprefix(_PROGRESS_PREFIX)
    # An id has no dot, so a name that ends in ".tmp" or ".lock" never matches.
    return subscriber if is_subscriber_id(subscriber) else None


def progress_backup_name(subscriber: str) -> str:
    """
    Return the name of the previous generation of *subscriber*'s progress file, if one is kept.

    Raises:
        UsageError: *subscriber* is not a valid id.
    """
    return f"{progress_name(subscriber)}.bak"


def subscriber_lock_name(subscriber: str) -> str:
    """
    Return the name of the lock file that the only live owner of *subscriber* holds.

    Raises:
        UsageError: *subscriber* is not a valid id.
    """
    return f"{progress_name(subscriber)}.lock"


def retry_set_name(subscriber: str) -> str:
    """
    Return the name of the file with the bundles that *subscriber* could not deliver yet, in the root of the store.

    Raises:
        UsageError: *subscriber* is not a valid id.
    """
    check_subscriber_id(subscriber)
    return f"{_RETRY_PREFIX}{subscriber}"


def parse_retry_set_name(name: str) -> str | None:
    """Return the subscriber id in *name*, or None when it is not a retry set."""
    subscriber = name.removeprefix(_RETRY_PREFIX)
    return subscriber if subscriber != name and is_subscriber_id(subscriber) else None


def report_name(exporter: str) -> str:
    """
    Return the name of the report on *exporter*'s last attempts, in the root of the store.

    Raises:
        UsageError: *exporter* is not a valid id.
    """
    check_subscriber_id(exporter)
    return f"{_REPORT_PREFIX}{exporter}"


def parse_report_name(name: str) -> str | None:
    """Return the exporter in *name*, or None if it is not a report."""
    exporter = name.removeprefix(_REPORT_PREFIX)
    return exporter if exporter != name and is_subscriber_id(exporter) else None


def skip_ledger_name(subscriber: str) -> str:
    """
    Return the name of the file with the segments that were skipped for *subscriber*, in the root of the store.

    Raises:
        UsageError: *subscriber* is not a valid id.
    """
    check_subscriber_id(subscriber)
    return f"{DROP_LEDGER}.{subscriber}"


def parse_skip_ledger_name(name: str) -> str | None:
    """Return the subscriber id in *name*, or None when it is not a ledger of skipped segments."""
    subscriber = name.removeprefix(f"{DROP_LEDGER}.")
    return subscriber if subscriber != name and is_subscriber_id(subscriber) else None


def retry_lock_name(subscriber: str) -> str:
    """
    Return the name of the lock file that a process holds while it changes *subscriber*'s retry set.

    Raises:
        UsageError: *subscriber* is not a valid id.
    """
    return f"{retry_set_name(subscriber)}.lock"


def check_subscriber_id(subscriber: str) -> None:
    """
    Check that *subscriber* can be part of a file name on every platform.

    Raises:
        UsageError: it is empty, too long, has other characters than ``A-Za-z0-9_-``, or is a device name.
    """
    if not subscriber:
        raise UsageError("a subscriber id must have at least one character")
    if len(subscriber) > SUBSCRIBER_ID_LENGTH_MAX:
        raise UsageError(f"subscriber id {subscriber[:16]!r}… is longer than {SUBSCRIBER_ID_LENGTH_MAX} characters")
    if not _SUBSCRIBER_ID.fullmatch(subscriber):
        raise UsageError(f"subscriber id {subscriber!r} may only have letters, digits, - and _")
    if _RESERVED.fullmatch(subscriber):
        raise UsageError(f"subscriber id {subscriber!r} is a device name on Windows; choose another")


def is_subscriber_id(subscriber: str) -> bool:
    """Return whether `check_subscriber_id` accepts *subscriber*."""
    return bool(_SUBSCRIBER_ID.fullmatch(subscriber)) and not _RESERVED.fullmatch(subscriber)


def _bounded(match: re.Match[str] | None) -> int | None:
    if match is None:
        return None
    number = int(match[1])
    return number if number <= U64_MAX else None
