"""The oldest segment of a slot is shortened once most of it is confirmed, invisibly to readers of the slot."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from quiver.errors import StoreFailedError
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Frame
from quiver.qwp.format.names import is_segment_name, is_unfinished_name, segment_name, shorter_name
from quiver.qwp.format.segment import scan_segment
from quiver.qwp.slots.ring import RingSettings
from quiver.qwp.slots.slot import Slot, find_orphans, memory_slot, open_slot
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

DIRECTORY = "/sf/edge"
SEGMENT_BYTES = 1024
PER_SEGMENT = 17  # frames of 58 bytes


def _open(fs: FileSystem, **more: Any) -> Slot:
    ring = RingSettings(SEGMENT_BYTES, 1 << 20, 0.0, "flush")
    more.setdefault("clock", ManualClock())
    return open_slot(fs, "/sf", "edge", ring, observer=more.pop("observer", InMemoryObserver()), **more)


def _payload(number: int) -> bytes:
    return b"QWP1" + b"%04d" % number * 11 + b"\0\1"


def _filled(slot: Slot, frames: int = 3 * PER_SEGMENT) -> Slot:
    for number in range(frames):
        slot.ring.append(_payload(number))
    slot.ring.sync()
    return slot


def _as_the_document_says(fs: FileSystem) -> dict[int, bytes]:
    """Read the slot as any client may: each segment from its start, in the order of bases, without a watermark."""
    frames: dict[int, bytes] = {}
    segments = []
    for name in fs.list_dir(DIRECTORY):
        if is_segment_name(name):
            data = fs.read_all(f"{DIRECTORY}/{name}", size_max=1 << 20)
            answer = scan_segment(memoryview(data))
            assert isinstance(answer, Frame)
            assert not answer.value.torn
            segments.append((answer.value.header.base, [data[start:end] for start, end in answer.value.payloads]))
    for base, payloads in sorted(one for one in segments if one[1]):
        assert not frames or base == max(frames) + 1, "a gap"
        frames.update(enumerate(payloads, base))
    return frames


def test_confirmed_frames_are_removed_from_the_disk():
    """The file has the other frames, with its old name and no extra bytes; recovery finds it."""
    fs = CrashFileSystem()
    slot = _filled(_open(fs))
    before = slot.ring.allocated_bytes
    slot.ring.acknowledge(12)
    slot.ring.maintain(force=True, provision=False)
    path = f"{DIRECTORY}/{segment_name(0)}"
    kept = PER_SEGMENT - 13
    assert fs.stat(path).size_bytes == 24 + 58 * kept
    assert slot.ring.allocated_bytes == before - SEGMENT_BYTES + 24 + 58 * kept
    assert [slot.ring.read(fsn) for fsn in range(13, 51)] == [_payload(fsn) for fsn in range(13, 51)]
    killed = fs.clone_after_kill()
    assert _as_the_document_says(killed) == {fsn: _payload(fsn) for fsn in range(13, 51)}
    again = _open(killed)
    assert (again.ring.acked_fsn, again.ring.published_fsn) == (12, 50)
    assert again.ring.append(b"QWP1") == 51
    slot.ring.acknowledge(PER_SEGMENT - 1)
    slot.ring.maintain(force=True, provision=False)
    assert not fs.exists(path)


def test_a_segment_is_not_shortened_immediately():
    """A server that confirms steadily causes no copies; one that stops in the middle causes one, after a second."""
    fs = CrashFileSystem()
    clock = ManualClock()
    observer = InMemoryObserver()
    slot = _filled(_open(fs, clock=clock, observer=observer))
    path = f"{DIRECTORY}/{segment_name(0)}"
    clock.advance(1.0)
    slot.ring.acknowledge(6)
    slot.ring.maintain()
    clock.advance(5.0)
    slot.ring.maintain()
    assert fs.stat(path).size_bytes == SEGMENT_BYTES, "less than half is confirmed"
    slot.ring.acknowledge(9)
    slot.ring.maintain()
    clock.advance(0.9)
    slot.ring.maintain()
    assert fs.stat(path).size_bytes == SEGMENT_BYTES
    clock.advance(0.2)
    slot.ring.maintain()
    assert fs.stat(path).size_bytes == 24 + 58 * (PER_SEGMENT - 10)
    clock.advance(5.0)
    slot.ring.maintain()
    assert observer.total("quiver.qwp.segments_shortened_total") == 1


def test_the_newest_segment_is_not_shortened():
    """It is being appended to."""
    fs = CrashFileSystem()
    slot = _filled(_open(fs), 10)
    slot.ring.acknowledge(8)
    slot.ring.maintain(force=True)
    assert fs.stat(f"{DIRECTORY}/{segment_name(0)}").size_bytes == SEGMENT_BYTES


def test_a_crash_at_any_step_leaves_the_old_segment_or_the_new_one():
    """For any client: no gap, no torn frame, and every unconfirmed frame."""
    fs = CrashFileSystem()
    slot = _filled(_open(fs))
    slot.ring.acknowledge(12)
    steps: list[str] = []
    disks: list[CrashFileSystem] = []

    def before(operation: str, path: str) -> None:
        steps.append(f"{operation} {path.rpartition('/')[2]}")
        disks.extend([*(fs.clone_after_crash(seed) for seed in range(4)), fs.clone_after_kill()])

    fs.on_step = before
    slot.ring.maintain(force=True, provision=False)
    fs.on_step = None
    disks.append(fs.clone_after_crash(0))
    assert [one for one in steps if "rename" in one] == [f"rename {segment_name(0)}"]
    firsts = set()
    for disk in disks:
        frames = _as_the_document_says(disk)
        firsts.add(min(frames))
        assert frames == {fsn: _payload(fsn) for fsn in range(min(frames), 51)}
        again = _open(disk)
        assert [again.ring.read(fsn) for fsn in range(13, 51)] == [_payload(fsn) for fsn in range(13, 51)]
        assert not any(is_unfinished_name(name) for name in disk.list_dir(DIRECTORY))
        again.close()
    assert firsts == {0, 13}


def test_an_unfinished_copy_is_not_a_segment():
    """It is removed when the slot is opened, and does not make a directory a slot."""
    fs = CrashFileSystem()
    fs.make_dirs(DIRECTORY)
    fs.create(f"{DIRECTORY}/{shorter_name(segment_name(3))}").close()
    assert find_orphans(fs, "/sf", "other") == []
    _open(fs).close()
    assert fs.list_dir(DIRECTORY) == [".lock", ".lock.pid"]


@pytest.mark.parametrize("operation", ["create", "reserve", "pwrite", "sync"])
def test_without_space_for_the_copy_the_segment_is_unchanged(operation):
    """No error, no leftover files, and the next frame is accepted."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, error=errno.ENOSPC)
    slot = _filled(_open(fs))
    slot.ring.acknowledge(12)
    # The watermark is synced first.
    fs.fail_on(operation, 2 if operation == "sync" else 1)
    slot.ring.maintain(force=True, provision=False)
    fs.heal()
    assert disk.stat(f"{DIRECTORY}/{segment_name(0)}").size_bytes == SEGMENT_BYTES
    assert not any(is_unfinished_name(name) for name in disk.list_dir(DIRECTORY))
    assert slot.ring.append(_payload(51)) == 51
    assert slot.ring.read(13) == _payload(13)


def test_a_failing_disk_halts_the_slot_and_loses_nothing():
    """As everywhere: nothing is built on data after a failed sync."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk)
    slot = _filled(_open(fs))
    slot.ring.acknowledge(12)
    fs.fail_on("rename")
    with pytest.raises(StoreFailedError, match="shorten"):
        slot.ring.maintain(force=True, provision=False)
    with pytest.raises(StoreFailedError):
        slot.ring.append(b"QWP1")
    assert _as_the_document_says(disk) == {fsn: _payload(fsn) for fsn in range(51)}


def test_confirmed_frames_are_removed_from_memory():
    """The same without a disk."""
    ring = memory_slot(RingSettings(SEGMENT_BYTES, 1 << 20, 0.0), clock=ManualClock(), observer=InMemoryObserver()).ring
    for number in range(3 * PER_SEGMENT):
        ring.append(_payload(number))
    ring.acknowledge(12)
    ring.maintain(force=True, provision=False)
    assert ring.allocated_bytes == 2 * SEGMENT_BYTES + 24 + 58 * (PER_SEGMENT - 13)
    assert [bytes(ring.read(fsn)) for fsn in range(13, 51)] == [_payload(fsn) for fsn in range(13, 51)]
    ring.acknowledge(50)
    ring.maintain(force=True)
    assert [ring.append(_payload(number)) for number in range(51, 90)] == list(range(51, 90))
    assert [bytes(ring.read(fsn)) for fsn in range(51, 90)] == [_payload(fsn) for fsn in range(51, 90)]


def test_a_rename_without_space_leaves_the_segment_readable():
    """Its file was closed before, for systems that cannot replace an open file."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, error=errno.ENOSPC)
    slot = _filled(_open(fs))
    slot.ring.acknowledge(12)
    fs.fail_on("rename")
    slot.ring.maintain(force=True, provision=False)
    fs.heal()
    assert [slot.ring.read(fsn) for fsn in range(13, 51)] == [_payload(fsn) for fsn in range(13, 51)]
    slot.ring.maintain(force=True, provision=False)
    assert disk.stat(f"{DIRECTORY}/{segment_name(0)}").size_bytes == 24 + 58 * (PER_SEGMENT - 13)
    assert slot.ring.read(13) == _payload(13)
