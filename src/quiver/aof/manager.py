"""The manager of a directory of logs: it holds the lock, opens the logs, and runs the threads that they share."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from quiver.aof.append.workers import Workers
from quiver.aof.compaction import CompactionHook
from quiver.aof.config import AofConfig
from quiver.aof.format.names import (
    ARCHIVE,
    DURABILITY,
    IDENTITY_NAME,
    LOCK_NAME,
    SEGMENTS,
    WARM,
    is_stream_name,
)
from quiver.aof.log import Aof
from quiver.aof.log_context import LogContext
from quiver.aof.reading.files import is_log_directory
from quiver.aof.recovery import recover
from quiver.aof.snapshots import LogSnapshot
from quiver.aof.tiers.tier_manager import has_tiers
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CorruptionError, QuiverError, StoreClosedError, UsageError
from quiver.lazy_names import renamed_keyword
from quiver.objects import ObjectLocation, ObjectTier, open_objects
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem, directory_name
from quiver.primitives.disk.lock import hold
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.forked import refuse_in_children

__all__ = ["AofManager"]

_IDENTITY_BYTES_MAX = 64


class AofManager:
    """
    The logs of one directory, each in a subdirectory with its name. Thread-safe.

    Made by `open`. Its threads flush, seal, preallocate and retire segments for all logs.
    """

    def __init__(
        self,
        path: str,
        config: AofConfig,
        *,
        fs: FileSystem,
        clock: Clock,
        observer: Observer,
        background: bool,
        objects: Callable[[], ObjectTier] | None,
        compaction: CompactionHook | None,
    ) -> None:
        self.path = directory_name(path)
        self.config = config
        self._fs = fs
        self._clock = clock
        self._observer = observer
        self._objects = objects
        self._compaction = compaction
        self._logs: dict[str, Aof] = {}
        self._contexts: dict[str, LogContext] = {}
        self._guard = threading.RLock()
        self._closed = False
        fs.make_dirs(self.path)
        self._lock = hold(fs, f"{self.path}/{LOCK_NAME}", owner="quiver aof")
        threads = config.flush.max_concurrent_flushes if background else 0
        self._workers = Workers(self.path, clock=clock, observer=observer, flush_threads=threads)
        self._workers.start()
        refuse_in_children(self, f"the directory of logs {self.path}")

    @classmethod
    @renamed_keyword("files", "fs")
    def open(
        cls,
        path: str | None = None,
        config: AofConfig | None = None,
        *,
        fs: FileSystem = REAL_FILES,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
        background: bool = True,
        objects: Callable[[], ObjectTier] | None = None,
        compaction: CompactionHook | None = None,
    ) -> AofManager:
        """
        Open the directory *path* and create it if it is missing. Only one process may have it open.

        Args:
            path: the directory; each log has a subdirectory. None: `config.root_dir`.
            config: the settings of logs that are opened without their own.
            fs: the file system.
            clock: the time.
            observer: receives counts and events.
            background: with False there are no threads, and `maintain` does their work.
            objects: returns the object tier when it is first needed, instead of the one in the settings.
            compaction: returns whether a cold segment is no longer needed, for logs with `compaction="head_trim"`.

        Raises:
            UsageError: *path* is empty, or *config* is not an `AofConfig`.
            DirectoryInUseError: another process has the directory open.
            OSError: the disk failed.
        """
        config = _checked(config) or AofConfig()
        path = config.root_dir if path is None else str(path)
        if not path:
            raise UsageError("the directory of the logs has no name: pass a path")
        return cls(
            path,
            config,
            fs=fs,
            clock=clock,
            observer=observer or InMemoryObserver(),
            background=background,
            objects=objects,
            compaction=compaction,
        )

    def log(self, name: str, config: AofConfig | None = None) -> Aof:
        """
        Open or create the log *name*, and return it. Repeated calls return the same object until it is closed.

        Raises:
            UsageError: the name is invalid, *config* is not an `AofConfig`, or the log is open with other settings.
            StoreClosedError: the manager was closed.
            OSError: the disk failed.
        """
        if not isinstance(name, str) or not is_stream_name(name):
            raise UsageError(f"a log cannot be called {name!r}: use up to 64 of A-Z a-z 0-9 _ - and inner dots")
        with self._guard:
            if self._closed:
                raise StoreClosedError(f"{self.path} was closed")
            log = self._logs.get(name)
            if log is not None and not log.closed and config is not None:
                _require_same(log, config)
            if log is None or log.closed:
                log = self._logs[name] = self._open(name, _checked(config) or self.config)
                log.import_staged()
            return log

    def _open(self, name: str, config: AofConfig) -> Aof:
        root = f"{self.path}/{name}"
        for folder in (SEGMENTS, ARCHIVE, WARM, DURABILITY):
            self._fs.make_dirs(f"{root}/{folder}")
        stream_id = self._identity(f"{root}/{IDENTITY_NAME}")
        config = dataclasses.replace(config, root_dir=root)
        has_tiers(self._fs, config, stream_id)  # raises for invalid settings, before anything is opened
        objects = self._objects_of(config)
        began = self._clock.monotonic()
        recovered = recover(
            self._fs, root, stream_id=stream_id, clock=self._clock, observer=self._observer, now_s=began
        )
        self._observer.record("aof_recovery_duration_seconds", self._clock.monotonic() - began)
        context = LogContext(
            name, config, recovered, stream_id=stream_id, fs=self._fs,
            clock=self._clock, observer=self._observer, workers=self._workers, objects=objects,
            compaction=self._compaction,
        )  # fmt: skip
        log = Aof(context)
        refuse_in_children(log, f"the log {name}")
        self._contexts[name] = context
        return log

    def _objects_of(self, config: AofConfig) -> Callable[[], ObjectTier] | None:
        location = None if config.tiers is None else config.tiers.objects
        if self._objects is not None or location is None:
            return self._objects
        # Parsed now, opened when first needed: a wrong URL must not be reported only when a disk is full.
        parsed = ObjectLocation.of(location)
        return lambda: open_objects(parsed, fs=self._fs, clock=self._clock, observer=self._observer)

    def _identity(self, path: str) -> int:
        """Return the permanent number of the log: names of files and objects contain it."""
        if self._fs.exists(path):
            file = self._fs.open_read(path)
            try:
                text = file.pread(_IDENTITY_BYTES_MAX, 0).decode("ascii", "replace").strip()
            finally:
                file.close()
            if not (text.isascii() and text.isdecimal()):
                where = f"restore it from the name of the file in {DURABILITY}/"
                raise CorruptionError(path, 0, f"{text[:20]!r} is not the number of a log: {where}")
            return int(text)
        # The time of creation in nanoseconds: unlike a counter it differs between managers that share a bucket.
        number = self._clock.now_ns()
        taken = {log.stream_id for log in self._logs.values()}
        while number in taken:
            number += 1
        replace_file(self._fs, path, f"{number}\n".encode())
        return number

    def logs(self) -> list[str]:
        """Return the names of all logs in the directory, open or not."""
        names = self._fs.list_dir(self.path)
        return [name for name in names if is_log_directory(self._fs, f"{self.path}/{name}")]

    def snapshot(self) -> tuple[LogSnapshot, ...]:
        """Return the state of each open log."""
        with self._guard:
            return tuple(log.snapshot() for log in self._logs.values() if not log.closed)

    def maintain(self) -> None:
        """Do the work of the threads in this thread: flush, seal, make spares, retire, move between tiers."""
        with self._guard:
            contexts = [context for context in self._contexts.values() if not context.closed]
        for context in contexts:
            self._workers.schedule_maintenance(context)
            self._workers.schedule_sinks(context)
        self._workers.run_pending()

    def close(self) -> None:
        """
        Close all logs, stop the threads and release the directory. Idempotent.

        Raises:
            QuiverError, OSError: the first error of a log that could not be closed cleanly; all logs are closed.
        """
        with self._guard:
            if self._closed:
                return
            self._closed = True
            failure: BaseException | None = None
            for log in self._logs.values():
                try:
                    log.close()
                except (OSError, QuiverError) as error:
                    failure = failure or error
            self._workers.stop()
            self._lock.release()
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _require_same(log: Aof, config: AofConfig) -> None:
    if dataclasses.replace(_checked(config) or config, root_dir="") != dataclasses.replace(log.config, root_dir=""):
        raise UsageError(f"the log {log.name} is open with other settings: close it first, or open it without settings")


def _checked(config: AofConfig | None) -> AofConfig | None:
    if config is not None and not isinstance(config, AofConfig):
        raise UsageError(f"the settings of a log are an AofConfig, not {type(config).__name__}")
    return config
