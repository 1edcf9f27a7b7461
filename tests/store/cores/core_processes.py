"""
Processes that each open one core of a directory on real files. The test controls them through a pipe, and stops or
kills them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from core_rig import numbered

import quiver
from clean_process import PROCESSES
from quiver import CapacityError, Settings
from quiver.store.cores.store import MultiCoreStore

SEGMENT_BYTES = 32 * 1024
CAP_BYTES = 20 * SEGMENT_BYTES
BUNDLE_BYTES = 4_000
PROCESSES.set_forkserver_preload(["quiver.store.cores.store"])


def settings(**changes: object) -> Settings:
    small: dict[str, Any] = {
        "segment_bytes_max": SEGMENT_BYTES,
        "wal_rotate_bytes": 2 * SEGMENT_BYTES,
        "wal_bytes_max": 8 * SEGMENT_BYTES,
        "wal_flush_interval_s": 0.005,
        "maintain_interval_s": 0.005,
        "size_cap_bytes": CAP_BYTES,
    }
    return Settings(**{**small, **changes})


def disk_bytes(root: Path) -> int:
    """Return the bytes that all cores have on disk."""
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(directory) / name).stat().st_size
    return total


def segments(root: Path, core: int) -> list[str]:
    return sorted(path.name for path in (root / f"core_{core}" / "segments").glob("*.qseg"))


def put(store: MultiCoreStore, first: int, count: int, timeout: float = 0.0) -> int:
    """Ingest up to *count* bundles until the store is full; return how many it accepted."""
    for done in range(count):
        try:
            store.ingest(numbered(first + done, size=BUNDLE_BYTES), timeout=timeout)
        except CapacityError:
            return done
    return count


def take_all(store: MultiCoreStore) -> int:
    """Acknowledge everything durably; return the number of bundles."""
    subscriber = store.register("one", start="earliest")
    store.seal()
    count = 0
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        handle.ack()
        count += 1
    store.maintain()
    return count


Call = Callable[..., Any]


def _serve(pipe: Connection, root: Path, core: int, cores: int, changes: dict[str, object]) -> None:
    with quiver.open(root, settings(**changes), cores=cores, core=core) as store:
        store.register("one", start="earliest")
        pipe.send(None)
        while (asked := pipe.recv()) is not None:
            call, arguments = asked
            pipe.send(call(store, *arguments))


class CoreProcess:
    """A process with one core open. It executes requests with its store."""

    def __init__(self, root: Path, core: int, cores: int = 2, **changes: object) -> None:
        self.core = core
        self._pipe, theirs = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=_serve, args=(theirs, root, core, cores, changes))
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def start(self, call: Call, *arguments: object) -> None:
        self._pipe.send((call, arguments))

    def answer(self) -> Any:
        return self._pipe.recv()

    def ask(self, call: Call, *arguments: object) -> Any:
        self.start(call, *arguments)
        return self.answer()

    def is_busy(self) -> bool:
        return not self._pipe.poll(0.01)

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.join()
        self._pipe.close()

    def close(self) -> None:
        """Close the store and end the process."""
        if self._process.is_alive():
            self._pipe.send(None)
        self._process.join()
        self._pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
        self._process.join()
        self._pipe.close()


@contextlib.contextmanager
def core_processes(root: Path, cores: int, **changes: object) -> Iterator[list[CoreProcess]]:
    """Start one process for each core."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(CoreProcess(root, core, cores, **changes)) for core in range(cores)]
