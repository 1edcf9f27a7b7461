"""Classification of a server's answers, encoded with the official messages."""

import pytest
from google.rpc.error_details_pb2 import DebugInfo, RetryInfo
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from quiver.exporters.reply import Reply, confirmed_reply, grpc_reply, http_reply, retry_delay_s

CREDENTIALS = {"PERMISSION_DENIED", "UNAUTHENTICATED"}
RETRIED = {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"} | CREDENTIALS
NAMES = [
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
]  # fmt: skip
NOW_NS = 1_700_000_000 * 10**9  # Tue, 14 Nov 2023 22:13:20 GMT


def details(*, seconds=0, nanos=0, others=()) -> bytes:
    status = Status(code=14, message="busy")
    for other in others:
        status.details.add().Pack(other)
    info = RetryInfo()
    info.retry_delay.seconds, info.retry_delay.nanos = seconds, nanos
    status.details.add().Pack(info)
    return status.SerializeToString()


@pytest.mark.parametrize(("code", "name"), [pair for pair in enumerate(NAMES) if pair[0]])
def test_grpc_codes_are_classified(code, name):
    """By the table of the OTLP specification; refused credentials may be accepted later."""
    reply = grpc_reply(code, "why", None)

    assert (reply.outcome, reply.reason, reply.message) == ("retry" if name in RETRIED else "refused", name, "why")
    assert reply.retry_after_s is None


def test_an_unknown_code_is_refused():
    """It still has a name."""
    assert grpc_reply(99, "", None) == Reply("refused", "CODE_99")


def test_resource_exhausted_is_retried_only_with_retry_info():
    """Without it, it is final by the specification."""
    assert grpc_reply(8, "", None).outcome == "refused"
    assert grpc_reply(8, "", Status(code=8).SerializeToString()).outcome == "refused"
    assert grpc_reply(8, "", details(seconds=3)) == Reply("retry", "RESOURCE_EXHAUSTED", "", 3.0)


def test_retry_info_has_a_delay():
    """Seconds and nanoseconds, after other details; an empty one has a delay of zero."""
    assert retry_delay_s(details(seconds=2, nanos=500_000_000)) == 2.5
    assert retry_delay_s(details(seconds=1, others=[DebugInfo(detail="x" * 300)])) == 1.0
    assert retry_delay_s(details()) == 0.0
    assert retry_delay_s(details(seconds=-5)) == 0.0
    assert retry_delay_s(Status(code=14, message="x").SerializeToString()) is None
    assert grpc_reply(3, "", details(seconds=5)).retry_after_s is None


def test_details_above_the_limit_are_ignored():
    """64 KiB is more than any header may have."""
    assert retry_delay_s(details(seconds=1, others=[DebugInfo(detail="x" * 70_000)])) is None


@pytest.mark.parametrize(
    "status", [101, 102, 103, 400, 401, 403, 404, 405, 408, 413, 415, 429, 500, 501, 502, 503, 504, 505, 301]
)
def test_http_statuses_are_classified(status):
    """By the table of the OTLP specification, and 408, with which our receiver reports an incomplete body."""
    reply = http_reply(status, Status(message="why").SerializeToString(), "7", now_ns=NOW_NS)
    retried = status in {101, 102, 103, 401, 403, 408, 429, 502, 503, 504}

    assert (reply.outcome, reply.reason, reply.message) == (
        "retry" if retried else "refused",
        f"HTTP {status}",
        "why",
    )
    assert reply.retry_after_s == (7.0 if retried else None)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None), ("0", 0.0), (" 12 ", 12.0), ("-1", None), ("1.5", None), ("soon", None), ("٣", None),
        ("9" * 400, None), ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0), ("Tue, 14 Nov 2023 22:13:00 GMT", 0.0),
        ("Tue, 99 Nov 2023 22:13:00 GMT", None), (f"Tue, {10**20} Nov 2023 22:13:00 GMT", None),
        (f"Tue, 14 Nov 2023 22:13:00 +{10**20}", None),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(header, seconds):
    """Anything else is ignored."""
    assert http_reply(503, b"", header, now_ns=NOW_NS).retry_after_s == seconds


def test_denied_requests_are_retried_as_configured():
    """By default refused credentials; a wrong address with `retry`; neither with `drop`."""
    for codes, statuses, default in (((7, 16), (401, 403, 407), "retry"), ((12,), (301, 404, 405), "refused")):
        for denied, outcome in (("credentials", default), ("retry", "retry"), ("drop", "refused")):
            for code in codes:
                assert grpc_reply(code, "", None, denied=denied).outcome == outcome
            for status in statuses:
                assert http_reply(status, b"", None, now_ns=0, denied=denied).outcome == outcome
    assert grpc_reply(7, "", None).outcome == "retry"
    assert http_reply(403, b"", None, now_ns=0).outcome == "retry"
    assert grpc_reply(3, "", None, denied="retry").outcome == "refused"
    assert http_reply(400, b"", None, now_ns=0, denied="retry").outcome == "refused"


@pytest.mark.parametrize(
    ("code", "message", "limit_bytes"),
    [
        (8, "SERVER: Received message larger than max (6291484 vs. 4194304)", 4194304),
        (8, "grpc: received message larger than max (6291484 vs. 4194304)", 4194304),
        (8, "grpc: received message after decompression larger than max 4194304", 4194304),
        (8, "gRPC message exceeds maximum size 4194304: 6291484", 4194304),
        (8, "Received message exceeds the maximum configured message size.", None),
        (11, "Error, decoded message length too large: found 6291484 bytes, the limit is: 4194304 bytes", 4194304),
        (2, "Received http2 header with status: 413", None),
        (8, "no more quota", None),
        (3, "the message is too large: the limit is 4194304 bytes once decompressed", 4194304),
        (3, "the batch is too large: LOGS takes 9000 bytes when inflated, and 8000 are left", None),
    ],
)
def test_messages_about_too_large_requests_are_recognized(code, message, limit_bytes):
    """Of C, Go, Java, .NET, Rust, a proxy and our receiver; an exhausted resource may be the size, too."""
    reply = grpc_reply(code, message, None)

    assert (reply.outcome, reply.is_too_large, reply.limit_bytes) == ("refused", True, limit_bytes)


def test_other_refusals_are_not_about_the_size():
    """Neither of a value in the data nor with a delay."""
    assert not grpc_reply(11, "timestamp out of range", None).is_too_large
    assert not grpc_reply(3, "attribute too large", None).is_too_large
    assert not grpc_reply(8, "Received message larger than max (2 vs. 1)", details(seconds=1)).is_too_large
    assert http_reply(413, b"", None, now_ns=0).is_too_large
    assert http_reply(400, b"http: request body too large", None, now_ns=0).is_too_large
    assert not http_reply(400, b"bad", None, now_ns=0).is_too_large


def test_messages_are_one_line_and_truncated():
    """They are logged."""
    text = "no\nERROR forged\x1b[31m"
    assert grpc_reply(3, text, None).message == "no ERROR forged [31m"
    assert http_reply(400, Status(message=text).SerializeToString(), None, now_ns=0).message == "no ERROR forged [31m"
    assert len(grpc_reply(3, "x" * 9_000, None).message) == 500


def test_partial_success_is_a_confirmation_with_a_loss():
    """Rejected items are counted; a warning without rejected items is not a loss."""
    response = ExportLogsServiceResponse()
    assert confirmed_reply(response.SerializeToString()) == Reply("confirmed")
    response.partial_success.error_message = "mind the gap"
    assert confirmed_reply(response.SerializeToString()) == Reply("confirmed", "", "mind the gap")
    response.partial_success.rejected_log_records = 300
    expected = Reply("confirmed", "PARTIAL_SUCCESS", "mind the gap", rejected_items=300)
    assert confirmed_reply(response.SerializeToString()) == expected
    assert http_reply(202, response.SerializeToString(), None, now_ns=0) == expected
    response.partial_success.rejected_log_records = -1
    assert confirmed_reply(response.SerializeToString()).rejected_items == 0


@given(st.binary(max_size=200))
def test_decoding_any_bytes_does_not_raise(data):
    assert confirmed_reply(data).outcome == "confirmed"
    retry_delay_s(data)
    http_reply(503, data, None, now_ns=0)


def test_truncated_and_flipped_answers_are_decoded():
    """Without an exception, and never with a negative delay."""
    complete = details(seconds=2, others=[DebugInfo(detail="x")])
    for end in range(len(complete)):
        assert (retry_delay_s(complete[:end]) or 0.0) >= 0
    for at in range(len(complete)):
        for bit in range(8):
            flipped = bytearray(complete)
            flipped[at] ^= 1 << bit
            assert (retry_delay_s(bytes(flipped)) or 0.0) >= 0
