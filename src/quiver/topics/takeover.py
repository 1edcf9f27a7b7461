"""
Waiting for topics whose owner may be dead, over restarts of the process that waits.

Another owner is dead when its record stayed the same for its lease (`metadata/ownership.py`). A supervisor restarts a
process that was refused, and each restart would begin that watch again. So what was seen is kept in `takeover.watch`,
in the directory of the topics: the revision of each owner's record, and since when it has been the same.

The times are those of the monotonic clock, which goes on while a process is away and begins again with each boot. They
count only when the file names the boot that runs now; where the system names none, a watch is not kept.

The first time that a topic is refused, the owners of all topics are looked at, not of this one only: an application
that opens one after the other then waits for one lease, not for one each.
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
_LOOK_EVERY_S = 60.0

T = TypeVar("T")


def patiently(attempt: Callable[[], T], *, wait_s: float, clock: Clock) -> T:
    """
    Call *attempt* until it no longer raises `DirectoryInUseError`, for at most *wait_s*; return what it returns.

    Raises:
        DirectoryInUseError: it still does.
        UsageError: *wait_s* is negative or no number.
    """
    if not wait_s >= 0:
        raise UsageError(f"takeover_wait is a number of seconds from 0 on, not {wait_s}")
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
    What was seen of the owners of other topics, in memory and in the file *path*. Thread-safe.

    Args:
        files, path: the file; None keeps nothing over a restart.
        metadata: where the owners' records are.
        prefix: before every key.
        clock, observer: time, and where events go.
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
        self._looked_at_s = -math.inf
        self._watches = self._load()

    def of(self, key: str) -> Watch:
        """Return the watch of the owner's record *key*, for `acquire` to go on with."""
        with self._guard:
            return self._watches.setdefault(key, Watch())

    def done(self, key: str) -> None:
        """
        Forget what was seen of *key*: it is ours. The file may keep it: a record that was written
        again is another.
        """
        with self._guard:
            self._watches.pop(key, None)

    def look_at_all(self) -> None:
        """Begin to watch the owners of all topics that are not watched yet, and keep what was seen; once in a while."""
        with self._guard:
            if self._clock.monotonic() - self._looked_at_s < _LOOK_EVERY_S:
                return
        # What cannot be looked at now is looked at when somebody asks again.
        with contextlib.suppress(MetadataUnavailableError):
            for topic in self._topics():
                key = owner_key(self._prefix, topic)
                found = self._metadata.get(key)
                if found is not None:
                    self.of(key).see(found, self._clock.monotonic())
            self._looked_at_s = self._clock.monotonic()
        self._keep()

    def _topics(self) -> list[str]:
        # One request a topic: below it are as many keys as it has objects.
        prefix = topics_prefix(self._prefix)
        found = []
        start = ""
        while page := self._metadata.range(prefix, start=start, limit=1):
            topic = "/".join(page[0].key.removeprefix(prefix).split("/")[:2])
            found.append(topic)
            start = f"{prefix}{topic}0"  # behind every key that begins with the topic and a slash
        return found

    def _load(self) -> dict[str, Watch]:
        if self._path is None:
            return {}
        try:
            answer = decode_watch(self._fs.read_all(self._path, size_max=NOTE_BYTES_MAX))
        except OSError:
            return {}
        if not isinstance(answer, Frame) or answer.value[0] != self._boot:
            return {}  # it costs time and nothing else
        now_s = self._clock.monotonic()  # it was set back where a virtual machine was taken back to a snapshot
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
                # Rounded up: an owner is never silent for less than it is said to be.
                key: SeenRecord(one.revision, one.checksum, math.ceil(one.since_s * 1000))
                for key, one in self._watches.items()
                if one.revision > 0
            }
            try:
                replace_file(self._fs, path, encode_watch(boot, records))
            except OSError as error:
                self._observer.event("danube.takeover.not_kept", level=logging.WARNING, problem=str(error))
