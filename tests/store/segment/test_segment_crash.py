"""A segment is written completely or not at all: power loss, kill and full disk at every step."""

from __future__ import annotations

import errno

import pytest
from segment_samples import assert_holds, sample_bundles, sealed

from disk_files import PowerCut
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.format.names import parse_segment_name, segment_name
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.writer import write_segment
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

DIRECTORY = "/store/segments"
NAME = segment_name(5)
BUNDLES = sample_bundles(8)


def new_disk() -> CrashFileSystem:
    fs = CrashFileSystem()
    fs.make_dirs(DIRECTORY)
    return fs


def assert_whole(fs: FileSystem) -> None:
    assert_holds(SegmentReader.open(fs, f"{DIRECTORY}/{NAME}"), BUNDLES)
    assert fs.stat(f"{DIRECTORY}/{NAME}").mode == 0o440


def assert_absent_or_whole(fs: FileSystem) -> None:
    names = fs.list_dir(DIRECTORY)
    assert set(names) <= {NAME, NAME + ".tmp"}
    assert [parse_segment_name(name) for name in names if name != NAME] in ([], [None])
    if NAME in names:
        assert_whole(fs)


def steps_of_a_write() -> list[str]:
    fs = new_disk()
    steps: list[str] = []
    fs.on_step = lambda op, _path: steps.append(op)
    write_segment(fs, DIRECTORY, 5, sealed(BUNDLES), profile="spec")
    return steps


def test_a_segment_is_written_in_the_documented_steps() -> None:
    """A missing sync is detected here."""
    assert steps_of_a_write() == [
        "remove", "create", "pwrite", "pwrite", "set_mode", "sync", "rename", "sync_dir",
    ]  # fmt: skip


@pytest.mark.parametrize("at", range(9))
def test_a_crash_before_any_step_leaves_no_partial_segment(at: int) -> None:
    fs = new_disk()
    seen = 0

    def cut(_op: str, _path: str) -> None:
        nonlocal seen
        seen += 1
        if seen > at:
            raise PowerCut

    fs.on_step = cut
    segment = sealed(BUNDLES)
    try:
        write_segment(fs, DIRECTORY, 5, segment, profile="spec")
        finished = True
    except PowerCut:
        finished = False
    assert finished == (at == 8)
    fs.on_step = None
    for after in [fs.clone_after_kill(), *map(fs.clone_after_crash, range(20))]:
        assert_absent_or_whole(after)
        if finished:
            assert after.list_dir(DIRECTORY) == [NAME]
            assert_whole(after)
        write_segment(after, DIRECTORY, 5, segment, profile="spec")
        assert after.list_dir(DIRECTORY) == [NAME]
        assert_whole(after)


@pytest.mark.parametrize("op", ["create", "pwrite", "set_mode", "sync", "rename", "sync_dir"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_leaves_no_torn_segment_and_can_be_tried_again(op: str, number: int) -> None:
    disk = new_disk()
    for call in (1, 2) if op == "pwrite" else (1,):
        fs = FaultFileSystem(disk, {op: call}, error=number, short_write=10)
        segment = sealed(BUNDLES)
        with pytest.raises(OSError, match=r".+") as caught:
            write_segment(fs, DIRECTORY, 5, segment, profile="spec")
        assert caught.value.errno == number
        assert_absent_or_whole(disk)
        assert NAME + ".tmp" not in disk.list_dir(DIRECTORY)
        fs.heal()
        write_segment(fs, DIRECTORY, 5, segment, profile="spec")
        assert_whole(disk.clone_after_crash(0))


def test_a_failed_write_is_reported_even_if_the_cleanup_fails() -> None:
    fs = FaultFileSystem(new_disk(), {"sync": 1, "remove": 2}, error=errno.EIO)
    with pytest.raises(OSError, match=r".+") as caught:
        write_segment(fs, DIRECTORY, 5, sealed(BUNDLES), profile="spec")
    assert caught.value.errno == errno.EIO
