"""Regression tests by effect: skipped frames, slots locked forever, dead threads."""

from __future__ import annotations

import select
import socket
import threading
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from qwp_server import Close, QwpServer

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import (
    CapacityError,
    CorruptionError,
    PartialWriteError,
    SenderHaltedError,
    StoreFailedError,
    UsageError,
)
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES as REAL
from quiver.primitives.scan import Damage
from quiver.qwp import DrainerEvent, Sender, SenderError
from quiver.qwp.conf import Address as _Address
from quiver.qwp.connection.session import Accepted, Halt, Refused, Session, SessionSettings, judge_answer
from quiver.qwp.connection.transport import ConnectionLostError, WakeUp, open_connection
from quiver.qwp.format.segment import SegmentHeader, encode_frame_head, encode_segment_header
from quiver.qwp.format.watermark import encode_watermark
from quiver.qwp.rows import RowTable
from quiver.qwp.slots.ring import RingSettings
from quiver.qwp.slots.slot import Slot, open_slot
from quiver.qwp.wire.decoder import decode_message
from quiver.qwp.wire.responses import Ok, Refusal, encode_ok, encode_refusal
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

DIRECTORY = "/sf/edge"
QUICK = "reconnect_initial_backoff_millis=1;reconnect_max_backoff_millis=5;"


def slot_on(
    fs: FileSystem,
    *,
    segment_bytes: int = 512,
    bytes_max: int = 1 << 16,
    deadline_s: float = 0.0,
    clock: Clock | None = None,
) -> Slot:
    ring = RingSettings(segment_bytes, bytes_max, deadline_s, "flush")
    return open_slot(fs, "/sf", "edge", ring, observer=InMemoryObserver(), clock=clock or ManualClock())


def put(fs: FileSystem, name: str, data: bytes) -> None:
    fs.make_dirs(DIRECTORY)
    file = fs.create_or_truncate(f"{DIRECTORY}/{name}")
    file.pwrite(data, 0)
    file.sync()
    file.close()
    fs.sync_dir(DIRECTORY)


def segment(base: int, count: int, *, damaged: int | None = None) -> bytes:
    data = encode_segment_header(SegmentHeader(base, 1))
    for number in range(base, base + count):
        payload = b"QWP1%04d" % number * 5
        data += encode_frame_head(payload) + (payload[:-1] + b"!" if number == damaged else payload)
    return data.ljust(512, b"\0")


# ---- the slot


@pytest.mark.parametrize("damaged", [0, 2, 4])
@pytest.mark.parametrize("watermark", [None, 0, 1, 3])
def test_unconfirmed_frames_after_damage_in_a_sealed_segment_are_never_skipped(damaged, watermark):
    """
    One flipped bit in the older of two segments: the frames after it are unconfirmed, so opening is refused as at any
    other gap, wherever the bit is and whichever frames the watermark covers.
    """
    fs = CrashFileSystem()
    put(fs, "sf-0000000000000000.sfa", segment(0, 6, damaged=damaged))
    put(fs, "sf-0000000000000001.sfa", segment(6, 2))
    if watermark is not None:
        put(fs, ".ack-watermark", encode_watermark(watermark))
    with pytest.raises(CorruptionError, match=f"frames {damaged} to 5 are missing"):
        slot_on(fs)
    assert "sf-0000000000000000.sfa" in fs.list_dir(DIRECTORY)


def test_damage_in_a_segment_that_is_confirmed_to_its_end_does_not_matter():
    """Its frames are no longer needed."""
    fs = CrashFileSystem()
    put(fs, "sf-0000000000000000.sfa", segment(0, 6, damaged=0))
    put(fs, "sf-0000000000000001.sfa", segment(6, 2))
    put(fs, ".ack-watermark", encode_watermark(6))
    slot = slot_on(fs)
    assert (slot.ring.acked_fsn, slot.ring.published_fsn) == (6, 7)
    slot.close()


def test_smaller_segments_than_before_do_not_lock_the_producer_out():
    """The recovered segment is larger than the total limit now. Once it is confirmed, it is removed."""
    fs = CrashFileSystem()
    slot = slot_on(fs, segment_bytes=4096)
    for _ in range(100):
        slot.ring.append(b"QWP1" * 8)
    slot.ring.sync()
    again = slot_on(fs.clone_after_kill(), segment_bytes=512, bytes_max=1024)
    with pytest.raises(CapacityError):
        for _ in range(100):
            again.ring.append(b"QWP1" * 8)
    last = again.ring.published_fsn
    again.close()
    waiting = slot_on(fs.clone_after_kill(), segment_bytes=512, bytes_max=1024, deadline_s=20.0, clock=SYSTEM_CLOCK)

    def produce() -> None:
        for _ in range(100):
            waiting.ring.append(b"QWP1" * 8)

    producer = threading.Thread(target=produce)
    producer.start()
    while waiting.ring.published_fsn < last + 90 and producer.is_alive():
        waiting.ring.wait_for_frame(waiting.ring.acked_fsn + 1, 0.01)
        waiting.ring.acknowledge(waiting.ring.published_fsn)
        waiting.ring.maintain(force=True)
    producer.join()
    assert waiting.ring.published_fsn == 199
    assert waiting.ring.allocated_bytes <= 1024
    waiting.close()


def test_a_failed_slot_keeps_its_watermark():
    """Its segments stay, so the confirmed number must stay known."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk)
    slot = slot_on(fs)
    for _ in range(20):
        slot.ring.append(b"QWP1" * 20)
    slot.ring.acknowledge(19)
    fs.fail_on("remove", 1)
    with pytest.raises(StoreFailedError):
        slot.ring.maintain(force=True)
    slot.close()
    again = slot_on(disk)
    assert (again.ring.acked_fsn, again.ring.published_fsn) == (19, 19)
    again.close()


# ---- answers of servers


def test_a_refusal_of_a_confirmed_frame_ends_the_session():
    """The frame may have left the slot: nothing can be dropped, and no other frame may be dropped instead."""
    session = Session(SessionSettings())
    session.connected(acked_fsn=9, durable_ack=False, now=0.0)
    for _ in range(3):
        session.sent(0.0)
    session.receive(encode_ok(Ok(1)), 0.0, published_fsn=12)
    for sequence in (-1, 0, 1, 3, 1 << 40):
        refusal = encode_refusal(Refusal(3, sequence, "no"))
        [action] = session.receive(refusal, 0.0, published_fsn=12)
        assert isinstance(action, Halt), sequence
        assert (action.error.from_fsn, action.error.to_fsn) == (12, 12)


def test_numbers_of_a_server_are_bounded_before_they_are_read():
    """Python refuses to parse thousands of digits; the sender's thread must survive that."""
    digits = "9" * 5000
    assert isinstance(judge_answer(101, {"X-QWP-Version": digits}, durable_ack=False), Refused)
    accepted = judge_answer(101, {"X-QWP-Max-Batch-Size": digits}, durable_ack=False)
    assert accepted == Accepted(durable_ack=False, batch_bytes_max=0, version=1)


def test_an_invalid_host_name_counts_as_a_host_that_is_down():
    """The other hosts are tried."""
    with QwpServer() as server, Sender.from_conf(f"ws::addr={'a' * 70}:1,{server.address};{QUICK}") as sender:
        sender.row("t", columns={"v": 1})
        assert sender.wait_until_confirmed(sender.flush(), 10)


def test_a_sender_that_never_connected_names_the_unconfirmed_frames():
    """Frames confirmed by an earlier process are not among them."""
    fs = CrashFileSystem()
    put(fs, "sf-0000000000000000.sfa", segment(0, 6))
    put(fs, ".ack-watermark", encode_watermark(3))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(SenderHaltedError) as halted:
            Sender.from_conf(f"ws::addr=127.0.0.1:{port};sf_dir=/sf;sender_id=edge;sf_max_bytes=512;", fs=fs)
    error = halted.value.error
    assert isinstance(error, SenderError)
    assert (error.from_fsn, error.to_fsn) == (4, 5)


def test_messages_before_a_close_are_received():
    """It refused a frame and closed while more was being sent: a send error must not hide the reason."""
    reported = encode_refusal(Refusal(9, 0, "no"))
    with QwpServer(lambda *_: reported) as server:
        host, port = server.address.split(":")
        connection, _ = open_connection(
            _Address(host, int(port)), [], tls=None, durable_ack=False, timeout=5.0, clock=SYSTEM_CLOCK
        )
        wake = WakeUp()
        try:
            connection.send(b"QWP1")
            connection.flush()
            server.wait_for(lambda: bool(server.frames))
            select.select([connection._sock], [], [], 30.0)  # its answer has arrived
            server.lives[0].drop()
            for _ in range(200):
                connection.send(bytes(1 << 16))
                connection.flush()
            heard = []
            with pytest.raises(ConnectionLostError, match="sending failed|closed|reset"):
                while True:
                    heard += connection.receive(wake, 0.0)
            assert heard == [reported]
        finally:
            connection.close(orderly=False)
            wake.close()


@pytest.mark.parametrize("shape", [[0, 2**31 - 1, 2**31 - 1, 2**31 - 1], [0] + [2**31 - 1] * 31])
def test_an_empty_array_with_an_invalid_shape_is_damage(shape):
    """It is empty, so its bytes suffice; but its shape exceeds any array."""
    array = bytes([len(shape)]) + b"".join(length.to_bytes(4, "little") for length in shape)
    body = b"\1t\1\1\1c\x11\0" + array
    message = b"QWP1\1\0\1\0" + len(body).to_bytes(4, "little") + body
    assert isinstance(decode_message(memoryview(message)), Damage)


# ---- the producer


def test_a_decimal_out_of_range_drops_only_its_row():
    """It is refused individually, as any invalid value."""
    with QwpServer() as server, Sender.from_conf(f"ws::addr={server.address};auto_flush=off;") as sender:
        sender.row("t", columns={"d": Decimal("1E-500000")})
        sender.row("t", columns={"d": Decimal("1E+600000")})
        sender.row("other", columns={"v": 1})
        sender.row("t", columns={"d": Decimal(1)})
        with pytest.raises(UsageError, match="2 rows"):
            sender.flush()
        assert sender.wait_until_confirmed(sender.published_fsn, 10)
        tables = [table for life in server.lives for frame in life.frames for table in life.decode(frame).tables]
        assert sorted((table.name, table.rows) for table in tables) == [("other", 1), ("t", 1)]


def test_a_ragged_list_is_refused():
    """Numpy's own error does not name the column."""
    table = RowTable("t")
    with pytest.raises(UsageError, match="column v"):
        table.append({}, {"v": [[1.0], [1.0, 2.0]]}, None, bytes_max=1000)


def test_rows_before_an_invalid_one_are_reported():
    """They will be sent: a caller that assumed otherwise would send them twice."""
    table = pa.table({"v": ["a" * 30] * 2500 + ["b" * 200_000, "a"]})
    with QwpServer() as server, Sender.from_conf(f"ws::addr={server.address};sf_max_bytes=64K;") as sender:
        with pytest.raises(PartialWriteError) as partly:
            sender.table("t", table)
        assert sender.wait_until_confirmed(sender.published_fsn, 10)
        rows = sum(life.decode(frame).tables[0].rows for life in server.lives for frame in life.frames)
        assert 0 < partly.value.rows_kept == rows <= 2500
        with pytest.raises(UsageError):
            sender.table("t", table.slice(2500))


def test_space_confirmed_before_an_outage_is_available_during_it(tmp_path):
    """The connection is lost before the trim, and no server answers any more."""
    conf = f"sf_dir={tmp_path};sf_max_bytes=4K;sf_max_total_bytes=8K;auto_flush=off;sf_append_deadline_millis=100;"
    with QwpServer() as server:
        server.answer = lambda _life, sequence, _frame: encode_ok(Ok(sequence)) if sequence < 3 else Close(1006)
        sender = Sender.from_conf(f"ws::addr={server.address};close_flush_timeout_millis=0;{conf}{QUICK}")
        for number in range(4):
            if number == 3:
                assert sender.wait_until_confirmed(2, 10)
                server.refuse = (503, {})
            sender.row("t", columns={"v": "x" * 1800})
            sender.flush()
        server.wait_for(lambda: server.requests > 2)
        sender.row("t", columns={"v": "x" * 1800})
        sender.flush()
        sender.row("t", columns={"v": "x" * 1800})
        with pytest.raises(CapacityError):
            sender.flush()
            sender.row("t", columns={"v": "x" * 1800})
            sender.flush()
        with pytest.raises(CapacityError):
            sender.close()


def test_a_connection_detects_a_dead_host():
    """The kernel probes the silent server, and closes the connection without an acknowledgement."""
    with QwpServer() as server:
        host, port = server.address.split(":")
        connection, _ = open_connection(
            _Address(host, int(port)), [], tls=None, durable_ack=False, timeout=5.0, clock=SYSTEM_CLOCK
        )
        sock = connection._sock
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 120_000
        connection.close(orderly=False)


# ---- callbacks


def _orphan(path: Any, name: str) -> None:
    ring = RingSettings(4096, 1 << 16, 0.0)
    slot = open_slot(REAL, str(path), name, ring, observer=InMemoryObserver())
    slot.ring.append(b"QWP1" * 3)
    slot.close()


def test_a_failing_listener_leaves_no_slot_locked(tmp_path):
    """Every orphan is drained, and the counts are right, whichever exception the caller's code raises."""
    for name in ("a", "b", "c"):
        _orphan(tmp_path, name)
    reports: list[DrainerEvent] = []
    done = threading.Event()

    def listen(event: DrainerEvent) -> None:
        reports.append(event)
        if sum(one.kind == "drained" for one in reports) == 3:
            done.set()
        raise RuntimeError("not my day")

    with QwpServer() as server:
        conf = f"ws::addr={server.address};sf_dir={tmp_path};drain_orphans=on;max_background_drainers=1;{QUICK}"
        with Sender.from_conf(conf, on_drainer=listen) as sender:
            assert done.wait(20), reports
            assert sender.total_background_drainers_succeeded == 3
    for name in ("a", "b", "c"):
        open_slot(REAL, str(tmp_path), name, RingSettings(4096, 1 << 16, 0.0), observer=InMemoryObserver()).close()


def test_a_sender_can_be_closed_from_a_drainers_listener(tmp_path):
    """A thread does not wait for itself."""
    _orphan(tmp_path, "a")
    failed: list[BaseException] = []
    done = threading.Event()
    senders: list[Sender] = []
    ready = threading.Event()

    def listen(event: DrainerEvent) -> None:
        if event.kind == "drained":
            ready.wait(10)
            try:
                senders[0].close()
            except BaseException as error:
                failed.append(error)
            done.set()

    with QwpServer() as server:
        conf = f"ws::addr={server.address};sf_dir={tmp_path};drain_orphans=on;{QUICK}"
        senders.append(Sender.from_conf(conf, on_drainer=listen))
        ready.set()
        assert done.wait(20)
    assert not failed
