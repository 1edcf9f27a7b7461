"""A request is stored unchanged and only then confirmed; every other outcome has its own answer."""

import gzip
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_store import FakeStore, log_request, wal_entry
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from quiver.errors import CapacityError, InvalidBundleError, SettingsError, StoreClosedError, StoreFailedError
from quiver.observe import InMemoryObserver
from quiver.receivers.intake import OtlpIntake
from quiver.receivers.settings import OtlpSettings, split_address
from quiver.testing.clock import ManualClock

NOW_NS = 1_700_000_000_000_000_000
WITH_WINDOW = OtlpSettings(dedupe_window_s=600)


def test_a_request_is_stored_byte_for_byte_in_its_signals_slot():
    store = FakeStore()
    intake = OtlpIntake(store, OtlpSettings())
    data = log_request()
    for signal in ("logs", "traces", "metrics"):
        # The bytes do not identify the signal: these parse as all three.
        verdict = intake.accept(signal, data if signal == "logs" else b"\x0a\x00")
        assert (verdict.outcome, verdict.confirmed) == ("stored", True)
    assert store.kept == [(60, data), (61, b"\x0a\x00"), (62, b"\x0a\x00")]


@pytest.mark.parametrize(("ack", "durable"), [("synced", True), ("logged", False)])
def test_ack_determines_whether_to_wait_for_the_disk(ack, durable):
    store = FakeStore()
    OtlpIntake(store, OtlpSettings(ack=ack)).accept("logs", log_request())
    assert store.durable == [durable]


def test_an_empty_request_is_confirmed_and_stores_nothing():
    store = FakeStore()
    assert OtlpIntake(store, OtlpSettings()).accept("logs", b"").confirmed
    assert OtlpIntake(store, OtlpSettings()).accept("logs", gzip.compress(b""), encoding="gzip").confirmed
    assert store.kept == []


@pytest.mark.parametrize("data", [b"\xff", b"\x0b" * 100_000, log_request()[:-1], b"\x0a\x02\x12\x05", b"hello"])
def test_garbage_is_refused_permanently_and_not_stored(data):
    store = FakeStore()
    verdict = OtlpIntake(store, OtlpSettings()).accept("logs", data)
    assert (verdict.outcome, verdict.retry_after_s) == ("invalid", None)
    assert "ExportLogsServiceRequest" in verdict.message
    assert store.kept == []


def test_compressed_requests_are_stored_decompressed_and_invalid_ones_refused():
    store = FakeStore()
    intake = OtlpIntake(store, OtlpSettings())
    packed = gzip.compress(log_request())
    assert intake.accept("logs", packed, encoding="gzip").outcome == "stored"
    assert store.kept == [(60, log_request())]
    assert intake.accept("logs", packed[:-3], encoding="gzip").outcome == "invalid"
    assert intake.accept("logs", log_request(), encoding="gzip").outcome == "invalid"
    assert len(store.kept) == 1


def test_sizes_are_bounded_before_and_after_decompression():
    store = FakeStore()
    limits = OtlpSettings(max_request_bytes=1000, max_decompressed_bytes=5000, in_flight_bytes_max=5000)
    intake = OtlpIntake(store, limits)
    assert intake.accept("logs", log_request(size=1000)).outcome == "too_large"
    assert intake.accept("logs", gzip.compress(log_request(size=4000)), encoding="gzip").outcome == "stored"
    assert intake.accept("logs", gzip.compress(log_request(size=5000)), encoding="gzip").outcome == "too_large"
    assert intake.accept("logs", gzip.compress(bytes(10_000_000)), encoding="gzip").outcome == "too_large"
    assert len(store.kept) == 1


def test_rows_too_large_for_readers_are_refused():
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    resource_logs.resource.attributes.add(key="k").value.string_value = "x" * 1_000_000
    records = resource_logs.scope_logs.add().log_records
    for _ in range(1000):
        records.add()
    store = FakeStore()
    assert OtlpIntake(store, OtlpSettings()).accept("logs", request.SerializeToString()).outcome == "invalid"
    assert store.kept == []


def test_the_retry_delay_grows_while_the_store_is_full():
    store = FakeStore()
    clock = ManualClock()
    intake = OtlpIntake(store, OtlpSettings(), clock=clock)
    delays = []
    for _ in range(5):
        store.failures.append(CapacityError("wal.max_size", retry_after_s=1.0))
        verdict = intake.accept("logs", log_request())
        assert (verdict.outcome, verdict.confirmed) == ("full", False)
        assert "wal.max_size" in verdict.message
        delays.append(verdict.retry_after_s)
        clock.advance(8)
    assert delays == [1.0, 8.0, 16.0, 24.0, 30.0]
    assert intake.accept("logs", log_request()).outcome == "stored"
    store.failures.append(CapacityError("wal.max_size", retry_after_s=1.0))
    assert intake.accept("logs", log_request()).retry_after_s == 1.0


@pytest.mark.parametrize(
    "failure", [StoreFailedError("sync failed"), StoreClosedError("closed"), OSError(28, "No space")]
)
def test_an_unavailable_store_answers_with_a_retry_delay(failure):
    store = FakeStore()
    store.failures.append(failure)
    verdict = OtlpIntake(store, OtlpSettings()).accept("logs", log_request())
    assert verdict.outcome == "unavailable"
    assert verdict.retry_after_s > 0


def test_a_request_above_the_capacity_is_refused_permanently():
    store = FakeStore()
    store.failures.append(InvalidBundleError("takes more than wal.max_size"))
    assert OtlpIntake(store, OtlpSettings()).accept("logs", log_request()).outcome == "invalid"


def test_requests_in_flight_share_one_limit():
    data = log_request(size=600)
    store = FakeStore()
    store.gate = threading.Event()
    limits = OtlpSettings(max_request_bytes=1000, max_decompressed_bytes=1000, in_flight_bytes_max=1000)
    intake = OtlpIntake(store, limits)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(intake.accept, "logs", data)
        assert store.entered.acquire(timeout=30)
        verdict = intake.accept("logs", data)
        assert (verdict.outcome, verdict.retry_after_s) == ("full", 1.0)
        store.gate.set()
        assert first.result(30).outcome == "stored"
    assert intake.accept("logs", data).outcome == "stored"


def test_json_requests_do_not_block_others(monkeypatch):
    held, entered = threading.Event(), threading.Semaphore(0)

    def slow(data, signal):
        entered.release()
        assert held.wait(30)
        return log_request()

    monkeypatch.setattr("quiver.receivers.intake.request_from_json", slow)
    store = FakeStore()
    intake = OtlpIntake(store, OtlpSettings(workers=3))
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(intake.accept, "logs", b"{}", json=True) for _ in range(2)]
        assert entered.acquire(timeout=30)  # one is being processed, the other waits
        while intake._json_places._value:
            threading.Event().wait(0.001)
        assert intake.accept("logs", log_request()).outcome == "stored"
        third = intake.accept("logs", b"{}", json=True)
        held.set()
        assert [one.result(30).outcome for one in waiting] == ["stored", "stored"]
    assert (third.outcome, third.retry_after_s) == ("full", 1.0)
    assert intake.accept("logs", b"{}", json=True).outcome == "stored"


# -- the window ---------------------------------------------------------------------------------------------


def test_a_repeated_request_is_confirmed_and_stored_once():
    store = FakeStore()
    intake = OtlpIntake(store, WITH_WINDOW, clock=ManualClock())
    outcomes = [intake.accept("logs", log_request()) for _ in range(3)]
    outcomes.append(intake.accept("logs", gzip.compress(log_request()), encoding="gzip"))
    assert [verdict.outcome for verdict in outcomes] == ["stored", "duplicate", "duplicate", "duplicate"]
    assert all(verdict.confirmed for verdict in outcomes)
    assert intake.accept("logs", log_request("other")).outcome == "stored"
    assert store.kept == [(60, log_request()), (60, log_request("other"))]


def test_without_a_window_every_request_is_stored():
    store = FakeStore(entries=[wal_entry(log_request(), ingested_at_ns=NOW_NS)])
    intake = OtlpIntake(store, OtlpSettings(), clock=ManualClock(now_ns=NOW_NS))
    assert [intake.accept("logs", log_request()).outcome for _ in range(2)] == ["stored", "stored"]
    assert store.syncs == 0


def test_a_refused_request_may_be_sent_again():
    store = FakeStore()
    store.failures.append(CapacityError("wal.max_size"))
    intake = OtlpIntake(store, WITH_WINDOW, clock=ManualClock())
    assert intake.accept("logs", log_request()).outcome == "full"
    assert intake.accept("logs", log_request()).outcome == "stored"
    assert intake.accept("logs", b"\xff").outcome == "invalid"
    assert intake.accept("logs", b"\xff").outcome == "invalid"


def test_a_request_stored_before_a_restart_is_confirmed_once_the_log_is_synced():
    store = FakeStore(entries=[wal_entry(log_request(), ingested_at_ns=NOW_NS - 1)])
    intake = OtlpIntake(store, WITH_WINDOW, clock=ManualClock(now_ns=NOW_NS))
    assert store.syncs == 1
    assert intake.accept("logs", log_request()).outcome == "duplicate"
    assert intake.accept("traces", log_request()).outcome != "duplicate"


def simultaneous(failures) -> tuple[FakeStore, list[str]]:
    store = FakeStore()
    store.gate = threading.Event()
    store.failures.extend(failures)
    clock = ManualClock(waits="hold")
    intake = OtlpIntake(store, WITH_WINDOW, clock=clock)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(intake.accept, "logs", log_request()) for _ in range(4)]
        clock.wait_for_waiters(3)
        store.gate.set()
        return store, sorted(future.result(30).outcome for future in futures)


def test_requests_repeated_at_the_same_time_are_stored_once():
    store, outcomes = simultaneous([])
    assert outcomes == ["duplicate", "duplicate", "duplicate", "stored"]
    assert len(store.kept) == 1


def test_another_caller_tries_when_the_first_one_fails():
    store, outcomes = simultaneous([CapacityError("wal.max_size"), StoreFailedError("sync failed")])
    assert outcomes == ["duplicate", "full", "stored", "unavailable"]
    assert len(store.kept) == 1


def test_an_unexpected_error_leaves_no_request_in_flight():
    store = FakeStore()
    store.failures.append(ZeroDivisionError())
    intake = OtlpIntake(store, WITH_WINDOW, clock=ManualClock())
    with pytest.raises(ZeroDivisionError):
        intake.accept("logs", log_request())
    assert intake.accept("logs", log_request()).outcome == "stored"


# -- counting and settings ----------------------------------------------------------------------------------


def test_requests_are_counted_by_signal_and_outcome():
    observer = InMemoryObserver()
    intake = OtlpIntake(FakeStore(), OtlpSettings(), observer=observer)
    intake.accept("logs", log_request())
    intake.accept("logs", b"\xff")
    name = "quiver.receiver.requests_total"
    assert observer.counts[name, (("outcome", "stored"), ("signal", "logs"))] == 1
    assert observer.counts[name, (("outcome", "invalid"), ("signal", "logs"))] == 1


def test_unreadable_entries_of_the_log_are_counted():
    entry = wal_entry(log_request(), ingested_at_ns=NOW_NS)
    entry.slots[0].payload = b"junk"
    observer = InMemoryObserver()
    OtlpIntake(FakeStore([entry]), WITH_WINDOW, clock=ManualClock(now_ns=NOW_NS), observer=observer)
    assert observer.total("quiver.receiver.dedupe_unread_total") == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"listening_addr": "localhost"},
        {"listening_addr": "1.2.3.4:70000"},
        {"listening_addr": "::1:4317"},
        {"max_request_bytes": 0},
        {"max_decompressed_bytes": 1},
        {"in_flight_bytes_max": 1},
        {"ack": "never"},
        {"dedupe_window_s": -1},
        {"workers": 0},
        {"body_timeout_s": 0},
    ],
)
def test_invalid_settings_are_refused(bad):
    with pytest.raises(SettingsError, match=next(iter(bad))):
        OtlpSettings(**bad)


def test_addresses_are_split():
    assert split_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert split_address("[::1]:4317") == ("::1", 4317)
    assert split_address("localhost:65535") == ("localhost", 65535)
