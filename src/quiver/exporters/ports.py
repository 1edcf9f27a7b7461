"""The two protocols that a forwarder connects: the source of bundles and the sender of requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

from quiver.bundle import Bundle, BundleRef
from quiver.exporters.reply import Reply

__all__ = ["ForwardedHandle", "ForwardedRun", "Lag", "RequestSender", "Source"]


class ForwardedHandle(Protocol):
    """A claimed bundle; `quiver.BundleHandle` is one."""

    @property
    def ref(self) -> BundleRef:
        """Its position."""

    @property
    def bundle(self) -> Bundle:
        """The bundle, read on access."""

    def ack(self) -> None:
        """Acknowledge the bundle."""

    def reject(self, reason: str = "") -> None:
        """Reject the bundle: it can never be processed."""

    def nack(self, delay: float = 0.0) -> None:
        """Return the bundle to the queue; it is delivered again after *delay* seconds."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ForwardedRun(Protocol):
    """Consecutive bundles of one segment that are claimed as one; `quiver.BundleRun` is one."""

    @property
    def segment(self) -> int:
        """The number of the segment."""

    @property
    def first(self) -> int:
        """The position of the first bundle."""

    @property
    def last(self) -> int:
        """The position of the last bundle."""

    @property
    def unreadable(self) -> tuple[int, ...]:
        """The positions of bundles that could not be read; `split` returns a handle for them, too."""

    def __iter__(self) -> Iterator[tuple[int, Bundle]]:
        """Iterate over position and bundle of those that are not decided."""

    def split(self, position: int) -> ForwardedHandle:
        """Take one bundle out of the run and return its handle."""

    def ack(self, *, through: int | None = None) -> None:
        """Acknowledge the bundles that are not decided, up to the position *through*."""


class Lag(Protocol):
    """How far a source is behind; `quiver.SubscriberLag` is one."""

    @property
    def pending_bundles(self) -> int:
        """The number of unresolved bundles."""

    @property
    def oldest_incomplete_segment(self) -> int | None:
        """The number of the oldest segment with an unresolved bundle, or None."""


class Source(Protocol):
    """A source of bundles, such as `quiver.Subscriber`."""

    @property
    def id(self) -> str:
        """Its name."""

    def next_bundles(self, count: int, timeout: float | None = None) -> Sequence[ForwardedHandle]:
        """Claim up to *count* bundles, waiting up to *timeout* seconds for the first."""

    def next_run(self, count_max: int, timeout: float | None = None) -> ForwardedRun | None:
        """Claim up to *count_max* consecutive bundles, waiting up to *timeout* seconds for the first."""

    def pending_bundles_in_range(self, first_segment: int, last_segment: int) -> Sequence[BundleRef]:
        """Return the unresolved, unclaimed bundles of the segments *first_segment* to *last_segment*."""

    def lag(self) -> Lag:
        """Return how far it is behind."""


class RequestSender(Protocol):
    """A sender of requests, such as `OtlpGrpcSender` or `OtlpHttpSender`."""

    def send(self, signal: str, request: bytes, batch_id: str = "") -> Reply:
        """
        Send one request and wait for the answer. Called from several threads; does not raise.

        *batch_id* is the same whenever this request is sent again, so that the destination can detect duplicates.
        """

    def close(self) -> None:
        """Close the sender and cancel requests in flight."""
