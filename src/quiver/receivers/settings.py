"""Settings of the OTLP receivers."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Literal

from quiver.errors import SettingsError
from quiver.primitives.numeric_fields import require_numbers
from quiver.receivers.security import SecuritySettings, check_exposure
from quiver.settings import MIB

__all__ = [
    "GRPC_ADDRESS",
    "HTTP_ADDRESS",
    "Ack",
    "GrpcTransport",
    "Handling",
    "KeepaliveSettings",
    "OtlpSettings",
    "overlap",
    "split_address",
]

Ack = Literal["synced", "logged"]
Handling = Literal["pass_through", "convert_to_arrow"]
GrpcTransport = Literal["asyncio", "grpcio"]

GRPC_ADDRESS = "127.0.0.1:4317"
HTTP_ADDRESS = "127.0.0.1:4318"

HTTP_IDLE_S = 75.0
"""The default idle time of an HTTP connection."""

_NEVER_CAPTURED = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_CAPTURED_MAX = 32
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:\s]+):(\d{1,5})")


def split_address(address: str) -> tuple[str, int]:
    """
    Return host and port of ``host:port`` or ``[ipv6]:port``, the host without brackets.

    Raises:
        SettingsError: the address is malformed.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise SettingsError(f"listening_addr: {address!r} is not host:port, for example {GRPC_ADDRESS}")
    if int(match[2]) > 65535:
        raise SettingsError(f"listening_addr: {address!r}: the port is above 65535")
    return match[1].strip("[]"), int(match[2])


def overlap(one: str, other: str) -> bool:
    """Return whether two addresses (``host:port``) conflict: one equals the other or includes it."""
    (one_host, one_port), (other_host, other_port) = split_address(one), split_address(other)
    if one_port != other_port:
        return False
    return any(
        mine == theirs or _is_in(mine, theirs) or _is_in(theirs, mine)
        for mine, theirs in product(_hosts(one_host), _hosts(other_host))
    )


def _hosts(name: str) -> tuple[str, ...]:
    """Return the addresses of *name*, as far as they are known without a DNS query."""
    if name.lower() == "localhost":
        return "127.0.0.1", "::1"
    try:
        return (str(ipaddress.ip_address(name)),)
    except ValueError:
        return (name.lower(),)


def _is_in(host: str, every: str) -> bool:
    """Return whether *every* is a wildcard address that includes *host*."""
    return every == "::" or (every == "0.0.0.0" and ":" not in host)  # noqa: S104 - nothing is opened here


@dataclass(frozen=True, slots=True)
class KeepaliveSettings:
    """
    Limits on the lifetime of connections, in seconds.

    Attributes:
        max_connection_idle_s: a connection without requests is closed after this time; None means never.
        max_connection_age_s: clients are asked to reconnect after this time, which also checks their certificates
            again; None means never.
        max_connection_age_grace_s: how long current requests may then take; None means no limit.
        ping_interval_s: how often gRPC pings a silent client.
        ping_timeout_s: a client that does not answer within this time is disconnected.
        ping_interval_min_s: a gRPC client that pings more often is disconnected.

    Raises:
        SettingsError: a value is not positive.
    """

    max_connection_idle_s: float | None = None
    max_connection_age_s: float | None = None
    max_connection_age_grace_s: float | None = None
    ping_interval_s: float = 120.0
    ping_timeout_s: float = 20.0
    ping_interval_min_s: float = 10.0

    def __post_init__(self) -> None:
        require_numbers(self)
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and value <= 0:
                raise SettingsError(f"keepalive.{one.name.removesuffix('_s')} must be positive")


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """
    Settings of an OTLP receiver.

    Attributes:
        listening_addr: host and port; port 0 selects a free one, which the running receiver reports.
        max_request_bytes: the maximum size of a request on the wire.
        max_decompressed_bytes: its maximum size after decompression.
        ack: `synced` confirms a request when it is on disk, `logged` when it is in the log (the death of the process
            loses nothing, a power loss at most `wal.flush_interval`).
        dedupe_window_s: a byte-identical request, or an OTAP batch with the same content, that is repeated within
            this time is confirmed but not stored again; 0 disables this.
        dedupe_entries_max: the maximum number of requests in the window (about 160 bytes each); further clients must
            retry later.
        in_flight_bytes_max: the total size of requests being handled; further clients must retry later.
        receiving_bytes_max: the total size of HTTP bodies while they arrive.
        requests_waiting_max: the maximum number of requests that are handled or waiting.
        workers: threads that store requests; those that wait for the disk at the same time share one sync.
        body_timeout_s: how long a client may take to send a request.
        head_timeout_s: how long a new client may take for its handshake and the head of its first request.
        connections_max: the maximum number of open connections; when it is reached, HTTP closes silent connections
            first, gRPC new ones.
        security: TLS and credentials.
        keepalive: limits on the lifetime of connections.
        otlp_handling: `pass_through` stores requests unchanged, `convert_to_arrow` as OTAP tables.
        capture_headers: request headers to store, as resource attributes ``http.request.header.<name>``.
        transport: the library that serves gRPC: `asyncio` is part of this package and accepts gzip and zstd, `grpcio`
            accepts gzip.
        share_port: other processes may listen on the same port; the kernel distributes connections among them.

    Raises:
        SettingsError: a value is out of range, or two values conflict.
    """

    listening_addr: str = GRPC_ADDRESS
    max_request_bytes: int = 16 * MIB
    max_decompressed_bytes: int = 16 * MIB
    ack: Ack = "synced"
    dedupe_window_s: float = 0.0
    dedupe_entries_max: int = 4_000_000
    in_flight_bytes_max: int = 64 * MIB
    receiving_bytes_max: int = 256 * MIB
    requests_waiting_max: int = 256
    workers: int = 8
    body_timeout_s: float = 30.0
    head_timeout_s: float = 10.0
    connections_max: int = 1024
    security: SecuritySettings = field(default_factory=SecuritySettings)
    keepalive: KeepaliveSettings = field(default_factory=KeepaliveSettings)
    otlp_handling: Handling = "pass_through"
    capture_headers: tuple[str, ...] = ()
    share_port: bool = False
    transport: GrpcTransport = "asyncio"

    def __post_init__(self) -> None:
        require_numbers(self)
        check_exposure(split_address(self.listening_addr)[0], self.security)
        counts = ("max_request_bytes", "dedupe_entries_max", "requests_waiting_max", "workers", "connections_max")
        for name in counts:
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1")
        if self.max_decompressed_bytes < self.max_request_bytes:
            raise SettingsError("max_decompressed_bytes must not be less than max_request_bytes")
        if self.in_flight_bytes_max < self.max_decompressed_bytes:
            raise SettingsError("in_flight_bytes_max must not be less than max_decompressed_bytes")
        if self.receiving_bytes_max < self.max_request_bytes:
            raise SettingsError("receiving_bytes_max must not be less than max_request_bytes")
        if self.ack not in {"synced", "logged"}:
            raise SettingsError(f"ack: {self.ack!r} is not synced or logged")
        if self.otlp_handling not in {"pass_through", "convert_to_arrow"}:
            raise SettingsError(f"otlp_handling: {self.otlp_handling!r} is not pass_through or convert_to_arrow")
        if self.transport not in {"asyncio", "grpcio"}:
            raise SettingsError(f"transport: {self.transport!r} is not asyncio or grpcio")
        if self.dedupe_window_s < 0 or self.body_timeout_s <= 0 or self.head_timeout_s <= 0:
            raise SettingsError("dedupe_window_s must not be negative; body_timeout_s, head_timeout_s must be positive")
        _check_captured(self.capture_headers)


def _check_captured(names: tuple[str, ...]) -> None:
    if len(names) > _CAPTURED_MAX:
        raise SettingsError(f"capture_headers: {len(names)} names; the maximum is {_CAPTURED_MAX}")
    for name in names:
        if _HEADER_NAME.fullmatch(name) is None:
            raise SettingsError(f"capture_headers: {name!r} is not a valid header name")
        if name.lower() in _NEVER_CAPTURED:
            raise SettingsError(f"capture_headers: {name} carries credentials, which must not be stored")
