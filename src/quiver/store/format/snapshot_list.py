r"""
The list of a snapshot: its files and their checksums. Written last, so a directory that has it is complete.

::

    one line of JSON, UTF-8: {"quiver_snapshot": 1, "taken_at_ns": …, "store": "…", "files": [
        {"path": "segments/0000000000000000.qseg", "size_bytes": …, "crc32": null}, …]}
    \n
    eight hexadecimal digits: CRC-32 (IEEE) of that line, without its line end
    \n

`path` is relative to the snapshot, with ``/``. `crc32` is null for files that contain their own checksum, such as
segments. Other keys are ignored, so that a later version may add some.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from quiver.primitives.checksum import crc32
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "SNAPSHOT_LIST",
    "SNAPSHOT_LIST_BYTES_MAX",
    "SNAPSHOT_PREFIX",
    "Snapshot",
    "SnapshotFile",
    "decode_snapshot_list",
    "encode_snapshot_list",
    "is_listable",
]

SNAPSHOT_LIST = "quiver.snapshot"
SNAPSHOT_LIST_BYTES_MAX = 256 * 1024 * 1024
"""Enough for two million files; a larger list is not read."""

SNAPSHOT_PREFIX = b'{"quiver_snapshot": '
_VERSION = 1
_CRC_DIGITS = 8
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One file of a snapshot. `crc32` is None if the file contains its own checksum."""

    path: str
    size_bytes: int
    crc32: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    The contents of a snapshot.

    Attributes:
        taken_at_ns: when it was started, in nanoseconds since the epoch: it has everything that was accepted before.
        store: identity of the store that it was taken of; empty if that had none.
        files: all of its files except the list itself, by path.
    """

    taken_at_ns: int
    store: str
    files: tuple[SnapshotFile, ...]


def is_listable(path: str) -> bool:
    """Whether the list may name *path*: it is relative and stays below the snapshot."""
    return all(_PART.fullmatch(part) for part in path.split("/"))


def encode_snapshot_list(snapshot: Snapshot) -> bytes:
    """Return the complete file."""
    files = [asdict(file) for file in sorted(snapshot.files, key=lambda file: file.path)]
    head = {"quiver_snapshot": _VERSION, "taken_at_ns": snapshot.taken_at_ns, "store": snapshot.store}
    line = json.dumps(head | {"files": files}).encode()
    return line + f"\n{crc32(line):08x}\n".encode()


def decode_snapshot_list(view: memoryview) -> Answer[Snapshot]:
    """Decode the list of a snapshot. Every path in the answer is relative and stays below the snapshot."""
    data = bytes(view)
    if not SNAPSHOT_PREFIX.startswith(data[: len(SNAPSHOT_PREFIX)]):
        return Damage(0, "not the list of a snapshot")
    end = data.find(b"\n")
    if end < 0 or len(data) < end + _CRC_DIGITS + 2:
        return NeedMore(1 if end < 0 else end + _CRC_DIGITS + 2 - len(data))
    if data[end + 1 :] != f"{crc32(data[:end]):08x}\n".encode():
        return Damage(end + 1, "checksum mismatch in the list of a snapshot")
    try:
        found = json.loads(data[:end])
    except (ValueError, RecursionError) as error:
        return Damage(0, f"the list of a snapshot is not JSON: {error}")
    if not isinstance(found, dict) or found.get("quiver_snapshot") != _VERSION:
        return Damage(len(SNAPSHOT_PREFIX), f"unsupported version of a snapshot; this reads {_VERSION}")
    return _checked(found, len(data))


def _checked(found: dict[str, Any], end: int) -> Answer[Snapshot]:
    taken_at_ns, store, listed = found.get("taken_at_ns"), found.get("store"), found.get("files")
    if not _is_count(taken_at_ns) or not isinstance(store, str) or not isinstance(listed, list):
        return Damage(0, "the list of a snapshot lacks taken_at_ns, store or files")
    files: dict[str, SnapshotFile] = {}
    for one in listed:
        file = _file(one)
        if file is None or file.path in files:
            return Damage(0, f"the list of a snapshot has an invalid file: {str(one)[:200]}")
        files[file.path] = file
    return Frame(Snapshot(int(taken_at_ns or 0), store, tuple(files.values())), end)


def _file(one: object) -> SnapshotFile | None:
    if not isinstance(one, dict):
        return None
    path, size, crc = one.get("path"), one.get("size_bytes"), one.get("crc32")
    if not isinstance(path, str) or not isinstance(size, int) or not _is_count(size):
        return None
    if crc is not None and not (isinstance(crc, int) and _is_count(crc)):
        return None
    # The list may come from anywhere: nothing may be written outside the target.
    if not is_listable(path):
        return None
    return SnapshotFile(path, size, crc)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64
