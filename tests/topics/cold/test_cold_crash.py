"""
A crash at any step of uploading, finalizing, publishing, checkpointing, deleting and sealing loses and repeats no
message.
"""

from __future__ import annotations

import pytest
from cold_rig import TOPIC, Moment, Rig, append, check_tidy, expected, moments, read, settings

from lanes import every, with_stride
from quiver.objects.directory import DirectoryObjects
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.settings import ObjectRetention

ROUNDS = 3
EACH = 7


def upload_and_delete(rig):
    def work(log, promise):
        for round_ in range(1, ROUNDS + 1):
            append(log, EACH)
            log.flush()
            promise(round_ * EACH)
            rig.store.maintain()

    return work


def seal(rig):
    def work(log, promise):
        append(log, EACH)
        log.flush()
        promise(EACH)
        rig.store.unload(TOPIC)
        promise(EACH)

    return work


def check(moment: Moment, rig: Rig, disk) -> None:
    after = Rig(disk=disk, memory=moment.memory.clone(), facts=moment.facts.clone(), chosen=rig.chosen, clock=rig.clock)
    with after.opened() as log:
        count = log._engine.wal.next_offset
        assert count >= moment.promised
        assert read(log) == expected(count)
        append(log, 3)
        log.flush()
        after.store.maintain()
        after.store.maintain()
        assert read(log) == expected(count + 3)
        check_tidy(after)
        assert after.tier.catalog(TOPIC).next_offset == count + 3
        assert "pending" not in " ".join(after.keys())


@with_stride(3)
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("workload", [upload_and_delete, seal], ids=["upload, delete", "seal"])
def test_a_crash_at_any_step_loses_no_message(workload, compression, stride):
    """The reader returns all appended messages; the next cycle removes leftovers and continues."""
    rig = Rig(chosen=settings(compression=compression))
    found = moments(rig, workload(rig))
    steps = " ".join(moment.label for moment in found)

    for step in ("put_parts", "copy", "get_range", "commit", "delete", "uploader.ckpt", "wal.ckpt"):
        assert step in steps or (workload is seal and step == "wal.ckpt")
    for moment in every(stride, found):
        for disk in moment.disks:
            try:
                check(moment, rig, disk)
            except Exception as error:
                raise AssertionError(f"crashed before {moment.label}: {error!r}") from error
    assert len(found) > 20


def test_a_crash_while_objects_expire_leaves_no_gap():
    """Every descriptor has its object; the remaining ones are in order and without a gap."""
    rig = Rig(chosen=settings(retention=ObjectRetention(retention_time_minutes=1)))

    def work(log, promise):
        append(log, 3 * EACH)
        log.flush()
        rig.tier.maintain()
        rig.clock.advance(61.0)
        append(log, EACH)
        log.flush()
        rig.tier.maintain()

    found = moments(rig, work)
    rig.close()

    for moment in found:
        after = Rig(disk=moment.disks[0], memory=moment.memory, facts=moment.facts, chosen=rig.chosen, clock=rig.clock)
        with after.opened() as log:
            log.flush()
            after.tier.maintain()
            check_tidy(after)
            start = after.tier.catalog(TOPIC).start_offset or 0
            assert read(log, start) == expected(log._engine.wal.next_offset, start)
    assert any(moment.label.endswith("commit") for moment in found)


def test_a_power_loss_of_log_and_objects_loses_no_message():
    """The objects are in a directory of the same disk: a local file is deleted only after its objects are durable."""
    disk = CrashFileSystem()
    rig = Rig(disk=disk, memory=DirectoryObjects(disk, "/cold"))
    log = rig.open()
    survivors = []
    promised = 0

    def snap(operation, path):
        survivors.append(
            (f"{operation} {path}", promised, disk.clone_after_crash(seed=len(survivors)), rig.facts.clone())
        )

    disk.on_step = snap
    for _ in range(2):
        append(log, EACH)
        log.flush()
        promised += EACH
        rig.store.maintain()
    disk.on_step = lambda _operation, _path: None

    for label, count_min, survivor, facts in survivors:
        after = Rig(disk=survivor, memory=DirectoryObjects(survivor, "/cold"), facts=facts, clock=rig.clock)
        with after.opened() as log:
            count = log._engine.wal.next_offset
            assert count >= count_min, label
            assert read(log) == expected(count), label
            log.flush()
            after.store.maintain()
            check_tidy(after)
            assert read(log) == expected(count), label
    assert len(survivors) > 100
