"""The metrics: one table, a page with the same content, code that emits each, and correct figures."""

import ast
import gc
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import quiver
from quiver.metric import exported_name
from quiver.metrics import LOG_METRICS, METRICS, PROCESS_METRICS, OpenTelemetryObserver, observe_store
from quiver.observe import InMemoryObserver
from quiver.store.opening import open_store
from quiver.testing.crashfs import CrashFileSystem

ROOT = Path(__file__).parents[2]
KINDS = {"count": "counter", "record": "histogram"}
EVERY = METRICS + PROCESS_METRICS + LOG_METRICS
GAUGES = {
    metric.name for metric in METRICS if metric.kind == "gauge" and not metric.name.startswith("quiver.exporter.")
}
"""Those of a store; those of exporters are in `tests/pipeline/test_exporter_metrics.py`."""


def bundle(rows=4):
    return quiver.Bundle({30: pa.record_batch({"x": pa.array(range(rows))})})


def name_patterns(node, tables):
    """The names that a call may use, as regular expressions; none if its first argument is not text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [re.escape(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(re.escape(part.value) if isinstance(part, ast.Constant) else "[a-z]+" for part in node.values)]
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        return tables.get(node.value.id, [])
    return []


def name_tables(module):
    """The values of a module's tables of texts: a name may be chosen from one."""
    for statement in module.body:
        value = getattr(statement, "value", None)
        target = getattr(statement, "target", None) or next(iter(getattr(statement, "targets", ())), None)
        if isinstance(value, ast.Dict) and isinstance(target, ast.Name):
            texts = [one.value for one in value.values if isinstance(one, ast.Constant)]
            yield target.id, [re.escape(text) for text in texts if isinstance(text, str)]


@cache
def emitted():
    """(kind, name pattern, attribute names, where) of every call that counts or records."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if ".count(" not in text and ".record(" not in text:
            continue
        module = ast.parse(text)
        tables = dict(name_tables(module))
        for node in ast.walk(module):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            for pattern in name_patterns(node.args[0], tables) if node.func.attr in KINDS else ():
                if re.match(r"quiver|danube|aof", pattern):
                    attributes = {keyword.arg for keyword in node.keywords} - {"amount"}
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    found.append((KINDS[node.func.attr], pattern, attributes, where))
    return found


class Collected:
    """A meter, and what a collection finds: name → [(attributes, value)]; of histograms the value is the count."""

    def __init__(self):
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self.reader], shutdown_on_exit=False)
        self.meter = self.provider.get_meter("test")

    def collect(self):
        data = self.reader.get_metrics_data()
        found = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points = metric.data.data_points
                    found[metric.name] = [
                        (dict(point.attributes), point.count if hasattr(point, "count") else point.value)
                        for point in points
                    ]
        return found


@pytest.fixture
def collected():
    made = Collected()
    yield made
    made.provider.shutdown()


def test_names_are_unique_and_units_are_known():
    """Units are in OpenTelemetry's notation; every gauge is read."""
    assert len({metric.name for metric in EVERY}) == len(EVERY)
    for metric in EVERY:
        assert re.fullmatch(r"By|s|\{[a-z]+\}", metric.unit) or metric in PROCESS_METRICS, metric
        assert metric.read is not None if metric.kind == "gauge" else metric.read is None or metric in LOG_METRICS, (
            metric
        )
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric


def test_every_emitted_metric_is_in_the_table():
    """With the attributes that it is emitted with."""
    rows = {(metric.kind, metric.name): set(metric.attributes) for metric in EVERY}
    for kind, pattern, attributes, where in emitted():
        fitting = [known for (one, name), known in rows.items() if one == kind and re.fullmatch(pattern, name)]
        assert fitting, f"{where}: {pattern} is not in METRICS"
        assert all(attributes <= known for known in fitting), f"{where}: {pattern} has attributes beyond the table's"


def test_every_metric_of_the_table_is_emitted():
    """With each of its attributes."""
    calls = emitted()
    for metric in EVERY:
        if metric.read is not None:
            continue
        places = [call for call in calls if call[0] == metric.kind and re.fullmatch(call[1], metric.name)]
        assert places, f"nothing emits {metric.name}"
        assert set().union(*(call[2] for call in places)) == set(metric.attributes), metric.name


def test_the_page_matches_the_table():
    """docs/metrics.md has a row for each metric, in the table's order and words."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    found = [
        line for line in page.splitlines() if re.match(r"\| `quiver\.[a-z_.]+` \| (counter|gauge|histogram)", line)
    ]
    wanted = [
        f"| `{exported_name(metric.name)}` | {metric.kind} | {metric.unit} | "
        f"{', '.join(f'`{name}`' for name in metric.attributes)} | {metric.meaning} |".replace("|  |", "| |")
        for metric in EVERY
    ]
    assert found == wanted


def test_every_gauge_of_an_open_store_has_a_value(collected, clock):
    """With a cap and a subscriber, each gauge of the table has the correct value."""
    settings = quiver.Settings(
        size_cap_bytes=1 << 30, wal_flush_interval_s=3600.0, delete_grace_s=0.0, segment_open_s_max=1e6
    )
    with open_store("/d", settings, fs=CrashFileSystem(clock=clock), clock=clock, background=False) as store:
        observe_store(store, collected.meter, clock=clock)
        reader = store.register("reader", start="earliest")
        store.register("slow", start="earliest")
        for _ in range(3):
            store.ingest(bundle())
        store.seal()
        store.ingest(bundle())
        while (handle := reader.next_bundle(timeout=0)) is not None:
            handle.ack()
        store.maintain()
        clock.advance(60.0)
        found = collected.collect()

        assert set(found) >= GAUGES
        own = {"reader": 0, "slow": 3}
        assert found["quiver.subscriber.lag_bundles"] == [({"subscriber": name}, lag) for name, lag in own.items()]
        lag_bytes = {point[0]["subscriber"]: point[1] for point in found["quiver.subscriber.lag_bytes"]}
        assert lag_bytes == {"reader": 0, "slow": pytest.approx(store.stats()["segment_bytes"], abs=3)}
        lag_s = {point[0]["subscriber"]: point[1] for point in found["quiver.subscriber.lag_seconds"]}
        assert lag_s == {"reader": 0, "slow": pytest.approx(60.0)}
        ages = {point[0]["subscriber"]: point[1] for point in found["quiver.subscriber.progress_age_seconds"]}
        assert ages == {"reader": pytest.approx(60.0), "slow": pytest.approx(60.0)}
        assert found["quiver.segment.incomplete"] == [({}, 1)]
        assert found["quiver.segment.files"] == [({}, 1)]
        assert found["quiver.segment.open_bundles"] == [({}, 1)]
        assert found["quiver.wal.bytes"] == [({}, store.stats()["wal_bytes"])]
        assert found["quiver.wal.unsynced_bytes"] == [({}, 0)]  # maintain without a thread syncs
        assert found["quiver.core.bytes"] == [({"core_id": "0"}, store.disk_bytes)]
        assert found["quiver.core.cap_fraction"] == [({"core_id": "0"}, store.disk_bytes / (1 << 30))]
        assert found["quiver.quarantine.files"] == [({}, 0)]


def test_one_collection_reads_the_stats_once(collected, clock):
    """For any number of gauges; the next collection reads them again."""

    class Counting:
        settings = quiver.Settings()
        looks = 0

        def stats(self):
            self.looks += 1
            return {"cores": {}, "subscribers": {}}

    store = Counting()
    observe_store(store, collected.meter, clock=clock)
    collected.collect()
    assert store.looks == 1
    clock.advance(1.0)
    collected.collect()
    assert store.looks == 2


def test_the_meter_does_not_keep_the_store(collected, clock):
    """A released store has no gauges any more, and is not kept in memory by them."""
    store = open_store("/d", fs=CrashFileSystem(clock=clock), clock=clock, background=False)
    observe_store(store, collected.meter, clock=clock)
    assert GAUGES - {"quiver.core.cap_fraction"} - set(collected.collect()) == {
        name for name in GAUGES if name.startswith("quiver.subscriber.")
    }
    store.close()
    del store
    gc.collect()
    clock.advance(1.0)

    assert collected.collect() == {}


def test_metrics_of_cores_are_separate_and_summed(collected, clock, tmp_path):
    """Gauges of cores have one value per core, the others the sum; counters have no core."""
    settings = quiver.Settings(size_cap_bytes=1 << 30, wal_flush_interval_s=3600.0)
    observer = OpenTelemetryObserver(collected.meter)
    with quiver.open(tmp_path / "d", settings, cores=2, clock=clock, observer=observer, background=False) as store:
        observe_store(store, collected.meter, clock=clock)
        subscriber = store.register("reader", start="earliest")
        for _ in range(5):
            store.ingest(bundle())
        store.seal()
        for _ in range(4):
            store.ingest(bundle())
        subscriber.next_bundle(timeout=0).ack()
        store.maintain()
        found = collected.collect()
        sizes = {core: store.core(core).disk_bytes for core in (0, 1)}

    assert set(found) >= GAUGES
    assert found["quiver.core.bytes"] == [({"core_id": str(core)}, size) for core, size in sizes.items()]
    assert found["quiver.core.cap_fraction"] == [
        ({"core_id": str(core)}, size / (1 << 30)) for core, size in sizes.items()
    ]
    assert found["quiver.segment.files"] == [({}, 2)]
    assert found["quiver.segment.incomplete"] == [({}, 2)]
    assert found["quiver.segment.open_bundles"] == [({}, 4)]
    assert found["quiver.wal.files"] == [({}, 2)]
    assert found["quiver.subscriber.lag_bundles"] == [({"subscriber": "reader"}, 4)]
    assert found["quiver.subscriber.acked_bundles_total"] == [({"subscriber": "reader"}, 1)]
    assert found["quiver.segment.sealed_total"] == [({}, 2)]
    assert found["quiver.recovery.duration"] == [({}, 2)]


def test_backpressure_and_drops_are_counted(collected, clock):
    """At the cap: with `backpressure` refusals are counted, with `drop_oldest` the losses of each subscriber."""
    small = {"segment_bytes_max": 4_000, "wal_rotate_bytes": 8_000, "wal_bytes_max": 20_000, "delete_grace_s": 0.0}
    observer = OpenTelemetryObserver(collected.meter)

    def fill(policy):
        settings = quiver.Settings(size_cap_bytes=60_000, size_cap_policy=policy, **small)
        fs = CrashFileSystem(clock=clock)
        with open_store("/d", settings, fs=fs, clock=clock, observer=observer, background=False) as store:
            store.register("slow", start="earliest")
            for _ in range(100):
                store.ingest(bundle(100))
            return store.stats()["subscribers"]["slow"]["pending_bundles"]

    with pytest.raises(quiver.CapacityError):
        fill("backpressure")
    found = collected.collect()
    assert found["quiver.ingest.throttle_total"] == [({}, 1)]
    assert found["quiver.retention.size_emergency_total"] == [({}, 0)]
    assert "quiver.segment.dropped_total" not in found

    fill("drop_oldest")
    found = collected.collect()
    (attributes, segments) = found["quiver.segment.dropped_total"][0]
    assert attributes == {"reason": "size"}
    assert found["quiver.gc.evictions_total"] == [({"reason": "size"}, segments)]
    assert found["quiver.subscriber.dropped_bundles_total"][0][0] == {"subscriber": "slow", "reason": "size"}
    assert found["quiver.subscriber.dropped_bundles_total"][0][1] >= segments > 0
    assert found["quiver.retention.size_emergency_total"][0][1] > 0
    assert found["quiver.ingest.throttle_total"] == [({}, 1)]


def test_counters_without_attributes_start_at_zero(collected):
    """A rate over a counter that appears with its first event would miss that event."""
    OpenTelemetryObserver(collected.meter)

    found = collected.collect()
    del found["quiver.build_info"]
    assert found == {metric.name: [({}, 0)] for metric in METRICS if metric.kind == "counter" and not metric.attributes}


def test_counters_and_latencies_reach_the_meter(collected, clock):
    """Under the names of the table, and no others."""
    fs = CrashFileSystem(clock=clock)
    observer = OpenTelemetryObserver(collected.meter)
    settings = quiver.Settings(delete_grace_s=0.0)
    with open_store("/d", settings, fs=fs, clock=clock, observer=observer, background=False) as store:
        subscriber = store.register("reader", start="earliest")
        store.ingest(bundle(), durable=True)
        store.ingest(bundle(), durable=True)
        store.seal()
        subscriber.next_bundle(timeout=0).ack()
        subscriber.next_bundle(timeout=0).reject()
        store.maintain()
    found = collected.collect()

    assert set(found) <= {metric.name for metric in METRICS + PROCESS_METRICS}
    assert found["quiver.wal.fsync.duration"] == [({}, 2)]
    assert found["quiver.recovery.duration"] == [({}, 1)]
    assert found["quiver.segment.sealed_total"] == [({}, 1)]
    assert found["quiver.subscriber.acked_bundles_total"] == [({"subscriber": "reader"}, 1)]
    assert found["quiver.subscriber.rejected_bundles_total"] == [({"subscriber": "reader"}, 1)]
    assert found["quiver.gc.evictions_total"] == [({"reason": "finished"}, 1)]


def test_a_latency_is_measured_on_the_clock_of_the_store(collected, clock):
    """A sync of 30 ms is recorded as 30 ms; one that fails is not recorded."""
    from quiver.store.wal.timing import timed_sync

    class Recording(InMemoryObserver):
        taken = ()

        def record(self, name, value, **attributes):
            self.taken = (*self.taken, (name, value))

    class Disk:
        failure = None

        def sync_data(self):
            clock.advance(0.03)
            if self.failure is not None:
                raise self.failure

    observer, disk = Recording(), Disk()
    sync = timed_sync(clock, observer)
    sync(disk)
    disk.failure = OSError(5, "no")
    with pytest.raises(OSError, match="no"):
        sync(disk)

    assert observer.taken == (("quiver.wal.fsync.duration", pytest.approx(0.03)),)


def test_names_that_are_not_in_the_table_still_count(collected):
    """An observer accepts counters and latencies of other programs; attributes that are None are omitted."""
    observer = OpenTelemetryObserver(collected.meter)
    observer.count("mine.things_total", 3, kind="a", path=None)
    observer.count("mine.things_total", kind="a")
    observer.record("mine.duration", 0.5)
    found = collected.collect()

    assert found["mine.things_total"] == [({"kind": "a"}, 4)]
    assert found["mine.duration"] == [({}, 1)]


def test_events_go_to_the_log(collected, caplog):
    """The observer logs events just as the default one does."""
    with caplog.at_level("INFO", logger="quiver"):
        OpenTelemetryObserver(collected.meter).event("quiver.some.event", path="/d", bytes=3)

    assert caplog.messages == ["quiver.some.event path=/d bytes=3"]


def test_the_default_observer_keeps_no_latencies():
    """Without a listener nothing is kept."""
    observer = InMemoryObserver()
    observer.record("quiver.wal.fsync.duration", 0.001)

    assert not observer.counts


def test_quiver_does_not_need_opentelemetry():
    """Without OpenTelemetry the library and the table are imported, and a store opens."""
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import quiver, quiver.metrics\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.')]\n"
        "print(len(quiver.metrics.METRICS))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)

    assert int(done.stdout) == len(METRICS)
