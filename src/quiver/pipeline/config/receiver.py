"""The configs of receivers that listen on a port."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from pydantic import Field

from quiver.errors import SettingsError
from quiver.pipeline.config.base import Config, default_of, settings_keys
from quiver.pipeline.config.receiver_place import Receiver, ReceiverPlace
from quiver.pipeline.config.values import Address
from quiver.receivers.security import AuthSettings, SecuritySettings, TlsSettings, check_exposure, is_loopback
from quiver.receivers.settings import KeepaliveSettings, OtlpSettings, split_address

__all__ = [
    "KeepaliveConfig",
    "MetricsConfig",
    "OtlpReceiverConfig",
    "ReceiverConfig",
    "SecuredConfig",
    "StatusConfig",
]


class _Endpoint(Config):
    """
    The port of one protocol.

    Attributes:
        listening_addr: ``host:port`` of the port.
    """

    listening_addr: Address


class _Protocols(Config):
    """
    The ports of a receiver.

    Attributes:
        grpc: the port of gRPC, under the name that the Collector uses.
        http: the port of OTLP/HTTP.
    """

    grpc: _Endpoint | None = None
    http: _Endpoint | None = None


@settings_keys(TlsSettings)
class _Tls(Config):
    """TLS 1.2 or later. PEM files, read again when they change."""


@settings_keys(AuthSettings, "tokens", file="token_file")
class _Bearer(Config):
    """
    Bearer tokens that a port accepts.

    Attributes:
        token: one accepted token.
    """

    token: str | None = Field(default=None, repr=False)


@settings_keys(AuthSettings, "users", file="user_file")
class _Basic(Config):
    """
    Passwords that a port accepts.

    Attributes:
        username: the name of one user, whose `password` is given, too.
        password: the password of `username`.
    """

    username: str | None = None
    password: str | None = Field(default=None, repr=False)

    def check(self) -> None:
        if (self.username is None) != (self.password is None):
            raise ValueError("give username and password together")


class _Auth(Config):
    """
    The accepted credentials of a port; any one of them is sufficient.

    Attributes:
        bearer: bearer tokens: `token`, `tokens`, `file`.
        basic: passwords: `username` and `password`, `users`, `file`.
    """

    bearer: _Bearer | None = None
    basic: _Basic | None = None

    def check(self) -> None:
        self.settings()

    def settings(self) -> AuthSettings:
        bearer = self.bearer or _Bearer()
        basic = self.basic or _Basic()
        found = bearer.values_for(AuthSettings) | basic.values_for(AuthSettings)
        if basic.username is not None and basic.password is not None:
            if basic.username in found["users"]:
                raise SettingsError(f"basic.username: the user {basic.username} is also in basic.users; keep one")
            found["users"] = {**found["users"], basic.username: basic.password}
        if bearer.token is not None:
            found["tokens"] = (bearer.token, *found["tokens"])
        return AuthSettings(**found)


@settings_keys(
    KeepaliveSettings,
    "max_connection_idle_s",
    "max_connection_age_s",
    "max_connection_age_grace_s",
    "ping_interval_s",
    "ping_timeout_s",
)
class KeepaliveConfig(Config):
    """`keepalive` of every port."""


@settings_keys(KeepaliveSettings, "ping_interval_min_s")
class _GrpcKeepalive(KeepaliveConfig):
    """`keepalive` of a port of gRPC."""


@settings_keys(SecuritySettings, "insecure")
class SecuredConfig(Config):
    """
    Security settings of every port.

    Attributes:
        tls: `cert_file` and `key_file`, and `client_ca_file` for client certificates; reread when they change.
        auth: `bearer` (token, tokens, file) and `basic` (username and password, users, file).
    """

    tls: _Tls | None = None
    auth: _Auth | None = None

    @property
    def security(self) -> SecuritySettings:
        """The security settings of the port."""
        tls = None if self.tls is None else self.tls.build(TlsSettings)
        auth = None if self.auth is None else self.auth.settings()
        return self.build(SecuritySettings, tls=tls, auth=auth)

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


@settings_keys(SecuritySettings, "insecure")
class MetricsConfig(Config):
    """
    The section `metrics`: the ingest process serves its metrics over HTTP.

    Attributes:
        listen: ``host:port`` of `/metrics`, `/livez` and `/readyz`: plain text, without authentication.
    """

    listen: Address

    def check(self) -> None:
        """Refuse an address that other machines can reach, unless `insecure` allows it."""
        host = split_address(self.listen)[0]
        try:
            check_exposure(host, self.build(SecuritySettings))
        except SettingsError as error:
            reason = "metrics are served in plain text without authentication"
            remedy = "listen on 127.0.0.1, or write insecure: true"
            raise ValueError(f"listen: others can reach {host}, and {reason}; {remedy}") from error


@settings_keys(SecuritySettings, "insecure")
class StatusConfig(Config):
    """
    The section `status`: a process of the pipeline serves the status page.

    Attributes:
        listen: ``host:port`` of the page: plain text. Reading it needs no credentials.
        auth: the bearer tokens that may replay and drop dead letters. Without it, the page is read-only.
        hosts: names of this machine that a browser may use in the address, besides localhost and IP addresses.
    """

    listen: Address
    auth: _Auth | None = None
    hosts: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse an address that other machines can reach, unless `insecure` allows it, and credentials of no use."""
        host = split_address(self.listen)[0]
        try:
            check_exposure(host, self.build(SecuritySettings))
        except SettingsError as error:
            reason = "the status page is plain text, which anyone can read"
            remedy = "listen on 127.0.0.1, or write insecure: true"
            raise ValueError(f"listen: others can reach {host}, and {reason}; {remedy}") from error
        if self.auth is not None and self.auth.basic is not None:
            raise ValueError("auth.basic has no effect: the status page takes a bearer token")

    @property
    def is_exposed(self) -> bool:
        """Whether other machines may reach the page."""
        return self.build(SecuritySettings).insecure

    @property
    def credentials(self) -> AuthSettings | None:
        """The accepted tokens; None without `auth`."""
        return None if self.auth is None else self.auth.settings()


@settings_keys(
    OtlpSettings,
    "max_request_bytes",
    "max_decompressed_bytes",
    "ack",
    "dedupe_window_s",
    "otlp_handling",
    "capture_headers",
    response_stream_channel_size="requests_waiting_max",
    request_timeout="body_timeout_s",
    handshake_timeout="head_timeout_s",
    max_connections="connections_max",
    grpc_transport="transport",
    types=dict.fromkeys(("response_stream_channel_size", "max_connections"), Field(ge=1, le=1_000_000)),
)
class OtlpReceiverConfig(ReceiverConfig):
    """
    `urn:otel:otlp:receiver`: receives OTLP over gRPC and HTTP.

    Attributes:
        listening_addr: ``host:port`` of gRPC, if `protocols` does not name it.
        protocols: the ports of gRPC and HTTP; one of them may be left out.
        keepalive: lifetime limits of connections.
    """

    listening_addr: Address | None = None
    protocols: _Protocols = _Protocols()
    keepalive: _GrpcKeepalive = _GrpcKeepalive()

    _speaks: ClassVar[str] = "OTLP"

    def check(self) -> None:
        """Require an address, at most one per protocol, that is not exposed without `tls`, `auth` or `insecure`."""
        if self.listening_addr is not None and self.protocols.grpc is not None:
            raise ValueError("listening_addr and protocols.grpc both set the address of gRPC; keep one")
        if self.grpc_address is None and self.http_address is None:
            raise ValueError("the receiver has no address; give listening_addr or protocols")
        if self.grpc_address == self.http_address:
            raise ValueError(f"gRPC and HTTP cannot both listen on {self.grpc_address}")
        values = self.values_for(OtlpSettings)
        if values["body_timeout_s"] <= 0 or values["head_timeout_s"] <= 0:
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
        values = self.values_for(OtlpSettings)
        request_bytes, inflated_bytes = values["max_request_bytes"], values["max_decompressed_bytes"]
        return self.build(
            OtlpSettings,
            listening_addr=address,
            in_flight_bytes_max=max(default_of(OtlpSettings, "in_flight_bytes_max"), inflated_bytes),
            receiving_bytes_max=max(default_of(OtlpSettings, "receiving_bytes_max"), request_bytes),
            security=self.security,
            keepalive=self.keepalive.build(KeepaliveSettings),
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
        settings = self.settings(self.grpc_address or self.http_address or "")
        host, _ = split_address(settings.listening_addr)
        return {
            "grpc": self.grpc_address,
            "http": self.http_address,
            "speaks": self._speaks,
            "security": self.security_words(host),
            "ack": settings.ack,
            "stores": "OTAP tables" if settings.otlp_handling == "convert_to_arrow" else "requests as received",
            "request_at_most_bytes": settings.max_request_bytes,
            "waiting_at_most": settings.requests_waiting_max,
            "recognizes_repeats_for_s": settings.dedupe_window_s or None,
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
