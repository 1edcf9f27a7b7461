"""The port of a running pipeline for Prometheus."""

import urllib.error
import urllib.request

import pyarrow as pa
import pytest

import quiver
from quiver.errors import TransientError
from quiver.metrics import METRICS
from quiver.observe import AttributedObserver
from quiver.pipeline.metrics_endpoint import MetricsEndpoint
from quiver.store.opening import open_store


def fetch(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return answer.read().decode()


def values(text):
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))


@pytest.fixture
def endpoint():
    made = MetricsEndpoint("127.0.0.1:0")
    yield made
    made.stop()


def test_a_scrape_has_counters_latencies_and_gauges(endpoint, tmp_path):
    """After a durable bundle, a sealed segment and a lagging subscriber, with the description of each metric."""
    with open_store(tmp_path / "d", observer=endpoint.observer, background=False) as store:
        endpoint.start()
        endpoint.observe(store)
        store.register("slow", start="earliest")
        store.ingest(quiver.Bundle({30: pa.record_batch({"x": [1, 2]})}), durable=True)
        store.seal()
        text = fetch(endpoint.address)

    found = values(text)
    assert float(found["quiver_wal_fsync_duration_seconds_count"]) == 1
    assert float(found["quiver_segment_sealed_total"]) == 1
    assert float(found["quiver_segment_files"]) == 1
    assert float(found['quiver_subscriber_lag_bundles{subscriber="slow"}']) == 1
    assert float(found["quiver_ingest_throttle_total"]) == 0
    for metric in METRICS:
        if metric.name.replace(".", "_") in found:
            assert metric.meaning in text


def test_figures_of_several_buffers_have_their_names(endpoint, tmp_path):
    """So have the counts of a store that was given an observer with its name."""
    with (
        open_store(tmp_path / "a", observer=AttributedObserver(endpoint.observer, buffer="a"), background=False) as one,
        open_store(tmp_path / "b", observer=AttributedObserver(endpoint.observer, buffer="b"), background=False) as two,
    ):
        endpoint.start()
        endpoint.observe_buffers({"a": one, "b": two})
        for store, bundles in ((one, 1), (two, 3)):
            store.register("slow", start="earliest")
            for _ in range(bundles):
                store.ingest(quiver.Bundle({30: pa.record_batch({"x": [1, 2]})}), durable=True)
            store.seal()
        found = values(fetch(endpoint.address))

    for name, bundles in (("a", 1), ("b", 3)):
        assert float(found[f'quiver_subscriber_lag_bundles{{buffer="{name}",subscriber="slow"}}']) == bundles
        assert float(found[f'quiver_segment_files{{buffer="{name}"}}']) == 1
        assert float(found[f'quiver_segment_sealed_total{{buffer="{name}"}}']) == 1
        assert float(found[f'quiver_wal_fsync_duration_seconds_count{{buffer="{name}"}}']) >= 1


def test_a_port_in_use_is_reported(endpoint, tmp_path):
    """With the address; the other process is not affected."""
    with open_store(tmp_path / "d", background=False) as store:
        endpoint.start()
        endpoint.observe(store)
        other = MetricsEndpoint(endpoint.address)
        with pytest.raises(TransientError, match=endpoint.address):
            other.start()
        other.stop()
        assert "quiver_wal_files" in fetch(endpoint.address)


def test_after_stop_the_port_is_closed(endpoint, tmp_path):
    """A second stop is allowed."""
    with open_store(tmp_path / "d", background=False) as store:
        endpoint.start()
        endpoint.observe(store)
        endpoint.stop()
        endpoint.stop()
        with pytest.raises(urllib.error.URLError):
            fetch(endpoint.address)
