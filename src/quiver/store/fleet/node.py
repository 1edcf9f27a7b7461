"""
A store as a node of a fleet. The thread of the object tier calls it; see `store/cold/tier.py`.

::

    before a pass      acknowledged positions are read, if they are due
    before an upload   numbers below the segment that were not uploaded get a record, so that the chain has no hole
    before a removal   segments that were not acknowledged get a record, before their objects are removed
    after a pass       the record of the node is written, if it is due

A crash between a record and what follows it: the record is written again, with the same key.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from random import Random

from quiver.errors import CorruptionError, DirectoryInUseError, ObjectNotFoundError, UnknownSubscriberError
from quiver.objects.port import ObjectTier
from quiver.primitives.scan import Frame, as_damage
from quiver.store.cold.location import location_from_list
from quiver.store.context import StoreContext
from quiver.store.fleet.chain_gaps import LostSegment, gaps_between, gone_records, without
from quiver.store.fleet.fleet_acks import judge_ack, own_subscribers, resolve_through
from quiver.store.fleet.node_claim import NodeClaim, in_use
from quiver.store.format.cold_list import ColdSegment
from quiver.store.format.drop_ledger import DROP_ENTRIES_MAX
from quiver.store.format.fleet.acks import ACKS_BYTES_MAX, Acks, decode_acks
from quiver.store.format.fleet.gone import GoneReason, encode_gone
from quiver.store.format.fleet.names import acks_key, gone_key, inbox_folder, parse_inbox_key, shard_of
from quiver.store.format.fleet.node_record import NodeRecord, NodeState
from quiver.store.format.names import QUARANTINE_DIR, parse_segment_name
from quiver.store.removal.drops import DropLedger

__all__ = ["RECORD_INTERVAL_S", "FleetNode"]

RECORD_INTERVAL_S = 600.0
_LEDGER_ENTRIES_MAX = DROP_ENTRIES_MAX // 2
"""With more entries than this, those that are not in the bucket yet leave the ledger all the same."""
_PROBLEM_CHARS_MAX = 400


def _version() -> str:
    try:
        return version_of("arrow-quiver")
    except PackageNotFoundError:
        return "not installed"


class FleetNode:
    """
    One node of a fleet. Called by one thread at a time, except `due_in_s` and `may_forget`.

    Args:
        context: the store.
        ledger: its drop ledger.
        disk_bytes: returns the space that the store uses.
    """

    def __init__(self, context: StoreContext, ledger: DropLedger, *, disk_bytes: Callable[[], int]) -> None:
        settings, clock = context.settings, context.clock
        self._context = context
        self._ledger = ledger
        self._disk_bytes = disk_bytes
        self._name = settings.fleet_name or ""
        self.identity = location_from_list(context.cold.location)[1].rpartition("/")[2]
        self._shard = shard_of(self.identity)
        self._boot = secrets.token_hex(8)
        self._claim = NodeClaim(self.identity, self._boot)
        self._random = Random()  # noqa: S311 - spreads requests, guards nothing
        self._started_ns = clock.now_ns()
        self._record_due_s = self._poll_due_s = clock.monotonic()
        self._etags: dict[str, str | None] = {}
        self._epochs: dict[str, int] = {}
        self._acked = dict.fromkeys(settings.fleet_subscribers, 0)
        # Numbers below this one are in the chain: uploaded, gone, or acknowledged.
        self._closed = 0
        # Records of gone segments in the bucket: their numbers by key.
        self._gone: dict[str, range] = {}
        self._is_first = True
        self._conflict: DirectoryInUseError | None = None
        context.drop_guards.append(self.may_forget)

    def own_subscribers(self) -> None:
        """
        Register the fleet subscribers and take their locks, before the store is open.

        Raises:
            DirectoryInUseError: another process owns one of them.
            CorruptionError: a progress file is damaged, and the policy is `fail`.
            OSError: the disk refused.
        """
        own_subscribers(self._context, tuple(self._acked))

    # ── for the tier ─────────────────────────────────────────────────────────────────────────────────

    def due_in_s(self) -> float:
        """Return in how many seconds `run` has work, although there may be nothing to upload."""
        if self._conflict is not None:
            return math.inf
        due_s = min(self._record_due_s, self._poll_due_s) if len(self._context.cold) else self._record_due_s
        return due_s - self._context.clock.monotonic()

    def stats(self) -> dict[str, object]:
        """Return the current figures."""
        return {
            "name": self._name,
            "next_segment": self._next_segment(),
            "acked": dict(self._acked),
            "conflict": None if self._conflict is None else str(self._conflict),
        }

    def run(self, tier: ObjectTier, *, problem: str | None) -> None:
        """
        Read the acknowledged positions if they are due; in the first pass, look for traces of another store before.

        Args:
            tier: the objects of the fleet.
            problem: why the last pass failed, for the record.

        Raises:
            DirectoryInUseError: another store uses the same identity. Nothing may be uploaded or removed.
            ObjectsUnavailableError: the object store does not answer.
            OSError: the disk refused.
        """
        if self._conflict is not None:
            raise self._conflict
        now_s = self._context.clock.monotonic()
        if self._is_first:
            self._take_stock(tier)
            self._write_record(tier, "running", problem)
            self._record_due_s = now_s + RECORD_INTERVAL_S * self._random.uniform(0.9, 1.0)
        if self._is_first or (now_s >= self._poll_due_s and len(self._context.cold) > 0):
            for name in self._acked:
                self._poll(tier, name)
            self._poll_due_s = now_s + self._context.settings.fleet_ack_poll_s * self._random.uniform(0.9, 1.0)
            self._is_first = False

    def after_pass(self, tier: ObjectTier) -> None:
        """
        Write the record if it is due, and remove records of gone segments that were acknowledged.

        Raises:
            DirectoryInUseError: another store uses the same identity.
            ObjectsUnavailableError: the object store does not answer.
        """
        now_s = self._context.clock.monotonic()
        if now_s >= self._record_due_s:
            self._write_record(tier, "running", None)
            self._record_due_s = now_s + RECORD_INTERVAL_S * self._random.uniform(0.9, 1.0)
        acked = min(self._acked.values())
        spent = [key for key, numbers in self._gone.items() if numbers.stop <= acked]
        if spent:
            tier.delete(spent)
            self._gone = {key: numbers for key, numbers in self._gone.items() if numbers.stop > acked}

    def before_upload(self, tier: ObjectTier, number: int) -> None:
        """
        Close the chain below segment *number*, durably: the next object that is created continues it.

        Raises:
            ObjectsUnavailableError: the object store does not answer.
        """
        start = max(self._closed, min(self._acked.values()))
        cold = self._context.cold
        for gap in gaps_between(start, number, cold.is_verified, lambda: (entry.seq for entry in cold.entries())):
            for part in without(gap, self._gone.values()):
                self._tell(tier, part, self._lost(part))
        self._closed = max(self._closed, number)

    def before_removal(self, tier: ObjectTier, leaving: Sequence[ColdSegment]) -> None:
        """
        Record that the segments *leaving* are gone, durably, unless they were acknowledged.

        Raises:
            ObjectsUnavailableError: the object store does not answer.
        """
        acked, now_ns = min(self._acked.values()), self._now_ns()
        needed = [entry for entry in leaving if entry.seq >= acked and not self._is_gone(entry.seq)]
        if not needed:
            return
        known = {one.number: one for one in self._lost(range(needed[0].seq, needed[-1].seq + 1))}
        run: list[LostSegment] = []
        for entry in needed:
            # Without another reason, an operator has resolved it for all subscribers.
            reason: GoneReason = "damaged" if entry.state == "damaged" else "skipped"
            if run and run[-1].number + 1 != entry.seq:
                self._tell(tier, range(run[0].number, run[-1].number + 1), run)
                run = []
            run.append(known.get(entry.seq) or LostSegment(entry.seq, entry.bundle_count, reason, now_ns))
        self._tell(tier, range(run[0].number, run[-1].number + 1), run)

    def may_forget(self, number: int) -> bool:
        """Return whether the drop ledger need not remember segment *number* for this node."""
        return self._is_gone(number) or number < min(self._acked.values()) or len(self._ledger) > _LEDGER_ENTRIES_MAX

    def _is_gone(self, number: int) -> bool:
        return any(number in numbers for numbers in self._gone.values())

    def leave(self, tier: ObjectTier) -> None:
        """
        Record that the store is being closed, unless another store uses the identity.

        Raises:
            QuiverError: the record could not be written, which has no consequence.
        """
        if self._conflict is None:
            self._write_record(tier, "stopped", None)

    # ── the record ───────────────────────────────────────────────────────────────────────────────────

    def _write_record(self, tier: ObjectTier, state: NodeState, problem: str | None) -> None:
        record = self._record(state, problem)
        try:
            self._claim.write(tier, record, next_number=self._next_number())
        except DirectoryInUseError as conflict:
            self._stop(conflict)
            raise

    def _stop(self, conflict: DirectoryInUseError) -> None:
        self._conflict = conflict
        self._context.observer.count("quiver.fleet.conflicts_total")
        self._context.observer.event("quiver.fleet.conflict", level=logging.ERROR, problem=str(conflict))

    def _record(self, state: NodeState, problem: str | None) -> NodeRecord:
        context = self._context
        waiting = [info for info in context.catalog.local_segments() if not context.cold.is_verified(info.seq)]
        times = [info.ingested_min_ns for info in waiting if info.ingested_min_ns is not None]
        with context.lock:
            oldest_ns = min([*times, *filter(None, [context.sealing.oldest_ns()])], default=None)
        line = None if problem is None else " ".join(problem.split())
        return NodeRecord(
            identity=self.identity,
            name=self._name,
            boot=self._boot,
            state=state,
            version=_version(),
            written_at_ns=self._now_ns(),
            started_at_ns=max(0, self._started_ns),
            next_segment=self._next_segment(),
            waiting_segments=len(waiting),
            waiting_bytes=sum(info.size_bytes for info in waiting),
            disk_bytes=self._disk_bytes(),
            oldest_waiting_ns=oldest_ns,
            disk_cap_bytes=context.settings.size_cap_bytes,
            disk_free_bytes=self._free_bytes(),
            problem=None
            if line is None
            else "".join(one if one.isprintable() else "?" for one in line)[:_PROBLEM_CHARS_MAX],
            subscribers=tuple(self._acked),
            labels=dict(context.settings.fleet_labels),
        )

    def _free_bytes(self) -> int | None:
        try:
            return self._context.fs.free_bytes(self._context.path)
        except OSError:
            return None

    def _now_ns(self) -> int:
        return max(0, self._context.clock.now_ns())

    def _next_number(self) -> int:
        with self._context.lock:
            return self._context.sealing.next_seq

    def _next_segment(self) -> int:
        """Return the position after the last number that is certainly in the chain."""
        verified = (entry.seq + 1 for entry in self._context.cold.entries() if entry.state == "verified")
        return max(self._closed, min(self._acked.values()), *verified)

    # ── acknowledged positions ───────────────────────────────────────────────────────────────────────

    def _poll(self, tier: ObjectTier, name: str) -> None:
        key = acks_key(name, self._shard)
        self._context.observer.count("quiver.fleet.polls_total", subscriber=name)
        try:
            etag = tier.head(key).etag
            if etag is not None and etag == self._etags.get(name):
                return
            data = tier.get(key, size_max=ACKS_BYTES_MAX)
        except ObjectNotFoundError:
            return  # nothing is acknowledged yet
        answer = decode_acks(memoryview(data))
        if isinstance(answer, Frame):
            self._accept(tier, name, answer.value, etag)
            return
        damage = as_damage(answer, len(data))
        self._refuse(name, "damaged", str(CorruptionError(key, damage.offset, damage.reason)))
        self._etags[name] = etag

    def _accept(self, tier: ObjectTier, name: str, acks: Acks, etag: str | None) -> None:
        found = acks.find(self.identity)
        if acks.epoch < self._epochs.get(name, 0):
            reason = f"epoch {acks.epoch} is below {self._epochs[name]}: a reader that was replaced wrote it"
            self._refuse(name, "epoch", reason)
            return
        self._epochs[name] = acks.epoch
        if found is None or found.position <= self._acked[name]:
            self._etags[name] = etag
            return
        verdict = judge_ack(self._context, found)
        if verdict.kind == "accept":
            try:
                bundles = resolve_through(self._context, name, found.position)
            except UnknownSubscriberError as error:
                self._refuse(name, "unregistered", str(error))
                return
            self._acked[name] = found.position
            self._etags[name] = etag
            self._context.observer.event(
                "quiver.fleet.ack", level=logging.DEBUG, subscriber=name, position=found.position, bundles=bundles
            )
            return
        self._refuse(name, verdict.kind, verdict.reason)
        if verdict.kind == "other":
            conflict = in_use(self.identity, f"another store: {verdict.reason}")
            self._write_record(tier, "conflict", verdict.reason)
            self._stop(conflict)
            raise conflict

    def _refuse(self, name: str, reason: str, problem: str) -> None:
        self._context.observer.count("quiver.fleet.refused_acks_total", subscriber=name, reason=reason)
        self._context.observer.event("quiver.fleet.refused", level=logging.WARNING, subscriber=name, problem=problem)

    # ── gone segments ────────────────────────────────────────────────────────────────────────────────

    def _lost(self, gap: range) -> list[LostSegment]:
        """Return the segments with numbers of *gap* that were dropped or quarantined, ascending."""
        context = self._context
        with context.maintenance:
            found = {entry.seq: LostSegment.of(entry) for entry in self._ledger.entries if entry.seq in gap}
        directory = f"{context.path}/{QUARANTINE_DIR}"
        names = context.fs.list_dir(directory) if context.fs.exists(directory) else []
        for name in names:
            number = parse_segment_name(f"{name.partition('.')[0]}.qseg")
            if number is not None and number in gap and number not in found:
                entry = context.cold.get(number)
                bundles = None if entry is None else entry.bundle_count
                found[number] = LostSegment(number, bundles, "damaged", self._now_ns())
        return [found[number] for number in sorted(found)]

    def _tell(self, tier: ObjectTier, gap: range, lost: Sequence[LostSegment]) -> None:
        for gone in gone_records(gap, lost, now_ns=self._now_ns()):
            key = gone_key(self.identity, gone.first, gone.last)
            tier.put(key, encode_gone(gone))
            self._gone = {**self._gone, key: range(gone.first, gone.last + 1)}
            if gone.reason != "unused":
                self._context.observer.count(
                    "quiver.fleet.gone_segments_total", gone.last - gone.first + 1, reason=gone.reason
                )
            self._context.observer.event(
                "quiver.fleet.gone", level=logging.WARNING, first=gone.first, last=gone.last, reason=gone.reason
            )

    def _take_stock(self, tier: ObjectTier) -> None:
        """
        List this node's objects: records of gone segments, to be removed later.

        Raises:
            DirectoryInUseError: there is a segment that this store did not upload.
            ObjectsUnavailableError: the object store does not answer.
        """
        for info in tier.list_below(f"{inbox_folder(self.identity)}/segments"):
            found = parse_inbox_key(info.key, info.size_bytes)
            if found is None:
                continue
            one = found[1]
            if one.crc32 is None:
                self._gone[info.key] = range(one.first, one.last + 1)
                continue
            entry = self._context.cold.get(one.last)
            if entry is None or entry.crc32 != one.crc32:
                conflict = in_use(self.identity, f"another store, which uploaded {info.key}")
                self._stop(conflict)
                raise conflict
