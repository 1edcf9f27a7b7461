"""The bytes of frames, messages, checkpoints, saved subscriptions and watches, and the names of files."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import UsageError
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.topics.format import names
from quiver.topics.format.checkpoint import (
    UploaderCheckpoint,
    WalCheckpoint,
    decode_uploader_checkpoint,
    decode_wal_checkpoint,
    encode_uploader_checkpoint,
    encode_wal_checkpoint,
)
from quiver.topics.format.frame import (
    FRAME_PAYLOAD_BYTES_MAX,
    decode_frame,
    encode_frame,
    find_frames,
    take_frames,
)
from quiver.topics.format.message import Message, MessageCodec, decode_message
from quiver.topics.format.request import (
    REQUEST_BYTES_MAX,
    CommandFailure,
    TopicRequest,
    decode_answer,
    decode_request,
    encode_answer,
    encode_refusal,
    encode_request,
    parse_request_name,
    request_name,
)
from quiver.topics.format.salvage import next_frame_after
from quiver.topics.format.subscription import SavedSubscription, decode_subscription, encode_subscription
from quiver.topics.format.watch import SeenRecord, decode_watch, encode_watch

MESSAGE = bytes.fromhex(
    "0100000000000000 0100000000000000 0a00000000000000 2f64656661756c742f74"
    "0e00000000000000 3132372e302e302e313a36363530 0000000000000000"
    "0500000000000000 68656c6c6f 0000000000000000 0200000000000000 7031 00 0000000000000000"
)
"""Written down from the document's struct by hand: request 1, producer 1 "p1", "hello", nothing else."""

FRAME = bytes.fromhex("0000000000000000 68000000 d876e032") + MESSAGE

WAL_CHECKPOINT = bytes.fromhex(
    "0500000000000000 0900000000000000 0200000000000000 0900000000000000 77616c2e322e6c6f67"
    "0100000000000000 0100000000000000 0900000000000000 77616c2e312e6c6f67 0500000000000000"
    "01 0900000000000000 77616c2e322e6c6f67 00 01 0800000000000000"
)

CODEC = MessageCodec("default/t", producer_name="p1", producer_id=1, broker_address="127.0.0.1:6650")


def message_of(offset: int, payload: bytes = b"payload", **attributes: str) -> bytes:
    return CODEC.encode(offset, payload, 1_700_000_000_123, CODEC.tail_of(attributes))


def frames_of(first: int, count: int) -> list[bytes]:
    return [encode_frame(offset, message_of(offset, b"x" * (offset % 7))) for offset in range(first, first + count)]


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_recorded_message_is_decoded():
    """Every field is correct, with and without a known topic."""
    expected = Message(0, b"hello", {}, 0, "p1", "/default/t", 1, 1, "127.0.0.1:6650", None)
    assert decode_message(MESSAGE) == CODEC.decode(MESSAGE) == expected


def test_a_message_is_encoded_as_recorded():
    """Except for the request number, which our encoder sets to 0."""
    assert CODEC.encode(0, b"hello", 0, CODEC.tail_of(None))[8:] == MESSAGE[8:]


@given(
    offset=st.integers(0, 2**64 - 1), payload=st.binary(max_size=300), time_ms=st.integers(0, 2**53),
    attributes=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4),
)  # fmt: skip
def test_messages_round_trip(offset, payload, time_ms, attributes):
    """Every message decodes with the codec of its topic, and without one."""
    body = CODEC.encode(offset, payload, time_ms, CODEC.tail_of(attributes))
    reported = CODEC.decode(body)
    assert reported == decode_message(body)
    assert reported == Message(
        offset, payload, attributes, time_ms * 1_000_000, "p1", "/default/t", 0, 1, "127.0.0.1:6650", None
    )


def test_a_message_of_another_topic_is_decoded():
    """The codec of a topic decodes messages of all topics."""
    other = MessageCodec("a/b")
    reported = CODEC.decode(other.encode(3, b"z", 5, other.tail_of({"k": "v"})))
    assert (reported.offset, reported.payload, reported.topic, reported.attributes) == (3, b"z", "/a/b", {"k": "v"})


def test_a_subscription_name_is_decoded():
    """Producers of the document's broker leave it empty."""
    body = MESSAGE[:-9] + b"\1" + (2).to_bytes(8, "little") + b"s1" + bytes(8)
    assert decode_message(body).subscription_name == "s1"


def test_a_truncated_message_is_damage():
    """Truncated at every byte, and with trailing bytes."""
    body = message_of(7, b"abc", key="value")
    for cut in range(len(body)):
        assert isinstance(decode_message(body[:cut]), Damage)
        assert isinstance(CODEC.decode(body[:cut]), Damage)
    assert isinstance(CODEC.decode(body + b"\0"), Damage)


@pytest.mark.parametrize("body", [
    MESSAGE[:-9] + b"\2" + bytes(8),
    MESSAGE[:-8] + (1 << 60).to_bytes(8, "little"),
    MESSAGE[:24] + b"\xff" + MESSAGE[25:],
], ids=["option", "attributes", "text"])  # fmt: skip
def test_an_invalid_message_is_damage(body):
    """An invalid option, more attributes than bytes, a text that is not UTF-8."""
    assert isinstance(decode_message(body), Damage)


@given(st.binary(max_size=200))
def test_the_message_decoder_never_raises(body):
    """It accepts any bytes."""
    assert isinstance(decode_message(body), (Message, Damage))


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_frame_has_the_recorded_bytes():
    """Header and payload."""
    assert encode_frame(0, MESSAGE) == FRAME
    assert decode_frame(FRAME) == Frame((0, 0, len(FRAME)), len(FRAME))
    assert zlib.crc32(MESSAGE) == 0x32E076D8


def test_frames_are_decoded_byte_by_byte():
    """Every prefix contains the complete frames, and the decoder returns how many bytes the next frame needs."""
    parts = frames_of(5, 4)
    complete = b"".join(parts)
    ends = [sum(map(len, parts[: at + 1])) for at in range(4)]
    for cut in range(len(complete) + 1):
        found, end, stopped = take_frames(complete[:cut])
        assert [place[0] for place in found] == list(range(5, 5 + sum(one <= cut for one in ends)))
        assert end == max([0, *(one for one in ends if one <= cut)])
        assert isinstance(stopped, NeedMore)
        assert cut + stopped.missing <= len(complete) + 16
    assert take_frames(complete + b"junk")[0] == take_frames(complete)[0]


def test_every_flipped_byte_is_detected():
    """By the checksum, by the length, or because the message contains another offset."""
    frame = frames_of(5, 1)[0]
    for at in range(len(frame)):
        damaged = bytearray(frame)
        damaged[at] ^= 0x40
        answer = decode_frame(damaged)
        assert not isinstance(answer, Frame) or at < 8
    assert isinstance(decode_frame(bytes(16)), Damage)


def test_frame_lengths_are_bounded():
    """A reader never waits for an impossible number of bytes."""
    head = (0).to_bytes(8, "little") + (FRAME_PAYLOAD_BYTES_MAX + 1).to_bytes(4, "little") + bytes(4)
    assert isinstance(decode_frame(head), Damage)


@given(junk=st.binary(max_size=120), first=st.sampled_from([0, 5, (1 << 24) - 2, (1 << 40) - 1]))
def test_frames_after_junk_are_found(junk, first):
    """After any junk, and where the upper bytes of the offset change."""
    parts = frames_of(first, 5)
    data = junk + b"".join(parts)
    found = [place for place in find_frames(data, 0, offset_min=first) if place[1] >= len(junk)]
    assert [place[0] for place in found[:5]] == list(range(first, first + 5))


def test_a_frame_within_a_payload_is_not_a_frame_of_the_topic():
    """A topic carries the bytes of another log, with damage before them."""
    inner = b"".join(frames_of(8, 3))
    outer = encode_frame(7, message_of(7, inner))
    data = bytearray(outer + b"".join(frames_of(8, 2)))
    data[20] ^= 1
    assert next_frame_after(data, 0, expected=7) == (8, len(outer), len(outer) + len(frames_of(8, 1)[0]))


# ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_log_checkpoint_has_the_documented_struct():
    """In the document's bincode, with our eight bytes after it; a file without them is decoded too."""
    value = WalCheckpoint(5, 9, 2, "wal.2.log", ((1, "wal.1.log", 5),), "wal.2.log", None, 8)
    data = encode_wal_checkpoint(value)
    assert data == WAL_CHECKPOINT + b"QCK1" + zlib.crc32(WAL_CHECKPOINT).to_bytes(4, "little")
    assert decode_wal_checkpoint(data) == Frame(value, len(WAL_CHECKPOINT))
    assert decode_wal_checkpoint(WAL_CHECKPOINT) == Frame(value, len(WAL_CHECKPOINT))


@pytest.mark.parametrize("value", [
    WalCheckpoint(0, -1, 0, "wal.log"),
    WalCheckpoint(3, 2**63, 7, "ä.7.log", ((0, "wal.log", 0), (6, "wal.6.log", 3)), None, 17, None),
])  # fmt: skip
def test_log_checkpoints_round_trip(value):
    """Also for an empty topic, whose last offset is one before the first."""
    assert decode_wal_checkpoint(encode_wal_checkpoint(value)).value == value


@pytest.mark.parametrize("value", [
    UploaderCheckpoint(-1, 0, 0, None, 0), UploaderCheckpoint(99, 3, 4096, "data-0-99.dnb1", 1_700_000_000),
])  # fmt: skip
def test_uploader_checkpoints_round_trip(value):
    """With and without an object."""
    data = encode_uploader_checkpoint(value)
    assert decode_uploader_checkpoint(data).value == value
    assert decode_uploader_checkpoint(data[:-8]).value == value


@pytest.mark.parametrize(("data", "decode"), [
    (encode_wal_checkpoint(WalCheckpoint(5, 9, 2, "w", ((1, "v", 5),), "w", 4, 8)), decode_wal_checkpoint),
    (encode_uploader_checkpoint(UploaderCheckpoint(99, 3, 4096, "data", 17)), decode_uploader_checkpoint),
])  # fmt: skip
def test_damaged_checkpoints_are_detected(data, decode):
    """No truncation and no flipped bit decodes to the written checkpoint, and nothing raises."""
    sound = decode(data).value
    for cut in range(len(data)):
        answer = decode(data[:cut])
        assert not isinstance(answer, Frame) or (cut >= len(data) - 8 and answer.value == sound)
    for at in range(len(data) - 8):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        assert isinstance(decode(bytes(damaged)), Damage)


# ── saved subscriptions ──────────────────────────────────────────────────────────────────────────────────


def test_saved_subscriptions_round_trip():
    """Their bytes are fixed: a later version must read them."""
    saved = SavedSubscription("billing", "shared", 1200, ((1210, 1215),), {1201: 2})
    data = encode_subscription(saved)
    assert data == (
        b'{"name": "billing", "kind": "shared", "next_offset": 1200, "acked": [[1210, 1215]], "attempts": '
        b'{"1201": 2}}\n' + b"%08x\n" % zlib.crc32(data.partition(b"\n")[0])
    )
    assert decode_subscription(data) == Frame(saved, len(data))


def test_a_subscription_of_a_later_version_is_decoded():
    """Unknown fields are ignored."""
    line = b'{"name": "a", "kind": "failover", "next_offset": 1, "acked": [], "attempts": {}, "colour": "blue"}'
    assert decode_subscription(b"%s\n%08x\n" % (line, zlib.crc32(line))).value == SavedSubscription("a", "failover", 1)


def test_damaged_subscriptions_are_detected():
    """Every truncation and every flip is detected; an invalid subscription is damage even if its checksum matches."""
    data = encode_subscription(SavedSubscription("billing", "shared", 1200, ((1210, 1215),)))
    for cut in range(len(data)):
        assert isinstance(decode_subscription(data[:cut]), NeedMore)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x08
        assert not isinstance(decode_subscription(damaged), Frame)
    for line in (
        b"[]", b"{}", b"1", b"null", b'{"name": "a", "kind": "none", "next_offset": 1, "acked": [], "attempts": {}}',
        b'{"name": "a", "kind": "shared", "next_offset": -1, "acked": [], "attempts": {}}',
        b'{"name": "a", "kind": "shared", "next_offset": 1, "acked": [[3, 3]], "attempts": {}}',
    ):  # fmt: skip
        assert isinstance(decode_subscription(b"%s\n%08x\n" % (line, zlib.crc32(line))), Damage)


# ── the watch of owners ──────────────────────────────────────────────────────────────────────────────────


def test_owner_watches_round_trip():
    """Their bytes are fixed; fields of a later version are ignored."""
    records = {"/b/owner": SeenRecord(9, 0, 0), "/a/owner": SeenRecord(57, 3405691582, 86400123)}
    data = encode_watch("5f0c", records)
    line = (
        b'{"quiver_topic_watch": 1, "boot": "5f0c", "records": '
        b'{"/a/owner": [57, 3405691582, 86400123], "/b/owner": [9, 0, 0]}}'
    )
    assert data == line + b"\n%08x\n" % zlib.crc32(line)
    assert decode_watch(data) == Frame(("5f0c", records), len(data))
    later = line[:-1] + b', "colour": "blue"}'
    assert isinstance(decode_watch(b"%s\n%08x\n" % (later, zlib.crc32(later))), Frame)


def test_damaged_watches_are_detected():
    """Truncations, flips and trailing bytes are detected; an invalid watch is damage even if its checksum matches."""
    data = encode_watch("5f0c", {"/a/owner": SeenRecord(57, 1, 2)})
    for cut in range(len(data)):
        assert isinstance(decode_watch(data[:cut]), NeedMore)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x08
        assert not isinstance(decode_watch(damaged), Frame)
    assert isinstance(decode_watch(data + b"x"), Damage)
    for line in (
        b"[]", b"{}", b'{"quiver_topic_watch": 2, "boot": "b", "records": {}}',
        b'{"quiver_topic_watch": 1, "boot": 7, "records": {}}', b'{"quiver_topic_watch": 1, "boot": "b"}',
        b'{"quiver_topic_watch": 1, "boot": "b", "records": [1]}',
        b'{"quiver_topic_watch": 1, "boot": "b", "records": {"k": [1, 2]}}',
        b'{"quiver_topic_watch": 1, "boot": "b", "records": {"k": [1, 2, -3]}}',
        b'{"quiver_topic_watch": 1, "boot": "b", "records": {"k": [1, 2, true]}}',
        b'{"quiver_topic_watch": 1, "boot": "b", "records": {"k": 7}}',
    ):  # fmt: skip
        assert isinstance(decode_watch(b"%s\n%08x\n" % (line, zlib.crc32(line))), Damage)


# ── requests and answers ─────────────────────────────────────────────────────────────────────────────────


def noted(line):
    return b"%s\n%08x\n" % (line, zlib.crc32(line))


def test_requests_and_answers_round_trip():
    """Their bytes are fixed; fields of a later version are ignored."""
    request = TopicRequest("seek", {"topic": "default/orders", "subscription": "billing", "start": 1200})
    assert encode_request(request) == noted(
        b'{"quiver_topic_request": 1, "command": "seek", "arguments": '
        b'{"topic": "default/orders", "subscription": "billing", "start": 1200}}'
    )
    assert encode_answer({"offset": 1200}) == noted(b'{"quiver_topic_answer": 1, "result": {"offset": 1200}}')
    refusal = CommandFailure("UsageError", "no such topic")
    assert encode_refusal(refusal) == noted(b'{"quiver_topic_answer": 1, "error": ["UsageError", "no such topic"]}')
    assert decode_request(encode_request(request)).value == request
    assert decode_answer(encode_answer({"offset": 1200})).value == {"offset": 1200}
    assert decode_answer(encode_refusal(refusal)).value == refusal
    later = noted(b'{"quiver_topic_request": 1, "command": "a", "arguments": {}, "colour": "blue"}')
    assert decode_request(later).value == TopicRequest("a", {})


@pytest.mark.parametrize(("decode", "data"), [
    (decode_request, encode_request(TopicRequest("seek", {"topic": "a/b"}))),
    (decode_answer, encode_answer({"offset": 1})),
    (decode_answer, encode_refusal(CommandFailure("UsageError", "no"))),
])  # fmt: skip
def test_damaged_requests_and_answers_are_detected(decode, data):
    """Truncations, flips and trailing bytes are detected; an invalid record is damage even if its checksum matches."""
    for cut in range(len(data)):
        assert isinstance(decode(data[:cut]), NeedMore)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x08
        assert not isinstance(decode(damaged), Frame)
    assert isinstance(decode(data + b"x"), Damage)
    assert isinstance(decode(b"x" * (REQUEST_BYTES_MAX + 1)), Damage)
    for line in (
        b"[]", b"{}", b'{"quiver_topic_request": 2, "command": "a", "arguments": {}}',
        b'{"quiver_topic_request": 1, "command": 7, "arguments": {}}', b'{"quiver_topic_request": 1, "command": "a"}',
        b'{"quiver_topic_answer": 2, "result": {}}', b'{"quiver_topic_answer": 1, "result": []}',
        b'{"quiver_topic_answer": 1, "error": ["a"]}', b'{"quiver_topic_answer": 1, "error": ["a", 7]}',
    ):  # fmt: skip
        assert isinstance(decode(noted(line)), Damage)


def test_request_names_round_trip():
    """Any other name belongs to another program."""
    for stage in ("request", "taken", "answer"):
        assert parse_request_name(request_name("0123456789abcdef", stage)) == ("0123456789abcdef", stage)
    for name in ("0123456789abcdef.request.tmp", "0123456789ABCDEF.request", "x.request", "0123456789abcdef.done"):
        assert parse_request_name(name) is None


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seq", [0, 1, 9, 10, 12_345])
@pytest.mark.parametrize("base", ["wal.log", "orders.txt"])
def test_log_file_names_round_trip(seq, base):
    """Building and parsing are inverse."""
    assert names.parse_wal_file_name(names.wal_file_name(seq, base), base) == seq


@pytest.mark.parametrize("name", ["wal.0.log", "wal.01.log", "wal.-1.log", "wal.log.tmp", "wal.ckpt", "Wal.log", ""])
def test_foreign_names_are_rejected(name):
    """A name that our code would not write belongs to another program."""
    assert names.parse_wal_file_name(name) is None


def test_object_names_round_trip():
    """For finished and pending objects."""
    assert names.parse_object_name(names.object_name(1000, 5000)) == (1000, 5000)
    assert names.parse_object_name(names.pending_object_name(1000)) == (1000, None)
    assert names.parse_object_name("data-01-5.dnb1") is None
    assert names.objects_prefix("ns/topic") == "storage/topics/ns/topic/objects/"


@pytest.mark.parametrize("topic", ["a/b", "/a/b", "a-1/B_2.c"])
def test_topic_names_are_parsed(topic):
    """With and without a slash at the start."""
    assert names.check_topic(topic) == topic.removeprefix("/")


@pytest.mark.parametrize(
    "topic", ["", "a", "a/b/c", "/a", "a/", "a/..", "./b", "a/.b", "a b/c", "a/b\n", "a/" + "x" * 129]
)
def test_invalid_topic_names_are_refused(topic):
    """Three parts are refused, not reduced to two."""
    with pytest.raises(UsageError):
        names.check_topic(topic)


def test_subscription_file_names_round_trip():
    """Building and parsing are inverse."""
    assert names.parse_subscription_file(names.subscription_file("billing")) == "billing"
    assert names.parse_subscription_file("billing.sub.tmp") is None
    with pytest.raises(UsageError):
        names.check_subscription("a/b")
    with pytest.raises(UsageError):
        names.check_file_name("wal.ckpt")


def test_names_of_superseded_files_round_trip():
    """They contain the first superseded offset; names of an earlier version do not."""
    assert names.superseded_name("wal.3.log", 1, 600) == "wal.3.log.1.from600.replaced"
    assert names.parse_superseded_name("wal.3.log.1.from600.replaced") == 600
    for name in ("wal.3.log.1.replaced", "wal.3.log.1.from600.reappended", "wal.log.from6.replaced", ""):
        assert names.parse_superseded_name(name) is None
