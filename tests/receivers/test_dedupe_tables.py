"""Data stored as tables are recognized when they are repeated: on another stream, in another process, in part."""

from dataclasses import replace

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import quiver
from quiver.errors import CapacityError
from quiver.observe import InMemoryObserver
from quiver.otap import StatusCode, StreamEncoder, from_otlp
from quiver.receivers.intake import OtlpIntake
from quiver.receivers.otap.intake import OtapIntake
from quiver.receivers.otap.settings import OtapSettings
from quiver.receivers.settings import OtlpSettings
from quiver.testing.clock import ManualClock

SETTINGS = OtlpSettings(otlp_handling="convert_to_arrow", dedupe_window_s=60)


def request(text: str = "a", *, rows: int = 3) -> bytes:
    made = ExportLogsServiceRequest()
    records = made.resource_logs.add().scope_logs.add().log_records
    for number in range(rows):
        record = records.add(severity_text=text)
        record.attributes.add(key="number").value.int_value = number
    return made.SerializeToString()


def message(encoder: StreamEncoder, text: str = "a") -> bytes:
    bundle = from_otlp(request(text), "logs")
    (batch,) = encoder.encode(bundle.batches)
    return batch.message


def bundles(path) -> int:
    return len(list(quiver.read(str(path)).bundles()))


class Full:
    """A store with a limited number of bundles, which it counts."""

    def __init__(self, room: int) -> None:
        self.room, self.kept = room, 0

    def ingest(self, bundle, *, durable=False, timeout=None):
        if not self.room:
            raise CapacityError("wal.max_size")
        self.room -= 1
        self.kept += 1

    def sync(self) -> None:
        """Nothing is ever open."""

    def recent_wal_entries(self):
        return iter(())


@pytest.mark.parametrize("after", ["convert_to_arrow", "pass_through"])
def test_a_request_stored_as_tables_is_known_to_the_next_process(tmp_path, after):
    """Its bytes are not stored: another handling cannot recognize it, and stores it again."""
    with quiver.open(str(tmp_path)) as store:
        assert OtlpIntake(store, SETTINGS).accept("logs", request()).outcome == "stored"
    with quiver.open(str(tmp_path)) as store:
        intake = OtlpIntake(store, replace(SETTINGS, otlp_handling=after))
        expected = "duplicate" if after == "convert_to_arrow" else "stored"
        assert intake.accept("logs", request()).outcome == expected
        assert intake.accept("logs", request("b")).outcome == "stored"
    assert bundles(tmp_path) == (2 if after == "convert_to_arrow" else 3)


def test_tables_are_looked_up_only_while_they_are_remembered(tmp_path):
    clock = ManualClock(now_ns=1_700_000_000_000_000_000)
    with quiver.open(str(tmp_path), clock=clock) as store:
        store.register("kept", start="earliest")  # or the tables may be freed before the second intake looks
        assert OtlpIntake(store, SETTINGS, clock=clock).accept("logs", request()).confirmed
    with quiver.open(str(tmp_path), clock=clock) as store:
        intake = OtlpIntake(store, SETTINGS, clock=clock)
        assert intake.window is not None
        assert intake.window.holds_tables
        clock.advance(61)
        assert not intake.window.holds_tables
        assert intake.accept("logs", request()).outcome == "stored"


def test_the_stored_part_of_a_request_is_not_stored_twice():
    store = Full(room=1)
    intake = OtlpIntake(store, SETTINGS)
    data = request(rows=70_000)
    assert intake.accept("logs", data).outcome == "full"
    store.room = 5
    assert intake.accept("logs", data).outcome == "stored"
    assert intake.accept("logs", data).outcome == "duplicate"
    assert store.kept == 2


def otap_intake(store, *, window=None, observer=None) -> OtapIntake:
    shared = OtlpIntake(store, SETTINGS).window if window is None else window
    return OtapIntake(store, OtapSettings(), observer or InMemoryObserver(), window=shared)


def test_a_batch_resent_on_another_stream_is_confirmed_and_stored_once():
    store, observer = Full(room=9), InMemoryObserver()
    intake = otap_intake(store, observer=observer)
    first, second = StreamEncoder("logs"), StreamEncoder("logs")
    taken = [intake.open("logs").take(message(first))]
    again = intake.open("logs")
    taken.append(again.take(message(second)))
    taken.append(again.take(message(second, "b")))
    assert [one.status.code for one in taken if one.status] == [StatusCode.OK] * 3
    assert all(one.stored for one in taken)  # each may be confirmed only after a sync
    assert store.kept == 2
    assert observer.counts["quiver.receiver.batches_total", (("outcome", "duplicate"), ("signal", "logs"))] == 1


def test_a_refused_batch_may_be_sent_again():
    store = Full(room=0)
    intake = otap_intake(store)
    assert intake.open("logs").take(message(StreamEncoder("logs"))).status.code == StatusCode.UNAVAILABLE
    store.room = 1
    assert intake.open("logs").take(message(StreamEncoder("logs"))).status.code == StatusCode.OK
    assert store.kept == 1


def test_a_batch_of_a_stream_is_known_to_the_next_process(tmp_path):
    with quiver.open(str(tmp_path)) as store:
        assert otap_intake(store).open("logs").take(message(StreamEncoder("logs"))).stored
    with quiver.open(str(tmp_path)) as store:
        assert otap_intake(store).open("logs").take(message(StreamEncoder("logs"))).status.code == StatusCode.OK
    assert bundles(tmp_path) == 1


def test_without_a_window_every_batch_is_stored():
    store = Full(room=9)
    intake = OtapIntake(store, OtapSettings(), InMemoryObserver())
    for _ in range(2):
        assert intake.open("logs").take(message(StreamEncoder("logs"))).stored
    assert store.kept == 2
