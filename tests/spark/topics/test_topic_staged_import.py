"""Batches staged and committed by a Spark sink are imported into topics once, after a crash at any step."""

import pytest

from disk_files import PowerCut
from quiver.errors import CorruptionError, UsageError
from quiver.primitives.batch_notes import BatchCommit, commit_name, done_name, parse_note_name, part_directory
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.disk.staged_commits import read_note
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.spark.topics.sink import commit_messages, discard_messages, is_batch_committed, stage_messages
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics import TopicSettings, TopicStore
from quiver.topics.format.message import MessageCodec, decode_message
from quiver.topics.format.sink_batch import (
    COMMITS,
    INCOMING_DIR,
    SinkPart,
    StagedMessage,
    decode_begun,
    decode_staged,
    encode_begun,
    encode_staged,
    named_tail,
)
from quiver.topics.reading.place import TopicPlace
from quiver.topics.settings import WalSettings

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/topics"
ORDERS, RETURNS = "default/orders", "default/returns"


def message(text, **attributes):
    return StagedMessage(text.encode(), 1_700_000_000_000, MessageCodec(ORDERS).tail_of(attributes))


def staged(fs, root, batch, texts, *, writer="query", partition=0, attempt="a"):
    """Stage the messages of one task; those in capitals belong to the other topic."""
    rows = [(RETURNS if text.isupper() else ORDERS, message(text)) for text in texts]
    return stage_messages(fs, root, rows, writer=writer, batch=batch, partition=partition, attempt=attempt)


def write(fs, root, batch, texts, *, writer="query", **more):
    """Stage a batch of two tasks and commit it."""
    half = len(texts) // 2
    found = [
        staged(fs, root, batch, texts[:half], writer=writer, partition=0, **more),
        staged(fs, root, batch, texts[half:], writer=writer, partition=1, **more),
    ]
    return commit_messages(fs, TopicPlace(root), writer=writer, batch=batch, staged=found, clock=ManualClock())


def open_topics(fs, root=ROOT, **wal):
    settings = TopicSettings(wal=WalSettings(**wal))
    return TopicStore.open(root, settings=settings, fs=fs, clock=ManualClock(), background=False)


def texts_of(store, topic=ORDERS):
    with store.topic(topic).reader("earliest", follow=False, on_lost="skip") as reader:
        return [one.payload.decode() for one in reader]


def left(fs, root=ROOT, writer="query"):
    directory = f"{root}/{INCOMING_DIR}/{writer}"
    return fs.list_dir(directory) if fs.exists(directory) else []


def test_messages_are_visible_after_the_commit(tmp_path):
    """Staged messages are not; a committed batch is appended in order, and only once."""
    root = str(tmp_path)
    found = staged(REAL_FILES, root, 0, ["a", "B"])
    with open_topics(REAL_FILES, root) as store:
        assert texts_of(store) == []
    assert commit_messages(REAL_FILES, TopicPlace(root), writer="query", batch=0, staged=[found])
    assert not write(REAL_FILES, root, 0, ["a", "B"], attempt="b")
    assert write(REAL_FILES, root, 1, ["c", "d", "E"])
    with open_topics(REAL_FILES, root) as store:
        assert texts_of(store) == ["a", "c", "d"]
        assert texts_of(store, RETURNS) == ["B", "E"]
    assert left(REAL_FILES, root) == [done_name(1)]


def test_an_imported_message_keeps_its_producer(tmp_path):
    """Attributes, key and time do not change, either."""
    rows = [(ORDERS, message("x", k="v", routing_key="me"))]
    found = stage_messages(REAL_FILES, str(tmp_path), rows, writer="etl", batch=7, partition=0, attempt="a")
    commit_messages(REAL_FILES, TopicPlace(str(tmp_path)), writer="etl", batch=7, staged=[found])
    with open_topics(REAL_FILES, str(tmp_path)) as store, store.topic(ORDERS).reader(0, follow=False) as reader:
        [one] = reader
    assert (one.producer_name, one.key, one.attributes["k"]) == ("etl:7:0:0", "me", "v")
    assert one.publish_time_ns == 1_700_000_000_000_000_000


def test_discarded_messages_are_never_imported(tmp_path):
    """A committed batch stays, even if the driver did not learn of its commit and discards it."""
    root = str(tmp_path)
    found = staged(REAL_FILES, root, 0, ["a"])
    discard_messages(REAL_FILES, root, writer="query", batch=0, staged=[found])
    assert left(REAL_FILES, root) == []
    assert write(REAL_FILES, root, 0, ["b", "c"])
    discard_messages(REAL_FILES, root, writer="query", batch=0, staged=[found])
    assert is_batch_committed(REAL_FILES, root, writer="query", batch=0)
    assert not is_batch_committed(REAL_FILES, root, writer="query", batch=1)


def test_an_open_store_imports_during_maintenance_and_on_close(tmp_path):
    """Both are needed: a sink commits without an import if it sees that the store is open."""
    root = str(tmp_path)
    with open_topics(REAL_FILES, root) as store:
        store.topic(ORDERS).append(b"own")
        write(REAL_FILES, root, 0, ["a", "b"])
        assert texts_of(store) == ["own"]
        assert left(REAL_FILES, root)[-1] != done_name(0)
        store.maintain()
        assert texts_of(store) == ["own", "a", "b"]
        write(REAL_FILES, root, 1, ["c"])
        write(REAL_FILES, root, 2, ["d"])
    with open_topics(REAL_FILES, root) as store:
        assert texts_of(store) == ["own", "a", "b", "c", "d"]
        assert store.topic(ORDERS).durable_offset() == 5
    assert left(REAL_FILES, root) == [done_name(2)]


def test_the_background_thread_imports_staged_batches(tmp_path):
    """A reader that follows the topic receives the message without a call to `maintain`."""
    with (
        TopicStore.open(tmp_path, settings={"wal": {"fsync_interval_ms": 20}}) as store,
        store.topic(ORDERS).reader("latest") as reader,
    ):
        write(REAL_FILES, str(tmp_path), 0, ["a"])
        assert next(iter(reader)).payload == b"a"


@pytest.mark.parametrize("loses_its_name", [False, True])
def test_a_sink_without_the_object_store_leaves_the_import_to_the_owner(tmp_path, loses_its_name):
    """Only the owner knows whether the topic was moved. With the object store, the sink owns the topic for a moment."""
    root, objects = f"{tmp_path}/topics", f"file://{tmp_path}/cold"
    with TopicStore.open(root, objects=objects, background=False) as store:
        store.topic(ORDERS).append(b"own")
        if loses_its_name:
            store.unload(ORDERS)
    if loses_its_name:
        REAL_FILES.remove(f"{root}/owner.id")
    found = staged(REAL_FILES, root, 0, ["a"])
    assert commit_messages(REAL_FILES, TopicPlace(root), writer="query", batch=0, staged=[found])
    assert commit_name(0) in left(REAL_FILES, root)
    found = staged(REAL_FILES, root, 1, ["b"])
    assert commit_messages(REAL_FILES, TopicPlace(root, objects), writer="query", batch=1, staged=[found])
    with TopicStore.open(root, objects=objects, background=False) as store:
        assert texts_of(store) == ["own", "a", "b"]


def test_a_sink_does_not_add_log_files_with_another_name(tmp_path):
    with open_topics(REAL_FILES, str(tmp_path), file_name="queue.log") as store:
        store.topic(ORDERS).append(b"own", durable=True)
        store.topic(ORDERS)._engine.wal.try_checkpoint()
    with pytest.raises(UsageError, match="give their name with fileName"):
        write(REAL_FILES, str(tmp_path), 0, ["a"])


def test_a_damaged_batch_does_not_block_others(tmp_path):
    """A part whose bytes differ from the commit is left where it is."""
    root = str(tmp_path)
    with open_topics(REAL_FILES, root) as store:
        write(REAL_FILES, root, 0, ["a", "b"], writer="bad")
        path = tmp_path / INCOMING_DIR / "bad" / part_directory(0, 1, "a") / "00000.part"
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        write(REAL_FILES, root, 0, ["c"], writer="good")
        assert store.import_staged() == 1
        assert store.import_staged() == 0
        assert set(texts_of(store)) <= {"a", "c"}
        assert commit_name(0) in left(REAL_FILES, root, "bad")


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────

BATCHES = (["a", "B", "c", "d"], ["e", "F", "G", "h", "i"])
WANTED = {ORDERS: ["a", "c", "d", "e", "h", "i"], RETURNS: ["B", "F", "G"]}


def every_batch(fs, root=ROOT):
    """Run a query that can be restarted, with and without an owner."""
    for number, texts in enumerate(BATCHES):
        if not is_batch_committed(fs, root, writer="query", batch=number):
            write(fs, root, number, texts)
    with open_topics(fs, root, rotate_max_bytes=700) as store:
        store.import_staged()


def disks_of_crashes(steps_of, *, kill):
    """Return a copy of the disk after each step, after a kill or a power loss at that point."""
    count = 0
    stop_at = [10**9]

    def on_step(*_):
        nonlocal count
        count += 1
        if count > stop_at[0]:
            raise PowerCut

    fs = CrashFileSystem(on_step=on_step)
    steps_of(fs)
    total, at = count, 0
    for at in range(total):
        count, stop_at[0] = 0, at
        fs = CrashFileSystem(on_step=on_step)
        with pytest.raises(PowerCut):
            steps_of(fs)
        for seed in (0,) if kill else (0, 1, 2, 3):
            count, stop_at[0] = 0, 10**9
            yield f"step {at}, seed {seed}", (fs.clone_after_kill() if kill else fs.clone_after_crash(seed))


@pytest.mark.parametrize("kill", [True, False], ids=["kill", "power"])
def test_a_crash_at_any_step_imports_each_message_once(kill):
    """The query is restarted on each copy of the disk."""
    for label, disk in disks_of_crashes(every_batch, kill=kill):
        every_batch(disk)
        with open_topics(disk) as store:
            for topic, wanted in WANTED.items():
                assert sorted(texts_of(store, topic)) == wanted, label
        assert left(disk) == [done_name(1)], label


@pytest.mark.parametrize("seed", range(6))
def test_offsets_reused_after_a_power_loss_lose_no_message(seed):
    """The owner's own messages are lost, imported ones get their offsets, and the owner dies before it records that."""

    def stop_at(op, suffix):
        def step(done, path):
            if (done, path.endswith(suffix)) == (op, True):
                raise PowerCut

        return step

    fs = CrashFileSystem()
    with pytest.raises(PowerCut), open_topics(fs) as store:
        store.topic(ORDERS).append_batch([b"own"] * 5)
        write(fs, ROOT, 0, ["a", "c", "d"])
        fs.on_step = stop_at("pwrite", "wal.log")
        store.import_staged()
    disk = fs.clone_after_crash(seed)
    disk.on_step = stop_at("rename", ".done")
    with pytest.raises(PowerCut):
        open_topics(disk)
    again = disk.clone_after_kill()
    with open_topics(again) as store:
        assert [text for text in texts_of(store) if text != "own"] == ["a", "c", "d"]


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────

NOTE = BatchCommit("q-1", 3, (SinkPart("00000000000000000003-00000-7/00000.part", ORDERS, 2),))


def test_notes_and_parts_have_golden_bytes():
    """Other programs may rely on them."""
    assert COMMITS.encode(NOTE) == (
        b'{"quiver_topic_batch": 1, "writer": "q-1", "batch": 3, '
        b'"parts": [["00000000000000000003-00000-7/00000.part", "default/orders", 2]]}\n' + COMMITS.encode(NOTE)[-9:]
    )
    assert encode_begun({"b/b": 2, "a/a": 1}).startswith(b'{"quiver_topic_batch": 1, "from": {"a/a": 1, "b/b": 2}}\n')
    frame = encode_staged(0, StagedMessage(b"hi", 1, bytes(17)))
    assert (
        frame.hex() == "00000000000000001f000000" + frame[12:16].hex() + "010000000000000011000000" + "00" * 17 + "6869"
    )
    assert decode_staged(frame[16:]) == StagedMessage(b"hi", 1, bytes(17))
    codec = MessageCodec(ORDERS)
    named = codec.encode(4, b"x", 5, named_tail(codec.tail_of({"k": "v"}), "q:1:0:2"))
    assert decode_message(named).producer_name == "q:1:0:2"
    assert decode_message(named).attributes == {"k": "v"}
    assert parse_note_name(commit_name(3)) == (3, "commit")
    assert parse_note_name("3.commit") is None


def test_notes_round_trip_or_are_refused():
    """Complete, cut at every byte, with every byte flipped, and with trailing junk."""
    data = COMMITS.encode(NOTE)
    assert COMMITS.decode(data) == Frame(NOTE, len(data))
    assert decode_begun(encode_begun({"a/a": 1})).value == {"a/a": 1}
    for end in range(len(data)):
        assert isinstance(COMMITS.decode(data[:end]), NeedMore)
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert isinstance(COMMITS.decode(flipped), NeedMore | Damage)
    assert isinstance(COMMITS.decode(data + b"x"), Damage)
    assert isinstance(decode_begun(data), Damage)


@pytest.mark.parametrize(
    "note",
    [
        BatchCommit("../x", 3, NOTE.parts),
        BatchCommit("q", 4, NOTE.parts),
        BatchCommit("q", 3, NOTE.parts * 2),
        BatchCommit("q", 3, (SinkPart("00000000000000000003-00000-7/../x", ORDERS, 2),)),
        BatchCommit("q", 3, (SinkPart(NOTE.parts[0].path, "a/../b", 2),)),
        BatchCommit("q", 3, (SinkPart(NOTE.parts[0].path, ORDERS, -1),)),
        BatchCommit("q", -1, ()),
    ],
)
def test_invalid_commits_are_damage(note, tmp_path):
    """A commit may name only files in the staging directory of its own writer."""
    assert isinstance(COMMITS.decode(COMMITS.encode(note)), Damage)
    path = tmp_path / "x"
    path.write_bytes(COMMITS.encode(note))
    with pytest.raises(CorruptionError):
        read_note(REAL_FILES, str(path), COMMITS.decode)
