"""A persistence node without `retention.size_cap` has a default cap, which never drops data."""

import pyarrow as pa
import pytest

import quiver
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.processes.run import above_default_caps
from quiver.settings import GIB, MIB, Settings


def load(config, *, top="", urn="urn:otap:processor:persistence"):
    return load_pipeline(
        f"""
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {{out: {{destinations: [buffer]}}}}
    config: {{listening_addr: "127.0.0.1:4317"}}
  buffer:
    kind: processor
    plugin_urn: "{urn}"
    config: {config}
{top}
""",
        source="pipeline.yaml",
        values={},
    )[0]


def cap_of(*arguments, **options):
    pipeline = load(*arguments, **options)
    (described,) = describe(pipeline)["buffers"]
    assert described["holds_at_most_bytes"] == pipeline.main.config.settings.size_cap_bytes
    return described["holds_at_most_bytes"], described["has_default_cap"]


def test_the_default_is_ten_gibibytes_with_backpressure():
    """In a pipeline only: a store that a program opens has no cap."""
    assert cap_of("{path: b}") == (10 * GIB, True)
    assert load("{path: b}").main.config.settings.size_cap_policy == "backpressure"
    assert cap_of("{path: b}", urn="urn:otel:durable_buffer:processor") == (10 * GIB, True)
    assert Settings().size_cap_bytes is None


@pytest.mark.parametrize("cap", ["none", "null"])
def test_the_cap_can_be_switched_off(cap):
    """In both forms of the node, nested and dotted."""
    assert cap_of(f"{{path: b, retention: {{size_cap: {cap}}}}}") == (None, False)
    assert cap_of(f"{{path: b, retention.size_cap: {cap}}}") == (None, False)
    assert cap_of(f"{{path: b, retention_size_cap: {cap}}}", urn="processor:durable_buffer") == (None, False)


def test_a_cap_in_the_file_is_not_called_the_default():
    """Even if it has the same value."""
    assert cap_of("{path: b, retention: {size_cap: 10GiB}}") == (10 * GIB, False)
    assert cap_of("{path: b, retention_size_cap: 1GiB}", urn="processor:durable_buffer") == (GIB, False)


def test_drop_oldest_has_no_default_cap():
    """Otherwise an existing larger store would lose data with the next start."""
    assert cap_of("{path: b, retention: {size_cap_policy: drop_oldest}}") == (None, False)


def test_a_disk_budget_replaces_the_default():
    """It limits all buffers together; a cap in the file applies in addition."""
    disk = "disk: {size_cap: 50GiB}"
    assert cap_of("{path: b}", top=disk) == (None, False)
    assert cap_of("{path: b}", top=disk, urn="processor:durable_buffer") == (None, False)
    assert cap_of("{path: b, retention: {size_cap: 1GiB}}", top=disk) == (GIB, False)


@pytest.mark.parametrize(
    ("config", "cap"),
    [
        ("wal: {max_size: 40GiB, rotation_target: 20GiB}", 2 * (20 * GIB + 64 * MIB)),
        ("retention: {steady_state_headroom: 12GiB}", 24 * GIB),
        ("subscriber: {audit: {max_size: 11GiB}}", 22 * GIB),
        ("cold: {objects: 's3://bucket', local_size: 15GiB}", 30 * GIB),
        ("durability: segment_only", 10 * GIB),
    ],
)
def test_settings_that_need_more_raise_the_default(config, cap):
    """A file that was valid without a cap stays valid."""
    assert cap_of(f"{{path: b, {config}}}")[0] == cap


def test_a_larger_store_is_reported_and_loses_nothing(tmp_path, monkeypatch):
    """All of it is delivered after the cap applies; only new data has to wait."""
    path = tmp_path / "buffer"
    small = {"segment_bytes_max": 64 * 1024, "wal_rotate_bytes": 64 * 1024, "deliver_unsealed": False}
    rows = pa.record_batch({"n": pa.array(range(2000), pa.int64())})
    with quiver.open(path, Settings(**small), background=False) as store:
        store.register("slow", start="earliest")
        for _ in range(60):
            store.ingest(quiver.Bundle({"logs": rows}))
            store.maintain()

    pipeline = load(f"{{path: '{path}'}}")
    assert above_default_caps(pipeline) == []
    monkeypatch.setattr("quiver.pipeline.config.processor.SIZE_CAP_BYTES", 512 * 1024)
    config = f"{{path: '{path}', segment: {{target_size: 64KiB}}, wal: {{rotation_target: 64KiB}}}}"
    pipeline = load(config)
    ((name, size, cap),) = above_default_caps(pipeline)
    assert (name, cap) == ("buffer", 512 * 1024)
    assert size > cap

    with quiver.open(path, pipeline.main.config.settings, background=False) as store:
        slow = store.register("slow")
        with pytest.raises(quiver.CapacityError, match=r"retention\.size_cap"):
            store.ingest(quiver.Bundle({"logs": rows}))
        handles = list(iter(lambda: slow.next_bundle(timeout=0), None))
        assert [handle.bundle["logs"].num_rows for handle in handles] == [2000] * 60
        for handle in handles:
            handle.ack()
        store.maintain()
        store.ingest(quiver.Bundle({"logs": rows}))
    assert above_default_caps(load(f"{{path: '{tmp_path}/none'}}")) == []
