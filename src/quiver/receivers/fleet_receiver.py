"""
A fleet as the source of a pipeline: the segments of all nodes are read from the bucket, stored here, and acknowledged.

Each batch of the fleet is staged next to the store and committed there under its own number, before it is acknowledged
to the nodes. A process that dies in between finds the same batch again, and the commit: so each bundle is stored once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import (
    AccessDeniedError,
    CapacityError,
    CorruptionError,
    DataLossError,
    InvalidBundleError,
    QuiverError,
    TransientError,
    UsageError,
)
from quiver.objects.opening import open_objects
from quiver.objects.port import ObjectTier
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.worker import Worker, WorkerDiedError
from quiver.receivers.polled_settings import FleetReceiverSettings
from quiver.store.encode import SlotEncoder
from quiver.store.format.fleet.rejected import RejectedCause
from quiver.store.format.sink_commit import INCOMING_DIR
from quiver.store.reading.fleet.rejected import reject
from quiver.store.reading.fleet.segments import decoding, open_segment, validated
from quiver.store.reading.fleet.subscriber import FleetSegment, FleetSubscriber
from quiver.store.staged_import import writer_commits
from quiver.store.staging.batches import Slots, await_room, commit_batch, stage

__all__ = ["FleetReceiver", "FleetReceiverSettings"]

_RETRY_S = 1.0
_EPOCH_STEP = 1 << 32

_log = logging.getLogger("quiver.pipeline")


class FleetReceiver:
    """
    Reads one fleet into one store, in its own thread.

    Args:
        root: the directory of the store, which another thread of this process has open.
        settings: the bucket and the subscriber.
        on_death: called when the thread dies.
        observer: counts bundles by outcome.
        clock: used to wait.
        fs: the file system of the store.
        tier: the objects of the fleet; None opens them at the location in *settings*.
    """

    def __init__(
        self,
        root: str,
        settings: FleetReceiverSettings,
        *,
        on_death: Callable[[WorkerDiedError], object],
        observer: Observer,
        clock: Clock = SYSTEM_CLOCK,
        fs: FileSystem = REAL_FILES,
        tier: ObjectTier | None = None,
    ) -> None:
        self.settings = settings
        self._root = root
        self._observer = observer
        self._clock = clock
        self._fs = fs
        self._given_tier = tier
        self._options = settings.options()
        digest = hashlib.blake2b(f"{settings.location} {settings.subscriber}".encode(), digest_size=8).hexdigest()
        self._writer = f"fleet-{digest}"
        self._tier: ObjectTier | None = None
        self._subscriber: FleetSubscriber | None = None
        self._position: Mapping[str, Any] = {}
        self._reported = ""
        self._worker = Worker(
            f"quiver-fleet-receiver {settings.subscriber}", self._turn, every=settings.list_interval_s,
            on_death=on_death, clock=clock, observer=observer,
        )  # fmt: skip

    def start(self) -> None:
        """Start to read."""
        self._worker.wake()
        self._worker.start()

    def stop(self, grace_s: float) -> None:
        """Stop, in about *grace_s* seconds. A batch that is not committed will be read again."""
        self._worker.stop(grace_s)
        self._release()

    def take(self) -> int:
        """
        Store the next batch and acknowledge it. Return the number of its bundles, 0 if there are none.

        On return, the batch is committed durably, and the store imports it with its next maintenance.

        Raises:
            QuiverError, OSError: nothing more was acknowledged; the next call continues from there.
        """
        if self._subscriber is None or self._tier is None:
            self._tier = self._given_tier or open_objects(self.settings.location)
            self._subscriber = FleetSubscriber(
                self._tier,
                self._options,
                parallelism=1,
                name=f"pipeline process {os.getpid()} of {socket.gethostname()}",
                clock=self._clock,
                observer=self._observer,
            )
            self._position = self._subscriber.initial()
        end = self._subscriber.latest(self._position, unlimited=False)
        if end == self._position:
            return 0
        bundles = self._store_batch(self._subscriber, self._tier, end)
        self._subscriber.commit(end)
        self._position = end
        return bundles

    def _store_batch(self, subscriber: FleetSubscriber, tier: ObjectTier, end: Mapping[str, Any]) -> int:
        number = subscriber.epoch_of(end) * _EPOCH_STEP + int(end["g"])
        committed = max(writer_commits(self._fs, f"{self._root}/{INCOMING_DIR}/{self._writer}"), default=-1)
        if number == committed:
            return 0  # this process, or an earlier one, died before it acknowledged the batch
        if number < committed:
            raise UsageError(
                f"the store in {self._root} has later batches of {self.settings.listening_addr}: was the bucket "
                "emptied? give the receiver another subscriber, or another store"
            )
        await_room(self._fs, self._root, writer=self._writer, clock=self._clock)
        (segments, *_) = subscriber.plan(self._position, end) or [()]
        try:
            staged, bundles = self._stage(tier, segments, number, is_checked=False)
        except InvalidBundleError:
            # Rare: a node has bundles that this store does not accept. Find its segments, and reject them.
            staged, bundles = self._stage(tier, segments, number, is_checked=True)
        commit_batch(self._fs, self._root, writer=self._writer, batch=number, staged=[staged], clock=self._clock)
        self._observer.count("quiver.receiver.bundles_total", bundles, outcome="stored")
        return bundles

    def _stage(self, tier: ObjectTier, segments: Sequence[FleetSegment], number: int, *, is_checked: bool) -> Any:
        counted = 0

        def bundles() -> Iterator[Slots]:
            nonlocal counted
            for one in segments:
                for slots in self._bundles(tier, one, is_checked=is_checked):
                    counted += 1
                    yield slots

        staged = stage(
            self._fs,
            self._root,
            bundles(),
            writer=self._writer,
            batch=number,
            partition=0,
            attempt=secrets.token_hex(8),
            options=self.settings,
            clock=self._clock,
        )
        return staged, counted

    def _bundles(self, tier: ObjectTier, one: FleetSegment, *, is_checked: bool) -> list[Slots]:
        """Return the bundles of a segment; none if it cannot be read, which is recorded in the bucket."""
        cause: RejectedCause
        try:
            reader = open_segment(tier, one.identity, one.found, size_bytes_max=self._options.segment_bytes_max)
            with decoding(reader.path):
                bundles: list[Slots] = [
                    {slot: validated(batch, reader.path) for slot, batch in reader.bundle(index).items()}
                    for index in range(reader.bundle_count)
                ]
                encoder = SlotEncoder()
                for slots in bundles if is_checked else ():
                    encoder.encode(slots)
        except (AccessDeniedError, TransientError):
            raise  # of the object store, not of the segment
        except DataLossError as error:
            cause, problem = "missing", str(error)
        except CorruptionError as error:
            cause, problem = "damaged", str(error)
        except UsageError as error:
            cause, problem = "schema", str(error)
        else:
            return bundles
        reject(tier, self.settings.subscriber, one.generation, one.identity, one.found, cause, problem)
        return []

    def _release(self) -> None:
        if self._subscriber is not None:
            if self._given_tier is None:
                self._subscriber.release()
            self._subscriber = self._tier = None

    def _turn(self) -> float | None:
        try:
            taken = self.take()
        except CapacityError as error:
            self._report(error)
            return _RETRY_S
        except (QuiverError, OSError) as error:
            # The bucket may be reachable again later. Another query may own the subscriber: this one takes it back
            # only after the interval.
            self._release()
            self._report(error)
            return max(_RETRY_S, self.settings.list_interval_s)
        self._reported = ""
        return 0.0 if taken else None

    def _report(self, error: Exception) -> None:
        if str(error) != self._reported:
            self._reported = str(error)
            _log.warning("waiting for %s: %s", self.settings.listening_addr, error)
