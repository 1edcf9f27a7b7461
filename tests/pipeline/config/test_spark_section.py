"""The section `spark` of a pipeline file."""

import dataclasses

import pytest
import yaml

from quiver.errors import PipelineError
from quiver.pipeline.config.spark import SparkConfig
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.queries import spark_settings
from quiver.spark.session_settings import SessionSettings


def document(exporter="console", config=None):
    """Return a pipeline with one exporter."""
    nodes = {
        "in": {"type": "receiver:otlp", "config": {"listening_addr": "127.0.0.1:9"}},
        "store": {"type": "processor:persistence", "config": {"path": "buffer"}},
        "out": {"type": f"exporter:{exporter}", "config": config or {}},
    }
    connections = [{"from": "in", "to": "store"}, {"from": "store", "to": "out"}]
    pipeline = {"nodes": nodes, "connections": connections}
    return {"version": "otel_dataflow/v1", "groups": {"a": {"pipelines": {"b": pipeline}}}}


def load(value):
    pipeline, _ = load_pipeline(yaml.safe_dump(value), source="spark.yaml", values={})
    return pipeline


def test_the_section_of_spark_has_the_settings_of_a_session():
    """Numbers and booleans of the YAML become strings. The description has keys of properties, but not their values."""
    value = document()
    value["spark"] = {
        "master": "spark://user:hunter2@host:7077",
        "config": {"spark.executor.cores": 2, "spark.eventLog.enabled": True, "spark.hadoop.secret": "hunter2"},
        "packages": ["org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"],
        "jars": ["https://user:hunter2@host/a.jar"],
        "archives": ["missing.zip#more"],
    }
    loaded = load(value)

    found = spark_settings(loaded)
    assert found["spark.executor.cores"] == "2"
    assert found["spark.eventLog.enabled"] == "true"
    assert found["spark.master"] == "spark://user:hunter2@host:7077"
    described = describe(loaded)
    assert described["spark"]["config"] == ["spark.eventLog.enabled", "spark.executor.cores", "spark.hadoop.secret"]
    assert described["spark"]["jars"] == ["https://…@host/a.jar"]
    assert "hunter2" not in repr(described)
    assert any("there is no file missing.zip" in text for text in described["says"])
    assert set(SparkConfig.model_fields) == {field.name for field in dataclasses.fields(SessionSettings)}


def test_the_master_of_the_defaults_of_spark_is_shown_with_its_origin():
    """The file precedes it."""
    value = document()
    defaults = {"spark.master": "yarn"}

    assert describe(load(value))["spark"]["master"] == "local[2]"
    assert describe(load(value), spark_defaults=defaults)["spark"]["master"] == "yarn (spark-defaults.conf)"
    value["spark"] = {"master": "local[3]"}
    assert describe(load(value), spark_defaults=defaults)["spark"]["master"] == "local[3]"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"jars": "a.jar"}, r"jars must be a list, such as"),
        ({"config": "x"}, "config must be a mapping"),
        ({"config": {"spark.a": None}}, "spark.a has no value"),
        ({"config": {"spark.a": ["x"]}}, "spark.a must be one value"),
        ({"memory": "1g"}, "unknown key memory"),
        ({"master": "host"}, "master: write local"),
    ],
)
def test_invalid_settings_of_spark_are_refused(section, message):
    with pytest.raises(PipelineError, match=message):
        load(document() | {"spark": section})


def test_settings_of_spark_need_a_node_on_spark():
    """Otherwise they would have no effect, and there is nothing to describe."""
    value = document("otlp", {"grpc_endpoint": "http://127.0.0.1:1"})

    assert describe(load(value))["spark"] is None
    with pytest.raises(PipelineError, match="spark has no effect"):
        load(value | {"spark": {"master": "local[2]"}})
