"""
A streaming query over a store on several cores: one subscriber in each core, one stream.

Cores may be added and removed while the query runs. A new core is read from its beginning, or from the subscriber's
position in it. A core is removed only after every subscriber has finished it; the offsets keep its last position.
Durability is handled for each core separately (`stream_subscriber.py`); the cores share only the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quiver.errors import DataLossError
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.reading.offsets import STORE_UNKNOWN, CoresOffset, StreamOffset
from quiver.store.reading.partitions import BundleRange, pack
from quiver.store.reading.segments import store_roots
from quiver.store.reading.stream_options import SourceOptions
from quiver.store.reading.stream_subscriber import StreamSubscriber

__all__ = ["CoresStreamSubscriber"]

MakeStreamSubscriber = Callable[[str, bool], StreamSubscriber]
"""Gets the directory of a core, and whether the core existed when the query began."""


class CoresStreamSubscriber:
    """
    The position of one query in a store on several cores. Not thread-safe: Spark never makes concurrent calls.

    Args:
        fs: the file system.
        options: of the load.
        make: creates the subscriber of one core.
        parallelism: the number of tasks that run at the same time.
    """

    def __init__(self, fs: FileSystem, options: SourceOptions, make: MakeStreamSubscriber, *, parallelism: int) -> None:
        self._fs = fs
        self._options = options
        self._make = make
        self._parallelism = parallelism
        self._cores: dict[int, StreamSubscriber] = {}
        self._inodes: dict[int, int] = {}
        self._has_begun = False
        self._available: frozenset[int] | None = None

    def initial(self) -> dict[str, Any]:
        """
        Return the position at which a query without a checkpoint starts. The subscriber exists durably in every core on
        return.

        Raises:
            DirectoryInUseError: another query uses this subscriber.
        """
        cores = {core: StreamOffset.from_json(one.initial()) for core, one in self._live().items()}
        return CoresOffset(cores).to_json()

    def latest(self, start: Mapping[str, Any], *, unlimited: bool) -> dict[str, Any]:
        """
        Acknowledge everything before *start* and return the end of the next batch, or *start* without new data.

        The limits are divided evenly between the cores that have new bundles.

        Raises:
            DataLossError: the checkpoint is older than the acknowledged position, or belongs to another store.
            DirectoryInUseError: another query uses this subscriber.
        """
        self._has_begun = True
        live = self._live()
        offset = self._parse(start, live)
        begins = {
            core: self._begin(offset, core, one)
            for core, one in live.items()
            if self._available is None or core in self._available
        }
        share = sum(live[core].has_more(begin) for core, begin in begins.items())
        ends = dict(offset.cores)
        for core, begin in begins.items():
            ends[core] = StreamOffset.from_json(live[core].latest(begin, unlimited=unlimited, share=share))
        end = CoresOffset(ends).to_json()
        return dict(start) if end["cores"] == start.get("cores") else end

    def has_more(self, start: Mapping[str, Any]) -> bool:
        """Return whether a core has bundles after *start*."""
        live = self._live()
        offset = self._parse(start, live)
        return any(one.has_more(self._begin(offset, core, one)) for core, one in live.items())

    def commit(self, end: Mapping[str, Any]) -> None:
        """
        Acknowledge everything before *end*, durably.

        Raises:
            DataLossError: the offset belongs to another store, or is before the acknowledged position.
        """
        live = self._live()
        for core, offset in self._parse(end, live).cores.items():
            if core in live and _is_of(offset, live[core]):
                live[core].commit(offset.to_json())

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[BundleRange, ...]]:
        """
        Return the partitions of one batch. The same offsets always give the same bundles.

        Raises:
            DataLossError: some of the bundles are missing.
        """
        live = self._live()
        first, last = self._parse(start, live), self._parse(end, live)
        ranges: list[BundleRange] = []
        for core, offset in sorted(last.cores.items()):
            if first.cores.get(core) == offset:
                continue
            if core in live and _is_of(offset, live[core]):
                ranges += live[core].ranges(self._begin(first, core, live[core]), offset.to_json())
            elif self._options.fail_on_data_loss:
                raise DataLossError(
                    f"{self._options.path}/core_{core}",
                    0,
                    f"the batch needs bundles before {offset.position} of store {offset.store}, which was removed; "
                    "failOnDataLoss=false continues without them",
                )
        return pack(
            ranges,
            parallelism=self._parallelism,
            partitions_min=self._options.partitions_min,
            partition_bytes_min=self._options.partition_bytes_min,
        )

    def pending(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[BundleRange]:
        """Return the bundles from *start* to before *end* without planning a batch: nothing is checked or synced."""
        live = self._live()
        first, last = self._parse(start, live), self._parse(end, live)
        ranges: list[BundleRange] = []
        for core, offset in sorted(last.cores.items()):
            if first.cores.get(core) != offset and core in live and _is_of(offset, live[core]):
                ranges += live[core].pending(self._begin(first, core, live[core]), offset.to_json())
        return ranges

    def available_now(self) -> None:
        """From now on, return no bundles that are not yet in the store."""
        live = self._live()
        self._available = frozenset(live)
        for one in live.values():
            one.available_now()

    def tail(self) -> dict[str, Any] | None:
        """Return the end of the store, for progress reports; None before the first other call."""
        tails = {core: one.tail() for core, one in self._cores.items()}
        known = {core: StreamOffset.from_json(tail) for core, tail in tails.items() if tail is not None}
        return CoresOffset(known).to_json() if known else None

    def release(self) -> None:
        """Release the subscriber in every core."""
        for one in self._cores.values():
            one.release()

    def _live(self) -> dict[int, StreamSubscriber]:
        """Return the existing cores, each with its subscriber."""
        roots = {core: root for core, root in store_roots(self._fs, self._options.path).items() if core is not None}
        # By inode: a core that was removed may have been created again, and is then another core.
        there = {core: self._fs.stat(root).inode for core, root in roots.items()}
        for core in [core for core in self._cores if self._inodes[core] != there.get(core)]:
            self._cores.pop(core).release()
        for core, root in roots.items():
            if core not in self._cores:
                self._cores[core] = self._make(root, not self._has_begun)
                self._inodes[core] = there[core]
        return dict(sorted(self._cores.items()))

    def _parse(self, value: Mapping[str, Any], live: Mapping[int, StreamSubscriber]) -> CoresOffset:
        is_single = value.get("v") != 2
        offset = CoresOffset.from_json(value, {core: one.store for core, one in live.items()} if is_single else {})
        strangers = [core for core, known in offset.cores.items() if core in live and not _is_of(known, live[core])]
        if strangers and len(strangers) == len(offset.cores):
            core = strangers[0]
            offset.cores[core].check_store(live[core].store, f"{self._options.path}/core_{core}")
        return offset

    @staticmethod
    def _begin(offset: CoresOffset, core: int, subscriber: StreamSubscriber) -> dict[str, Any]:
        """Return where to read *core* from: its position in the checkpoint, or for a new core the acknowledged one."""
        known = offset.cores.get(core)
        if known is not None and _is_of(known, subscriber):
            return known.to_json()
        return subscriber.initial()


def _is_of(offset: StreamOffset, subscriber: StreamSubscriber) -> bool:
    return STORE_UNKNOWN in {offset.store, subscriber.store} or offset.store == subscriber.store
