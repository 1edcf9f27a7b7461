"""
The Spark sink `quiver-topic`: batch and streaming writes to topics, each batch exactly once.

Tasks stage rows in files that no reader looks at. A batch counts from the moment its commit is durable. Its messages
are in their topics when the owner of the directory has appended them, which is immediately if no process has it open.
`topics/staged_import.py` lists the files and what a crash leaves of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import DirectoryInUseError, UsageError
from quiver.primitives.batch_notes import part_directory
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.disk.staged_commits import StagedLog, hold_patiently
from quiver.spark.store.sink_stage import task_place
from quiver.spark.topics.sink_options import TopicSinkOptions
from quiver.topics.cold.opening import tier_signs
from quiver.topics.format.message import ATTRIBUTES_MAX, KEY_ATTRIBUTE, NS_PER_MS, MessageCodec
from quiver.topics.format.names import WAL_CHECKPOINT, check_topic, parse_wal_file_name
from quiver.topics.format.sink_batch import (
    COMMITS,
    INCOMING_DIR,
    SinkPart,
    StagedMessage,
    encode_staged,
    part_name,
)
from quiver.topics.reading.place import TopicPlace
from quiver.topics.settings import MESSAGE_OVERHEAD_BYTES, TopicSettings, UploaderSettings, WalSettings
from quiver.topics.store import TopicStore

__all__ = [
    "StagedParts",
    "TopicSink",
    "commit_messages",
    "discard_messages",
    "is_batch_committed",
    "messages_of",
    "stage_messages",
]

_WRITE_BYTES = 1024 * 1024
_LOCK_PATIENCE_S = 30.0
_SINK_LOCK = "sink.lock"

_log = logging.getLogger("quiver")


@dataclass(frozen=True, slots=True)
class StagedParts:
    """The files that one attempt of one task wrote and synced, relative to the writer's directory."""

    parts: tuple[SinkPart, ...] = field(default=())


class _Part:
    """A staged file while it is written."""

    def __init__(self, file: File, path: str, topic: str) -> None:
        self.file = file
        self.path = path
        self.topic = topic
        self.count = 0
        self.tail_of = MessageCodec(topic).tail_of
        self._position = 0
        self._waiting = bytearray()

    def add(self, message: StagedMessage) -> None:
        self._waiting += encode_staged(self.count, message)
        self.count += 1
        if len(self._waiting) >= _WRITE_BYTES:
            self.write()

    def write(self) -> None:
        if self._waiting:
            self.file.pwrite(self._waiting, self._position)
            self._position += len(self._waiting)
            self._waiting = bytearray()


def stage_messages(
    fs: FileSystem,
    root: str,
    messages: Iterable[tuple[str, StagedMessage]],
    *,
    writer: str,
    batch: int,
    partition: int,
    attempt: str,
) -> StagedParts:
    """
    Write *messages*, each with its topic, to staged files. Durable on return. Runs in a task.

    Raises:
        OSError: the disk refused.
    """
    directory = part_directory(batch, partition, attempt)
    place = f"{root}/{INCOMING_DIR}/{writer}/{directory}"
    parts: dict[str, _Part] = {}
    try:
        for topic, message in messages:
            part = parts.get(topic)
            if part is None:
                if not parts:
                    fs.make_dirs(place)
                name = part_name(len(parts))
                part = parts[topic] = _Part(fs.create_or_truncate(f"{place}/{name}"), f"{directory}/{name}", topic)
            part.add(message)
        for part in parts.values():
            part.write()
            part.file.sync()
    finally:
        for part in parts.values():
            part.file.close()
    if parts:
        fs.sync_dir(place)
    return StagedParts(tuple(SinkPart(part.path, part.topic, part.count) for part in parts.values()))


def messages_of(
    batches: Iterable[pa.RecordBatch], options: TopicSinkOptions, *, clock: Clock = SYSTEM_CLOCK
) -> Iterator[tuple[str, StagedMessage]]:
    """
    Yield the message of each row, with its topic.

    Raises:
        UsageError: a row has no payload or no topic, or is too large.
    """
    now_ms = clock.now_ns() // NS_PER_MS
    checked: dict[str, str] = {}
    tail_of = MessageCodec("").tail_of
    plain = tail_of(None)
    for batch in batches:
        for row in _rows(batch, options.topic):
            payload, time_us, key, attributes, named = row
            topic = checked.get(named) if named is not None else None
            if topic is None:
                if named is None:
                    raise UsageError("a row has no topic: topic is null")
                topic = checked[named] = check_topic(named)
            if payload is None:
                raise UsageError("a row has no payload: payload is null")
            if len(payload) > options.message_bytes_max:
                raise UsageError(f"{topic}: {len(payload)} bytes exceed maxMessageSize")
            tail = plain
            if key is not None or attributes:
                tail = tail_of(_merged(attributes, key, topic))
                if len(tail) > MESSAGE_OVERHEAD_BYTES // 2:
                    raise UsageError(f"attributes of {topic} take {len(tail)} bytes")
            time_ms = now_ms if time_us is None else max(0, time_us // 1000)
            yield topic, StagedMessage(payload, time_ms, tail)


def _merged(attributes: Any, key: str | None, topic: str) -> dict[str, str]:
    # Spark passes a map as pairs. If a key occurs twice, the last value counts.
    merged = dict(attributes or ())
    if key is not None:
        merged[KEY_ATTRIBUTE] = key
    if len(merged) > ATTRIBUTES_MAX or None in merged.values():
        raise UsageError(f"attributes of {topic} must be at most {ATTRIBUTES_MAX} strings by name, none of them null")
    return merged


def _rows(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[Any, ...]]:
    def column(name: str, kind: pa.DataType | None = None) -> list[Any]:
        if name not in batch.schema.names:
            return [None] * batch.num_rows
        found = batch.column(name)
        return (found if kind is None or found.type == kind else found.cast(kind)).to_pylist()

    times: list[int | None] = [None] * batch.num_rows
    if "timestamp" in batch.schema.names:
        times = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    topics = column("topic", pa.string()) if topic is None else [topic] * batch.num_rows
    return zip(
        column("payload", pa.binary()), times, column("key", pa.string()), column("attributes"), topics, strict=True
    )


# ── committing ───────────────────────────────────────────────────────────────────────────────────────


def _staged_log(fs: FileSystem, root: str) -> StagedLog[SinkPart]:
    return StagedLog(fs, f"{root}/{INCOMING_DIR}", COMMITS)


def is_batch_committed(fs: FileSystem, root: str, *, writer: str, batch: int) -> bool:
    """Return whether *batch* of *writer*, or a later one, was committed."""
    return _staged_log(fs, root).is_committed(writer, batch)


def commit_messages(
    fs: FileSystem,
    place: TopicPlace,
    *,
    writer: str,
    batch: int,
    staged: Sequence[StagedParts],
    clock: Clock = SYSTEM_CLOCK,
) -> bool:
    """
    Commit everything that tasks staged for *batch*; return False when this batch was committed before.

    Durable on return. The messages are in their topics, too, unless another process has the topics open: that one
    appends them within a second.

    Raises:
        UsageError: the log files of a topic have another name.
        OSError: the disk refused; the same batch may be tried again.
    """
    root = place.root or ""
    log = _staged_log(fs, root)
    parts = tuple(part for one in staged for part in one.parts)
    if not log.is_committed(writer, batch):
        for topic in dict.fromkeys(part.topic for part in parts):
            _check_file_name(fs, f"{root}/{topic}", place.file_name)
    is_new = log.commit(writer, batch, parts)
    _import_now(fs, place, clock)
    if log.awaits_import(writer, batch):
        _log.info("quiver.spark.topic_batch_waits path=%s batch=%d", log.directory(writer), batch)
    return is_new


def discard_messages(fs: FileSystem, root: str, *, writer: str, batch: int, staged: Sequence[StagedParts]) -> None:
    """Remove what tasks staged for *batch*, unless it is committed."""
    _staged_log(fs, root).discard(writer, batch, [part for one in staged for part in one.parts])


def _check_file_name(fs: FileSystem, directory: str, file_name: str) -> None:
    names: list[str] = []
    with suppress(FileNotFoundError):
        names = fs.list_dir(directory)
    if WAL_CHECKPOINT in names and not any(parse_wal_file_name(name, file_name) is not None for name in names):
        raise UsageError(f"the log files of {directory} are not named {file_name}: give their name with fileName")


def _import_now(fs: FileSystem, place: TopicPlace, clock: Clock) -> None:
    """Append what is committed, unless a process that has the directory open does it."""
    root = place.root or ""
    if not fs.exists(f"{root}/{INCOMING_DIR}"):
        return
    if place.objects is None and tier_signs(fs, root):
        # The topics have a cold tier, which knows whether this directory still owns them. Without it, appending is
        # not safe.
        return
    lock = hold_patiently(
        fs,
        f"{root}/{INCOMING_DIR}/{_SINK_LOCK}",
        owner="quiver-topic sink",
        patience_s=_LOCK_PATIENCE_S,
        clock=clock,
    )
    if lock is None:
        return  # the other sink appends a lot; the next one imports ours
    try:
        settings = TopicSettings(wal=WalSettings(file_name=place.file_name))
        if place.objects is not None:
            settings = replace(settings, uploader=UploaderSettings(root_prefix=place.root_prefix or "/"))
        # Opening imports it.
        TopicStore.open(
            root, settings=settings, objects=place.objects, metadata=place.metadata, fs=fs, clock=clock,
            background=False,
        ).close()  # fmt: skip
    except DirectoryInUseError:
        return  # the owner imports it, when it closes at the latest
    finally:
        lock.release()


# ── the sink ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class TopicSink:
    """The sink of the format `quiver-topic`."""

    options: TopicSinkOptions

    @property
    def transaction(self) -> tuple[str, int] | None:
        """The writer and number that the program gave this write, if any."""
        return self.options.transaction

    def stage(self, rows: Iterator[pa.RecordBatch], *, writer: str, batch: int) -> StagedParts:
        """Write and sync one partition, in a task."""
        partition, attempt = task_place()
        found = messages_of(rows, self.options)
        return stage_messages(
            REAL_FILES, self.options.root, found, writer=writer, batch=batch, partition=partition, attempt=attempt
        )

    def commit(self, *, writer: str, batch: int, staged: Sequence[StagedParts]) -> None:
        """Commit everything that was staged as one batch, unless that batch was committed before."""
        commit_messages(REAL_FILES, self.options.place, writer=writer, batch=batch, staged=staged)

    def discard(self, *, writer: str, batch: int, staged: Sequence[StagedParts]) -> None:
        """Remove what was staged, unless it is committed."""
        discard_messages(REAL_FILES, self.options.root, writer=writer, batch=batch, staged=staged)
