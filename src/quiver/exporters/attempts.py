"""The attempts of a forwarder to send bundles that are not resolved yet."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from quiver.bundle import BundleRef
from quiver.delivery.undelivered import Undelivered
from quiver.errors import StoreClosedError, UnknownSubscriberError
from quiver.exporters.parts import RequestProgress
from quiver.exporters.ports import ForwardedHandle, Source

__all__ = ["AttemptTable", "Attempts"]

SOON_S = 0.05
"""A bundle that is due within this time is tried now: the store and the retry set round their clocks differently."""


@dataclass(slots=True)
class Attempts:
    """
    The attempts to send one bundle, in addition to its entry in the retry set.

    Attributes:
        requests: the number of a request in the bundle → which of its records are settled.
        read_failures: how often reading the bundle failed, which is not a failure of the destination.
    """

    requests: dict[int, RequestProgress] = field(default_factory=dict)
    read_failures: int = 0

    def of(self, number: int) -> RequestProgress:
        """Return which records of request *number* are settled."""
        progress = self.requests.get(number)
        if progress is None:
            progress = self.requests[number] = RequestProgress()
        return progress

    def forget_denials(self) -> None:
        """Allow requests to be sent again whose credentials or address were refused."""
        for progress in self.requests.values():
            if progress.why is not None and not progress.why.is_data_refused:
                progress.refused.clear()
                progress.why = None


class AttemptTable:
    """
    The attempts of all bundles that were tried and are not resolved. Thread-safe.

    Args:
        source: the source of the bundles.
        undelivered: stores their attempts and times on disk.
        on_error: called with the message when the retry set cannot be written.
    """

    def __init__(self, source: Source, undelivered: Undelivered, on_error: Callable[[str], None]) -> None:
        self._source = source
        self._undelivered = undelivered
        self._on_error = on_error
        self._lock = threading.Lock()
        self._known: dict[BundleRef, Attempts] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, ref: BundleRef) -> bool:
        with self._lock:
            return ref in self._known

    @property
    def is_empty(self) -> bool:
        """Whether no bundle was tried, in this process or an earlier one, that is not resolved."""
        return not self._known and not len(self._undelivered.retries)

    def is_due(self, ref: BundleRef) -> bool:
        """Return whether a bundle may be tried now, after failures in an earlier process."""
        return self._undelivered.retries.wait_s(ref) <= SOON_S

    def get(self, ref: BundleRef) -> Attempts:
        """Return the attempts of a bundle, or a new object that is not added to the table."""
        with self._lock:
            return self._known.get(ref) or Attempts()

    def add(self, ref: BundleRef, attempts: Attempts) -> None:
        """Add the attempts of a bundle, until it is resolved."""
        with self._lock:
            self._known[ref] = attempts

    def postpone(self, handle: ForwardedHandle) -> bool:
        """Defer a bundle that is not due yet after failures in an earlier process. Return whether it was deferred."""
        wait_s = self._undelivered.retries.wait_s(handle.ref)
        if wait_s <= SOON_S:
            return False
        with self._lock:
            self._known.setdefault(handle.ref, Attempts())
        handle.nack(wait_s)
        return True

    def remove(self, ref: BundleRef) -> None:
        """Remove a resolved bundle."""
        with self._lock:
            self._known.pop(ref, None)
        try:
            self._undelivered.resolved(ref)
        except OSError as error:
            self._on_error(str(error))

    def remove_resolved(self) -> None:
        """Remove resolved bundles from the retry set that an earlier process did not remove before it died."""
        with contextlib.suppress(StoreClosedError, UnknownSubscriberError, OSError):
            entries = self._undelivered.retries.entries()
            for segment in sorted({entry.ref.segment for entry in entries}):
                pending = set(self._source.pending_bundles_in_range(segment, segment))
                for entry in entries:
                    if entry.ref.segment == segment and entry.ref not in pending:
                        self._undelivered.resolved(entry.ref)

    def remove_dropped(self) -> None:
        """Remove bundles that the store dropped by policy meanwhile."""
        oldest = self._source.lag().oldest_incomplete_segment
        with self._lock:
            dropped = [ref for ref in self._known if oldest is None or ref.segment < oldest]
        for ref in dropped:
            self.remove(ref)

    def save(self) -> None:
        """Write the retry set if it changed."""
        try:
            self._undelivered.save()
        except OSError as error:
            self._on_error(str(error))
