"""Out of an application's store to an OTLP endpoint, in threads of the application or of any other process."""

from __future__ import annotations

import atexit
import contextlib
import os
from types import TracebackType
from typing import Self

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, detach, set_value

from quiver.errors import QuiverError, SettingsError
from quiver.exporters.forward import BundleForwarder, ForwardState, Sender
from quiver.exporters.otlp_grpc import OtlpGrpcSender
from quiver.exporters.otlp_http import OtlpHttpSender
from quiver.exporters.reply import Reply
from quiver.exporters.settings import ExporterSettings
from quiver.otel.shared_store import lease_store
from quiver.settings import Settings

__all__ = ["Forwarder"]

STOP_S = 5.0


class _Unseen:
    """A sender whose requests no instrumentation of gRPC or HTTP sees: each would be a span to be sent."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def send(self, signal: str, request: bytes, batch_id: str = "") -> Reply:
        token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, value=True))
        try:
            return self._sender.send(signal, request, batch_id)
        finally:
            detach(token)

    def close(self) -> None:
        self._sender.close()


class Forwarder:
    """
    Sends what is in the store in *path* to an OTLP endpoint, from now until `stop`. A context manager.

    What the endpoint confirmed leaves the store, and what it cannot take now is sent again, with growing pauses, for
    as long as it takes. At the end of the program it is stopped by itself, and given a few seconds to send the rest;
    what is left then goes at the next start.

    Args:
        path: the store's directory, which exporters of this process may share; created when missing.
        to: the endpoint, ``http://host:4317`` for gRPC, or settings that say more.
        settings: how the store behaves; `OTEL_SETTINGS` when None.
        subscriber: the name that its position is kept under. Several endpoints are several names.

    Raises:
        SettingsError: *to* is not an endpoint, or a certificate file cannot be read or is none.
        DirectoryInUseError: another process has the directory open.
        UsageError: this process has it open with other settings.
        OSError: the disk refused.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        to: str | ExporterSettings,
        *,
        settings: Settings | None = None,
        subscriber: str = "forwarder",
    ) -> None:
        if not isinstance(to, str | ExporterSettings):
            raise SettingsError(f"to={to!r}: an endpoint is a URL, or ExporterSettings")
        how = ExporterSettings(to) if isinstance(to, str) else to
        sender: Sender = OtlpGrpcSender(how) if how.protocol == "grpc" else OtlpHttpSender(how)
        try:
            self._lease = lease_store(path, settings)
        except BaseException:
            sender.close()
            raise
        try:
            source = self._lease.store.register(subscriber, start="earliest")
        except BaseException:
            sender.close()
            self._lease.release()
            raise
        self._forwarder = BundleForwarder(
            source,
            _Unseen(sender),
            in_flight_max=how.in_flight_max,
            retry=how.retry,
            observer=self._lease.observer,
        )
        self._forwarder.start()
        atexit.register(self.stop)

    def state(self) -> ForwardState:
        """Return what it is at: confirmed, retrying, whether the far side is down, the last problem."""
        return self._forwarder.state()

    def drain(self, timeout_s: float) -> bool:
        """
        Wait until all that was exported by now is at the far side; False when *timeout_s* passed first.

        Raises:
            CapacityError: the disk has no room to seal what is open.
            StoreFailedError: the disk failed.
            StoreClosedError: it was stopped.
        """
        self._lease.store.flush()
        return self._forwarder.drained(timeout_s)

    def stop(self, timeout_s: float = STOP_S) -> int:
        """
        Send what can be sent within *timeout_s* and end; return how many bundles are left in the store. Idempotent.

        It does not wait for a far side that is down. Exporters that share the store go on.

        Raises:
            StoreFailedError: the disk failed, now or earlier; what was synced is safe.
        """
        atexit.unregister(self.stop)
        if not self._lease.is_ours:
            return 0  # a forked child: the threads and the store are the parent's
        with contextlib.suppress(QuiverError, OSError):  # what cannot be sealed now is in the log, and goes next time
            self._lease.store.flush()
        left = self._forwarder.stop(timeout_s)
        self._lease.release()
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
