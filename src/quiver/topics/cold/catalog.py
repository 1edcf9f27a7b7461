"""
The catalog: the metadata store's record of a topic's objects.

The catalog is the truth about objects: an object without a descriptor is a leftover, and nothing reads it. A descriptor
is written when its object is finished and verified, in a commit that only the topic's owner can make, and removed
before its object is.

A topic may have a hundred thousand objects, and the index of each may take a megabyte. A few numbers for each object
are kept in memory (`spans.py`); an index is fetched when its object is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from quiver.clock import Clock
from quiver.errors import CorruptionError, FencedError, MetadataUnavailableError
from quiver.metadata.port import CHANGES_MAX, Entry, MetadataStore
from quiver.observe import Observer
from quiver.primitives.scan import Frame, as_damage
from quiver.primitives.small_file import checked_value
from quiver.topics.cold.spans import ObjectSpan, ObjectSpans
from quiver.topics.format.descriptor import (
    ObjectDescriptor,
    SealedState,
    current_key,
    decode_descriptor,
    decode_sealed_state,
    descriptor_key,
    descriptors_prefix,
    encode_current,
    encode_descriptor,
    encode_sealed_state,
    parse_object_id,
    state_key,
)

__all__ = ["Commits", "ObjectCatalog", "reading_order"]

_PAGE = 200
_RECENT_MAX = 4
_REMOVED_AT_ONCE = CHANGES_MAX // 2


class Commits(Protocol):
    """Commits changes: a metadata store, or the ownership of a topic, which only lets the owner commit."""

    def commit(self, changes: Mapping[str, bytes | None], *, expect: Mapping[str, int] | None = None) -> int | None:
        """Write and remove all of *changes*, or nothing."""


class ObjectCatalog:
    """
    The descriptors of one topic, read from *store*, written through *commits*. Thread-safe.

    Args:
        store: the metadata store.
        commits: writes changes; None for readers.
        root: before every key; ``/danube`` by default of the broker's file.
        topic: ``namespace/topic``.
        clock, observer: measure and record queries of the store; without either, nothing is recorded.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        root: str,
        topic: str,
        commits: Commits | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.topic = topic
        self._store = store
        self._commits = commits
        self._root = root.rstrip("/")
        self._guard = threading.Lock()
        self._spans: ObjectSpans | None = None
        self._recent: OrderedDict[str, ObjectDescriptor] = OrderedDict()
        self._clock = clock
        self._observer = observer

    def refresh(self, *, names: set[str] | None = None) -> None:
        """
        Read all descriptors again, page by page; add the names of all objects to *names*.

        Raises:
            CorruptionError: a descriptor is damaged; `path` is its key.
            MetadataUnavailableError: the store does not answer; the previous descriptors stay in memory.
        """
        self._look(names)

    def _look(self, names: set[str] | None = None) -> ObjectSpans:
        began = self._clock.monotonic() if self._clock is not None else 0.0
        found = ObjectSpans()
        for one in self._read(""):
            found.add(one)
            if names is not None:
                names.add(one.object_id)
        if self._clock is not None and self._observer is not None:
            self._observer.record("danube_cloud_reader_query_duration_seconds", self._clock.monotonic() - began)
        with self._guard:
            self._spans = found
            self._recent.clear()
        return found

    def _read(self, start: str) -> Iterator[ObjectDescriptor]:
        prefix = descriptors_prefix(self._root, self.topic)
        pointer = current_key(self._root, self.topic)
        while True:
            page = self._store.range(prefix, start=start, limit=_PAGE)
            for entry in page:
                if entry.key != pointer:
                    yield self._decoded(entry)
            if len(page) < _PAGE:
                return
            start = page[-1].key + "\x01"

    def _decoded(self, entry: Entry) -> ObjectDescriptor:
        answer = decode_descriptor(entry.value)
        if not isinstance(answer, Frame):
            reason = as_damage(answer, len(entry.value)).reason
        elif entry.key == descriptor_key(self._root, self.topic, answer.value.start_offset):
            return answer.value
        else:
            reason = f"it begins with message {answer.value.start_offset}, but its key has another offset"
        raise CorruptionError(entry.key, 0, f"{reason}; run quiver topic rebuild-catalog")

    def _known(self) -> ObjectSpans:
        known = self._spans
        return known if known is not None else self._look()

    def descriptors(self) -> tuple[ObjectDescriptor, ...]:
        """
        Read all descriptors that a reader needs from the store, by first offset. For tools: all are in memory.

        Raises:
            CorruptionError, MetadataUnavailableError: as `refresh`.
        """
        return tuple(reading_order(list(self._read(""))))

    def between(self, start: int, stop: int) -> Iterator[ObjectDescriptor]:
        """
        Yield the descriptors of the objects with offsets from *start* to below *stop*; no others are read.

        Raises:
            CorruptionError, MetadataUnavailableError: as `refresh`.
        """
        with self._guard:
            first = self._spans.at_or_after(start) if self._spans is not None else None
        at = start
        for one in self._read(descriptor_key(self._root, self.topic, first.start_offset if first else 0)):
            if one.start_offset >= stop:
                return
            if one.completed and one.end_offset >= at:
                yield one
                at = one.end_offset + 1

    def spans(self) -> list[ObjectSpan]:
        """
        Return a summary of each object that a reader needs, by first offset: its descriptor without the index.

        Raises:
            CorruptionError, MetadataUnavailableError: as `refresh`, at the first call.
        """
        known = self._known()
        with self._guard:
            return list(known)

    def __len__(self) -> int:
        return len(self._known())

    @property
    def start_offset(self) -> int | None:
        """The oldest offset in any object, or None."""
        known = self._known()
        with self._guard:
            return known[0].start_offset if len(known) else None

    @property
    def next_offset(self) -> int:
        """The offset after the newest in any object; 0 when there is none."""
        known = self._known()
        with self._guard:
            return known[-1].end_offset + 1 if len(known) else 0

    def at_or_after(self, offset: int) -> ObjectSpan | None:
        """Return the summary of the object that has *offset*, or of the next one after it; None if there is none."""
        known = self._known()
        with self._guard:
            return known.at_or_after(offset)

    def descriptor_of(self, span: ObjectSpan) -> ObjectDescriptor | None:
        """
        Return the descriptor of an object, with its index; None if it was withdrawn or replaced: `refresh` then.

        It has no index while the metadata store does not answer: a plain object can be read from its start without.

        Raises:
            CorruptionError: the descriptor is damaged.
            MetadataUnavailableError: the store does not answer, and the object is compressed.
        """
        with self._guard:
            found = self._recent.get(span.object_id)
            if found is not None:
                self._recent.move_to_end(span.object_id)
                return found
        try:
            entry = self._store.get(descriptor_key(self._root, self.topic, span.start_offset))
        except MetadataUnavailableError:
            if span.compression != "none":
                raise
            return span.without_index()
        found = None if entry is None else self._decoded(entry)
        if found is None or found.object_id != span.object_id:
            return None
        with self._guard:
            self._recent[span.object_id] = found
            while len(self._recent) > _RECENT_MAX:
                self._recent.popitem(last=False)
        return found

    def publish(self, descriptor: ObjectDescriptor) -> None:
        """
        Publish *descriptor* and the pointer to it, durably and atomically.

        Raises:
            FencedError: this is no longer the owner; nothing was written.
            MetadataUnavailableError: it is unknown whether it was written; `refresh` reads it.
        """
        changes = {
            descriptor_key(self._root, self.topic, descriptor.start_offset): encode_descriptor(descriptor),
            current_key(self._root, self.topic): encode_current(descriptor.start_offset),
        }
        self._write(changes)
        with self._guard:
            # Add it to the summaries: reading all descriptors again for each object would take longer and longer.
            if self._spans is not None and not self._spans.add(descriptor):
                self._spans = None

    def withdraw(self, descriptors: Sequence[ObjectDescriptor | ObjectSpan]) -> None:
        """
        Remove *descriptors*, durably. Their objects may be deleted afterwards, not before.

        Raises:
            FencedError: this is no longer the owner; nothing was written.
            MetadataUnavailableError: it is unknown whether they were removed; `refresh` reads them.
        """
        self._write({descriptor_key(self._root, self.topic, one.start_offset): None for one in descriptors})
        with self._guard:
            if self._spans is not None:
                self._spans = self._spans.without({one.start_offset for one in descriptors})

    def replace_all(self, descriptors: list[ObjectDescriptor]) -> None:
        """
        Replace all descriptors with *descriptors*.

        Raises:
            FencedError: this is no longer the owner.
            MetadataUnavailableError: some may be written; call it again.
        """
        wanted: dict[str, bytes | None] = {
            descriptor_key(self._root, self.topic, one.start_offset): encode_descriptor(one) for one in descriptors
        }
        pointer = current_key(self._root, self.topic)
        if descriptors:
            wanted[pointer] = encode_current(descriptors[-1].start_offset)
        there = {}
        start = ""
        while page := self._store.range(descriptors_prefix(self._root, self.topic), start=start, limit=_PAGE):
            there.update({entry.key: entry.value for entry in page})
            start = page[-1].key + "\x01"
        for key, value in wanted.items():
            if there.get(key) != value:
                # One at a time: a descriptor may take a megabyte, and a request takes little more.
                self._write({key: value})
        removed = sorted(there.keys() - wanted.keys())
        for at in range(0, len(removed), _REMOVED_AT_ONCE):
            self._write(dict.fromkeys(removed[at : at + _REMOVED_AT_ONCE]))
        self.refresh()

    def _write(self, changes: Mapping[str, bytes | None]) -> None:
        if self._commits is None:
            reason = "was opened for reading only: only the topic's owner writes its catalog"
            raise FencedError(self.topic, epoch=0, owner="", owner_epoch=0, reason=reason)
        self._commits.commit(changes)

    def sealed_state(self) -> SealedState | None:
        """
        Return the state in which the last owner left the topic, or None.

        Raises:
            CorruptionError: it is damaged.
            MetadataUnavailableError: the store does not answer.
        """
        key = state_key(self._root, self.topic)
        entry = self._store.get(key)
        if entry is None:
            return None
        answer = decode_sealed_state(entry.value)
        return checked_value(answer, key, len(entry.value))

    def keep_state(self, state: SealedState) -> None:
        """
        Write the state in which the owner leaves the topic, durably.

        Raises:
            FencedError: this is no longer the owner.
            MetadataUnavailableError: it is unknown whether it was written.
        """
        self._write(self.changes_for(state))

    def changes_for(self, state: SealedState) -> dict[str, bytes | None]:
        """Return the changes that `keep_state` commits, for a larger commit."""
        return {state_key(self._root, self.topic): encode_sealed_state(state)}

    def next_offset_min(self) -> int:
        """
        Return the offset below which none may be given out again, according to objects and the last owner.

        Raises:
            CorruptionError, MetadataUnavailableError: it is unknown, so nothing may be given out.
        """
        self.refresh()
        state = self.sealed_state()
        return max(self.next_offset, state.last_committed_offset + 1 if state is not None else 0)


def reading_order(descriptors: list[ObjectDescriptor]) -> list[ObjectDescriptor]:
    """
    Return those that a reader needs, by first offset: one whose offsets another has completely is omitted.

    There are such objects when a writer repeated an upload because it lost its position.
    """
    kept: list[ObjectDescriptor] = []
    finished = (one for one in descriptors if one.completed and parse_object_id(one.object_id) is not None)
    for one in sorted(finished, key=lambda each: (each.start_offset, -each.end_offset)):
        if not kept or one.end_offset > kept[-1].end_offset:
            kept.append(one)
    return kept
