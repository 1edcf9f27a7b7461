"""
Delivers bundles to the subscribers of this process before their segment is written.

::

    publish     the open segment gets its number durably: `format/early_progress`      from here on it is delivered
    arrive      a subscriber that finds nothing sealed takes its bundles from memory
    save        what was resolved of them is durable                                   with the progress files
    drop        a closed segment that all have resolved is never written               the log's cursor passes it

A crash at any point: the log is replayed into segments with the numbers that were published, bundle by bundle in the
same order, and what was saved stays resolved. New bundles then get numbers that were never published, because a
power loss may have removed the end of the log after it was delivered.

A segment is written as always if some subscriber is not owned by this process, or has not resolved all of it shortly
after it was closed; if a receiver has not recorded its requests (`receivers/request_window.py`); or if it has bundles
of an earlier run, whose requests may be recorded nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from quiver.bundle import Bundle
from quiver.primitives.disk.atomic import remove_durably, replace_file
from quiver.primitives.disk.disk_full import passes
from quiver.store.context import StoreContext
from quiver.store.format.early_progress import (
    EARLY_ENTRIES_MAX,
    EarlyProgress,
    UnsealedSegment,
    encode_early_progress,
)
from quiver.store.format.names import EARLY_PROGRESS
from quiver.store.sealing.schedule import Pending
from quiver.store.segment.log_backed import LogBackedMessage
from quiver.store.segment.unsealed import UnsealedBundles
from quiver.store.subscribers.queue import DeliveryQueue, Place
from quiver.store.wal.reread import LogReader

__all__ = ["EarlyDelivery"]

WAIT_S_MAX = 1.0
"""How long a closed segment waits for subscribers that have not resolved all of it."""

LISTED_MAX = 64
"""With so many published numbers, progress is saved, so that those of written segments are not listed any more."""


class EarlyDelivery:
    """
    The unsealed segments of a store whose bundles are delivered. Thread-safe.

    Args:
        context: the store.
        next_place: returns the log position and the sequence number of the next bundle; called under the store's lock.
        found: the early progress that recovery found.
        is_enabled: deliver new bundles. Otherwise only what recovery found is kept until it is sealed.
    """

    def __init__(
        self,
        context: StoreContext,
        next_place: Callable[[], tuple[int, int]],
        found: EarlyProgress,
        *,
        is_enabled: bool,
    ) -> None:
        settings = context.settings
        self._context = context
        self._next_place = next_place
        self._is_enabled = is_enabled
        self._is_logged = settings.durability == "wal"
        # Segments that are kept although every subscriber has finished them must be written.
        self._may_drop = settings.steady_state_headroom_bytes == 0 and settings.cold_objects is None
        self._written = found
        # Requests of an earlier run may be known only by its bundles.
        self._sequence_from = next_place()[1]
        # Numbers that neither a file nor the floor has: this file reserves them.
        self._has_unused_numbers = bool(found.segments)
        self._listed = {segment.seq: segment for segment in found.segments}
        self._segments = context.subscribers.table.segments
        self._load_sealed = context.subscribers.claims.load
        self._load_sealed_run = context.subscribers.claims.load_run
        context.sealing.load_from_log = self._load_from_log

    # ── publishing ───────────────────────────────────────────────────────────────────────────────────

    @property
    def is_published(self) -> bool:
        """Whether `publish` has nothing to do, until a subscriber is registered or a segment is closed."""
        sealing = self._context.sealing
        if not self._is_enabled or sealing.next_seq <= sealing.delivered_through:
            return True
        # Memory of segments that are not delivered is reused, and no file lists them.
        return self._is_logged and not self._context.subscribers.unsealed.is_wanted()

    def publish(self) -> None:
        """
        Deliver the bundles of the open segment from now on, if they are not delivered yet and this process has
        subscribers.

        Raises:
            OSError: the disk refused; the next call tries again, and until then bundles are delivered when sealed.
        """
        context, sealing = self._context, self._context.sealing
        if self.is_published:
            return
        if self._lists_many():
            # Maintenance saves progress, but a program may only call `seal`, or many segments may be sealed meanwhile.
            context.subscribers.save()
            self.save()
            if self._lists_many():
                return  # so many subscribers get the bundles when they are sealed
        with context.subscribers.table.files_lock:
            with context.lock:
                unsealed = sealing.unsealed
                position, sequence = self._next_place()
                first = sealing.open.sequence_first
                if first is not None:
                    position, sequence = sealing.open.wal_position_start or 0, first
            if self._is_logged:
                self._listed[unsealed.seq] = UnsealedSegment(unsealed.seq, position, sequence)
                self._write(self._content())
            else:
                context.catalog.keep_floor(unsealed.seq + 1)
            # Crash before: the number may be used again, which is harmless: nothing was delivered under it.
            with context.lock:
                is_open = sealing.unsealed is unsealed
                if is_open:
                    sealing.delivered_through = unsealed.seq
            with context.subscribers.table.condition:
                if is_open:
                    self._segments.unsealed[unsealed.seq] = unsealed
                context.subscribers.table.condition.notify_all()

    def _lists_many(self) -> bool:
        listed = len(self._listed)
        return listed >= LISTED_MAX or (listed + 1) * len(self._context.subscribers.table.records) > EARLY_ENTRIES_MAX

    def restore(self, dropped: Mapping[int, int]) -> None:
        """
        After the replay: take over what recovery found about segments that are sealed or in memory now.

        *dropped* are the numbers of bundles of segments that policy dropped. Their resolved bundles were not lost.
        """
        sealing, table = self._context.sealing, self._context.subscribers.table
        pending = sealing.pending
        in_memory = {one.seq: one for one in (sealing.unsealed, *([] if pending is None else [pending.unsealed]))}
        renumbered: dict[int, int] = {}
        for listed in self._written.segments:
            seq = self._number_now(listed, in_memory)
            if seq is not None:
                renumbered[listed.seq] = seq
            elif listed.seq in dropped:
                seq = listed.seq
            if seq != listed.seq:
                del self._listed[listed.seq]
            if seq is not None:
                self._listed[seq] = replace(listed, seq=seq)
        with table.condition:
            for seq in self._listed.keys() & in_memory.keys():
                self._segments.unsealed[seq] = in_memory[seq]
            for (subscriber, written), (_, bitmap) in self._written.resolved.items():
                seq = renumbered.get(written, written)
                if seq in self._listed and subscriber not in table.restarted:
                    segment = self._segments.find(seq)
                    count = dropped[seq] if segment is None else segment.bundle_count
                    table.early.setdefault(subscriber, {})[seq] = count, bitmap & (1 << count) - 1
            for record in table.records.values():
                record.apply_early()

    def _number_now(self, listed: UnsealedSegment, in_memory: Mapping[int, UnsealedBundles]) -> int | None:
        """
        Return the number of the segment that has the bundles that were delivered as *listed*, None if there is none.

        It is another number if a drop was taken back: a process that has read the ledger considers the first dropped.
        """
        infos = self._context.catalog.segments()
        numbers = (listed.seq, *in_memory, *(info.seq for info in infos))
        return next((seq for seq in numbers if self._has_same_bundles(listed, seq, in_memory.get(seq))), None)

    def _has_same_bundles(self, listed: UnsealedSegment, seq: int, unsealed: UnsealedBundles | None) -> bool:
        """Return whether segment *seq* has the bundles that were delivered as *listed*."""
        wanted = listed.wal_position, listed.sequence
        if unsealed is not None:
            return unsealed.place == wanted
        info = self._context.catalog.get(seq)
        return (
            info is not None
            and (info.wal_position_start, info.sequence_first) == wanted
            and (info.sequence_last or 0) - listed.sequence + 1 == info.bundle_count
        )

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────

    def arrive(self, queue: DeliveryQueue) -> None:
        """Add the bundles that are new to *queue*. Called under the condition of the subscribers."""
        for unsealed in self._segments.unsealed.values():
            queue.arrived(unsealed)

    def load(self, place: Place) -> Bundle:
        """Return one bundle, sealed or not; see `Catalog.bundle`."""
        seq, index = place
        unsealed = self._segments.unsealed.get(seq)
        if not isinstance(unsealed, UnsealedBundles):
            return self._load_sealed(place)
        try:
            return unsealed.bundle(index)
        except OSError:
            if seq not in self._context.catalog:
                raise
            return self._load_sealed(place)  # it was sealed meanwhile, and the log has forgotten it

    def load_run(self, segment: int, first: int, end: int) -> Iterator[Bundle]:
        """Return bundles of one segment, sealed or not, each read when it is due; see `Catalog.bundles`."""
        if segment not in self._segments.unsealed:
            return self._load_sealed_run(segment, first, end)
        return (self.load((segment, index)) for index in range(first, end))

    def _load_from_log(self, message: LogBackedMessage) -> Any:
        context = self._context
        reader = LogReader(context.fs)
        with context.lock:  # a rotation would rename the file between its name and its opening
            reader.open(context.wal.spans(message.position, message.position + message.entry_bytes))
        try:
            return reader.entry(message.position, message.entry_bytes)[message.start : message.start + message.nbytes]
        finally:
            reader.close()

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────

    def save(self) -> None:
        """
        Write what was resolved of unsealed bundles, durable on return.

        The progress files were written before: they have what was resolved of sealed segments.

        Raises:
            OSError: the disk refused; the next call writes it.
            StoreFailedError: the log could not be synced.
        """
        if not self._listed and not self._written.segments:
            return
        table = self._context.subscribers.table
        with table.files_lock:
            for record in table.listed():
                if record.file is None and any(seq in self._segments for seq in table.early.get(record.id, ())):
                    record.edit(lambda _state: True)  # if another process owns it: next time
            self.save_locked()

    def save_locked(self, without: str | None = None) -> None:
        """Do the same as `save`, called under `files_lock`; leave out the subscriber *without*, which is removed."""
        table = self._context.subscribers.table
        with table.condition:
            kept = set(self._segments.unsealed).union(*table.early.values())
            self._listed = {
                seq: segment
                for seq, segment in self._listed.items()
                if seq in kept or seq == self._context.sealing.next_seq
            }
            content = self._content(without)
        if content != self._written:
            self._write(content)

    def end(self) -> None:
        """
        Forget the published numbers when the store is closed and no bundle is unsealed.

        Raises:
            OSError: the disk refused. The numbers are not used again.
        """
        table = self._context.subscribers.table
        with table.files_lock:
            if self._written.segments and not any(one.bundle_count for one in self._segments.unsealed.values()):
                if self._has_unused_numbers:
                    self._context.catalog.keep_floor(self._context.sealing.next_seq)
                if not any(table.early.values()):
                    self._listed.clear()
                    self._write(EarlyProgress())

    def _content(self, without: str | None = None) -> EarlyProgress:
        table = self._context.subscribers.table
        resolved: dict[tuple[str, int], tuple[int, int]] = {}
        for record in table.records.values():
            for seq in self._listed:
                segment = self._segments.find(seq)
                if segment is not None and record.id != without:
                    count = segment.bundle_count
                    bits = record.state.bitmap_of(seq, count)
                    if bits:
                        resolved[record.id, seq] = count, bits
        return EarlyProgress(tuple(self._listed[seq] for seq in sorted(self._listed)), resolved)

    def _write(self, content: EarlyProgress) -> None:
        context = self._context
        if content.resolved:
            # A power loss must not remove a bundle that is recorded as resolved: another would get its index.
            context.wal.sync_through(context.wal.written)
        path = f"{context.path}/{EARLY_PROGRESS}"
        if content.segments:
            replace_file(context.fs, path, encode_early_progress(content))
        else:
            remove_durably(context.fs, [path])
        self._written = content

    # ── segments that are never written ──────────────────────────────────────────────────────────────

    def may_wait(self, pending: Pending) -> bool:
        """Return whether *pending* should wait for subscribers that may still resolve all of it."""
        context, sealing = self._context, self._context.sealing
        if pending.seq > sealing.delivered_through or sealing.full or sealing.is_urgent or not self._may_drop:
            return False
        if self._is_of_earlier_run(pending) or context.clock.monotonic() - pending.closed_s >= WAIT_S_MAX:
            return False
        return context.subscribers.unsealed.are_all_owned()

    def _is_of_earlier_run(self, pending: Pending) -> bool:
        return (pending.sealed.sequence_first or 0) < self._sequence_from

    def drop(self, pending: Pending) -> bool:
        """
        Remove *pending* without writing it if every subscriber has resolved it; return whether it was removed.

        On return the log would not bring it back, and its number is not used again.

        Raises:
            StoreFailedError: the log could not be synced.
        """
        context = self._context
        if pending.seq > context.sealing.delivered_through or not self._may_drop or self._is_of_earlier_run(pending):
            return False
        if not context.subscribers.unsealed.is_resolved(pending.unsealed):
            return False
        position = pending.sealed.wal_position_end or 0
        try:
            context.subscribers.refresh()
            if not context.subscribers.unsealed.is_resolved(pending.unsealed):
                return False  # another process has created a subscriber
            if self._is_logged:
                context.wal.sync_through(context.wal.written)
            if not context.may_remove(pending.sealed.sequence_first or 0, pending.sequence_last):
                return False  # a receiver has not recorded all of its requests yet
            if self._is_logged:
                # Crash before: the log brings the bundles back, resolved as far as that was saved.
                context.wal.advance_cursor(position)
            else:
                context.catalog.keep_floor(pending.seq + 1)
        except OSError as error:
            if not passes(error):
                raise
            context.observer.event("quiver.segment.drop", level=logging.WARNING, problem=str(error))
            return False
        self._has_unused_numbers = True
        context.subscribers.unsealed.remove_resolved(pending.seq)
        return True
