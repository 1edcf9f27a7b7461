"""
The ring: frames in the order of their sequence numbers, from the oldest unconfirmed one to the newest.

::

    removed │ sealed …  sealed │ active        │ spare
            └ confirmed ┘      └ appended here ┘ └ next

One thread appends, another reads and confirms; they share two numbers, `published_fsn` and `acked_fsn`. The appending
thread never waits for the network, only for space: until the other thread has confirmed and trimmed frames.

After a failed sync or write, the ring refuses every operation until it is opened again. After a full disk it does not:
then nothing of the frame was stored.
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
from quiver.invariant import invariant
from quiver.observe import Observer
from quiver.primitives.disk.disk_full import is_full_disk, is_out_of_descriptors, passes, what_is_short
from quiver.primitives.disk.file_system import Buffer, File
from quiver.qwp.format.segment import FRAME_HEAD, SEGMENT_HEADER, SegmentHeader, encode_frame_head
from quiver.qwp.format.watermark import WATERMARK_FSN_OFFSET, WATERMARK_MAGIC
from quiver.qwp.slots.append_times import AppendTimes
from quiver.qwp.slots.segment_files import Segment, SegmentStorage

__all__ = ["Ring", "RingSettings", "SfDurability"]

SfDurability = Literal["memory", "flush", "append"]
_TRIM_INTERVAL_S = 0.1
_SPARE_FROM = 0.75
_SHORTEN_FROM = 0.5
_SHORTEN_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class RingSettings:
    """
    Size and durability.

    Attributes:
        segment_bytes: the size of a segment file.
        bytes_max: the total size of all segments, including the active one and the spare.
        append_deadline_s: how long an append waits for space.
        durability: when frames are durable: on return from an append (`append`), from a flush (`flush`), or never
            guaranteed (`memory`).
    """

    segment_bytes: int
    bytes_max: int
    append_deadline_s: float
    durability: SfDurability = "memory"

    @property
    def payload_bytes_max(self) -> int:
        """The maximum size of a frame in a segment."""
        return self.segment_bytes - SEGMENT_HEADER.size - FRAME_HEAD.size


class Ring:
    """
    The frames of one slot.

    Args:
        settings: size and durability.
        storage: creates and removes segments.
        clock: measures deadlines and stamps segments.
        observer: receives events and metrics.
        segments: the recovered segments, in order; the last one is appended to.
        next_fsn: the number of the next frame.
        confirmed: the highest confirmed number; -1 if there is none.
        next_generation: the number in the next segment's name.
        watermark: the open watermark file, or None.
        why_full: explains why frames are confirmed slowly; used in errors.
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
        self._changed = threading.Condition()  # guards everything below except the bytes after the tail
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

    # ---- state

    @property
    def published_fsn(self) -> int:
        """The number of the newest frame; -1 if there never was one."""
        return self._published

    @property
    def acked_fsn(self) -> int:
        """The highest confirmed number; -1 if there is none."""
        return self._acked

    @property
    def is_drained(self) -> bool:
        """Whether everything is confirmed, and nothing failed."""
        return self._failed is None and self._acked >= self._published

    @property
    def backlog(self) -> int:
        """The number of unconfirmed frames."""
        with self._changed:
            return self._published - self._acked

    @property
    def backlog_bytes(self) -> int:
        """The size of the unconfirmed frames in bytes."""
        with self._changed:
            return sum(segment.payload_bytes_from(self._acked + 1) for segment in self._segments)

    @property
    def oldest_us(self) -> int | None:
        """
        When the oldest unconfirmed frame was appended, microseconds since the epoch; None if all are confirmed.

        For a frame of an earlier process it is the creation time of its segment.
        """
        with self._changed:
            return None if self._acked >= self._published else self._times.time_of(self._acked + 1)

    @property
    def allocated_bytes(self) -> int:
        """The total size of all segments, including the spare."""
        with self._changed:
            return self._allocated()

    def _allocated(self) -> int:
        spare = self._spare.size_bytes if self._spare is not None else 0
        return spare + sum(segment.size_bytes for segment in self._segments)

    # ---- called by the producer

    def append(self, payload: Buffer) -> int:
        """
        Add a frame. Return its number. It survives the death of the process and, with durability `append`, a power
        loss.

        Raises:
            CapacityError: no space became free within the deadline, or the disk is full. Nothing was stored.
            UsageError: the frame is empty, or larger than a segment.
            StoreFailedError: a write or sync failed, now or earlier.
            StoreClosedError: the ring was closed.
        """
        size = memoryview(payload).nbytes
        if not 0 < size <= self.settings.payload_bytes_max:
            raise UsageError(f"the frame has {size} bytes; a segment has space for {self.settings.payload_bytes_max}")
        head = encode_frame_head(payload)
        with self._appending:
            segment = self._with_space(size)
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
        Make every appended frame durable.

        Raises:
            UsageError: the durability is `memory`: full segments were never synced.
            StoreFailedError: a sync failed, now or earlier.
            StoreClosedError: the ring was closed.
        """
        with self._appending:
            self._require_usable()
            if self.settings.durability == "memory":
                raise UsageError("the durability `memory` cannot make frames durable; use `flush` or `append`")
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
        return StoreFailedError(f"{reason}; close and open again")

    def _require_usable(self) -> None:
        if self._closed:
            raise StoreClosedError("the slot was closed")
        if self._failed is not None:
            raise StoreFailedError(f"{self._failed}; close and open again")

    def _with_space(self, payload_bytes: int) -> Segment:
        with self._changed:
            self._require_usable()
            active = self._segments[-1] if self._segments else None
            if active is not None and active.has_space(payload_bytes):
                return active
        if active is not None and self.settings.durability != "memory":
            # Recovery only checks the newest segment's tail: the sealed one must be durable before the next has frames.
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
                has_space = self._allocated() + self.settings.segment_bytes <= self.settings.bytes_max
                if not has_space:
                    left = deadline - self._clock.monotonic()
                    if left <= 0:
                        raise CapacityError(self._full_reason())
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

    def _full_reason(self) -> str:
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
                raise CapacityError(f"{what_is_short(error)}: no space for another segment") from error
            raise self._fail(f"cannot create a segment: {error}") from error

    # ---- called by the sending thread

    def wait_for_frame(self, fsn: int, timeout: float) -> bool:
        """Wait up to *timeout* seconds until the frame *fsn* exists or the ring is closed. Return whether it exists."""
        with self._changed:
            if self._published < fsn and not self._closed:
                self._clock.wait(self._changed, timeout)
            return self._published >= fsn

    def wait_until_confirmed(self, fsn: int, timeout: float) -> bool:
        """Wait up to *timeout* seconds until *fsn* is confirmed. Return whether it is."""
        deadline = self._clock.monotonic() + timeout
        with self._changed:
            while self._acked < fsn and self._failed is None and not self._closed:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    break
                self._clock.wait(self._changed, left)
            return self._acked >= fsn

    def wake(self) -> None:
        """Wake all waiting threads, so that they check their conditions again."""
        with self._changed:
            self._changed.notify_all()

    def read(self, fsn: int) -> Buffer:
        """
        Return the payload of the frame *fsn*, which must be published and not yet trimmed. Only for the confirming
        thread; valid until its next `maintain`.

        Raises:
            UsageError: there is no such frame.
            OSError: a disk error.
        """
        with self._changed:
            index = bisect.bisect_right(self._segments, fsn, key=lambda one: one.base) - 1
            if index < 0 or fsn > self._published:
                raise UsageError(f"frame {fsn} does not exist")
            segment = self._segments[index]
        return segment.read(fsn)

    def acknowledge(self, fsn: int) -> bool:
        """
        Record that everything up to *fsn* is confirmed. Return whether that is new. A number above the newest frame
        counts as the newest.

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
            # The number before the magic: a crash in between leaves an invalid file, not one that contains 0.
            self._watermark.pwrite(self._acked.to_bytes(8, "little", signed=True), WATERMARK_FSN_OFFSET)
            if not self._watermark_stamped:
                self._watermark.pwrite(WATERMARK_MAGIC, 0)
                self._watermark_stamped = True
        except OSError as error:
            # A full disk only causes frames to be sent again after a restart: the next confirmation retries the write.
            if not is_full_disk(error):
                raise self._fail(f"{self._watermark.path}: write failed: {error}") from error

    def maintain(self, *, force: bool = False, provision: bool = True) -> None:
        """
        Trim confirmed frames, and create the next segment before it is needed. On disk at most ten times a second,
        unless a producer waits for space or *force* is set. *provision* is off if nothing will be appended.

        If half of the oldest segment or more has been confirmed for a second, it is replaced by a shorter one; with
        *force* immediately, because it will not be trimmed soon.

        Raises:
            StoreFailedError: a disk error.
        """
        now = self._clock.monotonic()
        with self._changed:
            if self._closed or self._failed is not None:
                return
            rested = self._watermark is None or now - self._trimmed_at >= _TRIM_INTERVAL_S
            due = force or self._waiting > 0 or rested
            # A producer that waits for space is not writing to the newest segment, so that may be removed, too.
            # Otherwise a segment larger than the limit (settings were reduced) would never free space.
            full = self._segments if self._waiting else self._segments[:-1]
            trimmed = [one for one in full if one.next_fsn - 1 <= self._acked] if due else []
        if trimmed:
            self._trim(trimmed)
            self._trimmed_at = now
        if due:
            self._shorten(now, at_once=force)
        if provision:
            self._provision()

    def _trim(self, trimmed: list[Segment]) -> None:
        invariant(
            trimmed[-1].next_fsn - 1 <= self._acked and trimmed[0] is self._segments[0],
            "only the oldest frames are trimmed, after they were confirmed",
        )
        try:
            if self._watermark is not None:
                # The watermark first. A power loss may restore one file but not the next: recovery then knows that
                # the restored one is confirmed, and does not report a gap.
                self._watermark.sync_data()
            with self._changed:
                del self._segments[: len(trimmed)]
            self._storage.remove(trimmed)
        except OSError as error:
            # The names are removed, and only the directory is not synced: a power loss may restore the files.
            if not is_out_of_descriptors(error):
                raise self._fail(f"cannot remove segments: {error}") from error
        with self._changed:
            self._changed.notify_all()
        self._observer.count("quiver.qwp.segments_trimmed_total", len(trimmed))

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
                return  # the copy needs space; the complete segment will be removed later
            raise self._fail(f"{oldest.path}: cannot shorten the segment: {error}") from error
        with self._changed:
            # A ring that was closed meanwhile has released its segments, including this one.
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
            return  # the producer is creating it
        try:
            if self._spare is None:
                spare = self._create()
                with self._changed:
                    self._spare = spare
        except CapacityError:
            self._observer.count("quiver.qwp.spares_missing_total")
        finally:
            self._appending.release()

    # ---- closing

    def close(self, *, remove_all: bool = False) -> None:
        """
        Close all files. With *remove_all*, and if everything is confirmed, remove all segments.

        Idempotent. Appended frames are made durable first, unless the durability is `memory`.

        Raises:
            StoreFailedError: the sync or the removal failed.
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
            self._release(segments, remove_all=remove_all and self.is_drained)

    def _release(self, segments: list[Segment], *, remove_all: bool) -> None:
        try:
            if remove_all:
                invariant(self._acked >= self._published, "a closed slot is removed only if every frame is confirmed")
                if self._watermark is not None:
                    self._watermark.sync_data()
                self._storage.remove(segments)
        except OSError as error:
            # The names are removed, and only the directory is not synced: a power loss may restore the files.
            if not is_out_of_descriptors(error):
                raise self._fail(f"cannot remove segments: {error}") from error
        finally:
            for segment in segments:
                segment.file.close()
            if self._watermark is not None:
                self._watermark.close()
