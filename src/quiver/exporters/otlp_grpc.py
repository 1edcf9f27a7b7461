"""An OTLP client over gRPC: one channel, requests sent as they are stored."""

from __future__ import annotations

import threading
from typing import Any

import grpc

from quiver.exporters.certificates import pem_files
from quiver.exporters.reply import Reply, confirmed_reply, grpc_reply
from quiver.exporters.settings import ExporterSettings
from quiver.exporters.zstd_channel import ZstdChannel

__all__ = ["BATCH_ID_HEADER", "OtlpGrpcSender", "open_channel"]

BATCH_ID_HEADER = "x-quiver-batch-id"
"""Delivery is at least once: a request that is sent again has the same id."""

_COLLECTOR = "opentelemetry.proto.collector"
_METHODS = {
    "logs": f"/{_COLLECTOR}.logs.v1.LogsService/Export",
    "traces": f"/{_COLLECTOR}.trace.v1.TraceService/Export",
    "metrics": f"/{_COLLECTOR}.metrics.v1.MetricsService/Export",
}

RECONNECT_S_MAX = 5.0
"""The default of gRPC is two minutes, during which every request fails without a connection attempt."""

_RESPONSE_BYTES_MAX = 1024 * 1024


class OtlpGrpcSender:
    """
    Sends export requests over gRPC. Thread-safe. `send` does not raise for failures of network or destination.

    Args:
        settings: endpoint and options. Certificates are read once, here.

    Raises:
        SettingsError: a certificate file cannot be read or is invalid.
    """

    def __init__(self, settings: ExporterSettings) -> None:
        self.settings = settings
        self._channel = open_channel(settings)
        self._methods = {signal: self._channel.unary_unary(method) for signal, method in _METHODS.items()}
        gzip = settings.compression_method == "gzip"
        self._compression = grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression
        self._metadata = tuple((name.lower(), value) for name, value in settings.headers.items())
        self._closed = threading.Event()

    def send(self, signal: str, request: bytes, batch_id: str = "") -> Reply:
        """Send one request and wait up to `timeout_s` seconds for the answer."""
        metadata = (*self._metadata, (BATCH_ID_HEADER, batch_id)) if batch_id else self._metadata
        try:
            response = self._methods[signal](
                request,
                timeout=self.settings.timeout_s,
                metadata=metadata,
                compression=self._compression,
            )
        except grpc.RpcError as error:
            return self._reply(error)
        except ValueError:  # raised by gRPC for a closed channel
            if not self._closed.is_set():
                raise
            return Reply("retry", "CLOSED", "the sender was closed")
        return confirmed_reply(response)

    def _reply(self, error: Any) -> Reply:
        if self._closed.is_set():
            # Closing the sender cancelled the call; its status code does not matter.
            return Reply("retry", "CLOSED", "the sender was closed")
        details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
        return grpc_reply(error.code().value[0], error.details() or "", details, denied=self.settings.denied)

    def close(self) -> None:
        """Close the connection; requests in flight get the outcome `retry`. Idempotent."""
        self._closed.set()
        self._channel.close()


def open_channel(settings: ExporterSettings) -> Any:
    """
    Return a separate channel to the endpoint, which connects on first use. For zstd, that is not one of `grpcio`.

    Raises:
        SettingsError: a certificate file cannot be read or is invalid.
    """
    target = settings.target
    options = [
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.min_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", round(RECONNECT_S_MAX * 1000)),
        ("grpc.max_receive_message_length", _RESPONSE_BYTES_MAX),
        # Two senders in one process have separate connections, so that one does not fail with the other.
        ("grpc.use_local_subchannel_pool", 1),
        # The forwarder decides on retries: it knows the store.
        ("grpc.enable_retries", 0),
    ]
    if settings.compression_method == "zstd":
        return ZstdChannel(settings, message_bytes_max=_RESPONSE_BYTES_MAX)
    if not target.tls:
        return grpc.insecure_channel(target.address, options)
    files = pem_files(settings)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=files.ca, private_key=files.key, certificate_chain=files.cert
    )
    return grpc.secure_channel(target.address, credentials, options)
