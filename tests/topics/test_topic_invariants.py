"""A bug that would lose or repeat messages stops the topic before the step that would do harm."""

from __future__ import annotations

import pytest
from topic_disks import DIRECTORY, ROOT, TOPIC, open_topics, payloads

from quiver.errors import InvariantError
from quiver.observe import InMemoryObserver
from quiver.primitives.batch_notes import BatchCommit, begun_name
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics import recovery, staged_import
from quiver.topics.engine import TopicEngine
from quiver.topics.format.sink_batch import INCOMING_DIR, SinkPart
from quiver.topics.reading.file_reader import MessageRun, TopicFileReader
from quiver.topics.reading.place import TopicPlace
from quiver.topics.staged_import import StagedImport
from quiver.topics.wal.files import Good, RecoveredWal

pytestmark = pytest.mark.usefixtures("quiet")


def test_no_offset_is_given_out_twice(monkeypatch):
    monkeypatch.setattr(recovery, "_recover_files", lambda *_, **__: RecoveredWal(next_offset=4))
    with pytest.raises(InvariantError, match="no offset is given out twice"):
        recovery.recover(
            CrashFileSystem(), DIRECTORY, file_name="wal.log", observer=InMemoryObserver(), next_offset_min=5
        )


def test_progress_includes_only_synced_messages(monkeypatch):
    with open_topics(CrashFileSystem()) as store:
        log = store.topic(TOPIC)
        log.append(b"0")
        subscription = store.subscribe(TOPIC, "s", kind="exclusive", start="earliest")
        consumer = subscription.consumer("c")
        consumer.receive(0).ack()
        with monkeypatch.context() as patched:
            patched.setattr(TopicEngine, "flush", lambda _: None)
            patched.setattr(TopicEngine, "durable_offset", lambda _: 0)
            with pytest.raises(InvariantError, match="progress is saved only for messages that are synced"):
                subscription.save()


def test_a_reader_returns_each_offset_once():
    with open_topics(CrashFileSystem()) as store:
        store.topic(TOPIC).append(b"0")
        with store.topic(TOPIC).reader(0, follow=False) as reader:
            with pytest.raises(InvariantError, match="a reader returns each offset once and skips none"):
                reader._keep(1, [b""])
            assert [message.offset for message in reader] == [0]


def test_a_reader_skips_no_message_of_a_file():
    with open_topics(CrashFileSystem()) as store:
        store.topic(TOPIC).append(b"0")
        reader = store.topic(TOPIC).reader(0, follow=False)
        with reader, pytest.raises(InvariantError, match="a reader skips no message of a file"):
            reader._take_from(Good([], b"", 0, 3), 0, 10)


@pytest.mark.parametrize("way", ["_read_file", "_read_cold"])
def test_a_view_returns_each_message_once(way, monkeypatch):
    """A message that it skipped would be missing in a Spark query."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        store.topic(TOPIC).append_batch([b"0", b"1"])
    view = TopicFileReader(TopicPlace(ROOT), TOPIC, fs=fs)
    if way == "_read_cold":
        monkeypatch.setattr(view, "_local", list)
    monkeypatch.setattr(view, way, lambda *_: iter([MessageRun(1, [b"1"])]))
    with pytest.raises(InvariantError, match="a reader returns each message once, and reports those that it skips"):
        list(view.read(0, 2))


def test_each_number_of_a_producer_is_appended_with_its_message(monkeypatch):
    with open_topics(CrashFileSystem()) as store:
        producer = store.topic(TOPIC).producer("edge")
        with monkeypatch.context() as patched:
            patched.setattr(TopicEngine, "encode_batch", lambda *_: [])
            with pytest.raises(InvariantError, match="each number is appended once, with its message"):
                producer.append(b"0", sequence=0)
        assert producer.append(b"0", sequence=0) == 0
        assert payloads(store.topic(TOPIC)) == [b"0"]


def test_a_batch_of_a_sink_is_done_only_when_it_is_durable(monkeypatch):
    """After a power loss it would be missing, and it would not be imported again."""
    fs = CrashFileSystem()
    fs.make_dirs(f"{ROOT}/{INCOMING_DIR}/query")
    with open_topics(fs) as store:
        engine = store.topic(TOPIC)._engine
        imports = StagedImport(fs, ROOT, topic=lambda _: engine, observer=InMemoryObserver())
        monkeypatch.setattr(staged_import, "_chunks", lambda *_: iter([[("query:0:0:0", b"payload", 1, b"")]]))
        monkeypatch.setattr(TopicEngine, "flush", lambda _: None)
        with pytest.raises(InvariantError, match=f"a batch is imported only when its messages in {TOPIC} are durable"):
            imports._append(BatchCommit("query", 0, (SinkPart(path="part", topic=TOPIC, messages=1),)))
        assert fs.exists(f"{ROOT}/{INCOMING_DIR}/query/{begun_name(0)}")
        monkeypatch.undo()
