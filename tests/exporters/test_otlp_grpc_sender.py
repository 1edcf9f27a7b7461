"""The OTLP/gRPC client against real servers: status codes, compression, headers, TLS, a server that restarts."""

import threading

import grpc
import pytest
from fake_destination import FakeGrpcDestination
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ports import free_port
from quiver.errors import SettingsError
from quiver.exporters import zstd_channel
from quiver.exporters.otlp_grpc import OtlpGrpcSender
from quiver.exporters.reply import Reply
from quiver.exporters.settings import ExporterSettings

RETRIED = {
    "CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS", "PERMISSION_DENIED",
    "UNAUTHENTICATED",
}  # fmt: skip


@pytest.fixture(params=["grpcio", "zstd"])
def sender_to(request, monkeypatch):
    """Our own client is tested against the same servers, which do not support zstd: so it does not compress here."""
    made, own = [], {}
    if request.param == "zstd":
        own = {"compression_method": "zstd"}
        monkeypatch.setattr(zstd_channel, "_COMPRESSED", zstd_channel._PLAIN)

    def make(destination, **how):
        port = destination if isinstance(destination, int) else destination.port
        how = {"endpoint": f"http://127.0.0.1:{port}", "timeout_s": 20.0, **how, **own}
        made.append(OtlpGrpcSender(ExporterSettings(**how)))
        return made[-1]

    yield make
    for sender in made:
        sender.close()


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_requests_of_all_signals_arrive_unchanged(sender_to, compression):
    """Also large ones, with their headers, at the service of their signal."""
    data = bytes(range(256)) * 20_000
    with FakeGrpcDestination() as far:
        sender = sender_to(far, compression_method=compression, headers={"Authorization": "Bearer x"})
        for signal in ("logs", "traces", "metrics"):
            assert sender.send(signal, data[:100]) == Reply("confirmed")
        sender.send("logs", data[:3_000_000])

    assert [(signal, len(got)) for signal, got, _ in far.got] == [
        ("logs", 100), ("traces", 100), ("metrics", 100), ("logs", 3_000_000),
    ]  # fmt: skip
    assert far.got[3][1] == data[:3_000_000]
    assert {metadata["authorization"] for _, _, metadata in far.got} == {"Bearer x"}


def test_the_batch_id_is_sent_as_a_header(sender_to):
    """In addition to the configured headers; without a batch id there is none."""
    with FakeGrpcDestination() as far:
        sender = sender_to(far, headers={"Authorization": "Bearer x"})
        sender.send("logs", b"a", "store/1:2/0")
        sender.send("logs", b"a")

    assert [(one.get("authorization"), one.get("x-quiver-batch-id")) for _, _, one in far.got] == [
        ("Bearer x", "store/1:2/0"),
        ("Bearer x", None),
    ]


def test_every_code_is_classified(sender_to):
    codes = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
    with FakeGrpcDestination(*((code, f"said {code.name}", ()) for code in codes)) as far:
        sender = sender_to(far)
        replies = {code.name: sender.send("logs", b"x") for code in codes}

    assert len(replies) == 16
    assert {name for name, reply in replies.items() if reply.outcome == "retry"} == RETRIED
    assert all(reply.reason == name and reply.message == f"said {name}" for name, reply in replies.items())


def test_retry_info_and_partial_success_are_read(sender_to):
    """From grpc-status-details-bin and the response."""
    info = RetryInfo()
    info.retry_delay.FromMilliseconds(1500)
    status = Status(code=8, message="full")
    status.details.add().Pack(info)
    metadata = (("grpc-status-details-bin", status.SerializeToString()),)
    partial = ExportTraceServiceResponse()
    partial.partial_success.rejected_spans = 3
    partial.partial_success.error_message = "too old"
    exhausted = (grpc.StatusCode.RESOURCE_EXHAUSTED, "full", metadata)
    with FakeGrpcDestination(exhausted, partial.SerializeToString()) as far:
        sender = sender_to(far)
        assert sender.send("traces", b"x") == Reply("retry", "RESOURCE_EXHAUSTED", "full", 1.5)
        assert sender.send("traces", b"x") == Reply("confirmed", "PARTIAL_SUCCESS", "too old", rejected_items=3)


def test_requests_are_sent_after_the_server_comes_up(sender_to):
    """Before, `retry` without a wait; then within the reconnect time."""
    port = free_port()
    sender = sender_to(port)
    down = sender.send("logs", b"x")
    assert (down.outcome, down.reason) == ("retry", "UNAVAILABLE")
    pause = threading.Event()
    with FakeGrpcDestination(port=port) as far:
        for _ in range(200):
            if sender.send("logs", b"x").outcome == "confirmed":
                break
            pause.wait(0.05)
        assert [data for _, data, _ in far.got] == [b"x"]


def test_a_server_that_does_not_answer_is_a_timeout(sender_to):
    with FakeGrpcDestination() as far:
        far.gate = threading.Event()
        reply = sender_to(far, timeout_s=0.2).send("logs", b"x")

    assert (reply.outcome, reply.reason) == ("retry", "DEADLINE_EXCEEDED")


def test_close_cancels_requests_in_flight(sender_to):
    """They and later requests get the outcome `retry`, not a refusal."""
    with FakeGrpcDestination() as far:
        far.gate = threading.Event()
        sender = sender_to(far)
        replies = []
        thread = threading.Thread(target=lambda: replies.append(sender.send("logs", b"x")))
        thread.start()
        assert far.entered.acquire(timeout=30)
        sender.close()
        thread.join(30)
        replies.append(sender.send("logs", b"x"))
        sender.close()

    assert [(reply.outcome, reply.reason) for reply in replies] == [("retry", "CLOSED")] * 2


def _credentials(files, *, mutual=False):
    def read(name):
        with open(files[name], "rb") as file:
            return file.read()

    pair = [(read("server_key"), read("server"))]
    return grpc.ssl_server_credentials(pair, read("ca") if mutual else None, mutual)


def test_tls_requires_a_trusted_authority(sender_to, certificates):
    """Without it the outcome is `retry`."""
    with FakeGrpcDestination(credentials=_credentials(certificates)) as far:
        endpoint = f"127.0.0.1:{far.port}"
        assert sender_to(far, endpoint=endpoint, ca_file=certificates["ca"]).send("logs", b"x") == Reply("confirmed")
        assert sender_to(far, endpoint=f"https://{endpoint}").send("logs", b"x").outcome == "retry"
        assert sender_to(far).send("logs", b"x").outcome == "retry"

    assert len(far.got) == 1


def test_mutual_tls_requires_a_client_certificate(sender_to, certificates):
    """Without it the outcome is `retry`."""
    own = {"cert_file": certificates["client"], "key_file": certificates["client_key"]}
    with FakeGrpcDestination(credentials=_credentials(certificates, mutual=True)) as far:
        how = {"endpoint": f"https://127.0.0.1:{far.port}", "ca_file": certificates["ca"]}
        assert sender_to(far, **how, **own).send("logs", b"x") == Reply("confirmed")
        assert sender_to(far, **how).send("logs", b"x").outcome == "retry"


def test_a_missing_certificate_file_is_refused_at_creation(tmp_path):
    with pytest.raises(SettingsError, match="tls.ca_file: cannot read .*none: No such file"):
        OtlpGrpcSender(ExporterSettings("https://127.0.0.1:1", ca_file=str(tmp_path / "none")))
