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
"""What a durable acknowledgement waits for."""

QWP_ADDRESS = "127.0.0.1:9000"


@dataclass(frozen=True, slots=True)
class QwpSettings:
    """
    How a QWP receiver behaves.

    Attributes:
        listening_addr: host and port; port 0 takes a free one, which the running receiver tells.
        max_request_bytes: the most a message may take; clients are told so in the handshake.
        tables_bytes_max: the most that the tables of one message may take in memory.
        ack: `synced` answers OK when the rows are on the disk, `logged` when they are in the log.
        dedupe_window_s: rows that a client sends again on its next connection are confirmed and not stored again, when
            it connects within this time after its former connection ended; None: however late. 0 is off.
        dedupe_bytes_max: of each connection so many bytes of rows are remembered for that. Not less than what a client
            keeps (`sf_max_total_bytes`).
        dedupe_entries_max: tables of all connections together that are remembered; the oldest are forgotten first.
        receiving_bytes_max: the most that messages of all connections may take together while they arrive and wait.
        dictionaries_bytes_max: the most that the symbols of all connections may take together.
        workers: threads that store tables; a connection takes at most one at a time.
        body_timeout_s: how long a client may take to send a message.
        head_timeout_s: how long a new client may take for its handshake.
        durable: a durable acknowledgement says that rows are in a sealed segment (`sealed`), or that the object tier
            has it, verified, or every subscriber has finished with it (`tier`).
        durable_wait_s: a client that asked for durable acknowledgements waits at most so long before the open segment
            is sealed for it.
        connections_max: connections that may be open at once; then one that has not asked yet leaves for a new one.
        security: TLS, credentials.
        keepalive: how long connections live, and when silent ones are asked whether they are still there.
        share_port: other processes may listen on the same port.

    Raises:
        SettingsError: out of range, or two settings contradict each other.
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
            raise SettingsError("tables_bytes_max must not be below max_request_bytes")
        if self.receiving_bytes_max < self.max_request_bytes:
            raise SettingsError("receiving_bytes_max must hold one message of max_request_bytes")
        if self.ack not in {"synced", "logged"}:
            raise SettingsError(f"ack: {self.ack!r} is not synced or logged")
        if self.durable not in get_args(Durable):
            raise SettingsError(f"durable: {self.durable!r} is not {' or '.join(get_args(Durable))}")
        if (self.dedupe_window_s or 0) < 0 or min(self.body_timeout_s, self.head_timeout_s, self.durable_wait_s) <= 0:
            raise SettingsError("dedupe_window_s must not be negative; the times to wait must be positive")
