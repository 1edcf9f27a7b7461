"""Superseded messages are appended to their topic again, each of them exactly once."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from cold_rig import TOPIC, Rig, append, check_tidy, expected, settings

from quiver.errors import ObjectsUnavailableError, UsageError
from quiver.metadata.memory import MemoryMetadata
from quiver.objects.memory import MemoryObjects
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.reading.check import check_topic_directory
from quiver.topics.reappend import REAPPENDED_ATTRIBUTE

pytestmark = pytest.mark.usefixtures("quiet")

QUARANTINE = f"/topics/{TOPIC}/quarantine"


def forked(mine=30, theirs=40, *, rotate=400, write=None):
    """A machine that returns with *mine* messages that another owner superseded."""
    chosen = settings(keep_minutes=None, rotate=rotate)
    one = Rig(chosen=chosen)
    log = one.open()
    append(log, 10)
    log.flush()
    one.store.maintain()
    if write is None:
        for number in range(mine):
            log.append(b"only here %d" % number, attributes={"n": str(number)}, key="k", publish_time_ns=7_000_000)
    else:
        write(log)
    log.flush()
    two = Rig(memory=one.memory, facts=one.facts, owner="two", patience_s=301.0, chosen=chosen)
    with two.opened() as theirs_log:
        append(theirs_log, theirs)
    return Rig(disk=one.disk.clone_after_kill(), memory=one.memory, facts=one.facts, chosen=chosen)


def everything(log):
    with log.reader(0, follow=False) as reader:
        return list(reader)


def names(rig):
    return rig.disk.list_dir(QUARANTINE)


@pytest.mark.parametrize("rotate", [None, 400])
def test_each_superseded_message_is_appended_again_once(rotate):
    """After the other's messages, in order, unchanged; a second call finds nothing to do."""
    rig = forked(rotate=rotate)
    with rig.opened() as log:
        assert all(".from10.replaced" in name or rotate for name in names(rig))
        done = rig.store.reappend(TOPIC)
        assert sum(one.appended for one in done) == 30
        assert sum(one.already_there + one.damaged for one in done) == 0
        messages = everything(log)
        assert [one.payload for one in messages[:50]] == expected(50)
        back = messages[50:]
        assert [one.payload for one in back] == [b"only here %d" % number for number in range(30)]
        assert [one.attributes["n"] for one in back] == [str(number) for number in range(30)]
        assert {(one.key, one.publish_time_ns) for one in back} == {("k", 7_000_000)}
        assert [one.attributes[REAPPENDED_ATTRIBUTE].rpartition(":")[2] for one in back] == [
            str(offset) for offset in range(10, 40)
        ]
        assert all(name.endswith(".reappended") for name in names(rig))
        assert rig.tier.catalog(TOPIC).next_offset == 80
        assert rig.store.reappend(TOPIC) == []
        check_tidy(rig)
    with Rig(memory=rig.memory, facts=rig.facts, owner="three", chosen=rig.chosen).opened() as log:
        assert len(everything(log)) == 80


def test_a_crash_at_any_step_loses_and_repeats_nothing():
    """The next call appends the missing messages."""
    rig = forked(12, 20)
    disk, moments = rig.disk, []

    def snap(*_):
        for crashed in (disk.clone_after_kill(), disk.clone_after_crash(seed=len(moments))):
            moments.append((crashed, rig.memory.clone(), rig.facts.clone()))

    rig.open()
    disk.on_step, rig.objects.on_call, rig.metadata.on_call = snap, snap, snap
    rig.store.reappend(TOPIC)
    disk.on_step = rig.objects.on_call = lambda _op, _path: None
    rig.metadata.on_call = lambda _op: None
    rig.close()
    assert len(moments) > 50
    for crashed, memory, facts in moments[::3]:
        again = Rig(disk=crashed, memory=memory, facts=facts, chosen=rig.chosen)
        with again.opened() as log:
            again.store.reappend(TOPIC)
            payloads = [one.payload for one in everything(log)]
            assert payloads == expected(30) + [b"only here %d" % number for number in range(12)]


def test_messages_superseded_twice_are_appended_again_once():
    """Half of them were appended again, not uploaded, and superseded once more before the call finished."""
    rig = forked(12, 20, rotate=None)
    log = rig.open()
    rig.objects.fail_on("put_parts", times=99)
    with pytest.raises(ObjectsUnavailableError):
        rig.store.reappend(TOPIC)
    assert log._engine.wal.next_offset == 42
    rig.objects.heal()
    killed = rig.disk.clone_after_kill()
    two = Rig(memory=rig.memory, facts=rig.facts, owner="two", patience_s=301.0, chosen=rig.chosen)
    with two.opened() as theirs:
        assert theirs._engine.wal.next_offset == 30
        append(theirs, 5)
    back = Rig(disk=killed, memory=rig.memory, facts=rig.facts, chosen=rig.chosen)
    with back.opened() as log:
        assert len(names(back)) == 2
        done = back.store.reappend(TOPIC)
        assert sorted(one.appended for one in done) == [0, 12]
        payloads = [one.payload for one in everything(log)]
        assert payloads == expected(35) + [b"only here %d" % number for number in range(12)]
        assert back.store.reappend(TOPIC) == []


@pytest.mark.parametrize(
    "uploaded", [1, pytest.param(3, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.slow), 11]
)
@pytest.mark.parametrize("before", [0, pytest.param(4, marks=pytest.mark.slow), 9])
@pytest.mark.parametrize("rotates", [(400, 400), (400, 900), (900, 400), (None, 400), (400, None)])
def test_two_machines_that_superseded_each_other_recover_every_message(uploaded, before, rotates):
    """
    Reappending left free offsets between objects, and the other machine had its own messages at these offsets: they
    were moved to a quarantine file whose name has a higher first offset, or stayed in a file that was never uploaded.
    """
    memory, facts = MemoryObjects(), MemoryMetadata()
    machines = {
        name: Rig(memory=memory, facts=facts, owner=name, patience_s=301.0, chosen=settings(rotate=rotate))
        for name, rotate in zip(("one", "two"), rotates, strict=True)
    }
    messages = []

    def die(name, *counts):
        """Append messages, upload them, and append more."""
        rig = machines[name]
        log = rig.open()
        for turn, count in enumerate(counts):
            if turn:
                log.flush()
                rig.store.maintain()
            for _ in range(count):
                messages.append(b"%s %d" % (name.encode(), len(messages)))
                log.append(messages[-1])
        log.flush()
        machines[name] = replace(rig, disk=rig.disk.clone_after_kill())

    die("one", before, 30)
    die("two", uploaded, 40)
    die("one", 1, 5)
    die("two", 2, 5)
    for name in ("one", "two", "one", "two"):
        with machines[name].opened() as log:
            machines[name].store.reappend(TOPIC)
            machines[name].store.maintain()
            with log.reader(0, follow=False, on_lost="skip") as reader:
                found = [one.payload for one in reader]
    assert sorted(found) == sorted(messages)
    machines["three"] = Rig(memory=memory, facts=facts, owner="three", chosen=settings())
    with machines["three"].opened() as log, log.reader(0, follow=False, on_lost="skip") as reader:
        assert sorted(one.payload for one in reader) == sorted(messages)


def test_reappended_messages_are_not_reported_as_damage():
    """Their former offsets stay empty; `verify` reports them as quarantined. Messages lost everywhere are damage."""
    rig = forked(30, 6)
    with rig.opened() as log:
        rig.store.maintain()
        rig.store.reappend(TOPIC)
        rig.store.maintain()
        spans = [(one.start_offset, one.end_offset + 1) for one in rig.tier.catalog(TOPIC).descriptors()]
        holes = [(before[1], after[0]) for before, after in itertools.pairwise(spans) if before[1] < after[0]]
        ((first, behind),) = holes
        found = check_topic_directory(rig.disk, f"/topics/{TOPIC}", objects=spans)
        reports = [one.reason for one in found.findings if one.kind == "quarantined" and one.path.endswith(".log")]
        assert reports == [f"messages {first} to {behind - 1}: another owner replaced messages before them"]
        assert found.is_intact
        removed = log._engine.wal.files()[1]
        rig.disk.remove(removed.path)
        lost = check_topic_directory(rig.disk, f"/topics/{TOPIC}").findings
        reports = f"messages {removed.first_offset} to 9 are in no file"  # the next ones are in the quarantine
        assert [one.reason for one in lost if one.damaged] == [reports]


def test_a_message_that_its_producer_repeated_is_not_appended_again():
    """The producer's number is stored with the message, and compared."""

    def write(log):
        edge = log.producer("edge")
        for number in range(6):
            edge.append(b"edge %d" % number, sequence=number)
        log.append(b"of nobody")
        log.producer("late").append(b"late 0", sequence=0)

    rig = forked(write=write, theirs=3, rotate=None)
    two = Rig(memory=rig.memory, facts=rig.facts, owner="two", chosen=rig.chosen)
    with two.opened() as log:
        for number in (2, 3, 8):
            log.producer("edge").append(b"edge %d" % number, sequence=number)
    with rig.opened() as log:
        late = log.producer("late")
        (done,) = rig.store.reappend(TOPIC)
        assert (done.appended, done.already_there) == (6, 2)
        assert late.append(b"late 0", sequence=0) is None  # an open producer gets an error
        payloads = [one.payload for one in everything(log)]
        assert sorted(one for one in payloads if one.startswith(b"edge")) == [
            b"edge %d" % number for number in (0, 1, 2, 3, 4, 5, 8)
        ]
        assert payloads.count(b"of nobody") == 1
        assert log.producer("edge").last_sequence == 8


def test_damaged_messages_are_counted_and_intact_ones_appended():
    """The intact messages of the file are appended."""
    rig = forked(12, 20, rotate=None)
    with rig.opened() as log:
        (name,) = names(rig)
        data = rig.disk.read_all(f"{QUARANTINE}/{name}", size_max=1 << 20)
        file = rig.disk.open_write(f"{QUARANTINE}/{name}")
        file.pwrite(b"\xff", data.index(b"only here 3"))
        file.close()
        (done,) = rig.store.reappend(TOPIC)
        assert (done.appended, done.damaged) == (11, 1)
        assert b"only here 3" not in {one.payload for one in everything(log)}


def test_files_of_an_earlier_version_without_a_start_offset_are_compared():
    """Their names have no start offset. They are compared with the topic, as long as it still has these messages."""
    rig = forked(12, 20, rotate=None)
    with rig.opened() as log:
        (name,) = names(rig)
        old = name.replace(".from10", "")
        rig.disk.rename(f"{QUARANTINE}/{name}", f"{QUARANTINE}/{old}")
        log.flush()
        rig.store.maintain()
        kept = rig.disk
        assert isinstance(kept, CrashFileSystem)
        truncated = Rig(
            disk=kept.clone_after_kill(), memory=rig.memory.clone(), facts=rig.facts.clone(), chosen=rig.chosen
        )
        (done,) = rig.store.reappend(TOPIC)
        assert (done.first_offset, done.appended) == (10, 12)
        assert names(rig) == [old.replace(".replaced", ".reappended")]
    truncated.open()
    truncated.store.truncate(TOPIC, "latest")
    with pytest.raises(UsageError, match=r"rename the file to wal\.log\.0\.from<offset>\.replaced"):
        truncated.store.reappend(TOPIC)
    truncated.close()
