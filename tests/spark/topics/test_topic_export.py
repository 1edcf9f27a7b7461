"""
A topic as the output of a pipeline: from a store through processors to messages, each batch once; another pipeline
receives them.
"""

import json

import pytest

import quiver
from quiver.errors import SettingsError, UsageError
from quiver.observe import InMemoryObserver
from quiver.pipeline.config.topic import TopicReceiverConfig
from quiver.receivers.topic_receiver import TopicReceiver
from quiver.spark.exporters.query import TableBatches
from quiver.spark.exporters.tables import exporter_of
from quiver.spark.processors.settings import SqlSettings
from quiver.spark.topics.export_settings import TopicSinkSettings
from quiver.topics import TopicStore

pytestmark = pytest.mark.spark

QUERY = "c5026f74-7f8b-4a17-8beb-a452f78be02a"


def export(spark, store, settings, chain=(), number=0):
    """Export everything in the store as one batch."""
    frame = spark.read.format("quiver").option("mode", "bundles").load(store.root)
    TableBatches(store.root, exporter_of(settings, subscriber="exp"), chain=chain).export(frame, number, query=QUERY)


def messages(root, topic):
    with TopicStore.open(root, background=False) as store, store.topic(topic).reader(0, follow=False) as found:
        return list(found)


@pytest.mark.slow
def test_a_topic_connects_two_stores(spark, store, tmp_path):
    """Logs, spans and metrics arrive unchanged; repeating a batch writes nothing."""
    store.otlp(3)
    root = str(tmp_path / "topics")
    settings = TopicSinkSettings(root, "default/otlp")
    for _ in range(2):
        export(spark, store, settings)
    found = messages(root, "default/otlp")
    assert sorted(one.attributes["otlp_signal"] for one in found) == ["logs", "metrics", "traces"]
    with quiver.open(tmp_path / "other", background=False) as other:
        config = TopicReceiverConfig.model_validate({"topics": root, "topic": "default/otlp"})
        receiver = TopicReceiver(other, config.settings(), observer=InMemoryObserver())
        assert receiver.take() == 3
        assert receiver.take() == 0
        other.flush()
        receiver.stop(0)
    again = spark.read.format("quiver").option("view", "spans").load(str(tmp_path / "other"))
    before = spark.read.format("quiver").option("view", "spans").load(store.root)
    assert sorted(map(repr, again.collect())) == sorted(map(repr, before.collect()))


@pytest.mark.slow
def test_rows_are_written_as_json(spark, store, tmp_path):
    """For any table; OTLP is refused for a table that is not a view."""
    store.otlp(2)
    chain = (SqlSettings("SELECT count(*) AS n FROM logs"),)
    with pytest.raises(UsageError, match="cannot become OTLP"):
        export(spark, store, TopicSinkSettings(str(tmp_path), "default/rows"), chain)
    export(spark, store, TopicSinkSettings(str(tmp_path), "default/rows", "json"), chain)
    found = [(one.attributes["table"], json.loads(one.payload)) for one in messages(str(tmp_path), "default/rows")]
    assert len(found) >= 1
    assert all(set(row) == {"n"} for _, row in found[:1])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("", "a/b"), "topics must name"),
        (("t", "a"), "topic: 'a' is not a topic"),
        (("t", "a/b", "xml"), "otlp or json"),
        (("t", "a/b", "otlp", None, "sqlite:///m.db"), "give objects, too"),
    ],
)
def test_invalid_settings_are_refused(given, says):
    with pytest.raises(SettingsError, match=says):
        TopicSinkSettings(*given)
