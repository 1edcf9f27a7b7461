"""Forwarding from an application's store to an OTLP endpoint, in threads of the application or another process."""

from __future__ import annotations

import atexit
import contextlib
import os
from types import TracebackType
from typing import Self

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, detach, set_value

from quiver.errors import QuiverError, SettingsError
from quiver.exporters.forward import BundleForwarder, ForwardState, RequestSender
from quiver.exporters.otlp_grpc import OtlpGrpcSender
from quiver.exporters.otlp_http import OtlpHttpSender
from quiver.exporters.reply import Reply
from quiver.exporters.settings import ExporterSettings
from quiver.lazy_names import renamed_keyword
from quiver.otel.shared_store import lease_store
from quiver.settings import Settings

__all__ = ["Forwarder"]

STOP_S = 5.0


class _Uninstrumented:
    """A sender hidden from the instrumentation of gRPC and HTTP: each request would create a span to send."""

    def __init__(self, sender: RequestSender) -> None:
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
    Sends the data in the store at *path* to an OTLP endpoint, from now until `stop`. A context manager.

    Confirmed data are removed from the store. Data that the endpoint cannot accept now are retried with exponential
    backoff, without a limit. When the program exits, the forwarder stops automatically after a few seconds for sending
    the rest; what is left is sent after the next start.

    Args:
        path: the store's directory, which exporters of this process may share; created if missing.
        to: the endpoint, ``http://host:4317`` for gRPC, or `ExporterSettings` for more options.
        settings: settings of the store; None: `OTEL_SETTINGS`.
        subscriber: the name of its progress. Several endpoints need several names.

    Raises:
        SettingsError: *to* is not an endpoint, or a certificate file cannot be read or is invalid.
        DirectoryInUseError: another process has the directory open.
        UsageError: this process has it open with other settings.
        OSError: the disk failed.
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
            raise SettingsError(f"to={to!r}: give a URL or ExporterSettings")
        how = ExporterSettings(to) if isinstance(to, str) else to
        sender: RequestSender = OtlpGrpcSender(how) if how.protocol == "grpc" else OtlpHttpSender(how)
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
            _Uninstrumented(sender),
            in_flight_max=how.in_flight_max,
            retry=how.retry,
            observer=self._lease.observer,
        )
        self._forwarder.start()
        atexit.register(self.stop)

    def state(self) -> ForwardState:
        """Return a snapshot: counts of requests and bundles, whether the destination is down, the last problem."""
        return self._forwarder.state()

    @renamed_keyword("timeout_s", "timeout")
    def drain(self, timeout: float) -> bool:
        """
        Wait until everything exported so far is confirmed. Return False if *timeout* passes first.

        Raises:
            CapacityError: the disk has no space to seal the open segment.
            StoreFailedError: the disk failed.
            StoreClosedError: it was stopped.
        """
        self._lease.store.seal()
        return self._forwarder.drained(timeout)

    @renamed_keyword("timeout_s", "timeout")
    def stop(self, timeout: float = STOP_S) -> int:
        """
        Send pending data for at most *timeout* seconds, then stop. Idempotent.

        Return the number of bundles left in the store. It does not wait for a destination that is down. Exporters that
        share the store are not affected.

        Raises:
            StoreFailedError: the disk failed, now or earlier; what was synced is safe.
        """
        atexit.unregister(self.stop)
        if not self._lease.is_ours:
            return 0  # a forked child: the threads and the store are the parent's
        with contextlib.suppress(
            QuiverError, OSError
        ):  # unsealed data are in the log and are sent after the next start
            self._lease.store.seal()
        left = self._forwarder.stop(timeout)
        self._lease.release()
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
