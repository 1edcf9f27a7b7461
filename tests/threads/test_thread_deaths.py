"""
Every background thread of the library, ended by an unexpected error: its owner fails loudly.

Data that is accepted and then never synced, sealed, sent or read would be worse than an error.
"""

import queue
import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import quiver
from quiver import Bundle, Settings
from quiver.aof import AofConfig, AofManager
from quiver.delivery.policy import RetryPolicy
from quiver.errors import SenderHaltedError, StoreFailedError
from quiver.exporters import otap_grpc
from quiver.exporters.forward import BundleForwarder
from quiver.exporters.otap_grpc import OtapGrpcSender
from quiver.exporters.settings import ExporterSettings
from quiver.objects.location import ObjectLocation
from quiver.observe import InMemoryObserver
from quiver.pipeline.config.store import FleetReceiverConfig, StoreReceiverConfig
from quiver.pipeline.config.topic import TopicReceiverConfig
from quiver.pipeline.forwarding import Forwarding
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.qwp import Sender
from quiver.qwp.slots.ring import RingSettings
from quiver.qwp.slots.slot import open_slot
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.settings import OtlpSettings
from quiver.receivers.store_receiver import StoreReceiver
from quiver.receivers.topic_receiver import TopicReceiver
from quiver.spark.exporters.delivery import BundleDelivery
from quiver.spark.exporters.retry_queue import RetryQueue
from quiver.spark.processors.bad_bundle_filter import BadBundleFilter
from quiver.topics import TopicStore
from quiver.topics.cold.tier import ObjectColdTier
from quiver.topics.staged_import import StagedImport

PATIENCE_S = 60
OFFLINE = "ws::addr=127.0.0.1:1;initial_connect_retry=async;"
UNFORESEEN = "nobody thought of this"


class Unforeseen(RuntimeError):
    def __init__(self):
        super().__init__(UNFORESEEN)


def fail(*_arguments, **_keywords):
    raise Unforeseen


class Deaths:
    """The deaths of threads, as `threading` reports them; each must have been counted and reported before."""

    def __init__(self, caplog):
        self.observer = InMemoryObserver()
        self._raised = queue.SimpleQueue()
        self._caplog = caplog

    def hook(self, args):
        self._raised.put(args)

    def await_one(self, name):
        args = self._raised.get(timeout=PATIENCE_S)
        assert isinstance(args.exc_value, Unforeseen), args
        assert args.thread.name.startswith(name)
        assert f"quiver.worker.died worker={args.thread.name}" in self._caplog.text
        args.thread.join(PATIENCE_S)


@pytest.fixture
def deaths(monkeypatch, caplog):
    made = Deaths(caplog)
    monkeypatch.setattr(threading, "excepthook", made.hook)
    return made


def counted(deaths, kind):
    return deaths.observer.counts["quiver.worker.deaths_total", (("worker", kind),)]


def bundle(number=0):
    return Bundle({30: pa.record_batch({"n": [number]})})


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("root", ["below", None], ids=["files", "memory"])
def test_maintenance_of_topics(tmp_path, monkeypatch, deaths, root):
    """Formerly `append` still succeeded, although nothing was synced any more."""
    path = None if root is None else tmp_path / root
    store = TopicStore.open(path, settings={"wal": {"fsync_interval_ms": 20}}, observer=deaths.observer)
    log = store.topic("default/orders")
    log.append(b"before")
    monkeypatch.setattr(store, "import_staged", fail)
    deaths.await_one("quiver-topics")
    assert counted(deaths, "quiver-topics") == 1
    for refused in (
        lambda: log.append(b"after"),
        lambda: log.append_batch([b"after"]),
        lambda: log.append(b"after", durable=True),
        lambda: store.topic("default/another"),
        lambda: store.subscribe("default/another", "s"),
    ):
        with pytest.raises(StoreFailedError, match=UNFORESEEN):
            refused()
    monkeypatch.undo()
    with pytest.raises(StoreFailedError, match=UNFORESEEN):
        store.close()
    if path is not None:
        with TopicStore.open(path) as again:
            assert [one.payload for one in again.topic("default/orders").reader(0, follow=False)] == [b"before"]


@pytest.mark.parametrize("died", [True, False], ids=["died", "alive"])
def test_topics_close_despite_errors(tmp_path, monkeypatch, deaths, died):
    """Formerly the error that ended the thread also ended each `close`, and the directory could not be opened again."""
    settings = {"wal": {"fsync_interval_ms": 20}}
    store = TopicStore.open(
        tmp_path / "topics",
        objects=str(tmp_path / "cold"),
        settings=settings,
        observer=deaths.observer,
        background=died,
    )
    store.topic("default/orders").append(b"kept")
    monkeypatch.setattr(StagedImport, "import_all", fail)
    if died:
        deaths.await_one("quiver-topics")
    with pytest.raises(StoreFailedError if died else Unforeseen, match=UNFORESEEN):
        store.close()
    with pytest.raises(Unforeseen):
        TopicStore.open(tmp_path / "topics", objects=str(tmp_path / "cold"))
    monkeypatch.undo()
    assert not [one.name for one in threading.enumerate() if one.name.startswith("quiver-topics")]
    with TopicStore.open(tmp_path / "topics", objects=str(tmp_path / "cold")) as again:
        assert [one.payload for one in again.topic("default/orders").reader(0, follow=False)] == [b"kept"]


@pytest.mark.parametrize(
    ("work", "name"), [("_work_due", "quiver-topics-upload"), ("_renew_due", "quiver-topics-lease")]
)
def test_threads_of_the_object_tier_of_topics(tmp_path, monkeypatch, deaths, work, name):
    """Without one of them nothing is uploaded, without the other one another machine takes over the topic."""
    real, may_die = getattr(ObjectColdTier, work), threading.Event()
    monkeypatch.setattr(ObjectColdTier, work, lambda tier: fail() if may_die.is_set() else real(tier))
    store = TopicStore.open(tmp_path / "topics", objects=(tmp_path / "objects").as_uri(), observer=deaths.observer)
    log = store.topic("default/orders")
    log.append(b"before")
    may_die.set()
    store._cold._notify()
    deaths.await_one(name)
    assert counted(deaths, name) == 1
    with pytest.raises(StoreFailedError, match=UNFORESEEN):
        log.append(b"after")
    with pytest.raises(StoreFailedError, match=UNFORESEEN):
        store.topic("default/another")
    with pytest.raises(StoreFailedError, match=UNFORESEEN):
        store.close()


# ── AOF ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lane", ["flush", "maintenance", "tiers", "sinks", "status"])
def test_threads_of_an_aof_manager(tmp_path, monkeypatch, deaths, lane):
    """They are shared: every log of the manager refuses, even one that is opened later."""
    manager = AofManager.open(str(tmp_path), AofConfig(), observer=deaths.observer)
    logs = [manager.log("a"), manager.log("b")]
    logs[0].append_record(b"before")
    workers = manager._workers
    chosen = getattr(workers, f"_{lane}")
    monkeypatch.setattr(chosen, "take", fail)
    chosen.schedule(logs[0], 0.0)
    deaths.await_one(f"aof-{lane}")
    for log in (*logs, manager.log("c")):
        with pytest.raises(StoreFailedError, match=UNFORESEEN):
            log.append_record(b"after")
    monkeypatch.undo()
    manager.close()


# ── store ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("work", "name"), [("_maintain", "quiver-maintain"), ("_flush", "quiver-log")])
def test_threads_of_a_store(tmp_path, monkeypatch, deaths, work, name):
    store = quiver.open(tmp_path, observer=deaths.observer)
    monkeypatch.setattr(store._background, work, fail)
    store.ingest(bundle())
    store._background.wake()
    deaths.await_one(name)
    with pytest.raises(StoreFailedError, match=UNFORESEEN):
        store.ingest(bundle())
    with pytest.raises(StoreFailedError, match=UNFORESEEN):
        store.ingest(bundle(), durable=True)
    monkeypatch.undo()
    store.close()


def test_the_thread_of_the_cores(tmp_path, monkeypatch, deaths):
    """Other processes no longer see the claims of this one."""
    store = quiver.open(tmp_path, cores=2, observer=deaths.observer)
    monkeypatch.setattr(store._background, "_maintain", fail)
    store._background.wake()
    deaths.await_one("quiver-maintain")
    with pytest.raises(StoreFailedError, match=UNFORESEEN):
        store.ingest(bundle())
    monkeypatch.undo()
    store.close()


def test_the_thread_of_the_object_tier_of_a_store(tmp_path, monkeypatch, deaths):
    settings = Settings(cold_objects=ObjectLocation.from_url((tmp_path / "objects").as_uri()))
    store = quiver.open(tmp_path / "store", settings, observer=deaths.observer)
    monkeypatch.setattr(store._cold_tier, "run", fail)
    store.ingest(bundle())
    store.seal()
    store.maintain()
    deaths.await_one("quiver-cold")
    assert UNFORESEEN in store.stats()["cold"]["problem"]
    with pytest.raises(StoreFailedError, match=UNFORESEEN):
        store.ingest(bundle())
    store.close()


def test_the_thread_of_a_callback(tmp_path, deaths, caplog):
    """The caller's function raised: the store and the subscriber continue, and the failure is reported."""
    with quiver.open(tmp_path, observer=deaths.observer) as store:
        subscriber = store.register("s", start="earliest")
        subscriber.on_bundle(fail)
        store.ingest(bundle())
        store.seal()
        deaths.await_one("quiver-on-bundle")
        assert "quiver.subscriber.callback subscriber=s" in caplog.text
        with subscriber.next_bundle(timeout=PATIENCE_S) as handle:
            handle.ack()


# ── QWP ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_thread_of_a_sender(tmp_path, monkeypatch, deaths):
    events = queue.SimpleQueue()
    sender = Sender.from_conf(f"{OFFLINE}sf_dir={tmp_path};", on_error=events.put, observer=deaths.observer)
    monkeypatch.setattr(sender._loop, "_open", fail)
    deaths.await_one("quiver-qwp-sender")
    assert UNFORESEEN in str(events.get(timeout=PATIENCE_S))
    with pytest.raises(SenderHaltedError, match=UNFORESEEN):
        sender.row("t", columns={"n": 1})
    sender.close()


def test_the_thread_that_calls_the_error_handler_of_a_sender(tmp_path, monkeypatch, deaths, caplog):
    """Errors that it did not get are logged, and so is every later one."""
    sender = Sender.from_conf(f"{OFFLINE}sf_dir={tmp_path};", on_error=lambda _: None, observer=deaths.observer)
    inbox = sender._inbox
    monkeypatch.setattr(inbox, "_deliver", fail)
    inbox.offer("the first")
    deaths.await_one("quiver-qwp-errors")
    assert "the error handler is no longer called" in caplog.text
    monkeypatch.setattr("quiver.qwp.inbox._log_error", caplog.records.append)
    inbox.offer("the second")
    assert caplog.records[-1] == "the second"
    sender.close()


def test_the_threads_that_empty_other_slots(tmp_path, monkeypatch, deaths):
    """Each remaining slot is reported as failed, and is not marked: the next sender tries again."""
    for name in ("a", "b", "c"):
        slot = open_slot(REAL_FILES, str(tmp_path), name, RingSettings(4096, 1 << 16, 0.0), observer=deaths.observer)
        slot.ring.append(b"QWP1" * 3)
        slot.close()
    reported = queue.SimpleQueue()
    monkeypatch.setattr("quiver.qwp.drainers.open_slot", fail)
    conf = f"{OFFLINE}sf_dir={tmp_path};drain_orphans=on;max_background_drainers=1;"
    sender = Sender.from_conf(conf, on_drainer=reported.put, observer=deaths.observer)
    deaths.await_one("quiver-qwp-drainer")
    events = [reported.get(timeout=PATIENCE_S) for _ in range(3)]
    assert [(one.sender_id, one.kind) for one in events] == [("a", "failed"), ("b", "failed"), ("c", "failed")]
    assert sender.total_background_drainers_failed == 3
    assert not list(tmp_path.glob("*/.failed"))
    sender.close()


# ── pipelines ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_thread_of_a_store_receiver(tmp_path, monkeypatch, deaths):
    """Its store refuses: the process ends, and its supervisor starts another one."""
    with quiver.open(tmp_path / "theirs") as theirs, pytest.raises(StoreFailedError, match=UNFORESEEN):
        theirs.ingest(bundle())
        store = quiver.open(tmp_path / "ours")
        config = StoreReceiverConfig.model_validate({"store": str(tmp_path / "theirs")})
        receiver = StoreReceiver(store, config.settings(), observer=deaths.observer)
        monkeypatch.setattr(receiver, "take", fail)
        receiver.start()
        deaths.await_one("quiver-store-receiver")
        receiver.stop(PATIENCE_S)
        try:
            store.ingest(bundle())
        finally:
            store.close()


def test_the_thread_of_a_fleet_receiver(tmp_path, monkeypatch, deaths):
    store = quiver.open(tmp_path / "ours")
    config = FleetReceiverConfig.model_validate({"objects": str(tmp_path / "fleet"), "subscriber": "lake"})
    receiver = config.receiver(store, deaths.observer)
    monkeypatch.setattr(receiver, "take", fail)
    receiver.start()
    deaths.await_one("quiver-fleet-receiver")
    receiver.stop(PATIENCE_S)
    with pytest.raises(StoreFailedError, match=UNFORESEEN):
        store.ingest(bundle())
    store.close()


def test_the_thread_of_a_topic_receiver(tmp_path, monkeypatch, deaths):
    store = quiver.open(tmp_path / "ours")
    config = TopicReceiverConfig.model_validate({"topics": str(tmp_path / "topics"), "topic": "default/otlp"})
    receiver = TopicReceiver(store, config.settings(), observer=deaths.observer)
    monkeypatch.setattr(receiver, "take", fail)
    receiver.start()
    deaths.await_one("quiver-topic-receiver")
    receiver.stop(PATIENCE_S)
    with pytest.raises(StoreFailedError, match=UNFORESEEN):
        store.ingest(bundle())
    store.close()


# ── exporters ────────────────────────────────────────────────────────────────────────────────────────────


class Confirming:
    """A destination that accepts everything."""

    def send(self, signal, request, batch_id=""):
        raise AssertionError("not asked")

    def close(self):
        pass


def test_the_threads_of_a_forwarder(tmp_path, monkeypatch, deaths):
    """All of them stop, its state has the reason, and a pipeline's process ends."""
    with quiver.open(tmp_path) as store:
        forwarder = BundleForwarder(store.register("out"), Confirming(), in_flight_max=2, observer=deaths.observer)
        monkeypatch.setattr(forwarder, "_await_breaker", fail)
        forwarder.start()
        deaths.await_one("quiver-forward")
        deaths.await_one("quiver-forward")
        assert UNFORESEEN in forwarder.state().halted
        assert not forwarder.forward_one()
        forwarding = object.__new__(Forwarding)
        forwarding._exporters = [SimpleNamespace(forwarder=forwarder)]
        with pytest.raises(StoreFailedError, match=UNFORESEEN):
            forwarding.require_alive()
        forwarder.stop()


def test_the_thread_that_reads_statuses_of_an_otap_stream(tmp_path, monkeypatch, deaths):
    """Requests without a status are sent again at once, not after their timeout; later ones use another stream."""
    with quiver.open(tmp_path) as store, OtapGrpcReceiver(store, OtlpSettings(listening_addr="127.0.0.1:0")) as far:
        sender = OtapGrpcSender(ExporterSettings(f"http://127.0.0.1:{far.port}", timeout_s=3600.0))
        real, times = otap_grpc.try_decode_status, iter([True])
        monkeypatch.setattr(otap_grpc, "try_decode_status", lambda data: fail() if next(times, False) else real(data))
        request = log_request()
        replies = [sender.send("logs", request) for _ in range(2)]
        deaths.await_one("quiver-otap logs")
        assert replies[-1].outcome == "confirmed"
        sender.close()


def log_request():
    made = ExportLogsServiceRequest()
    made.resource_logs.add().scope_logs.add().log_records.add(severity_text="x")
    return made.SerializeToString()


# ── Spark ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_thread_of_a_delivery_by_spark(tmp_path, monkeypatch, deaths):
    """No further batch is delivered: its failed bundles would never be retried."""
    quiver.open(tmp_path).close()
    monkeypatch.setattr("quiver.delivery.batches.BatchDelivery.drain", fail)
    with BundleDelivery(str(tmp_path), "out", fail, observer=deaths.observer) as delivery:
        deaths.await_one("quiver-drain")
        with pytest.raises(StoreFailedError, match=UNFORESEEN):
            delivery.deliver([])


def test_the_thread_of_the_retry_queue_of_an_exporter_on_spark(monkeypatch, deaths):
    monkeypatch.setattr(RetryQueue, "drain", fail)
    with BadBundleFilter(lambda *_: None, "out", RetryPolicy(on_exhausted="drop"), observer=deaths.observer) as sieve:
        sieve._queue._worker.start()
        deaths.await_one("quiver-retries")
        with pytest.raises(StoreFailedError, match=UNFORESEEN):
            sieve(None, 0)
