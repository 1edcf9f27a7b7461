"""
The ring: frames in the order of their sequence numbers, from the oldest that is not confirmed to the newest.

::

    removed │ sealed …  sealed │ active        │ spare
            └ confirmed ┘      └ appended here ┘ └ next

One thread appends, another reads and confirms; they share two numbers, `published_fsn` and `acked_fsn`. The appending
thread never waits for the wire, only for room: for the other one to confirm and trim.

A failed sync or write makes the ring refuse everything until it is opened again. A full disk does not: then nothing of
the frame was kept.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from quiver.clock import Clock
from quiver.errors import CapacityError, StoreClosedError, StoreFailedError, UsageError
from quiver.observe import Observer
from quiver.primitives.disk.disk_full import is_full_disk, is_out_of_descriptors, passes, what_is_short
from quiver.primitives.disk.file_system import Buffer, File
from quiver.qwp.format.segment import FRAME_HEAD, SEGMENT_HEADER, SegmentHeader, encode_frame_head
from quiver.qwp.format.watermark import WATERMARK_FSN_OFFSET, WATERMARK_MAGIC
from quiver.qwp.slots.append_times import AppendTimes
from quiver.qwp.slots.segment_files import Segment, SegmentStorage

__all__ = ["Durability", "Ring", "RingSettings"]

Durability = Literal["memory", "flush", "append"]
_TRIM_INTERVAL_S = 0.1
_SPARE_FROM = 0.75
_SHORTEN_FROM = 0.5
_SHORTEN_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class RingSettings:
    """
    How large, and how durable.

    Attributes:
        segment_bytes: of one segment file.
        bytes_max: of all segments together, the active one and the spare included.
        append_deadline_s: how long an append waits for room.
        durability: what an append (`append`) or a flush (`flush`) has made durable on return; `memory`: nothing.
    """

    segment_bytes: int
    bytes_max: int
    append_deadline_s: float
    durability: Durability = "memory"

    @property
    def payload_bytes_max(self) -> int:
        """The largest frame that fits into a segment."""
        return self.segment_bytes - SEGMENT_HEADER.size - FRAME_HEAD.size


class Ring:
    """
    The frames of one slot.

    Args:
        settings: how large, and how durable.
        storage: where segments are made and removed.
        clock: measures deadlines and stamps segments.
        observer: is told what happens.
        segments: what was recovered, in order; the last one is appended to.
        next_fsn: the number of the next frame.
        confirmed: the highest number that the server confirmed, -1 for none.
        next_generation: the number in the next segment's name.
        watermark: the open watermark file, or None.
        why_full: says in words why frames leave slowly; used in errors.
    """

    def __init__(
        self,
        settings: RingSettings,
        storage: SegmentStorage,
        *,
        clock: Clock,
        observer: Observer,
        segments: list[Segment] | None = None,
        next_fsn: int = 0,
        confirmed: int = -1,
        next_generation: int = 0,
        watermark: File | None = None,
        why_full: Callable[[], str] = lambda: "the server confirms slowly",
    ) -> None:
        self.settings = settings
        self.why_full = why_full
        self.stalls = 0
        self._storage = storage
        self._clock = clock
        self._observer = observer
        self._changed = threading.Condition()  # guards everything below but the bytes behind the tail
        self._appending = threading.Lock()  # one writer at a time
        self._segments = segments or []
        self._spare: Segment | None = None
        self._published = next_fsn - 1
        self._acked = confirmed
        self._generation = next_generation
        self._watermark = watermark
        self._watermark_stamped = False
        self._watermark_written = -1
        self._failed: str | None = None
        self._closed = False
        self._waiting = 0
        self._trimmed_at = clock.monotonic()
        self._times = AppendTimes((segment.base, segment.header.created_us) for segment in self._segments)
        self._long_since: tuple[Segment, float] | None = None  # the oldest segment, mostly confirmed, and since when

    # ---- what is known

    @property
    def published_fsn(self) -> int:
        """The number of the newest frame, -1 when there never was one."""
        return self._published

    @property
    def acked_fsn(self) -> int:
        """The highest number that the server has confirmed, -1 for none."""
        return self._acked

    @property
    def is_drained(self) -> bool:
        """Say whether everything is confirmed, and nothing failed."""
        return self._failed is None and self._acked >= self._published

    @property
    def backlog(self) -> int:
        """Frames that are not confirmed."""
        with self._changed:
            return self._published - self._acked

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the frames that are not confirmed."""
        with self._changed:
            return sum(segment.payload_bytes_from(self._acked + 1) for segment in self._segments)

    @property
    def oldest_us(self) -> int | None:
        """
        When the oldest frame that is not confirmed was appended, microseconds since the epoch; None when there is none.

        Of a frame that an earlier process appended, when its segment was made.
        """
        with self._changed:
            return None if self._acked >= self._published else self._times.time_of(self._acked + 1)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all segments together, the spare included."""
        with self._changed:
            return self._allocated()

    def _allocated(self) -> int:
        spare = self._spare.size_bytes if self._spare is not None else 0
        return spare + sum(segment.size_bytes for segment in self._segments)

    # ---- the producer's side

    def append(self, payload: Buffer) -> int:
        """
        Add a frame; return its number. It survives the death of the process; with durability `append`, of the power.

        Raises:
            CapacityError: there was no room within the deadline, or the disk is full. Nothing was kept.
            UsageError: the frame is larger than a segment, or empty.
            StoreFailedError: a write or sync failed, now or earlier.
            StoreClosedError: the ring was closed.
        """
        size = memoryview(payload).nbytes
        if not 0 < size <= self.settings.payload_bytes_max:
            raise UsageError(f"a frame of {size} bytes; a segment has room for {self.settings.payload_bytes_max}")
        head = encode_frame_head(payload)
        with self._appending:
            segment = self._with_room(size)
            try:
                end = segment.write(head, payload, size)
            except OSError as error:
                raise self._undo(segment, size, error) from error
            if self.settings.durability == "append":
                self._sync(segment)
            with self._changed:
                segment.publish(end)
                self._published += 1
                is_oldest = self._acked + 1 == self._published
                self._times.add(self._published, self._clock.now_ns() // 1000, is_oldest=is_oldest)
                self._changed.notify_all()
                return self._published

    def sync(self) -> None:
        """
        Make every frame that was appended durable.

        Raises:
            UsageError: the durability is `memory`: full segments were never synced.
            StoreFailedError: that failed, now or earlier.
            StoreClosedError: the ring was closed.
        """
        with self._appending:
            self._require_usable()
            if self.settings.durability == "memory":
                raise UsageError("with the durability `memory` nothing is made durable")
            with self._changed:
                segments = self._segments[-1:]
            for segment in segments:
                self._sync(segment)

    def _sync(self, segment: Segment) -> None:
        try:
            segment.sync()
        except OSError as error:
            raise self._fail(f"{segment.path}: sync failed: {error}") from error

    def _undo(self, segment: Segment, size: int, error: OSError) -> CapacityError | StoreFailedError:
        if not is_full_disk(error):
            return self._fail(f"{segment.path}: write failed: {error}")
        try:
            segment.erase(size)
        except OSError as second:
            return self._fail(f"{segment.path}: write failed: {second}")
        return CapacityError(f"the disk of {segment.path} is full")

    def _fail(self, reason: str) -> StoreFailedError:
        with self._changed:
            self._failed = self._failed or reason
            self._changed.notify_all()
        self._observer.event("qwp.slot_failed", level=logging.ERROR, reason=reason)
        return StoreFailedError(f"{reason}; close, open again")

    def _require_usable(self) -> None:
        if self._closed:
            raise StoreClosedError("the slot was closed")
        if self._failed is not None:
            raise StoreFailedError(f"{self._failed}; close, open again")

    def _with_room(self, payload_bytes: int) -> Segment:
        with self._changed:
            self._require_usable()
            active = self._segments[-1] if self._segments else None
            if active is not None and active.has_room(payload_bytes):
                return active
        if active is not None and self.settings.durability != "memory":
            # Once the next segment has frames nobody looks back: what is sealed must be durable by then.
            self._sync(active)
        fresh = self._take_spare()
        try:
            fresh.rebase(self._published + 1)
        except OSError as error:
            with self._changed:
                self._spare = fresh
            if is_full_disk(error):
                raise CapacityError(f"the disk of {fresh.path} is full") from error
            raise self._fail(f"{fresh.path}: write failed: {error}") from error
        with self._changed:
            self._segments.append(fresh)
        return fresh

    def _take_spare(self) -> Segment:
        deadline = self._clock.monotonic() + self.settings.append_deadline_s
        stalled = False
        while True:
            with self._changed:
                self._require_usable()
                if self._spare is not None:
                    spare, self._spare = self._spare, None
                    return spare
                has_room = self._allocated() + self.settings.segment_bytes <= self.settings.bytes_max
                if not has_room:
                    left = deadline - self._clock.monotonic()
                    if left <= 0:
                        raise CapacityError(self._what_is_full())
                    if not stalled:
                        self.stalls += 1
                        stalled = True
                        self._observer.count("quiver.qwp.backpressure_stalls_total")
                    self._waiting += 1
                    try:
                        self._clock.wait(self._changed, left)
                    finally:
                        self._waiting -= 1
                    continue
            return self._create()

    def _what_is_full(self) -> str:
        settings = self.settings
        return (
            f"sf_max_total_bytes: {self._allocated()} of {settings.bytes_max} bytes are allocated in segments of "
            f"{settings.segment_bytes}, {self._published - self._acked} frames are not confirmed; {self.why_full()}"
        )

    def _create(self) -> Segment:
        header = SegmentHeader(self._published + 1, self._clock.now_ns() // 1000)
        generation, self._generation = self._generation, self._generation + 1
        try:
            return self._storage.create(generation, header, self.settings.segment_bytes)
        except OSError as error:
            if passes(error):
                raise CapacityError(f"{what_is_short(error)}: no room for another segment") from error
            raise self._fail(f"a segment could not be made: {error}") from error

    # ---- the other side

    def wait_for_frame(self, fsn: int, timeout: float) -> bool:
        """
        Wait until the frame *fsn* is there, the ring is closed, or *timeout* has passed; say
        whether it is there.
        """
        with self._changed:
            if self._published < fsn and not self._closed:
                self._clock.wait(self._changed, timeout)
            return self._published >= fsn

    def wait_until_confirmed(self, fsn: int, timeout: float) -> bool:
        """Wait until *fsn* is confirmed, or *timeout* has passed; say whether it is."""
        deadline = self._clock.monotonic() + timeout
        with self._changed:
            while self._acked < fsn and self._failed is None and not self._closed:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    break
                self._clock.wait(self._changed, left)
            return self._acked >= fsn

    def wake(self) -> None:
        """End every wait, so that whoever waits looks again."""
        with self._changed:
            self._changed.notify_all()

    def read(self, fsn: int) -> Buffer:
        """
        Return the payload of the frame *fsn*: published, not yet trimmed. For the confirming thread only; valid until
        its next `upkeep`.

        Raises:
            UsageError: there is no such frame.
            OSError: the disk refused.
        """
        with self._changed:
            index = bisect.bisect_right(self._segments, fsn, key=lambda one: one.base) - 1
            if index < 0 or fsn > self._published:
                raise UsageError(f"there is no frame {fsn}")
            segment = self._segments[index]
        return segment.read(fsn)

    def acknowledge(self, fsn: int) -> bool:
        """
        Note that everything up to *fsn* is confirmed; say whether that is news. Higher than the newest frame counts as
        the newest.

        Raises:
            StoreFailedError: the watermark could not be written.
        """
        with self._changed:
            fsn = min(fsn, self._published)
            if fsn <= self._acked:
                return False
            self._acked = fsn
            self._times.forget(fsn + 1)
            self._changed.notify_all()
        self._write_watermark()
        return True

    def _write_watermark(self) -> None:
        if self._watermark is None or self._acked < 0:
            return
        try:
            # The number before the magic: a crash in between leaves a file that says nothing, not one that says 0.
            self._watermark.pwrite(self._acked.to_bytes(8, "little", signed=True), WATERMARK_FSN_OFFSET)
            if not self._watermark_stamped:
                self._watermark.pwrite(WATERMARK_MAGIC, 0)
                self._watermark_stamped = True
        except OSError as error:
            # A full disk costs a repetition after the next start, no more: the next confirmation writes it.
            if not is_full_disk(error):
                raise self._fail(f"{self._watermark.path}: write failed: {error}") from error

    def upkeep(self, *, force: bool = False, provision: bool = True) -> None:
        """
        Trim what is confirmed, and make the next segment before it is needed. On disk at most ten times a second,
        except when somebody waits for room or with *force*. *provision* is off where nothing will be appended.

        The oldest segment is made shorter when half of it or more is confirmed and has been for a second; with *force*
        at once: it will not be trimmed soon.

        Raises:
            StoreFailedError: the disk refused.
        """
        now = self._clock.monotonic()
        with self._changed:
            if self._closed or self._failed is not None:
                return
            rested = self._watermark is None or now - self._trimmed_at >= _TRIM_INTERVAL_S
            due = force or self._waiting > 0 or rested
            # Who waits for room does not write to the newest: it may go, too, or one that is larger than all that may
            # be allocated (smaller settings than in an earlier life) would never make room.
            full = self._segments if self._waiting else self._segments[:-1]
            gone = [one for one in full if one.next_fsn - 1 <= self._acked] if due else []
        if gone:
            self._trim(gone)
            self._trimmed_at = now
        if due:
            self._shorten(now, at_once=force)
        if provision:
            self._provision()

    def _trim(self, gone: list[Segment]) -> None:
        try:
            if self._watermark is not None:
                # First what says that they are confirmed. A power loss may keep one of the files and not the next: the
                # one that is back is known to be leftover then, and no gap.
                self._watermark.sync_data()
            with self._changed:
                del self._segments[: len(gone)]
            self._storage.remove(gone)
        except OSError as error:
            # Their names are gone then, and only the directory is not synced: after a power loss they are leftover.
            if not is_out_of_descriptors(error):
                raise self._fail(f"segments could not be removed: {error}") from error
        with self._changed:
            self._changed.notify_all()
        self._observer.count("quiver.qwp.segments_trimmed_total", len(gone))

    def _shorten(self, now: float, *, at_once: bool) -> None:
        with self._changed:
            oldest = self._segments[0] if len(self._segments) > 1 else None
            first = self._acked + 1
        if oldest is None or oldest.bytes_saved(first) < _SHORTEN_FROM * oldest.size_bytes:
            self._long_since = None
            return
        if self._long_since is None or self._long_since[0] is not oldest:
            self._long_since = (oldest, now)
        if not at_once and now - self._long_since[1] < _SHORTEN_AFTER_S:
            return
        self._long_since = None
        try:
            if self._watermark is not None:
                self._watermark.sync_data()  # as before every trim
            shorter = self._storage.shorten(oldest, first)
        except OSError as error:
            if passes(error):
                return  # it needs room for what it keeps; the segment goes as a whole, later
            raise self._fail(f"{oldest.path}: could not be made shorter: {error}") from error
        with self._changed:
            # A ring that was closed meanwhile has let go of its segments, this one among them.
            if self._segments[:1] == [oldest]:
                self._segments[0] = shorter
            else:
                shorter.file.close()
            self._changed.notify_all()
        self._observer.count("quiver.qwp.segments_shortened_total")

    def _provision(self) -> None:
        with self._changed:
            active = self._segments[-1] if self._segments else None
            wanted = (
                self._spare is None
                and active is not None
                and active.tail >= _SPARE_FROM * active.size_bytes
                and self._allocated() + self.settings.segment_bytes <= self.settings.bytes_max
            )
        if not wanted or not self._appending.acquire(blocking=False):
            return  # the producer is at it
        try:
            if self._spare is None:
                spare = self._create()
                with self._changed:
                    self._spare = spare
        except CapacityError:
            self._observer.count("quiver.qwp.spares_missing_total")
        finally:
            self._appending.release()

    # ---- the end

    def close(self, *, remove_all: bool = False) -> None:
        """
        Let go of every file. With *remove_all* and everything confirmed, nothing is left of the segments.

        Idempotent. What was appended is made durable first, unless the durability is `memory`.

        Raises:
            StoreFailedError: that failed.
        """
        if self._closed:
            return
        try:
            if self._failed is None and self.settings.durability != "memory":
                self.sync()
        finally:
            with self._appending, self._changed:
                self._closed = True
                segments, self._segments = self._segments, []
                if self._spare is not None:
                    segments.append(self._spare)
                    self._spare = None
                self._changed.notify_all()
            self._let_go(segments, remove_all=remove_all and self.is_drained)

    def _let_go(self, segments: list[Segment], *, remove_all: bool) -> None:
        try:
            if remove_all:
                if self._watermark is not None:
                    self._watermark.sync_data()
                self._storage.remove(segments)
        except OSError as error:
            # Their names are gone then, and only the directory is not synced: after a power loss they are leftover.
            if not is_out_of_descriptors(error):
                raise self._fail(f"segments could not be removed: {error}") from error
        finally:
            for segment in segments:
                segment.file.close()
            if self._watermark is not None:
                self._watermark.close()
