"""Reports on a slot while its sender runs: they are consistent, without false problems."""

import pytest

from quiver.observe import InMemoryObserver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.qwp.rows import RowTable
from quiver.qwp.slots.inspection import frames_of_slot, inspect_slot, slots_below
from quiver.qwp.slots.ring import RingSettings
from quiver.qwp.slots.slot import find_orphans, open_slot
from quiver.qwp.wire.message import encode_message

SETTINGS = RingSettings(segment_bytes=4096, bytes_max=1 << 20, append_deadline_s=1.0)


class Meanwhile:
    """A file system on which an action runs just before a segment is opened for the *at*-th time."""

    def __init__(self, at, happens):
        self._left = at
        self._happens = happens

    def __getattr__(self, name):
        return getattr(REAL_FILES, name)

    def open_read(self, path):
        if path.endswith(".sfa"):
            self._left -= 1
            if self._left == 0:
                self._happens()
        return REAL_FILES.open_read(path)


def message(value):
    made = RowTable("t")
    made.append({}, {"v": value, "text": "x" * 1000}, 1000 + value, bytes_max=10_000)
    return encode_message([made.pack()])


@pytest.fixture
def slot(tmp_path):
    opened = open_slot(REAL_FILES, str(tmp_path), "edge", SETTINGS, observer=InMemoryObserver())
    yield opened
    opened.close()


@pytest.mark.parametrize("confirmed", [4, 5, 9, 11])
@pytest.mark.parametrize("at", range(1, 9))
def test_segments_confirmed_during_the_report_are_omitted(slot, tmp_path, at, confirmed):
    """Removed or shortened at any moment: the unconfirmed frames are reported and readable."""
    for number in range(12):
        slot.ring.append(message(number))
    assert len(slot.ring._segments) == 4

    def confirm():
        slot.ring.acknowledge(confirmed)
        slot.ring.maintain(force=True)

    assert inspect_slot(Meanwhile(at, confirm), str(tmp_path), "edge").problem is None


@pytest.mark.parametrize("confirmed", [4, 5, 9, 11])
@pytest.mark.parametrize("at", range(1, 9))
def test_messages_are_read_while_others_are_confirmed(slot, tmp_path, at, confirmed):
    """In order, once each, including all unconfirmed ones."""
    for number in range(12):
        slot.ring.append(message(number))

    def confirm():
        slot.ring.acknowledge(confirmed)
        slot.ring.maintain(force=True)

    frames = list(frames_of_slot(Meanwhile(at, confirm), str(tmp_path), "edge"))
    found = [frame.fsn for frame in frames]
    assert found == sorted(set(found))
    assert set(found) >= set(range(confirmed + 1, 12))
    assert [frame.problem for frame in frames] == [None] * len(frames)
    assert [frame.tables[0].to_arrow()["v"][0].as_py() for frame in frames] == found


def test_frames_appended_during_the_report_are_not_a_gap(slot, tmp_path):
    """The active segment is filled and the next one started between the reads of the two."""
    for _ in range(3):
        slot.ring.append(b"x" * 1012)
    slot.ring.maintain()
    assert len(list((tmp_path / "edge").glob("*.sfa"))) == 2

    def send():
        slot.ring.append(b"y" * 500)
        slot.ring.append(b"z" * 1012)

    report = inspect_slot(Meanwhile(2, send), str(tmp_path), "edge")
    assert report.problem is None
    assert report.next_fsn == 4


def test_a_write_in_progress_is_not_a_hole(slot, tmp_path):
    """A report that saw the next frame but not this one is repeated."""
    for number in range(3):
        slot.ring.append(message(number))
    (path,) = (tmp_path / "edge").glob("*.sfa")
    complete = path.read_bytes()
    middle = len(message(0)) + 200
    path.write_bytes(complete[:middle] + b"\0" * 600 + complete[middle + 600 :])
    assert "damaged at offset" in inspect_slot(REAL_FILES, str(tmp_path), "edge").problem
    report = inspect_slot(Meanwhile(2, lambda: path.write_bytes(complete)), str(tmp_path), "edge")
    assert report.problem is None
    assert report.next_fsn == 3


def test_slots_may_be_on_separate_disks(slot, tmp_path):
    """Only root may read its `lost+found`, which is not a slot."""

    class LostAndFound(Meanwhile):
        def list_dir(self, path):
            if path.endswith("lost+found"):
                raise PermissionError(13, "Permission denied", path)
            return REAL_FILES.list_dir(path)

    (tmp_path / "lost+found").mkdir()
    slot.ring.append(message(1))
    fs = LostAndFound(0, lambda: None)
    assert slots_below(fs, str(tmp_path)) == ["edge"]
    assert find_orphans(fs, str(tmp_path), "other") == ["edge"]
