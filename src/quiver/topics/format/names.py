"""
The names of topics, their files and their objects: built and parsed.

Parsing accepts exactly what the matching function builds; a file with any other name belongs to something else and is
left alone.
"""

from __future__ import annotations

import re

from quiver.errors import UsageError

__all__ = [
    "ACTIVE_FILE",
    "CHECKPOINT_SUBSCRIPTION",
    "DEAD_LETTER_SUFFIX",
    "LOCK_NAME",
    "METADATA_FILE",
    "QUARANTINE_DIR",
    "REAPPENDED_SUFFIX",
    "SUBSCRIPTIONS_DIR",
    "SUPERSEDED_SUFFIX",
    "UPLOADER_CHECKPOINT",
    "WAL_CHECKPOINT",
    "check_file_name",
    "check_producer",
    "check_subscription",
    "check_topic",
    "check_topic_pattern",
    "is_namespace",
    "object_name",
    "objects_prefix",
    "parse_object_name",
    "parse_subscription_file",
    "parse_superseded_name",
    "parse_wal_file_name",
    "pending_object_name",
    "subscription_file",
    "superseded_name",
    "wal_file_name",
]

ACTIVE_FILE = "wal.log"
"""The first file of a topic; the next ones carry a number."""
WAL_CHECKPOINT = "wal.ckpt"
UPLOADER_CHECKPOINT = "uploader.ckpt"
QUARANTINE_DIR = "quarantine"
SUBSCRIPTIONS_DIR = "subscriptions"
LOCK_NAME = "topics.lock"
METADATA_FILE = "metadata.db"
"""The default metadata store, next to the topics."""

CHECKPOINT_SUBSCRIPTION = "_checkpoint"
"""Stores the offset of `ack_checkpoint`."""

DEAD_LETTER_SUFFIX = "-dead-letter"
"""Appended to the name of a topic for the topic of its dead letters."""

SUPERSEDED_SUFFIX = ".replaced"
"""Of a quarantined log file that was superseded: another owner has given out the same offsets."""

REAPPENDED_SUFFIX = ".reappended"
"""Of such a file after its messages were appended to the topic again."""

NAME_LENGTH_MAX = 128
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?")
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]+/[A-Za-z0-9._*?\[\]!-]+")
_SUBSCRIPTION_SUFFIX = ".sub"
_REPLACED = re.compile(r".+\.\d+\.from(\d{1,20})\.replaced")
_OBJECT = re.compile(r"data-(0|[1-9]\d*)-(0|[1-9]\d*|pending)\.dnb1")


def check_topic(topic: str) -> str:
    """
    Return *topic* as ``namespace/topic``; a slash before it is dropped.

    Raises:
        UsageError: it does not have exactly two parts, or one is not a valid name. More parts are rejected, not
            truncated: two topics would share one log.
    """
    parts = topic.removeprefix("/").split("/")
    # A name of any allowed length can be followed by the suffix of dead letters.
    sizes = [len(part.removesuffix(DEAD_LETTER_SUFFIX)) for part in parts]
    if len(parts) != 2 or max(sizes) > NAME_LENGTH_MAX or not all(_PART.fullmatch(part) for part in parts):
        raise UsageError(
            f"{topic!r} is not a topic: write namespace/topic, each of 1 to {NAME_LENGTH_MAX} letters, digits, dots, "
            "hyphens and underscores, without a dot or hyphen at its beginning"
        )
    return "/".join(parts)


def check_topic_pattern(pattern: str) -> str:
    """
    Return *pattern* if it is ``namespace/topic``; either part may contain ``*``, ``?`` and ``[…]``.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(pattern, str) or _PATTERN.fullmatch(pattern) is None:
        raise UsageError(f"{pattern!r} is not a pattern of topics: write namespace/topic, or a pattern such as logs/*")
    return pattern


def is_namespace(name: str) -> bool:
    """Return whether a directory called *name* can contain topics; other directories are ignored."""
    return _PART.fullmatch(name) is not None


def check_subscription(name: str, *, internal: bool = False) -> str:
    """
    Return *name* if it is a valid name of a subscription; that of `ack_checkpoint` is valid only if *internal*.

    Raises:
        UsageError: it is not.
    """
    if name == CHECKPOINT_SUBSCRIPTION and not internal:
        raise UsageError(f"{name} is reserved for ack_checkpoint: choose another name for the subscription")
    if not _PART.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise UsageError(
            f"{name!r} is not a subscription name: 1 to {NAME_LENGTH_MAX} letters, digits, dots, hyphens, underscores"
        )
    return name


def check_producer(name: str) -> str:
    """
    Return *name* if it is a valid name of a producer. It has no colon, unlike the producer names of Spark sinks.

    Raises:
        UsageError: it is not.
    """
    if not _PART.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise UsageError(
            f"{name!r} is not a producer name: 1 to {NAME_LENGTH_MAX} letters, digits, dots, hyphens, underscores"
        )
    return name


def check_file_name(name: str) -> str:
    """
    Return *name* if it is valid for the files of a log: one word and a suffix, as ``wal.log``.

    Raises:
        UsageError: it is not.
    """
    if re.fullmatch(r"[A-Za-z0-9_-]+\.[A-Za-z]+", name) is None or name.endswith((".ckpt", ".tmp")):
        raise UsageError(f"{name!r} cannot name log files: write a word and a suffix, as {ACTIVE_FILE}")
    return name


def wal_file_name(seq: int, base: str = ACTIVE_FILE) -> str:
    """Return the name of log file *seq*: ``wal.log`` for 0, then ``wal.1.log`` and so on."""
    stem, _, suffix = base.rpartition(".")
    return base if seq == 0 else f"{stem}.{seq}.{suffix}"


def parse_wal_file_name(name: str, base: str = ACTIVE_FILE) -> int | None:
    """Return the number of the log file *name*; None if it is not one."""
    if name == base:
        return 0
    stem, _, suffix = base.rpartition(".")
    match = re.fullmatch(rf"{re.escape(stem)}\.([1-9]\d{{0,18}})\.{re.escape(suffix)}", name)
    return None if match is None else int(match[1])


def subscription_file(name: str) -> str:
    """Return the name of the file in `SUBSCRIPTIONS_DIR` for the subscription *name*."""
    return f"{name}{_SUBSCRIPTION_SUFFIX}"


def parse_subscription_file(file_name: str) -> str | None:
    """Return the name of the subscription that *file_name* stores, or None."""
    name = file_name.removesuffix(_SUBSCRIPTION_SUFFIX)
    return name if name != file_name and _PART.fullmatch(name) and len(name) <= NAME_LENGTH_MAX else None


def superseded_name(file_name: str, number: int, offset: int) -> str:
    """
    Return the name in the quarantine of the log file *file_name* when another owner has other messages from *offset*
    on; *number* distinguishes two files with the same name.
    """
    return f"{file_name}.{number}.from{offset}{SUPERSEDED_SUFFIX}"


def parse_superseded_name(name: str) -> int | None:
    """Return the offset in the name of a superseded file; None if it has none."""
    match = _REPLACED.fullmatch(name)
    return None if match is None else int(match[1])


def objects_prefix(topic: str) -> str:
    """Return the prefix of a topic's objects below the root of the object store, with a slash at its end."""
    return f"storage/topics/{topic}/objects/"


def pending_object_name(start_offset: int) -> str:
    """Return the name of an object that is still being uploaded."""
    return f"data-{start_offset}-pending.dnb1"


def object_name(start_offset: int, end_offset: int) -> str:
    """Return the name of a finished object; *end_offset* is that of its last message."""
    return f"data-{start_offset}-{end_offset}.dnb1"


def parse_object_name(name: str) -> tuple[int, int | None] | None:
    """
    Return first and last offset of the object *name*; the last offset of a pending object is None. Return None for any
    other name.
    """
    match = _OBJECT.fullmatch(name)
    if match is None:
        return None
    return int(match[1]), None if match[2] == "pending" else int(match[2])
