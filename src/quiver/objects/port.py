"""
The object port: everything a log may ask of the place where its cold data lies.

An object is whole and immutable: nobody ever sees a part of one, and one call replaces all of it. Keys are paths
with ``/`` between their segments, and sort by their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import Buffer

__all__ = ["KEY_CHARS_MAX", "ObjectInfo", "ObjectTier", "Parts", "check_key", "check_prefix", "check_range"]

KEY_CHARS_MAX = 900
"""Buckets allow 1,024 bytes; the rest is for the prefix in front of ours."""

SEGMENT_CHARS_MAX = 200
"""Files allow 255; the rest is for temporary suffixes."""

_SEGMENT = re.compile(r"[A-Za-z0-9_=+@,~-][A-Za-z0-9_=+@,~.-]*")

Parts = Callable[[], Iterable[Buffer]]
"""
Gives the parts of an object from the beginning, each time it is called: a second try begins again.
"""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """
    What a tier knows of an object.

    Attributes:
        key: its name.
        size_bytes: its length.
        etag: changes whenever the object is replaced; None where the tier has none.
        modified_ns: when it was written, by the tier's clock; nanoseconds since the Unix epoch.
    """

    key: str
    size_bytes: int
    etag: str | None
    modified_ns: int


class ObjectTier(Protocol):
    """
    A place for objects. Thread-safe. A write that returned is durable.

    Every call may raise `ObjectsUnavailableError` (try again; whether a write took effect is unknown),
    `AccessDeniedError`, and `UsageError` for a key that `check_key` refuses.
    """

    def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> ObjectInfo:
        """
        Make *key* hold exactly *data*, durably on return.

        Raises:
            ObjectExistsError: with *if_absent*, when there is one already. Of several that try at once, one succeeds.
        """

    def put_parts(self, key: str, parts: Parts, *, part_bytes: int = 8 << 20, parallel: int = 4) -> ObjectInfo:
        """
        Make *key* hold all of *parts* one behind the other, durably on return.

        The parts go out in pieces of *part_bytes*, up to *parallel* at once, and are never all in memory. When one
        cannot be given the call raises what it raised, and *key* is as it was.
        """

    def get(self, key: str, *, size_max: int) -> bytes:
        """
        Return the whole object.

        Raises:
            ObjectNotFoundError: there is none.
            UsageError: it is larger than *size_max*.
        """

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """
        Return *length* bytes from *start*, fewer only at the object's end, none behind it.

        Raises:
            ObjectNotFoundError: there is none.
        """

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """
        Return one piece for each (start, length) of *ranges*, as `get_range` would; in fewer requests where possible.

        Raises:
            ObjectNotFoundError: there is none.
        """

    def head(self, key: str) -> ObjectInfo:
        """
        Return what is known of *key*.

        Raises:
            ObjectNotFoundError: there is none.
        """

    def list_below(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """
        Yield the objects whose keys begin with the folder *prefix* (``""`` is all), in the order of their keys.

        Only those behind the key *after*. What is written or deleted meanwhile may or may not be there.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Remove *keys*, durably on return; one that is missing already is fine. After an error some may be gone."""

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> ObjectInfo:
        """
        Make *target* hold what *source* holds, without sending the bytes through here where the tier can.

        Raises:
            ObjectNotFoundError: there is no *source*.
            ObjectExistsError: with *if_absent*, when there is a *target* already.
        """

    def close(self) -> None:
        """Let go of connections. Idempotent."""


def check_key(key: str) -> str:
    """
    Return *key*.

    Raises:
        UsageError: it would not be the same name on a disk and in every bucket: segments of letters, digits and
            ``_ = + @ , ~ - .``, none empty and none that begins with a dot.
    """
    segments = key.split("/")
    if len(key) > KEY_CHARS_MAX or not all(
        len(segment) <= SEGMENT_CHARS_MAX and _SEGMENT.fullmatch(segment) for segment in segments
    ):
        raise UsageError(f"objects: {key[:200]!r} is no key: use letters, digits and _=+@,~-. between single slashes")
    return key


def check_prefix(prefix: str) -> str:
    """
    Return *prefix* without the slash at its end, if any.

    Raises:
        UsageError: it is not a folder of lawful keys, and not empty either.
    """
    folder = prefix.removesuffix("/")
    return check_key(folder) if folder else ""


def check_range(start: int, length: int) -> None:
    """
    Return when the range is lawful.

    Raises:
        UsageError: it begins before the object, or is empty.
    """
    if start < 0 or length < 1:
        raise UsageError(f"objects: a range starts at 0 or later and has at least one byte, not {start} and {length}")
