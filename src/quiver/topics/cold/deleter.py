"""
Deleting local files and objects by retention.

A local file is deleted when retention allows it and nothing is lost: each of its messages is in an object that exists
at this moment, with the size that was verified, or the topic has no object store; and, if configured, every reliable
subscription has confirmed them. An object is deleted by its own retention: its descriptor first, then the object, so
that no descriptor ever names a missing object. The newest object always stays: it records how far the topic has come.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from quiver.clock import Ages, Clock
from quiver.errors import ObjectNotFoundError
from quiver.invariant import invariant
from quiver.objects.port import ObjectTier
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.cold.spans import ObjectSpan
from quiver.topics.format.descriptor import object_key
from quiver.topics.format.names import objects_prefix
from quiver.topics.settings import DeleterSettings, ObjectRetention
from quiver.topics.wal.files import FileMarks, FrameScanner, Good, WalFile
from quiver.topics.wal.writer import Wal

__all__ = ["Deleter", "LocalDeleter", "expired_objects", "files_to_release"]

_NS_PER_S = 1_000_000_000
_NS_PER_MINUTE = 60 * _NS_PER_S
_MIB = 1024 * 1024


def files_to_release(files: Sequence[WalFile], settings: DeleterSettings, *, now_ns: int) -> list[tuple[WalFile, str]]:
    """
    Return the oldest of *files*, with the reason: ``time`` or ``size``. The active file, the last one, counts towards
    the size but is never deleted.

    *now_ns* is from the same clock as `modified_ns` of the files.
    """
    total = sum(file.size_bytes for file in files)
    limit = None if settings.retention_size_mb is None else settings.retention_size_mb * _MIB
    age_ns = None if settings.retention_time_minutes is None else settings.retention_time_minutes * _NS_PER_MINUTE
    going = []
    for file in files:
        if not file.sealed:
            break
        if age_ns is not None and now_ns - file.modified_ns >= age_ns:
            going.append((file, "time"))
        elif limit is not None and total > limit:
            going.append((file, "size"))
        else:
            break  # files are deleted in order: a younger one after it has to wait
        total -= file.size_bytes
    return going


def expired_objects(objects: Sequence[ObjectSpan], settings: ObjectRetention, *, now_s: int) -> list[ObjectSpan]:
    """
    Return the oldest of *objects* that retention deletes; never the newest one.

    *now_s* is from the same clock as `created_at` of the objects.
    """
    total = sum(one.size for one in objects)
    limit = None if settings.retention_size_mb is None else settings.retention_size_mb * _MIB
    age_s = None if settings.retention_time_minutes is None else settings.retention_time_minutes * 60
    going = []
    for one in objects[:-1]:
        if not (age_s is not None and now_s - one.created_at >= age_s) and not (limit is not None and total > limit):
            break
        going.append(one)
        total -= one.size
    return going


class _SteadyAges:
    """Gives files and objects times by the monotonic clock; ages at the start are those of the wall clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._files: Ages[str] = Ages(clock)
        self._objects: Ages[str] = Ages(clock)

    def now_ns(self) -> int:
        return round(self._clock.monotonic() * 1e9)

    def of_files(self, files: Sequence[WalFile]) -> list[WalFile]:
        began_s = self._files.born_s({one.path: one.modified_ns for one in files if one.sealed})
        return [replace(one, modified_ns=round(began_s[one.path] * 1e9)) if one.sealed else one for one in files]

    def of_objects(self, spans: Sequence[ObjectSpan]) -> list[ObjectSpan]:
        began_s = self._objects.born_s({one.object_id: one.created_at * _NS_PER_S for one in spans})
        return [one._replace(created_at=math.ceil(began_s[one.object_id])) for one in spans]


def _release(
    wal: Wal,
    topic: str,
    settings: DeleterSettings,
    *,
    confirmed: Callable[[], int | None],
    may_go: Callable[[WalFile], bool],
    check: Callable[[], None],
    ages: _SteadyAges,
    observer: Observer,
) -> tuple[WalFile, ...]:
    """Delete the oldest files by retention, as far as subscriptions and *may_go* allow; return them."""
    limit = confirmed() if settings.wait_for_subscriptions else None
    below = 0
    why: dict[str, str] = {}
    for file, reason in files_to_release(ages.of_files(wal.files()), settings, now_ns=ages.now_ns()):
        if (limit is not None and file.next_offset > limit) or not may_go(file):
            break
        invariant(file.sealed and file.first_offset >= below, "only sealed files are deleted, oldest first")
        below = file.next_offset
        why[file.path] = reason
    if below:
        check()
    # Called in any case: files that could not be removed the last time are tried again.
    removed = wal.release_below(below)
    for file in removed:
        reason = why.get(file.path, "time")
        observer.count("danube_wal_delete_total", 1, reason=reason)
        observer.event(
            "danube.deleter.file", topic=topic, path=file.path, file_seq=file.seq, reason=reason,
            first_offset=file.first_offset, next_offset=file.next_offset,
        )  # fmt: skip
    return removed


class LocalDeleter:
    """
    Deletes the files of one topic that has no objects: their messages are lost. Thread-safe.

    Args:
        wal, topic: the log; it has a directory.
        settings: of local files.
        confirmed: returns the offset after the last that every reliable subscription has confirmed; None without
            subscriptions.
        clock, observer: time, and where counts are sent.
    """

    def __init__(
        self, wal: Wal, topic: str, *, settings: DeleterSettings, confirmed: Callable[[], int | None], clock: Clock,
        observer: Observer,
    ) -> None:  # fmt: skip
        self._wal = wal
        self._topic = topic
        self._settings = settings
        self._confirmed = confirmed
        self._clock = clock
        self._observer = observer
        self._due_s = clock.monotonic()
        self._ages = _SteadyAges(clock)
        self._ages.of_files(wal.files())
        self._turn = threading.Lock()

    def run_if_due(self) -> None:
        """Delete what is due, if `check_interval_minutes` have passed since the last time. Raises as `run_once`."""
        if self._clock.monotonic() >= self._due_s:
            self.run_once()

    def run_once(self) -> tuple[WalFile, ...]:
        """
        Delete what is due; return the deleted files. `Wal.start_offset` has moved durably on return.

        Raises:
            CorruptionError: the file of a subscription is damaged, so its confirmed offset is unknown.
            OSError: as `Wal.release_below`.
        """
        with self._turn:
            self._due_s = self._clock.monotonic() + self._settings.check_interval_minutes * 60
            return _release(
                self._wal, self._topic, self._settings, confirmed=self._confirmed, may_go=lambda _: True,
                check=lambda: None, ages=self._ages, observer=self._observer,
            )  # fmt: skip


class Deleter:
    """
    Deletes for one topic. Not thread-safe: one thread drives it.

    Args:
        wal: the log; it has a directory.
        fs: its file system.
        objects: the object store.
        catalog: of the topic.
        settings, retention: of local files, and of objects.
        check: raises if this is not the owner now.
        confirmed: returns the offset after the last that every reliable subscription has confirmed; None without
            subscriptions.
        clock, observer: time, and where counts are sent.
    """

    def __init__(
        self,
        wal: Wal,
        fs: FileSystem,
        objects: ObjectTier,
        catalog: ObjectCatalog,
        *,
        settings: DeleterSettings,
        retention: ObjectRetention,
        check: Callable[[], None],
        confirmed: Callable[[], int | None],
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._wal = wal
        self._fs = fs
        self._objects = objects
        self._catalog = catalog
        self._settings = settings
        self._retention = retention
        self._check = check
        self._confirmed = confirmed
        self._observer = observer
        self._ages = _SteadyAges(clock)
        self._ages.of_files(wal.files())
        if retention != ObjectRetention():
            self._ages.of_objects(catalog.spans())

    def run_once(self) -> tuple[WalFile, ...]:
        """
        Delete what is due; return the deleted local files. `Wal.start_offset` has moved durably on return.

        Raises:
            ObjectsUnavailableError, MetadataUnavailableError: nothing more was deleted; the next call continues.
            FencedError: another owner took over.
            OSError: as `Wal.release_below`.
        """
        removed = self._release_files()
        self._expire_objects()
        return removed

    def _release_files(self) -> tuple[WalFile, ...]:
        return _release(
            self._wal, self._catalog.topic, self._settings, confirmed=self._confirmed, may_go=self._is_safe,
            check=self._check, ages=self._ages, observer=self._observer,
        )  # fmt: skip

    def _is_safe(self, file: WalFile) -> bool:
        offset = file.first_offset
        while offset < file.next_offset:
            found = self._catalog.at_or_after(offset)
            after = file.next_offset if found is None else min(found.start_offset, file.next_offset)
            if after > offset:
                # No object has these offsets. The file may be deleted only if it does not have them either.
                if self._file_has(file, offset, after):
                    return False
                offset = after
            elif found is not None:
                if not self._is_there(found):
                    return False
                offset = found.end_offset + 1
        return True

    def _is_there(self, span: ObjectSpan) -> bool:
        key = object_key(self._catalog.topic, span.object_id)
        try:
            info = self._objects.head(key)
        except ObjectNotFoundError:
            info = None
        is_intact = info is not None and info.size_bytes == span.size
        if not is_intact:
            self._observer.count("danube_wal_delete_refused_total", 1)
            self._observer.event("danube.deleter.refused", topic=self._catalog.topic, object_id=span.object_id)
        return is_intact

    def _file_has(self, file: WalFile, first: int, after: int) -> bool:
        scanner = FrameScanner(
            self._fs, file.path, position=0, end=file.size_bytes, expected=file.first_offset, marks=FileMarks()
        )
        with scanner:
            while (step := scanner.step()) is not None:
                if (
                    isinstance(step, Good)
                    and step.first_offset < after
                    and step.first_offset + len(step.frames) > first
                ):
                    return True
        return False

    def _expire_objects(self) -> None:
        if self._retention == ObjectRetention():
            return  # by default all objects stay
        spans = {one.object_id: one for one in self._catalog.spans()}
        steady, now_s = self._ages.of_objects(list(spans.values())), self._ages.now_ns() // _NS_PER_S
        going = [
            spans[one.object_id]
            for one in expired_objects(steady, self._retention, now_s=now_s)
            if one.end_offset < self._wal.start_offset
        ]
        self._remove(going)
        self._observer.count("danube_cloud_objects_expired_total", len(going))

    def truncate(self, offset: int) -> None:
        """
        Delete the objects whose messages are all below *offset*, including the newest one.

        Raises:
            ObjectsUnavailableError, MetadataUnavailableError: some may be deleted; the next call continues.
            FencedError: another owner took over.
        """
        self._remove([one for one in self._catalog.spans() if one.end_offset < offset])

    def _remove(self, going: Sequence[ObjectSpan]) -> None:
        for one in going:
            if one.end_offset >= self._wal.start_offset:
                return  # messages that local files have and objects do not would be uploaded again
            self._check()
            self._catalog.withdraw([one])
            self._objects.delete([object_key(self._catalog.topic, one.object_id)])
            self._observer.event(
                "danube.deleter.object", topic=self._catalog.topic, object_id=one.object_id,
                first_offset=one.start_offset, next_offset=one.end_offset + 1,
            )  # fmt: skip

    def remove_all(self) -> None:
        """
        Delete every object of the topic, including unfinished ones: their descriptors first.

        Raises:
            ObjectsUnavailableError, MetadataUnavailableError: some may be deleted; the next call continues.
            FencedError: another owner took over.
        """
        # List the objects first: if the object store does not answer, nothing is forgotten.
        keys = [info.key for info in self._objects.list_below(objects_prefix(self._catalog.topic))]
        self._check()
        self._catalog.replace_all([])
        self._check()
        self._objects.delete(keys)
