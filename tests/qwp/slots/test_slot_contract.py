"""A slot fulfills the contract of all append logs."""

from __future__ import annotations

import pytest

from quiver.observe import InMemoryObserver
from quiver.primitives.disk.file_system import FileSystem
from quiver.qwp.slots.recovery import scan_slot
from quiver.qwp.slots.ring import RingSettings, SfDurability
from quiver.qwp.slots.slot import Slot, open_slot
from quiver.testing.clock import ManualClock
from quiver.testing.log_contract import AppendLogContract

pytestmark = pytest.mark.usefixtures("quiet")

DIRECTORY = "/sf/edge"


class SlotAsLog:
    """A slot whose frames are never confirmed."""

    def __init__(self, fs: FileSystem, settings: RingSettings) -> None:
        self._fs = fs
        self._clock = ManualClock()
        self._settings = settings
        self._slot: Slot = open_slot(fs, "/sf", "edge", settings, observer=InMemoryObserver(), clock=self._clock)

    def append(self, record: bytes, *, durable: bool) -> int:
        number = self._slot.ring.append(record)
        if durable and self._settings.durability != "append":
            self._slot.ring.sync()
        return number

    def sync(self) -> None:
        self._slot.ring.sync()

    def upkeep(self) -> None:
        self._clock.advance(1)
        self._slot.ring.maintain()

    def read(self) -> list[bytes]:
        ring = self._slot.ring
        return [ring.read(number) for number in range(ring.acked_fsn + 1, ring.published_fsn + 1)]

    def close(self) -> None:
        self._slot.close()


class TestSlotOnFlush(AppendLogContract):
    """Segments of two or three records; durable on request, with a flush."""

    seeds = (0, 2)
    durability: SfDurability = "flush"
    segment_bytes = 12_000

    def open_log(self, fs: FileSystem) -> SlotAsLog:
        return SlotAsLog(fs, RingSettings(self.segment_bytes, 1 << 20, 0.0, self.durability))

    def tail(self, fs: FileSystem) -> tuple[str, int]:
        newest = max(scan_slot(fs, DIRECTORY), key=lambda one: (one.next_fsn, one.count))
        assert newest.scan is not None
        return newest.path, newest.scan.tail


@pytest.mark.slow
class TestSlotWithEveryPowerLoss(TestSlotOnFlush):
    """With all outcomes of a power loss."""

    seeds = AppendLogContract.seeds


@pytest.mark.slow
class TestSlotOnAppend(TestSlotOnFlush):
    """Every append is synced."""

    durability: SfDurability = "append"


@pytest.mark.slow
class TestSlotInOneSegment(TestSlotOnFlush):
    """Nothing is rotated."""

    segment_bytes = 200_000
