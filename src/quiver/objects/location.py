"""
The location of objects: from a URL, or from the mapping ``backend``, ``root``, ``options`` of a broker's file.

===========  ===============================  ==========================================================
backend      root                             options, and other names for them
===========  ===============================  ==========================================================
`fs`         ``file:///cold``, ``/cold``      none
`memory`     ``memory://``                    none
`s3`         ``s3://bucket/prefix``           region, endpoint, access_key, secret_key, session_token, …
`gcs`        ``gs://bucket/prefix``           credentials_path, credentials_json, …
`azblob`     ``az://container/prefix``        account_name, account_key, sas_key, endpoint, …
===========  ===============================  ==========================================================

Options that the provider's client knows by another name may be given by that name, too. A value ``${NAME}`` is replaced
from the *environment* argument, and treated as a secret. For settings without an option the client library uses its
environment variables: ``AWS_…``, ``GOOGLE_…``, ``AZURE_…``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from quiver.errors import SettingsError
from quiver.primitives.masking import MASK, Secret, hint, masked, substitute

__all__ = ["MASK", "Backend", "ObjectLocation", "Secret", "masked"]

Backend = Literal["fs", "memory", "s3", "gcs", "azblob"]

_SCHEMES: dict[str, Backend] = {
    "file": "fs", "memory": "memory", "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs",
    "az": "azblob", "azure": "azblob", "azblob": "azblob", "abfs": "azblob", "abfss": "azblob",
}  # fmt: skip
_BACKENDS: dict[str, Backend] = {
    "fs": "fs", "local": "fs", "memory": "memory", "s3": "s3", "gcs": "gcs", "gs": "gcs",
    "azblob": "azblob", "azure": "azblob", "az": "azblob",
}  # fmt: skip

_NETWORK = {
    "timeout_s": "timeout_s", "connect_timeout_s": "connect_timeout_s", "proxy_url": "proxy_url",
    "allow_http": "allow_http",
}  # fmt: skip

_OPTIONS: dict[str, dict[str, str]] = {
    "fs": {},
    "memory": {},
    "s3": {
        **_NETWORK,
        "region": "region", "endpoint": "endpoint", "endpoint_url": "endpoint",
        "access_key": "access_key_id", "access_key_id": "access_key_id",
        "secret_key": "secret_access_key", "secret_access_key": "secret_access_key", "session_token": "session_token",
        "anonymous": "skip_signature", "virtual_host_style": "virtual_hosted_style_request", "role_arn": "role_arn",
        "role_session_name": "role_session_name", "web_identity_token_file": "web_identity_token_file",
        "checksum_algorithm": "checksum_algorithm",
        "server_side_encryption": "server_side_encryption", "sse_kms_key_id": "sse_kms_key_id",
        "request_payer": "request_payer", "copy_if_not_exists": "copy_if_not_exists",
    },
    "gcs": {
        **_NETWORK,
        "credentials_path": "service_account", "credential_file": "service_account",
        "service_account": "service_account", "credentials_json": "service_account_key",
        "service_account_key": "service_account_key", "bearer_token": "bearer_token", "endpoint": "base_url",
        "anonymous": "skip_signature", "application_credentials": "application_credentials",
    },
    "azblob": {
        **_NETWORK,
        "account_name": "account_name", "account_key": "account_key", "sas_key": "sas_key", "token": "token",
        "endpoint": "endpoint", "client_id": "client_id", "client_secret": "client_secret", "tenant_id": "tenant_id",
        "authority_host": "authority_host", "federated_token_file": "federated_token_file",
        "anonymous": "skip_signature", "use_emulator": "use_emulator", "msi_endpoint": "msi_endpoint",
    },
}  # fmt: skip
"""Backend → option → its name in the client library."""

_SECRETS = frozenset({
    "access_key_id", "secret_access_key", "session_token", "sse_kms_key_id", "service_account_key", "bearer_token",
    "account_key", "sas_key", "token", "client_secret", "proxy_url",
})  # fmt: skip
_FLAGS = frozenset({"allow_http", "skip_signature", "virtual_hosted_style_request", "request_payer", "use_emulator"})
_DURATIONS = frozenset({"timeout_s", "connect_timeout_s"})
_URLS = frozenset({"endpoint", "base_url"})
_BUCKET = re.compile(r"[A-Za-z0-9._-]+")
_URL = re.compile(r"[!#-;=?-\[\]_a-z~]+")


@dataclass(frozen=True)
class ObjectLocation:
    """
    The location of objects, with credentials. Printing it shows no secret.

    Attributes:
        backend: the kind of store.
        container: the bucket or container; empty for `fs` and `memory`.
        prefix: the folder in it, or the directory of `fs`.
        options: for the client library, with its names.
        secrets: values that must not be printed.
    """

    backend: Backend
    container: str
    prefix: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    @classmethod
    def from_url(
        cls,
        url: str,
        options: Mapping[str, object] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> ObjectLocation:
        """
        Parse a URL, the path of a directory, or a mapping written as JSON.

        Raises:
            SettingsError: the backend or one of its options is unknown.
        """
        if url.lstrip().startswith("{"):
            return cls.from_mapping({**_mapping_of(url), **(options or {})}, environment=environment)
        scheme = urlsplit(url).scheme if "://" in url else "file"
        backend = _SCHEMES.get(scheme.lower())
        if backend is None:
            raise SettingsError(f"objects: no backend for {scheme}://; there are {', '.join(sorted(_SCHEMES))}")
        return cls._build(backend, url, options or {}, environment or {})

    @classmethod
    def of(
        cls, given: str | Mapping[str, object] | ObjectLocation, *, environment: Mapping[str, str] | None = None
    ) -> ObjectLocation:
        """
        Return the location that *given* describes.

        Raises:
            SettingsError: as `from_url` and `from_mapping`.
        """
        if isinstance(given, str):
            return cls.from_url(given, environment=environment)
        if not isinstance(given, (Mapping, ObjectLocation)):
            raise SettingsError(f"objects: a URL or a directory as text, or a mapping, not {type(given).__name__}")
        return given if isinstance(given, ObjectLocation) else cls.from_mapping(given, environment=environment)

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, object], *, environment: Mapping[str, str] | None = None
    ) -> ObjectLocation:
        """
        Build a location from ``backend``, ``root`` and ``options``, as in a broker's file. Options may also be keys of
        the mapping.

        Raises:
            SettingsError: a key is missing or unknown, or backend and root contradict each other.
        """
        rest = dict(mapping)
        named, root, nested = rest.pop("backend", None), rest.pop("root", ""), rest.pop("options", None)
        backend = _BACKENDS.get(str(named).lower())
        if backend is None:
            raise SettingsError(f"objects: backend is one of {', '.join(sorted(_BACKENDS))}, not {named!r}")
        if not isinstance(root, str) or not isinstance(nested, Mapping | None):
            raise SettingsError("objects: root is a text, options is a mapping")
        return cls._build(backend, root, {**rest, **(nested or {})}, environment or {})

    @classmethod
    def _build(
        cls, backend: Backend, root: str, options: Mapping[str, object], environment: Mapping[str, str]
    ) -> ObjectLocation:
        if backend in {"fs", "memory"}:
            container, prefix = "", _directory_of(root) if backend == "fs" else ""
        else:
            container, prefix = _bucket_of(backend, root)
        known = _OPTIONS[backend]
        values: dict[str, Any] = {}
        secrets = set()
        for key, given in options.items():
            name = known.get(key.lower())
            if name is None:
                raise SettingsError(f"objects: {backend} has no option {key!r}{hint(key, known)}")
            value, substituted = substitute(f"objects: option {key!r}", given, environment)
            if substituted or name in _SECRETS:
                secrets.add(str(value))
            values[name] = _typed(key, name, value)
        return cls(backend, container, prefix, values, frozenset(secrets))

    def __str__(self) -> str:
        if self.backend == "memory":
            return "memory://"
        if self.backend == "fs":
            return f"file://{self.prefix}"
        scheme = {"s3": "s3", "gcs": "gs", "azblob": "az"}[self.backend]
        return f"{scheme}://{self.container}{'/' if self.prefix else ''}{self.prefix}"


def _mapping_of(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        # The text may contain a password, so the error does not repeat it.
        raise SettingsError("objects: neither a URL nor JSON") from None
    return dict(found)


def _typed(key: str, name: str, value: object) -> object:
    if name in _FLAGS:
        text = str(value).lower()
        if text not in {"true", "false"}:
            raise SettingsError(f"objects: option {key!r} is true or false")
        return text == "true"
    if name in _DURATIONS:
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            raise SettingsError(f"objects: option {key!r} is a number of seconds")
        return seconds
    text = str(value)
    if name in _URLS and not _is_web_url(text):
        raise SettingsError(f"objects: option {key!r} is a URL, as https://host:9000")
    if name != "service_account_key" and not text.isprintable():
        raise SettingsError(f"objects: option {key!r} contains a line break or another invisible character")
    return text


def _is_web_url(text: str) -> bool:
    # The client library crashes with others.
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and parts.port != 0
            and _URL.fullmatch(text) is not None
        )
    except ValueError:
        return False


def _directory_of(root: str) -> str:
    if "://" not in root:
        path = root
    else:
        parts = urlsplit(root)
        if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
            raise SettingsError("objects: the root of fs is a directory of this machine; write file:///path")
        path = unquote(parts.path)
    if not path.rstrip("/"):
        raise SettingsError(f"objects: {root!r} is not a directory")
    return path.rstrip("/")


def _bucket_of(backend: Backend, root: str) -> tuple[str, str]:
    parts = urlsplit(root)
    if _SCHEMES.get(parts.scheme) != backend or not parts.hostname:
        raise SettingsError(f"objects: the root of {backend} names a bucket, as s3://bucket/prefix does")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise SettingsError("objects: credentials and parameters are options, not parts of the root")
    if _BUCKET.fullmatch(parts.netloc) is None:
        raise SettingsError("objects: the name of a bucket has letters, digits, dots, hyphens and underscores")
    return parts.netloc, parts.path.strip("/")
