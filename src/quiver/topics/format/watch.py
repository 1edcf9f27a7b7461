r"""
Observations of the owners of topics that a directory waits for: a note of two lines (`primitives/batch_notes.py`).

::

    {"quiver_topic_watch": 1, "boot": "5f0c…", "records": {"/danube/…/owner": [57, 3405691582, 86400123]}}
    9f1c02ab

For each key: the revision of the owner's record, the CRC-32 of its value, and since when it has not changed, in
milliseconds of the monotonic clock. This clock has a meaning within one boot only, which `boot` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from quiver.primitives.batch_notes import decode_note, encode_note, is_count
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame

__all__ = ["WATCH_FILE", "SeenRecord", "decode_watch", "encode_watch"]

WATCH_FILE = "takeover.watch"

_VERSION_KEY = "quiver_topic_watch"
_VERSION = 1


class SeenRecord(NamedTuple):
    """One observed record of an owner."""

    revision: int
    checksum: int
    since_ms: int


def encode_watch(boot: str, records: Mapping[str, SeenRecord]) -> bytes:
    """Encode observations."""
    return encode_note(
        {_VERSION_KEY: _VERSION, "boot": boot, "records": {key: list(one) for key, one in sorted(records.items())}}
    )


def decode_watch(data: Buffer) -> Answer[tuple[str, dict[str, SeenRecord]]]:
    """Decode observations: the boot that the times belong to, and the record of each key."""
    answer = decode_note(data)
    if not isinstance(answer, Frame):
        return answer
    if answer.value.get(_VERSION_KEY) != _VERSION:
        return Damage(0, "not a watch of owners, or one of a newer version")
    try:
        boot, records = answer.value["boot"], answer.value["records"].items()
        found = {key: SeenRecord(*map(_number, one)) for key, one in records}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return Damage(0, f"not a watch of owners: {error!r}")
    if not isinstance(boot, str):
        return Damage(0, "not a watch of owners: its boot is not text")
    return Frame((boot, found), answer.end)


def _number(value: object) -> int:
    if not is_count(value):
        raise ValueError(f"{value!r} is not a number")
    return value
