"""
The nodes of a fleet as directories of segments, for queries: `quiver.read` of a fleet.

A query reads what is in the bucket at the moment. A segment that all readers have acknowledged may be removed before it
is read; its rows are left out then. The bytes come from other machines, so every batch is validated before it is used.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Container, Iterable, Sequence
from functools import cached_property

import pyarrow as pa

from quiver.errors import CorruptionError, DataLossError, ObjectNotFoundError
from quiver.objects.port import ObjectTier
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.format.fleet.chain import Fork, Hole, check_chain
from quiver.store.format.fleet.names import INBOX_FOLDER, InboxObject, inbox_folder, key_of, parse_inbox_key
from quiver.store.reading.digests import SegmentDigests
from quiver.store.reading.directory import StoreDirectory
from quiver.store.reading.fleet.inbox import list_node
from quiver.store.reading.fleet.listing import in_parallel, list_shards
from quiver.store.reading.fleet.segments import fetch_object, validated
from quiver.store.reading.fleet.survey import find_nodes
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.tail import SegmentTail, tail_of
from quiver.store.wal.scan import WalFileScan

__all__ = ["FleetDirectories", "NodeDirectory"]


class ForeignSegment(SegmentReader):
    """A segment of another machine, named by its key. Batches are validated before they are returned."""

    number = -1

    @cached_property
    def info(self) -> SegmentInfo:
        """Counts, sizes, log positions and times."""
        return dataclasses.replace(super().info, seq=self.number)

    def batch(self, stream_id: int, chunk_index: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return one batch of one stream, as `SegmentReader.batch` does."""
        return validated(super().batch(stream_id, chunk_index, columns), self.path)

    def bundle(
        self, index: int, slots: Container[int] | None = None, columns: Sequence[str] | None = None
    ) -> dict[int, pa.RecordBatch]:
        """Return one bundle, as `SegmentReader.bundle` does."""
        batches = super().bundle(index, slots, columns)
        return {slot: validated(batch, self.path) for slot, batch in batches.items()}


class _Object:
    """The reads of the end of one object."""

    def __init__(self, tier: ObjectTier, key: str, size_bytes: int) -> None:
        self._tier = tier
        self._key = key
        self._size_bytes = size_bytes

    def pread(self, size: int, offset: int) -> bytes:
        length = max(0, min(size, self._size_bytes - offset))
        return self._tier.get_range(self._key, offset, length) if length else b""

    def size(self) -> int:
        return self._size_bytes


class NodeDirectory(StoreDirectory):
    """
    The segments of one node in the bucket. A node uploads only sealed segments, so it has no log here.

    Args:
        tier: the objects of the fleet.
        identity: of the node.
        strict: raise at the first damage instead of collecting it.
        problems: the list to collect damage in.
    """

    def __init__(self, tier: ObjectTier, identity: str, *, strict: bool, problems: list[CorruptionError]) -> None:
        super().__init__(identity, fs=REAL_FILES, strict=strict, problems=problems)
        self._tier = tier
        self._objects: dict[int, InboxObject] = {}
        self._current: tuple[int, ...] = ()

    def show(self, objects: Iterable[InboxObject]) -> None:
        """Show the segments of *objects* from now on. A scan that was planned before still finds its own."""
        self._current = tuple(self._numbers(list(objects)))

    def _numbers(self, objects: list[InboxObject]) -> Iterable[int]:
        position = min((one.first for one in objects), default=0)
        is_listed_again = False
        while True:
            chain = check_chain(objects, position)
            if isinstance(chain.problem, Hole) and not is_listed_again:
                # A listing is not a snapshot: what it misses may be there, or may have been acknowledged meanwhile.
                objects, is_listed_again = list_node(self._tier, self.path, position=chain.start), True
                position = max(position, min((one.first for one in objects), default=position))
                continue
            for one in chain.objects:
                if not one.is_gone:
                    self._objects[one.last] = one
                    yield one.last
            if chain.problem is None:
                return
            self._report_problem(chain.problem)
            if isinstance(chain.problem, Fork):
                return
            position = chain.problem.last + 1

    def _report_problem(self, problem: Fork | Hole) -> None:
        folder = f"{inbox_folder(self.path)}/segments"
        if isinstance(problem, Fork):
            reason = f"two stores with this identity uploaded segment {problem.number}; later ones are left out"
        else:
            reason = f"segments {problem.first} to {problem.last} are missing"
        self.report(CorruptionError(folder, 0, reason))

    def segments(self) -> list[int]:
        """Return the numbers of the segments, ascending."""
        return list(self._current)

    def open_segment(self, seq: int) -> SegmentReader | None:
        """Fetch segment *seq*; None when it was removed, or is damaged, which is reported."""
        try:
            key, data = fetch_object(self._tier, self.path, self._objects[seq])
            reader = ForeignSegment.from_view(key, memoryview(data))
            reader.verify()
        except DataLossError:
            return None
        except CorruptionError as damage:
            self.report(damage)
            return None
        reader.number = seq
        return reader

    def segment_tail(self, seq: int) -> SegmentTail | None:
        """Fetch the end of segment *seq*; None when it was removed, or cannot be read this way."""
        found = self._objects[seq]
        key = key_of(self.path, found)
        try:
            return tail_of(_Object(self._tier, key, found.size_bytes), key)
        except (ObjectNotFoundError, CorruptionError):
            return None

    def forget(self, seq: int) -> None:
        """Do nothing: each segment is verified when it is fetched."""

    def retired_logs(self) -> list[int]:
        """Return no number: the log of a node is on its disk."""
        return []

    def scan_log(self, name: str) -> WalFileScan | None:
        """Return None, as for a log file that was deleted."""
        del name
        return None

    def cursor(self) -> int:
        """Return 0, as without a log."""
        return 0

    def floor(self) -> int:
        """Return the number after the last segment."""
        return self._current[-1] + 1 if self._current else 0


class FleetDirectories:
    """
    The nodes of a fleet. Thread-safe.

    Args:
        tier: the objects of the fleet.
        strict: raise at the first damage instead of collecting it.
        problems: the list to collect damage in.
    """

    def __init__(self, tier: ObjectTier, *, strict: bool, problems: list[CorruptionError]) -> None:
        self._tier = tier
        self._strict = strict
        self._problems = problems
        self._lock = threading.Lock()
        self._known: dict[str, tuple[NodeDirectory, SegmentDigests]] = {}

    def digests(self, nodes: Sequence[str] | None = None) -> list[SegmentDigests]:
        """
        List the bucket; return the digests of each node that has objects, ascending by identity.

        Args:
            nodes: names or identities of the nodes; None for all.

        Raises:
            UsageError: no node has that name.
            CorruptionError: a segment is missing, and the reader is strict.
            ObjectsUnavailableError, AccessDeniedError: the bucket cannot be read.
        """
        found = self._listed(nodes)
        digests = []
        with self._lock:
            for identity in sorted(found):
                if identity not in self._known:
                    directory = NodeDirectory(self._tier, identity, strict=self._strict, problems=self._problems)
                    self._known[identity] = directory, SegmentDigests(directory)
                directory, known = self._known[identity]
                directory.show(found[identity])
                digests.append(known)
        return digests

    def planned(self, nodes: Sequence[str] | None = None) -> list[SegmentDigests]:
        """Return `digests` after the end of every segment was fetched, many at once: a query needs them all."""
        found = self.digests(nodes)
        for _ in in_parallel(_read_digests, found):
            pass
        return found

    def _listed(self, nodes: Sequence[str] | None) -> dict[str, list[InboxObject]]:
        if nodes is not None:
            identities = find_nodes(self._tier, nodes)
            listed = in_parallel(lambda identity: list_node(self._tier, identity), identities)
            return dict(zip(identities, listed, strict=True))
        found: dict[str, list[InboxObject]] = {}
        for info in list_shards(self._tier, INBOX_FOLDER):
            parsed = parse_inbox_key(info.key, info.size_bytes)
            if parsed is not None:
                found.setdefault(parsed[0], []).append(parsed[1])
        return found


def _read_digests(digests: SegmentDigests) -> None:
    for seq in digests.directory.segments():
        digests.get(seq)
