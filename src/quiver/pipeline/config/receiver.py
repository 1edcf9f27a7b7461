"""The configs of receivers that listen on a port."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from quiver.errors import SettingsError
from quiver.pipeline.config.base import Config
from quiver.pipeline.config.formatting import duration_words, size_words
from quiver.pipeline.config.receiver_place import Receiver, ReceiverPlace
from quiver.pipeline.config.values import Address, Duration, Size
from quiver.receivers.security import AuthSettings, SecuritySettings, TlsSettings, check_exposure, is_loopback
from quiver.receivers.settings import KEEPALIVE_KEYS, KeepaliveSettings, OtlpSettings, split_address
from quiver.settings import MIB

__all__ = ["MetricsConfig", "OtlpReceiverConfig", "ReceiverConfig", "SecuredConfig"]

IN_FLIGHT_BYTES_MIN = 64 * MIB
RECEIVING_BYTES_MIN = 256 * MIB


class _Endpoint(Config):
    listening_addr: Address


class _Protocols(Config):
    grpc: _Endpoint | None = None
    http: _Endpoint | None = None


class _Tls(Config):
    cert_file: str
    key_file: str
    client_ca_file: str | None = None


class _Bearer(Config):
    token: str | None = Field(default=None, repr=False)
    tokens: tuple[str, ...] = Field(default=(), repr=False)
    file: str | None = None


class _Basic(Config):
    username: str | None = None
    password: str | None = Field(default=None, repr=False)
    users: Mapping[str, str] = Field(default_factory=dict, repr=False)
    file: str | None = None

    def model_post_init(self, _context: Any, /) -> None:
        if (self.username is None) != (self.password is None):
            raise ValueError("give username and password together")


class _Auth(Config):
    bearer: _Bearer | None = None
    basic: _Basic | None = None

    def model_post_init(self, _context: Any, /) -> None:
        try:
            self.settings()
        except SettingsError as error:
            raise ValueError(str(error)) from error

    def settings(self) -> AuthSettings:
        bearer = self.bearer or _Bearer()
        basic = self.basic or _Basic()
        users = dict(basic.users)
        if basic.username is not None and basic.password is not None:
            if basic.username in users:
                raise SettingsError(f"basic.username: the user {basic.username} is also in basic.users; keep one")
            users[basic.username] = basic.password
        tokens = bearer.tokens if bearer.token is None else (bearer.token, *bearer.tokens)
        return AuthSettings(tokens=tokens, token_file=bearer.file, users=users, user_file=basic.file)


class _Keepalive(Config):
    max_connection_idle: Duration | None = None
    max_connection_age: Duration | None = None
    max_connection_age_grace: Duration | None = None
    ping_interval: Duration = 120.0
    ping_timeout: Duration = 20.0
    ping_interval_min: Duration = 10.0

    def settings(self) -> KeepaliveSettings:
        return KeepaliveSettings(**{f"{name}_s": getattr(self, name) for name in KEEPALIVE_KEYS})


class SecuredConfig(Config):
    """
    Security settings of every port.

    Attributes:
        tls: `cert_file` and `key_file`, and `client_ca_file` for client certificates; reread when they change.
        auth: `bearer` (token, tokens, file) and `basic` (username and password, users, file).
        insecure: allow an address that other machines can reach although `tls` or `auth` is missing.
    """

    tls: _Tls | None = None
    auth: _Auth | None = None
    insecure: bool = False

    @property
    def security(self) -> SecuritySettings:
        """The security settings of the port."""
        tls = None if self.tls is None else TlsSettings(**self.tls.model_dump())
        auth = None if self.auth is None else self.auth.settings()
        return SecuritySettings(tls=tls, auth=auth, insecure=self.insecure)

    def security_words(self, host: str) -> str:
        """Describe how a port on *host* is protected."""
        words = []
        tls, auth = self.security.tls, self.security.auth
        if tls is None:
            words.append("plain text")
        else:
            words.append("TLS, client certificates" if tls.client_ca_file else "TLS")
        if auth is not None:
            tokens, users = auth.tokens or auth.token_file, auth.users or auth.user_file
            kinds = [kind for kind, there in (("bearer tokens", tokens), ("passwords", users)) if there]
            words.append(" or ".join(kinds))
        words.append("this machine only" if is_loopback(host) else "reachable by others")
        return ", ".join(words)


class ReceiverConfig(SecuredConfig):
    """The config of a receiver that listens on a port."""

    @property
    @abstractmethod
    def addresses(self) -> dict[str, str]:
        """The address of each protocol."""

    @abstractmethod
    def settings(self, address: str) -> Any:
        """
        Return the settings of the receiver that listens on *address*.

        Raises:
            SettingsError: two of the settings contradict each other.
        """

    def settings_at(self, place: ReceiverPlace) -> dict[str, Any]:
        """
        Return the settings of each port, adapted to *place*, by protocol.

        Raises:
            SettingsError: two of the settings contradict each other.
        """
        return {protocol: place.settled(self.settings(address)) for protocol, address in self.addresses.items()}

    @abstractmethod
    def receivers(self, place: ReceiverPlace) -> Iterator[Receiver]:
        """Yield one receiver per port; they are not started yet."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Describe the receiver."""


class MetricsConfig(Config):
    """
    The section `metrics`: the ingest process serves its metrics over HTTP.

    Attributes:
        listen: ``host:port`` of `/metrics`, `/livez` and `/readyz`: plain text, without authentication.
        insecure: allow an address that other machines can reach.
    """

    listen: Address
    insecure: bool = False

    def model_post_init(self, _context: Any, /) -> None:
        """Refuse an address that other machines can reach, unless `insecure` allows it."""
        host = split_address(self.listen)[0]
        try:
            check_exposure(host, SecuritySettings(insecure=self.insecure))
        except SettingsError as error:
            reason = "metrics are served in plain text without authentication"
            remedy = "listen on 127.0.0.1, or write insecure: true"
            raise ValueError(f"listen: others can reach {host}, and {reason}; {remedy}") from error


class OtlpReceiverConfig(ReceiverConfig):
    """
    `urn:otel:otlp:receiver`. `listening_addr` is gRPC; `protocols` names gRPC and HTTP each.

    Attributes:
        response_stream_channel_size: the maximum number of requests that wait for their confirmation.
        dedupe_window: a byte-identical request within this time is confirmed but not stored again; 0 disables it.
        ack: `synced` confirms after a group fsync, `logged` when the request is in the log.
        max_request_bytes: the maximum size of a request on the wire.
        max_decompressed_bytes: the maximum size of a decompressed request.
        max_connections: the maximum number of open connections per protocol.
        keepalive: lifetime limits of connections.
        request_timeout: the time limit for a client to send a request.
        handshake_timeout: the time limit for the handshake of a new client and the head of its first request.
        otlp_handling: `pass_through` stores requests as received, `convert_to_arrow` as OTAP tables.
        capture_headers: request headers to store as resource attributes.
    """

    listening_addr: Address | None = None
    protocols: _Protocols = _Protocols()
    response_stream_channel_size: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    dedupe_window: Duration = 0.0
    ack: Literal["synced", "logged"] = "synced"
    max_request_bytes: Size = 16 * MIB
    max_decompressed_bytes: Size = 16 * MIB
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    keepalive: _Keepalive = _Keepalive()
    request_timeout: Duration = 30.0
    handshake_timeout: Duration = 10.0
    otlp_handling: Literal["pass_through", "convert_to_arrow"] = "pass_through"
    capture_headers: tuple[str, ...] = ()

    _speaks: ClassVar[str] = "OTLP"

    def model_post_init(self, _context: Any, /) -> None:
        """Require an address, at most one per protocol, that is not exposed without `tls`, `auth` or `insecure`."""
        if self.listening_addr is not None and self.protocols.grpc is not None:
            raise ValueError("listening_addr and protocols.grpc both set the address of gRPC; keep one")
        if self.grpc_address is None and self.http_address is None:
            raise ValueError("the receiver has no address; give listening_addr or protocols")
        if self.grpc_address == self.http_address:
            raise ValueError(f"gRPC and HTTP cannot both listen on {self.grpc_address}")
        if self.request_timeout <= 0 or self.handshake_timeout <= 0:
            raise ValueError("request_timeout and handshake_timeout must be positive")
        grpc_key = "listening_addr" if self.protocols.grpc is None else "protocols.grpc.listening_addr"
        listeners = ((grpc_key, self.grpc_address), ("protocols.http.listening_addr", self.http_address))
        for key, address in listeners:
            try:
                if address is not None:
                    self.settings(address)
            except SettingsError as error:
                raise ValueError(str(error).replace("listening_addr:", f"{key}:", 1)) from error

    def settings(self, address: str) -> OtlpSettings:
        """
        Return the settings of the receiver that listens on *address*.

        Raises:
            SettingsError: two of the settings contradict each other.
        """
        return OtlpSettings(
            listening_addr=address,
            max_request_bytes=self.max_request_bytes,
            max_decompressed_bytes=self.max_decompressed_bytes,
            ack=self.ack,
            dedupe_window_s=self.dedupe_window,
            in_flight_bytes_max=max(IN_FLIGHT_BYTES_MIN, self.max_decompressed_bytes),
            receiving_bytes_max=max(RECEIVING_BYTES_MIN, self.max_request_bytes),
            requests_waiting_max=self.response_stream_channel_size,
            body_timeout_s=self.request_timeout,
            head_timeout_s=self.handshake_timeout,
            connections_max=self.max_connections,
            security=self.security,
            keepalive=self.keepalive.settings(),
            otlp_handling=self.otlp_handling,
            capture_headers=self.capture_headers,
        )

    def receivers(self, place: ReceiverPlace) -> Iterator[Receiver]:
        """Yield one receiver per port; they are not started yet."""
        from quiver.receivers.intake import OtlpIntake  # noqa: PLC0415 - an extra; only what is configured
        from quiver.receivers.otlp.http_receiver import OtlpHttpReceiver  # noqa: PLC0415

        intake: OtlpIntake | None = None
        for protocol, settings in self.settings_at(place).items():
            # One dedupe window for both protocols: a client may retry over the other one.
            intake = intake or OtlpIntake(place.store, settings, observer=place.observer)
            if protocol == "grpc":
                yield self._over_grpc()(place.store, settings, intake=intake, problems=place.problems)
            else:
                yield OtlpHttpReceiver(place.store, settings, intake=intake)

    def _over_grpc(self) -> Callable[..., Receiver]:
        from quiver.receivers.otlp.grpc_receiver import OtlpGrpcReceiver  # noqa: PLC0415 - an extra; only what is configured

        return OtlpGrpcReceiver

    def describe(self) -> dict[str, Any]:
        """Describe the receiver."""
        host, _ = split_address(self.grpc_address or self.http_address or "")
        return {
            "grpc": self.grpc_address,
            "http": self.http_address,
            "speaks": self._speaks,
            "security": self.security_words(host),
            "ack": self.ack,
            "stores": "OTAP tables" if self.otlp_handling == "convert_to_arrow" else "requests as received",
            "request_at_most": size_words(self.max_request_bytes),
            "waiting_at_most": self.response_stream_channel_size,
            "recognises_repeats_for": duration_words(self.dedupe_window) if self.dedupe_window else None,
        }

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each protocol."""
        found = {"grpc": self.grpc_address, "http": self.http_address}
        return {protocol: address for protocol, address in found.items() if address is not None}

    @property
    def grpc_address(self) -> str | None:
        """The address of gRPC, or None."""
        return self.protocols.grpc.listening_addr if self.protocols.grpc else self.listening_addr

    @property
    def http_address(self) -> str | None:
        """The address of HTTP, or None."""
        return self.protocols.http.listening_addr if self.protocols.http else None
