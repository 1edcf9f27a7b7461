"""
Claiming bundles of a subscriber, one by one or in runs, and combination of small requests into larger ones.

The concatenation of two OTLP requests of one signal is a request with the records of both. It is confirmed or refused
as one. Each of its bundles is acknowledged when all of the bundle's own requests are confirmed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from blake3 import blake3

from quiver.bundle import OTLP_SLOTS, Bundle, BundleRef
from quiver.delivery.signal_filter import SignalFilter
from quiver.errors import BundleUnavailableError, InvariantError, QuiverError
from quiver.exporters.attempts import Attempts, AttemptTable
from quiver.exporters.ports import ForwardedHandle, ForwardedRun, Source
from quiver.exporters.requests import requests_of

__all__ = ["BundleTaker", "CombinedRequest", "TakenBundle", "acknowledge", "combined"]


class TakenBundle:
    """
    A claimed bundle.

    Args:
        ref: its address.
        attempts: its earlier attempts.
        handle: its claim.
        run: the run that it is part of, if it has no claim of its own.
        signals: the signals to send; None for all.

    Attributes:
        requests: signal and bytes of each of its requests; None before they are needed, or if it could not be read.
        run: the run that it is part of; None if it has a claim of its own.
        is_skipped: it has no signal that is sent, so it only has to be acknowledged.
    """

    __slots__ = ("_handle", "_signals", "attempts", "is_skipped", "ref", "requests", "run")

    def __init__(
        self,
        ref: BundleRef,
        attempts: Attempts,
        *,
        handle: ForwardedHandle | None = None,
        run: ForwardedRun | None = None,
        signals: SignalFilter | None = None,
    ) -> None:
        self.ref = ref
        self.attempts = attempts
        self.is_skipped = False
        self._signals = signals
        self.requests: list[tuple[str, bytes]] | None = None
        self.run = run
        self._handle = handle

    @property
    def handle(self) -> ForwardedHandle:
        """
        Its handle. A bundle of a run is split off on first access.

        Raises:
            BundleUnavailableError: the run has no claim on it any more.
            StoreClosedError: the store was closed.
            UnknownSubscriberError: the subscriber was unregistered.
        """
        if self._handle is None:
            if self.run is None:
                raise InvariantError(f"bundle {self.ref} was taken without a claim")
            self._handle = self.run.split(self.ref.index)
            self.run = None
        return self._handle

    @property
    def content(self) -> Bundle:
        """
        The part of the bundle that is sent.

        Raises:
            CorruptionError: the bundle is damaged.
            BundleUnavailableError: the bundle is not on disk any more.
            OSError: the disk could not be read.
        """
        bundle = self.handle.bundle
        return bundle if self._signals is None else self._signals.part(bundle)

    def read(self) -> None:
        """
        Read the bundle, to combine its requests with others.

        If it cannot be read, it has no requests and is sent individually, which reports the error.
        """
        with contextlib.suppress(QuiverError, OSError):
            self.requests = requests_of(self.content)

    @property
    def nbytes(self) -> int:
        """The size of its requests; 0 if unknown."""
        return sum(len(request) for _, request in self.requests or ())

    @property
    def is_confirmed(self) -> bool:
        """Whether all of its requests were confirmed, or none has to be sent."""
        if self.is_skipped:
            return True
        requests, of = self.requests, self.attempts.of
        return bool(requests) and all(of(number).is_confirmed for number in range(len(requests or ())))


class BundleTaker:
    """
    Claims the bundles of a subscriber for a forwarder. For one thread at a time.

    Args:
        source: the subscriber.
        attempts: the bundles that were tried and are not resolved.
        signals: the signals to send; None for all.
        skipped: called with the signals of a bundle that are not sent.
    """

    def __init__(
        self,
        source: Source,
        attempts: AttemptTable,
        signals: SignalFilter | None = None,
        skipped: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._attempts = attempts
        self._signals = signals
        self._skipped = skipped

    def take(self, timeout: float, *, prefer_new: bool = False) -> TakenBundle | None:
        """
        Claim one bundle that is due, waiting up to *timeout* seconds; None if there is none.

        With *prefer_new*, one that was not tried before, if there is one.
        """
        count = len(self._attempts) + 1 if prefer_new else 1
        while handles := self._source.next_bundles(count, timeout):
            ready = [one for one in handles if not self._attempts.postpone(one)]
            if ready:
                break
        else:
            return None
        chosen = next((one for one in ready if one.ref not in self._attempts), ready[0])
        for other in ready:
            if other is not chosen:
                with other:
                    pass  # leaving it undecided makes it pending again
        return TakenBundle(chosen.ref, self._attempts.get(chosen.ref), handle=chosen, signals=self._signals)

    def skip(self, taken: TakenBundle) -> bool:
        """
        Acknowledge *taken* if none of its signals is sent. Return whether it was acknowledged.

        Raises:
            StoreClosedError: the store was closed; the bundle will be delivered again.
            UnknownSubscriberError: the subscriber was unregistered.
        """
        if self._signals is None:
            return False
        try:
            slots = taken.handle.bundle.slots
        except (QuiverError, OSError):
            return False  # the attempt to send it reports the error
        if taken.ref not in self._attempts:
            self._skipped(self._signals.unwanted(slots))
        if self._signals.has_wanted(slots):
            return False
        with contextlib.suppress(BundleUnavailableError):  # policy dropped it
            taken.handle.ack()
        self._attempts.remove(taken.ref)
        return True

    def take_run(self, count_max: int, timeout: float, *, bytes_max: int) -> list[TakenBundle] | None:
        """
        Claim and read consecutive bundles that were not tried before, until they have *bytes_max* bytes.

        The last one is a bundle that could not be read, if there is one.

        Returns:
            The bundles; none after the timeout. None if all that was found is a bundle that failed before and is due.
        """
        run = self._source.next_run(count_max, timeout)
        if run is None:
            return []
        left = dict.fromkeys(range(run.first, run.last + 1))
        is_one_due = False
        if not self._attempts.is_empty:
            for position in list(left):
                ref = BundleRef(run.segment, position)
                if ref in self._attempts or not self._attempts.is_due(ref):
                    del left[position]
                    with run.split(position) as handle:  # leaving it undecided makes it pending again
                        is_one_due |= not self._attempts.postpone(handle)
        taken = self._read(run, bytes_max) if left else []
        for bundle in taken:
            del left[bundle.ref.index]
        for position in left:
            with run.split(position):
                pass
        return None if is_one_due and not taken else taken

    def _read(self, run: ForwardedRun, bytes_max: int) -> list[TakenBundle]:
        taken: list[TakenBundle] = []
        size = 0
        try:
            for position, bundle in run:
                one = self._part(run, position)
                wanted = bundle
                if self._signals is not None:
                    self._skipped(self._signals.unwanted(bundle.slots))
                    one.is_skipped = not self._signals.has_wanted(bundle.slots)
                    wanted = self._signals.part(bundle)
                # If it cannot be converted, it is sent individually, which reports the error.
                with contextlib.suppress(QuiverError):
                    one.requests = requests_of(wanted)
                taken.append(one)
                size += one.nbytes
                if size >= bytes_max:
                    break
        except (QuiverError, OSError):
            taken += [self._part(run, position) for position in run.unreadable]
        return taken

    def _part(self, run: ForwardedRun, position: int) -> TakenBundle:
        ref = BundleRef(run.segment, position)
        return TakenBundle(ref, self._attempts.get(ref), run=run, signals=self._signals)


def acknowledge(confirmed: Iterable[TakenBundle], others: Iterable[TakenBundle]) -> None:
    """
    Acknowledge *confirmed*, those of a run with one call. *others* are the other bundles that were taken with them.

    Raises:
        BundleUnavailableError: the subscriber was released; the bundles will be delivered again.
        StoreClosedError: the store was closed; the bundles will be delivered again.
        UnknownSubscriberError: the subscriber was unregistered.
    """
    for bundle in others:
        # A run acknowledges everything that it still claims, so what is not confirmed must leave it first.
        _ = bundle.handle
    runs: dict[int, tuple[ForwardedRun, int]] = {}
    for bundle in confirmed:
        if bundle.run is None:
            bundle.handle.ack()
        else:
            runs[id(bundle.run)] = bundle.run, bundle.ref.index
    for run, last in runs.values():
        run.ack(through=last)


@dataclass(frozen=True, slots=True)
class CombinedRequest:
    """
    The requests of several bundles, combined.

    Attributes:
        signal: the signal of all requests.
        data: the combined request.
        members: the bundles, each with the number of its request.
    """

    signal: str
    data: bytes
    members: tuple[tuple[TakenBundle, int], ...]

    @property
    def parts(self) -> list[bytes]:
        """The requests that were combined."""
        return [taken.requests[number][1] for taken, number in self.members if taken.requests is not None]

    @property
    def batch_id(self) -> str:
        """An id that depends only on the combined requests and their order."""
        names = ",".join(f"{taken.ref}/{number}" for taken, number in self.members)
        return f"combined/{blake3(names.encode()).hexdigest(16)}"


def combined(bundles: Sequence[TakenBundle], bytes_max: int) -> list[CombinedRequest]:
    """
    Combine the unsent requests of *bundles* into requests of at most *bytes_max* bytes.

    Requests that cannot be combined with another one are left out. The order within a signal is kept.
    """
    found: list[CombinedRequest] = []

    def close(signal: str, parts: list[bytes], members: list[tuple[TakenBundle, int]]) -> None:
        if len(members) > 1:
            found.append(CombinedRequest(signal, b"".join(parts), tuple(members)))

    for wanted in OTLP_SLOTS:
        parts: list[bytes] = []
        members: list[tuple[TakenBundle, int]] = []
        size = 0
        for taken in bundles:
            for number, (signal, request) in enumerate(taken.requests or ()):
                if signal != wanted or not taken.attempts.of(number).is_untouched:
                    continue
                if size + len(request) > bytes_max:
                    close(wanted, parts, members)
                    parts, members, size = [], [], 0
                parts.append(request)
                members.append((taken, number))
                size += len(request)
        close(wanted, parts, members)
    return found
