"""
Facts in an etcd, through the JSON gateway that every etcd since 3.4 has: no gRPC, an ordinary HTTP client.

The gateway writes 64-bit numbers as texts, keys and values in base64, and leaves out what is zero.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from quiver.errors import AccessRefused, MetadataUnavailable, StoreClosed
from quiver.metadata.port import Entry, check_commit, check_limit, end_of_prefix

__all__ = ["EtcdMetadata"]

_ANSWER_CHARS_MAX = 200

T = TypeVar("T")


def _encoded(key: str | bytes) -> str:
    return b64encode(key.encode() if isinstance(key, str) else key).decode("ascii")


def _entries(answer: Any) -> list[Entry]:
    if "header" not in answer:
        raise KeyError("header")  # every etcd sends one; without it, no entries would mean that there are none
    return [
        Entry(b64decode(one["key"]).decode(), b64decode(one.get("value", "")), int(one["mod_revision"]))
        for one in answer.get("kvs", [])
    ]


def _revision(answer: Any) -> int | None:
    revision = int(answer["header"]["revision"])
    return revision if answer.get("succeeded") else None


class EtcdMetadata:
    """
    A `MetadataStore` in the etcd at *endpoints* (``http://host:port``); the next one is asked when one fails.

    Nothing is asked of it yet.
    """

    def __init__(self, endpoints: Sequence[str], *, timeout_s: float = 5.0) -> None:
        import httpx  # noqa: PLC0415 - heavy, and only here

        self._endpoints = tuple(endpoint.rstrip("/") for endpoint in endpoints)
        self._failures: Any = (httpx.HTTPError, httpx.InvalidURL)
        # Proxies and certificates from the environment would be settings that nobody made.
        self._client: Any = httpx.Client(timeout=timeout_s, trust_env=False)
        self._first = 0

    def __repr__(self) -> str:
        return f"EtcdMetadata({', '.join(self._endpoints)})"

    def _call(self, path: str, request: Mapping[str, object], read: Callable[[Any], T]) -> T:
        if self._client is None:
            raise StoreClosed(f"metadata {self!r} is closed")
        problem = "no endpoint"
        for turn in range(len(self._endpoints)):
            number = (self._first + turn) % len(self._endpoints)
            try:
                answer = self._client.post(f"{self._endpoints[number]}/v3/{path}", json=request)
            except self._failures as error:
                problem = f"{self._endpoints[number]}: {type(error).__name__}: {error}"
                continue
            if answer.status_code in {401, 403}:
                raise AccessRefused(f"metadata {self._endpoints[number]}: {answer.text[:_ANSWER_CHARS_MAX]}")
            if answer.status_code != 200:
                problem = f"{self._endpoints[number]}: {answer.status_code}: {answer.text[:_ANSWER_CHARS_MAX]}"
                continue
            self._first = number
            try:
                return read(answer.json())
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                # Something that is no etcd answers there, as a proxy does.
                reason = f"no answer of an etcd: {type(error).__name__}: {error}"
                raise MetadataUnavailable(f"metadata {self._endpoints[number]}: {reason}") from error
        raise MetadataUnavailable(f"metadata {problem}")

    def get(self, key: str) -> Entry | None:
        """
        Return the entry *key*, or None.
        """
        found = self._call("kv/range", {"key": _encoded(key)}, _entries)
        return found[0] if found else None

    def range(self, prefix: str, *, start: str = "", limit: int = 1000) -> list[Entry]:
        """
        Return the first *limit* entries below *prefix* and not below *start*.
        """
        check_limit(limit)
        first = max(prefix.encode(), start.encode())
        end = end_of_prefix(prefix.encode())
        if end and first >= end:
            return []
        # A NUL byte stands for "from the beginning" as a key, and for "to the end" as an end.
        request = {"key": _encoded(first or b"\0"), "range_end": _encoded(end or b"\0"), "limit": limit}
        return self._call("kv/range", request, _entries)

    def commit(self, changes: Mapping[str, bytes | None], *, expect: Mapping[str, int] | None = None) -> int | None:
        """
        Write and remove all of *changes*, durably, or nothing.
        """
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
        """
        Close the connections. Idempotent.
        """
        client, self._client = self._client, None
        if client is not None:
            client.close()
