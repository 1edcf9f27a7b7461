"""Bundles are acknowledged when confirmed, deferred on transient failures, rejected on permanent ones."""

import threading
from random import Random

import pyarrow as pa
import pytest
from fake_destination import FakeSender, FakeSource, otlp_bundle
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import quiver
from quiver.bundle import OTLP_SCHEMA, Bundle
from quiver.delivery.policy import RETRY_AFTER_S_MAX
from quiver.errors import (
    CorruptionError,
    DirectoryInUseError,
    StoreClosedError,
    UnknownSubscriberError,
    UnsupportedFormatError,
)
from quiver.exporters.circuit_breaker import FAILURES_MAX
from quiver.exporters.forward import BundleForwarder
from quiver.exporters.reply import Reply
from quiver.observe import InMemoryObserver
from quiver.otap import from_otlp
from quiver.primitives.backoff import Backoff
from quiver.settings import Settings
from quiver.testing.clock import ManualClock

LATER = Reply("retry", "UNAVAILABLE", "down")
RETRY = Backoff(first_s=1.0, cap_s=8.0, jitter=0.0)


class Rig:
    def __init__(self, *bundles, answer=None, **how):
        self.clock = ManualClock()
        self.source = FakeSource(self.clock, *bundles)
        self.sender = FakeSender(answer)
        self.observer = InMemoryObserver()
        self.forwarder = BundleForwarder(
            self.source,
            self.sender,
            retry=RETRY,
            random=Random(1),
            clock=self.clock,
            observer=self.observer,
            **how,
        )

    def run(self):
        while self.forwarder.forward_one():
            pass
        return self.source.outcomes

    def counted(self, **attributes):
        return sum(
            amount
            for (name, kept), amount in self.observer.counts.items()
            if name == "quiver.exporter.requests_total" and attributes.items() <= dict(kept).items()
        )


def answering(bad: dict[bytes, Reply]):
    """Return an answer function that confirms all requests but those in *bad*."""
    return lambda _signal, request: bad.get(request, Reply("confirmed"))


def test_every_bundle_is_sent_as_it_is_stored_and_acknowledged():
    """All three signals, several requests in a bundle, without the empty ones."""
    rig = Rig(otlp_bundle(b"a", b"", b"b"), otlp_bundle(b"c", signal="traces"), otlp_bundle(b"d", signal="metrics"))

    assert rig.run() == {0: "acked", 1: "acked", 2: "acked"}
    assert rig.sender.sent == [("logs", b"a"), ("logs", b"b"), ("traces", b"c"), ("metrics", b"d")]
    assert rig.counted(outcome="confirmed") == 4
    assert rig.forwarder.state().confirmed == 4


def test_a_bundle_is_acknowledged_when_all_its_signals_are_confirmed():
    both = {**otlp_bundle(b"a").batches, **otlp_bundle(b"b", signal="traces").batches}
    rig = Rig(Bundle(both))

    assert rig.run() == {0: "acked"}
    assert rig.sender.sent == [("logs", b"a"), ("traces", b"b")]


def test_newer_bundles_overtake_a_failed_one():
    """Its delays grow to the cap, until the destination accepts it."""
    bad = {b"sick": LATER}
    rig = Rig(otlp_bundle(b"sick"), *(otlp_bundle(b"%d" % number) for number in range(20)), answer=answering(bad))

    assert rig.run() == dict.fromkeys(range(1, 21), "acked")
    for _ in range(5):
        rig.clock.advance(8.0)
        rig.run()
    assert rig.source.delays[0] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert rig.forwarder.state().retrying == 1
    assert rig.forwarder.state().problem == "UNAVAILABLE: down"
    bad.clear()
    rig.clock.advance(8.0)
    assert rig.run()[0] == "acked"
    state = rig.forwarder.state()
    assert (state.retrying, state.problem, state.in_flight) == (0, "", 0)
    assert rig.counted(outcome="retried", reason="UNAVAILABLE") == 6


def test_a_destination_may_ask_for_a_longer_delay():
    """Up to a maximum."""
    answers = [Reply("retry", "HTTP 503", "", seconds) for seconds in (20.0, 0.0, 1e9)]
    rig = Rig(otlp_bundle(b"x"), answer=lambda *_: answers.pop(0))
    for _ in range(3):
        rig.run()
        rig.clock.advance(20.0)

    assert rig.source.delays[0] == [20.0, 2.0, RETRY_AFTER_S_MAX]


def test_a_refused_bundle_is_rejected_with_the_reason():
    """It does not block others."""
    rig = Rig(
        otlp_bundle(b"bad"),
        otlp_bundle(b"good"),
        answer=answering({b"bad": Reply("refused", "INVALID_ARGUMENT", "no such thing")}),
    )

    assert rig.run() == {0: "rejected: INVALID_ARGUMENT: no such thing", 1: "acked"}
    assert rig.counted(outcome="refused", reason="INVALID_ARGUMENT", signal="logs", exporter="out") == 1
    assert rig.forwarder.state().refused == 1


def test_repeated_refusals_are_logged_once_a_minute():
    """A program that exports its own log must not create an event for each event."""
    rig = Rig(answer=lambda _signal, request: Reply("refused", request.decode(), "no"))
    reports = []
    rig.observer.event = lambda name, **attributes: reports.append((rig.clock.monotonic(), name, attributes["reason"]))
    for _ in range(90):
        rig.source.add(otlp_bundle(b"HTTP 401"))
        rig.source.add(otlp_bundle(b"HTTP 400"))
        rig.run()
        rig.clock.advance(1.0)

    name = "quiver.exporter.refused"
    assert reports == [(at, name, reason) for at in (0.0, 60.0) for reason in ("HTTP 401", "HTTP 400")]
    assert rig.counted(outcome="refused") == 180


def test_a_request_that_is_sent_again_is_logged_from_the_first_one_on():
    """With little traffic, it takes long until the destination counts as down."""
    rig = Rig(otlp_bundle(b"a"), answer=lambda *_: LATER)
    reports = []
    rig.observer.event = lambda name, **attributes: reports.append((name, attributes["reason"], attributes["message"]))

    rig.run()

    assert reports == [("quiver.exporter.retry", LATER.reason, LATER.message)]


def test_partial_success_counts_rejected_items():
    """It is confirmed: by the specification it must not be sent again."""
    rig = Rig(otlp_bundle(b"a"), answer=lambda *_: Reply("confirmed", "PARTIAL_SUCCESS", "why", rejected_items=7))

    assert rig.run() == {0: "acked"}
    assert rig.observer.total("quiver.exporter.rejected_items_total") == 7


def test_left_out_data_are_counted_and_logged():
    """The requests are acknowledged, because the rest arrived; each kind of loss is logged once a minute."""
    reply = Reply("confirmed", left_out={"entity_refs": 2, "empty_scopes": 1})
    rig = Rig(otlp_bundle(b"a"), otlp_bundle(b"b"), answer=lambda *_: reply)
    reports = []
    rig.observer.event = lambda name, **attributes: reports.append((name, attributes["reason"], attributes["message"]))

    assert rig.run() == {0: "acked", 1: "acked"}
    assert rig.observer.total("quiver.exporter.left_out_total") == 6
    labels = {"exporter": "out", "signal": "logs", "what": "entity_refs"}
    assert rig.observer.counts["quiver.exporter.left_out_total", tuple(sorted(labels.items()))] == 4
    name = "quiver.exporter.left_out"
    assert reports == [(name, "entity_refs", "2 of one request"), (name, "empty_scopes", "1 of one request")]


def test_only_unsettled_requests_of_a_bundle_are_sent_again():
    """The second one failed: the first is not sent twice, and a refusal is remembered."""
    answers = {b"first": Reply("refused", "HTTP 400"), b"second": LATER}
    rig = Rig(otlp_bundle(b"first", b"second", b"third"), answer=answering(answers))
    rig.run()
    del answers[b"second"]
    rig.clock.advance(1.0)

    assert rig.run() == {0: "rejected: HTTP 400"}
    assert [request for _, request in rig.sender.sent] == [b"first", b"second", b"second", b"third"]


def test_a_bundle_without_a_valid_request_is_rejected():
    """An application's own slot, requests with another schema, and a bundle that is damaged on disk."""
    other = pa.record_batch([pa.array([1])], names=["data"])
    wide = pa.record_batch([pa.array([b"x"], pa.large_binary())], names=["data"])
    assert not wide.schema.equals(OTLP_SCHEMA)
    rig = Rig(Bundle({7: other}), Bundle({60: wide}), CorruptionError("f", 3, "torn"), otlp_bundle(b"good"))
    outcomes = rig.run()

    assert outcomes[3] == "acked"
    assert [outcomes[index].partition(":")[0] for index in range(3)] == ["rejected"] * 3
    assert "f at byte 3" in outcomes[2]
    assert rig.counted(outcome="refused") == 3


def test_a_bundle_that_cannot_be_read_is_retried():
    """After a disk error, or for a file of a newer version; it does not count as a failure of the destination."""
    failures = [OSError(5, "I/O"), UnsupportedFormatError("f", 0, "newer")]
    rig = Rig(*(failures * FAILURES_MAX), otlp_bundle(b"good"))

    assert rig.run() == {2 * FAILURES_MAX: "acked"}
    assert set(map(tuple, rig.source.delays.values())) == {(1.0,)}
    assert not rig.forwarder.state().is_down


def test_a_bundle_is_retried_after_a_sender_raises():
    """The error is logged."""
    faults = [RuntimeError("bug")]

    def answer(*_):
        if faults:
            raise faults.pop()
        return Reply("confirmed")

    rig = Rig(otlp_bundle(b"x"), answer=answer)
    rig.run()
    assert rig.source.delays == {0: [1.0]}
    rig.clock.advance(1.0)
    assert rig.run() == {0: "acked"}


def test_an_outage_is_probed_with_one_bundle_at_a_time():
    """When the destination is up, all bundles are sent immediately."""
    answers = {}
    rig = Rig(
        *(otlp_bundle(b"%d" % number) for number in range(1000)),
        answer=lambda _signal, _request: answers.get("all", Reply("confirmed")),
    )
    answers["all"] = LATER
    for _ in range(60):
        rig.run()
        rig.clock.advance(1.0)
    assert rig.forwarder.state().is_down
    assert len(rig.sender.sent) < 20
    assert rig.source.outcomes == {}
    answers.clear()
    rig.clock.advance(8.0)
    rig.run()
    rig.clock.advance(8.0)
    rig.run()

    assert rig.source.outcomes == dict.fromkeys(range(1000), "acked")
    assert rig.forwarder.state().retrying == 0


def test_many_failing_bundles_delay_new_ones_by_one_pause_only():
    """After enough failures to count as an outage, a new bundle is tried next."""
    bad = {b"sick%d" % number: LATER for number in range(3 * FAILURES_MAX)}
    rig = Rig(*(otlp_bundle(request) for request in bad), answer=answering(bad))
    for _ in range(200):
        rig.run()
        rig.clock.advance(1.0)
    assert rig.forwarder.state().is_down
    index = rig.source.add(otlp_bundle(b"new"))
    rig.clock.advance(8.0)
    rig.forwarder.forward_one()

    assert rig.source.outcomes == {index: "acked"}


def test_dropped_bundles_are_removed_from_the_attempts():
    """When the destination is up again."""
    rig = Rig(*(otlp_bundle(b"%d" % number) for number in range(FAILURES_MAX)), answer=lambda *_: LATER)
    rig.run()
    assert rig.forwarder.state().retrying == FAILURES_MAX
    rig.source.waiting.clear()
    rig.source.add(otlp_bundle(b"new"))
    rig.sender.answer = None
    rig.clock.advance(8.0)
    rig.run()

    assert rig.forwarder.state().retrying == 0


def test_otap_tables_are_sent_as_requests():
    """With the same content as the original request."""
    asked = ExportLogsServiceRequest()
    resource = asked.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    record = resource.scope_logs.add().log_records.add(time_unix_nano=5)
    record.body.string_value = "hello"
    record.attributes.add(key="n").value.int_value = 3
    bundle = from_otlp(asked.SerializeToString(), "logs")
    assert 60 not in bundle
    rig = Rig(bundle)

    assert rig.run() == {0: "acked"}
    ((signal, data),) = rig.sender.sent
    assert signal == "logs"
    assert ExportLogsServiceRequest.FromString(data) == asked


# ── with a store ─────────────────────────────────────────────────────────────────────────────────────


def test_a_real_store_is_drained_in_spite_of_damage(tmp_path):
    """Corrupt bytes cost their bundles, which are counted and logged; all others arrive, once."""
    observer = InMemoryObserver()
    settings = Settings(segment_bundles_max=5)
    with quiver.open(tmp_path, settings, background=False, observer=observer) as store:
        subscriber = store.register("out", start="earliest")
        for number in range(40):
            store.ingest(otlp_bundle(b"%d" % number))
        store.seal()
    victim = sorted((tmp_path / "segments").glob("*.qseg"))[3]
    data = bytearray(victim.read_bytes())
    at = data.index(b"17", data.index(b"ARROW1"))
    data[at : at + 2] = b"xx"
    victim.chmod(0o600)
    victim.write_bytes(data)
    sender = FakeSender()
    with quiver.open(tmp_path, settings, background=False, observer=observer) as store:
        subscriber = store.register("out", start="earliest")
        with BundleForwarder(subscriber, sender, observer=observer, retry=RETRY) as forwarder:
            assert forwarder.drained(30.0)
        assert subscriber.lag().is_drained
    sent = [request for _, request in sender.sent]
    assert len(sent) == len(set(sent))
    assert {b"%d" % number for number in range(40)} - set(sent) <= {b"15", b"16", b"17", b"18", b"19"}
    assert b"17" not in sent


def test_the_former_keyword_of_the_timeouts_works_with_a_warning():
    rig = Rig()
    for call in (rig.forwarder.drained, rig.forwarder.stop):
        with pytest.warns(DeprecationWarning, match=rf"BundleForwarder.{call.__name__}\(timeout_s=\) is now timeout="):
            call(timeout_s=0)


# ── threads ──────────────────────────────────────────────────────────────────────────────────────────


def threaded(*bundles, answer=None, **how):
    """A rig whose threads use the real clock."""
    from quiver.clock import SYSTEM_CLOCK

    rig = Rig(answer=answer)
    rig.source = FakeSource(SYSTEM_CLOCK, *bundles)
    rig.forwarder = BundleForwarder(rig.source, rig.sender, retry=RETRY, observer=rig.observer, **how)
    return rig


def test_stop_sends_pending_bundles_and_returns_the_number_left():
    """Sealed bundles are sent; the failing one is left without waiting for it."""
    rig = threaded(
        otlp_bundle(b"sick"),
        *(otlp_bundle(b"%d" % number) for number in range(100)),
        answer=answering({b"sick": LATER}),
    )
    rig.forwarder.start()
    rig.forwarder.start()

    assert rig.forwarder.stop(30.0) == 1
    assert rig.source.outcomes == dict.fromkeys(range(1, 101), "acked")
    assert rig.sender.closed == 1
    assert rig.forwarder.stop() == 1
    with pytest.raises(StoreClosedError):
        rig.forwarder.start()


def test_in_flight_max_is_kept_and_stop_cancels():
    """Three threads send three bundles; at the deadline the sender is closed, and they are deferred."""
    entered, closed = threading.Semaphore(0), threading.Event()

    def answer(*_):
        entered.release()
        assert closed.wait(30)
        return Reply("retry", "CLOSED", "broken off")

    rig = threaded(*(otlp_bundle(b"%d" % number) for number in range(10)), answer=answer, in_flight_max=3)
    rig.sender.close = closed.set
    rig.forwarder.start()
    for _ in range(3):
        assert entered.acquire(timeout=30)
    assert rig.forwarder.state().in_flight == 3
    assert not entered.acquire(timeout=0.05)

    assert rig.forwarder.stop(0.0) == 10
    assert rig.source.outcomes == {}
    assert len(rig.sender.sent) == 3


def test_closing_the_store_ends_the_threads():
    """Without an exception."""
    rig = threaded()

    def closed(*_):
        raise StoreClosedError("closed")

    rig.source.next_bundles = closed
    rig.source.pending_bundle_count = closed
    rig.forwarder.start()

    assert rig.forwarder.stop(30.0) == 0
    assert not any(thread.name.startswith("quiver-forward") for thread in threading.enumerate())


def test_a_forwarder_waits_for_the_lock_of_its_subscriber():
    """It logs that once, and starts when the other process releases the lock."""
    rig = threaded(otlp_bundle(b"x"))
    taken = rig.source.next_bundles
    failures = [DirectoryInUseError("quiver.sub.out", "pid 1"), DirectoryInUseError("quiver.sub.out", "pid 1")]
    messages = []
    rig.observer.event = lambda name, **attributes: messages.append((name, attributes["problem"]))
    done = threading.Event()

    def next_bundles(*arguments):
        if failures:
            raise failures.pop()
        done.set()
        return taken(*arguments)

    rig.source.next_bundles = next_bundles
    rig.forwarder._clock = ManualClock()  # its pauses are over at once
    rig.forwarder.start()
    assert done.wait(30)
    rig.forwarder._clock = rig.source.clock
    assert rig.forwarder.stop(30.0) == 0
    assert rig.source.outcomes == {0: "acked"}
    assert messages == [("quiver.exporter.trouble", "quiver.sub.out is in use by pid 1; stop it first")]


def test_unregistering_the_subscriber_ends_the_threads():
    """Also while a bundle is in flight."""
    rig = threaded(otlp_bundle(b"x"))

    def unknown(_handle, _outcome):
        raise UnknownSubscriberError("out")

    rig.source.settled = unknown
    with rig.forwarder:
        pass

    assert rig.forwarder.state().in_flight == 0
