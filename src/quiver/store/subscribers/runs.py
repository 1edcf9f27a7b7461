"""Runs: consecutive bundles of one segment, claimed, read and acknowledged together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import TracebackType
from typing import Self

from quiver.bundle import Bundle
from quiver.errors import BundleUnavailableError, CorruptionError, UsageError
from quiver.store.format.audit import ranges_of
from quiver.store.subscribers.claims import BundleHandle, Claims
from quiver.store.subscribers.queue import RunClaim
from quiver.store.subscribers.records import SubscriberRecord

__all__ = ["BundleRun"]


class BundleRun:
    """
    Consecutive bundles of one segment, claimed for one subscriber as one.

    A position is the index of a bundle in the segment. Every bundle stays claimed until it is acknowledged, rejected,
    deferred or split off. A run that is garbage collected, or whose `with` block ends, returns the bundles that are not
    decided: they will be delivered again, perhaps in other runs. Thread-safe.
    """

    __slots__ = ("_claim", "_claims", "_record", "_unreadable", "first", "last", "segment")

    def __init__(self, claims: Claims, record: SubscriberRecord, claim: RunClaim) -> None:
        self._claims = claims
        self._record = record
        self._claim = claim
        self._unreadable: tuple[int, ...] = ()
        self.segment = claim.segment
        """The number of the segment."""
        self.first = claim.first
        """The position of the first bundle."""
        self.last = claim.first + claim.count - 1
        """The position of the last bundle."""

    def __len__(self) -> int:
        """Return the number of bundles when the run was claimed."""
        return self._claim.count

    def __iter__(self) -> Iterator[tuple[int, Bundle]]:
        """
        Iterate over position and bundle of all bundles that are not decided, ascending; each is read when it is due.

        If a bundle cannot be read, it leaves the run: it is pending again, after all others, and is listed in
        `unreadable`. A new iteration continues with the others.

        Raises:
            CorruptionError: the bytes on disk are not what was written.
            BundleUnavailableError: the segment is not on disk any more.
            ObjectsUnavailableError: only the object tier has the bundle, and it does not answer; retry, or `nack`.
            OSError: the disk could not be read.
        """
        positions = count(self.first)
        try:
            for start, end in ranges_of(self._claim.left):
                first = self.first + start
                positions = count(first)
                bundles = self._claims.load_run(self.segment, first, self.first + end + 1)
                yield from zip(positions, bundles, strict=False)
        except (CorruptionError, BundleUnavailableError, OSError):
            position = next(positions) - 1  # its position was taken first
            if self._claims.give_back_unreadable_of(self._record, self._claim, position):
                self._unreadable += (position,)
            raise

    @property
    def unreadable(self) -> tuple[int, ...]:
        """The positions of bundles that could not be read. They are not part of the run any more."""
        return self._unreadable

    def ack(self, *, through: int | None = None) -> None:
        """
        Acknowledge the bundles that are not decided: all, or those up to the position *through*, inclusive.

        Durable after the next maintenance pass. Repeating it has no effect, and neither has acknowledging bundles that
        policy dropped meanwhile.

        Raises:
            UsageError: *through* is not a position of the run.
            BundleUnavailableError: the run was rejected, deferred or returned before.
            StoreClosedError: the store is closed; the bundles will be delivered again.
        """
        count = self._claim.count if through is None else self._offset(through) + 1
        self._claims.settle_run(self._record, self._claim, (1 << count) - 1, "acked")

    def nack(self, delay: float = 0.0, *, position: int | None = None) -> None:
        """
        Return the bundles that are not decided, or the one at *position*, to be delivered again after *delay* seconds.

        Other bundles are delivered meanwhile.

        Raises:
            UsageError: *delay* is negative or not a number, or *position* is not one of the run.
            BundleUnavailableError: the run was acknowledged, rejected or returned before.
            StoreClosedError: the store is closed; the bundles will be delivered again.
        """
        if not delay >= 0:
            raise UsageError(f"nack({delay}): the delay must be 0 or more seconds")
        if position is None:
            self._claims.defer_run(self._record, self._claim, delay)
        else:
            with self.split(position) as handle:
                handle.nack(delay)

    def reject(self, reason: str = "", *, position: int | None = None) -> None:
        """
        Reject the bundles that are not decided, or the one at *position*, because they can never be processed.

        They are dropped for this subscriber, and counted. Durable after the next maintenance pass. *reason* is written
        to the audit trail if there is one.

        Raises:
            UsageError: *reason* is not a string, or *position* is not one of the run; nothing was decided.
            BundleUnavailableError: the run was acknowledged, deferred or returned before.
            StoreClosedError: the store is closed; the bundles will be delivered again.
        """
        if not isinstance(reason, str):
            raise UsageError(f"reject({reason!r}): the reason must be a string, for example str(error)")
        if position is None:
            self._claims.settle_run(self._record, self._claim, (1 << self._claim.count) - 1, "rejected", reason)
        else:
            with self.split(position) as handle:
                handle.reject(reason)

    def split(self, position: int) -> BundleHandle:
        """
        Take the bundle at *position* out of the run and return its handle. The run keeps the claim on the others.

        A bundle that could not be read can be split off, too, to reject or acknowledge it.

        Raises:
            UsageError: *position* is not one of the run.
            BundleUnavailableError: the bundle was decided, returned or split off before.
            StoreClosedError: the store is closed; the bundle will be delivered again.
        """
        self._offset(position)
        is_unreadable = position in self._unreadable
        return self._claims.split(self._record, self._claim, position, is_unreadable=is_unreadable)

    def _offset(self, position: int) -> int:
        if not self.first <= position <= self.last:
            raise UsageError(f"{position} is not a position of the run: it has {self.first} to {self.last}")
        return position - self.first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._claim.left:
            self._claims.give_back_run(self._claim)

    def __del__(self) -> None:
        # Runs in any thread at any moment, perhaps in one that holds the condition: it must not wait for it.
        claim = getattr(self, "_claim", None)
        if claim is not None and claim.left:
            self._claims.dropped_run(claim)

    def __repr__(self) -> str:
        left = self._claim.left.bit_count()
        return f"BundleRun({self.segment}:{self.first}-{self.last}, {left} of {len(self)} claimed)"
