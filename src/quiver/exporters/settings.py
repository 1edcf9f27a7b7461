"""Settings of the OTLP and OTAP exporters."""

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
Compression = Literal["none", "gzip", "zstd"]

_PORTS = {"grpc": 4317, "http": 4318}
_HEADER = re.compile(r"[0-9A-Za-z!#$%&'*+.^_`|~-]+")
_METADATA = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)", re.IGNORECASE)
"""Names of text metadata in gRPC; other names are binary or reserved."""
MESSAGE_BYTES_MIN = 64 * KIB
"""Lower bound of the OTAP message size: the schemas alone make a small batch this large."""

_OWN_HEADERS = frozenset({"content-type", "content-encoding", "content-length", "host", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class Target:
    """
    The parts of an endpoint.

    Attributes:
        host: the host, an IPv6 address without brackets.
        port: the given port, or the default of the protocol.
        path: the prefix of paths such as ``/v1/logs``; only for HTTP.
        tls: whether the connection is encrypted.
    """

    host: str
    port: int
    path: str
    tls: bool

    @property
    def address(self) -> str:
        """``host:port``, with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def shown(address: str) -> str:
    """Return *address* with user name and password masked, for display and logs."""
    return re.sub(r"(?:(?<=://)|^)[^/@\s]*@", "…@", address)


def split_endpoint(endpoint: str, *, protocol: Protocol) -> Target:
    """
    Parse ``http://host:port``, ``https://host:port/base`` or, for gRPC, ``host:port``.

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
    extra = parts.query or parts.fragment or parts.username is not None
    extra = extra or (protocol == "grpc" and parts.path.strip("/"))
    # An endpoint that cannot be written into a request would be retried forever.
    is_usable = not extra and port != 0 and _is_requestable(text, parts)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not is_usable:
        raise SettingsError(f"endpoint: {shown(endpoint)!r} is not one; write for example {example}")
    return Target(parts.hostname, port or _PORTS[protocol], parts.path.rstrip("/"), parts.scheme == "https")


def _is_requestable(text: str, parts: SplitResult) -> bool:
    """Return whether the host can be resolved and HTTP can represent the URL."""
    try:
        host = (parts.hostname or "").encode("idna")
    except UnicodeError:
        return False
    return bool(host) and parts.path.isascii() and text.strip().isprintable() and " " not in text.strip()


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """
    Settings of an OTLP exporter.

    Attributes:
        endpoint: ``http://…`` is plain text; ``https://…``, or ``host:port`` for gRPC, is TLS.
        protocol: `grpc`, or `http` for protobuf over HTTP.
        compression_method: compression of the requests, `none`, `gzip` or `zstd`.
        timeout_s: the maximum duration of one request.
        ca_file: PEM file of the trusted authorities; None: the system's authorities.
        cert_file: PEM file of the client certificate; requires *key_file*.
        key_file: PEM file of its private key.
        insecure: send in plain text although the endpoint does not start with ``http://``.
        headers: sent with every request, for example ``authorization``.
        denied: which requests are retried after a refusal that is not about the data: `credentials` those without
            permission, `retry` also those to a wrong address (no such service), `drop` none of them.
        in_flight_max: the maximum number of concurrent requests.
        retry: the delays between attempts for a bundle, and for all bundles while the destination is down.

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
            raise SettingsError("tls: set both cert_file and key_file, or neither")
        if has_files and (self.insecure or not split.tls):
            raise SettingsError(f"tls: {self.endpoint} uses plain text; remove the certificate files or use TLS")
        if self.insecure and self.endpoint.startswith("https://"):
            raise SettingsError(f"tls: {self.endpoint} uses TLS, and insecure disables it; remove one of them")
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
        """The parts of the endpoint; without TLS if `insecure` is set."""
        target = split_endpoint(self.endpoint, protocol=self.protocol)
        return Target(target.host, target.port, target.path, target.tls and not self.insecure)


@dataclass(frozen=True, slots=True)
class RequestSizes:
    """
    Sizes of the requests of an exporter.

    Attributes:
        request_bytes_max: larger requests are split between records. A request that the receiver refuses as too large
            is split in any case.
        batch_bytes_min: requests of several bundles are combined until they have this size; 0 sends each request as it
            was received.
        batch_delay_s_max: the maximum time that the first of them waits for the others.

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
            raise SettingsError(
                "min_batch must not be larger than max_request_bytes, which also limits combined requests"
            )
        if not 0 <= self.batch_delay_s_max <= 3600:
            raise SettingsError(f"max_delay must be at most an hour, not {self.batch_delay_s_max}")


@dataclass(frozen=True, slots=True)
class OtapSenderSettings:
    """
    Settings specific to OTAP.

    Attributes:
        payload_compression: compression of the tables inside messages, `zstd` or `none`; `compression_method`
            compresses the messages in addition.
        stream_lifetime_s: a stream is replaced after this time. Set it below the connection age limit of the server.
        metric_metadata: also send `Metric.metadata`; one implementation refuses every batch that has it.
        message_bytes_max: the maximum size of a message; by default receivers refuse more than 4 MiB.

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
