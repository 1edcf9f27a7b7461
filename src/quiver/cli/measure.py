"""
The measurements of `quiver bench`: the store against a bare log on the same disk, with equal bytes and durability.

The bare log is the minimum for that durability: a serialized batch, its checksum, one gathered write, and a sync that
concurrent callers share. Its file is preallocated with zeros, so its syncs are as cheap as possible. The additional
work of the store (sealing segments, recording progress) counts for the store.
"""

from __future__ import annotations

import statistics
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, get_args

import pyarrow as pa

from quiver.bundle import Bundle
from quiver.clock import Clock
from quiver.errors import StoreFailedError
from quiver.observe import InMemoryObserver
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.primitives.worker import Worker, WorkerDiedError
from quiver.settings import Settings
from quiver.store.opening import open_store

__all__ = ["MODES", "Measurement", "Mode", "measure"]

Mode = Literal["synced", "shared", "burst"]
MODES: tuple[Mode, ...] = get_args(Mode)
"""
One caller that waits for each sync; concurrent callers that share syncs; one that does not wait, synced every 25 ms.
"""

SHARING = 4
"""The number of concurrent callers in the mode `shared`."""

_SYNC_METRIC = "quiver.wal.fsync.duration"
_BURST_S = 0.025
_ZEROED_BYTES = 16 * 1024 * 1024
_WAIT_S = 60.0
_SLOT = 30
_ENTRY = struct.Struct("<IQQI")


@dataclass(frozen=True, slots=True)
class Measurement:
    """
    The result for one mode, as medians over the rounds.

    Attributes:
        mode: the mode.
        callers: the number of threads.
        rows: the number of rows of a bundle.
        bundles_s: the store's rate in bundles per second.
        log_s: the bare log's rate in entries per second.
        ratio: the ratio of the rates within a round.
        ratio_min: the minimum ratio of all rounds.
        ratio_max: the maximum ratio of all rounds.
        fsyncs_per_ack: the number of the store's syncs for each confirmed bundle.
        log_fsyncs_per_ack: the number of the bare log's syncs for each entry.
    """

    mode: Mode
    callers: int
    rows: int
    bundles_s: float
    log_s: float
    ratio: float
    ratio_min: float
    ratio_max: float
    fsyncs_per_ack: float
    log_fsyncs_per_ack: float

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as a dict."""
        return asdict(self)


class _HasSyncs(Protocol):
    syncs: int


@dataclass(frozen=True, slots=True)
class _Run:
    acks: int
    seconds: float
    syncs: int

    @property
    def rate(self) -> float:
        return self.acks / self.seconds if self.seconds > 0 else 0.0

    @property
    def syncs_per_ack(self) -> float:
        return self.syncs / self.acks if self.acks else 0.0


class _CountsSyncs(InMemoryObserver):
    """Counts the syncs of the log and logs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def record(self, name: str, value: float, **attributes: Any) -> None:  # noqa: ARG002
        """Count a sync."""
        self.syncs += name == _SYNC_METRIC

    def event(self, name: str, *, level: int = 0, **attributes: Any) -> None:
        """Ignore events."""


def measure(
    fs: FileSystem,
    directory: str,
    mode: Mode,
    *,
    rows: int,
    seconds: float,
    rounds: int,
    clock: Clock,
    on_progress: Callable[[str], None],
) -> Measurement:
    """
    Measure *mode* in the empty directory *directory*: log and store alternately, each for *seconds*.

    Raises:
        OSError: the disk failed.
        CapacityError: the store accepted nothing for a minute.
    """
    batch = _batch(rows)
    logs: list[_Run] = []
    stores: list[_Run] = []
    for number in range(rounds):
        on_progress(f"{mode}, bare log")
        with _bare_log(fs, f"{directory}/log-{mode}-{number}", mode, batch, clock) as log:
            logs.append(_run(log.append, mode, seconds, clock, log))
        on_progress(f"{mode}, store")
        observer = _CountsSyncs()
        with _store(fs, f"{directory}/store-{mode}-{number}", mode, batch, clock, observer) as ingest:
            stores.append(_run(ingest, mode, seconds, clock, observer))
    ratios = [store.rate / log.rate for store, log in zip(stores, logs, strict=True) if log.rate > 0]
    return Measurement(
        mode,
        _callers(mode),
        rows,
        statistics.median(run.rate for run in stores),
        statistics.median(run.rate for run in logs),
        statistics.median(ratios) if ratios else 0.0,
        min(ratios, default=0.0),
        max(ratios, default=0.0),
        statistics.median(run.syncs_per_ack for run in stores),
        statistics.median(run.syncs_per_ack for run in logs),
    )


def _callers(mode: Mode) -> int:
    return SHARING if mode == "shared" else 1


def _batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "time_unix_nano": pa.array(range(1_700_000_000_000, 1_700_000_000_000 + rows), pa.int64()),
            "value": pa.array(range(rows), pa.int64()),
            "message": pa.array([f"Log message number {row:06d} of a measurement" for row in range(rows)]),
        }
    )


def _run(append: Callable[[], None], mode: Mode, seconds: float, clock: Clock, counter: _HasSyncs) -> _Run:
    """
    Call *append* from as many threads as *mode* has until *seconds* have passed.

    Raises:
        OSError: a call raised it; other errors of `append` are raised, too.
    """
    append()  # the first call creates files and schemas
    before, started = counter.syncs, clock.monotonic()
    done: list[int] = []
    failed: list[Exception] = []

    def work() -> None:
        acks = 0
        try:
            while not acks or clock.monotonic() - started < seconds:  # at least once: a rate is never zero
                append()
                acks += 1
        except Exception as error:  # raised again below, in the caller's thread
            failed.append(error)
        done.append(acks)

    threads = [threading.Thread(target=work) for _ in range(_callers(mode))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return _Run(sum(done), clock.monotonic() - started, counter.syncs - before)


@contextmanager
def _store(
    fs: FileSystem, path: str, mode: Mode, batch: pa.RecordBatch, clock: Clock, observer: _CountsSyncs
) -> Iterator[Callable[[], None]]:
    bundle, durable = Bundle({_SLOT: batch}), mode != "burst"
    with open_store(path, Settings(), fs=fs, clock=clock, observer=observer) as store:

        def ingest() -> None:
            store.ingest(bundle, durable=durable, timeout=_WAIT_S)

        yield ingest


def _bare_log(
    fs: FileSystem, path: str, mode: Mode, batch: pa.RecordBatch, clock: Clock
) -> AbstractContextManager[_BareLog]:
    fs.make_dirs(path)
    return _opened(_BareLog(fs.create(f"{path}/log"), batch, clock, waits=mode != "burst"))


@contextmanager
def _opened(log: _BareLog) -> Iterator[_BareLog]:
    try:
        yield log
    finally:
        log.close()


class _BareLog:
    """The minimal log with the same durability; see the module docstring."""

    def __init__(self, file: File, batch: pa.RecordBatch, clock: Clock, *, waits: bool) -> None:
        self._file = file
        self._batch = batch
        self._schema = batch.schema.serialize().to_pybytes()
        self._clock = clock
        self._waits = waits
        self._died: WorkerDiedError | None = None
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        self._end = 0
        self._synced = 0
        self.syncs = 0
        file.pwrite(bytes(_ZEROED_BYTES), 0)
        file.sync()
        self._timer = Worker(
            "quiver-measure-sync", self._sync_written, every=_BURST_S, on_death=self._fail, clock=clock,
            observer=InMemoryObserver(),
        )  # fmt: skip
        if not waits:
            self._timer.start()

    def append(self) -> None:
        message = self._batch.serialize()
        with self._writing:
            head = _ENTRY.pack(message.size, self._end, self._clock.now_ns(), len(self._schema)) + self._schema
            parts: Sequence[Any] = [head, message, crc32(message, crc32(head)).to_bytes(4, "little")]
            size = len(head) + message.size + 4
            self._file.pwritev(parts, self._end, size)
            self._end += size
            end = self._end
        if self._waits:
            self._sync(end)

    def _sync(self, end: int) -> None:
        with self._syncing:
            if self._synced >= end:
                return
            reached = self._end
            self._file.sync_data()
            self._synced = reached
            self.syncs += 1

    def _sync_written(self) -> None:
        self._sync(self._end)

    def _fail(self, died: WorkerDiedError) -> None:
        self._died = died

    def close(self) -> None:
        self._timer.stop()
        if self._died is not None:
            raise StoreFailedError(str(self._died))
        self._sync(self._end)
        self._file.close()
