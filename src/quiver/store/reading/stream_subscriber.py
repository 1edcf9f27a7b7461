"""
A streaming query as a subscriber of the store: the part that runs in the query's source process.

When Spark calls each method, and what is durable then:

1. `initial`    the progress file exists, synced, and every later call gives the same answer
2. `latest`     *start* is the end of a batch whose `commits/` file is written: everything before it is acknowledged
3. `plan`       changes nothing; a range below what was acknowledged is refused
4. `commit`     the end of a committed batch, one batch late and not at all for the last: acknowledged as well

Bundles that an exporter could not deliver yet are in its retry set, durably before their batch is committed. An
acknowledgement leaves them out, so their segments stay; they are acknowledged when they have left the set.

Acknowledgements only move forward, and each is on disk before the store may delete anything because of it. The lock is
taken at the first call, not when the object is created: Spark also creates readers in other processes, only to pickle
them.

The store's drop ledger lists the segments that policy dropped, until every subscriber has resolved them. Segments that
another core dropped are in its eviction record before they are in the ledger. Each call reads both first: dropped
bundles are resolved in the progress file, durably, and counted and reported. Then the query continues or stops,
depending on `failOnDataLoss`. A bundle that was read but not confirmed when it was dropped counts as dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from quiver.bundle import BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.counted import counted
from quiver.errors import CorruptionError, DataLossError, DirectoryInUseError, UnknownSubscriberError, UsageError
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.format.cores import EVICTED
from quiver.store.format.drop_ledger import DroppedSegment
from quiver.store.format.names import DROP_LEDGER, STORE_ID
from quiver.store.reading.checkpoint import Checkpoint
from quiver.store.reading.offsets import StreamOffset
from quiver.store.reading.partitions import BundleRange, Limits, pack, ranges_between, take
from quiver.store.reading.segments import SegmentList, store_identity
from quiver.store.reading.store_files import StoreFiles
from quiver.store.reading.stream_options import SourceOptions
from quiver.store.subscribers.progress_store import SubscriberFile, create_if_missing, profile_in_use
from quiver.store.subscribers.retry_set import RetrySetReader, before_retries
from quiver.store.subscribers.state import SegmentRef, Segments

__all__ = ["LOCK_PATIENCE_S", "StreamSubscriber"]

LOCK_PATIENCE_S = 2.0
"""A query that was just stopped holds the lock until its process has exited."""

_LOCK_RETRY_S = 0.1
_CURSOR_BYTES_MAX = 1024 * 1024

_Signature = tuple[int, int, int]

_log = logging.getLogger("quiver")


class StreamSubscriber:
    """
    The position of one query in one store. Not thread-safe: Spark never makes concurrent calls.

    Args:
        fs: the file system.
        options: of the load; `subscriber` must be set.
        segments: the store's sealed segments.
        parallelism: the number of tasks that run at the same time.
        clock: limits how long the lock is waited for.
        observer: gets the counts and events of dropped bundles.

    Raises:
        UsageError: the name of the subscriber is missing or not valid.
    """

    def __init__(
        self,
        fs: FileSystem,
        options: SourceOptions,
        segments: SegmentList,
        *,
        parallelism: int,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
    ) -> None:
        if options.subscriber is None:
            raise UsageError(
                "a streaming query is a subscriber of the store and needs a unique name: "
                '.option("subscriber", "parquet-exporter")'
            )
        self._fs = fs
        self._options = options
        self._segments = segments
        self._parallelism = parallelism
        self._clock = clock
        self._observer = observer if observer is not None else InMemoryObserver()
        self._drops_seen: dict[str, _Signature] = {}
        self._file = SubscriberFile(fs, options.path, options.subscriber)
        self._retries = RetrySetReader(fs, options.path, options.subscriber)
        self._released_for = self._retries.refs
        self._checkpoint = None if options.checkpoint is None else Checkpoint(fs, options.checkpoint)
        self._acked = BundleRef(0, 0)
        self._available: BundleRef | None = None
        self._store = ""

    @property
    def acked(self) -> BundleRef:
        """Everything before this position is acknowledged, durably."""
        self._own()
        return self._acked

    def initial(self) -> dict[str, Any]:
        """
        Return the position at which a query without a checkpoint starts. The subscriber exists durably on return.

        `startingOffsets` applies only to a new subscriber. An existing one continues at its position, even with a new
        checkpoint.

        Raises:
            DirectoryInUseError: another query uses this subscriber.
            UsageError: `startingOffsets` names a segment that the store cannot have yet.
        """
        if not self._file.is_owned:
            self._create(self._options.starting)
        return self._offset(self.acked)

    @property
    def store(self) -> str:
        """The identity of the store."""
        return self._store or store_identity(self._fs, self._options.path)

    def has_more(self, start: Mapping[str, Any]) -> bool:
        """Return whether there are bundles after *start*."""
        position = self._parse(start)
        return self._segments.end(position) > position

    def latest(self, start: Mapping[str, Any], *, unlimited: bool, share: int = 1) -> dict[str, Any]:
        """
        Acknowledge everything before *start* and return the end of the next batch, or *start* without new data.

        With *share* only that part of the limits applies: other cores take the rest.

        Raises:
            DataLossError: the checkpoint is older than the acknowledged position, or belongs to another store.
            DirectoryInUseError: another query uses this subscriber.
        """
        position = self._confirmed(start)
        # It is before the acknowledged position only if data loss is ignored: the remaining bundles begin at that
        # position.
        begin = max(position, self._acked)
        end = self._reach(begin, Limits() if unlimited else self._options.limits.divided(share))
        return dict(start) if end <= position else self._offset(end)

    def commit(self, end: Mapping[str, Any]) -> None:
        """
        Acknowledge everything before *end*, durably.

        Raises:
            DataLossError: the offset belongs to another store, or is before the acknowledged position.
            DirectoryInUseError: another query uses this subscriber.
        """
        self._confirmed(end)

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[BundleRange, ...]]:
        """
        Return the partitions of one batch. The same offsets always give the same bundles.

        Raises:
            DataLossError: some of the bundles are missing.
        """
        ranges = self.ranges(start, end)
        return pack(
            ranges,
            parallelism=self._parallelism,
            partitions_min=self._options.partitions_min,
            partition_bytes_min=self._options.partition_bytes_min,
        )

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[BundleRange]:
        """
        Return the bundles of one batch, before they are distributed over tasks.

        Raises:
            DataLossError: some of the bundles are missing.
        """
        self._own()
        first, last = self._parse(start), self._parse(end)
        if first >= last:
            return []
        first = self._not_below_acked(first)
        self._segments.check_complete(first, last)
        if self._checkpoint is not None:
            self._checkpoint.sync_offsets()  # no task may read a batch that a power loss would undo
        return ranges_between(self._segments.from_position(first), first, last)

    def pending(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[BundleRange]:
        """Return the bundles from *start* to before *end* without planning a batch: nothing is checked or synced."""
        first, last = max(self._parse(start), self._acked), self._parse(end)
        return ranges_between(self._segments.from_position(first), first, last) if first < last else []

    def available_now(self) -> None:
        """From now on, return no bundles that are not yet in the store."""
        self._available = self._segments.end(BundleRef(0, 0))

    def tail(self) -> dict[str, Any] | None:
        """Return the end of the store, for progress reports; None before the first other call."""
        return self._offset(self._segments.end(self._acked)) if self._file.is_owned else None

    def release(self) -> None:
        """Release the subscriber."""
        self._file.release()

    def _reach(self, start: BundleRef, limits: Limits) -> BundleRef:
        end = self._segments.end(start)
        if self._available is not None:
            end = max(start, min(end, self._available))
        if end == start or limits.unlimited:
            return end
        return take(self._segments.from_position(start), start, limits, end=end)

    def _confirmed(self, offset: Mapping[str, Any]) -> BundleRef:
        self._own()
        position = self._parse(offset)
        if position <= self._acked:
            self._not_below_acked(position)
            return position
        if self._checkpoint is not None:
            self._checkpoint.sync_commits()  # an acknowledgement must not be ahead of the checkpoint
        self._file.know(self._refs(position))
        if self._file.ack_through(position.segment, position.index, retries=self._retries.refs):
            self._file.save()
        self._acked = position
        self._segments.forget_before(position)
        return position

    def _parse(self, offset: Mapping[str, Any]) -> BundleRef:
        parsed = StreamOffset.from_json(offset)
        parsed.check_store(self.store, self._options.path)
        self._segments.check_reached(parsed.position)
        return parsed.position

    def _not_below_acked(self, position: BundleRef) -> BundleRef:
        if position >= self._acked:
            return position
        if self._segments.is_between_copies(position, self._acked):
            return self._acked
        reason = (
            f"the checkpoint is older than the progress: it is at {position}, but {self._options.subscriber} has "
            f"confirmed everything before {self._acked}, or lost it to a policy, and that data may be deleted; "
            "start with a new checkpoint, or set failOnDataLoss=false to continue from there"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(self._file.path, 0, reason)
        _log.warning("quiver.spark.checkpoint_behind path=%s reason=%s", self._file.path, reason)
        return self._acked

    def _offset(self, position: BundleRef) -> dict[str, Any]:
        return StreamOffset(self._store, position).to_json()

    def _refs(self, before: BundleRef | None = None) -> list[SegmentRef]:
        """Return the segments with their bundle counts, up to the one that contains *before*."""
        refs = []
        # A segment that is deleted meanwhile was resolved by every subscriber: it is not a loss.
        for summary in self._segments.existing():
            if before is not None and summary.segment > before.segment:
                break
            refs.append(SegmentRef(summary.segment, summary.bundle_count))
        return refs

    def _create(self, starting: object) -> None:
        start = starting.segment if isinstance(starting, BundleRef) else starting
        options = self._options
        created = create_if_missing(
            self._fs,
            options.path,
            self._file.subscriber_id,
            start=start,  # type: ignore[arg-type]
            segments=Segments(self._refs()),
            profile=profile_in_use(self._fs, options.path),
        )
        self._own()
        if created and isinstance(starting, BundleRef) and starting > self._acked:
            self._file.ack_through(starting.segment, starting.index)
            self._file.save()
            self._acked = self._position()

    def _own(self) -> None:
        """Take the lock and read the progress, once; wait for a query that is exiting. Then resolve dropped bundles."""
        if self._file.is_owned:
            self._require_same_store()
        else:
            self._take_lock()
        self._fold_drops()
        self._release_delivered()

    def _require_same_store(self) -> None:
        """
        Refuse to continue in a directory that was deleted and created again. The numbers of the new store start again,
        so its bundles would count as read.

        Raises:
            DataLossError: the directory contains another store now, or none.
        """
        if store_identity(self._fs, self._options.path) == self._store:
            return
        self._file.release()
        raise DataLossError(
            f"{self._options.path}/{STORE_ID}",
            0,
            f"the store {self._store} that was read here was removed or replaced; its progress does not apply "
            "to the new store: start with a new checkpoint",
        )

    def _release_delivered(self) -> None:
        """
        Acknowledge, durably, the bundles that left the retry set since: they were delivered or dropped. Costs one
        `stat` if there are none.
        """
        self._retries.refresh()
        if self._retries.refs == self._released_for:
            return
        self._file.know(self._refs())
        if self._file.ack_through(self._acked.segment, self._acked.index, retries=self._retries.refs):
            self._file.save()
        self._released_for = self._retries.refs

    def _fold_drops(self) -> None:
        """
        Resolve the bundles that policy dropped, durably. Costs one `stat` if there are none.

        Raises:
            DataLossError: bundles were dropped, and the query stops on data loss. They are resolved all the same.
        """
        entries = self._new_drops()
        if not entries:
            return
        lost = self._file.fold_drops(entries)
        name = self._file.subscriber_id
        for reason, bundles in lost.items():
            self._observer.count("quiver.subscriber.dropped_bundles_total", bundles, subscriber=name, reason=reason)
        try:
            self._file.know(self._refs())
            self._file.save()
        except OSError:
            self._drops_seen.clear()  # the next call saves it
            raise
        self._acked = max(self._acked, self._position())
        if not lost:
            return
        bundles, why = sum(lost.values()), ", ".join(sorted(lost))
        self._observer.event(
            "quiver.subscriber.dropped", level=logging.WARNING, subscriber=name, bundles=bundles, reason=why
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{self._options.path}/{DROP_LEDGER}",
                0,
                f"policy dropped {counted(bundles, 'bundle')} that {name} had not confirmed ({why}); start with a new "
                "checkpoint, or set failOnDataLoss=false to continue without them",
            )

    def _new_drops(self) -> list[DroppedSegment]:
        """
        Return the new entries of the ledger, and of other cores' eviction records that the store has not copied there
        yet.

        A file that has not changed since the last call has no new entries. The exception are segments that were never
        written: their entries are returned as long as they are in the ledger, but only after the log's cursor has
        passed them. Before that, a crash would restore them.
        """
        found: list[DroppedSegment] = []
        # In this order: the store writes the ledger before it removes the record.
        for name in (EVICTED, DROP_LEDGER):
            found += self._changed_drops(name)
        unwritten = [entry for entry in found if entry.wal_position_end]
        if not unwritten:
            return found
        self._drops_seen.pop(DROP_LEDGER, None)
        cursor = StoreFiles(self._fs, self._options.path).cursor()
        return [entry for entry in found if entry.wal_position_end <= cursor]

    def _changed_drops(self, name: str) -> tuple[DroppedSegment, ...]:
        path = f"{self._options.path}/{name}"
        try:
            stat = self._fs.stat(path)
            seen = (stat.modified_ns, stat.inode, stat.size_bytes)
            if seen == self._drops_seen.get(name):
                return ()
            drops = StoreFiles(self._fs, self._options.path).drops(name)
        except FileNotFoundError:
            return ()
        except CorruptionError:
            # The store copies it to quarantine and starts an empty one. A lost entry shows as a missing segment.
            _log.warning("quiver.spark.drop_ledger_damaged path=%s", path)
            return ()
        self._drops_seen[name] = seen
        return drops

    def _take_lock(self) -> None:
        self._drops_seen = {}
        self._store = store_identity(self._fs, self._options.path)
        deadline = self._clock.monotonic() + LOCK_PATIENCE_S
        condition = threading.Condition()
        while True:
            try:
                self._acquire()
                break
            except DirectoryInUseError:
                if self._clock.monotonic() >= deadline:
                    raise
                with condition:
                    self._clock.wait(condition, _LOCK_RETRY_S)
        self._file.know(self._refs())
        self._retries.refresh()
        self._acked = self._position()

    def _acquire(self) -> None:
        try:
            self._file.acquire()
        except CorruptionError as damage:
            # The acknowledged position is unknown. The checkpoint has it; without one everything is read again.
            copy = self._file.recreate().copy
            _log.warning("quiver.spark.progress_recreated reason=%s copy=%s", damage, copy)
        except UnknownSubscriberError as error:
            if self._options.fail_on_data_loss:
                raise DataLossError(
                    self._file.path,
                    0,
                    f"subscriber {self._file.subscriber_id} is no longer registered, so its data may be deleted; "
                    "start with a new checkpoint, or set failOnDataLoss=false to register it again",
                ) from error
            self._create("earliest")

    def _position(self) -> BundleRef:
        retries = self._retries.refs
        # A batch that was not committed may be planned again, with the bundles that it put into the retry set.
        return before_retries(self._file.position(retries=retries), retries, self._refs() if retries else ())
