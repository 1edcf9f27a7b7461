"""What a forwarder knows of the bundles that it tried to send and that are not resolved."""

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
"""A bundle whose time has not come, by so little, is tried all the same: two clocks were rounded."""


@dataclass(slots=True)
class Attempts:
    """
    What this process knows of one bundle, beside what is in the retry set.

    Attributes:
        requests: the number of a request in the bundle → what of it is settled.
        troubles: how often the bundle could not be read here, which has nothing to do with the receiver.
    """

    requests: dict[int, RequestProgress] = field(default_factory=dict)
    troubles: int = 0

    def of(self, number: int) -> RequestProgress:
        """Return what is settled of a request."""
        return self.requests.setdefault(number, RequestProgress())

    def forget_denials(self) -> None:
        """Let requests be sent again that were refused for who sent them, or where to."""
        for progress in self.requests.values():
            if progress.why is not None and not progress.why.is_data_refused:
                progress.refused.clear()
                progress.why = None


class AttemptTable:
    """
    The attempts of all bundles that were tried and are not resolved. Thread-safe.

    Args:
        source: where the bundles come from.
        undelivered: has their attempts and times on disk.
        on_trouble: called with what the disk refused.
    """

    def __init__(self, source: Source, undelivered: Undelivered, on_trouble: Callable[[str], None]) -> None:
        self._source = source
        self._undelivered = undelivered
        self._on_trouble = on_trouble
        self._lock = threading.Lock()
        self._known: dict[BundleRef, Attempts] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, ref: BundleRef) -> bool:
        with self._lock:
            return ref in self._known

    def get(self, ref: BundleRef) -> Attempts:
        """Return the attempts of a bundle, which are new when it was not tried; they are not kept by that."""
        with self._lock:
            return self._known.get(ref) or Attempts()

    def keep(self, ref: BundleRef, attempts: Attempts) -> None:
        """Keep the attempts of a bundle until it is resolved."""
        with self._lock:
            self._known[ref] = attempts

    def put_off(self, handle: ForwardedHandle) -> bool:
        """Give a bundle back whose time has not come: an earlier process was told to wait with it."""
        wait_s = self._undelivered.retries.wait_s(handle.ref)
        if wait_s <= SOON_S:
            return False
        with self._lock:
            self._known.setdefault(handle.ref, Attempts())
        handle.defer(wait_s)
        return True

    def forget(self, ref: BundleRef) -> None:
        """Forget a bundle that is resolved."""
        with self._lock:
            self._known.pop(ref, None)
        try:
            self._undelivered.resolved(ref)
        except OSError as error:
            self._on_trouble(str(error))

    def forget_resolved(self) -> None:
        """Take out of the retry set what an earlier process resolved and was killed before it took it out."""
        with contextlib.suppress(StoreClosedError, UnknownSubscriberError, OSError):
            entries = self._undelivered.retries.entries()
            for segment in sorted({entry.ref.segment for entry in entries}):
                pending = set(self._source.pending_bundles_in_range(segment, segment))
                for entry in entries:
                    if entry.ref.segment == segment and entry.ref not in pending:
                        self._undelivered.resolved(entry.ref)

    def forget_dropped(self) -> None:
        """Forget bundles that policy dropped while they waited: they never come again."""
        oldest = self._source.oldest_incomplete_segment()
        with self._lock:
            dropped = [ref for ref in self._known if oldest is None or ref.segment < oldest]
        for ref in dropped:
            self.forget(ref)

    def save(self) -> None:
        """Write the retry set, if it changed."""
        try:
            self._undelivered.save()
        except OSError as error:
            self._on_trouble(str(error))
