"""
Who may reach a port, and how it is kept private: TLS, client certificates, bearer tokens, passwords.

Shared by everything that listens. Credentials come from the settings or from files, and files may be replaced while
the port is open: the next handshake or request sees them. What cannot be read then leaves the last good ones in
place, and says so as an event.
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
    TLS 1.2 or later. PEM files, reread when they change.

    Attributes:
        cert_file: the certificate, and behind it those between it and the root.
        key_file: its private key, not encrypted.
        client_ca_file: when given, a client must show a certificate that one of these has signed.
    """

    cert_file: str
    key_file: str
    client_ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """
    What a request must show in its `authorization` header. Any one of the credentials will do.

    Attributes:
        tokens: bearer tokens.
        token_file: more of them, one a line.
        users: user name → password, for basic auth.
        user_file: more of them, ``name:password`` a line.

    Raises:
        SettingsError: there is no credential, or one that no request could show.
    """

    tokens: tuple[str, ...] = field(default=(), repr=False)
    token_file: str | None = None
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    user_file: str | None = None

    def __post_init__(self) -> None:
        if not (self.tokens or self.users or self.token_file or self.user_file):
            raise SettingsError("auth: there is no token, no user and no file of either")
        _check_tokens(self.tokens, "auth")
        for name, password in self.users.items():
            _check_user(name, password, "auth")


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """
    How a port is protected.

    Attributes:
        tls: None is plain text.
        auth: None lets everybody in whom TLS lets in.
        insecure: listen on an address that others can reach, although something is missing.
    """

    tls: TlsSettings | None = None
    auth: AuthSettings | None = None
    insecure: bool = False

    def missing(self) -> str:
        """Return what an address that others can reach would still need; empty when nothing is."""
        lacks = []
        if self.tls is None:
            lacks.append("tls")
        if self.auth is None and (self.tls is None or self.tls.client_ca_file is None):
            lacks.append("auth (or tls.client_ca_file)")
        return " and ".join(lacks)


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach *host*. A name other than localhost may be anything, so it is not."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_exposure(host: str, security: SecuritySettings) -> None:
    """
    Refuse to listen where others can reach it without TLS and without knowing who they are.

    Raises:
        SettingsError: and how to go on.
    """
    lacks = security.missing()
    if lacks and not security.insecure and not is_loopback(host):
        raise SettingsError(
            f"listening_addr: others can reach {host}, so it needs {lacks}; "
            f"listen on 127.0.0.1, or write insecure: true where the network is trusted"
        )


def warn_of_exposure(address: str, host: str, security: SecuritySettings, observer: Observer) -> None:
    """Report an address that is open to others only because `insecure` says so."""
    lacks = security.missing()
    if lacks and not is_loopback(host):
        observer.event("quiver.receiver.insecure", level=logging.WARNING, address=address, missing=lacks)


# ── files that may be replaced ───────────────────────────────────────────────────────────────────────


class WatchedFiles(Generic[_Loaded]):
    """
    What a set of files says, read again when one of them was replaced or written. Thread-safe.

    Args:
        paths: the files.
        load: reads them.
        observer: told when they were read again, or could not be.

    Raises:
        SettingsError: they cannot be read now.
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
        """Return what the files say; what they said before when they cannot be read, or do not fit together, now."""
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
        """
        Return what the files say and how they looked, or why not. Half of an exchange is never
        taken for the whole.
        """
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
    return tuple(_looks(path) for path in paths)


def _looks(path: str) -> tuple[int, ...] | None:
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
    """Certificate, key and authorities that were checked to fit together: as an SSL context, and as PEM bytes."""

    context: ssl.SSLContext
    chain: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None


def watch_certificates(tls: TlsSettings, observer: Observer) -> WatchedFiles[Certificates]:
    """
    Return the certificates of *tls*, and later those that replaced them.

    Raises:
        SettingsError: they cannot be read, or do not fit together.
    """
    paths = [tls.cert_file, tls.key_file]
    if tls.client_ca_file is not None:
        paths.append(tls.client_ca_file)
    return WatchedFiles(paths, lambda: _certificates(tls), observer)


def _certificates(tls: TlsSettings) -> Certificates:
    chain = _file_bytes(tls.cert_file, "tls.cert_file")
    key = _file_bytes(tls.key_file, "tls.key_file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A resumed session would not show its certificate again, also when its authority is trusted no more.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    try:
        # Without a password at hand OpenSSL would ask for one on the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        where = f"tls.cert_file, tls.key_file: {tls.cert_file} and {tls.key_file}"
        raise SettingsError(f"{where} are no certificate and its unencrypted key: {reason}") from error
    client_ca = None
    if tls.client_ca_file is not None:
        client_ca = _file_bytes(tls.client_ca_file, "tls.client_ca_file")
        try:
            context.load_verify_locations(cadata=client_ca.decode("ascii", "ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise SettingsError(f"tls.client_ca_file: {tls.client_ca_file} holds no certificates") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return Certificates(context, chain, key, client_ca)


class _CurrentContext(ssl.SSLContext):
    """
    A context that begins every connection with the certificates that are in the files then.

    A context in use can take a further certificate, but cannot forget an authority; so each change makes a new one.
    """

    watched: WatchedFiles[Certificates]

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Begin a connection, for asyncio."""
        return self.watched.current().context.wrap_bio(*args, **kwargs)


def server_context(tls: TlsSettings, observer: Observer) -> ssl.SSLContext:
    """
    Return a context for asyncio servers, which follows the files.

    Raises:
        SettingsError: the files cannot be read, or do not fit together.
    """
    context = _CurrentContext(ssl.PROTOCOL_TLS_SERVER)
    context.watched = watch_certificates(tls, observer)
    return context


def grpc_credentials(tls: TlsSettings, observer: Observer) -> Any:
    """
    Return `grpc.ServerCredentials` that follow the files.

    Raises:
        SettingsError: the files cannot be read, or do not fit together.
    """
    import grpc  # noqa: PLC0415 - an extra that other receivers do without

    watched = watch_certificates(tls, observer)
    mutual = tls.client_ca_file is not None

    def configuration(found: Certificates) -> Any:
        return grpc.ssl_server_certificate_configuration([(found.key, found.chain)], found.client_ca)

    in_use = watched.current()

    def changed() -> Any:  # asked before each handshake; None goes on with the last one
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
    Says whether an `authorization` header shows one of the credentials. Thread-safe.

    How long the answer takes depends neither on which credential fits nor on how much of one does.

    Raises:
        SettingsError: a file cannot be read, or holds no credentials.
    """

    def __init__(self, settings: AuthSettings, observer: Observer) -> None:
        self._settings = settings
        # Only digests are compared and kept: they have one length, and nobody can aim at a prefix of one.
        self._digest_key = secrets.token_bytes(32)
        files = [path for path in (settings.token_file, settings.user_file) if path is not None]
        self._watched = WatchedFiles(files, self._digests, observer)
        self.challenge = ", ".join(self._challenges())
        """What `WWW-Authenticate` says."""

    def check(self, headers: Iterable[str | bytes]) -> bool:
        """
        Say whether the values of a request's `authorization` headers let it in: exactly one, and
        one that is known.
        """
        values = list(headers)
        shown = self._digest(_shown(values[0]) if len(values) == 1 else b"")
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
    Return all bearer tokens, and all users with their passwords: those of the settings and those in the files.

    Raises:
        SettingsError: a file cannot be read, or holds no credentials; or a user is there twice.
    """
    tokens = list(settings.tokens)
    users = dict(settings.users)
    if settings.token_file is not None:
        lines = [line.strip() for line in _lines(settings.token_file, "auth.bearer.file")]
        _check_tokens(lines, settings.token_file)
        tokens += lines
    if settings.user_file is not None:
        for line in _lines(settings.user_file, "auth.basic.file"):
            name, _, password = line.partition(":")  # blanks around a password are a part of it
            name = name.strip()
            _check_user(name, password, settings.user_file)
            if name in users:  # the password that is meant may be either
                raise SettingsError(f"auth.basic.file: {settings.user_file}: the user {name} is there already")
            users[name] = password
    return tuple(tokens), users


def _lines(path: str, what: str) -> list[str]:
    try:
        text = _file_bytes(path, what).decode("utf-8-sig")  # some editors begin a file with a mark
    except UnicodeDecodeError as error:
        raise SettingsError(f"{what}: {path} is not UTF-8 text") from error
    # Not `splitlines`: what else that takes for the end of a line may stand in a password.
    found = [line for line in _LINE_END.split(text) if line.strip()]
    if not found:
        raise SettingsError(f"{what}: {path} is empty; nobody could get in")
    return found


def _check_tokens(tokens: Iterable[str], where: str) -> None:
    for token in tokens:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise SettingsError(f"{where}: a bearer token is printable ASCII without blanks")  # and is not told


def _check_user(name: str, password: str, where: str) -> None:
    if not name or ":" in name or not password.strip():
        raise SettingsError(f"{where}: a user is name:password, and neither is empty")


def _shown(header: str | bytes) -> bytes:
    """Return a header's credential in the one form that is compared; empty when there is none in it."""
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
