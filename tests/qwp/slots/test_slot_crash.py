"""A slot with confirmations and trims is crashed at every step and compared with a simple model."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from vector_values import VECTORS

from lanes import model_tests
from quiver.errors import (
    CapacityError,
    CorruptionError,
    DirectoryInUseError,
    StoreClosedError,
    StoreFailedError,
    UnsupportedFormatError,
    UsageError,
)
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.qwp.format.dead_letters import DeadLetterRecord
from quiver.qwp.format.newer import NEWER_RECORD
from quiver.qwp.format.segment import SegmentHeader, encode_frame_head, encode_segment_header
from quiver.qwp.format.watermark import encode_watermark
from quiver.qwp.rows import RowTable
from quiver.qwp.slots.dead_letters import read_dead_letters
from quiver.qwp.slots.ring import RingSettings, SfDurability
from quiver.qwp.slots.slot import Slot, find_orphans, mark_failed, memory_slot, open_slot
from quiver.qwp.wire.message import encode_message
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

SF = "/sf"
DIRECTORY = "/sf/edge"


def _open(
    fs: FileSystem,
    durability: SfDurability = "flush",
    *,
    segment_bytes: int = 512,
    bytes_max: int = 1 << 20,
    **more: Any,
) -> Slot:
    ring = RingSettings(segment_bytes, bytes_max, more.pop("deadline_s", 0.0), durability)
    return open_slot(fs, SF, "edge", ring, observer=InMemoryObserver(), clock=more.pop("clock", ManualClock()), **more)


def _payload(number: int) -> bytes:
    return b"QWP1" + b"%04d" % number * (10 + number % 7)


def _frames(slot: Slot) -> dict[int, bytes]:
    ring = slot.ring
    return {fsn: ring.read(fsn) for fsn in range(ring.acked_fsn + 1, ring.published_fsn + 1)}


def _write(fs: FileSystem, name: str, data: bytes) -> None:
    fs.make_dirs(DIRECTORY)
    file = fs.create_or_truncate(f"{DIRECTORY}/{name}")
    file.pwrite(data, 0)
    file.sync()
    file.close()
    fs.sync_dir(DIRECTORY)


def _segment(base: int, count: int, *, flags: int = 0, size: int = 2048) -> bytes:
    data = encode_segment_header(SegmentHeader(base, 1, flags))
    for number in range(base, base + count):
        data += encode_frame_head(_payload(number)) + _payload(number)
    return data.ljust(size, b"\0")


def _life(fs: CrashFileSystem, promises: dict[str, int]) -> None:
    """Append, sync, confirm, trim, close and reopen; record each guarantee with its step."""
    number = 0
    for _ in range(3):
        slot = _open(fs)
        ring = slot.ring
        promises["confirmed"] = max(promises["confirmed"], ring.acked_fsn)
        for _ in range(12):
            assert ring.append(_payload(number)) == number
            number += 1
            promises["appended"] = number
            if number % 3 == 0:
                ring.sync()
                promises["synced"] = number
            if number % 5 == 0:
                promises["confirming"] = number - 4
                ring.acknowledge(number - 4)
                ring.maintain(force=True)
        promises["closing"] = 1
        slot.close()
        promises["closing"] = 0
        promises["synced"] = number


def test_no_step_loses_synced_unconfirmed_frames():
    """
    After a power loss or a kill at any step the slot opens; frames are intact, in order and without a gap; all
    guaranteed and unconfirmed frames are among them, and new numbers follow them.
    """
    fs = CrashFileSystem()
    promises = {"appended": 0, "synced": 0, "confirming": -1, "confirmed": -1, "closing": 0}
    moments: list[tuple[dict[str, int], list[CrashFileSystem], CrashFileSystem]] = []

    def before(_operation: str, _path: str) -> None:
        moments.append((dict(promises), [fs.clone_after_crash(seed) for seed in (0, 1, 2, 3)], fs.clone_after_kill()))

    fs.on_step = before
    _life(fs, promises)
    fs.on_step = None
    assert len(moments) > 100
    for then, crashed, killed in moments:
        for disk, least in [*((one, then["synced"]) for one in crashed), (killed, then["appended"])]:
            slot = _open(disk)
            frames = _frames(slot)
            if frames:
                first = min(frames)
                assert first <= max(then["confirming"], -1) + 1 or first <= least
                assert list(frames) == list(range(first, first + len(frames)))
                assert all(data == _payload(fsn) for fsn, data in frames.items())
            for fsn in range(then["confirming"] + 1, least):
                assert fsn in frames, (then, fsn)
            assert slot.ring.acked_fsn <= max(then["confirming"], slot.ring.published_fsn)
            number = slot.ring.append(_payload(999))
            assert number == slot.ring.published_fsn
            slot.close()


def test_a_drained_slot_leaves_only_its_locks():
    """After a close with everything confirmed nothing is replayed, and numbers start again."""
    fs = CrashFileSystem()
    slot = _open(fs)
    for number in range(9):
        slot.ring.append(_payload(number))
    slot.ring.acknowledge(8)
    slot.close()
    slot.close()
    assert fs.list_dir(DIRECTORY) == [".lock", ".lock.pid"]
    again = _open(fs)
    assert (again.ring.acked_fsn, again.ring.published_fsn) == (-1, -1)
    again.close()


def test_an_old_watermark_is_never_used_later():
    """
    A crash between the removal of segments and that of the watermark, and then new frames: once they reach its number,
    it would hide them all.
    """
    fs = CrashFileSystem()
    _write(fs, ".ack-watermark", encode_watermark(5))
    slot = _open(fs)
    for number in range(9):
        slot.ring.append(_payload(number))
    slot.ring.sync()
    again = _open(fs.clone_after_kill())
    assert list(_frames(again)) == list(range(9))


def test_a_restored_file_is_not_a_gap():
    """A power loss keeps the first of two trimmed segments: recovery knows that it was confirmed."""
    fs = CrashFileSystem()
    _write(fs, "sf-0000000000000000.sfa", _segment(0, 3))
    _write(fs, "sf-0000000000000002.sfa", _segment(6, 3))
    _write(fs, ".ack-watermark", encode_watermark(6))
    slot = _open(fs)
    assert list(_frames(slot)) == [7, 8]
    slot.close()


def test_a_gap_is_refused_and_nothing_is_changed():
    """Unconfirmed frames are missing: an operator must intervene."""
    fs = CrashFileSystem()
    _write(fs, "sf-0000000000000000.sfa", _segment(0, 3))
    _write(fs, "sf-0000000000000001.sfa", _segment(5, 3))
    before = {name: fs.read_all(f"{DIRECTORY}/{name}", size_max=1 << 20) for name in fs.list_dir(DIRECTORY)}
    with pytest.raises(CorruptionError, match="frames 3 to 4 are missing"):
        _open(fs)
    after = {name: fs.read_all(f"{DIRECTORY}/{name}", size_max=1 << 20) for name in before}
    assert after == before
    with pytest.raises(CorruptionError, match="missing"):
        _open(fs, is_adopted=True)
    assert b"missing" in fs.read_all(f"{DIRECTORY}/.failed", size_max=1000)


@pytest.mark.parametrize(("at", "byte"), [(4, 2), (5, 2), (5, 0x80)])
def test_files_of_a_newer_version_are_not_changed(at, byte):
    """Unknown versions and flags are refused before any change, and are not marked as failed."""
    fs = CrashFileSystem()
    data = bytearray(_segment(0, 3))
    data[at] = byte
    _write(fs, "sf-0000000000000000.sfa", bytes(data))
    _write(fs, "sf-0000000000000001.sfa", _segment(3, 1))
    with pytest.raises(UnsupportedFormatError, match="unsupported"):
        _open(fs, is_adopted=True)
    assert fs.read_all(f"{DIRECTORY}/sf-0000000000000000.sfa", size_max=1 << 20) == bytes(data)
    assert ".failed" not in fs.list_dir(DIRECTORY)


def test_spares_are_not_a_gap_and_files_of_any_size_are_read():
    """Empty segments have a provisional base; files of other clients have other sizes and names."""
    fs = CrashFileSystem()
    _write(fs, "sf-initial.sfa", _segment(0, 2, size=0))
    _write(fs, "sf-0000000000000004.sfa", _segment(2, 2, size=700))
    _write(fs, "sf-0000000000000005.sfa", _segment(0, 0))
    _write(fs, "sf-0000000000000006.sfa", bytes(512))
    _write(fs, "sf-0000000000000007.sfa", b"")
    slot = _open(fs)
    assert list(_frames(slot)) == [0, 1, 2, 3]
    for number in range(4, 20):
        assert slot.ring.append(_payload(number)) == number
    assert "sf-0000000000000008.sfa" in fs.list_dir(DIRECTORY)
    assert list(_frames(slot)) == list(range(20))


@pytest.mark.parametrize(("hole", "left"), [((60, 130), [0, 3, 4, 5]), ((2, 3), [1, 2, 3, 4, 5])])
def test_frames_after_a_hole_are_sent(hole, left):
    """Pages lost in the newest segment: the other frames get consecutive numbers, and a copy keeps the original."""
    fs = CrashFileSystem()
    data = bytearray(_segment(0, 6))
    data[24 + hole[0] : 24 + hole[1]] = bytes(hole[1] - hole[0])
    _write(fs, "sf-0000000000000000.sfa", bytes(data))
    clones: list[CrashFileSystem] = []
    fs.on_step = lambda _op, _path: clones.extend(fs.clone_after_crash(seed) for seed in (0, 1, 2))
    slot = _open(fs)
    fs.on_step = None
    for disk, one in [(fs, slot), *((clone, _open(clone)) for clone in clones)]:
        assert list(_frames(one).values()) == [_payload(number) for number in left]
        copies = [name for name in disk.list_dir(DIRECTORY) if name.endswith(".damaged")]
        assert [disk.read_all(f"{DIRECTORY}/{name}", size_max=1 << 20) for name in copies] == [bytes(data)]
    assert slot.ring.append(_payload(6)) == len(left)
    slot.close()
    again = _open(fs)
    assert list(_frames(again).values()) == [_payload(number) for number in [*left, 6]]
    again.close()


def test_frames_after_a_hole_that_need_other_symbols_are_only_copied():
    """A newer client's frame may refer to symbols of the lost frame."""
    fs = CrashFileSystem()
    frames = _newer_slot(fs, side_file=True)
    path = f"{DIRECTORY}/sf-0000000000000003.sfa"
    data = bytearray(fs.read_all(path, size_max=1 << 20))
    data[24 + 8 + len(frames[0]) + 2] ^= 0xFF  # in the second frame
    _write(fs, "sf-0000000000000003.sfa", bytes(data))
    slot = _open(fs)
    assert (slot.ring.published_fsn, slot.ring.acked_fsn) == (0, 0)
    assert any(name.endswith(".damaged") for name in fs.list_dir(DIRECTORY))


def test_a_segment_without_its_header_is_quarantined():
    """Only a power loss with durability `memory` causes this; a gap after it is still refused."""
    fs = CrashFileSystem()
    _write(fs, "sf-0000000000000000.sfa", _segment(0, 3))
    headless = bytes(24) + _segment(3, 3)[24:]
    _write(fs, "sf-0000000000000001.sfa", headless)
    slot = _open(fs)
    assert list(_frames(slot)) == [0, 1, 2]
    copies = [name for name in fs.list_dir(DIRECTORY) if name.endswith(".damaged")]
    assert [fs.read_all(f"{DIRECTORY}/{name}", size_max=1 << 20) for name in copies] == [headless]
    slot.close()
    _write(fs, "sf-0000000000000001.sfa", headless)
    _write(fs, "sf-0000000000000002.sfa", _segment(6, 1))
    with pytest.raises(CorruptionError, match="missing"):
        _open(fs)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5])
def test_without_syncs_a_power_loss_leaves_a_prefix_or_is_refused(seed):
    """Durability `memory`: a kill loses nothing; after a power loss the remaining frames are intact and in order."""
    fs = CrashFileSystem()
    slot = _open(fs, "memory")
    clones: list[tuple[int, CrashFileSystem, CrashFileSystem]] = []
    for number in range(20):
        slot.ring.append(_payload(number))
        clones.append((number + 1, fs.clone_after_kill(), fs.clone_after_crash(seed)))
    for count, killed, crashed in clones:
        assert list(_frames(_open(killed))) == list(range(count))
        try:
            frames = _frames(_open(crashed))
        except CorruptionError as error:
            assert "missing" in str(error)
            continue
        assert all(data == _payload(fsn) for fsn, data in frames.items())
        assert list(frames) == list(range(min(frames, default=0), max(frames, default=-1) + 1))


def test_a_file_that_is_not_a_segment_is_refused():
    """A foreign file with a segment's name is not skipped: it may contain the only frames."""
    fs = CrashFileSystem()
    _write(fs, "sf-0000000000000000.sfa", b"rubbish, and more of it than a header")
    with pytest.raises(CorruptionError, match="magic"):
        _open(fs)
    _write(fs, "sf-0000000000000000.sfa", _segment(0, 1)[:20])
    with pytest.raises(CorruptionError, match="truncated inside its header"):
        _open(fs)


def test_two_owners_are_refused_with_the_first_ones_pid():
    """The second open names the process that holds the slot, or reports it as unknown."""
    fs = CrashFileSystem()
    slot = _open(fs)
    with pytest.raises(DirectoryInUseError, match=r"process \d+"):
        _open(fs)
    fs.remove(f"{DIRECTORY}/.lock.pid")
    with pytest.raises(DirectoryInUseError, match="unknown"):
        _open(fs)
    slot.close()
    _open(fs).close()


def test_the_cap_counts_complete_segments_and_trimming_frees_space():
    """A confirmation wakes a waiting producer; one that times out gets the reason."""
    fs = CrashFileSystem()
    clock = ManualClock()
    slot = _open(fs, segment_bytes=512, bytes_max=1536, clock=clock, deadline_s=5.0)
    ring = slot.ring
    ring.why_full = lambda: "for a reason"
    with pytest.raises(CapacityError, match="1536 of 1536 bytes .* for a reason"):
        for number in range(100):
            ring.append(_payload(number))
    kept = ring.published_fsn
    assert ring.allocated_bytes == 1536
    assert ring.stalls == 1
    ring.acknowledge(kept)
    ring.maintain(force=True, provision=False)
    assert ring.append(_payload(kept + 1)) == kept + 1
    assert ring.allocated_bytes == 1024
    assert fs.list_dir(DIRECTORY)[-2:] == [f"sf-{number:016x}.sfa" for number in (2, 3)]


def test_a_frame_that_never_fits_is_refused_up_front():
    """No segment is created for it."""
    slot = memory_slot(RingSettings(512, 1024, 0.0), clock=ManualClock(), observer=InMemoryObserver())
    with pytest.raises(UsageError, match="space for 480"):
        slot.ring.append(bytes(481))
    with pytest.raises(UsageError):
        slot.ring.append(b"")
    assert slot.ring.append(bytes(480)) == 0
    slot.close()
    with pytest.raises(StoreClosedError):
        slot.ring.append(b"x")


def test_a_slot_in_memory_works_like_one_on_disk():
    """Append, read, confirm, trim and the limit, without a disk."""
    slot = memory_slot(RingSettings(512, 1024, 0.0), clock=ManualClock(), observer=InMemoryObserver())
    ring = slot.ring
    for number in range(200):
        assert ring.append(_payload(number)) == number
        assert ring.read(number) == _payload(number)
        assert ring.acknowledge(number)
        ring.maintain(force=True)
    assert not ring.acknowledge(3)
    assert ring.allocated_bytes <= 1024
    slot.keep_dead_letter(DeadLetterRecord(1, 1, 1, "", b""))


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync", "sync_dir", "remove", "rename", "reserve"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_disk_error_never_loses_synced_frames(operation, error):
    """Each call fails in turn: synced frames survive, and the slot either reports the error or continues."""
    nth = 0
    while True:
        nth += 1
        disk = CrashFileSystem()
        fs = FaultFileSystem(disk, {operation: nth}, error=error)
        synced = 0
        confirmed = -1
        try:
            slot = _open(fs)
            for number in range(14):
                slot.ring.append(_payload(number))
                if number % 2:
                    slot.ring.sync()
                    synced = number + 1
                if number == 7:
                    confirmed = 4
                    slot.ring.acknowledge(4)
                slot.ring.maintain(force=True)
            slot.close()
        except (OSError, StoreFailedError, CapacityError):
            pass
        for seed in (0, 1, 2):
            again = _open(disk.clone_after_crash(seed))
            frames = _frames(again)
            assert all(fsn in frames for fsn in range(confirmed + 1, synced)), (operation, nth, seed)
            assert all(data == _payload(fsn) for fsn, data in frames.items())
        if fs.calls[operation] < nth:
            return


def test_dead_letters_are_appended():
    """Also after a truncated one; the list has all stored letters."""
    fs = CrashFileSystem()
    slot = _open(fs)
    dead_letters = [DeadLetterRecord(number, number, 3, f"reason {number}", _payload(number)) for number in range(3)]
    for letter in dead_letters[:2]:
        slot.keep_dead_letter(letter)
    path = f"{DIRECTORY}/.dead-letters"
    file = fs.open_write(path)
    file.pwrite(b"torn", file.size())
    file.close()
    slot.keep_dead_letter(dead_letters[2])
    assert read_dead_letters(fs.clone_after_crash(0), DIRECTORY) == dead_letters
    assert read_dead_letters(fs, "/sf") == []


def test_orphans_are_other_slots_with_segments_and_without_a_mark():
    """The own slot, empty ones, marked ones and files are not orphans."""
    fs = CrashFileSystem()
    for name in ("a", "b", "c", "edge"):
        ring = RingSettings(512, 1024, 0.0)
        slot = open_slot(fs, SF, name, ring, observer=InMemoryObserver(), clock=ManualClock())
        if name != "c":
            slot.ring.append(b"QWP1")
        slot.close()
    mark_failed(fs, "/sf/b", "broken")
    fs.create_or_truncate("/sf/file").close()
    assert find_orphans(fs, SF, "edge") == ["a"]


# ---- newer slots


def _delta_frame(start: int, symbols: list[str], used: int) -> bytes:
    """A frame of the newer clients: it contains new symbols and refers to earlier ones."""
    table = RowTable("t")
    table.append({"s": "x"}, {}, None, bytes_max=1000)
    body = encode_message([table.pack()])[12 + 4 :]
    payload = bytes([start, len(symbols)]) + b"".join(bytes([len(one)]) + one.encode() for one in symbols)
    payload += body[:-1] + bytes([used])
    return b"QWP1\1\x08\1\0" + len(payload).to_bytes(4, "little") + payload


def _newer_slot(fs: FileSystem, *, side_file: bool) -> list[bytes]:
    frames = [_delta_frame(0, ["a"], 0), _delta_frame(1, ["b"], 0), _delta_frame(2, [], 1)]
    data = encode_segment_header(SegmentHeader(0, 1, 1))
    data += b"".join(encode_frame_head(frame) + frame for frame in frames)
    _write(fs, "sf-0000000000000003.sfa", data.ljust(1024, b"\0"))
    from quiver.primitives.checksum import crc32c

    def record(magic: bytes, first: int) -> bytes:
        fields = NEWER_RECORD.pack(magic, 1, 5, first, 0, 0)[:60]
        return (fields + crc32c(fields).to_bytes(4, "little")).ljust(8192, b"\0")

    _write(fs, "sf-manifest.bin", record(b"SFM1", 0))
    _write(fs, ".ack-watermark", record(b"AKW1", 0))
    if side_file:
        entries = b"".join(chunk + crc32c(chunk).to_bytes(4, "little") for chunk in (b"\1\2\1a", b"\1\2\1b"))
        _write(fs, ".symbol-dict", b"SYD1\1\0\0\0" + entries)
    return frames


@pytest.mark.parametrize("side_file", [True, False])
def test_a_newer_slot_is_imported(side_file):
    """Its watermark counts, its symbols are known, with or without the side file, and its manifest is removed."""
    fs = CrashFileSystem()
    frames = _newer_slot(fs, side_file=side_file)
    slot = _open(fs)
    assert list(_frames(slot).values()) == frames[1:]
    assert list(slot.symbols) == ["a", "b"]
    slot.ring.append(_payload(3))
    again = _open(fs.clone_after_kill())
    assert "sf-manifest.bin" not in fs.list_dir(DIRECTORY)
    assert list(again.symbols) == ["a", "b"]
    assert list(_frames(again)) == [1, 2, 3]
    again.ring.acknowledge(3)
    again.close()


def test_the_import_survives_a_crash_at_any_step():
    """No frame is lost, and no confirmed frame is restored, except the one in doubt."""
    fs = CrashFileSystem()
    frames = _newer_slot(fs, side_file=True)
    clones: list[CrashFileSystem] = []
    fs.on_step = lambda _op, _path: clones.extend(fs.clone_after_crash(seed) for seed in (0, 1, 2))
    _open(fs)
    fs.on_step = None
    assert clones
    for clone in clones:
        found = _frames(_open(clone))
        assert list(found.values())[-2:] == frames[1:]


def test_a_frame_without_its_symbols_is_refused():
    """Without the side file and the frame with these symbols, nothing can be sent."""
    fs = CrashFileSystem()
    frame = _delta_frame(2, [], 1)
    data = encode_segment_header(SegmentHeader(4, 1)) + encode_frame_head(frame) + frame
    _write(fs, "sf-0000000000000003.sfa", data.ljust(1024, b"\0"))
    with pytest.raises(CorruptionError, match="symbol 1"):
        _open(fs)


def test_the_slot_of_the_official_client_is_recovered(tmp_path):
    """Frames 0 to 12 of the real slot, byte for byte; the next one is 13."""
    directory = tmp_path / "edge"
    directory.mkdir()
    for path in (VECTORS / "slot-5.0.0-dense").iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    ring = RingSettings(4096, 1 << 20, 0.0)
    slot = open_slot(REAL_FILES, str(tmp_path), "edge", ring, observer=InMemoryObserver())
    assert len(_frames(slot)) == 13
    assert slot.ring.append(b"QWP1") == 13
    slot.ring.acknowledge(13)
    slot.close()
    assert sorted(path.name for path in directory.iterdir()) == [".lock", ".lock.pid"]


class SlotMachine(RuleBasedStateMachine):
    """Compared with a list of frames and two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.fs = CrashFileSystem()
        self.frames: list[bytes] = []
        self.synced = 0
        self.acked = -1
        self.slot = _open(self.fs)

    @rule(size=st.integers(1, 450), times=st.integers(1, 4))
    def append(self, size: int, times: int) -> None:
        for _ in range(times):
            data = (b"QWP1" + len(self.frames).to_bytes(4, "little") + bytes(size))[:480]
            assert self.slot.ring.append(data) == len(self.frames)
            self.frames.append(data)

    @rule()
    def sync(self) -> None:
        self.slot.ring.sync()
        self.synced = len(self.frames)

    @rule(back=st.integers(0, 6))
    def confirm(self, back: int) -> None:
        self.slot.ring.acknowledge(len(self.frames) - 1 - back)
        self.acked = max(self.acked, len(self.frames) - 1 - back)

    @rule()
    def maintain(self) -> None:
        self.slot.ring.maintain(force=True)

    @precondition(lambda self: self.acked < len(self.frames) - 1)
    @rule()
    def reopen(self) -> None:
        self.slot.close()
        self.synced = len(self.frames)
        self.slot = _open(self.fs)

    @precondition(lambda self: self.acked < len(self.frames) - 1)
    @rule(seed=st.integers(0, 9), kill=st.booleans())
    def crash(self, seed: int, kill: bool) -> None:
        self.fs = self.fs.clone_after_kill() if kill else self.fs.clone_after_crash(seed)
        self.slot = _open(self.fs)
        ring = self.slot.ring
        least = len(self.frames) if kill else self.synced
        # Confirmations may be lost, but not synced and unconfirmed frames.
        assert least - 1 <= max(ring.published_fsn, self.acked)
        if ring.acked_fsn > self.acked:
            # No frame is left, and none was required; a spare still shows which numbers were used.
            assert ring.is_drained
            assert least <= self.acked + 1
            self.__init__()
            return
        if ring.published_fsn < 0 or ring.published_fsn + 1 < self.acked:
            self.__init__()
            return
        del self.frames[ring.published_fsn + 1 :]
        self.acked = ring.acked_fsn
        self.synced = len(self.frames)

    @invariant()
    def holds_what_is_not_confirmed(self) -> None:
        ring = self.slot.ring
        assert ring.published_fsn == len(self.frames) - 1
        assert ring.acked_fsn == self.acked
        for fsn in range(max(0, self.acked + 1), len(self.frames)):
            assert ring.read(fsn) == self.frames[fsn]


TestSlotMachine, TestSlotMachineForLong = model_tests(SlotMachine, examples=20, steps=30)
