r"""
The commit of a Spark sink: which staged segments belong to one batch of one writer. Pure: bytes and names only.

::

    incoming/<writer>/<batch>-<partition>-<attempt>/0000000000000000.qseg    staged: written and synced by a task
    incoming/<writer>/<batch>.commit                                          the batch is committed, with these parts

A commit is a note of `primitives/batch_notes.py`, one line of JSON in UTF-8 and a checksum::

    {"quiver_commit": 1, "writer": "…", "batch": 12, "parts": ["00000000000000000012-00000-7/0000000000000000.qseg"]}
    \n
    eight hexadecimal digits: CRC-32 (IEEE) of that line, without its line end
    \n

The last commit of a writer stays even after its parts have become segments of the store: it records which batches must
not be imported again.
"""

from __future__ import annotations

import re

from quiver.primitives.batch_notes import BatchCommit, CommitCodec, parse_note_name
from quiver.primitives.scan import Answer, Damage

__all__ = ["COMMITS", "COMMIT_PREFIX", "INCOMING_DIR", "decode_commit", "parse_commit_name"]

INCOMING_DIR = "incoming"
"""Below a store's root: what Spark sinks wrote and the store's owner has not imported yet."""

COMMIT_PREFIX = b'{"quiver_commit": '
_SEGMENT = re.compile(r"[0-9]{16}\.qseg")


def parse_commit_name(name: str) -> int | None:
    """Return the batch of the commit called *name*; None if it is not the name of a commit."""
    note = parse_note_name(name)
    return note[0] if note is not None and note[1] == "commit" else None


def decode_commit(view: memoryview) -> Answer[BatchCommit[str]]:
    """Decode a commit. Every part in the answer is in a staging directory of its batch and nowhere else."""
    data = bytes(view)
    if not COMMIT_PREFIX.startswith(data[: len(COMMIT_PREFIX)]):
        return Damage(0, "not the commit of a sink")
    return COMMITS.decode(data)


def _decode_part(value: object) -> str | None:
    is_part = isinstance(value, str) and _SEGMENT.fullmatch(value.partition("/")[2]) is not None
    return str(value) if is_part else None


COMMITS = CommitCodec("quiver_commit", _decode_part, path_of=str)
"""Each part is the path of a staged segment."""
