r"""
The names of a slot's files: building and parsing. Any other name belongs to someone else.

::

    <sf_dir>/<sender_id>/
    ├── .lock                     locked by the owner; its content is informational
    ├── .lock.pid                 the owner: "<pid>\n"
    ├── .failed                   why drainers ignore this slot
    ├── .ack-watermark            the highest confirmed frame
    ├── .dead-letters             dropped frames; .dead-letters-1, -2, …: later ones
    ├── .dead-letters.lock        locked while these are changed
    ├── sf-<16 hex digits>.sfa    segments
    ├── sf-<…>.sfa.tmp            a shorter copy of a segment, not finished
    ├── sf-initial.sfa            the first segment of older clients
    ├── .symbol-dict              newer clients: symbols of delta frames
    └── sf-manifest.bin           newer clients: the list of segments
"""

from __future__ import annotations

import re

from quiver.errors import SettingsError

__all__ = [
    "DEAD_LETTERS_LOCK_NAME",
    "DEAD_LETTERS_NAME",
    "FAILED_NAME",
    "LOCK_NAME",
    "MANIFEST_NAME",
    "PID_NAME",
    "SEGMENT_SUFFIX",
    "SYMBOLS_NAME",
    "WATERMARK_NAME",
    "check_sender_id",
    "dead_letters_name",
    "generation_of",
    "is_segment_name",
    "is_sender_id",
    "is_unfinished_name",
    "number_of_dead_letters",
    "segment_name",
    "shorter_name",
]

LOCK_NAME = ".lock"
PID_NAME = ".lock.pid"
FAILED_NAME = ".failed"
WATERMARK_NAME = ".ack-watermark"
DEAD_LETTERS_NAME = ".dead-letters"
DEAD_LETTERS_LOCK_NAME = ".dead-letters.lock"
SYMBOLS_NAME = ".symbol-dict"
MANIFEST_NAME = "sf-manifest.bin"
SEGMENT_SUFFIX = ".sfa"
_UNFINISHED_SUFFIX = ".tmp"

_SEGMENT = re.compile(r"sf-([0-9a-f]{16})\.sfa")
_DEAD_LETTERS = re.compile(r"\.dead-letters(?:-([1-9][0-9]{0,17}))?")
_SENDER_ID = re.compile(r"[A-Za-z0-9_.-]{1,255}")


def segment_name(generation: int) -> str:
    """Return the name of the segment with the number *generation* (0 to 2^64 - 1) in the order of creation."""
    return f"sf-{generation:016x}{SEGMENT_SUFFIX}"


def is_segment_name(name: str) -> bool:
    """Return whether recovery must read the file *name*. Includes the names of other clients."""
    return name.endswith(SEGMENT_SUFFIX)


def shorter_name(segment: str) -> str:
    """Return the name for a shorter copy of *segment* (a name or a path). No client takes it for a segment."""
    return segment + _UNFINISHED_SUFFIX


def is_unfinished_name(name: str) -> bool:
    """Return whether *name* is from `shorter_name`. The holder of the slot may remove such a file."""
    return name.endswith(SEGMENT_SUFFIX + _UNFINISHED_SUFFIX)


def generation_of(name: str) -> int | None:
    """Return the number in a segment's *name*, or None if it has none (``sf-initial.sfa``)."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1], 16) if match else None


def dead_letters_name(number: int) -> str:
    """Return the name of the dead letters file *number*, from 0 in the order of creation."""
    return f"{DEAD_LETTERS_NAME}-{number}" if number else DEAD_LETTERS_NAME


def number_of_dead_letters(name: str) -> int | None:
    """Return the number of a dead letters file, or None if *name* is not one."""
    match = _DEAD_LETTERS.fullmatch(name)
    return None if match is None else int(match[1] or 0)


def is_sender_id(name: str) -> bool:
    """Return whether a directory called *name* can be a slot. Searches for slots ignore all others."""
    return _SENDER_ID.fullmatch(name) is not None and set(name) != {"."}


def check_sender_id(sender_id: str) -> None:
    """
    Validate a sender id: it must be a portable directory name.

    Raises:
        SettingsError: it is empty, or has separators or other characters than ``A-Z a-z 0-9 _ - .``
    """
    if not is_sender_id(sender_id):
        raise SettingsError(f"sender_id {sender_id!r}: 1 to 255 of A-Z a-z 0-9 _ - . are allowed; it names a directory")
