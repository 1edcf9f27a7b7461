"""A bug that would lose frames of a slot stops the slot before the step that would do harm."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quiver.errors import InvariantError
from quiver.observe import InMemoryObserver
from quiver.qwp.slots import recovery
from quiver.qwp.slots.recovery import Scanned
from quiver.qwp.slots.ring import RingSettings
from quiver.qwp.slots.slot import Slot, open_slot
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

DIRECTORY = "/sf/edge"
FRAME = b"QWP1" + b"." * 46


def opened(fs: CrashFileSystem, frames: int = 0) -> Slot:
    """A slot with *frames* frames, up to 17 of them in each segment."""
    ring = RingSettings(1024, 1 << 20, 0.0, "flush")
    slot = open_slot(fs, "/sf", "edge", ring, observer=InMemoryObserver(), clock=ManualClock())
    for _ in range(frames):
        slot.ring.append(FRAME)
    return slot


def segments(fs: CrashFileSystem) -> list[str]:
    return [name for name in fs.list_dir(DIRECTORY) if name.endswith(".sfa")]


def test_unconfirmed_frames_are_not_trimmed():
    fs = CrashFileSystem()
    slot = opened(fs, 40)
    slot.ring.acknowledge(15)
    before = segments(fs)
    with pytest.raises(InvariantError, match="only the oldest frames are trimmed, after they were confirmed"):
        slot.ring._trim(slot.ring._segments[:1])
    assert segments(fs) == before


def test_only_the_oldest_segments_are_trimmed():
    fs = CrashFileSystem()
    slot = opened(fs, 40)
    slot.ring.acknowledge(39)
    before = segments(fs)
    with pytest.raises(InvariantError, match="only the oldest frames are trimmed"):
        slot.ring._trim(slot.ring._segments[1:2])
    assert segments(fs) == before


def test_a_closed_slot_keeps_unconfirmed_frames():
    fs = CrashFileSystem()
    slot = opened(fs, 20)
    with pytest.raises(InvariantError, match="a closed slot is removed only if every frame is confirmed"):
        slot.ring._release(list(slot.ring._segments), remove_all=True)
    assert len(segments(fs)) == 2


def test_a_shortened_segment_keeps_its_newest_frames():
    fs = CrashFileSystem()
    slot = opened(fs, 40)
    before = fs.read_all(f"{DIRECTORY}/{segments(fs)[0]}", size_max=1 << 20)
    with pytest.raises(InvariantError, match="a shorter segment keeps its newest frames"):
        slot.ring._storage.shorten(slot.ring._segments[0], 17)
    assert fs.read_all(f"{DIRECTORY}/{segments(fs)[0]}", size_max=1 << 20) == before


def test_recovery_keeps_unconfirmed_segments(monkeypatch):
    fs = CrashFileSystem()
    opened(fs, 40)
    killed = fs.clone_after_kill()
    before = segments(killed)
    monkeypatch.setattr(recovery, "itertools", SimpleNamespace(pairwise=lambda _: ()))
    with pytest.raises(InvariantError, match="recovery removes only segments whose frames are confirmed"):
        opened(killed)
    assert segments(killed) == before


def test_recovery_keeps_no_segment_without_a_header():
    fs = CrashFileSystem()
    opened(fs, 1)
    with pytest.raises(InvariantError, match="recovery keeps only segments with a header"):
        recovery._open(fs, Scanned(f"{DIRECTORY}/{segments(fs)[0]}", 1024, None))
