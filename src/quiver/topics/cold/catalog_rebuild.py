"""
Rebuilding the catalog from the objects alone: names have the offsets, and reading the objects gives the rest.

It is for a lost metadata store. Every object is read completely and verified. A partly damaged object is included, so
that everything else in it can be read; an object whose contents do not match its name is not. Subscriptions and owners
are not in the objects: they are lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from quiver.errors import CorruptionError, UsageError
from quiver.objects.port import ObjectInfo, ObjectTier
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.topics.cold.blocks import BLOCK_BYTES_MAX, find_block_end, unpack_block
from quiver.topics.cold.catalog import ObjectCatalog, reading_order
from quiver.topics.format.descriptor import (
    INDEX_EVERY_MESSAGES,
    ObjectCompression,
    ObjectDescriptor,
    parse_object_id,
)
from quiver.topics.format.frame import take_frames
from quiver.topics.format.names import check_topic, objects_prefix

__all__ = ["Rebuilt", "rebuild_catalog", "topics_with_objects"]

_READ_BYTES = 4 * 1024 * 1024
_NS_PER_S = 1_000_000_000
_TOPICS = "storage/topics"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """
    The result.

    Attributes:
        descriptors: the new contents of the catalog, by first offset.
        damaged: the damage of objects, included or not.
        left_out: keys of objects without a descriptor: others have their messages, or they are not objects of topics.
        holes: ranges of offsets between objects that no object has: the first, and the offset after the last.
    """

    descriptors: list[ObjectDescriptor] = field(default_factory=list)
    damaged: list[CorruptionError] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    holes: list[tuple[int, int]] = field(default_factory=list)


def topics_with_objects(objects: ObjectTier) -> list[str]:
    """
    Return the topics that have objects, by name.

    Raises:
        ObjectsUnavailableError: the store does not answer.
    """
    found = set()
    for info in objects.list_below(_TOPICS):
        parts = info.key.removeprefix(f"{_TOPICS}/").split("/")
        try:
            found.add(check_topic("/".join(parts[:2])))
        except UsageError:
            continue
    return sorted(found)


def rebuild_catalog(objects: ObjectTier, catalog: ObjectCatalog) -> Rebuilt:
    """
    Make *catalog* describe exactly the objects that the object store has of its topic.

    Raises:
        ObjectsUnavailableError, MetadataUnavailableError: call it again.
        FencedError: another process owns the topic.
    """
    rebuilt = Rebuilt()
    every = []
    prefix = objects_prefix(catalog.topic)
    for info in objects.list_below(prefix):
        parsed = parse_object_id(info.key.removeprefix(prefix))
        descriptor = None if parsed is None else _describe(objects, info, parsed, rebuilt.damaged)
        if descriptor is None:
            rebuilt.left_out.append(info.key)
        else:
            every.append(descriptor)
    rebuilt.descriptors.extend(reading_order(every))
    rebuilt.left_out.extend(prefix + one.object_id for one in every if one not in rebuilt.descriptors)
    ends = [one.end_offset + 1 for one in rebuilt.descriptors]
    starts = [one.start_offset for one in rebuilt.descriptors]
    rebuilt.holes.extend((end, start) for end, start in zip(ends, starts[1:], strict=False) if start > end)
    catalog.replace_all(rebuilt.descriptors)
    return rebuilt


def _describe(
    objects: ObjectTier, info: ObjectInfo, parsed: tuple[int, int, ObjectCompression], damaged: list[CorruptionError]
) -> ObjectDescriptor | None:
    start, end, compression = parsed
    index: list[tuple[int, int]] = []
    expected = start
    trouble: str | None = None
    position = 0
    for first, data, stopped_at, reason in _pieces(objects, info, compression):
        position = stopped_at
        frames, _, _ = take_frames(data)
        offsets = [place[0] for place in frames]
        if offsets != list(range(expected, expected + len(offsets))):
            trouble = f"its messages are not {expected} and the following"
            break
        step = range(-(expected - start) % INDEX_EVERY_MESSAGES, len(frames), INDEX_EVERY_MESSAGES)
        if compression == "none":
            index += [(expected + at, first + frames[at][1]) for at in step]
        elif expected <= end:  # there is nothing after the last message to point to
            index.append((expected, first))
        expected += len(offsets)
        trouble = reason
    if trouble is None and expected != end + 1:
        trouble, position = f"it ends with message {expected - 1}, its name with {end}", info.size_bytes
    if trouble is not None:
        damaged.append(CorruptionError(info.key, position, trouble))
    if expected == start:
        return None  # not even its first message can be read
    return ObjectDescriptor(
        info.key.rpartition("/")[2], start, end, info.size_bytes, info.etag, info.modified_ns // _NS_PER_S,
        offset_index=tuple(index), compression=compression,
    )  # fmt: skip


def _pieces(
    objects: ObjectTier, info: ObjectInfo, compression: ObjectCompression
) -> Iterator[tuple[int, bytes, int, str | None]]:
    """
    Yield complete plain frames in pieces: their position in the object, the frames, the position where reading
    stopped, and the reason.
    """
    carry = b""
    at = 0
    while at < info.size_bytes:
        wanted = min(_READ_BYTES, info.size_bytes - at - len(carry))
        more = objects.get_range(info.key, at + len(carry), wanted) if wanted else b""
        carry += more
        is_last = at + len(carry) >= info.size_bytes or not more
        plain, taken, reason = _plain(carry, compression, is_last=is_last)
        if plain or reason:
            yield at, plain, at + taken, reason
        if reason is not None or (is_last and not taken):
            return
        carry = carry[taken:]
        at += taken


def _plain(data: bytes, compression: ObjectCompression, *, is_last: bool) -> tuple[bytes, int, str | None]:
    if compression == "none":
        _, taken, stopped = take_frames(data)
        reason = stopped.reason if isinstance(stopped, Damage) else None
        if isinstance(stopped, NeedMore) and is_last and taken < len(data):
            reason = "it ends within a message"
        return data[:taken], taken, reason
    block = find_block_end(data, 0, compression)
    if isinstance(block, Frame):
        try:
            return unpack_block(data[: block.value], compression), block.value, None
        except ValueError as error:
            return b"", 0, str(error)
    if isinstance(block, Damage):
        return b"", 0, block.reason
    return b"", 0, "it ends within a block" if is_last or len(data) > BLOCK_BYTES_MAX else None
