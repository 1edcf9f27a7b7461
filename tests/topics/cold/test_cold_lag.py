"""The upload lag of topics, and the other gauges of topics."""

from __future__ import annotations

import contextlib

from cold_rig import TOPIC, Rig, append, settings
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from quiver.errors import ObjectsUnavailableError
from quiver.metric import exported_name
from quiver.metrics import LOG_METRICS, observe_topics

LAG = ("upload_lag_messages", "upload_lag_bytes", "upload_lag_seconds")


def lag_of(rig):
    return [rig.store.stats()["topics"][TOPIC][key] for key in LAG]


def test_the_lag_counts_messages_that_are_in_no_object():
    """The gauges are messages, bytes, and age; they are 0 when all is uploaded, and grow while the store fails."""
    rig = Rig(chosen=settings(rotate=400, keep_minutes=None))
    with rig.opened() as log:
        assert lag_of(rig) == [0, 0, 0.0]
        append(log, 6)
        log.flush()
        size = log.stats()["disk_bytes"]
        rig.clock.advance(7.0)
        assert lag_of(rig) == [6, size, 7.0]

        rig.store.maintain()
        assert lag_of(rig) == [0, 0, 0.0]

        rig.objects.fail_on("put_parts", times=10)
        rig.clock.advance(10.0)
        append(log, 2)
        log.flush()
        grown = log.stats()["disk_bytes"] - size
        with contextlib.suppress(ObjectsUnavailableError):
            rig.store.maintain()
        rig.clock.advance(50.0)
        messages, size, seconds = lag_of(rig)
        assert abs(size - grown) < 10  # estimated from a file whose messages differ slightly in size
        assert (messages, seconds) == (2, 60.0)  # since the last complete upload: the age is an upper bound

        rig.objects.heal()
        rig.store.maintain()
        assert lag_of(rig) == [0, 0, 0.0]

    with Rig(disk=rig.disk, memory=rig.memory, facts=rig.facts, chosen=rig.chosen).opened() as log:
        assert log._engine.wal.start_offset == 0


def test_the_lag_after_a_restart_excludes_uploaded_messages():
    """The uploads in the checkpoint count before the catalog is read."""
    rig = Rig(chosen=settings(rotate=None, keep_minutes=None))
    with rig.opened(hand_over=False) as log:
        append(log, 6)
        log.flush()
        rig.store.maintain()
        append(log, 3)
    again = Rig(disk=rig.disk, memory=rig.memory, facts=rig.facts, chosen=rig.chosen)
    with again.opened() as log:
        messages, size, _ = lag_of(again)
        assert (messages, size) == (3, log.stats()["disk_bytes"] // 3)


def test_every_gauge_has_a_value():
    """For each open topic and subscription; closed ones have no value."""
    rig = Rig(chosen=settings(rotate=None))
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    with rig.opened() as log:
        observe_topics(rig.store, provider.get_meter("test"), clock=rig.clock)
        append(log, 5)
        log.flush()
        append(log, 1)
        subscription = rig.store.subscribe(TOPIC, "billing", start=2)
        found = collected(reader)
        assert set(found) == {
            exported_name(metric.name)
            for metric in LOG_METRICS
            if metric.kind == "gauge" and metric.name.startswith("danube_")
        }
        assert {tuple(sorted(attributes.items())) for attributes, _ in found["quiver.topics.wal_files"]} == {
            (("topic", TOPIC),)
        }
        values = {name: points[0][1] for name, points in found.items()}
        assert values["quiver.topics.wal_cache_size"] == 2
        assert values["quiver.topics.wal_unsynced_messages"] == 1
        assert values["quiver.topics.uploader_lag_messages"] == 6
        assert found["quiver.topics.subscription_lag_messages"] == [({"topic": TOPIC, "subscription": "billing"}, 4)]
        subscription.close()
        rig.clock.advance(1.0)
        assert "quiver.topics.subscription_lag_messages" not in collected(reader)
    rig.clock.advance(1.0)
    assert collected(reader) == {}
    provider.shutdown()


def collected(reader):
    data = reader.get_metrics_data()
    return {
        metric.name: [(dict(point.attributes), point.value) for point in metric.data.data_points]
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.data.data_points
    }
