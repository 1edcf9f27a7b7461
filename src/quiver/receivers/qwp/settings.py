"""Settings of the QWP receiver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from quiver.errors import SettingsError
from quiver.primitives.numeric_fields import require_numbers
from quiver.receivers.security import SecuritySettings, check_exposure
from quiver.receivers.settings import Ack, KeepaliveSettings, split_address
from quiver.settings import MIB

__all__ = ["QWP_ADDRESS", "Durable", "QwpSettings"]

Durable = Literal["sealed", "tier"]
"""The condition for a durable acknowledgement."""

QWP_ADDRESS = "127.0.0.1:9000"


@dataclass(frozen=True, slots=True)
class QwpSettings:
    """
    Settings of a QWP receiver.

    Attributes:
        listening_addr: host and port; port 0 selects a free one, which the running receiver reports.
        max_request_bytes: the maximum size of a message, announced to clients in the handshake.
        tables_bytes_max: the maximum size of the tables of one message in memory.
        ack: `synced` answers OK when the rows are on disk, `logged` when they are in the log.
        dedupe_window_s: rows that a client resends on its next connection are confirmed but not stored again, if it
            reconnects within this time after the end of its previous connection; None means any time; 0 disables this.
        dedupe_bytes_max: the size of the rows remembered for that per connection. It must not be less than the
            client's buffer (`sf_max_total_bytes`).
        dedupe_entries_max: the maximum number of remembered tables of all connections; the oldest are forgotten first.
        receiving_bytes_max: the total size of messages that are arriving or waiting, of all connections.
        dictionaries_bytes_max: the total size of the symbols of all connections.
        workers: threads that store tables; a connection uses at most one at a time.
        body_timeout_s: how long a client may take to send a message.
        head_timeout_s: how long a new client may take for its handshake.
        durable: when rows count as durable: once they are in a sealed segment (`sealed`), or once the object tier has
            it, verified, or every subscriber has finished with it (`tier`).
        durable_wait_s: how long a client that asked for durable acknowledgements waits before the open segment is
            sealed for it.
        connections_max: the maximum number of open connections; when it is reached, a new one replaces one that has
            not sent its handshake yet.
        security: TLS and credentials.
        keepalive: limits on the lifetime of connections, and when silent clients are pinged.
        share_port: other processes may listen on the same port.

    Raises:
        SettingsError: a value is out of range, or two values conflict.
    """

    listening_addr: str = QWP_ADDRESS
    max_request_bytes: int = 16 * MIB
    tables_bytes_max: int = 128 * MIB
    ack: Ack = "synced"
    dedupe_window_s: float | None = None
    dedupe_bytes_max: int = 10 << 30
    dedupe_entries_max: int = 4_000_000
    receiving_bytes_max: int = 256 * MIB
    dictionaries_bytes_max: int = 256 * MIB
    workers: int = 8
    body_timeout_s: float = 30.0
    head_timeout_s: float = 10.0
    durable: Durable = "sealed"
    durable_wait_s: float = 5.0
    connections_max: int = 1024
    security: SecuritySettings = field(default_factory=SecuritySettings)
    keepalive: KeepaliveSettings = field(default_factory=KeepaliveSettings)
    share_port: bool = False

    def __post_init__(self) -> None:
        require_numbers(self)
        check_exposure(split_address(self.listening_addr)[0], self.security)
        counts = (
            "max_request_bytes", "dedupe_bytes_max", "dedupe_entries_max", "dictionaries_bytes_max", "workers",
            "connections_max",
        )  # fmt: skip
        for name in counts:
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1")
        if self.tables_bytes_max < self.max_request_bytes:
            raise SettingsError("tables_bytes_max must not be less than max_request_bytes")
        if self.receiving_bytes_max < self.max_request_bytes:
            raise SettingsError("receiving_bytes_max must not be less than max_request_bytes")
        if self.ack not in {"synced", "logged"}:
            raise SettingsError(f"ack: {self.ack!r} is not synced or logged")
        if self.durable not in get_args(Durable):
            raise SettingsError(f"durable: {self.durable!r} is not {' or '.join(get_args(Durable))}")
        if (self.dedupe_window_s or 0) < 0 or min(self.body_timeout_s, self.head_timeout_s, self.durable_wait_s) <= 0:
            raise SettingsError("dedupe_window_s must not be negative; the times to wait must be positive")
