"""
What topics, their files and their objects are called: names built and parsed.

Parsing accepts exactly what the matching function writes; any other name is somebody else's file and stays untouched.
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
    "REPLACED_SUFFIX",
    "SUBSCRIPTIONS_DIR",
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
    "parse_replaced_name",
    "parse_subscription_file",
    "parse_wal_file_name",
    "pending_object_name",
    "replaced_name",
    "subscription_file",
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
"""What is in objects, where nothing else is said to keep that: beside the topics."""

CHECKPOINT_SUBSCRIPTION = "_checkpoint"
"""Keeps what `ack_checkpoint` was told."""

DEAD_LETTER_SUFFIX = "-dead-letter"
"""Behind the name of a topic: where messages go that nobody could handle."""

REPLACED_SUFFIX = ".replaced"
"""Of a log file in the quarantine whose messages another owner's have replaced."""

REAPPENDED_SUFFIX = ".reappended"
"""Of the same file when its messages are in the topic again."""

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
        UsageError: it has not exactly two parts, or one is no name. More parts are refused rather than cut: two topics
            would share one log.
    """
    parts = topic.removeprefix("/").split("/")
    # However long a topic's name is, that of its dead letters is one, too.
    sizes = [len(part.removesuffix(DEAD_LETTER_SUFFIX)) for part in parts]
    if len(parts) != 2 or max(sizes) > NAME_LENGTH_MAX or not all(_PART.fullmatch(part) for part in parts):
        raise UsageError(
            f"{topic!r} is no topic: write namespace/topic, each of 1 to {NAME_LENGTH_MAX} letters, digits, dots, "
            "hyphens and underscores, and no dot or hyphen at its beginning"
        )
    return "/".join(parts)


def check_topic_pattern(pattern: str) -> str:
    """
    Return *pattern* when it names topics: ``namespace/topic``, either of which may have ``*``, ``?`` and ``[…]``.

    Raises:
        UsageError: it does not.
    """
    if not isinstance(pattern, str) or _PATTERN.fullmatch(pattern) is None:
        raise UsageError(f"{pattern!r} names no topics: write namespace/topic, or a pattern such as logs/*")
    return pattern


def is_namespace(name: str) -> bool:
    """Say whether a directory called *name* can hold topics; who looks for topics looks into no other."""
    return _PART.fullmatch(name) is not None


def check_subscription(name: str, *, internal: bool = False) -> str:
    """
    Return *name* when it can be a subscription's; that of `ack_checkpoint` only where it is *internal*.

    Raises:
        UsageError: it cannot.
    """
    if name == CHECKPOINT_SUBSCRIPTION and not internal:
        raise UsageError(f"{name} is what ack_checkpoint keeps: call the subscription otherwise")
    if not _PART.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise UsageError(
            f"{name!r} is no name of a subscription: 1 to {NAME_LENGTH_MAX} letters, digits, dots, hyphens, underscores"
        )
    return name


def check_producer(name: str) -> str:
    """
    Return *name* when it can be a producer's. What a Spark sink writes has a colon in its producer's name, this never.

    Raises:
        UsageError: it cannot.
    """
    if not _PART.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise UsageError(
            f"{name!r} is no name of a producer: 1 to {NAME_LENGTH_MAX} letters, digits, dots, hyphens, underscores"
        )
    return name


def check_file_name(name: str) -> str:
    """
    Return *name* when the files of a log can be called so: one word and a suffix, as ``wal.log``.

    Raises:
        UsageError: they cannot.
    """
    if re.fullmatch(r"[A-Za-z0-9_-]+\.[A-Za-z]+", name) is None or name.endswith((".ckpt", ".tmp")):
        raise UsageError(f"{name!r} cannot name log files: write a word and a suffix, as {ACTIVE_FILE}")
    return name


def wal_file_name(seq: int, base: str = ACTIVE_FILE) -> str:
    """Return the name of log file *seq*: ``wal.log`` for 0, then ``wal.1.log`` and so on."""
    stem, _, suffix = base.rpartition(".")
    return base if seq == 0 else f"{stem}.{seq}.{suffix}"


def parse_wal_file_name(name: str, base: str = ACTIVE_FILE) -> int | None:
    """Return the number of the log file *name*, or None when it is none."""
    if name == base:
        return 0
    stem, _, suffix = base.rpartition(".")
    match = re.fullmatch(rf"{re.escape(stem)}\.([1-9]\d{{0,18}})\.{re.escape(suffix)}", name)
    return None if match is None else int(match[1])


def subscription_file(name: str) -> str:
    """Return the file in `SUBSCRIPTIONS_DIR` that keeps the subscription *name*."""
    return f"{name}{_SUBSCRIPTION_SUFFIX}"


def parse_subscription_file(file_name: str) -> str | None:
    """Return whose subscription *file_name* keeps, or None."""
    name = file_name.removesuffix(_SUBSCRIPTION_SUFFIX)
    return name if name != file_name and _PART.fullmatch(name) and len(name) <= NAME_LENGTH_MAX else None


def replaced_name(file_name: str, number: int, offset: int) -> str:
    """
    Return what the log file *file_name* is called in the quarantine when another owner has other messages from *offset*
    on; *number* tells two of the same name apart.
    """
    return f"{file_name}.{number}.from{offset}{REPLACED_SUFFIX}"


def parse_replaced_name(name: str) -> int | None:
    """Return the offset in the name of a replaced file; None when it has none."""
    match = _REPLACED.fullmatch(name)
    return None if match is None else int(match[1])


def objects_prefix(topic: str) -> str:
    """Return the place of a topic's objects below the root of the object store, with a slash at its end."""
    return f"storage/topics/{topic}/objects/"


def pending_object_name(start_offset: int) -> str:
    """Return the name of an object that is still being uploaded."""
    return f"data-{start_offset}-pending.dnb1"


def object_name(start_offset: int, end_offset: int) -> str:
    """Return the name of a finished object; *end_offset* is that of its last message."""
    return f"data-{start_offset}-{end_offset}.dnb1"


def parse_object_name(name: str) -> tuple[int, int | None] | None:
    """
    Return first and last offset of the object *name*, with None for the last of a pending one; None when it is
    none.
    """
    match = _OBJECT.fullmatch(name)
    if match is None:
        return None
    return int(match[1]), None if match[2] == "pending" else int(match[2])
