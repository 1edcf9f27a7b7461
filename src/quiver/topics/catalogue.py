"""
What the metadata store knows of a topic's objects, and how to make it know again.

The catalogue is the truth about objects: an object that it does not name is somebody's leftover, and nothing reads it.
A descriptor is written when its object is finished and verified, in a commit that only the topic's owner gets through,
and removed before its object is.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from quiver.clock import Clock
from quiver.errors import Damaged, Fenced
from quiver.metadata.port import MetadataStore
from quiver.observe import Observer
from quiver.primitives.scan import Frame
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

_PAGE = 500


class Commits(Protocol):
    """
    Who writes: a metadata store, or the ownership of a topic, which lets through only what the owner commits.
    """

    def commit(self, changes: Mapping[str, bytes | None], *, expect: Mapping[str, int] | None = None) -> int | None:
        """
        Write and remove all of *changes*, or nothing.
        """


@dataclass(frozen=True, slots=True)
class _Known:
    descriptors: tuple[ObjectDescriptor, ...] = ()
    starts: tuple[int, ...] = ()
    named: frozenset[str] = frozenset()


def _known(descriptors: list[ObjectDescriptor], named: frozenset[str]) -> _Known:
    found = reading_order(descriptors)
    return _Known(tuple(found), tuple(one.start_offset for one in found), named)


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
        self._known: _Known | None = None
        self._clock = clock
        self._observer = observer

    def refresh(self) -> None:
        """
        Read all descriptors anew.

        Raises:
            Damaged: one is none; `path` is its key.
            MetadataUnavailable: the store does not answer; what was known before is kept.
        """
        began = self._clock.monotonic() if self._clock is not None else 0.0
        every = list(self._read_all())
        if self._clock is not None and self._observer is not None:
            self._observer.record("danube_cloud_reader_query_duration_seconds", self._clock.monotonic() - began)
        with self._guard:
            self._known = _known(every, frozenset(one.object_id for one in every))

    def _read_all(self) -> Iterator[ObjectDescriptor]:
        prefix = descriptors_prefix(self._root, self.topic)
        pointer = current_key(self._root, self.topic)
        start = ""
        while True:
            page = self._store.range(prefix, start=start, limit=_PAGE)
            for entry in page:
                if entry.key == pointer:
                    continue
                answer = decode_descriptor(entry.value)
                if not isinstance(answer, Frame):
                    reason = getattr(answer, "reason", "cut short")
                    raise Damaged(entry.key, 0, f"{reason}; quiver topic rebuild-catalogue makes it anew")
                yield answer.value
            if len(page) < _PAGE:
                return
            start = page[-1].key + "\x01"

    def _all(self) -> _Known:
        if self._known is None:
            self.refresh()
        return self._known or _Known()

    def descriptors(self) -> tuple[ObjectDescriptor, ...]:
        """
        Return what is known, by first offset; read from the store at the first call and at `refresh`.

        Raises:
            Damaged, MetadataUnavailable: as `refresh`.
        """
        return self._all().descriptors

    def names(self, name: str) -> bool:
        """
        Say whether a descriptor names the object *name*, also one that readers do not need.
        """
        return name in self._all().named

    @property
    def start_offset(self) -> int | None:
        """
        The oldest offset in any object, or None.
        """
        known = self._all()
        return known.starts[0] if known.starts else None

    @property
    def next_offset(self) -> int:
        """
        One behind the newest offset in any object; 0 when there is none.
        """
        descriptors = self._all().descriptors
        return descriptors[-1].end_offset + 1 if descriptors else 0

    def at_or_after(self, offset: int) -> ObjectDescriptor | None:
        """
        Return the object that has *offset*, or the next one behind it; None when there is none.
        """
        known = self._all()
        at = bisect.bisect_right(known.starts, offset) - 1
        if at >= 0 and known.descriptors[at].end_offset >= offset:
            return known.descriptors[at]
        return known.descriptors[at + 1] if at + 1 < len(known.descriptors) else None

    def publish(self, descriptor: ObjectDescriptor) -> None:
        """
        Make *descriptor* and the pointer to it known, durably and both at once.

        Raises:
            Fenced: this is not the owner any more; nothing was written.
            MetadataUnavailable: nobody knows whether it was; `refresh` tells.
        """
        changes = {
            descriptor_key(self._root, self.topic, descriptor.start_offset): encode_descriptor(descriptor),
            current_key(self._root, self.topic): encode_current(descriptor.start_offset),
        }
        self._write(changes)
        with self._guard:
            known = self._known
            if known is not None:
                # What is written is known: reading all of it again with each object would take ever longer.
                self._known = _known([*known.descriptors, descriptor], known.named | {descriptor.object_id})

    def withdraw(self, descriptors: list[ObjectDescriptor]) -> None:
        """
        Forget *descriptors*, durably. Their objects may go afterwards, not before.

        Raises:
            Fenced: this is not the owner any more; nothing was written.
            MetadataUnavailable: nobody knows whether it was; `refresh` tells.
        """
        self._write({descriptor_key(self._root, self.topic, one.start_offset): None for one in descriptors})
        gone = {one.object_id for one in descriptors}
        with self._guard:
            known = self._known
            if known is not None:
                left = [one for one in known.descriptors if one.object_id not in gone]
                self._known = _known(left, known.named - gone)

    def replace_all(self, descriptors: list[ObjectDescriptor]) -> None:
        """
        Make *descriptors* all there is.

        Raises:
            Fenced: this is not the owner any more.
            MetadataUnavailable: some may be written; do it again.
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
        changes = {key: value for key, value in wanted.items() if there.get(key) != value}
        changes.update(dict.fromkeys(there.keys() - wanted.keys()))
        for key, value in changes.items():
            # One by one: a descriptor may be a megabyte, and a request takes little more.
            self._write({key: value})
        self.refresh()

    def _write(self, changes: Mapping[str, bytes | None]) -> None:
        if self._commits is None:
            raise Fenced(self.topic, epoch=0, owner="", owner_epoch=0)
        self._commits.commit(changes)

    def sealed_state(self) -> SealedState | None:
        """
        Return how the last owner left the topic, or None.

        Raises:
            Damaged: it is no state.
            MetadataUnavailable: the store does not answer.
        """
        key = state_key(self._root, self.topic)
        entry = self._store.get(key)
        if entry is None:
            return None
        answer = decode_sealed_state(entry.value)
        if not isinstance(answer, Frame):
            raise Damaged(key, 0, getattr(answer, "reason", "cut short"))
        return answer.value

    def keep_state(self, state: SealedState) -> None:
        """
        Write how the owner leaves the topic, durably.

        Raises:
            Fenced: this is not the owner any more.
            MetadataUnavailable: nobody knows whether it was written.
        """
        self._write({state_key(self._root, self.topic): encode_sealed_state(state)})

    def next_offset_min(self) -> int:
        """
        Return the offset below which none may be given out again, as far as objects and the last owner say.

        Raises:
            Damaged, MetadataUnavailable: nobody can say, so nothing may be given out.
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
