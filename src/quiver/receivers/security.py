"""
Access control and encryption of a port: TLS, client certificates, bearer tokens, passwords.

All listeners share this module. Credentials come from the settings or from files. Files may be replaced while the port
is open: the next handshake or request uses the new ones. If they cannot be read then, the last valid ones stay in use,
and an event reports it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from quiver.errors import SettingsError
from quiver.observe import Observer
from quiver.primitives.certificates import show_certificate

__all__ = [
    "AuthSettings",
    "Authenticator",
    "Certificates",
    "SecuritySettings",
    "TlsSettings",
    "WatchedFiles",
    "check_exposure",
    "grpc_credentials",
    "is_loopback",
    "read_credentials",
    "server_context",
    "warn_of_exposure",
    "watch_certificates",
]

_FILE_BYTES_MAX = 1024 * 1024
_READ_ATTEMPTS = 3
_LINE_END = re.compile(r"\r\n|\n|\r")

_Loaded = TypeVar("_Loaded")
_Signature = tuple[tuple[int, ...] | None, ...]


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """
    TLS 1.2 or later. PEM files, read again when they change.

    Attributes:
        cert_file: the certificate, followed by any intermediate certificates.
        key_file: its private key, not encrypted.
        client_ca_file: authorities for client certificates; if set, clients must present one.
    """

    cert_file: str
    key_file: str
    client_ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """
    The accepted values of the `authorization` header. Any one of the credentials is sufficient.

    Attributes:
        tokens: bearer tokens.
        token_file: a file with more tokens, one per line.
        users: user name → password, for basic auth.
        user_file: a file with more users, one ``name:password`` per line.

    Raises:
        SettingsError: no credential is set, or one that no request could send.
    """

    tokens: tuple[str, ...] = field(default=(), repr=False)
    token_file: str | None = None
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    user_file: str | None = None

    def __post_init__(self) -> None:
        if not (self.tokens or self.users or self.token_file or self.user_file):
            raise SettingsError("auth: set a token, a user, or a file of either")
        _check_tokens(self.tokens, "auth")
        for name, password in self.users.items():
            _check_user(name, password, "auth")


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """
    The protection of a port.

    Attributes:
        tls: None means plain text.
        auth: None accepts all clients that TLS accepts.
        insecure: listen on a public address although protection is missing.
    """

    tls: TlsSettings | None = None
    auth: AuthSettings | None = None
    insecure: bool = False

    def missing(self) -> str:
        """Return what a public address would still need; empty if nothing is missing."""
        lacks = []
        if self.tls is None:
            lacks.append("tls")
        if self.auth is None and (self.tls is None or self.tls.client_ca_file is None):
            lacks.append("auth (or tls.client_ca_file)")
        return " and ".join(lacks)


def is_loopback(host: str) -> bool:
    """Return whether *host* is only reachable from this machine. Names other than localhost are not."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_exposure(host: str, security: SecuritySettings) -> None:
    """
    Refuse to listen on a public address without TLS and authentication.

    Raises:
        SettingsError: protection is missing; the message lists the options.
    """
    lacks = security.missing()
    if lacks and not security.insecure and not is_loopback(host):
        raise SettingsError(
            f"listening_addr: others can reach {host}, so it needs {lacks}; "
            f"listen on 127.0.0.1, or set insecure: true on a trusted network"
        )


def warn_of_exposure(address: str, host: str, security: SecuritySettings, observer: Observer) -> None:
    """Report an address that is public only because of `insecure`."""
    lacks = security.missing()
    if lacks and not is_loopback(host):
        observer.event("quiver.receiver.insecure", level=logging.WARNING, address=address, missing=lacks)


# ── files that may be replaced ───────────────────────────────────────────────────────────────────────


class WatchedFiles(Generic[_Loaded]):
    """
    The content of a set of files, read again when one of them is replaced or modified. Thread-safe.

    Args:
        paths: the files.
        load: reads them.
        observer: receives an event when they were read again, or could not be.

    Raises:
        SettingsError: the files cannot be read now.
    """

    def __init__(self, paths: Sequence[str], load: Callable[[], _Loaded], observer: Observer) -> None:
        self._paths = tuple(paths)
        self._load = load
        self._observer = observer
        self._lock = threading.Lock()
        loaded, self._seen = self._read()
        if isinstance(loaded, SettingsError):
            raise loaded
        self._value: _Loaded = loaded

    def current(self) -> _Loaded:
        """Return the content of the files; the previous content if they cannot be read now or are inconsistent."""
        if not self._paths:
            return self._value
        with self._lock:
            if _signature(self._paths) != self._seen:
                loaded, self._seen = self._read()
                names = ", ".join(self._paths)
                if isinstance(loaded, SettingsError):
                    reason = str(loaded)
                    event = "quiver.receiver.reload_failed"
                    self._observer.event(event, level=logging.WARNING, files=names, reason=reason)
                else:
                    self._value = loaded
                    self._observer.event("quiver.receiver.reloaded", files=names)
            return self._value

    def _read(self) -> tuple[_Loaded | SettingsError, _Signature]:
        """Return the content of the files and their signature, or an error. A partial replacement is never used."""
        before: _Signature = ()
        for _ in range(_READ_ATTEMPTS):
            before = _signature(self._paths)
            answer: _Loaded | SettingsError
            try:
                answer = self._load()
            except SettingsError as invalid:
                answer = invalid
            if _signature(self._paths) == before:
                return answer, before
        return SettingsError(f"{', '.join(self._paths)}: being written"), ()


def _signature(paths: Sequence[str]) -> _Signature:
    return tuple(_file_state(path) for path in paths)


def _file_state(path: str) -> tuple[int, ...] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _file_bytes(path: str, what: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"{what}: cannot read {path}: {error.strerror}") from error
    if len(data) > _FILE_BYTES_MAX:
        raise SettingsError(f"{what}: {path} is larger than {_FILE_BYTES_MAX} bytes")
    return data


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Certificates:
    """A matching set of certificate, key and authorities: as an SSL context, and as PEM bytes."""

    context: ssl.SSLContext
    chain: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None


def watch_certificates(
    tls: TlsSettings, observer: Observer, *, protocols: Sequence[str] = ()
) -> WatchedFiles[Certificates]:
    """
    Return the certificates of *tls*, which follow changes of the files; a context offers *protocols* (ALPN).

    Raises:
        SettingsError: the files cannot be read, or do not match.
    """
    paths = [tls.cert_file, tls.key_file]
    if tls.client_ca_file is not None:
        paths.append(tls.client_ca_file)
    return WatchedFiles(paths, lambda: _certificates(tls, protocols), observer)


def _certificates(tls: TlsSettings, protocols: Sequence[str]) -> Certificates:
    chain = _file_bytes(tls.cert_file, "tls.cert_file")
    key = _file_bytes(tls.key_file, "tls.key_file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A resumed session would not present its certificate again, even if its authority is no longer trusted.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    if protocols:
        context.set_alpn_protocols(list(protocols))
    show_certificate(context, tls.cert_file, tls.key_file, where="tls.")
    client_ca = None
    if tls.client_ca_file is not None:
        client_ca = _file_bytes(tls.client_ca_file, "tls.client_ca_file")
        try:
            context.load_verify_locations(cadata=client_ca.decode("ascii", "ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise SettingsError(f"tls.client_ca_file: {tls.client_ca_file} has no PEM certificates") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return Certificates(context, chain, key, client_ca)


class _CurrentContext(ssl.SSLContext):
    """
    A context that starts every connection with the current certificates.

    A context in use accepts additional certificates, but cannot remove an authority; so each change creates a new one.
    """

    watched: WatchedFiles[Certificates]

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Start a connection, for asyncio."""
        return self.watched.current().context.wrap_bio(*args, **kwargs)


def server_context(tls: TlsSettings, observer: Observer, *, protocols: Sequence[str] = ()) -> ssl.SSLContext:
    """
    Return a context for asyncio servers that follows changes of the files, and offers *protocols* (ALPN).

    Raises:
        SettingsError: the files cannot be read, or do not match.
    """
    context = _CurrentContext(ssl.PROTOCOL_TLS_SERVER)
    context.watched = watch_certificates(tls, observer, protocols=protocols)
    return context


def grpc_credentials(tls: TlsSettings, observer: Observer) -> Any:
    """
    Return `grpc.ServerCredentials` that follow changes of the files.

    Raises:
        SettingsError: the files cannot be read, or do not match.
    """
    import grpc  # noqa: PLC0415 - an extra that other receivers do without

    watched = watch_certificates(tls, observer)
    mutual = tls.client_ca_file is not None

    def configuration(found: Certificates) -> Any:
        return grpc.ssl_server_certificate_configuration([(found.key, found.chain)], found.client_ca)

    in_use = watched.current()

    def changed() -> Any:  # called before each handshake; None means unchanged
        nonlocal in_use
        found = watched.current()
        if found is in_use:
            return None
        in_use = found
        return configuration(found)

    return grpc.dynamic_ssl_server_credentials(configuration(in_use), changed, require_client_authentication=mutual)


# ── who it is ────────────────────────────────────────────────────────────────────────────────────────


class Authenticator:
    """
    Checks `authorization` headers for a known credential. Thread-safe.

    The time of a check depends neither on which credential matches nor on how much of one does.

    Raises:
        SettingsError: a file cannot be read, or has no credentials.
    """

    def __init__(self, settings: AuthSettings, observer: Observer) -> None:
        self._settings = settings
        # Only digests are stored and compared: they have one length, so a prefix of a credential reveals nothing.
        self._digest_key = secrets.token_bytes(32)
        files = [path for path in (settings.token_file, settings.user_file) if path is not None]
        self._watched = WatchedFiles(files, self._digests, observer)
        self.challenge = ", ".join(self._challenges())
        """The value of `WWW-Authenticate`."""

    def check(self, headers: Iterable[str | bytes]) -> bool:
        """Return whether these `authorization` headers are accepted: exactly one, with a known credential."""
        values = list(headers)
        shown = self._digest(_credential(values[0]) if len(values) == 1 else b"")
        known = False
        for digest in self._watched.current():
            known |= hmac.compare_digest(shown, digest)
        return known

    def _challenges(self) -> list[str]:
        settings = self._settings
        found = []
        if settings.tokens or settings.token_file:
            found.append("Bearer")
        if settings.users or settings.user_file:
            found.append('Basic realm="quiver", charset="UTF-8"')
        return found

    def _digest(self, credential: bytes) -> bytes:
        return hashlib.blake2b(credential, digest_size=32, key=self._digest_key).digest()

    def _digests(self) -> tuple[bytes, ...]:
        tokens, users = read_credentials(self._settings)
        credentials = [b"bearer " + token.encode() for token in tokens]
        credentials += [b"basic " + f"{name}:{password}".encode() for name, password in users.items()]
        return tuple(self._digest(credential) for credential in credentials)


def read_credentials(settings: AuthSettings) -> tuple[tuple[str, ...], dict[str, str]]:
    """
    Return all bearer tokens, and all users with their passwords, from the settings and from the files.

    Raises:
        SettingsError: a file cannot be read, or has no credentials; or a user is repeated.
    """
    tokens = list(settings.tokens)
    users = dict(settings.users)
    if settings.token_file is not None:
        lines = [line.strip() for line in _lines(settings.token_file, "auth.bearer.file")]
        _check_tokens(lines, settings.token_file)
        tokens += lines
    if settings.user_file is not None:
        for line in _lines(settings.user_file, "auth.basic.file"):
            name, _, password = line.partition(":")  # whitespace around a password is part of it
            name = name.strip()
            _check_user(name, password, settings.user_file)
            if name in users:  # the intended password is ambiguous
                raise SettingsError(f"auth.basic.file: {settings.user_file}: the user {name} is repeated")
            users[name] = password
    return tuple(tokens), users


def _lines(path: str, what: str) -> list[str]:
    try:
        text = _file_bytes(path, what).decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise SettingsError(f"{what}: {path} is not UTF-8 text") from error
    # Not `splitlines`: its other line separators may be part of a password.
    found = [line for line in _LINE_END.split(text) if line.strip()]
    if not found:
        raise SettingsError(f"{what}: {path} is empty, so no client could authenticate")
    return found


def _check_tokens(tokens: Iterable[str], where: str) -> None:
    for token in tokens:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise SettingsError(f"{where}: a bearer token must be printable ASCII without blanks")  # without its value


def _check_user(name: str, password: str, where: str) -> None:
    if not name or ":" in name or not password.strip():
        raise SettingsError(f"{where}: a user is written name:password, and neither may be empty")


def _credential(header: str | bytes) -> bytes:
    """Return a header's credential in canonical form; empty if there is none."""
    data = header if isinstance(header, bytes) else header.encode("utf-8", "surrogateescape")
    scheme, _, rest = data.partition(b" ")
    name = scheme.lower()
    if name == b"bearer":
        return b"bearer " + rest.strip()
    if name == b"basic":
        try:
            return b"basic " + base64.b64decode(rest.strip(), validate=True)
        except binascii.Error:
            return b""
    return b""
