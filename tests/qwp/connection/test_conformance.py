"""One test for each item of the checklist of the QWP client document, with the item's code in its name.

c: configuration · s: slot · g: segments · w: watermark · f: frames and numbers · h: handshake · d: durable
acknowledgements · r: reconnecting · e: errors · b: backpressure and close · o: orphans · v: observability.
"""

from __future__ import annotations

import base64
import errno
import logging
import os
import threading
from random import Random
from typing import Any

import pytest
from qwp_server import Close, QwpServer, confirm

from quiver.clock import SYSTEM_CLOCK
from quiver.errors import CapacityError, CorruptionError, DirectoryInUseError, SenderHaltedError, SettingsError
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.qwp import Category, DrainerEvent, Policy, Sender, SenderError, SenderSettings
from quiver.qwp.connection.failover import HostState, HostTracker, OutageBackoff
from quiver.qwp.connection.session import (
    Accepted,
    Confirm,
    Drop,
    Halt,
    Reconnect,
    Refused,
    Session,
    SessionSettings,
    category_of,
    judge_answer,
    request_headers,
)
from quiver.qwp.format.segment import SegmentHeader, encode_frame_head, encode_segment_header, scan_segment
from quiver.qwp.format.watermark import encode_watermark
from quiver.qwp.inbox import ErrorInbox
from quiver.qwp.slots.dead_letters import read_dead_letters
from quiver.qwp.slots.ring import RingSettings
from quiver.qwp.slots.slot import Slot, find_orphans, open_slot
from quiver.qwp.wire.decoder import decode_message
from quiver.qwp.wire.responses import DurableAck, Ok, Refusal, encode_durable_ack, encode_ok, encode_refusal
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

DIRECTORY = "/sf/edge"
QUICK = "reconnect_initial_backoff_millis=1;reconnect_max_backoff_millis=5;"


def conf(keys: str = "") -> SenderSettings:
    return SenderSettings.from_conf(f"ws::addr=h:1;{keys}")


def slot_on(fs: FileSystem, *, segment_bytes: int = 512, bytes_max: int = 1 << 16, name: str = "edge") -> Slot:
    ring = RingSettings(segment_bytes, bytes_max, 0.0)
    return open_slot(fs, "/sf", name, ring, observer=InMemoryObserver(), clock=ManualClock())


def put(fs: FileSystem, name: str, data: bytes) -> None:
    fs.make_dirs(DIRECTORY)
    file = fs.create_or_truncate(f"{DIRECTORY}/{name}")
    file.pwrite(data, 0)
    file.close()


def segment(base: int, *payloads: bytes, size: int = 512) -> bytes:
    data = encode_segment_header(SegmentHeader(base, 1))
    return (data + b"".join(encode_frame_head(one) + one for one in payloads)).ljust(size, b"\0")


def payload(number: int) -> bytes:
    return b"QWP1 %06d " % number * 4


def read(fs: FileSystem, name: str) -> bytes:
    return fs.read_all(f"{DIRECTORY}/{name}", size_max=1 << 20)


def fsns(slot: Slot) -> list[int]:
    return list(range(slot.ring.acked_fsn + 1, slot.ring.published_fsn + 1))


def session(*, durable: bool = False, acked: int = -1, sent: int = 0, **options: Any) -> Session:
    one = Session(SessionSettings(durable_ack=durable, **options))
    one.connected(acked_fsn=acked, durable_ack=durable, now=0.0)
    for _ in range(sent):
        one.sent(0.0)
    return one


def told(one: Session, answer: Any, now: float = 0.0, published: int = 99) -> list[Any]:
    encode = {Ok: encode_ok, DurableAck: encode_durable_ack, Refusal: encode_refusal}[type(answer)]
    return one.receive(encode(answer), now, published_fsn=published)


# ---- configuration


def test_c1_every_key_has_its_documented_default():
    """All keys of the document are accepted, with these defaults."""
    plain = conf()
    assert (plain.sender_id, plain.segment_bytes, plain.durability) == ("default", 4 << 20, "memory")
    assert (plain.append_deadline_s, plain.drain_orphans, plain.drainers_max) == (30.0, False, 4)
    assert (plain.outage_s_max, plain.first_backoff_s, plain.backoff_s_max) == (300.0, 0.1, 5.0)
    assert (plain.initial_connect, plain.close_flush_s, plain.durable_ack) == ("off", 5.0, False)
    assert (plain.keepalive_s, plain.inbox_capacity, plain.tls_verify) == (0.2, 256, True)
    assert (plain.auto_flush_rows, plain.auto_flush_bytes, plain.auto_flush_s) == (1000, None, 0.1)
    assert (plain.buffer_bytes, plain.message_bytes_max) == (64 << 10, 100 << 20)
    assert (plain.name_bytes_max, plain.schemas_max, plain.handshake_s) == (127, 65_535, 15.0)
    given = SenderSettings.from_conf(
        "wss::addr=h:1;sf_dir=/x;sender_id=s;sf_max_bytes=1M;sf_max_total_bytes=1G;sf_durability=append;"
        "sf_append_deadline_millis=1;drain_orphans=on;max_background_drainers=2;reconnect_max_duration_millis=3;"
        "reconnect_initial_backoff_millis=4;reconnect_max_backoff_millis=5;initial_connect_retry=async;"
        "close_flush_timeout_millis=-1;request_durable_ack=on;durable_ack_keepalive_interval_millis=0;"
        "error_inbox_capacity=16;username=u;password=p;tls_verify=unsafe_off;tls_roots=/r;tls_roots_password=q;"
        "auto_flush=on;auto_flush_rows=off;auto_flush_bytes=5;auto_flush_interval=off;init_buf_size=1K;max_buf_size=2M;"
        "max_name_len=64;max_schemas_per_connection=7;auth_timeout_ms=100;max_frame_rejections=3;"
        "poison_min_escalation_window_millis=9;zone=a;target=primary;on_internal_error=retry;"
    )
    assert (given.auto_flush_rows, given.auto_flush_bytes, given.auto_flush_s) == (None, 5, None)
    assert (given.tls, given.tls_roots, given.close_flush_s) == (True, "/r", -0.001)
    assert conf("auto_flush=off;auto_flush_rows=5;").auto_flush_rows is None
    assert conf("sf_max_segment_bytes=8K;").segment_bytes == 8192
    same = SenderSettings.from_mapping({"addr": ["h:1"], "sf_max_bytes": 8192, "request_durable_ack": True})
    assert same == conf("sf_max_bytes=8K;request_durable_ack=on;")


def test_c1_secrets_are_not_shown():
    """Neither the settings nor an error contain a secret."""
    shown = repr(conf("username=u;password=hidden1;")) + repr(conf("token=hidden2;"))
    assert "hidden" not in shown
    for bad in ("password=hid\x01den;", "password=hidden;", "token=hidden;username=u;password=hidden;"):
        with pytest.raises(SettingsError) as error:
            conf(bad)
        assert "hid" not in str(error.value)


@pytest.mark.parametrize(
    ("said", "value"),
    [("1", 1), ("4k", 4096), ("3M", 3 << 20), ("2G", 2 << 30), ("1T", 1 << 40), ("5kb", 5120), ("7B", 7)],
)
def test_c2_sizes_are_integers_with_binary_suffixes(said, value):
    """K, M, G and T are powers of 1024."""
    assert conf(f"init_buf_size={said};").buffer_bytes == value
    for bad in ("", "1.5M", "x", "-1", "1X", "1 M"):
        with pytest.raises(SettingsError):
            conf(f"init_buf_size={bad};")


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ("sf_max_bytes=2T;sf_max_total_bytes=8T;", "256 bytes to 1 TiB"),
        ("sf_max_bytes=255;", "256 bytes to 1 TiB"),
        ("auto_flush_interval=-5;", "at least 1"),
        ("username=a:b;password=c;", "not contain a colon"),
    ],
)
def test_c1_invalid_values_are_refused(keys, reason):
    """When they are parsed, not when they cause an error later."""
    with pytest.raises(SettingsError, match=reason):
        conf(keys)


def test_c3_an_unknown_key_is_refused_and_the_nearest_one_is_suggested():
    """No key is silently ignored."""
    with pytest.raises(SettingsError, match="did you mean sf_max_bytes"):
        conf("sf_max_byte=1;")
    with pytest.raises(SettingsError, match="unknown key Addr"):
        conf("Addr=x:1;")
    with pytest.raises(SettingsError, match="repeated"):
        conf("sf_dir=a;sf_dir=b;")
    with pytest.raises(SettingsError, match="alias"):
        conf("sf_max_bytes=1M;sf_max_segment_bytes=1M;")


def test_c4_documented_durabilities_are_accepted():
    """They are memory, flush and append; others are refused."""
    for word in ("memory", "flush", "append"):
        assert conf(f"sf_durability={word};").durability == word
    for word in ("periodic", "", "Memory"):
        with pytest.raises(SettingsError):
            conf(f"sf_durability={word};")


def test_c5_sender_ids_must_not_leave_the_directory():
    """Empty ones and path traversal are refused."""
    assert conf("sender_id=edge-1_a;").sender_id == "edge-1_a"
    for bad in ("", "a/b", "a\\b", ".."):
        with pytest.raises(SettingsError):
            conf(f"sender_id={bad};")


def test_c6_only_websockets_allow_store_and_forward():
    """Other transports do not acknowledge frames."""
    for service in ("http", "tcp", "udp"):
        with pytest.raises(SettingsError, match="ws or wss"):
            SenderSettings.from_conf(f"{service}::addr=h:1;request_durable_ack=on;")
    assert SenderSettings.from_conf("wss::addr=h:1;").tls


def test_c7_initial_connect_has_aliases():
    """on, true and sync; off and false; async."""
    expected = {
        "on": "on",
        "true": "on",
        "sync": "on",
        "off": "off",
        "false": "off",
        "async": "async",
        "ASYNC": "async",
    }
    for word, meant in expected.items():
        assert conf(f"initial_connect_retry={word};").initial_connect == meant
    with pytest.raises(SettingsError):
        conf("initial_connect_retry=maybe;")


def test_c8_without_a_directory_frames_stay_in_memory():
    """The limit is 128 MiB then, and 10 GiB on disk."""
    assert conf().sf_dir is None
    assert conf().ring.bytes_max == 128 << 20
    assert conf("sf_dir=/x;").ring.bytes_max == 10 << 30
    with pytest.raises(SettingsError, match="2 \\* sf_max_bytes"):
        conf("sf_max_bytes=1M;sf_max_total_bytes=1M;")


def test_c9_addresses_accumulate():
    """Lists and repeated keys, default ports, brackets; escapes in values."""
    hosts = SenderSettings.from_conf("ws::addr=a:1, b ;addr=[::1]:2;sf_dir=/x;;y").addresses
    assert [str(host) for host in hosts] == ["a:1", "b:9000", "[::1]:2"]
    assert SenderSettings.from_conf("ws::addr=a:1;sf_dir=/x;;y").sf_dir == "/x;y"
    for bad in ("", "a:1,", "a:1,,b", "a:0", "a:65536", "a:x", "::1", "a:1,a:1", "[a:1"):
        with pytest.raises(SettingsError):
            SenderSettings.from_conf(f"ws::addr={bad};")
    for bad in ("ws:addr=a", "ws::", "ws::addr", "", "ws::addr=a;=1;", "ws:: addr=a;"):
        with pytest.raises(SettingsError):
            SenderSettings.from_conf(bad)


def test_c10_the_inbox_holds_at_least_sixteen():
    """Fewer are refused."""
    assert conf("error_inbox_capacity=16;").inbox_capacity == 16
    with pytest.raises(SettingsError):
        conf("error_inbox_capacity=15;")


def test_c11_policies_are_set_by_category():
    """A category's key overrides the general one, which overrides the defaults; forced policies cannot change."""
    policies = conf("on_server_error=retry;on_schema_error=halt;on_parse_error=auto;on_write_error=drop;").policies
    settings = SessionSettings(policies=policies)
    assert settings.policy_of(Category.SCHEMA_MISMATCH) is Policy.HALT
    assert settings.policy_of(Category.WRITE_ERROR) is Policy.DROP
    assert settings.policy_of(Category.INTERNAL_ERROR) is Policy.RETRY
    for forced in (Category.UNKNOWN, Category.PROTOCOL_VIOLATION):
        assert SessionSettings(policies={forced: Policy.DROP}).policy_of(forced) is Policy.HALT
    with pytest.raises(SettingsError):
        conf("on_schema_error=explode;")


# ---- the slot


def test_s1_the_lock_is_held_until_close():
    """No other process opens the slot while it is open; a dead holder's lock is released."""
    fs = CrashFileSystem()
    slot_on(fs)
    with pytest.raises(DirectoryInUseError):
        slot_on(fs)
    slot_on(fs.clone_after_kill()).close()


def test_s2_the_refusal_names_the_holder():
    """Its process id comes from the pid file, or is unknown."""
    fs = CrashFileSystem()
    slot_on(fs)
    with pytest.raises(DirectoryInUseError, match=str(os.getpid())):
        slot_on(fs)
    put(fs, ".lock.pid", b"")
    fs.open_write(f"{DIRECTORY}/.lock.pid").truncate(0)
    with pytest.raises(DirectoryInUseError, match="unknown"):
        slot_on(fs)


def test_s3_the_pid_file_is_written_on_every_acquire():
    """It contains the process id and a newline, and replaces any content."""
    fs = CrashFileSystem()
    put(fs, ".lock.pid", b"999999999999\n")
    slot_on(fs)
    assert read(fs, ".lock.pid") == f"{os.getpid()}\n".encode()


def test_s4_both_lock_files_are_kept():
    """After a close with everything confirmed, only these files remain."""
    fs = CrashFileSystem()
    slot_on(fs).close()
    assert fs.list_dir(DIRECTORY) == [".lock", ".lock.pid"]


def test_s5_generations_only_grow():
    """The next file has the highest number plus one; sf-initial.sfa has none, and is read."""
    fs = CrashFileSystem()
    put(fs, "sf-initial.sfa", segment(0, payload(0)))
    put(fs, "sf-00000000000000ff.sfa", segment(1, payload(1), size=70))
    slot = slot_on(fs)
    assert fsns(slot) == [0, 1]
    slot.ring.append(payload(2))
    assert "sf-0000000000000100.sfa" in fs.list_dir(DIRECTORY)


def test_s6_the_directory_is_never_deleted():
    """Even if it is empty."""
    fs = CrashFileSystem()
    slot_on(fs).close()
    slot_on(fs).close()
    assert fs.exists(DIRECTORY)


def test_s7_a_failed_mark_stops_drainers_until_it_is_removed():
    """The owner itself may open the slot; only an operator removes the mark."""
    fs = CrashFileSystem()
    put(fs, ".failed", b"because")
    slot = slot_on(fs)
    slot.ring.append(payload(0))
    slot.close()
    assert find_orphans(fs, "/sf", "other") == []
    assert read(fs, ".failed") == b"because"
    fs.remove(f"{DIRECTORY}/.failed")
    assert find_orphans(fs, "/sf", "other") == ["edge"]


# ---- segments


def test_g1_a_header_has_the_documented_bytes():
    """Magic, version, flags, zeros, base, time."""
    header = encode_segment_header(SegmentHeader(0x0102030405060708, -1))
    assert header == b"SF01\x01\x00\x00\x00" + bytes(range(8, 0, -1)) + b"\xff" * 8


def test_g2_a_negative_base_is_refused():
    """Such a segment is damaged, and is not changed."""
    fs = CrashFileSystem()
    data = bytearray(segment(0, payload(0)))
    data[15] = 0x80
    put(fs, "sf-0000000000000000.sfa", bytes(data))
    with pytest.raises(CorruptionError, match="negative"):
        slot_on(fs)
    assert read(fs, "sf-0000000000000000.sfa") == bytes(data)


def test_g3_blocks_are_reserved_and_a_full_disk_is_backpressure(tmp_path):
    """A new file has all blocks reserved; on a full disk it is removed again, and the producer gets a CapacityError."""
    slot = open_slot(
        REAL_FILES, str(tmp_path), "edge", RingSettings(1 << 20, 1 << 22, 0.0), observer=InMemoryObserver()
    )
    slot.ring.append(payload(0))
    status = os.stat(tmp_path / "edge" / "sf-0000000000000000.sfa")
    assert status.st_size == 1 << 20
    assert status.st_blocks * 512 >= 1 << 20
    slot.close()
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, {"reserve": 1}, error=errno.ENOSPC)
    full = slot_on(fs)
    with pytest.raises(CapacityError, match="disk is full"):
        full.ring.append(payload(0))
    assert not [name for name in disk.list_dir(DIRECTORY) if name.endswith(".sfa")]
    assert full.ring.append(payload(0)) == 0


def test_g4_frames_follow_the_header_without_gaps():
    """The first frame starts at offset 24."""
    fs = CrashFileSystem()
    slot = slot_on(fs)
    for number in range(3):
        slot.ring.append(payload(number))
    scan: Any = scan_segment(memoryview(read(fs, "sf-0000000000000000.sfa")))
    size = len(payload(0))
    assert scan.value.payloads == tuple((32 + n * (size + 8), 32 + n * (size + 8) + size) for n in range(3))


def test_g5_the_checksum_covers_length_and_payload():
    """CRC-32C, as computed with an independent table."""
    table = []
    for index in range(256):
        entry = index
        for _ in range(8):
            entry = (entry >> 1) ^ (0x82F63B78 if entry & 1 else 0)
        table.append(entry)
    data = b"\x05\x00\x00\x00hello"
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    assert encode_frame_head(b"hello") == (crc ^ 0xFFFFFFFF).to_bytes(4, "little") + data[:4]


def test_g6_an_invalid_length_ends_the_scan():
    """Negative or beyond the end: writing stopped there."""
    for length in (b"\xff\xff\xff\xff", b"\x00\x10\x00\x00"):
        fs = CrashFileSystem()
        data = bytearray(segment(0, payload(0)))
        tail = 32 + len(payload(0))
        data[tail + 4 : tail + 8] = length
        put(fs, "sf-0000000000000000.sfa", bytes(data))
        slot = slot_on(fs)
        assert fsns(slot) == [0]
        assert read(fs, "sf-0000000000000000.sfa") == segment(0, payload(0))


def test_g7_unpublished_frames_are_not_read():
    """While a frame is being written, its number does not exist yet."""
    fs = CrashFileSystem()
    slot = slot_on(fs)
    slot.ring.append(payload(0))
    seen: list[int] = []
    fs.on_step = lambda _op, _path: seen.append(slot.ring.published_fsn)
    slot.ring.append(payload(1))
    assert seen
    assert set(seen) == {0}


def test_g8_a_kill_leaves_a_prefix():
    """Truncated at every byte of the last frame, the segment has all earlier frames."""
    complete = segment(0, payload(0), payload(1))
    end = 24 + 2 * (8 + len(payload(0)))
    for cut in range(24 + 8 + len(payload(0)), end):
        fs = CrashFileSystem()
        put(fs, "sf-0000000000000000.sfa", complete[:cut].ljust(512, b"\0"))
        assert fsns(slot_on(fs)) == [0]


def test_g9_complete_segments_are_trimmed():
    """Once their last frame is confirmed, but never the active one."""
    fs = CrashFileSystem()
    slot = slot_on(fs)
    while slot.ring.allocated_bytes < 3 * 512:
        slot.ring.append(payload(slot.ring.published_fsn + 1))

    def segments() -> list[str]:
        return [name for name in fs.list_dir(DIRECTORY) if name.endswith(".sfa")]

    bases = [int.from_bytes(read(fs, name)[8:16], "little") for name in segments()]
    slot.ring.acknowledge(bases[1] - 2)
    slot.ring.maintain(force=True, provision=False)
    assert len(segments()) == 3
    slot.ring.acknowledge(bases[1] - 1)
    slot.ring.maintain(force=True, provision=False)
    assert len(segments()) == 2
    slot.ring.acknowledge(slot.ring.published_fsn)
    slot.ring.maintain(force=True, provision=False)
    assert len(segments()) == 1


def test_g10_the_scan_checks_length_magic_and_version():
    """A short, foreign or newer file is refused, not skipped."""
    for data in (b"SF01" + bytes(5), b"XX01" + bytes(40), b"SF01\x02" + bytes(40)):
        fs = CrashFileSystem()
        put(fs, "sf-0000000000000000.sfa", data)
        with pytest.raises(CorruptionError):
            slot_on(fs)


def test_g11_a_torn_tail_is_counted():
    """If any of the eight bytes after the last frame is not zero."""
    for filler, torn in ((b"", 0), (b"\0" * 7 + b"\1", 1), (b"\1", 1)):
        fs = CrashFileSystem()
        data = segment(0, payload(0), size=0) + filler
        put(fs, "sf-0000000000000000.sfa", data.ljust(512, b"\0"))
        observer = InMemoryObserver()
        open_slot(fs, "/sf", "edge", RingSettings(512, 1024, 0.0), observer=observer, clock=ManualClock())
        assert observer.total("quiver.qwp.torn_tails_total") == torn


def test_g12_a_gap_prevents_opening():
    """No frame may be missing between segments."""
    fs = CrashFileSystem()
    put(fs, "sf-0000000000000000.sfa", segment(0, payload(0)))
    put(fs, "sf-0000000000000001.sfa", segment(2, payload(2)))
    with pytest.raises(CorruptionError, match="missing"):
        slot_on(fs)


def test_g13_the_highest_base_is_active():
    """It is appended to; file names do not matter."""
    fs = CrashFileSystem()
    put(fs, "sf-0000000000000009.sfa", segment(0, payload(0)))
    put(fs, "sf-0000000000000001.sfa", segment(1, payload(1)))
    slot = slot_on(fs)
    slot.ring.append(payload(2))
    assert read(fs, "sf-0000000000000001.sfa") == segment(1, payload(1), payload(2))


# ---- the watermark


def test_w1_the_watermark_has_sixteen_bytes():
    """Magic, zeros, number."""
    assert encode_watermark(5) == b"AKW1" + bytes(4) + b"\5" + bytes(7)


@pytest.mark.parametrize("data", [None, bytes(16), b"XXXX" + bytes(12), b"AKW1\1\0\0\0\1" + bytes(7), b"AKW1"])
def test_w2_without_a_watermark_nothing_is_confirmed(data):
    """Missing, zeros, another magic, reserved bytes, too short."""
    fs = CrashFileSystem()
    put(fs, "sf-0000000000000000.sfa", segment(4, payload(4), payload(5)))
    if data is not None:
        put(fs, ".ack-watermark", data)
    assert slot_on(fs).ring.acked_fsn == 3


def test_w3_the_higher_of_base_and_watermark_is_used():
    """Either may be lower after a crash."""
    for watermark, acked in ((1, 3), (4, 4)):
        fs = CrashFileSystem()
        put(fs, "sf-0000000000000000.sfa", segment(4, payload(4), payload(5)))
        put(fs, ".ack-watermark", encode_watermark(watermark))
        assert slot_on(fs).ring.acked_fsn == acked


def test_w4_a_watermark_above_every_frame_is_ignored():
    """Otherwise it would drop unconfirmed frames."""
    fs = CrashFileSystem()
    put(fs, "sf-0000000000000000.sfa", segment(4, payload(4), payload(5)))
    put(fs, ".ack-watermark", encode_watermark(6))
    assert fsns(slot_on(fs)) == [4, 5]


def test_w5_the_number_is_written_before_the_magic():
    """Each update writes eight bytes at offset 8; the magic is written once, after the first number."""
    fs = CrashFileSystem()
    slot = slot_on(fs)
    for number in range(3):
        slot.ring.append(payload(number))
    assert read(fs, ".ack-watermark") == bytes(16)
    states: list[bytes] = []
    fs.on_step = lambda _op, path: states.append(read(fs, ".ack-watermark")) if "watermark" in path else None
    slot.ring.acknowledge(1)
    assert states == [bytes(16), bytes(8) + b"\1" + bytes(7)]
    slot.ring.acknowledge(2)
    assert len(states) == 3
    assert read(fs, ".ack-watermark") == encode_watermark(2)


def test_w6_a_confirmation_does_not_sync():
    """Only a trim does."""
    fs = CrashFileSystem()
    slot = slot_on(fs)
    slot.ring.append(payload(0))
    steps: list[str] = []
    fs.on_step = lambda op, _path: steps.append(op)
    slot.ring.acknowledge(0)
    assert "sync" not in steps


def test_w7_a_stale_watermark_is_removed_at_a_fresh_start():
    """Without segments it has no meaning."""
    fs = CrashFileSystem()
    put(fs, ".ack-watermark", encode_watermark(7))
    slot = slot_on(fs)
    assert slot.ring.acked_fsn == -1
    assert read(fs, ".ack-watermark") == bytes(16)


def test_w8_a_drainer_uses_the_watermark():
    """A foreign slot is opened in the same way."""
    fs = CrashFileSystem()
    put(fs, "sf-initial.sfa", segment(0, payload(0), payload(1)))
    put(fs, ".ack-watermark", encode_watermark(0))
    slot = open_slot(
        fs,
        "/sf",
        "edge",
        RingSettings(512, 1024, 0.0),
        observer=InMemoryObserver(),
        clock=ManualClock(),
        is_adopted=True,
    )
    assert fsns(slot) == [1]


# ---- frames and numbers


def test_f1_numbers_survive_restarts():
    """New frames continue after existing ones."""
    fs = CrashFileSystem()
    for number in range(0, 9, 3):
        slot = slot_on(fs)
        assert [slot.ring.append(payload(number + one)) for one in range(3)] == [number, number + 1, number + 2]
        slot.close()


def test_f2_f4_the_wire_counts_from_zero():
    """The first frame of a connection follows the confirmed ones, and is number 0 on the wire."""
    one = session(acked=41)
    assert one.next_fsn == 42
    one.sent(0.0)
    assert one.next_fsn == 43
    assert told(one, Ok(0)) == [Confirm(42)]


def test_f3_each_frame_is_one_message_in_order():
    """Messages arrive as they were appended."""
    with QwpServer() as server, Sender.from_conf(f"ws::addr={server.address};auto_flush=off;") as sender:
        for number in range(30):
            sender.row("t", columns={"v": number})
            sender.flush()
        assert sender.wait_until_confirmed(29, 10)
        rows = [
            table.to_arrow()["v"].to_pylist() for one in server.frames for table in server.lives[0].decode(one).tables
        ]
        assert rows == [[number] for number in range(30)]


def test_f5_a_server_cannot_confirm_what_was_not_sent():
    """A higher sequence counts as the last one sent."""
    assert told(session(sent=3), Ok(1000)) == [Confirm(2)]
    assert told(session(), Ok(0)) == []


def test_f6_ok_confirms_only_without_durable_acknowledgements():
    """With them it is only recorded."""
    assert told(session(sent=2), Ok(1, {"t": 5})) == [Confirm(1)]
    assert told(session(durable=True, sent=2), Ok(1, {"t": 5})) == []


def test_f7_frames_are_self_sufficient():
    """Symbols from 0, dense; every column has its type; frames do not refer to each other."""
    with QwpServer() as server, Sender.from_conf(f"ws::addr={server.address};auto_flush=off;") as sender:
        for number in range(5):
            sender.row("t", symbols={"s": f"sym{number % 3}"}, columns={"v": number})
            sender.flush()
        assert sender.wait_until_confirmed(4, 10)
        for frame in server.frames:
            answer: Any = decode_message(memoryview(frame))
            assert answer.value.symbols_start == 0
            assert list(answer.value.symbols) == [f"sym{number}" for number in range(len(answer.value.symbols))]


def test_f8_bytes_are_replayed_unchanged(tmp_path):
    """The next sender sends the bytes that the first one wrote."""
    keys = f"sf_dir={tmp_path};auto_flush=off;"
    with QwpServer(lambda *_: None) as server:
        sender = Sender.from_conf(f"ws::addr={server.address};close_flush_timeout_millis=0;{keys}")
        for number in range(5):
            sender.row("t", symbols={"s": "a"}, columns={"v": number})
            sender.flush()
        server.wait_for(lambda: len(server.frames) == 5)
        sender.close()
        server.answer = confirm
        with Sender.from_conf(f"ws::addr={server.address};{keys}"):
            server.wait_for(lambda: len(server.frames) == 10)
        assert server.lives[1].frames == server.lives[0].frames


# ---- the handshake


def test_h1_the_handshake_has_the_documented_path_and_headers():
    """Version, client id, credentials; the durability header only if configured."""
    with QwpServer() as server:
        keys = "client_id=quiver/1;username=u;password=p;;w;"
        Sender.from_conf(f"ws::addr={server.address};{keys}").close()
        server.wait_for(lambda: len(server.lives) == 1)  # its thread may be slower than the client
        headers = server.lives[0].headers
        assert headers["path"] == "/write/v4"
        assert headers["X-Qwp-Max-Version"] == "1"
        assert headers["X-Qwp-Client-Id"] == "quiver/1"
        assert headers["Authorization"] == "Basic " + base64.b64encode(b"u:p;w").decode()
        assert "X-Qwp-Request-Durable-Ack" not in headers
        Sender.from_conf(f"ws::addr={server.address};token=t;").close()
        server.wait_for(lambda: len(server.lives) == 2)
        assert server.lives[1].headers["Authorization"] == "Bearer t"


def test_h2_the_requested_durability_header_is_a_literal():
    """The value is `true`."""
    headers = request_headers(durable_ack=True, client_id=None, username=None, password=None, token=None)
    assert ("X-QWP-Request-Durable-Ack", "true") in headers


def test_h3_an_answer_without_the_durability_header_is_an_error():
    """A server that ignores the header would never confirm anything."""
    assert isinstance(judge_answer(101, {}, durable_ack=True), Refused)
    assert judge_answer(101, {"X-QWP-Durable-Ack": "Enabled"}, durable_ack=True) == Accepted(True, 0, 1)
    with QwpServer() as server, pytest.raises(SenderHaltedError, match="Durable-Ack"):
        Sender.from_conf(f"ws::addr={server.address};request_durable_ack=on;initial_connect_retry=on;")


@pytest.mark.parametrize("status", [401, 403])
def test_h4_wrong_credentials_are_final(status):
    """One request, no retry, and the category names the cause."""
    with QwpServer() as server:
        server.refuse = (status, {})
        with pytest.raises(SenderHaltedError) as error:
            Sender.from_conf(f"ws::addr={server.address};initial_connect_retry=on;{QUICK}")
        assert error.value.error.category is Category.SECURITY_ERROR
        assert server.requests == 1


def test_h5_a_missing_version_counts_as_version_1():
    """A version other than 1 is a mismatch of this server, not a final error."""
    assert judge_answer(101, {}, durable_ack=False) == Accepted(False, 0, 1)
    assert judge_answer(101, {"X-QWP-Max-Batch-Size": "77"}, durable_ack=False) == Accepted(False, 77, 1)
    for version in ("0", "2", "x"):
        judged = judge_answer(101, {"X-QWP-Version": version}, durable_ack=False)
        assert isinstance(judged, Refused)
        assert judged.kind == "transient"
    role = {"X-QuestDB-Role": "primary_catchup"}
    assert judge_answer(421, role, durable_ack=False).kind == "role"
    assert judge_answer(421, {"X-QuestDB-Role": "REPLICA"}, durable_ack=False).kind == "topology"
    for status in (200, 404, 421, 426, 500, 503):
        assert judge_answer(status, {}, durable_ack=False).kind == "transient"


# ---- durable acknowledgements


def test_d1_a_durable_acknowledgement_has_tables_and_no_sequence():
    """Its layout is a status and the tables."""
    assert encode_durable_ack(DurableAck({"ab": 3})) == b"\x02\x01\x00\x02\x00ab" + b"\3" + bytes(7)


def test_d2_the_transaction_of_a_table_only_increases():
    """An older acknowledgement that arrives late changes nothing."""
    one = session(durable=True, sent=2)
    told(one, DurableAck({"t": 9}))
    told(one, DurableAck({"t": 4}))
    assert told(one, Ok(1, {"t": 8})) == [Confirm(1)]


def test_d3_covered_frames_at_the_head_are_confirmed_immediately():
    """All consecutive ones, with the highest number, but nothing after an uncovered one."""
    one = session(durable=True, sent=4)
    for sequence, tables in enumerate(({"a": 1}, {"b": 1}, {"a": 2, "b": 2}, {"a": 3})):
        assert told(one, Ok(sequence, tables)) == []
    assert told(one, DurableAck({"b": 5})) == []
    assert told(one, DurableAck({"a": 2})) == [Confirm(2)]
    assert told(one, DurableAck({"a": 3})) == [Confirm(3)]


def test_d4_an_ok_without_tables_is_durable_after_its_predecessors():
    """Immediately if there are none."""
    one = session(durable=True, sent=3)
    assert told(one, Ok(0)) == [Confirm(0)]
    assert told(one, Ok(1, {"t": 1})) == []
    assert told(one, Ok(2)) == []
    assert told(one, DurableAck({"t": 1})) == [Confirm(2)]


def test_d5_a_reconnect_resets_the_state():
    """The state is reset, because the server reports it again."""
    one = session(durable=True, sent=2)
    told(one, DurableAck({"t": 9}))
    told(one, Ok(1, {"t": 10}))
    one.connected(acked_fsn=-1, durable_ack=True, now=1.0)
    one.sent(1.0)
    assert not one.awaits_durability
    assert told(one, Ok(0, {"t": 3})) == []
    assert told(one, DurableAck({"t": 3})) == [Confirm(0)]


def test_d6_pings_are_sent_only_while_frames_await_durability():
    """Negotiated, pending, interval above 0, and that much time without sending."""
    one = session(durable=True, sent=1)
    assert one.ping_in_s(9.0) is None
    told(one, Ok(0, {"t": 1}))
    assert one.ping_in_s(0.05) == pytest.approx(0.15)
    assert one.ping_in_s(0.2) == 0
    one.pinged(0.2)
    assert one.ping_in_s(0.3) == pytest.approx(0.1)
    told(one, DurableAck({"t": 1}))
    assert one.ping_in_s(9.0) is None
    off = session(durable=True, sent=1, keepalive_s=0.0)
    told(off, Ok(0, {"t": 1}))
    assert off.ping_in_s(9.0) is None

    def answer(life: Any, sequence: int, _frame: bytes) -> bytes:
        life.acked = sequence
        return encode_ok(Ok(sequence, {"t": sequence}))

    with QwpServer(answer, headers={"X-QWP-Durable-Ack": "enabled"}) as server:
        keys = "request_durable_ack=on;durable_ack_keepalive_interval_millis=5;close_flush_timeout_millis=0;"
        with Sender.from_conf(f"ws::addr={server.address};{keys}") as sender:
            sender.row("t", columns={"v": 1})
            fsn = sender.flush()
            server.wait_for(lambda: bool(server.lives) and server.lives[0].pings >= 2)
            assert sender.acked_fsn == -1
            server.lives[0].socket.send(encode_durable_ack(DurableAck({"t": 0})))
            assert sender.wait_until_confirmed(fsn, 10)


# ---- reconnecting


def test_r1_the_best_untried_host_is_picked():
    """Healthy, unknown, catching up, broken, other role; then the order of the connect string."""
    tracker = HostTracker(5)
    tracker.record_role_reject(0, transient=False)
    tracker.record_transport_error(1)
    tracker.record_role_reject(2, transient=True)
    tracker.record_success(4)
    assert tracker.pick_next() == 3
    tracker.begin_round(forget=False)
    order = []
    while (index := tracker.pick_next()) is not None:
        order.append(index)
        tracker.record_transport_error(index) if index != 4 else tracker.record_success(4)
    assert order == [4, 3, 2, 1, 0]
    tracker.begin_round(forget=True)
    assert tracker.states() == (HostState.UNKNOWN,) * 4 + (HostState.HEALTHY,)
    tracker.record_success(0)
    tracker.begin_round(forget=True)
    assert tracker.states() == (HostState.HEALTHY, *(HostState.UNKNOWN,) * 4)


def test_r2_a_broken_connection_is_noted_before_a_round_begins():
    """Otherwise the broken host would count as the healthy one; whether it was tried does not change."""
    tracker = HostTracker(2)
    tracker.record_success(0)
    tracker.record_mid_stream_failure(0)
    assert tracker.pick_next() == 1
    tracker.begin_round(forget=True)
    assert tracker.states() == (HostState.UNKNOWN, HostState.UNKNOWN)
    tracker.record_role_reject(1, transient=True)
    tracker.record_mid_stream_failure(1)
    assert tracker.states()[1] is HostState.TRANSIENT_REJECT


def test_r3_there_is_no_pause_within_a_round():
    """Hosts that do not answer are skipped immediately: minutes of backoff would be noticed."""
    with QwpServer() as server:
        hosts = f"127.0.0.1:1,127.0.0.1:2,{server.address}"
        keys = "reconnect_initial_backoff_millis=60000;reconnect_max_backoff_millis=60000;initial_connect_retry=on;"
        Sender.from_conf(f"ws::addr={hosts};{keys}").close()
        assert len(server.lives) == 1


def test_r4_pauses_double_and_spread():
    """From b to 2b, up to the cap before the random part, never more than the remaining time."""
    backoff = OutageBackoff(0.1, 5.0, 300.0, Random(1))
    assert [backoff.base_s(attempt) for attempt in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    backoff.start(1000.0)
    for attempt in range(9):
        pause = backoff.after_round(1000.0, role_reject=False)
        base = backoff.base_s(attempt)
        assert pause is not None
        assert base <= pause < 2 * base
    assert backoff.after_round(1299.5, role_reject=False) == pytest.approx(0.5)
    assert backoff.after_round(1300.0, role_reject=False) is None


def test_r5_a_role_rejection_waits_the_first_pause():
    """No doubling and no random part, but the time counts."""
    backoff = OutageBackoff(0.1, 5.0, 10.0, Random(1))
    backoff.start(0.0)
    backoff.after_round(0.0, role_reject=False)
    assert backoff.after_round(1.0, role_reject=True) == 0.1
    assert backoff.attempt == 0
    assert backoff.after_round(9.95, role_reject=True) == pytest.approx(0.05)
    assert backoff.after_round(10.0, role_reject=True) is None
    with QwpServer() as server:
        server.refuse = (421, {"X-QuestDB-Role": "PRIMARY_CATCHUP"})
        keys = f"initial_connect_retry=on;{QUICK}reconnect_max_duration_millis=60;"
        with pytest.raises(SenderHaltedError, match="PRIMARY_CATCHUP"):
            Sender.from_conf(f"ws::addr={server.address};{keys}")
        assert server.requests > 2


def test_r6_when_the_time_is_over_the_sender_halts(tmp_path):
    """PROTOCOL_VIOLATION for all unconfirmed frames; they stay in the slot."""
    server = QwpServer(lambda *_: None)
    keys = f"sf_dir={tmp_path};auto_flush=off;{QUICK}reconnect_max_duration_millis=30;close_flush_timeout_millis=0;"
    sender = Sender.from_conf(f"ws::addr={server.address};{keys}")
    for number in range(3):
        sender.row("t", columns={"v": number})
        sender.flush()
    server.wait_for(lambda: len(server.frames) == 3)
    server.close()
    with pytest.raises(SenderHaltedError):
        sender.wait_until_confirmed(2, 10)
    error = sender.last_terminal_error
    assert error is not None
    assert (error.category, error.from_fsn, error.to_fsn) == (Category.PROTOCOL_VIOLATION, 0, 2)
    sender.close()
    slot = open_slot(REAL_FILES, str(tmp_path), "default", conf().ring, observer=InMemoryObserver())
    assert fsns(slot) == [0, 1, 2]
    slot.close()


def test_r7_each_loop_remembers_its_own_host():
    """Two loops share the tracker; the failure of a host is reported by the loop that was connected to it."""
    tracker = HostTracker(2)
    tracker.record_success(0)
    tracker.record_success(1)
    tracker.record_mid_stream_failure(0)
    assert tracker.states() == (HostState.TRANSPORT_ERROR, HostState.HEALTHY)


def test_r8_success_resets_the_clock():
    """Attempts and time are reset."""
    backoff = OutageBackoff(0.1, 5.0, 10.0, Random(1))
    backoff.start(0.0)
    for _ in range(5):
        backoff.after_round(1.0, role_reject=False)
    backoff.start(9.0)
    assert (backoff.attempt, backoff.remaining_s(10.0)) == (0, 9.0)


def test_r9_initial_connect_determines_the_first_connection():
    """off: one round, then an error; on: until the time is over; async: immediately, and rows wait in the slot."""
    with pytest.raises(SenderHaltedError, match="no server answered"):
        Sender.from_conf("ws::addr=127.0.0.1:1;")
    with pytest.raises(SenderHaltedError, match="reconnect time"):
        Sender.from_conf(f"ws::addr=127.0.0.1:1;initial_connect_retry=on;reconnect_max_duration_millis=20;{QUICK}")
    with QwpServer() as server:
        server.refuse = (503, {})
        sender = Sender.from_conf(f"ws::addr={server.address};initial_connect_retry=async;{QUICK}")
        sender.row("t", columns={"v": 1})
        fsn = sender.flush()
        server.wait_for(lambda: server.requests > 1)
        assert sender.acked_fsn == -1
        server.refuse = None
        assert sender.wait_until_confirmed(fsn, 10)
        sender.close()


def test_r10_the_producer_continues_during_an_outage():
    """It does not notice the outage; frames appended meanwhile are sent in order after the resent ones."""
    broken = [True]

    def answer(_life: Any, sequence: int, _frame: bytes) -> Any:
        return Close(1006) if broken[0] and sequence == 2 else encode_ok(Ok(sequence))

    with QwpServer(answer) as server, Sender.from_conf(f"ws::addr={server.address};auto_flush=off;{QUICK}") as sender:
        for number in range(20):
            sender.row("t", columns={"v": number})
            sender.flush()
            if number == 10:
                server.wait_for(lambda: len(server.lives) >= 2)
                broken[0] = False
        assert sender.wait_until_confirmed(19, 10)
        last = server.lives[-1]
        values = [
            row["v"] for one in last.frames for table in last.decode(one).tables for row in table.to_arrow().to_pylist()
        ]
        assert values == list(range(values[0], 20))
        assert sender.total_frames_replayed > 0
        assert sender.total_reconnects_succeeded >= 1


# ---- errors


def test_e1_status_bytes_have_categories():
    """Six statuses of the document, two of newer servers, and unknown ones."""
    assert {status: category_of(status) for status in (3, 5, 6, 8, 9)} == {
        3: Category.SCHEMA_MISMATCH, 5: Category.PARSE_ERROR, 6: Category.INTERNAL_ERROR, 8: Category.SECURITY_ERROR,
        9: Category.WRITE_ERROR,
    }  # fmt: skip
    for status in (1, 4, 7, 0xFE, 0xFF):
        assert category_of(status) is Category.UNKNOWN


def test_e2_default_policies_drop_or_halt():
    """A schema mismatch and a write error are dropped, all other answers halt."""
    default = SessionSettings()
    answers = set(Category) - {Category.TOO_LARGE}  # no server sends it
    dropped = {category for category in answers if default.policy_of(category) is Policy.DROP}
    assert dropped == {Category.SCHEMA_MISMATCH, Category.WRITE_ERROR}
    for category in (Category.PARSE_ERROR, Category.INTERNAL_ERROR, Category.SECURITY_ERROR, Category.UNKNOWN):
        assert default.policy_of(category) is Policy.HALT


def test_e3_a_dropped_frame_counts_as_confirmed(tmp_path):
    """The handler is called, the frame is a dead letter, and the next frames arrive on another connection."""

    def answer(life: Any, sequence: int, frame: bytes) -> Any:
        bad = life.decode(frame).tables[0].name == "bad"
        return encode_refusal(Refusal(3, sequence, "no such column")) if bad else encode_ok(Ok(sequence))

    errors: list[SenderError] = []
    with QwpServer(answer) as server:
        keys = f"sf_dir={tmp_path};auto_flush=off;{QUICK}"
        with Sender.from_conf(f"ws::addr={server.address};{keys}", on_error=errors.append) as sender:
            for name in ("good", "bad", "good", "good"):
                sender.row(name, columns={"v": 1})
                sender.flush()
            assert sender.wait_until_confirmed(3, 10)
            assert sender.total_server_errors == 1
        assert [(error.category, error.from_fsn, error.applied_policy) for error in errors] == [
            (Category.SCHEMA_MISMATCH, 1, Policy.DROP)
        ]
        assert len(server.lives) == 2
        dead_letters = read_dead_letters(REAL_FILES, str(tmp_path / "default"))
        assert [(one.fsn, one.reason, one.message) for one in dead_letters] == [(1, "no such column", server.frames[1])]


def test_e3_in_durable_mode_a_dropped_frame_waits_for_its_predecessors():
    """It is skipped when they are sent again, and confirmed with them."""
    one = session(durable=True, sent=3)
    told(one, Ok(0, {"t": 1}))
    actions = told(one, Refusal(3, 1, "no"))
    assert [type(action) for action in actions] == [Drop, Reconnect]
    one.connected(acked_fsn=-1, durable_ack=True, now=0.0)
    sent = []
    for _ in range(3):
        sent.append(one.next_fsn)
        one.sent(0.0)
    assert sent == [0, 2, 3]
    told(one, Ok(0, {"t": 1}))
    assert told(one, DurableAck({"t": 1})) == [Confirm(1)]
    assert one.next_fsn == 4
    told(one, Ok(2, {"t": 2}))
    assert told(one, DurableAck({"t": 2})) == [Confirm(3)]
    first = session(durable=True, sent=1)
    assert [type(action) for action in told(first, Refusal(9, 0, ""))] == [Drop, Confirm, Reconnect]


def test_e4_the_next_call_raises_after_a_halt():
    """The exception has the error; the frame stays; after `resume_after_halt` it is sent again."""
    refusing = [True]

    def answer(_life: Any, sequence: int, _frame: bytes) -> bytes:
        return encode_refusal(Refusal(5, sequence, "cannot parse")) if refusing[0] else encode_ok(Ok(sequence))

    with QwpServer(answer) as server, Sender.from_conf(f"ws::addr={server.address};auto_flush=off;") as sender:
        sender.row("t", columns={"v": 1})
        fsn = sender.flush()
        with pytest.raises(SenderHaltedError):
            sender.wait_until_confirmed(fsn, 10)
        with pytest.raises(SenderHaltedError, match="cannot parse") as error:
            sender.row("t", columns={"v": 2})
        assert error.value.error == SenderError(Category.PARSE_ERROR, Policy.HALT, 5, "cannot parse", 0, 0, 0)
        refusing[0] = False
        sender.resume_after_halt()
        sender.row("t", columns={"v": 2})
        assert sender.wait_until_confirmed(sender.flush(), 10)
        assert sender.last_terminal_error is None


def test_e5_a_full_inbox_drops_the_oldest():
    """It is counted; the latest error is the most useful one."""
    release = threading.Event()
    entered = threading.Event()
    seen: list[int] = []

    def handler(error: SenderError) -> None:
        entered.set()
        release.wait(10)
        seen.append(error.from_fsn)

    inbox = ErrorInbox(handler, 16, clock=SYSTEM_CLOCK, observer=InMemoryObserver())
    for fsn in range(30):
        inbox.offer(SenderError(Category.WRITE_ERROR, Policy.DROP, 9, "", 0, fsn, fsn))
        if fsn == 0:
            assert entered.wait(10)
    release.set()
    inbox.close()
    assert inbox.dropped == 13
    assert seen == [0, *range(14, 30)]
    assert inbox.delivered == 17


def test_e6_without_a_handler_errors_are_logged(caplog):
    """A halt as an error, a drop as a warning; a failing handler is logged, too."""
    logging.disable(logging.NOTSET)

    def failing(error: SenderError) -> None:
        raise ValueError(error.message)

    with caplog.at_level(logging.WARNING, logger="quiver.qwp"):
        for handler in (None, failing):
            inbox = ErrorInbox(handler, 16, clock=SYSTEM_CLOCK, observer=InMemoryObserver())
            inbox.offer(SenderError(Category.WRITE_ERROR, Policy.DROP, 9, "dropped", 0, 1, 1))
            inbox.offer(SenderError(Category.PARSE_ERROR, Policy.HALT, 5, "halted", 0, 1, 1))
            inbox.close()
    levels = [(record.levelno, "halted" in record.getMessage()) for record in caplog.records]
    assert levels == [(logging.WARNING, False), (logging.ERROR, True), (logging.ERROR, False), (logging.ERROR, True)]


@pytest.mark.parametrize("code", [1002, 1003, 1007, 1008, 1009, 1010])
def test_e7_final_close_codes_halt(code):
    """The error has the range of unconfirmed frames, no status, no sequence, and the server's reason."""
    one = session(acked=4, sent=2)
    action = one.closed(code, "because", 0.0, published_fsn=9)
    assert isinstance(action, Halt)
    assert action.error == SenderError(
        Category.PROTOCOL_VIOLATION, Policy.HALT, -1, f"ws-close[{code}]: because", -1, 5, 9
    )


@pytest.mark.parametrize("code", [1000, 1001, 1006, 1011, 1012, 3000, 4000])
def test_e7_transient_close_codes_reconnect(code):
    """As long as frames are confirmed in between."""
    one = session(sent=3)
    for number in range(9):
        assert isinstance(one.closed(code, "", number * 10.0, published_fsn=9), Reconnect)
        one.connected(acked_fsn=number, durable_ack=False, now=0.0)
        one.sent(0.0)
        told(one, Ok(0))


@pytest.mark.parametrize(
    ("keys", "status"), [("on_internal_error", 6), ("on_server_error", 6), ("on_server_error", 12)]
)
def test_e7_a_retry_policy_has_no_limit(keys, status):
    """If configured explicitly; by default, repeated refusals of a frame count as poison and halt."""
    policies = conf(f"{keys}=retry;").policies
    for given, ends in ((policies, False), ({}, True)):
        one = session(policies=given)
        for number in range(20):
            one.connected(acked_fsn=6, durable_ack=False, now=number * 10.0)
            one.sent(number * 10.0)
            (action,) = told(one, Refusal(status, 0, "not now"), now=number * 10.0)
            if isinstance(action, Halt):
                break
            assert action.paced
            assert action.error.applied_policy is Policy.RETRY
        assert isinstance(action, Halt) is ends
    one = session(policies=policies)
    for number in range(20):  # a server that crashes instead of answering
        one.connected(acked_fsn=6, durable_ack=False, now=number * 10.0)
        one.sent(number * 10.0)
        assert isinstance(one.closed(1011, "", number * 10.0, published_fsn=9), Reconnect)


def test_e7_a_frame_that_ends_every_connection_is_poison():
    """After enough failures over enough time it is final, and names the frame."""
    one = session(acked=6)
    ends = []
    for number in range(6):
        one.connected(acked_fsn=6, durable_ack=False, now=number * 2.0)
        one.sent(number * 2.0)
        ends.append(one.closed(1011, "boom", number * 2.0, published_fsn=9))
    assert [type(end) for end in ends[:3]] == [Reconnect] * 3
    assert isinstance(ends[3], Halt)
    assert "frame 7" in ends[3].error.message
    text = session().receive("hello", 0.0, published_fsn=3)
    assert isinstance(text[0], Halt)


# ---- backpressure and close


def test_b1_b2_the_error_of_a_full_slot_has_the_reason():
    """After the deadline: slow confirmations, or reconnecting, with the number of attempts and the duration."""
    keys = "sf_max_bytes=4096;sf_max_total_bytes=8192;sf_append_deadline_millis=20;auto_flush=off;"
    with QwpServer(lambda *_: None) as server:
        sender = Sender.from_conf(f"ws::addr={server.address};{keys}close_flush_timeout_millis=0;{QUICK}")
        with pytest.raises(CapacityError, match="the connection works"):
            for number in range(100):
                sender.row("t", columns={"v": "x" * 500, "n": number})
                sender.flush()
        assert sender.total_backpressure_stalls >= 1
        server.refuse = (503, {})
        server.lives[0].drop()
        server.wait_for(lambda: server.requests >= 3)
        with pytest.raises(CapacityError, match=r"reconnecting: attempt [1-9]\d*, the outage began"):
            sender.flush()
        with pytest.raises(CapacityError):
            sender.close()


def test_b2_an_outage_that_began_before_the_first_connection_is_counted():
    """There was no reconnect yet, but there were attempts."""
    keys = "initial_connect_retry=async;sf_max_bytes=4096;sf_max_total_bytes=8192;sf_append_deadline_millis=20;"
    with QwpServer() as server:
        server.refuse = (503, {})
        sender = Sender.from_conf(f"ws::addr={server.address};{keys}close_flush_timeout_millis=0;{QUICK}")
        server.wait_for(lambda: server.requests >= 2)
        with pytest.raises(CapacityError, match=r"reconnecting: attempt [1-9]\d*, the outage began"):
            for number in range(100):
                sender.row("t", columns={"v": "x" * 500, "n": number}, at=number)
                sender.flush()
        assert sender.total_reconnect_attempts == 0
        with pytest.raises(CapacityError):
            sender.close()


def test_b3_close_waits_up_to_its_timeout(tmp_path):
    """0 and -1 publish the buffered rows and return; a timeout logs a warning and leaves the frames."""
    for millis in (0, -1, 30):
        with QwpServer(lambda *_: None) as server:
            observer = InMemoryObserver()
            keys = f"sf_dir={tmp_path};sender_id=s{millis};close_flush_timeout_millis={millis};"
            sender = Sender.from_conf(f"ws::addr={server.address};{keys}", observer=observer)
            sender.row("t", columns={"v": 1})
            sender.close()
            sender.close()
        slot = open_slot(REAL_FILES, str(tmp_path), f"s{millis}", conf().ring, observer=InMemoryObserver())
        assert fsns(slot) == [0]
        slot.close()


@pytest.mark.parametrize(("handler", "call", "raises"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_b4_close_raises_an_unreported_error(handler, call, raises):
    """Close raises a halt unless a handler received it, or a call raised it."""
    told_handler = threading.Event()
    components = {"on_error": lambda _error: told_handler.set()} if handler else {}
    with QwpServer(lambda _life, sequence, _frame: encode_refusal(Refusal(8, sequence, "no"))) as server:
        sender = Sender.from_conf(f"ws::addr={server.address};close_flush_timeout_millis=0;", **components)
        sender.row("t", columns={"v": 1})
        sender.flush()
        server.wait_for(lambda: len(server.frames) == 1)
        while sender.last_terminal_error is None:
            threading.Event().wait(0.005)
        if handler:
            assert told_handler.wait(10)
            while not sender.total_error_notifications_delivered:
                threading.Event().wait(0.005)
        if call:
            with pytest.raises(SenderHaltedError):
                sender.flush()
        if raises:
            with pytest.raises(SenderHaltedError):
                sender.close()
        else:
            sender.close()
        sender.close()


def test_b5_everything_is_released_after_any_error(tmp_path):
    """After a close that raised, the slot can be opened again."""
    with QwpServer(lambda _life, sequence, _frame: encode_refusal(Refusal(8, sequence, "no"))) as server:
        sender = Sender.from_conf(f"ws::addr={server.address};sf_dir={tmp_path};")
        sender.row("t", columns={"v": 1})
        with pytest.raises(SenderHaltedError):
            sender.close()
    open_slot(REAL_FILES, str(tmp_path), "default", conf().ring, observer=InMemoryObserver()).close()
    with pytest.raises(SenderHaltedError):
        Sender.from_conf(f"ws::addr=127.0.0.1:1;sf_dir={tmp_path};")
    open_slot(REAL_FILES, str(tmp_path), "default", conf().ring, observer=InMemoryObserver()).close()


# ---- orphans


def _orphan(sf_dir: str, name: str, frames: int) -> None:
    from quiver.qwp.rows import RowTable
    from quiver.qwp.wire.message import encode_message

    slot = open_slot(REAL_FILES, sf_dir, name, RingSettings(4096, 1 << 20, 0.0), observer=InMemoryObserver())
    for number in range(frames):
        table = RowTable(name)
        table.append({}, {"v": number}, None, bytes_max=1000)
        slot.ring.append(encode_message([table.pack()]))
    slot.close()


def test_o1_o3_o4_orphans_are_drained_concurrently(tmp_path):
    """Each over its own connection; drained slots are empty; the own slot and marked ones are not touched."""
    for name in ("a", "b", "marked"):
        _orphan(str(tmp_path), name, 5)
    (tmp_path / "marked" / ".failed").write_text("no")
    events: list[DrainerEvent] = []
    with QwpServer() as server:
        keys = f"sf_dir={tmp_path};sender_id=own;drain_orphans=on;"
        with Sender.from_conf(f"ws::addr={server.address};{keys}", on_drainer=events.append) as sender:
            server.wait_for(lambda: len(server.frames) == 10)
            while sender.total_background_drainers_succeeded < 2:
                threading.Event().wait(0.005)
            assert sender.active_background_drainers == 0
        assert len(server.lives) == 3
    assert sorted((event.sender_id, event.kind) for event in events) == [
        ("a", "drained"), ("a", "started"), ("b", "drained"), ("b", "started"),
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [".lock", ".lock.pid"]
    assert (tmp_path / "marked" / "sf-0000000000000000.sfa").exists()


def test_o2_concurrent_drainers_are_limited(tmp_path):
    """The others wait."""
    for number in range(5):
        _orphan(str(tmp_path), f"orphan{number}", 2)
    active: list[int] = []
    with QwpServer() as server:
        keys = f"sf_dir={tmp_path};sender_id=own;drain_orphans=on;max_background_drainers=2;"
        holder: list[Sender] = []

        def listen(_event: DrainerEvent) -> None:
            if holder:
                active.append(holder[0].active_background_drainers)

        with Sender.from_conf(f"ws::addr={server.address};{keys}", on_drainer=listen) as sender:
            holder.append(sender)
            while sender.total_background_drainers_succeeded < 5:
                threading.Event().wait(0.005)
    assert max(active, default=0) <= 2


def test_o5_a_slot_that_cannot_be_drained_is_marked(tmp_path):
    """Refused permanently, or damaged: marked while its lock is held, and counted."""
    _orphan(str(tmp_path), "refused", 2)
    _orphan(str(tmp_path), "damaged", 2)
    path = tmp_path / "damaged" / "sf-0000000000000000.sfa"
    path.write_bytes(b"rubbish" * 100)

    def answer(life: Any, sequence: int, _frame: bytes) -> bytes:
        return encode_refusal(Refusal(5, sequence, "never"))

    with QwpServer(answer) as server:
        keys = f"sf_dir={tmp_path};sender_id=own;drain_orphans=on;"
        with Sender.from_conf(f"ws::addr={server.address};{keys}", on_error=lambda _error: None) as sender:
            while sender.total_background_drainers_failed < 2:
                threading.Event().wait(0.005)
    assert "never" in (tmp_path / "refused" / ".failed").read_text()
    assert "magic" in (tmp_path / "damaged" / ".failed").read_text()
    assert path.read_bytes() == b"rubbish" * 100


# ---- observability


def test_v1_eleven_counters_start_at_zero():
    """All documented counters exist."""
    with QwpServer() as server, Sender.from_conf(f"ws::addr={server.address};") as sender:
        assert sender.last_terminal_error is None
        for name in (
            "total_reconnect_attempts", "total_reconnects_succeeded", "total_frames_replayed", "total_server_errors",
            "dropped_error_notifications", "total_error_notifications_delivered", "total_backpressure_stalls",
            "active_background_drainers", "total_background_drainers_succeeded", "total_background_drainers_failed",
        ):  # fmt: skip
            assert getattr(sender, name) == 0
