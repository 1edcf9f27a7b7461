"""Large requests are split, small ones combined, and a bundle is acknowledged when all of it is confirmed."""

import socket
import threading
from random import Random

import pytest
from fake_destination import FakeGrpcDestination, FakeSender, FakeSource, fake_http_destination, otlp_bundle
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import quiver
from quiver.bundle import Bundle
from quiver.delivery.dead_letters import DeadLetters, read_dead_letters
from quiver.delivery.policy import Delivered, RetryPolicy
from quiver.delivery.undelivered import Undelivered
from quiver.errors import SettingsError
from quiver.exporters.forward import BundleForwarder
from quiver.exporters.once import send_once
from quiver.exporters.otlp_grpc import OtlpGrpcSender
from quiver.exporters.otlp_http import OtlpHttpSender
from quiver.exporters.parts import PartSender
from quiver.exporters.reply import Reply
from quiver.exporters.settings import ExporterSettings, RequestSizes
from quiver.exporters.size_limit import SizeLimit
from quiver.observe import InMemoryObserver
from quiver.primitives.backoff import Backoff
from quiver.receivers.otlp.grpc_receiver import OtlpGrpcReceiver
from quiver.receivers.otlp.http_receiver import OtlpHttpReceiver
from quiver.receivers.settings import OtlpSettings
from quiver.settings import Settings
from quiver.store.opening import open_store
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

MIB = 1024 * 1024
RETRY = Backoff(first_s=1.0, cap_s=8.0, jitter=0.0)
TOO_LARGE = Reply("refused", "RESOURCE_EXHAUSTED", "too large", is_too_large=True)


def logs(*bodies: str) -> bytes:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    scope.scope.name = "app"
    for body in bodies:
        scope.log_records.add().body.string_value = body
    return request.SerializeToString()


def bodies(*requests: bytes) -> list[str]:
    return [
        record.body.string_value
        for request in requests
        for resource in ExportLogsServiceRequest.FromString(request).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def texts(count: int, size: int, name: str = "") -> list[str]:
    return [f"{name}{number:05}".ljust(size, "x") for number in range(count)]


class Rig:
    def __init__(self, sender, *bundles, **how) -> None:
        self.clock = ManualClock()
        self.source = WaitingSource(self.clock, *bundles)
        self.sender = sender
        self.observer = InMemoryObserver()
        self.forwarder = BundleForwarder(
            self.source, sender, retry=RETRY, random=Random(1), clock=self.clock, observer=self.observer, **how
        )

    def run(self):
        while self.forwarder.forward_one():
            pass
        return self.source.outcomes

    def total(self, name, **attributes):
        return sum(
            amount
            for (counted, kept), amount in self.observer.counts.items()
            if counted == f"quiver.exporter.{name}_total" and attributes.items() <= dict(kept).items()
        )


class WaitingSource(FakeSource):
    """A source on which an unsuccessful wait advances the clock."""

    def next_bundles(self, count, timeout=None):
        found = super().next_bundles(count, timeout)
        if not found and timeout:
            self.clock.advance(timeout)
        return found


def taking(bytes_max: int, *, says: int | None = None):
    """A receiver that refuses larger requests."""

    def answer(_signal, request):
        if len(request) > bytes_max:
            return Reply("refused", "RESOURCE_EXHAUSTED", "no", is_too_large=True, limit_bytes=says)
        return Reply("confirmed")

    return answer


def sent(sender: FakeSender) -> list[bytes]:
    return [request for _, request in sender.sent]


# ── too large ────────────────────────────────────────────────────────────────────────────────────────


def test_six_megabytes_reach_a_grpc_server_with_default_limits():
    """Its limit is 4 MiB."""
    wanted = texts(30_000, 200)
    with FakeGrpcDestination() as far:
        sender = OtlpGrpcSender(ExporterSettings(f"http://127.0.0.1:{far.port}"))
        rig = Rig(sender, otlp_bundle(logs(*wanted)))
        assert rig.run() == {0: "acked"}
        sender.close()
    requests = [data for _, data, _ in far.got]

    assert bodies(*requests) == wanted
    assert len(requests) == 2
    assert (rig.total("batches"), rig.total("rows"), rig.total("bytes")) == (2, 30_000, sum(map(len, requests)))
    assert rig.total("requests", outcome="divided") == 0


def test_the_limit_is_learned_from_a_grpc_server():
    """One refusal states the limit; the next request is split before it is sent."""
    wanted = [texts(12_000, 200, name) for name in "ab"]
    with FakeGrpcDestination(bytes_max=MIB) as far:
        sender = OtlpGrpcSender(ExporterSettings(f"http://127.0.0.1:{far.port}"))
        rig = Rig(sender, *(otlp_bundle(logs(*one)) for one in wanted))
        assert rig.run() == {0: "acked", 1: "acked"}
        sender.close()

    assert bodies(*(data for _, data, _ in far.got)) == wanted[0] + wanted[1]
    assert rig.total("requests", outcome="divided") == 1
    assert len(far.got) == 6


@pytest.mark.parametrize("answer", [(413, {}, b""), (400, {}, b"http: request body too large")])
def test_the_limit_is_learned_from_an_http_server(answer):
    """It states no limit: the size is halved, and that is the limit from then on."""
    wanted = texts(100, 1000)
    with fake_http_destination(answer) as far:
        sender = OtlpHttpSender(ExporterSettings(f"http://127.0.0.1:{far.server_port}", protocol="http"))
        rig = Rig(sender, otlp_bundle(logs(*wanted)), otlp_bundle(logs(*wanted)))
        assert rig.run() == {0: "acked", 1: "acked"}
        sender.close()

    assert bodies(*(body for _, _, body in far.got[1:])) == wanted * 2
    assert rig.total("requests", outcome="divided") == 1
    assert rig.total("requests", outcome="confirmed") == len(far.got) - 1 == 6


def test_an_http_answer_before_the_end_of_the_request_counts():
    """The server closes the connection while the request is still being written."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                connection.shutdown(socket.SHUT_WR)
                connection.recv(200_000_000)

        thread = threading.Thread(target=answer)
        thread.start()
        sender = OtlpHttpSender(ExporterSettings(f"http://127.0.0.1:{server.getsockname()[1]}", protocol="http"))
        reply = sender.send("logs", b"x" * 50_000_000)
        thread.join()
        sender.close()

    assert (reply.reason, reply.is_too_large) == ("HTTP 413", True)


def test_without_a_stated_limit_the_size_is_halved_until_it_fits():
    """Later requests are split before they are sent."""
    wanted = texts(600, 1000)
    sender = FakeSender(taking(100_000))
    rig = Rig(sender, otlp_bundle(logs(*wanted)), otlp_bundle(logs(*wanted)))
    assert rig.run() == {0: "acked", 1: "acked"}

    assert bodies(*(one for one in sent(sender) if len(one) <= 100_000)) == wanted * 2
    assert rig.total("requests", outcome="divided") == 3
    assert rig.total("rows") == 1200


def test_one_record_that_is_too_large_becomes_a_dead_letter_alone(tmp_path):
    """The records around it and later bundles arrive."""
    huge = "h" * 50_000
    wanted = [*texts(50, 1000), huge, *texts(50, 1000, "b")]
    fs, clock = CrashFileSystem(), ManualClock()
    store = open_store("/store", fs=fs, clock=clock, background=False)
    source = store.register("out", start="earliest")
    for bundle in (otlp_bundle(logs(*wanted)), otlp_bundle(logs("next"))):
        store.ingest(bundle)
    store.seal()
    sender = FakeSender(taking(40_000, says=40_000))
    undelivered = Undelivered(
        "out", RetryPolicy(), letters=DeadLetters("/store", "out", fs=fs, clock=clock, background=False)
    )
    forwarder = BundleForwarder(source, sender, undelivered=undelivered, clock=clock)
    while forwarder.forward_one():
        pass
    (letter,) = read_dead_letters(fs, "/store", "out")

    assert bodies(*(one for one in sent(sender) if len(one) <= 40_000)) == [one for one in wanted if one != huge] + [
        "next"
    ]
    assert bodies(*letter.bundle[60].column("data").to_pylist()) == [huge]
    assert "bytes that cannot be split" in letter.reason
    assert store.register("out").lag().pending_bundles == 0


def test_only_unconfirmed_parts_are_sent_again():
    """With the same batch ids for the same records."""
    answers = {"down": False}

    def answer(_signal, request):
        return Reply("retry", "UNAVAILABLE") if answers["down"] and "c" in bodies(request)[0] else Reply("confirmed")

    wanted = ["a" * 900, "b" * 900, "c" * 900, "d" * 900]
    sender = FakeSender(answer)
    rig = Rig(sender, otlp_bundle(logs(*wanted)), origin="id", sizes=RequestSizes(request_bytes_max=1024))
    answers["down"] = True
    assert rig.run() == {}
    answers["down"] = False
    rig.clock.advance(8.0)
    assert rig.run() == {0: "acked"}

    assert [bodies(one)[0][0] for one in sent(sender)] == list("abccd")
    assert sender.batch_ids == ["id/0:0/0/0-1", "id/0:0/0/1-2", "id/0:0/0/2-3", "id/0:0/0/2-3", "id/0:0/0/3-4"]
    assert rig.total("rows") == 4


def test_a_quota_does_not_lower_the_size_limit():
    """All sizes are refused: the bundle is a dead letter, and the earlier limit is restored."""
    sender = FakeSender(lambda *_: TOO_LARGE)
    rig = Rig(sender, otlp_bundle(logs(*texts(300, 1000))), otlp_bundle(logs(*texts(40, 1000))))
    outcomes = rig.run()

    assert {outcome.partition(":")[0] for outcome in outcomes.values()} == {"rejected"}
    sender.answer = None
    rig.source.add(otlp_bundle(logs(*texts(300, 1000))))
    rig.run()
    assert len(sent(sender)[-1]) > 300_000


def test_a_dead_letter_is_replayed_in_parts():
    """As its exporter would send it now."""
    wanted = texts(100, 1000)
    sender = FakeSender(taking(30_000))

    assert send_once(PartSender(sender, SizeLimit(MIB)), otlp_bundle(logs(*wanted))) == Delivered()
    assert bodies(*(one for one in sent(sender) if len(one) <= 30_000)) == wanted


def test_an_invalid_request_is_sent_unchanged():
    """It cannot be split; the receiver may report the error."""
    junk = b"\x0b" * 5000
    sender = FakeSender(taking(100))
    rig = Rig(sender, otlp_bundle(junk), sizes=RequestSizes(request_bytes_max=1024))

    assert rig.run()[0].startswith("rejected")
    assert sent(sender) == [junk]


# ── too small ────────────────────────────────────────────────────────────────────────────────────────

SMALL = RequestSizes(batch_bytes_min=2000, batch_delay_s_max=0.5)


def small_bundles(count: int, size: int = 400):
    return [otlp_bundle(logs(text)) for text in texts(count, size)]


def test_small_requests_are_combined_and_each_bundle_is_acknowledged():
    """In order, up to the configured size; the rest is sent when the delay is over."""
    sender = FakeSender()
    rig = Rig(sender, *small_bundles(12), origin="id", sizes=SMALL)
    assert rig.run() == dict.fromkeys(range(12), "acked")

    assert [len(bodies(one)) for one in sent(sender)] == [5, 5, 2]
    assert bodies(*sent(sender)) == texts(12, 400)
    assert len(set(sender.batch_ids)) == 3
    assert (rig.total("batches"), rig.total("rows")) == (3, 12)


def test_signals_are_combined_separately():
    """A request has one signal; a bundle of several is acknowledged when all are confirmed."""
    both = Bundle({**otlp_bundle(logs("a")).batches, **otlp_bundle(b"", signal="traces").batches})
    sender = FakeSender()
    rig = Rig(sender, both, otlp_bundle(logs("b")), otlp_bundle(logs("c"), signal="metrics"), sizes=SMALL)
    assert rig.run() == dict.fromkeys(range(3), "acked")

    assert [(signal, len(bodies(one))) for signal, one in sender.sent] == [("logs", 2), ("metrics", 1)]


def test_only_the_refused_bundle_of_a_combined_request_is_dropped():
    """The bundles are sent again individually."""

    def answer(_signal, request):
        return Reply("refused", "INVALID_ARGUMENT", "bad") if "bad" in bodies(request) else Reply("confirmed")

    sender = FakeSender(answer)
    rig = Rig(sender, *(otlp_bundle(logs(text)) for text in ("a", "bad", "c")), sizes=SMALL)
    outcomes = rig.run()

    assert outcomes == {0: "acked", 1: "rejected: INVALID_ARGUMENT: bad", 2: "acked"}
    assert [bodies(one) for one in sent(sender)] == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]
    assert (rig.total("requests", outcome="refused"), rig.total("rows")) == (1, 2)


def test_a_combined_request_that_fails_is_deferred_once_for_each_bundle():
    """Nothing is lost or counted twice, and one failure does not count as an outage."""
    answers = [Reply("retry", "UNAVAILABLE", "down")]
    sender = FakeSender(lambda *_: answers.pop() if answers else Reply("confirmed"))
    rig = Rig(sender, *small_bundles(10), sizes=SMALL)
    rig.run()
    assert not rig.forwarder.state().is_down
    assert {len(delays) for delays in rig.source.delays.values()} == {1}
    rig.clock.advance(8.0)
    assert rig.run() == dict.fromkeys(range(10), "acked")

    assert sorted(bodies(*sent(sender)[1:])) == texts(10, 400)
    assert rig.forwarder.state().retrying == rig.forwarder.state().in_flight == 0


def test_a_combined_request_is_not_larger_than_the_limit():
    """Also when the receiver's limit turned out to be lower."""
    sender = FakeSender(taking(1500, says=1500))
    rig = Rig(sender, *small_bundles(10), sizes=SMALL)
    assert rig.run() == dict.fromkeys(range(10), "acked")

    assert bodies(*(one for one in sent(sender) if len(one) <= 1500)) == texts(10, 400)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"request_bytes_max": 10}, "max_request_bytes"),
        ({"request_bytes_max": 2000, "batch_bytes_min": 3000}, "min_batch"),
        ({"batch_bytes_min": 1, "batch_delay_s_max": -1}, "max_delay"),
    ],
)
def test_invalid_sizes_are_refused(given, says):
    with pytest.raises(SettingsError, match=says):
        RequestSizes(**given)


# ── a receiver of our own ────────────────────────────────────────────────────────────────────────────

SMALL_STORE = Settings(segment_bytes_max=MIB // 2, wal_rotate_bytes=MIB // 2, size_cap_bytes=2 * MIB)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_request_above_the_cap_of_a_receiver_is_split(tmp_path, protocol):
    """Its buffer accepts the parts one after another."""
    wanted = texts(3_000, 1000)
    open_receiver = OtlpGrpcReceiver if protocol == "grpc" else OtlpHttpReceiver
    make_sender = OtlpGrpcSender if protocol == "grpc" else OtlpHttpSender
    kept = []
    with (
        quiver.open(str(tmp_path), SMALL_STORE) as store,
        open_receiver(store, OtlpSettings(listening_addr="127.0.0.1:0")) as receiver,
    ):
        subscriber = store.register("far", start="earliest")
        sender = make_sender(ExporterSettings(f"http://127.0.0.1:{receiver.port}", protocol=protocol))
        rig = Rig(sender, otlp_bundle(logs(*wanted)))
        while not rig.source.outcomes:
            rig.forwarder.forward_one()
            rig.clock.advance(8.0)
            store.seal()
            while (handle := subscriber.next_bundle(timeout=0)) is not None:
                kept += handle.bundle[60].column(0).to_pylist()
                handle.ack()
            store.maintain()
        sender.close()

    assert rig.source.outcomes == {0: "acked"}
    assert bodies(*kept) == wanted
