"""The store from a caller's view: ingest, seal, deliver, delete, refuse, close."""

from __future__ import annotations

import errno
import threading

import pyarrow as pa
import pytest

from quiver import (
    Adapter,
    Bundle,
    CapacityError,
    DirectoryInUseError,
    InvalidBundleError,
    Settings,
    StoreClosedError,
    StoreFailedError,
    UnsupportedFormatError,
    UsageError,
    read,
)
from quiver import open as open_store
from quiver.bundle import BundleRef
from quiver.store.limits.admission import Full
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from store_rig import ROOT, drain, numbered, small_settings
from store_rig import open_small as opened


def test_bundles_are_delivered_once_and_in_order(fs: CrashFileSystem) -> None:
    """Two subscribers each get every bundle once, in the order of ingest; then the disk is free."""
    with opened(fs) as store:
        for name in ("one", "two"):
            store.register(name, start="earliest")
        receipts = [store.ingest(numbered(number)) for number in range(60)]
        assert [receipt.sequence for receipt in receipts] == list(range(60))
        assert sorted(receipts, key=lambda receipt: receipt.wal_position) == receipts
        store.seal()
        assert drain(store, "one") == list(range(60))
        store.maintain()
        assert len(store.internals.catalog) > 3, "deleted while `two` still wanted them"
        assert drain(store, "two") == list(range(60))
        store.maintain()
        assert len(store.internals.catalog) == 0
        assert store.internals.catalog.bytes == 0


def test_slots_can_be_named(fs: CrashFileSystem) -> None:
    """Names are the adapter's; a bundle named after another adapter is refused."""
    mine = Adapter("mine", {7: "events"})
    batch = pa.record_batch({"a": [1]})
    with open_store(ROOT, small_settings(), fs=fs, clock=ManualClock(), background=False, adapter=mine) as store:
        store.ingest(Bundle({"events": batch}, adapter=mine))
        with pytest.raises(InvalidBundleError, match="mine"):
            store.ingest(Bundle({"logs": batch}))
        store.seal()
        handle = store.register("s", start="earliest").next_bundle(timeout=0)
        assert handle is not None
        assert handle.bundle["events"].equals(batch)
        assert handle.bundle.slots == (7,)
    with pytest.raises(UnsupportedFormatError, match=r"otap.*adapter that wrote it, or convert it with `quiver mi"):
        opened(fs)


def test_the_profile_that_the_rust_engine_reads_is_opened_too(fs: CrashFileSystem) -> None:
    """Readers accept both profiles, whichever wrote the directory."""
    with opened(fs, format_profile="otap") as store:
        store.ingest(numbered(1))
    with opened(fs) as store:
        store.ingest(numbered(2))
    with opened(fs, format_profile="otap") as store:
        assert drain(store, "s") == [1, 2]


def test_one_writer_per_directory(fs: CrashFileSystem) -> None:
    """The second one is refused with the owner's name, and may try again after the first has closed."""
    with opened(fs), pytest.raises(DirectoryInUseError, match="pid"):
        opened(fs)
    opened(fs).close()


def test_a_closed_store_refuses_every_call(fs: CrashFileSystem) -> None:
    """Closing twice is harmless."""
    store = opened(fs)
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        store.ingest(numbered(1))
    with pytest.raises(StoreClosedError):
        store.register("s")


def test_segments_are_sealed_by_time_without_another_ingest(fs: CrashFileSystem) -> None:
    """`maintain` seals an old open segment, and keeps a young one open."""
    clock = ManualClock()
    with opened(fs, clock, segment_open_s_max=5.0) as store:
        store.ingest(numbered(1))
        clock.advance(4.9)
        assert store.maintain().sealed == 0
        clock.advance(0.2)
        assert store.maintain().sealed == 1
        assert drain(store, "s") == [1]


def test_segments_are_sealed_by_stream_count(fs: CrashFileSystem) -> None:
    """A producer that changes its schema with every bundle cannot grow a segment without limit."""
    with opened(fs, segment_streams_max=3, segment_bytes_max=1_000_000) as store:
        for number in range(7):
            store.ingest(Bundle({30: pa.record_batch({"n": [number], f"column {number}": [0]})}))
        assert len(store.internals.catalog) == 2
        store.seal()
        assert drain(store, "s") == list(range(7))


def test_time_based_sealing_waits_while_every_subscriber_lags(fs: CrashFileSystem) -> None:
    """Small files do not help lagging subscribers; size still seals, and so does `seal`."""
    clock = ManualClock()
    with opened(fs, clock, segment_open_s_max=1.0) as store:
        subscriber = store.register("s", start="earliest")
        for number in range(8):
            store.ingest(numbered(number))
            store.seal()
        store.ingest(numbered(8))
        clock.advance(60)
        assert store.maintain().sealed == 0
        handle = subscriber.next_bundle(timeout=0)
        assert handle is not None
        handle.ack()
        sealed = store.maintain().sealed
        clock.advance(1.0)  # the closed segment waits for subscribers that may resolve all of it
        assert sealed + store.maintain().sealed == 1


def test_a_full_store_refuses_and_names_the_slowest_subscriber(fs: CrashFileSystem) -> None:
    """No part of the refused bundle is kept; once the slowest subscriber has acked, there is space again."""
    with opened(fs, size_cap_bytes=60_000) as store:
        store.register("quick", start="earliest")
        store.register("slow", start="earliest")
        count = 0
        with pytest.raises(CapacityError) as refused:
            for number in range(10_000):
                store.ingest(numbered(number))
                count = number + 1
                if number % 10 == 0:
                    drain(store, "quick")
        assert refused.value.held_by == "slow"
        assert "retention.size_cap" in str(refused.value)
        assert store.disk_bytes <= 60_000 + 8_000
        assert drain(store, "slow")[-1] < count
        drain(store, "quick")
        store.maintain()
        store.ingest(numbered(count))
        store.seal()
        got = drain(store, "slow")
        assert got[-1] == count
        assert len(got) == len(set(got))


def test_grace_yields_to_the_cap(fs: CrashFileSystem) -> None:
    """Finished segments in their grace period are deleted at once when their space is needed."""
    with opened(fs, size_cap_bytes=60_000, delete_grace_s=1e9) as store:
        store.register("s", start="earliest")
        for number in range(800):
            store.ingest(numbered(number))
            if number % 20 == 0:
                drain(store, "s")
                store.maintain()
        assert store.disk_bytes <= 68_000


def test_a_bundle_larger_than_the_log_is_refused(fs: CrashFileSystem) -> None:
    """It could never fit, so waiting would not help."""
    with opened(fs) as store:
        with pytest.raises(InvalidBundleError, match=r"wal\.max_size"):
            store.ingest(numbered(1, size=100_000))
        store.ingest(numbered(2))


def test_segment_only_keeps_nothing_in_the_log(fs: CrashFileSystem) -> None:
    """Sealed segments survive, the open one does not; switching modes on a used directory works."""
    with opened(fs) as store:
        store.ingest(numbered(0))
    store = opened(fs, durability="segment_only")
    for number in range(1, 40):
        store.ingest(numbered(number))
    sealed = len(store.internals.catalog)
    assert sealed > 1
    fs = fs.clone_after_crash(0)
    with opened(fs) as store:
        survived = drain(store, "s")
        assert survived == list(range(len(survived)))
        assert 1 < len(survived) < 40
        store.ingest(numbered(99), durable=True)
    fs = fs.clone_after_crash(0)
    with opened(fs, durability="segment_only") as store:
        assert drain(store, "s2")[-1] == 99


def test_a_full_disk_fails_ingest_with_at_capacity() -> None:
    """A partly written entry is truncated, and the bundles before and after it are kept."""
    inner = CrashFileSystem()
    fs = FaultFileSystem(inner, error=errno.ENOSPC, path_part="quiver.wal", short_write=37)
    store = opened(fs)
    store.ingest(numbered(0))
    fs.fail_on("pwrite")
    with pytest.raises(CapacityError, match="full"):
        store.ingest(numbered(1))
    store.ingest(numbered(2, size=10), durable=True)
    with opened(inner.clone_after_crash(0)) as again:
        again.seal()
        assert drain(again, "s") == [0, 2]


def test_a_failed_segment_write_is_retried_and_the_log_is_kept() -> None:
    """The original engine lost 500 of 510 bundles this way: the cursor passed a segment that was never written."""
    inner = CrashFileSystem()
    fs = FaultFileSystem(inner, {"pwrite": 1}, error=errno.ENOSPC, path_part=".qseg", forever=True)
    clock = ManualClock()
    store = opened(fs, clock)
    accepted = 0
    with pytest.raises(CapacityError, match="disk"):
        for number in range(200):
            store.ingest(numbered(number), durable=True)
            accepted = number + 1
    assert accepted > 10
    with opened(inner.clone_after_crash(0)) as crashed:
        crashed.seal()
        assert drain(crashed, "s") == list(range(accepted))
    fs.heal()
    clock.advance(2)
    store.maintain()
    store.ingest(numbered(accepted))
    store.seal()
    assert drain(store, "s") == list(range(accepted + 1))
    store.close()


def test_a_failed_sync_fails_the_store() -> None:
    """No caller gets a confirmation without a sync; reopening recovers."""
    inner = CrashFileSystem()
    fs = FaultFileSystem(inner, error=errno.EIO, path_part="quiver.wal")
    store = opened(fs)
    store.ingest(numbered(0), durable=True)
    fs.fail_on("sync")
    with pytest.raises(StoreFailedError):
        store.ingest(numbered(1), durable=True)
    with pytest.raises(StoreFailedError):
        store.ingest(numbered(2))
    store.close()
    with opened(inner.clone_after_crash(0)) as again:
        again.seal()
        assert drain(again, "s")[0] == 0


def test_the_timer_syncs_the_tail_of_a_burst(tmp_path) -> None:
    """Three bundles and then a pause: the original engine never synced them."""
    with open_store(tmp_path, Settings(wal_flush_interval_s=0.001, segment_open_s_max=3600)) as store:
        for number in range(3):
            receipt = store.ingest(numbered(number))
        synced = threading.Event()
        for _ in range(2_000):
            if store.stats()["wal_synced_position"] >= receipt.wal_position:
                break
            synced.wait(0.005)
        assert store.stats()["wal_synced_position"] == receipt.wal_position


def test_concurrent_ingest_shares_syncs_and_loses_nothing(tmp_path) -> None:
    """Sixteen threads, every call durable on return: fewer syncs than bundles, every bundle delivered once."""
    errors: list[BaseException] = []
    with open_store(tmp_path, Settings(segment_bytes_max=20_000, segment_open_s_max=3600)) as store:

        def work(base: int) -> None:
            try:
                for number in range(25):
                    receipt = store.ingest(numbered(base + number), durable=True)
                    assert store.stats()["wal_synced_position"] >= receipt.wal_position
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(base * 1000,)) for base in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert store.stats()["wal_syncs"] <= 400
        store.seal()
        got = drain(store, "s")
        assert len(got) == len(set(got)) == 400
        for base in range(16):
            mine = [number for number in got if number // 1000 == base]
            assert mine == sorted(mine), "one producer's order was not kept"


def test_recent_wal_entries_are_those_of_the_log(fs: CrashFileSystem) -> None:
    """Also those that are in a segment by now, while their file exists."""
    with opened(fs, wal_rotate_bytes=40_000) as store:
        for number in range(30):
            store.ingest(numbered(number))
        assert len(store.internals.catalog) > 0
        assert [entry.sequence for entry in store.recent_wal_entries()] == list(range(30))


def test_a_claimed_bundle_survives_the_deletion_of_its_segment(fs: CrashFileSystem) -> None:
    """Buffers stay valid as long as they are referenced."""
    with opened(fs) as store:
        store.register("s", start="earliest")
        store.ingest(numbered(5, size=1000))
        store.seal()
        bundle = store.internals.catalog.bundle(BundleRef(0, 0))
        assert drain(store, "s") == [5]
        store.maintain()
        assert len(store.internals.catalog) == 0
        assert bundle[30]["pad"][0].as_py() == "x" * 1000


def test_space_that_is_freed_by_closing_is_not_used(fs: CrashFileSystem, monkeypatch) -> None:
    """A call that waits for space while the store closes raises an error; its bundle is not accepted and lost."""
    store = opened(fs, durability="segment_only")
    answers = iter([Full("nothing", "cap"), None, None, None])
    monkeypatch.setattr(store._admission, "why_full", lambda _nbytes: next(answers))
    monkeypatch.setattr(store._admission, "_make_room", lambda _full, _nbytes: store.close())
    with pytest.raises(StoreClosedError):
        store.ingest(numbered(1))


@pytest.mark.parametrize("path", ["", b"d", None, 7])
def test_an_empty_path_is_refused(path):
    """An unset variable must not create a store in the root directory."""
    for use in (open_store, read, lambda wrong: open_store(wrong, cores=2)):
        with pytest.raises(UsageError, match="names no directory|is named by a string"):
            use(path)


@pytest.mark.parametrize("wrong", [{"settings": {"wal": {"max_size": "1GiB"}}}, {"cores": "4"}, {"cores": 1.5}])
def test_invalid_arguments_create_no_files(tmp_path, wrong):
    """A mapping instead of settings, and cores that are not a number."""
    with pytest.raises(UsageError, match=r"from_mapping|cores="):
        open_store(tmp_path / "d", **wrong)
    assert not (tmp_path / "d").exists()


def test_ingest_refuses_other_types_than_bundles(tmp_path):
    """A batch by itself, or a mapping, is a common mistake of new users."""
    batch = pa.record_batch({"n": [1]})
    with open_store(tmp_path / "d") as store:
        for wrong in (batch, {30: batch}, None):
            with pytest.raises(InvalidBundleError, match="is not a bundle"):
                store.ingest(wrong)
        assert store.stats()["wal_position"] == 0


def test_a_missing_slot_raises_key_error():
    """It lists the existing slots."""
    with pytest.raises(KeyError, match=r"no slot 30 \(logs\); it has 5, 60 \(otlp_logs\)"):
        Bundle({60: pa.record_batch({"n": [1]}), 5: pa.record_batch({"n": [1]})})["logs"]
