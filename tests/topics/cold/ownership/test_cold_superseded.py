"""Messages that one process had not uploaded when another process took over its topic."""

from __future__ import annotations

import pytest
from cold_rig import TOPIC, Rig, append, check_tidy, expected, read, settings

from quiver.errors import FencedError, ObjectsUnavailableError, QuiverError
from quiver.testing.crashfs import CrashFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

DIRECTORY = f"/topics/{TOPIC}"


def forked(uploaded: int, mine: int, theirs: int, *, rotate: int | None = 400) -> tuple[Rig, list[bytes]]:
    """A process that died with *mine* unuploaded messages and was superseded, and the current contents of the topic."""
    one = Rig(chosen=settings(keep_minutes=None, rotate=rotate))
    log = one.open()
    append(log, uploaded)
    log.flush()
    one.store.maintain()
    for number in range(mine):
        log.append(b"only here %d" % number)
    log.flush()
    two = Rig(memory=one.memory, facts=one.facts, owner="two", patience_s=301.0, chosen=one.chosen)
    with two.opened() as log:
        assert log._engine.wal.next_offset == uploaded
        append(log, theirs)
        two.store.unload(TOPIC)
    disk = one.disk
    assert isinstance(disk, CrashFileSystem)
    back = Rig(
        disk=disk.clone_after_kill(), memory=one.memory, facts=one.facts, chosen=settings(keep_minutes=0, rotate=rotate)
    )
    return back, expected(uploaded + theirs)


def quarantined(rig: Rig) -> list[str]:
    try:
        return rig.disk.list_dir(f"{DIRECTORY}/quarantine")
    except FileNotFoundError:
        return []


@pytest.mark.parametrize("rotate", [None, 400])
@pytest.mark.parametrize("mine", [1, 10, 30])
def test_the_topic_contains_only_what_its_owner_wrote(rotate, mine):
    """A former owner's messages with the same offsets hide nothing, are quarantined, and are reported."""
    rig, wanted = forked(10, mine, 40, rotate=rotate)
    with rig.opened() as log:
        assert log._engine.wal.next_offset == 50
        assert read(log) == wanted
        kept = quarantined(rig)
        assert kept
        assert all(name.endswith(".replaced") for name in kept)
        held = b"".join(rig.disk.read_all(f"{DIRECTORY}/quarantine/{name}", size_max=1 << 20) for name in kept)
        assert [b"only here %d" % number in held for number in range(mine)] == [True] * mine
        append(log, 5)
        log.flush()
        rig.store.maintain()
        assert read(log) == expected(55)
        check_tidy(rig)
    with rig.opened() as log:
        assert read(log) == expected(55)
        assert quarantined(rig) == kept


def test_messages_that_were_not_superseded_are_kept():
    """Files whose messages all follow the other's belong to this process: they are read and uploaded."""
    rig, _ = forked(10, 30, 5)
    with rig.opened() as log:
        with log.reader(0, follow=False, on_lost="skip") as reader:
            found = {message.offset: message.payload for message in reader}
        lost = [offset for first, after in reader.lost for offset in range(first, after)]
        assert [found[offset] for offset in range(15)] == expected(15)
        assert lost == list(range(15, lost[-1] + 1))
        assert [found[offset] for offset in range(lost[-1] + 1, 40)] == [
            b"only here %d" % (offset - 10) for offset in range(lost[-1] + 1, 40)
        ]
        assert log.append(b"x") == 40


def test_a_crash_after_an_upload_supersedes_nothing():
    """The catalog is ahead of the checkpoint, and the files agree with it."""
    one = Rig(chosen=settings(keep_minutes=None))
    with one.opened() as log:
        append(log, 10)
        log.flush()
        one.store.maintain()
    one.disk.remove(f"{DIRECTORY}/uploader.ckpt")
    with one.opened() as log:
        assert read(log) == expected(10)
        assert quarantined(one) == []


def test_a_topic_is_not_opened_while_its_metadata_is_unavailable():
    """A guess could hide valid messages, or quarantine intact files."""
    rig, wanted = forked(10, 10, 20)
    rig.objects.fail_on("get_range", 1, times=99)
    with pytest.raises(ObjectsUnavailableError):
        rig.open()
    rig.close()
    assert quarantined(rig) == []
    rig.objects.heal()
    with rig.opened() as log:
        assert read(log) == wanted


def test_a_crash_at_any_step_of_the_quarantine_is_repaired():
    """Files that were not moved yet are moved the next time."""
    rig, wanted = forked(10, 30, 60)
    disk = rig.disk
    assert isinstance(disk, CrashFileSystem)
    disks: list[CrashFileSystem] = []

    def snap(_op: str, _path: str) -> None:
        disks.extend((disk.clone_after_kill(), disk.clone_after_crash(seed=len(disks))))

    disk.on_step = snap
    with rig.opened() as log:
        assert read(log) == wanted
    disk.on_step = lambda _op, _path: None
    assert len(disks) > 10
    for crashed in disks:
        again = Rig(disk=crashed, memory=rig.memory.clone(), facts=rig.facts.clone(), chosen=rig.chosen)
        with again.opened() as log:
            assert read(log) == wanted


@pytest.mark.parametrize("step", ["put_parts", "copy", "head", "get_range"])
def test_a_former_owner_never_changes_an_object_of_the_same_name(step):
    """It stopped in the middle of an upload; meanwhile another uploaded its own messages at the same offsets."""
    one = Rig(chosen=settings(keep_minutes=None, rotate=None))
    log = one.open()
    append(log, 5)
    log.flush()
    one.store.maintain()
    log.append_batch([b"only here"] * 5, durable=True)
    two = Rig(memory=one.memory, facts=one.facts, owner="two", patience_s=301.0, chosen=one.chosen)

    def take_over(operation: str, _key: str) -> None:
        if operation == step:
            one.objects.on_call = lambda _operation, _key: None
            with two.opened() as theirs:
                append(theirs, 5)
                theirs.flush()
                two.store.maintain()

    one.objects.on_call = take_over
    with pytest.raises(QuiverError):
        one.store.maintain()
    one.close()
    names = one.keys()
    assert [name for name in names if "pending" not in name] == ["data-0-4.dnb1", "data-5-9.dnb1"]
    with two.opened() as theirs:
        two.disk.remove(f"{DIRECTORY}/wal.log")
    with two.opened() as theirs:
        assert read(theirs) == expected(10)


def test_a_topic_that_another_process_owns_is_released():
    """No work on it is left: the store continues with its other topics, and may open this one again."""
    one = Rig(chosen=settings(keep_minutes=None))
    log = one.open()
    append(log, 5)
    log.flush()
    one.store.maintain()
    two = Rig(memory=one.memory, facts=one.facts, owner="two", patience_s=301.0, chosen=one.chosen)
    with two.opened() as theirs:
        append(theirs, 5)
        with pytest.raises(FencedError):
            one.store.unload(TOPIC)
        assert log._engine.wal.closed
        two.store.unload(TOPIC)
    again = one.store.topic(TOPIC)
    assert again is not log
    assert read(again) == expected(10)
    append(again, 1)
    one.close()


def test_an_upload_cycle_ends_with_the_messages_that_existed_at_its_start():
    """Otherwise a continuous writer would keep the cycle running, and other topics would not be uploaded."""
    one = Rig()
    with one.opened() as log:
        append(log, 10)
        log.flush()

        def more(_operation: str, _key: str) -> None:
            append(log, 1)
            log.flush()

        one.objects.on_call = more
        one.tier.maintain()
        one.objects.on_call = lambda _operation, _key: None
        assert one.tier.catalog(TOPIC).next_offset == 10
        one.tier.maintain()
        assert read(log) == expected(log._engine.wal.next_offset)
