"""Confirmed data have arrived, even if streams fail."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Any, Self

import grpc
import pytest
from otap_client import KeptTables
from otap_equal import said
from otap_oracle import REQUESTS
from otap_ways import CASES, VIEW_OF, bytes_of, parsed

from quiver.clock import SystemClock
from quiver.errors import CapacityError, SettingsError
from quiver.exporters import otap_grpc
from quiver.exporters.otap_grpc import OtapGrpcSender
from quiver.exporters.reply import Reply
from quiver.exporters.settings import ExporterSettings, OtapSenderSettings
from quiver.otap import BatchStatus, StatusCode, StreamDecoder, encode_status, to_otlp
from quiver.otap.stream.arrow_message import decode_records
from quiver.otap.tables.from_otlp import tables_of_request
from quiver.otap.tables.payload_schema import SIGNALS
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.otap.settings import OtapSettings
from quiver.receivers.otlp.grpc_receiver import SERVICES, OtlpGrpcReceiver
from quiver.receivers.settings import OtlpSettings

SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", workers=2)
LOGS = bytes_of(CASES["logs_sdk"]["otlp"][0])


class Shifted(SystemClock):
    """The system clock with an offset."""

    shift_s = 0.0

    def monotonic(self) -> float:
        return SystemClock.monotonic() + self.shift_s


def log_request(text: str) -> bytes:
    request = REQUESTS["logs"]()
    request.resource_logs.add().scope_logs.add().log_records.add(severity_text=text)
    return request.SerializeToString()


def texts(store: KeptTables) -> list[str]:
    found = []
    for bundle in store.kept:
        for items in parsed(to_otlp(bundle, "logs"), "logs").resource_logs:
            found += [record.severity_text for scope in items.scope_logs for record in scope.log_records]
    return found


def sender_to(port: int, otap: OtapSenderSettings | None = None, **settings: Any) -> OtapGrpcSender:
    clock = settings.pop("clock", None)
    made = ExporterSettings(f"http://127.0.0.1:{port}", **settings)
    return OtapGrpcSender(made, otap) if clock is None else OtapGrpcSender(made, otap, clock=clock)


@pytest.fixture
def store():
    return KeptTables()


@pytest.fixture
def receiver(store):
    with OtapGrpcReceiver(store, SETTINGS) as running:
        yield running


@pytest.fixture(params=["none", "zstd"])
def sender(receiver, request):
    made = sender_to(receiver.port, compression_method=request.param)
    yield made
    made.close()


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith(("_sdk", "_rich", "_kinds", "anyvalue"))])
def test_sent_requests_arrive(sender, store, case):
    signal = CASES[case]["signal"]
    complete, arrived = REQUESTS[VIEW_OF[signal]](), REQUESTS[VIEW_OF[signal]]()
    for name in CASES[case]["otlp"][:3]:
        request = parsed(bytes_of(name), signal)
        for resource_items in getattr(request, request.DESCRIPTOR.fields[0].name):
            for scope_items in getattr(resource_items, resource_items.DESCRIPTOR.fields[1].name):
                for item in scope_items.DESCRIPTOR.fields:
                    if item.name == "metrics":
                        for metric in scope_items.metrics:
                            metric.ClearField("metadata")  # sent only when asked for
        assert sender.send(signal, request.SerializeToString()).outcome == "confirmed"
        complete.MergeFrom(request)
    for bundle in store.kept:
        arrived.MergeFrom(parsed(to_otlp(bundle, signal), signal))
    assert said(arrived, ordered=False) == said(complete, ordered=False)


@pytest.mark.parametrize("method", ["none", "gzip"])
@pytest.mark.parametrize("payloads", ["zstd", "none"])
def test_all_compressions_work(receiver, store, method, payloads):
    sender = sender_to(receiver.port, OtapSenderSettings(payload_compression=payloads), compression_method=method)
    assert sender.send("logs", LOGS).outcome == "confirmed"
    sender.close()
    assert len(store.kept) == 1


def test_many_threads_share_a_stream(receiver, store):
    sender = sender_to(receiver.port)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda at: sender.send("logs", log_request(str(at))), range(60)))
    sender.close()
    assert {reply.outcome for reply in replies} == {"confirmed"}
    assert sorted(texts(store), key=int) == [str(at) for at in range(60)]


def test_checklist_19_unavailable_is_a_retry_and_invalid_a_refusal(sender, store):
    store.failures.append(CapacityError("disk", retry_after_s=1.0))
    reply = sender.send("logs", LOGS)
    assert (reply.outcome, reply.reason) == ("retry", "UNAVAILABLE")
    assert sender.send("logs", LOGS).outcome == "confirmed"


def test_a_stream_is_replaced_after_its_lifetime(receiver, store):
    clock = Shifted()
    sender = sender_to(receiver.port, OtapSenderSettings(stream_lifetime_s=5.0), clock=clock)
    assert sender.send("logs", log_request("a")).outcome == "confirmed"
    first = sender._streams["logs"]
    clock.shift_s = 6.0
    assert sender.send("logs", log_request("b")).outcome == "confirmed"
    assert sender._streams["logs"] is not first
    sender.close()
    assert texts(store) == ["a", "b"]


def test_checklist_19_a_stream_ended_with_ok_is_replaced_immediately(store):
    """Each stream may have so few bytes of dictionaries that it ends after a batch or two."""
    otap = OtapSettings(stream_dictionaries_bytes_max=30_000)
    with OtapGrpcReceiver(store, SETTINGS, otap=otap) as receiver:
        sender = sender_to(receiver.port)
        sent = [f"{at}-{'x' * 5_000}" for at in range(12)]
        for text in sent:
            assert sender.send("logs", log_request(text)).outcome == "confirmed"
        sender.close()
    assert texts(store) == sent


def test_checklist_19_unconfirmed_requests_are_sent_again_after_a_receiver_died(store):
    with OtapGrpcReceiver(store, SETTINGS) as first:
        port = first.port
        sender = sender_to(port, timeout_s=30.0)
        assert sender.send("logs", log_request("a")).outcome == "confirmed"
    assert sender.send("logs", log_request("b")).outcome == "retry"
    again = OtlpSettings(listening_addr=f"127.0.0.1:{port}", workers=2)
    with OtapGrpcReceiver(store, again):
        reply = sender.send("logs", log_request("b"))
        while reply.outcome == "retry":  # gRPC waits half a second before it connects again
            reply = sender.send("logs", log_request("b"))
        assert reply.outcome == "confirmed"
        sender.close()
    assert texts(store) == ["a", "b"]


def test_checklist_19_a_server_without_otap_gets_otlp():
    kept = KeptTables()
    with OtlpGrpcReceiver(kept, SETTINGS) as receiver:
        sender = sender_to(receiver.port)
        assert sender.send("logs", LOGS).outcome == "confirmed"
        assert sender.send("logs", LOGS).outcome == "confirmed"
        sender.close()
    assert [bundle[60].column(0).to_pylist() for bundle in kept.kept] == [[LOGS]] * 2


def test_a_stream_may_end_before_its_first_batch():
    """A server without OTAP may end it before anything was sent."""
    kept = KeptTables()
    with OtlpGrpcReceiver(kept, SETTINGS) as receiver:
        sender = sender_to(receiver.port)
        stream = sender._stream("logs")
        stream.join()
        stream.is_usable = lambda: True
        assert sender.send("logs", LOGS).outcome == "confirmed"
        sender.close()
    assert kept.kept[0].slots == (60,)


def test_requests_that_tables_cannot_represent_are_sent_as_otlp(sender, store):
    request = REQUESTS["logs"]()
    request.resource_logs.add().scope_logs.add().log_records.add(trace_id=b"short")
    assert sender.send("logs", request.SerializeToString()).outcome == "confirmed"
    assert store.kept[0].slots == (60,)


def test_the_reply_counts_data_that_were_left_out(sender, store):
    request = REQUESTS["logs"]()
    request.resource_logs.add(schema_url="no records")
    full = request.resource_logs.add()
    full.resource.entity_refs.add(type="host")
    full.scope_logs.add()
    full.scope_logs.add().log_records.add(severity_text="a")
    reply = sender.send("logs", request.SerializeToString())
    assert (reply.outcome, texts(store)) == ("confirmed", ["a"])
    assert reply.left_out == {"empty_resources": 1, "empty_scopes": 1, "entity_refs": 1}
    assert sender.send("logs", LOGS).left_out == {}


@pytest.mark.parametrize(("wanted", "left_out"), [(False, {"metric_metadata": 2}), (True, {})])
def test_the_reply_counts_metadata_of_metrics_that_were_left_out(receiver, wanted, left_out):
    request = REQUESTS["metrics"]()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    metric.gauge.data_points.add(as_int=1)
    metric.metadata.add(key="a")
    metric.metadata.add(key="b")
    sender = sender_to(receiver.port, OtapSenderSettings(metric_metadata=wanted))
    reply = sender.send("metrics", request.SerializeToString())
    sender.close()
    assert (reply.outcome, reply.left_out) == ("confirmed", left_out)


def test_nothing_is_left_out_when_sent_as_otlp():
    request = REQUESTS["logs"]()
    request.ParseFromString(LOGS)
    request.resource_logs[0].resource.entity_refs.add(type="host")
    kept = KeptTables()
    with OtlpGrpcReceiver(kept, SETTINGS) as receiver:
        sender = sender_to(receiver.port)
        assert sender.send("logs", request.SerializeToString()) == Reply("confirmed")
        sender.close()


def test_a_record_too_large_for_a_message_is_sent_as_otlp(receiver, store):
    sender = sender_to(receiver.port, OtapSenderSettings(payload_compression="none", message_bytes_max=65_536))
    request = log_request("x" * 200_000)
    assert sender.send("logs", request).outcome == "confirmed"
    sender.close()
    assert store.kept[0].slots == (60,)


def test_a_request_is_sent_as_otlp_if_any_of_its_tables_does_not_fit(receiver, store, monkeypatch):
    """It is sent once, none of its tables is sent, and the stream is still usable."""
    monkeypatch.setattr("quiver.otap.tables.from_otlp.ROOT_ROWS_MAX", 2)
    monkeypatch.setattr("quiver.otap.tables.columnar_payloads.ROOT_ROWS_MAX", 2)
    sender = sender_to(receiver.port, OtapSenderSettings(payload_compression="none", message_bytes_max=65_536))
    assert sender.send("logs", log_request("before")).outcome == "confirmed"
    stream = sender._streams["logs"]
    request = REQUESTS["logs"]()
    scope = request.resource_logs.add().scope_logs.add()
    for text in ("a", "b", "c", "d", "x" * 200_000):
        scope.log_records.add(severity_text=text)
    assert sender.send("logs", request.SerializeToString()).outcome == "confirmed"
    del scope.log_records[4]
    assert sender.send("logs", request.SerializeToString()).outcome == "confirmed"
    assert sender._streams["logs"] is stream
    sender.close()
    assert [60 in bundle.slots for bundle in store.kept] == [False, True, False, False]
    del store.kept[1]
    assert texts(store) == ["before", "a", "b", "c", "d"]


def test_a_closed_sender_sends_nothing(sender):
    sender.close()
    assert sender.send("logs", LOGS).reason == "CLOSED"


def test_a_missing_status_is_a_retry(store):
    store.sync_gate = threading.Event()
    with OtapGrpcReceiver(store, SETTINGS) as receiver:
        sender = sender_to(receiver.port, timeout_s=0.2)
        reply = sender.send("logs", LOGS)
        assert (reply.outcome, reply.reason) == ("retry", "DEADLINE_EXCEEDED")
        store.sync_gate.set()
        sender.close()


@pytest.mark.parametrize("wrong", [{"payload_compression": "lz4"}, {"stream_lifetime_s": 0}, {"message_bytes_max": 1}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingsError):
        OtapSenderSettings(**wrong)


# -- servers that behave differently ------------------------------------------------------------------------


class ScriptedReceiver:
    """An OTAP server with scripted streams, *serve*; it keeps unary OTLP requests."""

    def __init__(self, serve: Callable[[Any, Any], Any], bytes_max: int = 4 * 1024 * 1024) -> None:
        self.requests: list[bytes] = []
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", bytes_max)])
        _, service, method = SIGNALS["logs"].service.split("/")
        streams = {method: grpc.stream_stream_rpc_method_handler(serve)}
        unary = {"Export": grpc.unary_unary_rpc_method_handler(self._export)}
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(service, streams),
                grpc.method_handlers_generic_handler(SERVICES["logs"], unary),
            ]
        )

    def _export(self, request: bytes, _context: Any) -> bytes:
        self.requests.append(request)
        return b""

    def __enter__(self) -> Self:
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.sender = sender_to(self.port)
        return self

    def __exit__(self, *_exception: object) -> None:
        self.sender.close()
        self._server.stop(None).wait()


def ids_of(messages) -> Any:
    return (decode_records(message).batch_id for message in messages)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (StatusCode.INVALID_ARGUMENT, "refused"),
        (StatusCode.UNAVAILABLE, "retry"),
        (StatusCode.RESOURCE_EXHAUSTED, "retry"),
        (StatusCode.ABORTED, "retry"),
        (StatusCode.PERMISSION_DENIED, "retry"),
        (2, "refused"),
    ],
)
def test_statuses_are_classified(code, outcome):
    def serve(messages, _context):
        for batch_id in ids_of(messages):
            yield encode_status(BatchStatus(batch_id, code, "why"))

    with ScriptedReceiver(serve) as odd:
        reply = odd.sender.send("logs", LOGS)
    assert (reply.outcome, reply.message) == (outcome, "why")


def test_unexpected_statuses_are_ignored():
    def serve(messages, _context):
        for batch_id in ids_of(messages):
            yield encode_status(BatchStatus(99, StatusCode.INVALID_ARGUMENT))
            yield encode_status(BatchStatus(batch_id, StatusCode.OK))
            yield encode_status(BatchStatus(batch_id, StatusCode.UNAVAILABLE))

    with ScriptedReceiver(serve) as odd:
        assert odd.sender.send("logs", LOGS).outcome == "confirmed"


def test_an_invalid_status_ends_the_stream_and_confirms_nothing():
    def serve(messages, _context):
        next(messages)
        yield b"\xff\xff"

    with ScriptedReceiver(serve) as odd:
        assert odd.sender.send("logs", LOGS).outcome == "retry"


def test_streams_without_an_answer_are_retried_a_limited_number_of_times():
    opened = []

    def serve(messages, _context):
        opened.append(next(messages))
        return iter(())

    with ScriptedReceiver(serve) as odd:
        reply = odd.sender.send("logs", LOGS)
    assert (reply.outcome, len(opened)) == ("retry", 3)


def test_a_batch_that_the_server_fails_on_is_sent_as_otlp():
    """It ends the stream without a status, so sending it again as OTAP would never succeed."""

    def serve(messages, context):
        next(messages)
        context.abort(grpc.StatusCode.INTERNAL, "unknown payload type")

    with ScriptedReceiver(serve) as odd:
        assert odd.sender.send("logs", LOGS).outcome == "confirmed"
        assert odd.requests == [LOGS]


def test_messages_become_smaller_after_one_was_too_large():
    """The stream ends with the limit; everything arrives as tables, and later messages respect the limit."""
    items = 0

    def serve(messages, _context):
        nonlocal items
        decoder = StreamDecoder("logs")
        for message in messages:
            decoded = decoder.decode(message)
            items += decoded.tables[30].num_rows
            yield encode_status(BatchStatus(decoded.batch_id, StatusCode.OK))

    generator = Random(1)
    request = REQUESTS["logs"]()
    scope = request.resource_logs.add().scope_logs.add()
    for _ in range(500):
        scope.log_records.add().body.string_value = generator.randbytes(500).hex()
    with ScriptedReceiver(serve, bytes_max=100_000) as odd:
        with ThreadPoolExecutor(3) as pool:
            replies = list(pool.map(lambda _: odd.sender.send("logs", request.SerializeToString()), range(3)))
        assert {reply.outcome for reply in replies} == {"confirmed"}
        stream = odd.sender._streams["logs"]
        assert odd.sender.send("logs", request.SerializeToString()).outcome == "confirmed"
        assert odd.sender._streams["logs"] is stream
        assert odd.requests == []
    assert items >= 4 * 500


def test_a_record_above_the_limit_is_refused_as_too_large():
    """Also as OTLP: the caller splits the request, and only this record is lost."""

    def serve(messages, _context):
        for _ in messages:
            yield b""

    with ScriptedReceiver(serve, bytes_max=70_000) as odd:
        reply = odd.sender.send("logs", log_request(Random(1).randbytes(80_000).hex()))
        assert (reply.outcome, reply.is_too_large, reply.limit_bytes) == ("refused", True, 70_000)


def test_a_denied_stream_is_refused_or_retried_as_configured():
    def serve(_messages, context):
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you")

    with ScriptedReceiver(serve) as odd:
        assert odd.sender.send("logs", LOGS).outcome == "retry"
        dropping = sender_to(odd.port, denied="drop")
        assert dropping.send("logs", LOGS).outcome == "refused"
        dropping.close()


def many_logs(count: int, characters: int) -> bytes:
    generator = Random(1)
    request = REQUESTS["logs"]()
    scope = request.resource_logs.add().scope_logs.add()
    for number in range(count):
        text = generator.randbytes(characters // 2).hex()
        scope.log_records.add(severity_text=str(number)).body.string_value = text
    return request.SerializeToString()


def test_batches_become_smaller_after_one_was_too_large_decompressed(store):
    """The receiver ends the stream with each of them, and gives the reason for the first."""
    otap = OtapSettings(inflated_bytes_max=400_000)
    with OtapGrpcReceiver(store, SETTINGS, otap=otap) as receiver:
        sender = sender_to(receiver.port)
        reply = sender.send("logs", many_logs(3_000, 1000))
        sender.close()
    assert reply == Reply("confirmed")
    assert set(texts(store)) == {str(number) for number in range(3_000)}


def test_messages_become_smaller_after_one_was_too_large_decompressed(store):
    otap = OtapSettings(message_bytes_max=200_000)
    with OtapGrpcReceiver(store, SETTINGS, otap=otap) as receiver:
        sender = sender_to(receiver.port, OtapSenderSettings(payload_compression="none"), compression_method="gzip")
        reply = sender.send("logs", many_logs(6_000, 200))
        sender.close()
    assert reply == Reply("confirmed")
    assert set(texts(store)) == {str(number) for number in range(6_000)}
    assert all(30 in bundle.slots for bundle in store.kept)


def test_streams_that_end_after_each_refused_batch_are_limited(store, monkeypatch):
    """Batches after a refused one arrive; the request is refused, so that its exporter can drop it."""
    converted = tables_of_request(many_logs(5, 10), "logs")
    monkeypatch.setattr(otap_grpc, "tables_of_request", lambda *_: replace(converted, tables=[*converted.tables] * 5))
    opened = []

    def serve(messages, _context):
        opened.append(1)
        for batch_id in ids_of(messages):
            yield encode_status(BatchStatus(batch_id, StatusCode.INVALID_ARGUMENT, "no"))
            return

    with ScriptedReceiver(serve) as odd:
        reply = odd.sender.send("logs", b"x")
    assert (reply.outcome, reply.reason, len(opened)) == ("refused", "INVALID_ARGUMENT", 5)
