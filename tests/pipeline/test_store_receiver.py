"""The store of another program as the input of a pipeline: its sealed bundles are copied, each at least once."""

import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

import quiver
from quiver import Bundle, Settings
from quiver.cli.main import main
from quiver.errors import DirectoryInUseError, PipelineError, UsageError
from quiver.observe import InMemoryObserver
from quiver.pipeline.config.store import StoreReceiverConfig
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.ingest import ingest
from quiver.pipeline.processes.child import ChildContext
from quiver.receivers.store_receiver import StoreReceiver
from stub_watchdog import StubWatchdog

SMALL = Settings(segment_bytes_max=2_000, delete_grace_s=0.0)


def bundle(number, size=10):
    batch = pa.record_batch({"n": [number], "pad": ["x" * size]})
    return Bundle({30: batch, 40: batch}, ingested_at_ns=10**18 + number)


def pipeline(tmp_path, **config):
    nodes = {
        "in": {"type": "urn:quiver:store:receiver", "config": {"store": str(tmp_path / "theirs"), **config}},
        "store": {"type": "processor:persistence", "config": {"path": str(tmp_path / "ours")}},
        "out": {"type": "exporter:quiver", "config": {"path": str(tmp_path / "copy")}},
    }
    inside = {"nodes": nodes, "connections": [{"from": "in", "to": "store"}, {"from": "store", "to": "out"}]}
    return {"version": "otel_dataflow/v1", "groups": {"a": {"pipelines": {"b": inside}}}}


def load(value):
    return load_pipeline(yaml.safe_dump(value), source="p.yaml", values={})[0]


def numbers(path):
    return [found[30]["n"][0].as_py() for _, found in quiver.read(path).bundles()]


@pytest.fixture
def theirs(tmp_path):
    with quiver.open(tmp_path / "theirs", SMALL, background=False) as store:
        yield store


@pytest.fixture
def ours(tmp_path):
    with quiver.open(tmp_path / "ours", background=False) as store:
        yield store


@pytest.fixture
def receiver_of(ours, tmp_path):
    """Return a function that makes receivers of `ours`, which `take` runs; they are stopped at the end."""
    made = []

    def make(observer=None, **config):
        settings = StoreReceiverConfig.model_validate({"store": str(tmp_path / "theirs"), **config}).settings()
        made.append(StoreReceiver(ours, settings, observer=observer or InMemoryObserver()))
        return made[-1]

    yield make
    for one in made:
        one.stop(0)


def take_all(receiver):
    taken = 0
    while more := receiver.take():
        taken += more
    return taken


def test_sealed_bundles_of_the_other_store_are_copied(theirs, ours, receiver_of):
    """With all slots and times, during appends; bundles that both programs resolved are deleted from its disk."""
    receiver = receiver_of()
    for number in range(30):
        theirs.ingest(bundle(number))
    theirs.seal()
    assert take_all(receiver) == 30
    theirs.ingest(bundle(30))
    assert take_all(receiver) == 0  # not sealed yet
    theirs.seal()
    assert take_all(receiver) == 1
    found = [one for _, one in quiver.read(ours.path).bundles()]
    assert found == [bundle(number) for number in range(31)]
    assert [one.ingested_at_ns for one in found] == [10**18 + number for number in range(31)]
    theirs.maintain()
    assert len(theirs.internals.catalog) == 0


def test_a_bundle_stored_but_not_acknowledged_is_stored_again(theirs, ours, receiver_of):
    """It is synced here before it is acknowledged there, so nothing is lost between the two."""
    theirs.ingest(bundle(0))
    theirs.seal()
    receiver = receiver_of()
    steps, sync = [], ours.sync
    ours.sync = lambda: (steps.append("synced"), sync())
    receiver._subscriber = receiver._subscribe()
    receiver._position = receiver._subscriber.initial()
    receiver._subscriber.commit = lambda _: (steps.append("confirm"), (_ for _ in ()).throw(OSError("the disk")))
    with pytest.raises(OSError, match="the disk"):
        receiver.take()
    assert steps == ["synced", "confirm"]
    receiver.stop(0)
    assert take_all(receiver_of()) == 1
    assert numbers(ours.path) == [0, 0]


def test_a_failed_acknowledgement_is_retried_alone(theirs, ours, receiver_of):
    """While the other disk is full, the bundle is not stored here again."""
    for number in range(5):
        theirs.ingest(bundle(number))
    theirs.seal()
    receiver = receiver_of()
    receiver._subscriber = receiver._subscribe()
    receiver._position = receiver._subscriber.initial()
    commit, tries = receiver._subscriber.commit, []

    def full_at_first(end):
        tries.append(end)
        if len(tries) < 4:
            raise OSError(28, "No space left on device")
        commit(end)

    receiver._subscriber.commit = full_at_first
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            receiver.take()
    assert receiver.take() == 5
    assert numbers(ours.path) == list(range(5))


def test_a_store_that_was_created_again_is_another_one(tmp_path, ours, receiver_of):
    """Its numbers start again; none of its bundles counts as read."""
    receiver = receiver_of()
    for first in (0, 100):
        with quiver.open(tmp_path / "theirs", SMALL, background=False) as theirs:
            theirs.register("pipeline", start="earliest")
            for number in range(first, first + 3 + first // 10):
                theirs.ingest(bundle(number))
                theirs.seal()
        if first:
            with pytest.raises(quiver.DataLossError, match="was removed or replaced"):
                receiver.take()
            receiver._release()
        take_all(receiver)
        shutil.rmtree(tmp_path / "theirs")
    assert numbers(ours.path) == [*range(3), *range(100, 113)]


def test_a_receiver_continues_at_its_position(theirs, ours, receiver_of):
    """By its name; a new name starts at the beginning, or with new data."""
    theirs.ingest(bundle(0))
    theirs.seal()
    first = receiver_of()
    assert take_all(first) == 1
    with pytest.raises(DirectoryInUseError, match="subscriber pipeline"):
        receiver_of().take()
    first.stop(0)
    late = receiver_of(subscriber="late", start="latest")
    assert take_all(late) == 0
    theirs.ingest(bundle(1))
    theirs.seal()
    assert [take_all(receiver_of()), take_all(late), take_all(receiver_of(subscriber="b"))] == [1, 1, 2]


def test_every_core_of_the_other_store_is_read(tmp_path, ours, receiver_of):
    with quiver.open(tmp_path / "theirs", SMALL, cores=2, background=False) as theirs:
        for number in range(40):
            theirs.ingest(bundle(number))
        theirs.seal()
        receiver = receiver_of()
        assert take_all(receiver) == 40
        assert take_all(receiver) == 0
        receiver.stop(0)
    assert sorted(numbers(ours.path)) == list(range(40))


def test_dropped_bundles_of_the_other_store_are_counted(tmp_path, ours, receiver_of):
    """They do not block the receiver."""
    settings = Settings(
        segment_bytes_max=2_000, wal_rotate_bytes=2_000, size_cap_bytes=60_000, size_cap_policy="drop_oldest",
        delete_grace_s=0.0,
    )  # fmt: skip
    observer = InMemoryObserver()
    with quiver.open(tmp_path / "theirs", settings, background=False) as theirs:
        receiver = receiver_of(observer)
        assert receiver.take() == 0
        for number in range(200):
            theirs.ingest(bundle(number, size=500))
        theirs.seal()
        taken = take_all(receiver)
        receiver.stop(0)
    got = numbers(ours.path)
    assert got == list(range(200 - taken, 200))
    assert 0 < taken < 200
    assert observer.total("quiver.subscriber.dropped_bundles_total") == 200 - taken


def test_damaged_bundles_are_skipped(theirs, ours, receiver_of, caplog):
    """And logged with the name of the file."""
    for number in range(3):
        theirs.ingest(bundle(number))
        theirs.seal()
    damaged = Path(theirs.internals.catalog.segments()[1].path)
    damaged.chmod(0o600)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged.write_bytes(data)
    take_all(receiver_of())
    assert numbers(ours.path) == [0, 2]
    assert str(damaged) in caplog.text


def test_a_receiver_waits_for_a_full_store(tmp_path, theirs, receiver_of, monkeypatch):
    """Bundles that were not stored here are not acknowledged there; a waiting receiver can be stopped."""
    theirs.ingest(bundle(0))
    theirs.seal()
    receiver = receiver_of()
    asked = threading.Event()

    def full(_bundle):
        asked.set()
        raise quiver.CapacityError("full")

    with monkeypatch.context() as patched:
        patched.setattr(receiver._store, "ingest", full)
        receiver.start()
        assert asked.wait(20)
        receiver.stop(20)
    assert take_all(receiver_of()) == 1


@pytest.mark.timeout(60)
def test_a_pipeline_copies_the_data_of_another_program(tmp_path):
    """Even if its store is created after the start of the pipeline."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    watchdog = StubWatchdog()
    child = threading.Thread(
        target=ingest, args=(ChildContext(load(pipeline(tmp_path, poll_interval="5ms")), run_dir, watchdog),)
    )
    child.start()
    try:
        with quiver.open(tmp_path / "theirs", SMALL) as theirs:
            for number in range(50):
                theirs.ingest(bundle(number))
            theirs.seal()
            while "pipeline" not in theirs.stats()["subscribers"]:
                theirs.maintain()
                watchdog.gone.wait(0.005)
            while not theirs.all_subscribers_drained():
                theirs.maintain()
                watchdog.gone.wait(0.005)
    finally:
        watchdog.gone.set()
        child.join()
    assert numbers(tmp_path / "ours") == list(range(50))


def test_check_describes_the_store_to_read(tmp_path, monkeypatch, capsys):
    """Its path and the subscriber."""
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump(pipeline(tmp_path, subscriber="sidecar")))
    monkeypatch.setattr("sys.argv", ["quiver", "run", str(file), "--check"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    output = " ".join(capsys.readouterr().out.split())
    assert f"reads: store {tmp_path}/theirs" in output
    assert "as subscriber: sidecar" in output


def test_loops_are_detected(tmp_path):
    """The pipeline's own store is refused; a store to which an exporter writes is a warning."""
    own = pipeline(tmp_path, store=str(tmp_path / "ours") + "/")
    with pytest.raises(PipelineError, match="in would read what store of this pipeline keeps"):
        load(own)
    (tmp_path / "ours").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    for way in ("link", "ours/core_0"):
        with pytest.raises(PipelineError, match="in would read what store of this pipeline keeps"):
            load(pipeline(tmp_path, store=str(tmp_path / way)))
    around = pipeline(tmp_path, store=str(tmp_path / "copy"))
    assert any("which in reads: the data forms a loop" in one for one in describe(load(around))["says"])


@pytest.mark.parametrize(
    ("urn", "config", "says"),
    [
        ("store", {"store": "theirs"}, "subscriber pipeline of the store .*/theirs"),
        ("topic", {"topics": "theirs", "topic": "a/b"}, "subscription pipeline of the topic a/b in .*/theirs"),
    ],
)
def test_a_subscriber_has_one_receiver(tmp_path, monkeypatch, urn, config, says):
    """A second receiver with the same subscriber is refused; with another name it is accepted."""
    monkeypatch.chdir(tmp_path)
    value = pipeline(tmp_path)
    inside = value["groups"]["a"]["pipelines"]["b"]
    named = "subscriber" if urn == "store" else "subscription"
    for name in ("in", "again"):
        inside["nodes"][name] = {"type": f"urn:quiver:{urn}:receiver", "config": {**config}}
    inside["connections"].append({"from": "again", "to": "store"})
    inside["nodes"]["again"]["config"][next(iter(config))] = str(tmp_path / "theirs") + "/"
    with pytest.raises(PipelineError, match=f"(in|again) and (in|again) cannot both be {says}: use another name"):
        load(value)
    inside["nodes"]["again"]["config"][named] = "second"
    assert len(load(value).receivers) == 2


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"store": ""}, "store"),
        ({"subscriber": "a b"}, "subscriber: "),
        ({"start": "soon"}, "start: 'soon' is not available"),
        ({"poll_interval": 0}, "poll_interval must be positive"),
        ({"path": "x"}, "unknown key path"),
    ],
)
def test_invalid_settings_are_refused(tmp_path, config, says):
    with pytest.raises(PipelineError, match=says):
        load(pipeline(tmp_path, **config))


def test_a_missing_store_is_an_error(tmp_path, receiver_of):
    """For a directory that does not contain one yet."""
    (tmp_path / "theirs").mkdir()
    with pytest.raises(UsageError, match="is not the directory of a store"):
        receiver_of().take()
