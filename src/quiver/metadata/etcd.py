"""
Metadata in an etcd, through the JSON gateway that every etcd since 3.4 has: no gRPC, an ordinary HTTP client.

If an etcd authenticates users, a request carries a token, which the etcd issues for user and password. The gateway
writes 64-bit numbers as texts, keys and values in base64, and omits zero values.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from quiver.errors import AccessDeniedError, MetadataUnavailableError, SettingsError, StoreClosedError
from quiver.metadata.location import EtcdAccess
from quiver.metadata.port import Entry, check_commit, check_limit, end_of_prefix
from quiver.primitives.certificates import show_certificate, trust_only
from quiver.primitives.masking import masked

__all__ = ["EtcdMetadata"]

_ANSWER_CHARS_MAX = 200

_NO_USER = "user name is empty"
_OLD_USERS = "revision of auth store is old"

_ADVICE = {
    _NO_USER: ": give it the options user and password",
    "invalid user ID or password": "",
    "permission denied": ": this user needs to read and write the keys of topics",
    "CommonName of client": ": where an etcd checks users, its JSON gateway takes only client certificates without a"
    " common name (CN) in their subject",
}
"""Messages of an etcd that rejects a request because of its sender → the remedy."""

_TLS_ADVICE = {
    "CERTIFICATE_VERIFY_FAILED": "; ca_file names the authorities that may have signed the server's certificate",
    "CERTIFICATE_REQUIRED": "; the server asks for a client certificate: give it the options cert_file and key_file",
    "WRONG_VERSION_NUMBER": "; the server does not speak TLS: write etcd://",
    "Server disconnected": "; a server that speaks TLS needs etcds://",
}

T = TypeVar("T")


def _encoded(key: str | bytes) -> str:
    return b64encode(key.encode() if isinstance(key, str) else key).decode("ascii")


def _entries(answer: Any) -> list[Entry]:
    if "header" not in answer:
        raise KeyError("header")  # every etcd sends one; without it, no entries would look like an empty store
    return [
        Entry(b64decode(one["key"]).decode(), b64decode(one.get("value", "")), int(one["mod_revision"]))
        for one in answer.get("kvs", [])
    ]


def _revision(answer: Any) -> int | None:
    revision = int(answer["header"]["revision"])
    return revision if answer.get("succeeded") else None


class EtcdMetadata:
    """
    A `MetadataStore` in the etcd at *endpoints* (``http://host:port``); if one fails, the next is used.

    It is not contacted yet.

    Args:
        endpoints: the members of one cluster.
        access: certificates, user and password.

    Raises:
        SettingsError: a certificate file cannot be used.
    """

    def __init__(self, endpoints: Sequence[str], access: EtcdAccess = EtcdAccess()) -> None:  # noqa: B008 - frozen
        import httpx  # noqa: PLC0415 - heavy, and only here

        self._endpoints = tuple(endpoint.rstrip("/") for endpoint in endpoints)
        self._access = access
        self._failures: Any = (httpx.HTTPError, httpx.InvalidURL)
        self._httpx: Any = httpx
        self._guard = threading.Lock()
        self._files = _stamp(access)
        self._client: Any = self._connect()
        self._retired: list[Any] = []
        self._first = 0
        self._token: str | None = None

    def __repr__(self) -> str:
        return f"EtcdMetadata({', '.join(self._endpoints)})"

    def _connect(self) -> Any:
        context: ssl.SSLContext | bool = True
        if any(endpoint.startswith("https://") for endpoint in self._endpoints):
            context = _context(self._access)
        # Proxies and certificates from the environment would be settings that the user did not make.
        return self._httpx.Client(timeout=self._access.timeout_s, trust_env=False, verify=context)

    def _call(self, path: str, request: Mapping[str, object], read: Callable[[Any], T]) -> T:
        if self._client is None:
            raise StoreClosedError(f"metadata {self!r} is closed")
        problem = "no endpoint"
        for turn in range(len(self._endpoints)):
            number = (self._first + turn) % len(self._endpoints)
            endpoint = self._endpoints[number]
            try:
                answer = self._ask(endpoint, path, request)
            except self._failures as error:
                problem = f"{endpoint}: {self._failure(error)}"
                self._renew_certificates()
                continue
            if answer.status_code != 200:
                self._require_access(endpoint, answer)
                problem = f"{endpoint}: {answer.status_code}: {self._shown(answer.text)}"
                continue
            self._first = number
            try:
                return read(answer.json())
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                # Something else than an etcd answers there, such as a proxy.
                reason = f"not an etcd answer: {type(error).__name__}: {error}"
                raise MetadataUnavailableError(f"metadata {endpoint}: {reason}") from error
        raise MetadataUnavailableError(f"metadata {problem}")

    def _ask(self, endpoint: str, path: str, request: Mapping[str, object]) -> Any:
        """Return the answer of one member. A request without a valid token is not executed, so it can be repeated."""
        token = self._token
        if self._access.user is not None and token is None:
            token = self._authenticate(endpoint)
        answer = self._post(endpoint, path, request, token)
        if self._access.user is not None and _needs_token(answer):
            # The token has expired, the server was restarted, or users were changed meanwhile.
            answer = self._post(endpoint, path, request, self._authenticate(endpoint))
        return answer

    def _post(self, endpoint: str, path: str, request: Mapping[str, object], token: str | None) -> Any:
        client = self._client
        if client is None:
            raise StoreClosedError(f"metadata {self!r} is closed")
        headers = {"Authorization": token} if token else {}
        return client.post(f"{endpoint}/v3/{path}", json=request, headers=headers)

    def _authenticate(self, endpoint: str) -> str:
        """
        Return a token for the user, empty if the etcd requires none.

        Raises:
            AccessDeniedError: the password is rejected.
            MetadataUnavailableError: its answer is not that of an etcd.
        """
        request = {"name": self._access.user, "password": self._access.password}
        answer = self._post(endpoint, "auth/authenticate", request, None)
        if answer.status_code == 200:
            try:
                token = str(answer.json()["token"])
            except (ValueError, TypeError, KeyError) as error:
                raise MetadataUnavailableError(f"metadata {endpoint}: not an etcd answer: it has no token") from error
        elif "authentication is not enabled" in answer.text:
            token = ""
        else:
            self._require_access(endpoint, answer)
            raise MetadataUnavailableError(f"metadata {endpoint}: {answer.status_code}: {self._shown(answer.text)}")
        self._token = token
        return token

    def _require_access(self, endpoint: str, answer: Any) -> None:
        """
        Check that *answer* does not reject the request because of its sender.

        Raises:
            AccessDeniedError: it does.
        """
        advice = next((advice for words, advice in _ADVICE.items() if words in answer.text), None)
        if advice is None and answer.status_code not in {401, 403}:
            return
        raise AccessDeniedError(f"metadata {endpoint}: {self._shown(answer.text)}{advice or ''}")

    def _failure(self, error: Exception) -> str:
        text = self._shown(f"{type(error).__name__}: {error}")
        return text + next((advice for words, advice in _TLS_ADVICE.items() if words in text), "")

    def _shown(self, text: str) -> str:
        # A proxy may return what it was sent.
        secrets = [secret for secret in (self._access.password, self._token) if secret]
        return masked(" ".join(text.split()), secrets)[:_ANSWER_CHARS_MAX]

    def _renew_certificates(self) -> None:
        """Load certificates that were renewed in their files, after a failure that an expired one may have caused."""
        with self._guard:
            stamp = _stamp(self._access)
            if stamp == self._files or self._client is None:
                return
            with contextlib.suppress(SettingsError):  # only some files are replaced: the next failure tries again
                fresh = self._connect()
                # Other threads may be waiting for answers of the old client.
                self._retired.append(self._client)
                self._client, self._files = fresh, stamp

    def get(self, key: str) -> Entry | None:
        """Return the entry *key*, or None."""
        found = self._call("kv/range", {"key": _encoded(key)}, _entries)
        return found[0] if found else None

    def range(self, prefix: str, *, start: str = "", limit: int = 1000) -> list[Entry]:
        """Return the first *limit* entries below *prefix* and not below *start*."""
        check_limit(limit)
        first = max(prefix.encode(), start.encode())
        end = end_of_prefix(prefix.encode())
        if end and first >= end:
            return []
        # A NUL byte is the beginning as a key, and the end as a range end.
        request = {"key": _encoded(first or b"\0"), "range_end": _encoded(end or b"\0"), "limit": limit}
        return self._call("kv/range", request, _entries)

    def commit(self, changes: Mapping[str, bytes | None], *, expect: Mapping[str, int] | None = None) -> int | None:
        """Write and remove all of *changes*, durably, or nothing."""
        check_commit(changes, expect or {})
        operations: list[dict[str, object]] = []
        for key, value in changes.items():
            if value is None:
                operations.append({"request_delete_range": {"key": _encoded(key)}})
            else:
                operations.append({"request_put": {"key": _encoded(key), "value": _encoded(bytes(value))}})
        request = {
            "compare": [
                {"key": _encoded(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
                for key, revision in (expect or {}).items()
            ],
            "success": operations,
        }
        return self._call("kv/txn", request, _revision)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        with self._guard:
            clients, self._client = [*self._retired, self._client], None
            self._retired.clear()
        for client in clients:
            if client is not None:
                client.close()


def _needs_token(answer: Any) -> bool:
    return answer.status_code == 401 or (
        answer.status_code == 400 and any(words in answer.text for words in (_NO_USER, _OLD_USERS))
    )


def _context(access: EtcdAccess) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if access.ca_file is None:
        context.load_default_certs()
    else:
        trust_only(context, access.ca_file, what="metadata: ca_file")
    if access.cert_file is not None and access.key_file is not None:
        show_certificate(context, access.cert_file, access.key_file, where="metadata: ")
    return context


def _stamp(access: EtcdAccess) -> list[tuple[int, int] | None]:
    """Return a value that changes when a certificate file is replaced."""
    found: list[tuple[int, int] | None] = []
    for path in (access.ca_file, access.cert_file, access.key_file):
        try:
            status = None if path is None else Path(path).stat()
        except OSError:
            status = None
        found.append(None if status is None else (status.st_mtime_ns, status.st_size))
    return found
