"""Settings of the Flight server."""

from __future__ import annotations

from dataclasses import dataclass, field

from quiver.errors import SettingsError
from quiver.primitives.numeric_fields import require_numbers
from quiver.receivers.security import SecuritySettings, check_exposure
from quiver.receivers.settings import Ack, KeepaliveSettings, split_address
from quiver.settings import MIB

__all__ = ["FLIGHT_ADDRESS", "FlightSettings"]

FLIGHT_ADDRESS = "127.0.0.1:8815"


@dataclass(frozen=True, slots=True)
class FlightSettings:
    """
    Settings of a Flight server.

    Attributes:
        listening_addr: host and port; port 0 selects a free one, which the running server reports.
        ack: `synced` confirms a batch when it is on disk, `logged` when it is in the log (the death of the process
            loses nothing, a power loss at most `wal.flush_interval`).
        max_request_bytes: the maximum size of a message from a client, also after decompression.
        inflated_bytes_max: the maximum size of its batch, after decompression of its buffers.
        dictionaries_bytes_max: the maximum size of the dictionaries of one stream from a client.
        message_bytes: batches for clients are divided into messages of about this size. Clients in Go refuse messages
            above 4 MiB by default.
        receiving_bytes_max: the total size of large messages while they arrive.
        storing_bytes_max: the total size of batches that are being stored; further ones wait.
        streams_max: the maximum number of open streams; further clients must retry later.
        requests_waiting_max: four times the maximum number of calls of one connection.
        batches_in_flight_max: the maximum number of unanswered batches of a stream, after which reading pauses.
        capacity_wait_s: how long a batch waits for memory, and for space in a full store, before its stream ends.
        stream_idle_s: a stream whose client neither reads nor sends for this time is ended. A subscription that waits
            for new data is not.
        workers: threads that read and store.
        head_timeout_s: how long a new client may take for its handshake and the head of its first call.
        connections_max: the maximum number of open connections.
        security: TLS and credentials.
        keepalive: limits on the lifetime of connections.
        share_port: other processes may listen on the same port.

    Raises:
        SettingsError: a value is out of range, or two values conflict.
    """

    listening_addr: str = FLIGHT_ADDRESS
    ack: Ack = "synced"
    max_request_bytes: int = 16 * MIB
    inflated_bytes_max: int = 128 * MIB
    dictionaries_bytes_max: int = 64 * MIB
    message_bytes: int = MIB
    receiving_bytes_max: int = 256 * MIB
    storing_bytes_max: int = 256 * MIB
    streams_max: int = 64
    requests_waiting_max: int = 256
    batches_in_flight_max: int = 16
    capacity_wait_s: float = 5.0
    stream_idle_s: float = 600.0
    workers: int = 8
    head_timeout_s: float = 10.0
    connections_max: int = 1024
    security: SecuritySettings = field(default_factory=SecuritySettings)
    keepalive: KeepaliveSettings = field(default_factory=KeepaliveSettings)
    share_port: bool = False

    def __post_init__(self) -> None:
        require_numbers(self)
        check_exposure(split_address(self.listening_addr)[0], self.security)
        counts = (
            "max_request_bytes", "dictionaries_bytes_max", "message_bytes", "storing_bytes_max", "streams_max",
            "requests_waiting_max", "batches_in_flight_max", "workers", "connections_max",
        )  # fmt: skip
        for name in counts:
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1")
        if self.inflated_bytes_max < self.max_request_bytes:
            raise SettingsError("inflated_bytes_max must not be less than max_request_bytes")
        if self.receiving_bytes_max < self.max_request_bytes:
            raise SettingsError("receiving_bytes_max must not be less than max_request_bytes")
        if self.ack not in {"synced", "logged"}:
            raise SettingsError(f"ack: {self.ack!r} is not synced or logged")
        if self.capacity_wait_s < 0 or self.stream_idle_s <= 0 or self.head_timeout_s <= 0:
            raise SettingsError("capacity_wait_s must not be negative; stream_idle_s, head_timeout_s must be positive")
