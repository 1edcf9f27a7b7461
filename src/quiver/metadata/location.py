"""
The location of a metadata store: from a URL, a mapping, or a mapping written as JSON.

==============  =========================================================================================
key             meaning
==============  =========================================================================================
`endpoint`      ``etcd://host:2379,host:2379`` (``etcds`` with TLS), ``sqlite:///path`` or ``memory://``
`ca_file`       etcds: certificates in PEM, one of which has signed the server's; the system's by default
`cert_file`     etcds: the client's certificate, in PEM, together with
`key_file`      its private key, not encrypted
`user`          etcd: the user, together with
`password`      etcd: the user's password; ``${NAME}`` is replaced from the *environment* argument
`timeout_s`     etcd: the timeout of one request; 5 by default
==============  =========================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from quiver.errors import SettingsError
from quiver.primitives.masking import hint, substitute

__all__ = ["ETCD_OPTIONS", "EtcdAccess", "MetadataLocation"]

ETCD_OPTIONS = ("ca_file", "cert_file", "key_file", "user", "password", "timeout_s")

_SCHEMES = ("etcd://host:port", "etcds://host:port", "sqlite:///path", "memory://")


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """How to access an etcd. Printing it shows no secret. The table above has the attributes."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class MetadataLocation:
    """
    The location of a metadata store, with its credentials. Printing it shows no secret.

    Attributes:
        kind: of the store.
        endpoints: of an etcd, as ``http://host:port``.
        path: of a SQLite file.
        access: to an etcd.
    """

    kind: Literal["etcd", "sqlite", "memory"]
    endpoints: tuple[str, ...] = ()
    path: str = ""
    access: EtcdAccess = EtcdAccess()

    @classmethod
    def of(
        cls,
        given: str | Mapping[str, object] | MetadataLocation,
        options: Mapping[str, object] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> MetadataLocation:
        """
        Return the location that *given* describes.

        Args:
            given: a URL; or a mapping of `endpoint` and options, which may be written as JSON.
            options: more options.
            environment: the values of ``${NAME}`` in options.

        Raises:
            SettingsError: it is not a metadata store, or has an unknown option.
        """
        if isinstance(given, MetadataLocation):
            return given
        if not isinstance(given, (str, Mapping)):
            raise SettingsError(f"metadata: a URL as text, or a mapping, not {type(given).__name__}")
        keys = _mapping_of(given) if isinstance(given, str) else dict(given)
        url = keys.pop("endpoint", None)
        if not isinstance(url, str):
            raise SettingsError(f"metadata: endpoint is a URL, as {', '.join(_SCHEMES)}")
        every = {key: value for key, value in {**keys, **(options or {})}.items() if value is not None}
        return cls._build(url, every, environment or {})

    @classmethod
    def _build(cls, url: str, options: Mapping[str, object], environment: Mapping[str, str]) -> MetadataLocation:
        scheme, _, rest = url.partition("://")
        if scheme in {"etcd", "etcds", "http", "https"} and rest:
            web = "https" if scheme in {"etcds", "https"} else "http"
            access = _access(options, environment)
            if web == "http" and (access.ca_file or access.cert_file):
                raise SettingsError("metadata: certificates have no effect without TLS: write etcds://host:port")
            return cls("etcd", endpoints=tuple(f"{web}://{host}" for host in _hosts(rest)), access=access)
        kind = next((kind for kind in ("sqlite", "memory") if kind == scheme), None)
        if kind is None or (kind == "sqlite" and not rest):
            raise SettingsError(f"metadata: a URL of {scheme!r} is none of {', '.join(_SCHEMES)}")
        if options:
            raise SettingsError(f"metadata: {kind} has no option {next(iter(options))!r}; only an etcd has options")
        path = unquote(urlsplit(url).netloc + urlsplit(url).path) if kind == "sqlite" else ""
        return cls(kind, path=path)

    def __str__(self) -> str:
        if self.kind == "etcd":
            return ", ".join(self.endpoints)
        return "memory://" if self.kind == "memory" else f"sqlite://{self.path}"


def _mapping_of(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {"endpoint": text}
    try:
        return dict(json.loads(text))
    except ValueError:
        # The text may contain a password, so the error does not repeat it.
        raise SettingsError("metadata: neither a URL nor JSON") from None


def _hosts(rest: str) -> list[str]:
    hosts = [host for host in rest.rstrip("/").split(",") if host]
    if not hosts or any(mark in host for mark in "/@?#" for host in hosts):
        raise SettingsError(
            f"metadata: write hosts and ports, as {_SCHEMES[0]}, without a path; user and password are options"
        )
    return hosts


def _access(options: Mapping[str, object], environment: Mapping[str, str]) -> EtcdAccess:
    values: dict[str, Any] = {}
    for key, given in options.items():
        if key not in ETCD_OPTIONS:
            raise SettingsError(f"metadata: etcd has no option {key!r}{hint(key, ETCD_OPTIONS)}")
        value, _ = substitute(f"metadata: option {key!r}", given, environment)
        values[key] = _seconds(value) if key == "timeout_s" else _text(key, value)
    access = EtcdAccess(**values)
    _together(access, ("cert_file", "key_file"))
    _together(access, ("user", "password"))
    return access


def _together(access: EtcdAccess, names: Iterable[str]) -> None:
    given = [name for name in names if getattr(access, name) is not None]
    if len(given) == 1:
        raise SettingsError(f"metadata: options {' and '.join(names)} belong together; only {given[0]} is given")


def _text(key: str, value: object) -> str:
    text = str(value)
    if not isinstance(value, str) or not text or not text.isprintable():
        raise SettingsError(f"metadata: option {key!r} is a text of printable characters, without a line break")
    return text


def _seconds(value: object) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise SettingsError("metadata: option 'timeout_s' is a number of seconds, at most 3600")
    return seconds
