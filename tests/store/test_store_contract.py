"""The store passes the contract tests of append logs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver.bundle import OTLP_SCHEMA, Bundle
from quiver.primitives.disk.file_system import FileSystem
from quiver.settings import Settings
from quiver.store.opening import open_store
from quiver.store.reading.read import read
from quiver.store.store import Store
from quiver.store.wal.replay import find_wal_files, scan_file
from quiver.testing.clock import ManualClock
from quiver.testing.log_contract import AppendLogContract

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/buffer"
SLOT = 60


class StoreAsLog:
    """A store whose bundles are one row of bytes each."""

    def __init__(self, fs: FileSystem, settings: Settings) -> None:
        self._fs = fs
        self._clock = ManualClock()
        self._store: Store = open_store(ROOT, settings, fs=fs, clock=self._clock, background=False)

    def append(self, record: bytes, *, durable: bool) -> int:
        batch = pa.record_batch([pa.array([record], pa.binary())], schema=OTLP_SCHEMA)
        return self._store.ingest(Bundle({SLOT: batch}), durable=durable).wal_position

    def sync(self) -> None:
        self._store.sync()

    def upkeep(self) -> None:
        self._clock.advance(10)
        self._store.maintain()

    def read(self) -> list[bytes]:
        return [bundle[SLOT]["data"][0].as_py() for _, bundle in read(ROOT, fs=self._fs).bundles()]

    def close(self) -> None:
        self._store.close()


class TestStore(AppendLogContract):
    """Segments of a few bundles, log files of fewer."""

    seeds = (0, 2)
    settings = Settings(
        segment_bytes_max=2_500, wal_rotate_bytes=1_500, wal_bytes_max=80_000, wal_files_max=20, delete_grace_s=0.0
    )

    def open_log(self, fs: FileSystem) -> StoreAsLog:
        return StoreAsLog(fs, self.settings)

    def tail(self, fs: FileSystem) -> tuple[str, int]:
        scans = [scan_file(fs, found.path) for found in find_wal_files(fs, f"{ROOT}/wal")]
        newest = [scan for scan in scans if scan.entries][-1]
        return newest.path, newest.tail_offset


@pytest.mark.slow
class TestStoreWithEveryPowerLoss(TestStore):
    """With all outcomes of a power loss."""

    seeds = AppendLogContract.seeds


@pytest.mark.slow
class TestStoreInOneSegment(TestStore):
    """Nothing is sealed or rotated: only the log has the data."""

    settings = Settings(wal_rotate_bytes=30_000)
