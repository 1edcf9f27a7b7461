"""Processors on frames: which rows pass, what is changed, and that the same rows always have the same result."""

import functools
import hashlib

import pyarrow as pa
import pytest

from quiver.errors import UsageError
from quiver.otap import TYPED_VALUE, view_schema
from quiver.spark.processors.chain import UserProcessor, build, process
from quiver.spark.processors.settings import (
    AttributeAction,
    AttributesSettings,
    FilterSettings,
    RedactSettings,
    SampleSettings,
    SqlSettings,
)

pytestmark = pytest.mark.spark


def value(**fields):
    return {field.name: fields.get(field.name) for field in TYPED_VALUE}


def table(spark, view, rows):
    full = [{name: row.get(name) for name in view_schema(view).names} for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(full, schema=view_schema(view)))


@pytest.fixture
def logs(spark):
    """Return eight records: one without attributes, one without a severity."""
    return cached_logs(spark)


@pytest.fixture
def spans(spark):
    """Return two spans, of the traces of two records."""
    return cached_spans(spark)


@functools.cache
def cached_logs(spark):
    """Return the records in this session."""
    rows = [
        {
            "time_unix_nano": i,
            "severity_number": None if i == 7 else i * 3,
            "trace_id": f"{i:032x}" if i % 2 else None,
            "attributes": None if i == 6 else [("user", value(string_value=f"u{i}")), ("n", value(int_value=i))],
            "resource_attributes": [("service.name", value(string_value="shop"))],
            "body": value(string_value=f"mail u{i}@example.org"),
        }
        for i in range(8)
    ]
    return table(spark, "logs", rows).cache()


@functools.cache
def cached_spans(spark):
    """Return the spans in this session."""
    rows = [{"trace_id": f"{i:032x}", "name": f"span {i}"} for i in (1, 3)]
    return table(spark, "spans", rows).cache()


def numbers(frame):
    return sorted(row["time_unix_nano"] for row in frame.select("time_unix_nano").collect())


def test_filters_ignore_rows_without_a_value(logs):
    """If the condition is null, a row is neither included nor excluded."""
    assert numbers(build(FilterSettings(keep="severity_number >= 15"))(logs)) == [5, 6]
    assert numbers(build(FilterSettings(drop="severity_number >= 15"))(logs)) == [0, 1, 2, 3, 4, 7]
    assert numbers(build(FilterSettings(keep="attributes['n'].int_value = 3"))(logs)) == [3]


def test_sql_reads_one_table_or_several(logs, spans):
    """Each table as `input`, one view, or several views; other tables pass unchanged."""
    tables = {"logs": logs, "spans": spans}
    made = process(tables, [SqlSettings("SELECT trace_id FROM input WHERE trace_id IS NOT NULL")])
    assert {name: frame.count() for name, frame in made.items()} == {"logs": 4, "spans": 2}
    made = process(tables, [SqlSettings("SELECT * FROM input LIMIT 1", signals=("spans",))])
    assert {name: frame.count() for name, frame in made.items()} == {"logs": 8, "spans": 1}
    joined = SqlSettings("SELECT l.time_unix_nano, s.name FROM logs l JOIN spans s USING (trace_id)", output="found")
    made = process(tables, [joined])
    assert sorted(map(tuple, made["found"].collect())) == [(1, "span 1"), (3, "span 3")]
    assert set(made) == {"logs", "spans", "found"}
    counted = SqlSettings("SELECT count(*) AS n FROM logs")
    assert process(tables, [counted])["logs"].collect()[0]["n"] == 8
    assert process({"spans": spans}, [counted]) == {"spans": spans}
    with pytest.raises(UsageError, match="there is no table logs"):
        process({"spans": spans}, [joined])
    with pytest.raises(UsageError, match="give it all of them"):
        build(joined)


def attributes_of(frame):
    rows = frame.select("time_unix_nano", "attributes").collect()
    found = {}
    for number, attributes in rows:
        found[number] = (
            None
            if attributes is None
            else {
                key: next((one for one in one_value if one is not None), None) for key, one_value in attributes.items()
            }
        )
    return found


def test_attribute_actions_apply_to_their_keys(logs):
    """Each action if its key exists, or does not; a record without attributes gets its first one."""
    actions = (
        AttributeAction("insert", "user", value="nobody"),
        AttributeAction("insert", "env", value="prod"),
        AttributeAction("update", "n", value=1.5),
        AttributeAction("upsert", "flag", value=True),
        AttributeAction("upsert", "copy", from_attribute="n"),
        AttributeAction("upsert", "never", from_attribute="missing"),
        AttributeAction("rename", "env", new_key="environment"),
        AttributeAction("hash", "user"),
        AttributeAction("delete", "n"),
    )
    found = attributes_of(build(AttributesSettings(actions, hash_salt="pepper"))(logs))
    hashed = hashlib.sha256(b"pepperu3").hexdigest()
    assert found[3] == {"user": hashed, "flag": True, "copy": 1.5, "environment": "prod"}
    nobody = hashlib.sha256(b"peppernobody").hexdigest()
    assert found[6] == {"user": nobody, "flag": True, "environment": "prod"}


def test_an_attribute_without_a_name_can_be_removed(spark):
    """Or changed, because a sender may be outside the user's control. No action creates one."""
    other = ("k", value(string_value="y"))
    rows = [
        {"time_unix_nano": 1, "attributes": [("", value(string_value="x")), other]},
        {"time_unix_nano": 2, "attributes": [other]},
    ]
    logs = table(spark, "logs", rows)

    def done(*actions):
        return attributes_of(build(AttributesSettings(actions, hash_salt="pepper"))(logs))

    assert done(AttributeAction("delete", "")) == {1: {"k": "y"}, 2: {"k": "y"}}
    assert done(AttributeAction("rename", "", new_key="named")) == {1: {"k": "y", "named": "x"}, 2: {"k": "y"}}
    assert done(AttributeAction("update", "", value="z")) == {1: {"": "z", "k": "y"}, 2: {"k": "y"}}
    assert done(AttributeAction("hash", ""))[1] == {"": hashlib.sha256(b"pepperx").hexdigest(), "k": "y"}


def test_resource_attributes_can_be_changed(logs):
    """A table without them is refused by name."""
    settings = AttributesSettings((AttributeAction("upsert", "zone", value=7),), apply_to=("resource", "signal"))
    row = build(settings)(logs).where("time_unix_nano = 1").collect()[0]
    assert row["resource_attributes"]["zone"]["int_value"] == 7
    assert row["resource_attributes"]["service.name"]["string_value"] == "shop"
    assert row["attributes"]["zone"]["int_value"] == 7
    assert build(settings)(logs).schema["attributes"].dataType.keyType.typeName() == "string"
    with pytest.raises(UsageError, match="no column resource_attributes"):
        build(settings)(logs.select("attributes"))


def test_sampling_selects_complete_traces(spark):
    """The same traces in every table and at every attempt; a smaller share is part of a larger one."""
    ids = [hashlib.md5(str(i).encode()).hexdigest() for i in range(400)]
    logs = table(spark, "logs", [{"trace_id": one, "time_unix_nano": i} for i, one in enumerate(ids)])
    spans = table(spark, "spans", [{"trace_id": one, "name": "x"} for one in ids])
    made = process({"logs": logs, "spans": spans}, [SampleSettings(0.25)])
    kept = {row["trace_id"] for row in made["logs"].collect()}
    assert kept == {row["trace_id"] for row in made["spans"].collect()}
    expected = {one for one in ids if int(one[-14:], 16) >= 0.75 * 2**56}
    assert kept == expected
    assert 60 < len(kept) < 140
    less = {row["trace_id"] for row in build(SampleSettings(0.1))(logs).collect()}
    assert less < kept
    assert build(SampleSettings(1.0))(logs).count() == 400


def test_sampling_without_a_trace_uses_the_content(spark):
    """Metrics are not sampled unless they are selected."""
    rows = [{"time_unix_nano": i, "body": value(int_value=i)} for i in range(400)]
    logs = table(spark, "logs", rows)
    first, second = (numbers(build(SampleSettings(0.25))(logs.repartition(n))) for n in (1, 3))
    assert first == second
    assert 60 < len(first) < 140
    metrics = table(spark, "metrics", [{"name": "m", "type": "GAUGE"}] * 3)
    assert process({"metrics": metrics}, [SampleSettings(0.001)]) == {"metrics": metrics}


def test_sampling_accepts_any_column_name(spark):
    """A query may call a column `service.name`, which is not a field of a column `service`."""
    rows = spark.createDataFrame([(i, f"shop {i}") for i in range(400)], "time_unix_nano long, name string")
    named = rows.withColumnsRenamed({"name": "service.name"})
    sampled = numbers(build(SampleSettings(0.25))(named))
    assert 60 < len(sampled) < 140
    odd = rows.withColumnsRenamed({"name": "a`b"})
    assert numbers(build(SampleSettings(1.0))(odd)) == list(range(400))


def test_redaction_runs_in_tasks(logs):
    """The schema does not change."""
    made = build(RedactSettings(keys=("user",), value_patterns=(r"\S+@\S+",)))(logs)
    assert made.schema == logs.schema
    row = made.where("time_unix_nano = 2").collect()[0]
    assert row["attributes"]["user"]["string_value"] == "****"
    assert row["body"]["string_value"] == "mail ****"
    assert row["attributes"]["n"]["int_value"] == 2


def test_user_processors_are_functions(logs, spans):
    """Plain functions for every table, and functions that select their tables."""
    tables = {"logs": logs, "spans": spans}

    def only_one(frame):
        return frame.limit(1)

    assert {name: frame.count() for name, frame in process(tables, [only_one]).items()} == {"logs": 1, "spans": 1}
    chain = [UserProcessor(only_one, signals=("logs",)), FilterSettings(keep="true")]
    assert {name: frame.count() for name, frame in process(tables, chain).items()} == {"logs": 1, "spans": 2}
