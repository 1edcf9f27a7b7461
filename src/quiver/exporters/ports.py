"""What a forwarder stands between: where bundles come from, and where requests go."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from quiver.bundle import Bundle, BundleRef
from quiver.exporters.reply import Reply

__all__ = ["ForwardedHandle", "Sender", "Source"]


class ForwardedHandle(Protocol):
    """A claimed bundle; `quiver.BundleHandle` is one."""

    @property
    def ref(self) -> BundleRef:
        """Where it lies."""

    @property
    def bundle(self) -> Bundle:
        """The bundle, read when asked for."""

    def ack(self) -> None:
        """It is done."""

    def reject(self, why: str = "") -> None:
        """It can never be done."""

    def defer(self, seconds: float = 0.0) -> None:
        """It comes again after *seconds*."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Source(Protocol):
    """Where bundles come from; `quiver.Subscriber` is one."""

    @property
    def id(self) -> str:
        """Its name."""

    def next_bundles(self, count: int, timeout: float | None = None) -> Sequence[ForwardedHandle]:
        """Claim up to *count* bundles, waiting up to *timeout* seconds for the first."""

    def pending_bundles_in_range(self, first_segment: int, last_segment: int) -> Sequence[BundleRef]:
        """Return what is not resolved and could be claimed of the segments *first_segment* to *last_segment*."""

    def pending_bundle_count(self) -> int:
        """Return how many bundles are not resolved."""

    def oldest_incomplete_segment(self) -> int | None:
        """Return the number of the oldest segment with a bundle that is not resolved, or None."""


class Sender(Protocol):
    """Where requests go; `OtlpGrpcSender` and `OtlpHttpSender` are two."""

    def send(self, signal: str, request: bytes, batch_id: str = "") -> Reply:
        """
        Send one request and wait for the answer. Called from several threads; raises nothing.

        *batch_id* is the same whenever this request is sent again; the far side may know it by that.
        """

    def close(self) -> None:
        """End it, and every request on its way."""
