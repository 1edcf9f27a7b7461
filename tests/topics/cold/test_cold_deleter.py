"""Retention: which files and objects are deleted, when, and never too early."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cold_rig import PREFIX, TOPIC, Rig, append, check_tidy, expected, read, settings
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import InvariantError, ObjectsUnavailableError
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from quiver.topics.cold import deleter
from quiver.topics.cold.deleter import expired_objects, files_to_release
from quiver.topics.format.descriptor import ObjectDescriptor
from quiver.topics.settings import DeleterSettings, ObjectRetention
from quiver.topics.wal.files import WalFile

MINUTE_NS = 60 * 10**9
MIB = 1 << 20


def file(seq, *, age_minutes=0.0, mib=1.0, sealed=True):
    return WalFile(f"f{seq}", seq, seq * 10, seq * 10 + 10, int(mib * MIB), sealed, int(-age_minutes * MINUTE_NS))


def going(fs, *, minutes=None, mib=None):
    chosen = DeleterSettings(retention_time_minutes=minutes, retention_size_mb=mib)
    return [(one.seq, why) for one, why in files_to_release(fs, chosen, now_ns=0)]


def test_the_oldest_files_are_deleted_by_age():
    """As long as each is old enough; the active file is never deleted."""
    files = [file(0, age_minutes=30), file(1, age_minutes=20), file(2, age_minutes=5), file(3, age_minutes=40)]
    active = file(4, age_minutes=99, sealed=False)

    assert going([*files, active], minutes=20) == [(0, "time"), (1, "time")]
    assert going([*files, active], minutes=31) == []
    assert going([*files, active]) == []
    assert going([active], minutes=0) == []


def test_the_oldest_files_are_deleted_by_size():
    """Until the rest fits; the active file counts, and files deleted by age are not counted twice."""
    files = [file(0, mib=4, age_minutes=9), file(1, mib=3), file(2, mib=2), file(3, mib=1, sealed=False)]

    assert going(files, mib=10) == []
    assert going(files, mib=9) == [(0, "size")]
    assert going(files, mib=3) == [(0, "size"), (1, "size")]
    assert going(files, minutes=5, mib=6) == [(0, "time")]
    assert going(files, minutes=5, mib=5) == [(0, "time"), (1, "size")]
    assert going(files, mib=0) == [(0, "size"), (1, "size"), (2, "size")]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=8), st.integers(0, 50), st.integers(0, 40))
def test_no_more_files_are_deleted_than_needed(given_files, minutes, mib):
    """A prefix is deleted; the rest is young and small, or the last deleted file was necessary."""
    files = [file(seq, age_minutes=age, mib=size) for seq, (age, size) in enumerate(given_files)]
    files.append(file(len(files), mib=1, sealed=False))

    removed = going(files, minutes=minutes, mib=mib)

    assert [seq for seq, _ in removed] == list(range(len(removed)))
    left = sum(one.size_bytes for one in files[len(removed) :])
    for seq, why in removed:
        assert why == "time" or sum(one.size_bytes for one in files[seq:]) > mib * MIB
    next_up = files[len(removed)]
    if next_up.sealed:
        assert left <= mib * MIB
        assert -next_up.modified_ns < minutes * MINUTE_NS


def descriptor(start, *, age_minutes=0, mib=1):
    return ObjectDescriptor(f"data-{start}-{start + 9}.dnb1", start, start + 9, mib * MIB, None, -age_minutes * 60)


def test_objects_expire_by_age_and_size_except_the_newest():
    """Their limits are separate from those of local files; the newest object records the next offset of the topic."""
    objects = [
        descriptor(0, age_minutes=60, mib=3),
        descriptor(10, age_minutes=50, mib=3),
        descriptor(20, age_minutes=99),
    ]

    def expired(**limits):
        return [one.start_offset for one in expired_objects(objects, ObjectRetention(**limits), now_s=0)]

    assert expired() == []
    assert expired(retention_time_minutes=55) == [0]
    assert expired(retention_time_minutes=1) == [0, 10]
    assert expired(retention_size_mb=6) == [0]
    assert expired(retention_size_mb=1) == [0, 10]


def test_files_that_are_not_uploaded_are_not_deleted():
    """However old and large they are."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 20)
        log.flush()
        rig.objects.fail_on("put_parts", times=999)
        with pytest.raises(ObjectsUnavailableError):
            rig.tier.maintain()
        assert log._engine.wal.start_offset == 0

        rig.objects.heal()
        rig.tier.maintain()
        assert log._engine.wal.start_offset > 0


@pytest.mark.parametrize("trouble", ["missing", "shorter"])
def test_files_whose_object_is_missing_are_not_deleted(trouble):
    """The object was verified when it was created; it is checked again before the only other copy is deleted."""
    rig = Rig(chosen=settings(keep_minutes=10))
    with rig.opened() as log:
        append(log, 20)
        log.flush()
        rig.tier.maintain()
        first = rig.tier.catalog(TOPIC).descriptors()[0]
        if trouble == "missing":
            rig.memory.delete([PREFIX + first.object_id])
        else:
            rig.memory.put(PREFIX + first.object_id, b"short")
        rig.clock.advance(601.0)

        rig.tier.maintain()

        assert log._engine.wal.start_offset == 0
        assert rig.observer.total("danube_wal_delete_refused_total") == 1
        assert read(log) == expected(20)


def test_files_with_unconfirmed_messages_are_not_deleted():
    """Only if configured; without subscriptions nothing is waited for."""
    for confirmed, kept in ((0, True), (7, True), (99, False), (None, False)):
        rig = Rig(chosen=settings(wait=True))
        with rig.opened() as log:
            rig.tier._find(TOPIC).deleter._confirmed = lambda confirmed=confirmed: confirmed
            append(log, 20)
            log.flush()
            rig.tier.maintain()
            last_sealed = log._engine.wal.files()[-1].first_offset
            assert (log._engine.wal.start_offset < last_sealed) is kept
            assert log._engine.wal.start_offset <= (20 if confirmed is None else confirmed)


def test_a_file_that_is_being_read_is_not_deleted():
    """It is deleted when the reader has finished with it."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 20)
        log.flush()
        first = log._engine.wal.files()[0]
        log._engine.wal.take_hold(first.path, log)
        rig.tier.maintain()
        assert log._engine.wal.start_offset == 0
        assert rig.disk.exists(first.path)
        log._engine.wal.drop_hold(first.path, log)
        rig.tier.maintain()
        assert log._engine.wal.start_offset > 0
        assert not rig.disk.exists(first.path)


def test_a_file_that_cannot_be_removed_is_removed_later():
    """It used to be forgotten and stayed on the disk: the next pass removes it, and it is not read."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, path_part="wal")
    rig = Rig(disk=fs)
    with rig.opened() as log:
        append(log, 12)
        log.flush()
        fs.fail_on("remove")
        with pytest.raises(OSError, match="Input/output"):
            rig.store.maintain()
        left = [name for name in disk.list_dir("/topics/default/orders") if name.startswith("wal.")]
        named = [file.path.rpartition("/")[2] for file in log._engine.wal.files()]
        assert len(left) > len(named) + 1, "the checkpoint is one of them"
        rig.clock.advance(3600)
        rig.store.maintain()
        left = [name for name in disk.list_dir("/topics/default/orders") if name.startswith("wal.")]
        assert sorted(left) == sorted([*(file.path.rpartition("/")[2] for file in log._engine.wal.files()), "wal.ckpt"])
        assert read(log) == expected(12)


def test_deletions_are_counted_by_reason():
    """The metric shows which rule applied."""
    rig = Rig(chosen=settings(keep_minutes=None, keep_mb=0))
    with rig.opened() as log:
        append(log, 20)
        log.flush()
        rig.tier.maintain()
        assert rig.observer.counts["danube_wal_delete_total", (("reason", "size"),)] == len(rig.keys()) - 1


def test_start_offset_survives_a_restart():
    """It is moved durably before the files are deleted, and never moves back."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 20)
        log.flush()
        rig.tier.maintain()
        start = log._engine.wal.start_offset
        assert start > 0
        append(log, 1)
        log.flush()
    again = Rig(disk=rig.disk, memory=rig.memory.clone(), facts=rig.facts, chosen=rig.chosen)
    with again.opened() as log:
        assert log._engine.wal.start_offset == start
        log.flush()
        assert log._engine.wal.start_offset == start
        assert read(log) == expected(21)


def test_objects_expire_by_their_own_policy():
    """The descriptor is removed first; a reader from the start gets an error, and continues after the deletion."""
    rig = Rig(chosen=settings(retention=ObjectRetention(retention_time_minutes=60)))
    with rig.opened() as log:
        append(log, 10)
        log.flush()
        rig.tier.maintain()
        rig.clock.advance(3601.0)
        rig.tier.maintain()
        append(log, 10)
        log.flush()
        rig.tier.maintain()
        rig.tier.maintain()
        check_tidy(rig)
        start = rig.tier.catalog(TOPIC).start_offset
        assert start >= 7
        assert rig.observer.total("danube_cloud_objects_expired_total") > 0
        with log.reader(start=0, follow=False, on_lost="skip") as reader:
            assert [message.payload for message in reader] == expected(20, start)
            assert reader.lost == [(0, start)]


def test_uploads_and_deletions_are_logged_with_their_fields(monkeypatch):
    """Topic, object, file number, offsets: every move of messages is logged."""
    reports = []
    rig = Rig(chosen=settings(retention=ObjectRetention(retention_time_minutes=60)))
    monkeypatch.setattr(rig.observer, "event", lambda name, **fields: reports.append((name, fields)))
    with rig.opened() as log:
        append(log, 10)
        log.flush()
        rig.tier.maintain()
        rig.clock.advance(3601.0)
        rig.tier.maintain()

    def fields_of(name):
        return [fields for one, fields in reports if one == name]

    uploaded = fields_of("danube.uploader.object")
    assert {one["topic"] for one in uploaded} == {TOPIC}
    offsets = [(one["first_offset"], one["next_offset"]) for one in uploaded]
    assert (offsets[0][0], offsets[-1][1]) == (0, 10)
    for after in (fields_of("danube.deleter.file"), fields_of("danube.deleter.object")):
        assert [(one["first_offset"], one["next_offset"]) for one in after] == offsets[: len(after)] != []
    assert [one["file_seq"] for one in fields_of("danube.deleter.file")] == [one["file_seq"] for one in uploaded][:-1]
    assert fields_of("danube.deleter.object")[0]["object_id"] == uploaded[0]["object_id"]


def test_only_sealed_files_are_deleted_oldest_first(monkeypatch):
    rig = Rig()
    with rig.opened() as log:
        append(log, 40)
        rig.tier.upload(log.topic)
        files = rig.tier._owned[log.topic].wal.files()
        due = [(replace(files[0], sealed=False), "time")]
        monkeypatch.setattr(deleter, "files_to_release", lambda *_, **__: due)
        with pytest.raises(InvariantError, match="only sealed files are deleted, oldest first"):
            rig.tier._owned[log.topic].deleter.run_once()
        assert rig.tier._owned[log.topic].wal.files() == files
        monkeypatch.undo()
