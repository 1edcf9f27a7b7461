"""Settings of the OTLP exporters, and of what sends OTAP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args
from urllib.parse import SplitResult, urlsplit

from quiver.errors import SettingsError
from quiver.exporters.reply import Denied
from quiver.primitives.backoff import Backoff
from quiver.settings import GIB, KIB, MIB

__all__ = [
    "MESSAGE_BYTES_MIN",
    "Compression",
    "ExporterSettings",
    "OtapSenderSettings",
    "Protocol",
    "RequestSizes",
    "Target",
    "shown",
    "split_endpoint",
]

Protocol = Literal["grpc", "http"]
Compression = Literal["none", "gzip"]

_PORTS = {"grpc": 4317, "http": 4318}
_HEADER = re.compile(r"[0-9A-Za-z!#$%&'*+.^_`|~-]+")
_METADATA = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)", re.IGNORECASE)
"""What gRPC takes as text; the rest is bytes, or its own."""
MESSAGE_BYTES_MIN = 64 * KIB
"""An OTAP message is allowed at least so much: a batch of few records is that long for its schemas alone."""

_OWN_HEADERS = frozenset({"content-type", "content-encoding", "content-length", "host", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class Target:
    """
    An endpoint taken apart.

    Attributes:
        host: without the brackets of IPv6.
        port: the one given, or that of the protocol.
        path: before ``/v1/logs`` and the like; only HTTP has one.
        tls: whether the connection is encrypted.
    """

    host: str
    port: int
    path: str
    tls: bool

    @property
    def address(self) -> str:
        """Return ``host:port``, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def shown(address: str) -> str:
    """Return *address* as it may be shown and logged: without the name and the password that stand before its host."""
    return re.sub(r"(?:(?<=://)|^)[^/@\s]*@", "…@", address)


def split_endpoint(endpoint: str, *, protocol: Protocol) -> Target:
    """
    Take ``http://host:port``, ``https://host:port/base`` or, for gRPC, ``host:port`` apart.

    Raises:
        SettingsError: not such an endpoint.
    """
    example = f"http://127.0.0.1:{_PORTS[protocol]}"
    text = endpoint if "://" in endpoint else f"{'https' if protocol == 'grpc' else ''}://{endpoint}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"endpoint: {shown(endpoint)!r} is not one; write for example {example}") from error
    odd = parts.query or parts.fragment or parts.username is not None or (protocol == "grpc" and parts.path.strip("/"))
    # Port 0 is nobody's; what cannot be written into a request would be tried again for ever.
    odd = odd or port == 0 or not _can_be_asked(text, parts)
    if parts.scheme not in {"http", "https"} or not parts.hostname or odd:
        raise SettingsError(f"endpoint: {shown(endpoint)!r} is not one; write for example {example}")
    return Target(parts.hostname, port or _PORTS[protocol], parts.path.rstrip("/"), parts.scheme == "https")


def _can_be_asked(text: str, parts: SplitResult) -> bool:
    """Say whether *text* has a host that can be looked up, and nothing that HTTP cannot say."""
    try:
        host = (parts.hostname or "").encode("idna")
    except UnicodeError:
        return False
    return bool(host) and parts.path.isascii() and text.strip().isprintable() and " " not in text.strip()


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """
    How an OTLP exporter sends.

    Attributes:
        endpoint: ``http://…`` is plain text, ``https://…`` (and for gRPC ``host:port`` alone) TLS.
        protocol: `grpc` or `http`, which is protobuf over HTTP.
        compression_method: of the requests, `none` or `gzip`.
        timeout_s: how long one request may take.
        ca_file: whom to trust, in PEM; the machine's own list when None.
        cert_file: shown to the far side, in PEM, together with *key_file*.
        key_file: its private key.
        insecure: send in plain text although the endpoint does not begin with ``http://``.
        headers: sent with every request, for example ``authorization``.
        denied: which requests are retried that were refused for who sent them, or where to: `credentials` those
            without permission, `retry` also those to a wrong address (no such service), `drop` none of them.
        in_flight_max: requests on their way at once.
        retry: how long a bundle waits after each failure, and how long all do while the far side is down.

    Raises:
        SettingsError: out of range, or two settings contradict each other.
    """

    endpoint: str
    protocol: Protocol = "grpc"
    compression_method: Compression = "none"
    timeout_s: float = 10.0
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    insecure: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # often a secret
    denied: Denied = "credentials"
    in_flight_max: int = 4
    retry: Backoff = Backoff(first_s=1.0, cap_s=30.0)  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        for name, word, known in (
            ("protocol", self.protocol, Protocol),
            ("compression_method", self.compression_method, Compression),
            ("denied", self.denied, Denied),
        ):
            words = get_args(known)
            if word not in words:
                raise SettingsError(f"{name}: {word!r} is not {', '.join(words[:-1])} or {words[-1]}")
        if not 0 < self.timeout_s <= 3600:
            raise SettingsError(f"timeout must be above 0 and at most an hour, not {self.timeout_s}")
        if not 1 <= self.in_flight_max <= 256:
            raise SettingsError(f"in_flight_max must be 1 to 256, not {self.in_flight_max}")
        split = split_endpoint(self.endpoint, protocol=self.protocol)
        has_files = any((self.ca_file, self.cert_file, self.key_file))
        if (self.cert_file is None) != (self.key_file is None):
            raise SettingsError("tls: cert_file and key_file belong together")
        if has_files and (self.insecure or not split.tls):
            raise SettingsError(f"tls: {self.endpoint} is sent to in plain text, where certificates are of no use")
        if self.insecure and self.endpoint.startswith("https://"):
            raise SettingsError(f"tls: {self.endpoint} asks for TLS, insecure for none; keep one")
        self._check_headers()
        object.__setattr__(self, "headers", MappingProxyType(dict(self.headers)))

    def _check_headers(self) -> None:
        for name, value in self.headers.items():
            allowed = _METADATA if self.protocol == "grpc" else _HEADER
            if not allowed.fullmatch(name) or name.lower() in _OWN_HEADERS:
                raise SettingsError(f"headers: {name!r} cannot be sent")
            if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
                raise SettingsError(f"headers: the value of {name} must be printable ASCII")

    @property
    def target(self) -> Target:
        """The endpoint taken apart, `insecure` taken into account."""
        target = split_endpoint(self.endpoint, protocol=self.protocol)
        return Target(target.host, target.port, target.path, target.tls and not self.insecure)


@dataclass(frozen=True, slots=True)
class RequestSizes:
    """
    How large the requests of an exporter are.

    Attributes:
        request_bytes_max: a larger request is divided between records. So is one that the receiver refuses for its
            size, whatever is set here.
        batch_bytes_min: requests of several bundles are combined until they have this many bytes; 0 sends each request
            as it was received.
        batch_delay_s_max: so long at most the first of them waits for the others.

    Raises:
        SettingsError: out of range.
    """

    request_bytes_max: int = 4 * MIB
    batch_bytes_min: int = 0
    batch_delay_s_max: float = 0.2

    def __post_init__(self) -> None:
        if not 1 * KIB <= self.request_bytes_max <= 1 * GIB:
            raise SettingsError("max_request_bytes must be between 1 KiB and 1 GiB")
        if not 0 <= self.batch_bytes_min <= self.request_bytes_max:
            raise SettingsError("min_batch must not be above max_request_bytes: a combined request is no larger")
        if not 0 <= self.batch_delay_s_max <= 3600:
            raise SettingsError(f"max_delay must be at most an hour, not {self.batch_delay_s_max}")


@dataclass(frozen=True, slots=True)
class OtapSenderSettings:
    """
    What only OTAP has.

    Attributes:
        payload_compression: of the tables inside messages, `zstd` or `none`; `compression_method` compresses whole
            messages, on top of it.
        stream_lifetime_s: a stream is followed by another after this. Below the connection age of the far side.
        metric_metadata: send `Metric.metadata` too; one implementation refuses every batch that has it.
        message_bytes_max: no message gets longer; receivers refuse more than 4 MiB unless told otherwise.

    Raises:
        SettingsError: out of range.
    """

    payload_compression: Literal["zstd", "none"] = "zstd"
    stream_lifetime_s: float = 30.0
    metric_metadata: bool = False
    message_bytes_max: int = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.payload_compression not in {"zstd", "none"}:
            raise SettingsError(f"payload_compression: {self.payload_compression!r} is not zstd or none")
        if not 0 < self.stream_lifetime_s <= 24 * 3600:
            raise SettingsError(f"stream_lifetime must be above 0 and at most a day, not {self.stream_lifetime_s}")
        if not MESSAGE_BYTES_MIN <= self.message_bytes_max <= 1 * GIB:
            raise SettingsError("max_message_bytes must be between 64 KiB and 1 GiB")
