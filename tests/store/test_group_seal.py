"""A store without a log keeps durable calls waiting until their bundles are in a sealed segment, which they share."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quiver import Settings, SettingsError, StoreFailedError, read
from quiver import open as open_store
from quiver.errors import CapacityError, NotDurableError, PipelineError
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import load_pipeline
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.receivers.intake import OtlpIntake
from quiver.receivers.settings import OtlpSettings
from quiver.store.sealing.group_seal import INTERVAL_S
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from store_rig import ROOT, numbered, open_manual, read_numbers

SETTINGS = Settings(durability="segment_only", segment_open_s_max=3600.0)
WAIT_S = 30.0
opened = partial(open_manual, settings=SETTINGS)


def numbers(fs: Any) -> list[int]:
    with opened(fs) as store:
        store.seal()
        return read_numbers(fs)


def test_a_durable_call_without_a_log_survives_a_power_loss() -> None:
    """At any later moment; bundles without `durable` are lost with the open segment."""
    fs = CrashFileSystem()
    store = opened(fs)
    store.ingest(numbered(0))
    store.ingest(numbered(1), durable=True)
    store.ingest(numbered(2))
    assert numbers(fs.clone_after_crash(0)) == [0, 1]
    store.sync()
    assert numbers(fs.clone_after_crash(0)) == [0, 1, 2]
    store.ingest(numbered(3))
    store.maintain()
    assert len(store.internals.catalog) == 2, "maintenance does not seal before it is due"
    store.ingest(numbered(4), durable=True)
    assert numbers(fs.clone_after_crash(0)) == [0, 1, 2, 3, 4]
    store.close()


def test_an_otlp_confirmation_survives_a_power_loss() -> None:
    """As `ack: synced` promises."""
    fs = CrashFileSystem()
    store = opened(fs)
    intake = OtlpIntake(store, OtlpSettings(ack="synced"))
    request = bytes.fromhex("0a0c120a0a0012061204") + b"\x0a\x02hi"
    confirmed = [intake.accept("logs", request).confirmed for _ in range(3)]
    with read(ROOT, fs=fs.clone_after_crash(0)) as reader:
        assert sum(1 for _ in reader.bundles()) == sum(confirmed) == 3
    store.close()


class Gate:
    """A file system in which the first segment waits before it gets its name."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(REAL_FILES, name)

    def rename(self, source: str, target: str) -> None:
        if target.endswith(".qseg"):
            self.reached.set()
            assert self.opened.wait(WAIT_S)
        REAL_FILES.rename(source, target)


def test_callers_share_a_segment(tmp_path: Path) -> None:
    """While one segment is written, later callers share the next one."""
    gate, clock = Gate(), ManualClock(waits="hold")
    store = open_store(tmp_path / "store", SETTINGS, fs=gate, clock=clock, background=False)  # type: ignore[arg-type]
    threads = [
        threading.Thread(target=store.ingest, args=(numbered(number),), kwargs={"durable": True}) for number in range(9)
    ]
    threads[0].start()
    assert gate.reached.wait(WAIT_S)
    for thread in threads[1:]:
        thread.start()
    clock.wait_for_waiters(8)
    gate.opened.set()
    while any(thread.is_alive() for thread in threads):
        clock.advance(INTERVAL_S)
        for thread in threads:
            thread.join(0.01)
    assert [info.bundle_count for info in store.internals.catalog.segments()] == [1, 8]
    clock.advance(1.0)
    store.close()


def test_seals_of_one_caller_are_spaced() -> None:
    """The first is not delayed."""
    clock = ManualClock()
    store = opened(CrashFileSystem(), clock=clock)
    began_s = clock.monotonic()
    store.ingest(numbered(0), durable=True)
    assert clock.monotonic() == began_s
    for number in range(4):
        store.ingest(numbered(number), durable=True)
    assert clock.monotonic() == pytest.approx(began_s + 4 * INTERVAL_S)
    store.close()


def test_on_a_full_disk_the_bundle_is_kept() -> None:
    """It must not be ingested again: it is sealed once there is space."""
    inner = CrashFileSystem()
    fs = FaultFileSystem(inner, {"pwrite": 1}, error=errno.ENOSPC, path_part=".qseg", forever=True)
    store = opened(fs)
    with pytest.raises(NotDurableError, match="full"):
        store.ingest(numbered(0), durable=True)
    with pytest.raises(NotDurableError):
        store.ingest(numbered(1), durable=True, timeout=3.0)
    with pytest.raises(CapacityError):
        store.sync()
    fs.heal()
    store.ingest(numbered(2), durable=True, timeout=5.0)
    assert numbers(inner.clone_after_crash(0)) == [0, 1, 2]
    store.close()


def test_a_failed_disk_ends_every_wait() -> None:
    """No caller waits forever, and no bundle counts as durable."""
    inner = CrashFileSystem()
    fs = FaultFileSystem(inner, {"sync": 1}, error=errno.EIO, path_part=".qseg", forever=True)
    store = opened(fs)
    for _ in range(2):
        with pytest.raises(StoreFailedError):
            store.ingest(numbered(0), durable=True)
    with pytest.raises(StoreFailedError):
        store.sync()
    with pytest.raises(StoreFailedError):
        store.close()


def test_a_call_does_not_wait_for_a_dropped_segment() -> None:
    """On a full disk without other segments, the segment that could not be written is dropped, and the call returns."""
    inner = CrashFileSystem()
    fs = FaultFileSystem(inner, {"pwrite": 1}, error=errno.ENOSPC, path_part=".qseg", forever=True)
    settings = replace(SETTINGS, size_cap_policy="drop_oldest")
    store = opened(fs, settings=settings)
    with pytest.raises(NotDurableError):
        store.ingest(numbered(0), durable=True)
    store._admission._drop_unwritten(store._admission.why_full(1) or _FULL)
    assert store._sealing.sealed_through == 0
    store.sync()
    fs.heal()
    store.close()


_FULL: Any = type("Full", (), {"cause": "disk", "what": ""})()

PIPELINE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [store]}}
    config: {protocols: {http: {listening_addr: "127.0.0.1:4318"}}}
  store:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    config:
      path: buffer
      durability: segment_only
      wal:
        flush_interval: 25ms
"""


def test_a_confirmation_from_memory_is_described() -> None:
    """`ack: logged` without a log guarantees nothing; `synced` keeps its guarantee."""
    for ack, warned in (("logged", True), ("synced", False)):
        text = PIPELINE.partition("      wal:")[0].replace("config: {protocols", f"config: {{ack: {ack}, protocols")
        described = describe(load_pipeline(text, source="p.yaml", values={})[0])
        assert any("in memory only" in sentence for sentence in described["says"]) == warned


@pytest.mark.parametrize("key", ["wal.flush_interval", "wal.max_size", "wal.rotation_target", "wal.max_rotated_files"])
def test_keys_of_the_log_are_refused(key: str) -> None:
    """Without a log they have no effect; they are refused even with their default values."""
    value = {"wal.flush_interval": "25ms", "wal.max_rotated_files": 10}.get(key, "256MiB")
    with pytest.raises(SettingsError, match=f"{key} has no effect with durability segment_only"):
        Settings.from_mapping({"durability": "segment_only", key: value})
    name = {"max_size": "wal_bytes_max", "rotation_target": "wal_rotate_bytes", "max_rotated_files": "wal_files_max"}
    field = name.get(key.removeprefix("wal."), "wal_flush_interval_s")
    with pytest.raises(SettingsError, match=f"{key} .{field}. has no effect with durability segment_only"):
        Settings(durability="segment_only", **{field: 9})
    with pytest.raises(PipelineError, match=r"wal\.flush_interval has no effect") as refused:
        load_pipeline(PIPELINE, source="p.yaml", values={})
    assert str(refused.value).startswith("p.yaml:14: ")
