"""Parsing of options shared by all Spark formats. Spark passes them as text under lower-case names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from quiver.errors import QuiverError, UsageError
from quiver.settings import parse_duration_s, parse_size_bytes

__all__ = [
    "bytes_option", "count_option", "duration_option", "refuse_ending", "refuse_stream_options",
    "refuse_unknown_options", "switch_option", "transaction_option",
]  # fmt: skip


def refuse_ending(options: Mapping[str, str]) -> None:
    """
    Refuse an end position in the *options* of a stream, which has no end.

    Raises:
        UsageError: there is one.
    """
    for name in ("endingOffsets", "endingTimestamp"):
        if name.lower() in (key.lower() for key in options):
            raise UsageError(f"{name} is for batch reads; a stream has no end: stop the query, or read with spark.read")


def refuse_stream_options(options: Mapping[str, str], names: tuple[str, ...]) -> None:
    """
    Raise when the *options* of a batch read have one of *names*, which only a stream uses.

    Raises:
        UsageError: there is one.
    """
    given = {key.lower() for key in options}
    for name in names:
        if name.lower() in given:
            raise UsageError(f"{name} has no effect in a batch read: leave it out, or read with spark.readStream")


def refuse_unknown_options(given: Mapping[str, str], known: Mapping[str, str], owner: str) -> None:
    """
    Raise when *given*, whose keys are lower-case, has a key that is not in *known*: lower-case key → name.

    *owner* is what the options belong to, such as ``quiver sink``.

    Raises:
        UsageError: there is one; the error names the nearest known option.
    """
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(known.values())}"
            raise UsageError(f"unknown option {key} of the {owner}; {hint}")


def switch_option(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """
    Return the boolean option *name* of *given*, whose keys are lower-case; *default* if it is not set.

    Raises:
        UsageError: it is neither ``true`` nor ``false``.
    """
    value = given.get(name.lower())
    if value is None:
        return default
    if value.lower() not in {"true", "false"}:
        raise UsageError(f"{name}: {value!r} is neither true nor false")
    return value.lower() == "true"


def count_option(given: Mapping[str, str], name: str) -> int | None:
    """
    Return the positive integer option *name* of *given*; None if it is not set.

    Raises:
        UsageError: it is not a positive integer.
    """
    value = given.get(name.lower())
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"{name}: {value!r} is not a whole number of at least 1")
    return int(value)


def bytes_option(given: Mapping[str, str], name: str, default: int) -> int:
    """
    Return option *name* of *given*, a size such as ``64 MiB``, in bytes; *default* if it is not set.

    Raises:
        UsageError: it is not a size of at least one byte.
    """
    value = given.get(name.lower())
    if value is None:
        return default
    try:
        size = parse_size_bytes(int(value) if value.isdecimal() else value, key=name)
    except QuiverError as error:
        raise UsageError(str(error)) from error
    if size < 1:
        raise UsageError(f"{name}: {value!r} is not a size of at least 1 byte")
    return size


def duration_option(given: Mapping[str, str], name: str) -> float | None:
    """
    Return option *name* of *given*, a duration such as ``5m``, in seconds; None if it is not set.

    Raises:
        UsageError: it is not a duration above 0.
    """
    value = given.get(name.lower())
    if value is None:
        return None
    try:
        seconds = parse_duration_s(value, key=name)
    except QuiverError as error:
        raise UsageError(str(error)) from error
    if seconds <= 0:
        raise UsageError(f"{name}: {value!r} is not above 0")
    return seconds


def transaction_option(
    given: Mapping[str, str], *, reserved: str, is_writer: Callable[[str], bool], version_max: int
) -> tuple[str, int] | None:
    """
    Return writer and version from the options ``txnAppId`` and ``txnVersion``; None if neither is set.

    Raises:
        UsageError: one of them is missing or invalid, or the writer starts with *reserved*, the prefix of job names.
    """
    writer, version = given.get("txnappid"), given.get("txnversion")
    if writer is None and version is None:
        return None
    if writer is None or version is None:
        raise UsageError("set both txnAppId and txnVersion: the writer, and the number of its write")
    if not is_writer(writer) or writer.startswith(reserved):
        raise UsageError(
            f"txnAppId: {writer!r} must be 1 to 64 characters of A-Za-z0-9_- and not start with {reserved}"
        )
    if not version.isdecimal() or int(version) > version_max:
        raise UsageError(f"txnVersion: {version!r} is not a non-negative integer")
    return writer, int(version)
