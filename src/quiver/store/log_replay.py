"""Replays the log after a crash: its entries join the open segment again, in order."""

from __future__ import annotations

from quiver.errors import CorruptionError, InvalidBundleError
from quiver.store import recovery
from quiver.store.context import StoreContext
from quiver.store.encode import SlotEncoder, write_slots
from quiver.store.sealing.boundaries import Boundaries
from quiver.store.sealing.sealer import Sealer
from quiver.store.segment.accumulator import EncodedRun
from quiver.store.wal.replay import decode_slots
from quiver.store.wal.scan import ScannedEntry

__all__ = ["LogReplay"]


class LogReplay:
    """
    One replay. Used by one thread, before the store is open.

    Args:
        context: the store.
        encoder: takes over entries as they are in the log.
        sealer: writes segments that are full.
        boundaries: where segments began when their bundles were delivered: they begin there again.
    """

    def __init__(self, context: StoreContext, encoder: SlotEncoder, sealer: Sealer, boundaries: Boundaries) -> None:
        self._context = context
        self._sealing = context.sealing
        self._encoder = encoder
        self._sealer = sealer
        self._boundaries = boundaries

    def run(self, found: recovery.LogFound) -> None:
        """
        Add the entries that no segment contains to the open segment.

        Raises:
            OSError: a log file cannot be read.
            StoreFailedError: the disk failed.
        """
        for number, (path, entries) in enumerate(found.replay):
            if number == 0:
                # Segments contain everything up to here: it must not be replayed again when they are deleted.
                self._sealer.forget_log(entries[0].start)
            at = 0
            while at < len(entries):
                run = self._encoder.encode_run(entries, at)
                if run is None:
                    self._add(path, entries[at])
                else:
                    self._add_run(run)
                at += 1 if run is None else len(run)
        if self._boundaries.last is not None:
            # New bundles get numbers that were never published: a power loss may have removed bundles from the end of
            # the log after they were delivered.
            self._begin_segment(self._boundaries.last + 1)
        if not found.replay:
            # Segments contain everything in the log: record that, or the next open would scan the log again.
            self._sealer.forget_log(found.position_end)

    def _add(self, path: str, scanned: ScannedEntry) -> None:
        entry = scanned.entry
        context, sealing = self._context, self._sealing
        self._begin_at(scanned.start, entry.sequence)
        encoded = self._encoder.encode_logged(entry.slots)
        copied = encoded is None
        if encoded is None:
            try:
                batches = decode_slots(entry, path=path, position=scanned.start)
                encoded = self._encoder.encode(batches, {slot.slot: slot.fingerprint for slot in entry.slots})
            except (CorruptionError, InvalidBundleError) as error:
                recovery.keep_undecodable(
                    context.fs, context.path, scanned, observer=context.observer, reason=str(error)
                )
                return
        self._seal_if_full()
        with context.lock:
            if copied:
                write_slots(encoded.slots, sealing.arena.take(encoded.nbytes), 0)
            sealing.add(encoded, entry.ingested_at_ns, entry.sequence, scanned.start, scanned.end)

    def _add_run(self, run: EncodedRun) -> None:
        added = 0
        while added < len(run):
            self._begin_at(run.start_of(added), run.sequences[added])
            self._seal_if_full()
            with self._context.lock:
                added = self._sealing.add_run(run, added, self._boundaries.next_in(run, added))

    def _begin_at(self, position: int, sequence: int) -> None:
        """Begin the segment that began with the bundle at *position*, if there is one."""
        sealing, last = self._sealing, self._boundaries.last
        if last is None:
            return
        seq = self._boundaries.take(position, sequence)
        if seq is not None and self._begin_segment(seq):
            sealing.delivered_through = seq
        elif seq is not None or (sealing.open.is_empty and sealing.next_seq <= last):
            self._begin_segment(last + 1)  # not under a number that other bundles had

    def _begin_segment(self, seq: int) -> bool:
        """Begin a segment with the number *seq*; return False if that number is used already."""
        sealing = self._sealing
        if not sealing.open.is_empty:
            with self._context.lock:
                sealing.full = not sealing.swap()
            if sealing.full:
                self._seal_if_full()
        if not sealing.open.is_empty or sealing.next_seq > seq:
            return False
        sealing.renumber(seq)
        return True

    def _seal_if_full(self) -> None:
        sealing = self._sealing
        if sealing.full:
            with self._context.lock:
                sealing.swap()
        if sealing.pending is not None:
            self._sealer.seal_pending()
