"""
Settings of the OTLP receivers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from quiver.errors import SettingsInvalid
from quiver.settings import MIB

__all__ = ["GRPC_ADDRESS", "HTTP_ADDRESS", "Ack", "OtlpSettings", "split_address"]

Ack = Literal["synced", "logged"]

GRPC_ADDRESS = "127.0.0.1:4317"
HTTP_ADDRESS = "127.0.0.1:4318"

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:\s]+):(\d{1,5})")


def split_address(address: str) -> tuple[str, int]:
    """
    Return host and port of ``host:port`` or ``[ipv6]:port``; the brackets are not part of the host.

    Raises:
        SettingsInvalid: not such an address.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[2]) > 65535:
        raise SettingsInvalid(f"listening_addr: {address!r} is not host:port, for example {GRPC_ADDRESS}")
    return match[1].strip("[]"), int(match[2])


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """
    How an OTLP receiver behaves.

    Attributes:
        listening_addr: host and port; port 0 takes a free one, which the running receiver tells.
        max_request_bytes: the most a request may take on the wire.
        max_decompressed_bytes: the most it may take once decompressed.
        ack: `synced` confirms when the request is on the disk, `logged` when it is in the log (the death of the
            process loses nothing, a power loss at most `wal.flush_interval`).
        dedupe_window_s: a byte-identical request within this time is confirmed again and not stored again; 0 is off.
        dedupe_entries_max: the window forgets its oldest requests beyond this many (about 200 bytes each).
        in_flight_bytes_max: the most that requests being handled may take together; more are told to come later.
        requests_waiting_max: requests that may be handled or waiting, for gRPC per connection.
        workers: threads that store requests; those that wait for the disk at the same time share one sync.
        body_timeout_s: how long an HTTP client may take to send a request.

    Raises:
        SettingsInvalid: out of range, or two settings contradict each other.
    """

    listening_addr: str = GRPC_ADDRESS
    max_request_bytes: int = 16 * MIB
    max_decompressed_bytes: int = 16 * MIB
    ack: Ack = "synced"
    dedupe_window_s: float = 0.0
    dedupe_entries_max: int = 200_000
    in_flight_bytes_max: int = 64 * MIB
    requests_waiting_max: int = 256
    workers: int = 8
    body_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        split_address(self.listening_addr)
        for name in ("max_request_bytes", "dedupe_entries_max", "requests_waiting_max", "workers"):
            if getattr(self, name) < 1:
                raise SettingsInvalid(f"{name} must be at least 1")
        if self.max_decompressed_bytes < self.max_request_bytes:
            raise SettingsInvalid("max_decompressed_bytes must not be below max_request_bytes")
        if self.in_flight_bytes_max < self.max_decompressed_bytes:
            raise SettingsInvalid("in_flight_bytes_max must hold one request of max_decompressed_bytes")
        if self.ack not in {"synced", "logged"}:
            raise SettingsInvalid(f"ack: {self.ack!r} is not synced or logged")
        if self.dedupe_window_s < 0 or self.body_timeout_s <= 0:
            raise SettingsInvalid("dedupe_window_s must not be negative, body_timeout_s must be positive")
