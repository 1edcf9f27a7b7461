"""
Superseded messages, whose offsets another owner has given out, appended to their topic again: exactly once each.

`cold/superseded.py` moved them to the quarantine, as complete log files, when their directory came back and found that
another owner had given out the same offsets. Each message gets a new offset at the end of the topic. It keeps its
payload, its attributes, its time and its producer; the attribute `x-reappended-from` records where it was.

That attribute also ensures that each is appended once: first the topic is read from the offset where the two owners
diverged, and messages that it already has are skipped, also at their own offsets. So are messages that their producer
sent again to the other owner, which its name and number identify. The file is renamed when all its messages are synced,
and in objects if there are any; after a crash before that, the next call continues.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quiver.errors import ObjectsUnavailableError, UsageError
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Damage
from quiver.topics.engine import TopicEngine
from quiver.topics.format.frame import FRAME_HEADER_BYTES
from quiver.topics.format.message import ATTRIBUTES_MAX, NS_PER_MS, Message, MessageCodec, decode_message
from quiver.topics.format.names import (
    QUARANTINE_DIR,
    REAPPENDED_SUFFIX,
    SUPERSEDED_SUFFIX,
    parse_superseded_name,
)
from quiver.topics.log import OpenTopic
from quiver.topics.wal.files import FileMarks, FrameScanner, Good
from quiver.topics.wal.local_files import first_offset_of

__all__ = ["REAPPENDED_ATTRIBUTE", "Reappended", "reappend_superseded"]

REAPPENDED_ATTRIBUTE = "x-reappended-from"

_CHUNK_MESSAGES = 1024
_REQUEST_ID_BYTES = 8


@dataclass(slots=True)
class Reappended:
    """
    The result for one superseded file.

    Attributes:
        file: its name in the quarantine.
        first_offset: the first offset at which another owner wrote other messages.
        appended: how many messages were appended by this call.
        already_there: how many were in the topic already.
        damaged: how many cannot be read.
    """

    file: str
    first_offset: int
    appended: int = 0
    already_there: int = 0
    damaged: int = 0


def reappend_superseded(
    fs: FileSystem, topic: OpenTopic, *, owner: str, upload: Callable[[], int] | None
) -> list[Reappended]:
    """
    Append the messages of superseded files that *topic* does not have; return the result for each file.

    Args:
        fs: the file system of the topic.
        topic: the topic, which has a directory.
        owner: the name of the directory of topics.
        upload: uploads the topic and returns the offset that objects reach; None without objects.

    Raises:
        UsageError: it cannot be determined from which offset on a file was superseded.
        CapacityError, StoreFailedError, FencedError, TransientError: some may be appended; the next call continues.
        OSError: a file cannot be read or renamed.
    """
    log = topic.engine
    quarantine = f"{log.wal.directory}/{QUARANTINE_DIR}"
    names = fs.list_dir(quarantine) if fs.exists(quarantine) else []
    found = []
    for name in names:
        if name.endswith(SUPERSEDED_SUFFIX):
            path = f"{quarantine}/{name}"
            first = first_offset_of(fs, path, fs.stat(path).size_bytes, known=None, above=0)
            found.append(_File(fs, path, owner, 0 if first is None else first))
    done = []
    for one in sorted(found, key=lambda file: file.first_offset):
        done.append(_reappend(topic, one))
        log.flush()
        if upload is not None and upload() < log.durable_offset():
            raise ObjectsUnavailableError("upload", log.topic, "not everything that was appended is in objects yet")
        fs.rename(one.path, one.path.removesuffix(SUPERSEDED_SUFFIX) + REAPPENDED_SUFFIX)
        fs.sync_dir(quarantine)
    return done


class _File:
    """A superseded file."""

    def __init__(self, fs: FileSystem, path: str, owner: str, first_offset: int) -> None:
        self.path = path
        self.name = path.rpartition("/")[2]
        self.first_offset = first_offset
        self.owner = owner
        self._fs = fs

    def messages(self, start: int) -> Iterator[tuple[int, Message | None]]:
        """Yield each offset from *start* on, and its message; None for a message that cannot be read."""
        scanner = FrameScanner(self._fs, self.path, position=0, end=None, expected=self.first_offset, marks=FileMarks())
        with scanner:
            while (step := scanner.step()) is not None:
                if not isinstance(step, Good):
                    after = step.first_offset if step.next_offset is None else step.next_offset
                    yield from ((offset, None) for offset in range(max(start, step.first_offset), after))
                    continue
                for offset, (_, begin, end) in enumerate(step.frames, step.first_offset):
                    if offset >= start:
                        message = decode_message(step.data[begin + FRAME_HEADER_BYTES : end])
                        yield offset, None if isinstance(message, Damage) else message

    def identity(self, offset: int) -> str:
        """Return the text that identifies the message at *offset* of this file."""
        return f"{self.owner}/{self.name.removesuffix(SUPERSEDED_SUFFIX)}:{offset}"


def _reappend(topic: OpenTopic, file: _File) -> Reappended:
    log = topic.engine
    start = _superseded_from(log, file)
    result = Reappended(file.name, start)
    by_producer = {
        key
        for _, message in file.messages(start)
        if message is not None and (key := _producer_key(message)) is not None
    }
    there = _in_topic(log, start, file, by_producer)
    missing = _missing(file, start, there, result)
    while chunk := list(itertools.islice(missing, _CHUNK_MESSAGES)):
        _append(topic, file, chunk)
        result.appended += len(chunk)
    return result


def _superseded_from(log: TopicEngine, file: _File) -> int:
    noted = parse_superseded_name(file.name)
    if noted is not None:
        return noted
    # Quarantined by an earlier version, which did not record it: find the first offset with another message or none.
    start = log.start_offset()
    same = None
    with log.reader(max(start, file.first_offset), follow=False, on_lost="skip") as reader:
        for message in itertools.takewhile(_is_in(file), reader):
            same = message.offset
    if same is None and start > file.first_offset:
        raise UsageError(
            f"{file.path}: the topic begins at {start} now, so it cannot be determined from which offset on this file "
            f"was superseded. The event danube.wal.replaced has it: rename the file to "
            f"{file.name.removesuffix(SUPERSEDED_SUFFIX)}.from<offset>{SUPERSEDED_SUFFIX}"
        )
    return file.first_offset if same is None else same + 1


def _is_in(file: _File) -> Callable[[Message], bool]:
    mine = file.messages(0)
    at: list[tuple[int, Message | None]] = []

    def is_same(message: Message) -> bool:
        while not at or at[0][0] < message.offset:
            step = next(mine, None)
            if step is None:
                return False
            at[:] = [step]
        return at[0] == (message.offset, message)

    return is_same


def _producer_key(message: Message) -> tuple[str, int] | None:
    if not message.producer_name:
        return None
    # Spark sinks use a different name for each message, with a colon in it, and no number.
    return message.producer_name, 0 if ":" in message.producer_name else message.request_id


def _in_topic(log: TopicEngine, start: int, file: _File, by_producer: set[tuple[str, int]]) -> set[object]:
    there: set[object] = set()
    prefix = file.identity(0).removesuffix("0")
    is_same = _is_in(file)
    with log.reader(max(start, log.start_offset()), follow=False, on_lost="skip") as reader:
        for message in reader:
            if is_same(message):
                there.add(message.offset)
            identity = message.attributes.get(REAPPENDED_ATTRIBUTE, "")
            if identity.startswith(prefix):
                there.add(identity)
            key = _producer_key(message)
            if key in by_producer:
                there.add(key)
    return there


def _missing(file: _File, start: int, there: set[object], result: Reappended) -> Iterator[tuple[int, Message]]:
    for offset, message in file.messages(start):
        if message is None:
            result.damaged += 1
        elif offset in there or file.identity(offset) in there or _producer_key(message) in there:
            result.already_there += 1
        elif message.attributes.get(REAPPENDED_ATTRIBUTE, "").startswith(f"{file.owner}/"):
            # 1. It was appended from another quarantined file. 2. It was superseded again before it was uploaded.
            # That file was not finished then, and its messages are appended again.
            result.already_there += 1
        else:
            yield offset, message


def _append(topic: OpenTopic, file: _File, chunk: list[tuple[int, Message]]) -> None:
    log = topic.engine
    batch = []
    codecs = []
    for offset, message in chunk:
        if len(message.attributes) >= ATTRIBUTES_MAX:
            raise UsageError(f"{file.path}: message {offset} has no space for the attribute {REAPPENDED_ATTRIBUTE}")
        codec = MessageCodec(
            log.topic, producer_name=message.producer_name, producer_id=message.producer_id,
            broker_address=message.broker_address,
        )  # fmt: skip
        tail = codec.tail_of({**message.attributes, REAPPENDED_ATTRIBUTE: file.identity(offset)})
        batch.append((message.payload, message.publish_time_ns // NS_PER_MS, tail))
        codecs.append((codec, message.request_id))
    codecs_in_turn = iter(codecs)

    def encode(offset: int, payload: bytes, publish_time_ms: int, tail: bytes) -> bytes:
        codec, request_id = next(codecs_in_turn)
        body = codec.encode(offset, payload, publish_time_ms, tail)
        # The request id is the first field of a message.
        return request_id.to_bytes(_REQUEST_ID_BYTES, "little") + body[_REQUEST_ID_BYTES:]

    log.wal.append_batch(batch, encode=encode)
    for _, message in chunk:
        key = _producer_key(message)
        if key is not None:
            topic.producers.record_sequence(*key)
