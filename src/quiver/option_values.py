"""What the options of all our formats have in common: words of Spark, which come as text under lower-case names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quiver.errors import QuiverError, UsageError
from quiver.settings import parse_size_bytes

__all__ = [
    "bytes_option", "count_option", "refuse_ending", "refuse_stream_options", "switch_option", "transaction_option",
]  # fmt: skip


def refuse_ending(options: Mapping[str, str]) -> None:
    """
    Refuse an end in the *options* of a stream, which would go on behind it.

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


def switch_option(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """
    Return option *name* of *given*, whose keys are lower-case: ``true`` or ``false``; *default* when it is not there.

    Raises:
        UsageError: it is neither of the two.
    """
    value = given.get(name.lower())
    if value is None:
        return default
    if value.lower() not in {"true", "false"}:
        raise UsageError(f"{name}: {value!r} is neither true nor false")
    return value.lower() == "true"


def count_option(given: Mapping[str, str], name: str) -> int | None:
    """
    Return option *name* of *given*, a whole number of at least 1; None when it is not there.

    Raises:
        UsageError: it is no such number.
    """
    value = given.get(name.lower())
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"{name}: {value!r} is not a whole number of at least 1")
    return int(value)


def bytes_option(given: Mapping[str, str], name: str, default: int) -> int:
    """
    Return option *name* of *given*, a size such as ``64 MiB`` in bytes; *default* when it is not there.

    Raises:
        UsageError: it is no size of at least one byte.
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


def transaction_option(
    given: Mapping[str, str], *, reserved: str, is_writer: Callable[[str], bool], version_max: int
) -> tuple[str, int] | None:
    """
    Return who writes and which of his writes it is, of options ``txnAppId`` and ``txnVersion``; None without them.

    Raises:
        UsageError: one of the two is missing or is none; a writer's name begins with *reserved*, which jobs' own do.
    """
    writer, version = given.get("txnappid"), given.get("txnversion")
    if writer is None and version is None:
        return None
    if writer is None or version is None:
        raise UsageError("txnAppId and txnVersion belong together: who writes, and which of his writes this is")
    if not is_writer(writer) or writer.startswith(reserved):
        raise UsageError(f"txnAppId: {writer!r} is not 1 to 64 of A-Za-z0-9_-, or begins with {reserved}")
    if not version.isdecimal() or int(version) > version_max:
        raise UsageError(f"txnVersion: {version!r} is not a whole number from 0 on")
    return writer, int(version)
