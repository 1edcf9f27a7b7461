"""
The store of another program as the source of a pipeline: its bundles are read, stored here, and confirmed there.

The other program may keep its store open: this receiver is a subscriber in another process, as a Spark query is. A
bundle is confirmed only after it is synced here, so nothing is lost between the two stores. Bundles that were stored
but not confirmed when the process dies are stored again. Bundles that the other program has not sealed yet arrive once
it has; those that it left in its log when it died, once it opens the store again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quiver.observe import Observer
    from quiver.store.store import Store

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from quiver.bundle import Bundle
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CapacityError, CorruptionError, InvalidBundleError, QuiverError
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.worker import Worker
from quiver.receivers.polled_settings import StoreReceiverSettings
from quiver.store.cold.files import ColdFiles
from quiver.store.reading.cores import CoresStreamSubscriber
from quiver.store.reading.partitions import BundleRange
from quiver.store.reading.segments import SegmentList, store_roots
from quiver.store.reading.stream_options import SourceOptions, parse_options
from quiver.store.reading.stream_subscriber import StreamSubscriber
from quiver.store.segment.reader import SegmentReader
from quiver.store.store import Store

__all__ = ["StoreReceiver", "StoreReceiverSettings"]

_RETRY_S = 1.0

_BATCH_BUNDLES = 100
_BATCH_BYTES = 4 * 1024 * 1024
"""The number of bundles per confirmation: the maximum to repeat if the process dies or stops before it."""

_log = logging.getLogger("quiver.pipeline")


@dataclass(slots=True)
class _Batch:
    """The current batch: its end, what remains of it, and how many bundles of the first range are stored."""

    end: Mapping[str, Any]
    ranges: deque[BundleRange]
    stored: int = 0
    bundles: int = 0


class StoreReceiver:
    """
    Reads one store into another, in its own thread.

    Args:
        store: the destination of bundles.
        settings: the source and the subscriber.
        observer: counts bundles by outcome.
        clock: used to wait.
        fs: the file system of the other store.
    """

    def __init__(
        self,
        store: Store,
        settings: StoreReceiverSettings,
        *,
        observer: Observer,
        clock: Clock = SYSTEM_CLOCK,
        fs: FileSystem = REAL_FILES,
    ) -> None:
        self.settings = settings
        self._store = store
        self._observer = observer
        self._clock = clock
        self._fs = ColdFiles(fs)
        self._options = parse_options(
            {
                "path": settings.directory,
                "mode": "bundles",
                "subscriber": settings.subscriber,
                "startingOffsets": settings.start,
                "maxBundlesPerTrigger": str(_BATCH_BUNDLES),
                "maxBytesPerTrigger": str(_BATCH_BYTES),
                # These bundles are lost; stopping would lose more. Log it and continue.
                "failOnDataLoss": "false",
            }
        )
        self._subscriber: StreamSubscriber | CoresStreamSubscriber | None = None
        self._position: Mapping[str, Any] = {}
        self._batch: _Batch | None = None
        self._reported = ""
        self._worker = Worker(
            f"quiver-store-receiver {settings.directory}", self._turn, every=settings.poll_interval_s,
            on_death=store.internals.poison, clock=clock, observer=observer,
        )  # fmt: skip

    def start(self) -> None:
        """Start to read. Waits for a store that does not exist yet."""
        self._worker.wake()
        self._worker.start()

    def stop(self, grace_s: float) -> None:
        """Stop, in about *grace_s* seconds. The current batch is confirmed if there is space for the rest of it."""
        self._worker.stop(grace_s)
        self._release()

    def take(self) -> int:
        """
        Store the next sealed bundles, and confirm them. Return their number, 0 if there are none. The thread repeats
        this.

        Raises:
            QuiverError, OSError: nothing more was confirmed; the next call continues from there.
        """
        subscriber = self._subscriber
        if subscriber is None:
            subscriber = self._subscriber = self._subscribe()
            self._position = subscriber.initial()
        batch = self._batch
        if batch is None:
            end = subscriber.latest(self._position, unlimited=False)
            if end == self._position:
                return 0
            ranges = (bundle_range for group in subscriber.plan(self._position, end) for bundle_range in group)
            batch = self._batch = _Batch(end, deque(sorted(ranges, key=lambda one: (one.path, one.start))))
        while batch.ranges:
            if not self._store_range(batch.ranges[0], batch):
                return 0  # stopped while the store was full: the batch will be read again
            batch.ranges.popleft()
            batch.stored = 0
        self._store.sync()
        subscriber.commit(batch.end)  # if the disk there is full, only this is retried
        self._position, self._batch = batch.end, None
        return batch.bundles

    def _subscribe(self) -> StreamSubscriber | CoresStreamSubscriber:
        roots = store_roots(self._fs, self._options.path)
        if None in roots:
            return self._subscribe_to(self._options, self._options.path)
        later = replace(self._options, starting="earliest")  # for new cores, which start empty
        return CoresStreamSubscriber(
            self._fs,
            self._options,
            lambda root, is_first: self._subscribe_to(self._options if is_first else later, root),
            parallelism=1,
        )

    def _subscribe_to(self, options: SourceOptions, root: str) -> StreamSubscriber:
        segments = SegmentList(self._fs, root, slots=None, fail_on_data_loss=False, clock=self._clock)
        own = replace(options, path=root)
        return StreamSubscriber(self._fs, own, segments, parallelism=1, clock=self._clock, observer=self._observer)

    def _store_range(self, bundle_range: BundleRange, batch: _Batch) -> bool:
        """Store the remaining bundles of one range. Return False if the receiver was stopped before all were stored."""
        first = bundle_range.start + batch.stored
        try:
            reader = SegmentReader.open(self._fs, bundle_range.path)
        except FileNotFoundError:
            self._skip(
                bundle_range.path, "the segment was dropped by policy before it was read", bundle_range.stop - first
            )
            return True
        except CorruptionError as damage:
            self._skip(bundle_range.path, str(damage), bundle_range.stop - first)
            return True
        try:
            reader.verify()
            for index in range(first, bundle_range.stop):
                bundle = Bundle(reader.bundle(index), ingested_at_ns=reader.ingested_at_ns(index))
                if not self._store_one(bundle, f"{bundle_range.path}, bundle {index}"):
                    return False
                batch.stored += 1
                batch.bundles += 1
        except CorruptionError as damage:
            self._skip(bundle_range.path, str(damage), bundle_range.stop - bundle_range.start - batch.stored)
        finally:
            reader.close()
        return True

    def _store_one(self, bundle: Bundle, where: str) -> bool:
        while True:
            try:
                self._store.ingest(bundle)
            except CapacityError:
                if self._worker.pause(_RETRY_S):
                    return False
            except InvalidBundleError as error:
                self._skip(where, str(error), 1)
                return True
            else:
                self._observer.count("quiver.receiver.bundles_total", outcome="stored")
                return True

    def _skip(self, where: str, reason: str, bundles: int) -> None:
        self._observer.count("quiver.receiver.bundles_total", bundles, outcome="lost")
        _log.error("%s: %d bundles are skipped: %s", where, bundles, reason)

    def _release(self) -> None:
        if self._subscriber is not None:
            self._subscriber.release()
            self._subscriber = self._batch = None

    def _turn(self) -> float | None:
        try:
            taken = self.take()
        except (QuiverError, OSError) as error:
            # The store may appear later, or disk space may be freed: only stored bundles are confirmed.
            if not isinstance(error, OSError):
                self._release()  # the path may have another store next time
            if str(error) != self._reported:
                self._reported = str(error)
                _log.warning("waiting for %s: %s", self.settings.listening_addr, error)
            return max(_RETRY_S, self.settings.poll_interval_s)
        self._reported = ""
        return 0.0 if taken else None
