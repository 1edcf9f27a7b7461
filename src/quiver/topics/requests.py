"""
Administration of topics that another process has open: requested in files, executed by that process.

::

    1  the requester writes       .requests/<id>.request    complete, by a rename
    2  the owner renames it       .requests/<id>.taken      from here on the requester cannot withdraw it
    3  the owner executes it      commands are idempotent: after a crash the request is repeated
    4  the owner writes           .requests/<id>.answer     and removes the taken file
    5  the requester reads it     and removes it

The owner checks periodically, with its other maintenance, and works in a separate thread: an upload takes time, and a
consumer may hold a subscription. Nothing here is durable. A requester that finds its request removed, or the directory
free, starts again.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

import quiver.errors
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import DirectoryInUseError, QuiverError, TransientError, UsageError
from quiver.primitives.disk.atomic import replace_advisory_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.lock import is_held
from quiver.primitives.scan import Frame, as_damage
from quiver.topics.administration import TopicAdministration
from quiver.topics.format.names import LOCK_NAME
from quiver.topics.format.request import (
    REQUEST_BYTES_MAX,
    REQUESTS_DIR,
    CommandFailure,
    TopicRequest,
    decode_answer,
    decode_request,
    encode_answer,
    encode_refusal,
    encode_request,
    parse_request_name,
    request_name,
)
from quiver.topics.takeover import patiently

__all__ = ["RequestQueue", "ask", "perform"]

_POLL_S = 0.1


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────


def perform(
    store: TopicAdministration, request: TopicRequest, *, wait_s: float = 0.0, clock: Clock = SYSTEM_CLOCK
) -> dict[str, Any]:
    """
    Execute *request* on *store*; return its result, as values for JSON.

    Commands on topics that another owner or subscriber uses are retried, for at most *wait_s* seconds in total.

    Raises:
        UsageError: the command is unknown, or its arguments are not valid.
        QuiverError, OSError: as the method of `TopicStore`.
    """
    deadline = clock.monotonic() + wait_s

    def patient(do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return patiently(do, wait_s=max(0.0, deadline - clock.monotonic()), clock=clock)

    command, of_each = _COMMANDS.get(request.command), _OF_EACH.get(request.command)
    try:
        if command is not None:
            return patient(lambda: command(store, **request.arguments))
        if of_each is not None:
            return _each(store, **request.arguments, do=lambda name: patient(lambda: of_each(store, name)))
    except TypeError as error:
        raise UsageError(f"{request.command}: {error}") from error
    raise UsageError(f"{request.command!r} is not a command; known are {', '.join([*_COMMANDS, *_OF_EACH])}")


def _seek(store: TopicAdministration, topic: str, subscription: str, start: str | int) -> dict[str, Any]:
    return {"offset": store.seek(topic, subscription, _start(start))}


def _unsubscribe(store: TopicAdministration, topic: str, subscription: str) -> dict[str, Any]:
    if not store.unsubscribe(topic, subscription):
        raise UsageError(f"{topic} has no subscription {subscription}")
    return {}


def _truncate(store: TopicAdministration, topic: str, before: str | int) -> dict[str, Any]:
    return {"start_offset": store.truncate(topic, _start(before))}


def _delete(store: TopicAdministration, topic: str) -> dict[str, Any]:
    store.delete(topic)
    return {}


def _upload(store: TopicAdministration, topic: str) -> dict[str, Any]:
    return {"uploaded_offset": store.upload(topic)}


def _unload(store: TopicAdministration, topic: str) -> dict[str, Any]:
    return {"next_offset": store.unload(topic)}


def _reappend(store: TopicAdministration, topic: str) -> dict[str, Any]:
    return {"files": [asdict(one) for one in store.reappend(topic)]}


def _each(store: TopicAdministration, topic: str | None, do: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    if topic is not None:
        return {"topics": [{"topic": topic, **do(topic)}]}
    rows = []
    for name in store.topics():
        try:
            rows.append({"topic": name, **do(name)})
        except (QuiverError, OSError) as error:
            rows.append({"topic": name, "problem": str(error)})  # continue with the other topics
    return {"topics": rows}


_COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {
    "seek": _seek,
    "unsubscribe": _unsubscribe,
    "truncate": _truncate,
    "delete": _delete,
}

_OF_EACH: dict[str, Callable[[TopicAdministration, str], dict[str, Any]]] = {
    "upload": _upload,
    "unload": _unload,
    "reappend": _reappend,
}
"""Commands for one topic, or for all."""


def _start(value: str | int) -> Any:
    if isinstance(value, str) and value not in {"earliest", "latest"}:
        try:
            return datetime.fromisoformat(value)
        except ValueError as error:
            raise UsageError(f"{value!r} is not a start: use an offset, earliest, latest or a time") from error
    return value


# ── the process that has the topics open ─────────────────────────────────────────────────────────────────


class RequestQueue:
    """The requests below *root*, whose lock the caller holds. `serve` is called by one thread at a time."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._directory = f"{root}/{REQUESTS_DIR}"
        self._turn = threading.Lock()

    def clear(self) -> None:
        """Remove requests for a process that had the directory before: requesters that still wait ask again."""
        for name in self._names():
            with contextlib.suppress(OSError):
                self._fs.remove(f"{self._directory}/{name}")

    def is_waiting(self) -> bool:
        """Return whether there are requests."""
        return any(name.endswith(".request") for name in self._names())

    def serve(self, do: Callable[[TopicRequest], Mapping[str, Any]]) -> int:
        """Execute the requests with *do* and answer them; return their number."""
        count = 0
        with self._turn:
            for name in self._names():
                parsed = parse_request_name(name)
                if parsed is not None and parsed[1] == "request":
                    count += self._serve_one(parsed[0], do)
        return count

    def _serve_one(self, identity: str, do: Callable[[TopicRequest], Mapping[str, Any]]) -> bool:
        taken = self._path(identity, "taken")
        try:
            self._fs.rename(self._path(identity, "request"), taken)
            found = decode_request(self._fs.read_all(taken, size_max=REQUEST_BYTES_MAX))
        except OSError:
            return False  # the requester has withdrawn it
        if isinstance(found, Frame):
            answer = self._answer(found.value, do)
        else:
            answer = encode_refusal(CommandFailure("UsageError", as_damage(found, 0).reason))
        with contextlib.suppress(OSError):  # a full disk takes no answer: the request is repeated
            replace_advisory_file(self._fs, self._path(identity, "answer"), answer)
        with contextlib.suppress(OSError):
            self._fs.remove(taken)
        return True

    @staticmethod
    def _answer(request: TopicRequest, do: Callable[[TopicRequest], Mapping[str, Any]]) -> bytes:
        try:
            return encode_answer(do(request))
        except (QuiverError, OSError) as error:
            return encode_refusal(CommandFailure(type(error).__name__, str(error)))
        except Exception as error:  # noqa: BLE001 - reported to the requester; the topics continue
            return encode_refusal(CommandFailure("QuiverError", f"{request.command} failed: {error!r}"))

    def _names(self) -> list[str]:
        try:
            return self._fs.list_dir(self._directory)
        except OSError:
            return []

    def _path(self, identity: str, stage: Any) -> str:
        return f"{self._directory}/{request_name(identity, stage)}"


# ── the requesting process ───────────────────────────────────────────────────────────────────────────────


def ask(fs: FileSystem, root: str, request: TopicRequest, *, wait_s: float, clock: Clock) -> Mapping[str, Any] | None:
    """
    Ask the process that has the topics below *root* open to execute *request*; return the result.

    Return None if the request has to be repeated: that process has ended, or another one has the directory now.

    Raises:
        DirectoryInUseError: the request was not taken, or not finished, within *wait_s* seconds.
        UsageError, TransientError, QuiverError: the error of the command.
        OSError: the request cannot be written.
    """
    identity = secrets.token_hex(8)
    directory = f"{root}/{REQUESTS_DIR}"
    fs.make_dirs(directory)
    paths = {stage: f"{directory}/{request_name(identity, stage)}" for stage in ("request", "taken", "answer")}
    replace_advisory_file(fs, paths["request"], encode_request(request))
    deadline = clock.monotonic() + wait_s
    sleeping = threading.Condition()
    try:
        while True:
            there = [stage for stage, path in paths.items() if fs.exists(path)]
            if "answer" in there:
                return _result(fs.read_all(paths["answer"], size_max=REQUEST_BYTES_MAX))
            if not there or is_held(fs, f"{root}/{LOCK_NAME}") is False:
                return None
            if clock.monotonic() >= deadline:
                raise _unanswered(root, wait_s, is_taken="taken" in there)
            with sleeping:
                clock.wait(sleeping, _POLL_S)
    finally:
        for path in paths.values():
            with contextlib.suppress(OSError):
                fs.remove(path)


def _unanswered(root: str, wait_s: float, *, is_taken: bool) -> DirectoryInUseError:
    remedy = (
        f"it has begun and not finished within {wait_s:g} s: it goes on there; ask again, with a longer --wait"
        if is_taken
        else f"it did not take the request within {wait_s:g} s: stop it, or let it call TopicStore.maintain"
    )
    return DirectoryInUseError(root, "another process", remedy=remedy)


def _result(data: bytes) -> Mapping[str, Any]:
    found = decode_answer(data)
    if not isinstance(found, Frame):
        raise QuiverError(f"the answer cannot be read: {as_damage(found, len(data)).reason}")
    if not isinstance(found.value, CommandFailure):
        return found.value
    kind = getattr(quiver.errors, found.value.kind, QuiverError)
    for known in (UsageError, TransientError):
        if isinstance(kind, type) and issubclass(kind, known):
            raise known(found.value.message)
    raise QuiverError(found.value.message)
