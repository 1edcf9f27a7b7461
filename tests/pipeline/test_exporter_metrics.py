"""All exporters have the same metrics, for any destination, in any process, from the start."""

import threading
import urllib.request

import pyarrow as pa
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import quiver
from ports import free_ports
from quiver.delivery.dead_letters import DeadLetters
from quiver.delivery.exporter_stats import ExporterStats
from quiver.metrics import METRICS, OpenTelemetryObserver
from quiver.pipeline.exporter_figures import ExporterFigures
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.ingest import ingest
from quiver.pipeline.plugins import PLUGINS
from quiver.pipeline.processes.child import ChildContext
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.format.exporter_report import FAILURE_TYPES
from quiver.store.format.names import report_name, retry_set_name
from quiver.store.opening import open_store
from quiver.store.subscribers.retry_set import RetrySet
from stub_watchdog import StubWatchdog

CONFIGS = {
    "urn:quiver:parquet:exporter": {"path": "parquet"},
    "urn:otel:otlp:exporter": {"grpc_endpoint": "http://127.0.0.1:1"},
    "urn:otel:otap:exporter": {"grpc_endpoint": "http://127.0.0.1:1"},
    "urn:quiver:console:exporter": {},
    "urn:quiver:file:exporter": {"path": "files"},
    "urn:quiver:spark:exporter": {"format": "csv", "path": "csv"},
    "urn:quiver:quiver:exporter": {"path": "other"},
    "urn:quiver:topic:exporter": {"topics": "topics", "topic": "a/b"},
    "urn:quiver:questdb:exporter": {"conf": "ws::addr=127.0.0.1:9;sf_dir=sf;"},
    "urn:quiver:delta:exporter": {"path": "delta"},
    "urn:quiver:iceberg:exporter": {"path": "iceberg"},
}
"""The smallest config of each exporter."""

PREFIX = "quiver_exporter_"
CONTRACT = {
    **{(f"{PREFIX}{name}_total", ""): 0.0 for name in ("batches", "rows", "bytes")},
    **{(f"{PREFIX}failures_total", kind): 0.0 for kind in FAILURE_TYPES},
    **{
        (f"{PREFIX}{name}", ""): 0.0
        for name in ("last_success_timestamp_seconds", "retry_queue_bundles", "dead_letters", "behind_seconds")
    },
}
"""Metric name and failure type → the initial value. Every exporter has these metrics."""


def name_of(urn):
    return urn.split(":")[2]


def pipeline_of_all(directory, http_port, metrics_port, *, behind_processor=False):
    """Return a pipeline with a receiver, a store, and every kind of exporter, optionally each after a processor."""
    nodes = {
        "in": {
            "kind": "receiver", "plugin_urn": "urn:otel:otlp:receiver", "out_ports": {"o": {"destinations": ["store"]}},
            "config": {"protocols": {"http": {"listening_addr": f"127.0.0.1:{http_port}"}}},
        },
        "store": {
            "kind": "processor", "plugin_urn": "urn:otap:processor:persistence",
            "config": {"path": str(directory / "buffer")},
        },
    }  # fmt: skip
    exporters = [urn for urn, plugin in PLUGINS.items() if plugin.kind == "exporter"]
    firsts = []
    for urn in exporters:
        name = name_of(urn)
        config = {
            key: str(directory / value) if key in {"path", "topics"} else value for key, value in CONFIGS[urn].items()
        }
        nodes[name] = {"kind": "exporter", "plugin_urn": urn, "config": config}
        firsts.append(name)
        if behind_processor:
            firsts[-1] = f"{name}_filter"
            nodes[firsts[-1]] = {
                "kind": "processor", "plugin_urn": "urn:quiver:filter:processor", "config": {"keep": "true"},
                "out_ports": {"o": {"destinations": [name]}},
            }  # fmt: skip
    nodes["store"]["out_ports"] = {"o": {"destinations": firsts}}
    document = {"metrics": {"listen": f"127.0.0.1:{metrics_port}"}, "nodes": nodes}
    return load_pipeline(yaml.safe_dump(document), source="p.yaml", values={})[0]


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return [sample for family in families for sample in family.samples]


def of_exporters(samples):
    """Return exporter → its values for the names in `CONTRACT`, after checking their labels."""
    found = {}
    names = {name for name, _ in CONTRACT}
    for sample in samples:
        if sample.name in names:
            assert set(sample.labels) == {"exporter"} | ({"type"} if sample.name.endswith("failures_total") else set())
            key = (sample.name, sample.labels.get("type", ""))
            found.setdefault(sample.labels["exporter"], {})[key] = sample.value
    return found


def test_the_contract_includes_all_metrics_of_all_exporters():
    """A new metric is added to the contract, or to the list of those that only some exporters have."""
    of_some = {
        "requests",
        "rejected_items",
        "left_out",
        "given_up",
        "replayed",
        "dead_letters_dropped",
        "skipped_bundles",
    }
    names = {metric.name.removeprefix("quiver.exporter.") for metric in METRICS if ".exporter." in metric.name}
    of_all = {name.removeprefix(PREFIX).removesuffix("_seconds") for name, _ in CONTRACT} | {"behind_seconds"}
    assert names - {f"{name}_total" for name in of_some} == of_all - {"behind"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("behind_processor", [False, True])
def test_every_exporter_has_the_same_metrics(tmp_path, behind_processor):
    """Before the first delivery, and before Spark has started."""
    assert set(CONFIGS) == {urn for urn, plugin in PLUGINS.items() if plugin.kind == "exporter"}
    http_port, port = free_ports(2)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    watchdog = StubWatchdog()
    pipeline = pipeline_of_all(tmp_path, http_port, port, behind_processor=behind_processor)
    context = ChildContext(pipeline.placed(run_dir), run_dir, watchdog)
    child = threading.Thread(target=ingest, args=(context,))
    child.start()
    try:
        while not (run_dir / context.ready_name).exists():
            assert child.is_alive()
            watchdog.gone.wait(0.01)
        found = of_exporters(scrape(port))
    finally:
        watchdog.gone.set()
        child.join()
    assert {name_of(urn) for urn in CONFIGS} <= set(found) == {name for name, _ in pipeline.exporters}
    for name, metrics in found.items():
        assert metrics == CONTRACT, name


@pytest.fixture
def store(tmp_path, clock):
    settings = quiver.Settings(segment_open_s_max=1e6)
    with open_store(tmp_path / "buffer", settings, clock=clock, background=False) as made:
        made.register("out", start="earliest")
        made.activate()
        yield made


def bundle():
    return quiver.Bundle({30: pa.record_batch({"x": [1, 2]})})


def figures_of(*stores):
    return ExporterFigures(lambda: {"out": list(stores)}).figures()["out"]


def test_behind_seconds_is_the_age_of_the_oldest_unresolved_bundle(store, clock):
    """In the open segment and in sealed ones, claimed, deferred or free; zero when all are resolved."""
    assert figures_of(store)["behind_s"] == 0
    store.ingest(bundle())
    clock.advance(10.0)
    assert figures_of(store)["behind_s"] == pytest.approx(10.0)
    store.seal()
    clock.advance(5.0)
    store.ingest(bundle())
    clock.advance(2.0)
    assert figures_of(store)["behind_s"] == pytest.approx(17.0)
    subscriber = store.register("out")
    subscriber.next_bundle(timeout=0).nack(100.0)
    assert figures_of(store)["behind_s"] == pytest.approx(17.0)
    clock.advance(100.0)
    subscriber.next_bundle(timeout=0).ack()
    assert figures_of(store)["behind_s"] == pytest.approx(102.0)
    store.seal()
    subscriber.next_bundle(timeout=0).ack()
    assert figures_of(store)["behind_s"] == 0


def test_retries_and_dead_letters_are_read_from_disk(store):
    """So the values are correct before an exporter in another process runs, and while it does not."""
    store.ingest(bundle())
    store.seal()
    subscriber = store.register("out")
    handle = subscriber.next_bundle(timeout=0)
    with RetrySet.open(REAL_FILES, store.path, "out") as retries:
        retries.failed(handle.ref, delay_s=5.0, reason="down")
        retries.save()
    dead_letters = DeadLetters(store.path, "out")
    dead_letters.add(handle.ref, handle.bundle, reason="refused", attempts=1)
    dead_letters.close()
    figures = figures_of(store)
    assert (figures["retry_queue_bundles"], figures["dead_letters"]) == (1, 1)


def test_the_last_success_survives_a_restart(store, clock):
    """Of either process."""
    stats = ExporterStats("out", roots=[store.path], clock=clock)
    stats.delivered(1, 1)
    stats.save()
    assert figures_of(store)["last_success_s"] == clock.now_ns() / 1e9


def test_unreadable_values_are_omitted(store, tmp_path):
    """The others are reported, and no process stops."""
    (tmp_path / "buffer" / report_name("out")).write_bytes(b"\x00")
    (tmp_path / "buffer" / retry_set_name("out")).write_bytes(b"\x00")
    figures = figures_of(store)
    assert (figures["last_success_s"], figures["retry_queue_bundles"]) == (None, None)
    assert (figures["dead_letters"], figures["behind_s"]) == (0, 0)


def test_stores_of_several_cores_are_one_exporter(tmp_path, clock):
    """Retries are added; of ages the oldest is used, of successes the last."""
    with (
        open_store(tmp_path / "a", clock=clock, background=False) as one,
        open_store(tmp_path / "b", clock=clock, background=False) as two,
    ):
        for store in (one, two):
            store.register("out", start="earliest")
            store.activate()
            with RetrySet.open(REAL_FILES, store.path, "out") as retries:
                retries.failed(quiver.BundleRef(0, 0), delay_s=5.0, reason="down")
                retries.save()
            store.ingest(bundle())
            clock.advance(3.0)
        stats = ExporterStats("out", roots=[one.path], clock=clock)
        stats.delivered(1, 1)
        stats.save()
        assert figures_of(one, two) == {
            "last_success_s": clock.now_ns() / 1e9,
            "retry_queue_bundles": 2,
            "dead_letters": 0,
            "behind_s": pytest.approx(6.0),
        }


def test_counters_at_zero_reach_the_meter():
    """The observer for OpenTelemetry exports them, too."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    ExporterStats("out", OpenTelemetryObserver(provider.get_meter("test")))
    (resource,) = reader.get_metrics_data().resource_metrics
    found = {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
    assert {f"quiver.exporter.{name}_total" for name in ("batches", "rows", "bytes", "failures")} <= found
    provider.shutdown()
