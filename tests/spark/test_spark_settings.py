"""Settings of processors and exporters are checked when they are created, without Spark."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from quiver.errors import SettingsError, UsageError
from quiver.spark.bundle_query import stop_query
from quiver.spark.exporters.settings import ConsoleSettings, FileSettings, QuiverSinkSettings, SparkSinkSettings
from quiver.spark.processors.settings import (
    AttributeAction,
    AttributesSettings,
    FilterSettings,
    RedactSettings,
    SampleSettings,
    SqlSettings,
    tables_named,
)
from quiver.spark.store.sink_options import SinkOptions, parse_sink_options


def test_settings_need_no_spark():
    """A pipeline file can be checked on a machine without Spark."""
    script = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "import quiver.spark, quiver.spark.processors.settings, quiver.spark.exporters.settings\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT * FROM input", ("input",)),
        ("select * from logs l, spans s join `metrics` m on x = y", ("logs", "spans", "metrics")),
        ("WITH x AS (SELECT 1 FROM Logs) SELECT * FROM x WHERE a IN (SELECT b FROM spans)", ("logs", "spans")),
        ("SELECT 'from metrics', \"from spans\" FROM logs -- from spans\n/* from input */", ("logs",)),
        ("TABLE logs", ("logs",)),
        ("SELECT count(*) logs FROM spans WHERE metrics", ("spans",)),
        ("SELECT 1", ()),
    ],
)
def test_a_query_has_the_names_of_its_tables(query, named):
    """Names after FROM, JOIN and TABLE; those in strings and comments are ignored."""
    assert tables_named(query) == named


def overwriting(path, **more):
    return lambda: SparkSinkSettings("json", path=path, mode="overwrite", **more)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SqlSettings("SELECT 1"), "must read input, or one of logs, spans, metrics"),
        (lambda: SqlSettings("SELECT * FROM input, logs"), "cannot be joined with a view by name"),
        (lambda: SqlSettings("SELECT * FROM spans, logs"), "name its result"),
        (lambda: SqlSettings("SELECT * FROM input", output="x"), "under its own name"),
        (lambda: SqlSettings("SELECT * FROM logs", signals=("logs",)), "the query names its views"),
        (lambda: SqlSettings("SELECT * FROM logs", output="../x"), "is not a valid table name"),
        (FilterSettings, "set either keep or drop"),
        (lambda: FilterSettings(keep="a", drop="b"), "set either keep or drop"),
        (lambda: FilterSettings(keep=" "), "set either keep or drop"),
        (lambda: FilterSettings(keep="a", signals=("no table",)), "'no table' is not a table"),
        (lambda: AttributesSettings(()), "at least one"),
        (
            lambda: AttributesSettings((AttributeAction("delete", "k"),), apply_to=("event",)),
            "'event' is not one of signal",
        ),
        (lambda: AttributesSettings((AttributeAction("delete", "k"),), apply_to=()), "name at least one of"),
        (lambda: AttributeAction("convert", "k"), "'convert' is not one of insert"),
        (lambda: AttributeAction("insert", "", value=1), "an attribute with an empty key"),
        (lambda: AttributeAction("upsert", "", value=1), "an attribute with an empty key"),
        (lambda: AttributeAction("insert", "k"), "either value or from_attribute"),
        (lambda: AttributeAction("insert", "k", value=1, from_attribute="x"), "either value or from_attribute"),
        (lambda: AttributeAction("delete", "k", value=1), "neither value nor from_attribute"),
        (lambda: AttributeAction("rename", "k"), "only rename takes new_key"),
        (lambda: AttributeAction("hash", "k", new_key="x"), "only rename takes new_key"),
        (lambda: AttributeAction("rename", "k", new_key="k"), "the new name is the old one"),
        (lambda: AttributeAction("insert", "k", value=2**63), "does not fit into 64 bits"),
        (lambda: SampleSettings(0.0), "above 0 and at most 1"),
        (lambda: SampleSettings(1.5), "above 0 and at most 1"),
        (lambda: SampleSettings(0.5, signals=()), "name the tables"),
        (RedactSettings, "set keys, value_patterns, or both"),
        (lambda: RedactSettings(keys=("(",)), "is not a valid pattern"),
        (lambda: RedactSettings(value_patterns=("a*",)), "matches the empty string"),
        (lambda: RedactSettings(value_patterns=("a",), replacement="\\1"), "without backslashes"),
        (lambda: RedactSettings(keys=("a",), columns=("name",)), "there is nothing to search for"),
        (lambda: RedactSettings(keys=("x" * 5000,)), "1 to 4096 characters"),
        (lambda: ConsoleSettings(rows_max=0), "rows_max must be 1 to 10000"),
        (lambda: ConsoleSettings(truncate=-1), "truncate must be"),
        (lambda: ConsoleSettings(format="csv"), "'csv' is not table or jsonl"),
        (lambda: FileSettings(""), "must name a directory"),
        (lambda: FileSettings("out", format="csv"), "'csv' is not jsonl or otlp"),
        (lambda: FileSettings("out", compression="lz4"), "'lz4' is not none or gzip or zstd"),
        (lambda: SparkSinkSettings(""), "name one, such as kafka"),
        (lambda: SparkSinkSettings("kafka", mode="errorifexists"), "is not append or overwrite"),
        (lambda: SparkSinkSettings("kafka", {"topic": "{tabel}"}), r"\{tabel\} is unknown; known are \{table\}"),
        (overwriting("out/{table}"), r"without \{query\} and \{batch\} in the path"),
        (overwriting("out/{table}/{batch}"), r"without \{query\} in the path would replace the data of others"),
        (overwriting("out/{query}/{batch}"), r"without \{table\} in the path"),
        (overwriting("out/{query}/{batch}", tables=("logs", "spans")), r"without \{table\} in the path"),
        (overwriting("out/{query}", tables=("logs",)), r"without \{batch\} in the path"),
        (lambda: QuiverSinkSettings(""), "must name a directory"),
    ],
)
def test_invalid_settings_are_refused(make, says):
    """When they are created, not with the first batch."""
    with pytest.raises(SettingsError, match=says):
        make()


def test_options_of_a_format_have_a_placeholder_for_the_batch():
    """So that a format with versions writes each batch once."""
    settings = SparkSinkSettings("delta", {"txnAppId": "{query}", "txnVersion": "{batch}", "n": 1}, path="out/{table}")
    path, options = settings.filled(table="logs", batch=7, query="q")
    assert path == "out/logs"
    assert options == {"txnAppId": "q", "txnVersion": "7", "n": "1"}
    assert SparkSinkSettings("noop").filled(table="logs", batch=7, query="q") == (None, {})


def test_a_batch_that_overwrites_has_its_own_directory():
    """By the path or by an option: also with a new checkpoint, and for bundles that are exported individually."""
    assert overwriting("out/{query}/{table}/{batch}")().mode == "overwrite"
    assert overwriting("out/{query}/{batch}", tables=("logs",))().mode == "overwrite"
    assert SparkSinkSettings("jdbc", {"dbtable": "{table}_{query}_{batch}"}, mode="overwrite").path is None


def test_options_of_the_sink_are_parsed():
    """Keys in upper or lower case, sizes with units."""
    assert parse_sink_options({"path": "b/", "SLOT": "logs"}) == SinkOptions(path="b", slot=30)
    made = parse_sink_options(
        {"path": "b", "view": "spans", "maxBundleRows": "5", "maxBundleBytes": "2MiB", "compression": "zstd",
         "txnAppId": "etl", "txnVersion": "3", "checkpointLocation": "c"}
    )  # fmt: skip
    assert made == SinkOptions(
        path="b", view="spans", bundle_rows_max=5, bundle_bytes_max=2 << 20, compression="zstd", transaction=("etl", 3)
    )
    assert parse_sink_options({"path": "b", "mode": "ipc"}).mode == "ipc"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs the directory of a store"),
        ({"path": "b"}, "either slot .* or view"),
        ({"path": "b", "slot": "30", "view": "logs"}, "either slot .* or view"),
        ({"path": "b", "mode": "ipc", "slot": "30"}, "mode ipc has its own slots"),
        ({"path": "b", "mode": "bundles"}, "is not one of rows, ipc"),
        ({"path": "b", "view": "traces"}, "is not one of logs, spans, metrics"),
        ({"path": "b", "slott": "30"}, "did you mean slot"),
        ({"path": "b", "slot": "30", "xyz": "1"}, "known are path"),
        ({"path": "b", "slot": "30", "compression": "gzip"}, "is not one of none, lz4, zstd"),
        ({"path": "b", "slot": "30", "txnAppId": "x"}, "txnAppId and txnVersion"),
        ({"path": "b", "slot": "30", "txnAppId": "job-1", "txnVersion": "1"}, "not start with job-"),
        ({"path": "b", "slot": "30", "txnAppId": "x", "txnVersion": "-1"}, "is not a non-negative integer"),
        ({"path": "b", "slot": "30", "maxBundleRows": "0"}, "at least 1"),
        ({"path": "b", "slot": "30", "maxBundleBytes": "0"}, "at least 1 byte"),
        ({"path": "b", "slot": "30", "maxBundleBytes": "x"}, "maxBundleBytes"),
    ],
)
def test_unknown_options_of_the_sink_are_refused(options, says):
    """The error names the nearest known option."""
    with pytest.raises(UsageError, match=says):
        parse_sink_options(options)


def test_stop_query_accepts_the_former_keyword_of_its_timeout():
    query = SimpleNamespace(isActive=False, stop=lambda: None)
    with pytest.warns(DeprecationWarning, match=r"stop_query\(timeout_s=\) is now timeout="):
        assert stop_query(query, timeout_s=1)
