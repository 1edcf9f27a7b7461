"""
The object port: all operations of logs on an object store.

An object is complete and immutable: readers never see a part of one, and one call replaces all of it. Keys are paths
with ``/`` between their segments, and sort by their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import Buffer

__all__ = ["KEY_CHARS_MAX", "ObjectInfo", "ObjectTier", "Parts", "check_key", "check_prefix", "check_range"]

KEY_CHARS_MAX = 900
"""Buckets allow 1,024 bytes; the rest is for the prefix of the location."""

SEGMENT_CHARS_MAX = 200
"""Files allow 255; the rest is for temporary suffixes."""

_SEGMENT = re.compile(r"[A-Za-z0-9_=+@,~-][A-Za-z0-9_=+@,~%.-]*")

Parts = Callable[[], Iterable[Buffer]]
"""
Returns the parts of an object from the start at each call, so that an upload can be retried.
"""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """
    The metadata of an object.

    Attributes:
        key: its name.
        size_bytes: its length.
        etag: changes whenever the object is replaced; None where the tier has none.
        modified_ns: when it was written, by the tier's clock; nanoseconds since the Unix epoch.
        is_verified: in the result of a write, whether the tier returned a digest of the bytes that it received and the
            digest is right. If False, only reading the object proves that it arrived.
    """

    key: str
    size_bytes: int
    etag: str | None
    modified_ns: int
    is_verified: bool = field(default=False, compare=False)


class ObjectTier(Protocol):
    """
    An object store. Thread-safe. A write that returned is durable.

    Every call may raise `ObjectsUnavailableError` (try again; whether a write took effect is unknown),
    `AccessDeniedError`, and `UsageError` for a key that `check_key` rejects.
    """

    def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """
        Write *data* as the object *key*, durably on return.

        *if_match* is the etag of the object to replace. All writers of that key use conditions then.

        Raises:
            ObjectExistsError: with *if_absent*, when there is one already. Of concurrent calls, one succeeds.
            ObjectChangedError: with *if_match*, when the object has another etag or does not exist. Of concurrent
                calls, one succeeds.
        """

    def put_parts(self, key: str, parts: Parts, *, part_bytes: int = 8 << 20, parallel: int = 4) -> ObjectInfo:
        """
        Write *parts*, concatenated, as the object *key*, durably on return.

        The parts are sent in pieces of *part_bytes*, up to *parallel* concurrently, and are never all in memory. If
        *parts* raises an error, the call raises it, and *key* is unchanged.
        """

    def get(self, key: str, *, size_max: int) -> bytes:
        """
        Return the complete object.

        Raises:
            ObjectNotFoundError: the object does not exist.
            UsageError: it is larger than *size_max*.
        """

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """
        Return *length* bytes from *start*; fewer at the object's end, none after it.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """
        Return one piece for each (start, length) of *ranges*, as `get_range` does, in fewer requests where possible.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """

    def head(self, key: str) -> ObjectInfo:
        """
        Return the metadata of *key*.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """

    def list_below(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """
        Yield the objects whose keys begin with the folder *prefix* (``""`` is all), in the order of their keys.

        Only keys after *after*. Objects written or deleted meanwhile may or may not be included.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Remove *keys*, durably on return; missing ones are ignored. After an error some may be removed."""

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> ObjectInfo:
        """
        Copy *source* to *target*, without transferring the bytes through this process where the tier can.

        Raises:
            ObjectNotFoundError: *source* does not exist.
            ObjectExistsError: with *if_absent*, when there is a *target* already.
        """

    def close(self) -> None:
        """Close connections. Idempotent."""


def check_key(key: str) -> str:
    """
    Return *key* if it is valid.

    Raises:
        UsageError: it would not be the same name on a disk and in every bucket: segments of letters, digits and
            ``_ = + @ , ~ % - .``, none empty and none that begins with a dot or %.
    """
    segments = key.split("/")
    if len(key) > KEY_CHARS_MAX or not all(
        len(segment) <= SEGMENT_CHARS_MAX and _SEGMENT.fullmatch(segment) for segment in segments
    ):
        raise UsageError(
            f"objects: {key[:200]!r} is not a key: use letters, digits and _=+@,~%-. between single slashes"
        )
    return key


def check_prefix(prefix: str) -> str:
    """
    Return *prefix* without the slash at its end, if any.

    Raises:
        UsageError: it is neither empty nor a folder of valid keys.
    """
    folder = prefix.removesuffix("/")
    return check_key(folder) if folder else ""


def check_range(start: int, length: int) -> None:
    """
    Check that the range is valid.

    Raises:
        UsageError: it begins before the object, or is empty.
    """
    if start < 0 or length < 1:
        raise UsageError(f"objects: a range starts at 0 or later and has at least one byte, not {start} and {length}")
