"""
S3, Google Cloud Storage and Azure, through obstore.

Errors of the client library become errors of `quiver.errors`, without the secrets that its messages may contain. Its
retries are disabled: `retrying.py` retries, with the given clock.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from quiver.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectsUnavailableError,
    QuiverError,
    SettingsError,
    UsageError,
)
from quiver.objects.digest import UploadDigest
from quiver.objects.location import ObjectLocation
from quiver.objects.port import ObjectInfo, Parts, check_key, check_prefix, check_range
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.masking import masked

__all__ = ["RemoteObjects", "connect"]

_DELETE_KEYS_MAX = 1000
_LIST_KEYS = 1000
_PROBLEM_CHARS_MAX = 300
_REFUSED = re.compile(r"\b40[13]\b|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|ExpiredToken")
"""Answers of some servers to a listing with wrong credentials, which the client library treats as any failure."""

_NO_REQUEST = "HTTP error: builder error"
"""No request could be built: the client library uses this message for plain http and for an invalid URL."""

_PANIC = "PanicException"
"""The client library's failure for an environment variable that is not a URL, or contains a line break."""


def connect(location: ObjectLocation) -> RemoteObjects:
    """
    Return the bucket at *location*. It is not contacted yet.

    Raises:
        SettingsError: options, or environment variables of the client library, contradict each other, or a file that
            they name cannot be used.
    """
    from obstore import exceptions, store  # noqa: PLC0415 - heavy, and only here

    # Pass network settings with the others: separate client options would replace the settings that the library takes
    # from its environment variables, such as AWS_ALLOW_HTTP.
    options = dict(location.options)
    for ours, theirs in (("timeout_s", "timeout"), ("connect_timeout_s", "connect_timeout")):
        if ours in options:
            options[theirs] = timedelta(seconds=options.pop(ours))
    if str(options.get("endpoint", options.get("base_url", ""))).startswith("http://"):
        options.setdefault("allow_http", True)
    no_retries = {"max_retries": 0, "retry_timeout": timedelta(seconds=3600)}
    kind: Callable[..., Any] = {"s3": store.S3Store, "gcs": store.GCSStore, "azblob": store.AzureStore}[
        location.backend
    ]
    if location.backend == "s3":
        # A conditional copy: S3 cannot do it directly, but completing a multipart upload can.
        options.setdefault("copy_if_not_exists", "multipart")
    try:
        inner = kind(
            location.container,
            prefix=location.prefix or None,
            config=options,
            retry_config=no_retries,
        )
    except (exceptions.BaseError, ValueError, TypeError) as error:
        # No request was sent, so a retry would not help.
        raise SettingsError(f"objects: {location}: {_problem(error, location.secrets)}") from None
    return RemoteObjects(inner, name=str(location), secrets=location.secrets, has_generations=location.backend == "gcs")


@contextmanager
def _translated(operation: str, key: str, secrets: Iterable[str]) -> Iterator[None]:
    from obstore import exceptions  # noqa: PLC0415 - heavy, and only here

    try:
        yield
    except QuiverError:
        raise
    except FileNotFoundError:
        raise ObjectNotFoundError(key) from None
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise ObjectExistsError(key) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise AccessDeniedError(f"objects: {operation} {key}: {_problem(error, secrets)}") from None
    except (
        exceptions.NotSupportedError,
        exceptions.InvalidPathError,
        exceptions.UnknownConfigurationKeyError,
    ) as error:
        raise UsageError(f"objects: {operation} {key}: {_problem(error, secrets)}") from None
    except exceptions.BaseError as error:
        # `from None`: the original message is long, and may contain secrets.
        problem = _problem(error, secrets)
        if _NO_REQUEST in problem:
            reason = f"{problem}: is the endpoint a URL? plain http needs allow_http=true, or AWS_ALLOW_HTTP=true"
            raise SettingsError(f"objects: {operation} {key}: {reason}") from None
        if _REFUSED.search(problem):
            raise AccessDeniedError(f"objects: {operation} {key}: {problem}") from None
        raise ObjectsUnavailableError(operation, key, problem) from None
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        reason = f"{_problem(error, secrets)}: check endpoint, region and keys, also those of environment variables"
        raise SettingsError(f"objects: {operation} {key}: {reason}") from None


def _problem(error: BaseException, secrets: Iterable[str]) -> str:
    first, _, _ = str(error).partition("\n\nDebug source")
    return masked(" ".join(first.split()), secrets)[:_PROBLEM_CHARS_MAX]


class _Given:
    """Passes parts to the client library, and keeps an error of the parts, which is not one of the object store."""

    def __init__(self, parts: Iterator[Buffer]) -> None:
        self._parts = parts
        self._failure: BaseException | None = None

    def __iter__(self) -> Iterator[Buffer]:
        return self

    def __next__(self) -> Buffer:
        try:
            return next(self._parts)
        except StopIteration:
            raise
        except BaseException as error:
            self._failure = error
            raise

    @contextmanager
    def raising(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            if self._failure is not None:
                raise self._failure from None
            raise


class RemoteObjects:
    """
    An `ObjectTier` in a bucket.

    Args:
        store: a store of obstore.
        name: for messages.
        secrets: texts that no message may contain.
        has_generations: conditions name the generation of an object instead of its etag, as at Google.
    """

    def __init__(
        self, store: Any, *, name: str, secrets: frozenset[str] = frozenset(), has_generations: bool = False
    ) -> None:
        import obstore  # noqa: PLC0415 - heavy, and only here

        self._calls: Any = obstore
        self._store = store
        self._name = name
        self._secrets = secrets
        self._has_generations = has_generations

    def __repr__(self) -> str:
        return f"RemoteObjects({self._name})"

    def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """
        Write *data* as the object *key*, durably on return.

        Raises:
            ObjectExistsError: with *if_absent*, when there is one already.
            ObjectChangedError: with *if_match*, when the object has another etag or does not exist.
        """
        digest = UploadDigest()
        digest.add(data)
        try:
            with self._translating("put", check_key(key)):
                mode: object = "create" if if_absent else "overwrite"
                if if_match is not None:
                    mode = self._match(key, if_match)
                self._calls.put(self._store, key, data, mode=mode, use_multipart=False)
        except (ObjectExistsError, ObjectNotFoundError):
            if if_match is None:
                raise
            raise ObjectChangedError(key) from None
        return self._described(key, digest)

    def _match(self, key: str, etag: str) -> dict[str, str]:
        """Return the condition that the object still has *etag*."""
        if not self._has_generations:
            return {"e_tag": etag}
        found = self._calls.head(self._store, key)
        if found["e_tag"] != etag:
            raise ObjectChangedError(key)
        return {name: found[name] for name in ("e_tag", "version") if found[name] is not None}

    def _described(self, key: str, digest: UploadDigest) -> ObjectInfo:
        found = self.head(key)
        return replace(found, is_verified=found.etag == digest.etag())

    def put_parts(self, key: str, parts: Parts, *, part_bytes: int = 8 << 20, parallel: int = 4) -> ObjectInfo:
        """
        Write *parts* as the object *key*, with a multipart upload unless they fit into one part.

        An upload that fails leaves invisible parts at the provider; a lifecycle rule removes them.
        """
        check_key(key)
        rest = iter(parts())
        begin = []
        size = 0
        for part in rest:
            begin.append(bytes(part))
            size += len(begin[-1])
            if size > part_bytes:
                break
        else:
            return self.put(key, b"".join(begin))  # one request instead of three, and no leftovers
        digest = UploadDigest(part_bytes)
        given = _Given(_added_to(digest, itertools.chain(begin, rest)))
        with given.raising(), self._translating("put", key):
            self._calls.put(
                self._store,
                key,
                given,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=parallel,
            )
        return self._described(key, digest)

    def get(self, key: str, *, size_max: int) -> bytes:
        """
        Return the complete object.

        Raises:
            ObjectNotFoundError: the object does not exist.
            UsageError: it is larger than *size_max*.
        """
        with self._translating("get", check_key(key)):
            found = self._calls.get(self._store, key)
            size = found.meta["size"]
            if size > size_max:
                raise UsageError(f"objects: {key} has {size} bytes, more than {size_max}")
            return bytes(found.bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """
        Return *length* bytes from *start*; fewer only at the object's end.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """
        check_range(start, length)
        try:
            with self._translating("get", check_key(key)):
                return bytes(self._calls.get_range(self._store, key, start=start, length=length))
        except ObjectsUnavailableError:
            # All providers reject a range after the end, each with a different message.
            if start < self.head(key).size_bytes:
                raise
            return b""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """
        Return one piece for each (start, length) of *ranges*; adjacent ones share a request.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """
        for start, length in ranges:
            check_range(start, length)
        if not ranges:
            return []
        starts, lengths = [start for start, _ in ranges], [length for _, length in ranges]
        size = self.head(key).size_bytes
        if any(start >= size for start in starts):
            return [self.get_range(key, start, length) for start, length in ranges]
        with self._translating("get", key):
            pieces = self._calls.get_ranges(self._store, key, starts=starts, lengths=lengths)
            return [bytes(piece) for piece in pieces]

    def head(self, key: str) -> ObjectInfo:
        """
        Return the metadata of *key*.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """
        with self._translating("head", check_key(key)):
            return _info(self._calls.head(self._store, key))

    def list_below(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below *prefix* and after the key *after*, in the order of their keys."""
        folder = check_prefix(prefix)
        found: list[ObjectInfo] = []
        with self._translating("list", folder):
            pages = self._calls.list(self._store, folder or None, offset=after or None, chunk_size=_LIST_KEYS)
            for page in pages:
                found.extend(_info(meta) for meta in page)
        # Azure and others guarantee no order.
        yield from sorted(found, key=lambda info: info.key)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove *keys*; missing ones are ignored."""
        rest = list(dict.fromkeys(check_key(key) for key in keys))
        for start in range(0, len(rest), _DELETE_KEYS_MAX):
            some = rest[start : start + _DELETE_KEYS_MAX]
            try:
                with self._translating("delete", some[0]):
                    self._calls.delete(self._store, some)
            except ObjectNotFoundError:
                # Some providers report a missing object as an error, without the state of the others.
                for key in some:
                    self._delete_one(key)

    def _delete_one(self, key: str) -> None:
        try:
            with self._translating("delete", key):
                self._calls.delete(self._store, key)
        except ObjectNotFoundError:
            return

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> ObjectInfo:
        """
        Copy *source* to *target*; the provider moves the bytes.

        Raises:
            ObjectNotFoundError: *source* does not exist.
            ObjectExistsError: with *if_absent*, when there is a *target* already.
        """
        check_key(source)
        try:
            with self._translating("copy", check_key(target)):
                self._calls.copy(self._store, source, target, overwrite=not if_absent)
        except ObjectNotFoundError:
            raise ObjectNotFoundError(source) from None
        return self.head(target)

    def close(self) -> None:
        """Release the client."""
        self._store = None

    def _translating(self, operation: str, key: str) -> Any:
        if self._store is None:
            raise UsageError(f"objects: {self._name} is closed")
        return _translated(operation, key, self._secrets)


def _added_to(digest: UploadDigest, parts: Iterable[Buffer]) -> Iterator[Buffer]:
    for part in parts:
        digest.add(part)
        yield part


def _info(meta: Any) -> ObjectInfo:
    modified_ns = round(meta["last_modified"].timestamp() * 1e6) * 1000
    return ObjectInfo(meta["path"], meta["size"], meta["e_tag"], modified_ns)
