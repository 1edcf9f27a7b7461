"""Messages that are in the object store when their append returns."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from cold_rig import TOPIC, Rig, append, expected, read, settings

from quiver.errors import CorruptionError, FencedError, NotDurableError, StoreClosedError, UsageError
from quiver.metadata import acquire
from quiver.metadata.memory import MemoryMetadata
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.settings import TopicSettings, UploaderSettings
from quiver.topics.store import TopicStore

pytestmark = pytest.mark.usefixtures("quiet")


def opened(**changed):
    rig = Rig(chosen=settings(keep_minutes=None, rotate=None), **changed)
    return rig, rig.open()


def on_another_disk(rig):
    """Return the messages that remain when a machine is lost with its disk, after its lease."""
    other = Rig(
        disk=CrashFileSystem(), memory=rig.memory.clone(), facts=rig.facts.clone(), owner="two", patience_s=301.0,
        chosen=rig.chosen,
    )  # fmt: skip
    with other.opened() as log:
        return read(log)


def test_a_lost_disk_loses_no_message_confirmed_as_uploaded():
    """By an append, a batch, a numbered producer, and by waiting; messages that were only synced are lost."""
    rig, log = opened()
    log.append(b"0", durable="object")
    assert on_another_disk(rig) == [b"0"]
    assert log.append_batch([b"1", b"2"], durable="object") == range(1, 3)
    assert on_another_disk(rig) == [b"0", b"1", b"2"]
    edge = log.producer("edge")
    assert edge.append(b"3", sequence=0, durable="object") == 3
    edge.append(b"4", sequence=1)
    assert len(on_another_disk(rig)) == 4
    assert edge.append(b"4", sequence=1, durable="object") is None
    assert len(on_another_disk(rig)) == 5
    offsets = [log.append(b"5"), log.append(b"6", durable=True)]
    assert len(on_another_disk(rig)) == 5
    log.wait_until_uploaded(offsets[0], timeout=5)
    assert len(on_another_disk(rig)) == 7
    log.wait_until_uploaded(0)
    assert log.append_batch([], durable="object") == range(7, 7)
    rig.close()


def test_a_durable_append_waits_for_an_outage_as_long_as_configured():
    """The message is in the log, and is not appended again; it is uploaded when the store is back."""
    rig, log = opened()
    rig.objects.fail_on("put_parts", times=99)
    offset = log.append(b"0")
    with pytest.raises(
        NotDurableError, match="message 0 is written, but not yet durable: objects: put_parts"
    ) as caught:
        log.wait_until_uploaded(offset, timeout=30)
    assert caught.value.record_id == 0
    assert rig.clock.monotonic() == pytest.approx(30)
    rig.metadata.is_away = True
    rig.objects.heal()
    with pytest.raises(NotDurableError):
        log.wait_until_uploaded(offset, timeout=0)
    with pytest.raises(NotDurableError, match="metadata"):
        log.wait_until_uploaded(offset, timeout=10)
    rig.metadata.is_away = False
    log.wait_until_uploaded(offset, timeout=10)
    assert read(log) == [b"0"]
    rig.close()


def test_durable_object_is_refused_without_an_object_tier():
    """Nothing is appended; other values of *durable* are refused, too."""
    rig, log = opened()
    for durable in ("objects", "yes", 2, b"object"):
        with pytest.raises(UsageError, match='durable is False, True or "object"'):
            log.append(b"x", durable=durable)
        with pytest.raises(UsageError):
            log.append_batch([b"x"], durable=durable)
        with pytest.raises(UsageError):
            log.producer("p").append(b"x", sequence=0, durable=durable)
    with pytest.raises(UsageError, match="has nothing at 0 to wait for"):
        log.wait_until_uploaded(0)
    assert log.current_offset() == 0
    rig.close()
    off = Rig(chosen=TopicSettings(uploader=UploaderSettings(enabled=False)))
    local = TopicStore.open("/t", fs=CrashFileSystem(), clock=ManualClock(), background=False)
    for log in (off.open(), local.topic(TOPIC), local.topic("a/b", reliable=False)):
        with pytest.raises(UsageError, match="is not uploaded"):
            log.append(b"x", durable="object")
        assert log.append(b"x") == 0
        with pytest.raises(UsageError, match="is not uploaded"):
            log.wait_until_uploaded(0)
    off.close()
    local.close()


def test_waiting_for_an_upload_that_will_never_happen_is_an_error():
    """Damage in the log, another owner, a closed store; messages deleted by retention were uploaded."""
    rig, log = opened()
    append(log, 9)
    log.flush()
    file = rig.disk.open_write(f"/topics/{TOPIC}/wal.log")
    file.pwrite(b"\xff" * 30, log._engine.wal.files()[0].size_bytes // 2)
    file.close()
    log.wait_until_uploaded(0, 5)
    with pytest.raises(CorruptionError, match="message 4 is damaged in the log, and is not uploaded"):
        log.wait_until_uploaded(4, 5)
    log.wait_until_uploaded(8, 5)
    rig.store.truncate(TOPIC, "latest")
    log.wait_until_uploaded(3, 5)

    two = Rig(memory=rig.memory, facts=rig.facts, owner="two", patience_s=301.0, chosen=rig.chosen)
    two.open()
    offset = log.append(b"x")
    with pytest.raises(FencedError):
        log.wait_until_uploaded(offset, 5)
    rig.close()
    with pytest.raises((StoreClosedError, UsageError)):
        log.wait_until_uploaded(offset, 5)
    two.close()


def test_waiting_callers_share_an_upload(tmp_path):
    """Several threads wait, next to the thread of the store: there are far fewer objects than messages."""
    with TopicStore.open(tmp_path / "t", objects=str(tmp_path / "cold")) as store:
        log = store.topic(TOPIC)
        appended = []

        def work(number):
            appended.append(log.append(b"%d" % number, durable="object"))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(appended) == list(range(40))
        objects = list((tmp_path / "cold").rglob("data-*.dnb1"))
        assert 0 < len(objects) < 40
        offset = log.append(b"x")
        log.wait_until_uploaded(offset, timeout=60)
        assert store._cold.catalog(TOPIC).next_offset == 41


def test_close_ends_waiting_appends(tmp_path):
    """Without a hand-over, too. The error does not claim that nothing was appended."""
    with TopicStore.open(tmp_path / "t", objects=str(tmp_path / "cold")) as store:
        log = store.topic(TOPIC)
        waits, result = threading.Event(), []

        def never(owned):
            waits.set()

        store._cold._upload = never

        def work():
            try:
                log.append(b"x", durable="object")
            except NotDurableError as error:
                result.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert waits.wait(60)
        store.close(timeout=0)
        thread.join(60)
    assert "open it again" in str(result[0])
    with TopicStore.open(tmp_path / "t", objects=str(tmp_path / "cold")) as store:
        assert read(store.topic(TOPIC)) == [b"x"]
        assert expected(0) == []


def test_the_first_example_of_the_page_uploads(tmp_path, monkeypatch):
    """It must produce an object before its store is closed."""
    page = Path(__file__).parents[3] / "docs" / "howto" / "object-stores.md"
    first = page.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TopicStore, "_hand_over", lambda *_: ())
    exec(first, {})
    assert [path.name for path in (tmp_path / "cold").rglob("data-*")] == ["data-0-0.dnb1"]


def test_a_former_owner_gets_the_reason():
    """The topic was released here, or abandoned, or its record was removed."""
    store, clock = MemoryMetadata(), ManualClock()

    def owner():
        return acquire(store, "/owner", owner="one", ttl_s=30, clock=clock)

    released, abandoned, lost = owner(), None, None
    released.release()
    abandoned = owner()
    abandoned.abandon()
    lost = owner()
    store.commit({"/owner": None})
    for one, words in ((released, "was released by its owner"), (abandoned, "was given up"), (lost, "lost its record")):
        with pytest.raises(FencedError, match=words) as caught:
            one.renew()
        assert "nobody" not in str(caught.value)
    with pytest.raises(FencedError, match="opened for reading only"):
        ObjectCatalog(store, root="/r", topic=TOPIC).withdraw([])
    rig, log = opened()
    append(log, 1)
    rig.store.unload(TOPIC)
    with pytest.raises(StoreClosedError):
        log.append(b"x")
    rig.close()
