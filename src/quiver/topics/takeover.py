"""
Waiting for topics whose owner may be dead, across restarts of the waiting process.

Another owner is considered dead when its record has not changed for its lease (`metadata/ownership.py`). A supervisor
restarts a process that was refused, and each restart would begin to watch from the start. Therefore observations are
stored in `takeover.watch`, in the directory of the topics: the revision of each owner's record, and since when it has
not changed.

The times are those of the monotonic clock, which continues while a process is down and restarts with each boot. They
count only if the file names the current boot; on systems that name none, observations are not stored.

The first time that a topic is refused, the owners of all topics are observed, not only its own: an application that
opens one topic after the other then waits for one lease in total, not for one lease per topic.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable
from typing import TypeVar

from quiver.clock import Clock
from quiver.errors import DirectoryInUseError, MetadataUnavailableError, UsageError
from quiver.metadata.ownership import Watch
from quiver.metadata.port import MetadataStore
from quiver.observe import Observer
from quiver.primitives.batch_notes import NOTE_BYTES_MAX
from quiver.primitives.boot import boot_name
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Frame
from quiver.topics.format.descriptor import owner_key, topics_prefix
from quiver.topics.format.watch import SeenRecord, decode_watch, encode_watch

__all__ = ["OwnerWatches", "patiently"]

_POLL_S = 0.25
_OBSERVE_EVERY_S = 60.0

T = TypeVar("T")


def patiently(attempt: Callable[[], T], *, wait_s: float, clock: Clock) -> T:
    """
    Call *attempt* until it no longer raises `DirectoryInUseError`, for at most *wait_s* seconds; return its result.

    Raises:
        DirectoryInUseError: it still does after *wait_s*.
        UsageError: *wait_s* is negative or not a number.
    """
    if not wait_s >= 0:
        raise UsageError(f"takeover_wait must be a number of seconds, at least 0, not {wait_s}")
    deadline = clock.monotonic() + wait_s
    sleeping = threading.Condition()
    while True:
        try:
            return attempt()
        except DirectoryInUseError:
            left_s = deadline - clock.monotonic()
            if left_s <= 0:
                raise
        with sleeping:
            clock.wait(sleeping, min(_POLL_S, left_s))


class OwnerWatches:
    """
    Observations of the owners of other topics, in memory and in the file *path*. Thread-safe.

    Args:
        files, path: the file; None stores nothing across restarts.
        metadata: where the owners' records are.
        prefix: of every key.
        clock, observer: time, and where events are sent.
    """

    def __init__(
        self, fs: FileSystem, path: str | None, metadata: MetadataStore, *, prefix: str, clock: Clock,
        observer: Observer,
    ) -> None:  # fmt: skip
        self._fs = fs
        self._metadata = metadata
        self._prefix = prefix
        self._clock = clock
        self._observer = observer
        self._boot = boot_name(fs) if path is not None else None
        self._path = path if self._boot is not None else None
        self._guard = threading.Lock()
        self._observed_at_s = -math.inf
        self._watches = self._load()

    def of(self, key: str) -> Watch:
        """Return the watch of the owner's record *key*, for `acquire` to continue."""
        with self._guard:
            return self._watches.setdefault(key, Watch())

    def done(self, key: str) -> None:
        """
        Forget the observations of *key*, which this process owns now. The file may keep them: a record that is written
        again has another revision.
        """
        with self._guard:
            self._watches.pop(key, None)

    def observe_all(self) -> None:
        """Start watching the owners of all topics that are not watched yet, at most once a minute; store the result."""
        with self._guard:
            if self._clock.monotonic() - self._observed_at_s < _OBSERVE_EVERY_S:
                return
        # Owners that cannot be observed now are observed with the next call.
        with contextlib.suppress(MetadataUnavailableError):
            for topic in self._topics():
                key = owner_key(self._prefix, topic)
                found = self._metadata.get(key)
                if found is not None:
                    self.of(key).see(found, self._clock.monotonic())
            self._observed_at_s = self._clock.monotonic()
        self._keep()

    def _topics(self) -> list[str]:
        # One request per topic: a topic has as many keys below it as it has objects.
        prefix = topics_prefix(self._prefix)
        found = []
        start = ""
        while page := self._metadata.range(prefix, start=start, limit=1):
            topic = "/".join(page[0].key.removeprefix(prefix).split("/")[:2])
            found.append(topic)
            start = f"{prefix}{topic}0"  # after every key that begins with the topic and a slash
        return found

    def _load(self) -> dict[str, Watch]:
        if self._path is None:
            return {}
        try:
            answer = decode_watch(self._fs.read_all(self._path, size_max=NOTE_BYTES_MAX))
        except OSError:
            return {}
        if not isinstance(answer, Frame) or answer.value[0] != self._boot:
            return {}  # this costs waiting time and nothing else
        now_s = self._clock.monotonic()  # it is set back when a virtual machine is reset to a snapshot
        return {
            key: Watch(one.revision, min(one.since_ms / 1000, now_s), one.checksum)
            for key, one in answer.value[1].items()
        }

    def _keep(self) -> None:
        path, boot = self._path, self._boot
        if path is None or boot is None:
            return
        with self._guard:
            records = {
                # Rounded up: an owner is never considered silent for longer than it was.
                key: SeenRecord(one.revision, one.checksum, math.ceil(one.since_s * 1000))
                for key, one in self._watches.items()
                if one.revision > 0
            }
            try:
                replace_file(self._fs, path, encode_watch(boot, records))
            except OSError as error:
                self._observer.event("danube.takeover.not_kept", level=logging.WARNING, problem=str(error))
