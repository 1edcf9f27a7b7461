"""A subscriber of several cores: one `Subscriber` per store, and handles that know the core of their bundle."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from quiver.bundle import Bundle, BundleRef
from quiver.clock import Clock
from quiver.errors import BundleUnavailableError, StoreClosedError, UnknownSubscriberError, UsageError
from quiver.lazy_names import lazy_names, warn_renamed
from quiver.store.subscribers.claims import BundleHandle
from quiver.store.subscribers.records import SubscriberLag
from quiver.store.subscribers.runs import BundleRun
from quiver.store.subscribers.start import Rewound
from quiver.store.subscribers.subscriber import Subscriber

__all__ = ["CoreHandle", "CoreRun", "MultiCoreSubscriber", "require_no_place"]

if not TYPE_CHECKING:
    __getattr__, _ = lazy_names(
        __name__, {__name__: "MultiCoreSubscriber"}, renamed={"ShardedSubscriber": "MultiCoreSubscriber"}
    )

_T = TypeVar("_T")

_MOMENT_S = 1e-6
_WAIT_S = 0.02
"""While no core has a bundle, each is waited for this long in turn."""


class CoreHandle:
    """One bundle of one core, claimed for one subscriber. It wraps a `BundleHandle`."""

    __slots__ = ("core", "handle")

    def __init__(self, core: int, handle: BundleHandle) -> None:
        self.core = core
        """The core whose store has the bundle. Together with `ref` it identifies the bundle."""
        self.handle = handle
        """The core's own handle."""

    @property
    def ref(self) -> BundleRef:
        """The place of the bundle within its core's store."""
        return self.handle.ref

    @property
    def outcome(self) -> str | None:
        """How the claim ended; None while it is active."""
        return self.handle.outcome

    @property
    def bundle(self) -> Bundle:
        """
        The bundle, read on first access; see `BundleHandle.bundle`.

        Raises:
            CorruptionError: the bytes on disk are not what was written.
            BundleUnavailableError: the segment is no longer on disk.
            OSError: the disk could not be read.
        """
        return self.handle.bundle

    def ack(self) -> None:
        """
        Confirm that the bundle was processed; see `BundleHandle.ack`.

        Raises:
            BundleUnavailableError: the handle was rejected, deferred or returned before.
            StoreClosedError: the store is closed; the bundle will be delivered again.
        """
        self.handle.ack()

    def reject(self, reason: str = "", *, why: str | None = None) -> None:
        """
        Reject the bundle because it can never be processed; see `BundleHandle.reject`.

        Raises:
            BundleUnavailableError: the handle was acknowledged, deferred or returned before.
            UsageError: *reason* is not a string; nothing was decided.
            StoreClosedError: the store is closed; the bundle will be delivered again.
        """
        if why is not None:
            warn_renamed("CoreHandle", "reject(why=)", "reject(reason=)")
            reason = why
        self.handle.reject(reason)

    def nack(self, delay: float = 0.0) -> None:
        """
        Return the bundle, to be delivered again after *delay* seconds.

        Raises:
            BundleUnavailableError: the handle was acknowledged, rejected, deferred or returned before.
            UsageError: *delay* is negative or not a number.
        """
        self.handle.nack(delay)

    def defer(self, seconds: float = 0.0) -> None:
        """The former name of `nack`."""
        warn_renamed("CoreHandle", "defer(seconds)", "nack(delay)")
        self.nack(seconds)

    def __enter__(self) -> Self:
        self.handle.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.handle.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"CoreHandle(core {self.core}, {self.handle!r})"


class CoreRun:
    """A run of bundles of one core, claimed for one subscriber."""

    __slots__ = ("core", "run")

    def __init__(self, core: int, run: BundleRun) -> None:
        self.core = core
        """The core whose store has the bundles. Together with `segment` and a position it identifies a bundle."""
        self.run = run
        """The core's own run."""

    @property
    def segment(self) -> int:
        """The number of the segment, within its core's store."""
        return self.run.segment

    @property
    def first(self) -> int:
        """The position of the first bundle."""
        return self.run.first

    @property
    def last(self) -> int:
        """The position of the last bundle."""
        return self.run.last

    @property
    def unreadable(self) -> tuple[int, ...]:
        """The positions of bundles that could not be read; see `BundleRun.unreadable`."""
        return self.run.unreadable

    def __len__(self) -> int:
        return len(self.run)

    def __iter__(self) -> Iterator[tuple[int, Bundle]]:
        return iter(self.run)

    def ack(self, *, through: int | None = None) -> None:
        """
        Acknowledge the run, or its bundles up to *through*; see `BundleRun.ack`.

        Raises:
            UsageError: *through* is not a position of the run.
            BundleUnavailableError: the run was rejected, deferred or returned before.
            StoreClosedError: the store is closed; the bundles will be delivered again.
        """
        self.run.ack(through=through)

    def nack(self, delay: float = 0.0, *, position: int | None = None) -> None:
        """
        Return the run, or one bundle of it, to be delivered again after *delay* seconds; see `BundleRun.nack`.

        Raises:
            UsageError: *delay* or *position* is invalid.
            BundleUnavailableError: the run was acknowledged, rejected or returned before.
            StoreClosedError: the store is closed; the bundles will be delivered again.
        """
        self.run.nack(delay, position=position)

    def reject(self, reason: str = "", *, position: int | None = None) -> None:
        """
        Reject the run, or one bundle of it, because it can never be processed; see `BundleRun.reject`.

        Raises:
            UsageError: *reason* or *position* is invalid; nothing was decided.
            BundleUnavailableError: the run was acknowledged, deferred or returned before.
            StoreClosedError: the store is closed; the bundles will be delivered again.
        """
        self.run.reject(reason, position=position)

    def split(self, position: int) -> CoreHandle:
        """
        Take one bundle out of the run and return its handle; see `BundleRun.split`.

        Raises:
            UsageError: *position* is not one of the run.
            BundleUnavailableError: the bundle was decided, returned or split off before.
            StoreClosedError: the store is closed; the bundle will be delivered again.
        """
        return CoreHandle(self.core, self.run.split(position))

    def __enter__(self) -> Self:
        self.run.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"CoreRun(core {self.core}, {self.run!r})"


class MultiCoreSubscriber:
    """
    One consumer of all cores that this process has open. Several threads may share it.

    Cores take turns; within a core the oldest bundle comes first. Bundles of different cores have no order.
    """

    def __init__(self, subscriber_id: str, clock: Clock) -> None:
        self.id = subscriber_id
        """The name under which it was registered."""
        self._clock = clock
        self._parts: dict[int, Subscriber] = {}
        self._turn = itertools.count()

    def join(self, core: int, part: Subscriber) -> None:
        """Deliver from *core*, too."""
        self._parts = {**self._parts, core: part}

    def leave(self, core: int) -> None:
        """Stop delivering from *core*."""
        self._parts = {other: part for other, part in self._parts.items() if other != core}

    def next_bundle(self, timeout: float | None = None) -> CoreHandle | None:
        """
        Claim the oldest pending bundle of the next core that has one; wait up to *timeout* seconds for one.

        None waits indefinitely, 0 does not wait.

        Returns:
            The handle, or None after the timeout.

        Raises:
            DirectoryInUseError: another process works for this subscriber in one of the cores.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed, even while waiting.
        """
        found = self._next(lambda part, timeout_s: part.next_bundle(timeout_s), timeout)
        return None if found is None else CoreHandle(*found)

    def next_bundles(self, count: int, timeout: float | None = None) -> list[CoreHandle]:
        """
        Claim up to *count* bundles at a time, all of the next core that has one; see `Subscriber.next_bundles`.

        Returns:
            The handles; empty after the timeout.

        Raises:
            UsageError: *count* is below 1.
            DirectoryInUseError: another process works for this subscriber in one of the cores.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed, even while waiting.
        """
        found = self._next(lambda part, timeout_s: part.next_bundles(count, timeout_s), timeout)
        return [] if found is None else [CoreHandle(found[0], handle) for handle in found[1]]

    def next_run(self, count_max: int = 256, timeout: float | None = None) -> CoreRun | None:
        """
        Claim a run of the next core that has a pending bundle; see `Subscriber.next_run`.

        Returns:
            The run, or None after the timeout.

        Raises:
            UsageError: *count_max* is below 1.
            DirectoryInUseError: another process works for this subscriber in one of the cores.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed, even while waiting.
        """
        found = self._next(lambda part, timeout_s: part.next_run(count_max, timeout_s), timeout)
        return None if found is None else CoreRun(*found)

    def _next(self, take: Callable[[Subscriber, float], _T | None], timeout: float | None) -> tuple[int, _T] | None:
        """Return what *take* returns for the next core that has something, and the core; None after the timeout."""
        deadline = math.inf if timeout is None else self._clock.monotonic() + timeout
        while True:
            parts = list(self._parts.items())
            if not parts:
                raise UnknownSubscriberError(f"there is no subscriber {self.id!r} in any core")
            turn = next(self._turn) % len(parts)
            for core, part in parts[turn:] + parts[:turn]:
                taken = self._take(core, part, take, 0.0)
                if taken:
                    return core, taken
            left = deadline - self._clock.monotonic()
            if left < _MOMENT_S:
                return None
            core, part = parts[turn]
            taken = self._take(core, part, take, min(left, _WAIT_S))
            if taken:
                return core, taken

    def _take(
        self, core: int, part: Subscriber, take: Callable[[Subscriber, float], _T | None], timeout_s: float
    ) -> _T | None:
        with self._unless_removed(core, part):
            return take(part, timeout_s)
        return None  # type: ignore[unreachable] # `_unless_removed` suppresses an error

    @contextlib.contextmanager
    def _unless_removed(self, core: int, part: Subscriber) -> Iterator[None]:
        """Skip a core that was drained and removed: the others continue."""
        try:
            yield
        except StoreClosedError:
            if self._parts.get(core) is part:
                raise

    def ack_all(self, handles: Iterable[CoreHandle]) -> None:
        """
        Acknowledge all *handles*, which this subscriber has delivered; see `CoreHandle.ack`.

        Raises:
            BundleUnavailableError: one of them was rejected, deferred or returned before; all others are
            acknowledged. UnknownSubscriberError: it was unregistered. StoreClosedError: the store is closed; the
            bundles will be delivered again.
        """
        by_core: dict[int, list[BundleHandle]] = {}
        for handle in handles:
            by_core.setdefault(handle.core, []).append(handle.handle)
        refused: BundleUnavailableError | None = None
        for core, of_core in by_core.items():
            try:
                self.part(core).ack_all(of_core)
            except BundleUnavailableError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def claim(self, ref: BundleRef, *, core: int) -> CoreHandle:
        """
        Claim one particular bundle of *core*, regardless of order.

        Raises:
            BundleUnavailableError: the bundle does not exist, or it is resolved or claimed.
            DirectoryInUseError: another process works for this subscriber.
            UnknownSubscriberError: it was unregistered, or this process has no such core open.
            StoreClosedError: the store was closed.
        """
        return CoreHandle(core, self.part(core).claim(ref))

    def on_bundle(self, callback: Callable[[], object]) -> Callable[[], None]:
        """
        Call *callback* when bundles become available in any core that is open now; see `Subscriber.on_bundle`.

        Calls never overlap: cores take turns.

        Returns:
            A function that unsubscribes. It does not wait for a running call.

        Raises:
            DirectoryInUseError: another process works for this subscriber in one of the cores; nothing is called.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed.
        """
        turn = threading.Lock()

        def call() -> None:
            with turn:
                callback()

        with contextlib.ExitStack() as ending:
            for core, part in self._parts.items():
                with self._unless_removed(core, part):
                    ending.callback(part.on_bundle(call))
            return ending.pop_all().close

    def rewind(self, to: Literal["earliest"] | datetime) -> dict[int, Rewound]:
        """
        Deliver again, in every open core, what was resolved from *to* on; see `Subscriber.rewind`.

        A segment number or a `BundleRef` names a place in one core: rewind that `part`.

        Returns:
            By core, what will be delivered again.

        Raises:
            UsageError: *to* is neither "earliest" nor an aware datetime.
            DirectoryInUseError: another process works for this subscriber in one of the cores; the cores before it are
            rewound. UnknownSubscriberError: it was unregistered. StoreClosedError: the store was closed. OSError: as
            for `Subscriber.rewind`; the cores before it are rewound.
        """
        require_no_place(to)
        done: dict[int, Rewound] = {}
        for core, part in sorted(self._parts.items()):
            with self._unless_removed(core, part):
                done[core] = part.rewind(to)
        return done

    def part(self, core: int) -> Subscriber:
        """
        Return the subscriber of one core, which can do more: rewind to a bundle, inspect segments.

        Raises:
            UnknownSubscriberError: this process has no such core open.
        """
        part = self._parts.get(core)
        if part is None:
            raise UnknownSubscriberError(f"subscriber {self.id!r} is not registered in core {core} by this process")
        return part

    def lag(self) -> SubscriberLag:
        """Return how far this subscriber is behind, over all cores; each core numbers its own segments."""
        return sum((part.lag() for part in self._parts.values()), SubscriberLag(0, 0, 0, (), 0, 0.0))

    def pending_bundle_count(self) -> int:
        """Return `lag().pending_bundles`: the former name, for one release."""
        warn_renamed("MultiCoreSubscriber", "pending_bundle_count()", "lag().pending_bundles")
        return self.lag().pending_bundles

    def is_drained(self) -> bool:
        """Return `lag().is_drained`: the former name, for one release."""
        warn_renamed("MultiCoreSubscriber", "is_drained()", "lag().is_drained")
        return self.lag().is_drained

    def release(self) -> None:
        """
        Write the progress in every core and let another process work for this subscriber. Claims end.

        Raises:
            OSError: the progress could not be written; ownership is kept in those cores.
        """
        for part in self._parts.values():
            part.release()

    def __repr__(self) -> str:
        return f"MultiCoreSubscriber({self.id!r}, cores {sorted(self._parts)})"


def require_no_place(to: object) -> None:
    """
    Check that *to* has a meaning in every core: "earliest" or a time.

    Raises:
        UsageError: it does not.
    """
    if to != "earliest" and not isinstance(to, datetime):
        raise UsageError(f'{to!r} is a place in one core: use part(core).rewind; or give "earliest" or a time here')
