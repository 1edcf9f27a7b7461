"""
The position of a reader in a store: the next bundle to read. Pure.

A position is a `BundleRef`; they order by segment number, then by index. Everything before a position is read,
everything from it on is unread. The position after the last bundle of segment 12 is ``seq 13, idx 0``, so a position
never depends on the number of bundles in a segment, and does not change while no data arrives.

Spark stores offsets as JSON text and compares the text, so the keys have one order and no value may change by itself::

    {"v": 1, "store": "5c0f…", "seq": 12, "idx": 3}

For a store on several cores, an offset has the position in each core, by the core's number. A core that was removed
keeps its last position::

    {"v": 2, "cores": {"0": {"store": "5c0f…", "seq": 12, "idx": 3}, "1": {"store": "77ab…", "seq": 9, "idx": 0}}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from quiver.errors import DataLossError, UsageError
from quiver.instant import IngestedAt
from quiver.slots import BundleRef

__all__ = [
    "CORES_OFFSET_VERSION",
    "OFFSET_VERSION",
    "STORE_UNKNOWN",
    "CoresOffset",
    "StartingOffsets",
    "StreamOffset",
    "parse_starting",
]

OFFSET_VERSION = 1
CORES_OFFSET_VERSION = 2

STORE_UNKNOWN = "unknown"
"""The identity of a store without one; it matches every other."""

_SEQUENCE_MAX = 2**63 - 1


StartingOffsets = Literal["earliest", "latest"] | BundleRef | IngestedAt
"""The start of a query: an end of the store, an exact position, or a time."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A position in one particular store, as stored in a checkpoint."""

    store: str
    position: BundleRef

    def to_json(self) -> dict[str, Any]:
        """Return the dict that Spark stores. The order of the keys is part of the format."""
        return {
            "v": OFFSET_VERSION,
            "store": self.store,
            "seq": self.position.segment,
            "idx": self.position.index,
        }

    @classmethod
    def from_json(cls, value: object) -> StreamOffset:
        """
        Read an offset back from a checkpoint.

        Raises:
            UsageError: not an offset of this source, or one of a newer version.
        """
        if not isinstance(value, Mapping) or "v" not in value:
            raise UsageError(f"{_shown(value)} is not an offset of the quiver source; is this its checkpoint?")
        if value["v"] != OFFSET_VERSION:
            raise UsageError(
                f"the checkpoint holds offsets of version {value['v']!r}; this release reads {OFFSET_VERSION}"
            )
        store = value.get("store")
        if not isinstance(store, str):
            raise UsageError(f"{_shown(value)} names no store; is this a checkpoint of the quiver source?")
        return cls(store, _position(value))

    def check_store(self, store: str, path: str) -> None:
        """
        Refuse a checkpoint that was made for another store.

        Raises:
            DataLossError: the store at *path* is not the one that this offset refers to.
        """
        if STORE_UNKNOWN in {self.store, store} or self.store == store:
            return
        raise DataLossError(
            path,
            0,
            f"the checkpoint belongs to store {self.store}, but {store} is here; "
            "point the query at the old store, or start it with a new checkpoint",
        )


@dataclass(frozen=True, slots=True)
class CoresOffset:
    """A position in each core of one store, as stored in a checkpoint."""

    cores: Mapping[int, StreamOffset]

    def to_json(self) -> dict[str, Any]:
        """Return the dict that Spark stores. The order of the keys is part of the format."""
        cores = {}
        for core, offset in sorted(self.cores.items()):
            position = offset.position
            cores[str(core)] = {"store": offset.store, "seq": position.segment, "idx": position.index}
        return {"v": CORES_OFFSET_VERSION, "cores": cores}

    @classmethod
    def from_json(cls, value: object, identities: Mapping[int, str]) -> CoresOffset:
        """
        Read an offset back from a checkpoint.

        *identities* has the identity of each existing core. If the checkpoint was made for a single store that was
        later moved to become a core, its identity shows which core that is.

        Raises:
            UsageError: not an offset of this source, or one of a newer version.
            DataLossError: the offset belongs to a single store that is not one of the cores.
        """
        if isinstance(value, Mapping) and value.get("v") == OFFSET_VERSION:
            single = StreamOffset.from_json(value)
            for core, store in identities.items():
                if store == single.store:
                    return cls({core: single})
            raise DataLossError(
                "the checkpoint",
                0,
                f"it belongs to store {single.store}, which is none of these cores; "
                "point the query at the old store, or start it with a new checkpoint",
            )
        if not isinstance(value, Mapping) or value.get("v") != CORES_OFFSET_VERSION:
            StreamOffset.from_json(value)  # raises the error that describes the value
        found = value.get("cores") if isinstance(value, Mapping) else None
        if not isinstance(found, Mapping):
            raise UsageError(f"{_shown(value)} names no cores; is this a checkpoint of the quiver source?")
        cores = {}
        for core, offset in found.items():
            if not str(core).isdecimal() or not isinstance(offset, Mapping):
                raise UsageError(f"{_shown(value)} is not an offset of the quiver source; is this its checkpoint?")
            cores[int(core)] = StreamOffset.from_json({"v": OFFSET_VERSION, **offset})
        return cls(cores)


def parse_starting(text: str, *, option: str = "startingOffsets") -> StartingOffsets:
    """
    Parse ``earliest``, ``latest`` or ``{"seq": 12, "idx": 3}``.

    Raises:
        UsageError: *text* is none of the three.
    """
    word = text.strip()
    if word.lower() == "earliest":
        return "earliest"
    if word.lower() == "latest":
        return "latest"
    try:
        value = json.loads(word)
    except ValueError:
        value = None
    if not isinstance(value, Mapping):
        raise UsageError(f'{option}: {text!r} is not "earliest", "latest" or {{"seq":12,"idx":3}}')
    return _position(value, option=option)


def _position(value: Mapping[str, Any], *, option: str = "offset") -> BundleRef:
    segment, index = value.get("seq"), value.get("idx", 0)
    if not _is_count(segment) or not _is_count(index):
        raise UsageError(f"{option}: {_shown(value)} needs integers seq and idx, both at least 0")
    return BundleRef(segment, index)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _SEQUENCE_MAX


def _shown(value: object) -> str:
    return repr(dict(value) if isinstance(value, Mapping) else value)[:120]
