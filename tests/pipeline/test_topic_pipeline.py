"""A topic as the input of a pipeline: from the file to requests in its store, each at least once."""

import threading

import pytest
import yaml
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import quiver
from quiver.cli.main import main
from quiver.errors import CapacityError, PipelineError
from quiver.metadata import MetadataLocation
from quiver.objects import ObjectLocation
from quiver.observe import InMemoryObserver
from quiver.pipeline.config.topic import TopicReceiverConfig
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.ingest import ingest
from quiver.pipeline.processes.child import ChildContext
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.receivers.topic_receiver import TopicReceiver
from quiver.topics import TopicStore
from quiver.topics.dispatch.saved import SubscriptionFiles
from stub_watchdog import StubWatchdog

TOPIC = "default/otlp"
LOGS = {"otlp_signal": "logs"}


def request(number):
    made = ExportLogsServiceRequest()
    made.resource_logs.add().scope_logs.add().log_records.add().body.int_value = number
    return made.SerializeToString()


def pipeline(tmp_path, **config):
    nodes = {
        "in": {"type": "receiver:topic", "config": {"topics": str(tmp_path / "topics"), "topic": TOPIC, **config}},
        "store": {"type": "processor:persistence", "config": {"path": str(tmp_path / "buffer")}},
        "out": {"type": "exporter:topic", "config": {"topics": str(tmp_path / "topics"), "topic": "default/copy"}},
    }
    connections = [{"from": "in", "to": "store"}, {"from": "store", "to": "out"}]
    inside = {"nodes": nodes, "connections": connections}
    return {"version": "otel_dataflow/v1", "groups": {"a": {"pipelines": {"b": inside}}}}


def loaded(tmp_path, **config):
    return load_pipeline(yaml.safe_dump(pipeline(tmp_path, **config)), source="p.yaml", values={})[0]


def confirmed(tmp_path):
    return SubscriptionFiles(REAL_FILES, f"{tmp_path}/topics/{TOPIC}").load("pipeline").next_offset


def requests(path):
    return [value for _, bundle in quiver.read(path).bundles() for value in bundle[60].column(0).to_pylist()]


@pytest.fixture
def topics(tmp_path):
    with TopicStore.open(tmp_path / "topics", background=False) as store:
        yield store


def receiver_of(store, tmp_path, **config):
    given = TopicReceiverConfig.model_validate({"topics": str(tmp_path / "topics"), "topic": TOPIC, **config})
    return TopicReceiver(store, given.settings(), observer=InMemoryObserver())


@pytest.mark.timeout(60)
def test_a_pipeline_reads_the_messages_of_a_topic(tmp_path):
    """Even if the topic is created after the start, and while another process appends."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    watchdog = StubWatchdog()
    context = ChildContext(loaded(tmp_path, poll_interval="5ms"), run_dir, watchdog)
    child = threading.Thread(target=ingest, args=(context,))
    child.start()
    try:
        with TopicStore.open(tmp_path / "topics", background=False) as topics:
            log = topics.topic(TOPIC)
            for number in range(5):
                log.append(request(number), attributes=LOGS)
            subscription = tmp_path / "topics" / TOPIC / "subscriptions" / "pipeline.sub"
            while not subscription.exists() or confirmed(tmp_path) < 5:
                watchdog.gone.wait(0.005)
    finally:
        watchdog.gone.set()
        child.join()
    assert requests(tmp_path / "buffer") == [request(number) for number in range(5)]


def test_a_message_stored_but_not_acknowledged_is_stored_again(tmp_path, topics):
    """It is synced here before it is acknowledged, so nothing is lost if the process dies between the two."""
    log = topics.topic(TOPIC)
    log.append(request(1), attributes=LOGS)
    with quiver.open(tmp_path / "buffer", background=False) as store:
        receiver = receiver_of(store, tmp_path)
        synced, confirm = [], receiver._progress.confirm
        store_sync = store.sync
        store.sync = lambda: (synced.append("sync"), store_sync())
        receiver._progress.confirm = lambda offset: (synced.append(offset), confirm(offset))
        assert receiver.take() == 1
        assert synced[-2:] == ["sync", 1]
        log.append(request(2), attributes=LOGS)
        receiver._progress.confirm = lambda _: (_ for _ in ()).throw(OSError("the disk"))
        with pytest.raises(OSError, match="the disk"):
            receiver.take()
        receiver.stop(0)
        again = receiver_of(store, tmp_path)
        assert again.take() == 1
        again.stop(0)
        store.seal()
    assert requests(tmp_path / "buffer") == [request(1), request(2), request(2)]


def test_invalid_messages_are_skipped(tmp_path, topics):
    """And counted; a message without a signal has the one in the pipeline file."""
    log = topics.topic(TOPIC)
    log.append(b"\xff\xff", attributes=LOGS)
    log.append(request(1))
    log.append(request(2), attributes={"otlp_signal": "rumours"})
    with quiver.open(tmp_path / "buffer", background=False) as store:
        receiver = receiver_of(store, tmp_path, signal="logs")
        assert receiver.take() == 3
        receiver.stop(0)
        store.seal()
    assert requests(tmp_path / "buffer") == [request(1)]
    assert confirmed(tmp_path) == 3


def test_a_receiver_waits_for_a_full_store(tmp_path, topics):
    """No message is skipped, and stopping does not wait."""
    topics.topic(TOPIC).append(request(1), attributes=LOGS)
    with quiver.open(tmp_path / "buffer", background=False) as store:
        receiver = receiver_of(store, tmp_path)

        def full(*_, **__):
            receiver.stop(0)
            raise CapacityError("the store", held_by=())

        real, store.ingest = store.ingest, full
        assert receiver.take() == 0
        store.ingest = real
        receiver = receiver_of(store, tmp_path)
        assert receiver.take() == 1
        receiver.stop(0)


def test_a_new_subscription_may_start_at_the_end(tmp_path, topics):
    """The position is durable."""
    log = topics.topic(TOPIC)
    log.append(request(1), attributes=LOGS)
    with quiver.open(tmp_path / "buffer", background=False) as store:
        receiver = receiver_of(store, tmp_path, start="latest")
        assert receiver.take() == 0
        log.append(request(2), attributes=LOGS)
        assert receiver.take() == 1
        receiver.stop(0)


def test_check_describes_topics_to_read_and_write(tmp_path, capsys, monkeypatch):
    """Each with its subscription, its interval and its guarantee."""
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(pipeline(tmp_path)))
    monkeypatch.setattr("sys.argv", ["quiver", "run", str(path), "--check"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    output = capsys.readouterr().out
    assert f"reads: topic {TOPIC} of {tmp_path}/topics" in " ".join(output.split())
    assert "as subscription: pipeline" in output
    assert "each at least once" in output
    assert f"to: topic default/copy of {tmp_path}/topics" in " ".join(output.split())
    assert "a batch every 1 s" in output


def test_a_loop_is_a_warning(tmp_path):
    given = pipeline(tmp_path)
    nodes = given["groups"]["a"]["pipelines"]["b"]["nodes"]
    nodes["out"]["config"]["topic"] = TOPIC
    checked = load_pipeline(yaml.safe_dump(given), source="p.yaml", values={})[0]
    assert any("which in reads: the data forms a loop" in one for one in describe(checked)["says"])


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"topic": "otlp"}, "topic: 'otlp' is not a topic"),
        ({"subscription": "a b"}, "subscription: 'a b' is not a subscription name"),
        ({"start": "soon"}, "start: 'soon' is not available"),
        ({"poll_interval": 0}, "poll_interval must be positive"),
        ({"insecure": True}, "unknown key insecure"),
        ({"topik": "x"}, "did you mean topic"),
        ({"metadata": "sqlite:///m.db"}, "give objects, too"),
        ({"objects": "ftp://x"}, "no backend for ftp"),
        ({"objects": "cold", "metadata": {"endpoint": "etcd://h:1", "passwort": "x"}}, "did you mean 'password'"),
        ({"objects": "cold", "metadata": "redis://h"}, "is none of etcd://"),
    ],
)
def test_invalid_settings_are_refused(tmp_path, config, says):
    with pytest.raises(PipelineError, match=says):
        loaded(tmp_path, **config)


def test_credentials_of_etcd_and_buckets_are_settings(tmp_path, capsys, monkeypatch):
    """As mappings of both the receiver and the exporter; no secret is shown."""
    bucket = {"backend": "s3", "root": "s3://bucket/x", "options": {"access_key": "AKIATEST", "secret_key": "hush-s3"}}
    etcd = {"endpoint": "etcds://h:1", "ca_file": "ca.pem", "user": "quiver", "password": "hush-etcd"}
    given = pipeline(tmp_path, objects=bucket, metadata=etcd)
    nodes = given["groups"]["a"]["pipelines"]["b"]["nodes"]
    nodes["out"]["config"] |= {"objects": bucket, "metadata": etcd}
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(given))
    checked = load_pipeline(path.read_text(), source="p.yaml", values={})[0]
    configs = [node.config for node in checked.nodes.values() if hasattr(node.config, "metadata")]
    assert len(configs) == 2
    for config in configs:
        location = MetadataLocation.of(config.metadata)
        assert (location.endpoints, location.access.password) == (("https://h:1",), "hush-etcd")
        assert ObjectLocation.of(config.objects).options["secret_access_key"] == "hush-s3"
        assert "hush" not in repr(config) + repr(config.settings())
    monkeypatch.setattr("sys.argv", ["quiver", "run", str(path), "--check"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "hush" not in "".join(capsys.readouterr())
