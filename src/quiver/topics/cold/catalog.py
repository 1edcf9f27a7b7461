"""
What the metadata store knows of a topic's objects, and how to make it know again.

The catalogue is the truth about objects: an object that it does not name is somebody's leftover, and nothing reads it.
A descriptor is written when its object is finished and verified, in a commit that only the topic's owner gets through,
and removed before its object is.

A topic may have a hundred thousand objects, and the index of each a megabyte. Kept in memory are a few numbers for
each (`spans.py`); an index is fetched when its object is read.
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

__all__ = ["Commits", "ObjectCatalogue", "reading_order"]

_PAGE = 200
_RECENT_MAX = 4
_REMOVED_AT_ONCE = CHANGES_MAX // 2


class Commits(Protocol):
    """Who writes: a metadata store, or the ownership of a topic, which lets through only what the owner commits."""

    def commit(self, changes: Mapping[str, bytes | None], *, expect: Mapping[str, int] | None = None) -> int | None:
        """Write and remove all of *changes*, or nothing."""


class ObjectCatalogue:
    """
    The descriptors of one topic, read from *store*, written through *commits*. Thread-safe.

    Args:
        store: where they are.
        commits: who may change them; None for those who only read.
        root: before every key; ``/danube`` by default of the broker's file.
        topic: ``namespace/topic``.
        clock, observer: how long a look at the store takes, and who is told; nobody, where either is missing.
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
        Read all descriptors anew, one page after the other; add the names of all objects to *names*.

        Raises:
            CorruptionError: one is none; `path` is its key.
            MetadataUnavailableError: the store does not answer; what was known before is kept.
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
            reason = f"it begins with message {answer.value.start_offset}, its key says another"
        raise CorruptionError(entry.key, 0, f"{reason}; quiver topic rebuild-catalogue makes it anew")

    def _known(self) -> ObjectSpans:
        known = self._spans
        return known if known is not None else self._look()

    def descriptors(self) -> tuple[ObjectDescriptor, ...]:
        """
        Read all that a reader needs from the store, by first offset: for tools, as all are in memory at once.

        Raises:
            CorruptionError, MetadataUnavailableError: as `refresh`.
        """
        return tuple(reading_order(list(self._read(""))))

    def between(self, start: int, stop: int) -> Iterator[ObjectDescriptor]:
        """
        Yield the descriptors of the objects that have any of *start* to below *stop*; no others are read.

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
        Return what is known of each object that a reader needs, by first offset: all but its index.

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
        """One behind the newest offset in any object; 0 when there is none."""
        known = self._known()
        with self._guard:
            return known[-1].end_offset + 1 if len(known) else 0

    def at_or_after(self, offset: int) -> ObjectSpan | None:
        """
        Return what is known of the object that has *offset*, or of the next one behind it; None
        when there is none.
        """
        known = self._known()
        with self._guard:
            return known.at_or_after(offset)

    def descriptor_of(self, span: ObjectSpan) -> ObjectDescriptor | None:
        """
        Return the descriptor of an object, with its index; None when it was withdrawn or replaced: `refresh` then.

        While the metadata store does not answer it has no index: a plain object can be read without, from its start.

        Raises:
            CorruptionError: it is none.
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
        Make *descriptor* and the pointer to it known, durably and both at once.

        Raises:
            FencedError: this is not the owner any more; nothing was written.
            MetadataUnavailableError: nobody knows whether it was; `refresh` tells.
        """
        changes = {
            descriptor_key(self._root, self.topic, descriptor.start_offset): encode_descriptor(descriptor),
            current_key(self._root, self.topic): encode_current(descriptor.start_offset),
        }
        self._write(changes)
        with self._guard:
            # What is written is known: reading all of it again with each object would take ever longer.
            if self._spans is not None and not self._spans.add(descriptor):
                self._spans = None

    def withdraw(self, descriptors: Sequence[ObjectDescriptor | ObjectSpan]) -> None:
        """
        Forget *descriptors*, durably. Their objects may go afterwards, not before.

        Raises:
            FencedError: this is not the owner any more; nothing was written.
            MetadataUnavailableError: nobody knows whether it was; `refresh` tells.
        """
        self._write({descriptor_key(self._root, self.topic, one.start_offset): None for one in descriptors})
        with self._guard:
            if self._spans is not None:
                self._spans = self._spans.without({one.start_offset for one in descriptors})

    def replace_all(self, descriptors: list[ObjectDescriptor]) -> None:
        """
        Make *descriptors* all there is.

        Raises:
            FencedError: this is not the owner any more.
            MetadataUnavailableError: some may be written; do it again.
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
                # One by one: a descriptor may be a megabyte, and a request takes little more.
                self._write({key: value})
        gone = sorted(there.keys() - wanted.keys())
        for at in range(0, len(gone), _REMOVED_AT_ONCE):
            self._write(dict.fromkeys(gone[at : at + _REMOVED_AT_ONCE]))
        self.refresh()

    def _write(self, changes: Mapping[str, bytes | None]) -> None:
        if self._commits is None:
            reason = "was opened for reading only: nothing but the topic's owner writes its catalogue"
            raise FencedError(self.topic, epoch=0, owner="", owner_epoch=0, reason=reason)
        self._commits.commit(changes)

    def sealed_state(self) -> SealedState | None:
        """
        Return how the last owner left the topic, or None.

        Raises:
            CorruptionError: it is no state.
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
        Write how the owner leaves the topic, durably.

        Raises:
            FencedError: this is not the owner any more.
            MetadataUnavailableError: nobody knows whether it was written.
        """
        self._write(self.changes_for(state))

    def changes_for(self, state: SealedState) -> dict[str, bytes | None]:
        """Return what `keep_state` writes, for a commit that does more than that."""
        return {state_key(self._root, self.topic): encode_sealed_state(state)}

    def next_offset_min(self) -> int:
        """
        Return the offset below which none may be given out again, as far as objects and the last owner say.

        Raises:
            CorruptionError, MetadataUnavailableError: nobody can say, so nothing may be given out.
        """
        self.refresh()
        state = self.sealed_state()
        return max(self.next_offset, state.last_committed_offset + 1 if state is not None else 0)


def reading_order(descriptors: list[ObjectDescriptor]) -> list[ObjectDescriptor]:
    """
    Return those that a reader needs, by first offset: one whose offsets another has all is left out.

    Such are left behind where an upload was repeated by a writer that forgot where it was.
    """
    kept: list[ObjectDescriptor] = []
    finished = (one for one in descriptors if one.completed and parse_object_id(one.object_id) is not None)
    for one in sorted(finished, key=lambda each: (each.start_offset, -each.end_offset)):
        if not kept or one.end_offset > kept[-1].end_offset:
            kept.append(one)
    return kept
