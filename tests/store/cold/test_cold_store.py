"""Sealed segments in the object tier: upload, verification, removal of local files, reading, deletion."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from store_cold_rig import COLD, LIST, ROOT, SETTINGS, WHERE, Rig, bundle_of, drain, listed, number_of, seen

from quiver.bundle import BundleRef
from quiver.errors import CapacityError, CorruptionError, ObjectsUnavailableError, SettingsError, UsageError
from quiver.objects.directory import DirectoryObjects
from quiver.objects.location import ObjectLocation
from quiver.objects.port import ObjectInfo, Parts
from quiver.primitives.scan import Frame
from quiver.settings import Settings
from quiver.store.format.floor import decode_floor
from quiver.store.opening import open_store
from quiver.store.reading.read import read
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultobjects import FaultObjects

pytestmark = pytest.mark.usefixtures("quiet")


def test_sealed_segments_are_copied_and_listed() -> None:
    """Byte for byte; the files stay if no local window is set."""
    rig = Rig()
    with rig.open() as store:
        rig.fill(store, 3)
        store.maintain()
        assert rig.objects() == rig.local() == [0, 1, 2]
        assert listed(rig.fs) == {0: "verified", 1: "verified", 2: "verified"}
        assert store.stats()["cold"] == {
            "segments": 3,
            "segment_bytes": store.stats()["segment_bytes"],
            "only_there": 0,
            "waiting": 0,
            "waiting_sequence": None,
            "leaving": 0,
            "problem": None,
        }
        for key, seq in zip(rig.names(), rig.local(), strict=True):
            path = f"{ROOT}/segments/{seq:016}.qseg"
            assert rig.tier.get(key, size_max=1 << 20) == rig.fs.read_all(path, size_max=1 << 20)


@pytest.mark.parametrize("window", [{"cold_local_bytes": 0}, {"cold_local_age_s": 60.0}, {"max_age_s": 60.0}])
def test_segments_outside_the_window_leave_the_disk_and_stay_readable(window: dict[str, object]) -> None:
    """By bytes, by age, and by the age that would drop the data without a tier."""
    rig = Rig(**window)
    with rig.open() as store:
        rig.fill(store, 3)
        store.maintain()
        rig.clock.advance(61)
        rig.fill(store, 1)
        for _ in range(2):
            store.maintain()
        removed = [0, 1, 2] if "cold_local_bytes" not in window else [0, 1, 2, 3]
        assert rig.local() == [seq for seq in range(4) if seq not in removed]
        assert store.stats()["cold"]["only_there"] == len(removed)
        assert store.stats()["segments"] == 4
        assert seen(rig.fs) == list(range(12))
        table = pa.table(store.scan(30))
        assert table["n"].to_pylist() == [number for number in range(12) for _ in range(2)]
        assert drain(store, "one") == list(range(12))
    with rig.open() as store:
        assert store.stats()["segments"] == 0, "finished segments are deleted permanently"


def test_a_window_of_bytes_keeps_the_newest_segments() -> None:
    """The oldest are removed first."""
    rig = Rig()
    with rig.open() as store:
        rig.fill(store, 4)
        nbytes = store.internals.catalog.bytes // 4
    with rig.open(cold_local_bytes=2 * nbytes + nbytes // 2) as store:
        for _ in range(2):
            store.maintain()
        assert rig.local() == [2, 3]
        assert store.internals.catalog.bytes == store.stats()["segment_bytes"] <= 2 * nbytes + nbytes // 2


def test_a_store_with_cold_segments_opens_while_the_tier_is_down() -> None:
    """It accepts bundles, knows all segments, and continues their numbers; only reading fails."""
    rig = Rig(cold_local_bytes=0)
    with rig.open() as store:
        rig.fill(store, 2)
        for _ in range(2):
            store.maintain()
    assert rig.local() == []
    for operation in ("get", "get_range", "get_ranges", "head", "put", "put_parts", "list"):
        rig.tier.fail_on(operation, times=100)
    with rig.open() as store:
        assert [info.seq for info in store.internals.catalog.segments()] == [0, 1]
        subscriber = store.register("one", start="earliest")
        with pytest.raises(ObjectsUnavailableError):
            _ = subscriber.next_bundle(timeout=0).bundle
        rig.fill(store, 1)
        store.maintain()
        assert rig.local() == [2]
        assert store.stats()["cold"]["problem"]
        rig.tier.heal()
        assert drain(store, "one") == list(range(9))


def test_finished_segments_are_removed_from_the_tier() -> None:
    """Objects and list entries."""
    rig = Rig(cold_local_bytes=0)
    with rig.open() as store:
        store.register("one", start="earliest")
        rig.fill(store, 3)
        for _ in range(2):
            store.maintain()
        assert rig.objects() == [0, 1, 2]
        assert drain(store, "one", 6) == list(range(6))
        for _ in range(2):
            store.maintain()
        assert rig.objects() == [2]
        assert listed(rig.fs) == {2: "verified"}
        assert drain(store, "one") == [6, 7, 8]
        for _ in range(2):
            store.maintain()
        assert rig.names() == []
        assert not rig.fs.exists(LIST)


def test_finished_segments_stay_for_the_configured_time() -> None:
    """`cold.keep_finished`: the file is removed, the object stays for later subscribers until that age."""
    rig = Rig(cold_keep_finished_s=3600.0)
    with rig.open() as store:
        store.register("one", start="earliest")
        rig.fill(store, 2)
        store.maintain()
        assert drain(store, "one") == list(range(6))
        for _ in range(3):
            store.maintain()
        assert (rig.local(), rig.objects()) == ([], [0, 1])
        assert drain(store, "late") == list(range(6))
    with rig.open() as store:
        rig.clock.advance(3601)
        for _ in range(3):
            store.maintain()
        assert (rig.local(), rig.names()) == ([], [])


def test_segments_over_age_in_the_tier_are_dropped_through_the_ledger() -> None:
    """`cold.max_age`: a subscriber with pending bundles in them gets a report and continues after them."""
    rig = Rig(cold_local_bytes=0, cold_max_age_s=100.0)
    with rig.open() as store:
        store.register("one", start="earliest")
        rig.fill(store, 2)
        for _ in range(2):
            store.maintain()
        rig.clock.advance(101)
        rig.fill(store, 1)
        for _ in range(3):
            store.maintain()
        assert rig.objects() == [2]
        assert drain(store, "one") == [6, 7, 8]
        assert rig.observer.total("quiver.segment.dropped_total") == 2


@pytest.mark.parametrize("floor", ["there", "lost"])
def test_numbers_continue_when_all_segments_are_in_the_tier(floor: str) -> None:
    """No segment gets the number of an object: other programs read the floor, the store its list."""
    rig = Rig(cold_local_bytes=0)
    with rig.open() as store:
        rig.fill(store, 2)
        for _ in range(2):
            store.maintain()
    path = f"{ROOT}/segments/quiver.segment.floor"
    assert decode_floor(memoryview(rig.fs.read_all(path, size_max=100))) == Frame(2, 24)
    if floor == "lost":
        rig.fs.remove(path)
    with rig.open() as store:
        rig.fill(store, 1)
        assert [info.seq for info in store.internals.catalog.segments()] == [0, 1, 2]
        assert drain(store, "one") == list(range(9))


def test_at_the_cap_copied_segments_leave_the_disk_first() -> None:
    """The cap applies to the disk: with a tier the store accepts more than that. Without, the policy decides."""
    rig = Rig(size_cap_bytes=20_000, size_cap_policy="backpressure")
    with rig.open() as store:
        store.register("one", start="earliest")
        rig.fill(store, 1)
        segment_bytes = (
            store.internals.catalog.bytes
        )  # the bytes of the files of such small segments, beyond the estimate
        for _ in range(29):
            rig.fill(store, 1)
            store.maintain()
        store.maintain()
        assert len(rig.objects()) == 30
        assert store.disk_bytes <= 20_000 + segment_bytes
        rig.tier.fail_on("put_parts", times=10_000)
        with pytest.raises(CapacityError):
            for _ in range(100):
                rig.fill(store, 1)
                store.maintain()
        assert store.disk_bytes <= 20_000 + segment_bytes
        rig.tier.heal()
        rig.clock.advance(120)
        store.maintain()
        rig.fill(store, 1)
        assert drain(store, "one") == list(range(rig.taken))


def test_drop_oldest_drops_only_segments_on_the_disk() -> None:
    """Segments in the tier take no space there."""
    rig = Rig(size_cap_bytes=20_000, size_cap_policy="drop_oldest", cold_local_bytes=0)
    with rig.open() as store:
        store.register("one", start="earliest")
        rig.fill(store, 3)
        for _ in range(2):
            store.maintain()
        rig.tier.fail_on("put_parts", times=10_000)
        for _ in range(40):
            rig.fill(store, 1)
            store.maintain()
        rig.tier.heal()
        got = drain(store, "one")
        assert got[:9] == list(range(9))
        assert len(got) < rig.taken
        assert got[-1] == rig.taken - 1


def damage(rig: Rig, path: str, at: int) -> None:
    """Change four bytes of a file at offset *at*, from its beginning or from its end."""
    file = rig.fs.open_read(path)
    file.set_mode(0o600)
    file = rig.fs.open_write(path)
    file.pwrite(b"\xff\xff\xff\xff", at if at >= 0 else file.size() + at)
    file.close()


def test_a_damaged_file_is_replaced_by_its_object() -> None:
    """Whether found by a read or when the store is opened: the file is quarantined, and no bundle is lost."""
    rig = Rig()
    with rig.open() as store:
        rig.fill(store, 2)
        store.maintain()
        first, second = (info.path for info in store.internals.catalog.segments())
        damage(rig, first, 100)
        assert number_of(store.internals.catalog.bundle(BundleRef(0, 1))) == 1
    damage(rig, second, -20)  # opening reads the end of a file
    with rig.open() as store:
        assert rig.local() == []
        assert rig.fs.list_dir(f"{ROOT}/quarantine") == ["0000000000000000.qseg", "0000000000000001.qseg"]
        assert seen(rig.fs) == list(range(6))
        assert drain(store, "one") == list(range(6))
        assert rig.observer.total("quiver.segment.damaged_bundles_total") == 0


def test_a_file_that_is_damaged_before_its_upload_is_never_verified() -> None:
    """Its object is removed; the file is quarantined, as without a tier."""
    rig = Rig()
    with rig.open() as store:
        rig.fill(store, 2)
        damage(rig, store.internals.catalog.segments()[0].path, 100)
        for _ in range(2):
            store.maintain()
        assert listed(rig.fs) == {1: "verified"}
        assert rig.objects() == [1]
        assert rig.observer.total("quiver.segment.damaged_bundles_total") == 3
        assert drain(store, "one") == [3, 4, 5]


def test_an_object_with_wrong_contents_is_uploaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data that is read back decides, not the success of the write."""
    rig = Rig(cold_local_bytes=0)
    put_parts = DirectoryObjects.put_parts
    wrong = [2]

    def put_wrong(tier: DirectoryObjects, key: str, parts: Parts, **more: int) -> ObjectInfo:
        if not wrong[0]:
            return put_parts(tier, key, parts, **more)
        wrong[0] -= 1
        return put_parts(tier, key, lambda: [bytes(part)[:-1] + b"\0" for part in parts()], **more)

    monkeypatch.setattr(DirectoryObjects, "put_parts", put_wrong)
    with rig.open() as store:
        rig.fill(store, 1)
        for left in (1, 0):
            store.maintain()
            assert (wrong[0], listed(rig.fs), rig.local()) == (left, {0: "sent"}, [0])
            rig.clock.advance(60)
        for _ in range(2):
            store.maintain()
        assert (listed(rig.fs), rig.local()) == ({0: "verified"}, [])
        assert drain(store, "one") == [0, 1, 2]


@pytest.mark.parametrize("how", ["changed", "short", "gone"])
def test_a_damaged_object_is_reported_quarantined_and_counted(how: str) -> None:
    """The error has its key; the bytes move to the tier's quarantine; other segments stay readable."""
    rig = Rig(cold_local_bytes=0)
    with rig.open() as store:
        store.register("one", start="earliest")
        rig.fill(store, 2)
        for _ in range(2):
            store.maintain()
        key = rig.names()[0]
        data = bytearray(rig.tier.get(key, size_max=1 << 20))
        if how == "gone":
            rig.tier.delete([key])
        else:
            data[100] ^= 1
            rig.tier.put(key, bytes(data) if how == "changed" else bytes(data[:200]))
        reader = read(ROOT, fs=rig.fs)
        assert [number_of(bundle) for _, bundle in reader.bundles()] == [3, 4, 5]
        assert [problem.path for problem in reader.problems] == [key]
        subscriber = store.register("two", start="earliest")
        with pytest.raises(CorruptionError, match="stores/") as raised:
            _ = subscriber.next_bundle(timeout=0).bundle
        assert raised.value.path == key
        assert drain(store, "one") == [3, 4, 5]
        assert rig.observer.total("quiver.segment.damaged_bundles_total") == 3
        for _ in range(2):
            store.maintain()
        kept = [] if how == "gone" else [key.replace("/segments/", "/quarantine/")]
        assert [one for one in rig.names() if "quarantine" in one] == kept
        assert 0 not in listed(rig.fs)


def test_a_location_without_objects_of_the_store_is_a_wrong_one() -> None:
    """For example a disk that is not mounted: no segment counts as lost, and nothing is uploaded there."""
    rig = Rig(cold_local_bytes=0)
    with rig.open() as store:
        store.register("one", start="earliest")
        rig.fill(store, 2)
        for _ in range(2):
            store.maintain()
    right, before = rig.tier, listed(rig.fs)
    rig.tier = FaultObjects(DirectoryObjects(rig.fs, "/elsewhere", clock=rig.clock), clock=rig.clock)
    with rig.open() as store:
        handle = store.register("one").next_bundle(timeout=0)
        with pytest.raises(ObjectsUnavailableError, match="is it mounted"):
            _ = handle.bundle
        rig.fill(store, 1)
        store.maintain()
        assert "is it mounted" in store.stats()["cold"]["problem"]
        with pytest.raises(ObjectsUnavailableError, match="is it mounted"):
            list(read(ROOT, fs=rig.fs, objects=rig.tier).bundles())
    assert (rig.names(), {seq: listed(rig.fs)[seq] for seq in before}) == ([], before)

    rig.tier = right
    with rig.open() as store:
        assert drain(store, "one") == list(range(9))


def test_without_the_setting_objects_are_read_and_none_are_uploaded() -> None:
    """A tool that opens a store without settings neither loses its cold segments nor creates more."""
    rig = Rig(cold_local_bytes=0)
    with rig.open() as store:
        rig.fill(store, 2)
        for _ in range(2):
            store.maintain()
    with rig.open(cold_objects=None, cold_local_bytes=None) as store:
        rig.fill(store, 1)
        store.maintain()
        assert rig.objects() == [0, 1]
        assert rig.local() == [2]
        assert drain(store, "one") == list(range(9))
        for _ in range(2):
            store.maintain()
        assert rig.names() == []


def test_another_location_is_refused_while_the_first_has_objects() -> None:
    """Otherwise they could not be found."""
    rig = Rig()
    with rig.open() as store:
        rig.fill(store, 1)
        store.maintain()
    with pytest.raises(SettingsError, match="file:///cold"):
        rig.open(cold_objects=ObjectLocation.from_url("/elsewhere"))
    rig.open().close()


def with_damaged_list() -> Rig:
    """Segments 0 and 1 are only in the tier, 2 is on the disk, and the list cannot be read."""
    rig = Rig(cold_local_bytes=0)
    with rig.open() as store:
        store.register("one", start="earliest")
        rig.fill(store, 2)
        for _ in range(2):
            store.maintain()
        rig.fill(store, 1)
    assert rig.local() == [2]
    data = bytearray(rig.fs.read_all(LIST, size_max=1 << 20))
    data[40] ^= 1
    file = rig.fs.open_write(LIST)
    file.pwrite(bytes(data), 0)
    file.sync()
    file.close()
    return rig


def test_a_damaged_list_prevents_opening_without_a_tier_and_is_reported_by_readers() -> None:
    """Without the list, the segments in it would be lost silently."""
    rig = with_damaged_list()
    with pytest.raises(CorruptionError, match="only in the object tier"):
        rig.open(cold_objects=None, cold_local_bytes=None)
    reader = read(ROOT, fs=rig.fs)
    assert [number_of(bundle) for _, bundle in reader.bundles()] == [6, 7, 8]
    assert [problem.path for problem in reader.problems] == [LIST]


def test_a_damaged_list_is_rebuilt_from_the_objects() -> None:
    """All segments are listed again, after every object was read; the damaged bytes are kept."""
    rig = with_damaged_list()
    damaged = rig.fs.read_all(LIST, size_max=1 << 20)
    with rig.open() as store:
        assert listed(rig.fs) == {0: "verified", 1: "verified"}
        assert store.stats()["cold"]["only_there"] == 2
        assert drain(store, "one") == list(range(9))
    (kept,) = rig.fs.list_dir(f"{ROOT}/quarantine")
    assert rig.fs.read_all(f"{ROOT}/quarantine/{kept}", size_max=1 << 20) == damaged
    assert rig.observer.total("quiver.recovery.damaged_files_total") == 1


def test_only_valid_objects_are_in_the_rebuilt_list() -> None:
    """An object that does not match its name is quarantined like any damaged one; foreign objects stay."""
    rig = with_damaged_list()
    key = next(one for one in rig.names() if "/segments/0000000000000001-" in one)
    data = bytearray(rig.tier.get(key, size_max=1 << 20))
    data[100] ^= 1
    rig.tier.put(key, bytes(data))
    rig.tier.put(f"{key}.part", b"somebody else's")
    with rig.open() as store:
        assert listed(rig.fs) == {0: "verified", 1: "damaged"}
        assert drain(store, "one") == [0, 1, 2, 6, 7, 8]
        for _ in range(2):
            store.maintain()
        assert key.replace("/segments/", "/quarantine/") in rig.names()
        assert key not in rig.names()
        assert f"{key}.part" in rig.names()


def test_a_list_is_not_rebuilt_without_objects() -> None:
    """While the tier does not answer, the store stays closed; a tier without objects is the wrong location."""
    rig = with_damaged_list()
    damaged = rig.fs.read_all(LIST, size_max=1 << 20)
    rig.tier.fail_on("list")
    with pytest.raises(ObjectsUnavailableError):
        rig.open()
    empty = DirectoryObjects(rig.fs, "/empty", clock=rig.clock)
    with pytest.raises(CorruptionError, match="only in the object tier"):
        open_store(ROOT, rig.settings, fs=rig.fs, clock=rig.clock, background=False, objects=empty)
    assert rig.fs.read_all(LIST, size_max=1 << 20) == damaged
    with rig.open() as store:
        assert drain(store, "one") == list(range(9))


def test_a_crash_while_the_list_is_rebuilt() -> None:
    """After a crash at any step, the damaged list or the new one exists, and the next start has all segments."""
    rig = with_damaged_list()
    disks: list[CrashFileSystem] = []
    assert isinstance(rig.fs, CrashFileSystem)
    rig.fs.on_step = lambda *_: disks.append(rig.fs.clone_after_crash(len(disks)))
    rig.open().close()
    rig.fs.on_step = lambda *_: None
    for disk in disks:
        with Rig(disk, cold_local_bytes=0).open() as store:
            assert drain(store, "one") == list(range(9))


def test_a_separate_thread_uploads() -> None:
    """With background threads no other thread waits for the tier; closing the store ends it."""
    fs = CrashFileSystem()
    clock = ManualClock(waits="hold")
    rig = Rig(fs)
    store = open_store(ROOT, SETTINGS, fs=fs, clock=clock, observer=rig.observer, objects=rig.tier)
    rig.fill(store, 2)
    while store.stats()["cold"]["segments"] < 2:
        clock.wait_for_waiters(1)
        clock.advance(1)
    store.close()
    assert rig.objects() == [0, 1]


def test_nothing_waits_for_a_tier_that_hangs() -> None:
    """While a request hangs, ingest, sealing, delivery and maintenance continue."""
    fs = CrashFileSystem()
    clock = ManualClock(waits="hold")
    rig = Rig(fs)
    gate, reached = threading.Event(), threading.Event()

    def hang(operation: str, _key: str) -> None:
        if operation == "put_parts":
            reached.set()
            gate.wait(60)

    rig.tier.on_call = hang
    store = open_store(ROOT, SETTINGS, fs=fs, clock=clock, observer=rig.observer, objects=rig.tier)
    rig.fill(store, 1)
    while not reached.is_set():
        clock.wait_for_waiters(1)
        clock.advance(1)
    rig.fill(store, 3)
    assert drain(store, "one") == list(range(12))
    store.maintain()
    assert store.stats()["cold"]["segments"] == 0
    gate.set()
    store.close()


@pytest.mark.parametrize(("bytes_max", "fetched"), [(1, 12), (1 << 20, 4)])
def test_the_memory_for_segments_of_the_tier_is_bounded(
    monkeypatch: pytest.MonkeyPatch, bytes_max: int, fetched: int
) -> None:
    """Within the bound a segment is fetched once; beyond it, each time another one was read in between."""
    monkeypatch.setattr("quiver.store.catalog.COLD_BYTES_MAX", bytes_max)
    rig = Rig(cold_local_bytes=0)
    with rig.open() as store:
        rig.fill(store, 4)
        for _ in range(2):
            store.maintain()
        for index in range(3):
            for seq in range(4):
                assert number_of(store.internals.catalog.bundle(BundleRef(seq, index))) == 3 * seq + index
        assert rig.tier.calls["get"] == fetched


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cold_local_bytes": 1}, "need cold.objects"),
        ({"cold_keep_finished_s": 1.0}, "need cold.objects"),
        ({"cold_objects": ObjectLocation.from_url("memory://")}, "must outlive"),
        ({"cold_objects": WHERE, "cold_local_bytes": -1}, "cold.local_size"),
        ({"cold_objects": WHERE, "cold_local_age_s": -1.0}, "cold.local_age"),
        ({"cold_objects": WHERE, "cold_max_age_s": 0.0}, "cold.max_age must be positive"),
        ({"cold_objects": WHERE, "cold_keep_finished_s": -1.0}, "cold.keep_finished"),
        ({"cold_objects": WHERE, "cold_max_age_s": 5.0, "max_age_s": 6.0}, "retention.max_age must be at most"),
        ({"cold_objects": WHERE, "cold_max_age_s": 5.0, "cold_local_age_s": 6.0}, "cold.local_age must be at most"),
        ({"cold_objects": WHERE, "cold_max_age_s": 5.0, "cold_keep_finished_s": 6.0}, "cold.keep_finished must be at"),
        ({"cold_objects": WHERE, "cold_local_bytes": 2**30, "size_cap_bytes": 2**30}, "cold.local_size must be below"),
    ],
)
def test_contradicting_settings_are_refused(given: dict[str, object], said: str) -> None:
    """Each error names the contradicting keys."""
    with pytest.raises(SettingsError, match=said):
        Settings(**given)


def test_settings_are_read_by_their_keys() -> None:
    """As in a file; a location may be a URL or a mapping. Its secrets are not shown and not in the list."""
    found = Settings.from_mapping(
        {
            "cold": {
                "objects": {"backend": "s3", "root": "s3://b/p", "region": "eu", "secret_key": "hush hush"},
                "local_size": "1GiB",
                "local_age": "2h",
                "max_age": "30d",
                "keep_finished": "1d",
            }
        }
    )
    assert found.cold_objects is not None
    assert str(found.cold_objects) == "s3://b/p"
    assert (found.cold_local_bytes, found.cold_local_age_s) == (2**30, 7200.0)
    assert (found.cold_max_age_s, found.cold_keep_finished_s) == (30 * 86_400.0, 86_400.0)
    assert "hush" not in repr(found)
    assert Settings.from_mapping({"cold.objects": "/x"}).cold_objects == ObjectLocation.from_url("/x")
    assert Settings.from_mapping({"cold.objects": WHERE}).cold_objects == WHERE
    assert Settings.from_mapping({"cold.objects": None}).cold_objects is None
    with pytest.raises(SettingsError, match="no URL"):
        Settings.from_mapping({"cold.objects": 7})


def test_a_tier_needs_a_location() -> None:
    """Otherwise its objects could not be found."""
    rig = Rig()
    with pytest.raises(UsageError, match=r"cold\.objects"):
        open_store(ROOT, fs=rig.fs, clock=rig.clock, background=False, objects=rig.tier)


def test_a_reader_can_pass_the_tier() -> None:
    """Or its location, as for a bucket that needs credentials."""
    rig = Rig(cold_local_bytes=0)
    with rig.open() as store:
        rig.fill(store, 1)
        for _ in range(2):
            store.maintain()
    assert rig.local() == []
    before = rig.tier.calls["get"]
    for objects in (rig.tier, ObjectLocation.from_url(COLD)):
        reader = read(ROOT, fs=rig.fs, objects=objects)
        assert [bundle for _, bundle in reader.bundles()] == [bundle_of(number) for number in range(3)]
        assert pa.table(reader.scan(30))["n"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert rig.tier.calls["get"] > before
