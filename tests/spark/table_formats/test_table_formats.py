"""Delta and Iceberg tables: each batch exactly once despite kills, and columns that only grow."""

import pytest
from table_exports import OTHER, QUERY, Killed, export

from quiver.errors import CorruptionError, UsageError
from quiver.spark.processors.settings import SqlSettings
from quiver.spark.table_formats.export import TableFormatExporter
from quiver.spark.table_formats.place import BatchRecords

pytestmark = pytest.mark.spark


def test_a_batch_is_exported_once(spark, store, lake):
    """Repeated by the same query, after a lost checkpoint, and after the record of the batch was lost."""
    store.otlp(3)
    settings = lake.settings()
    for _ in range(2):
        export(spark, store, settings)
    export(spark, store, settings, query=OTHER)
    for record in lake.root.glob("_quiver/batches/*/*.json"):
        record.unlink()
    export(spark, store, settings)
    assert lake.numbers("logs") == [0, 1, 2, 3, 4]
    assert len(lake.data_files("logs")) == 1


STEPS = ("prepare", "_written", "put", "commit")
"""Tables and columns; data files; the record of the batch; the commit to each table."""


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STEPS)
def test_a_crash_between_two_steps_repeats_and_loses_nothing(spark, store, lake, monkeypatch, name, when):
    """At each call of each step; the batch is repeated until it is complete, with and without its checkpoint."""
    store.otlp(3)
    settings = lake.settings()
    cls = next(one for one in (lake.tables, TableFormatExporter, BatchRecords) if hasattr(one, name))
    real = getattr(cls, name)
    crashes = 0

    def crashing(*arguments, **others):
        nonlocal calls
        calls += 1
        if calls != crashes:
            return real(*arguments, **others)
        if when == "after":
            real(*arguments, **others)
        raise Killed

    monkeypatch.setattr(cls, name, crashing)
    complete = False
    while not complete:
        crashes += 1
        calls = 0
        try:
            export(spark, store, settings, query=QUERY if crashes % 2 else OTHER)
            complete = True
        except Killed:
            assert crashes < 10
    assert crashes > 1
    for _ in range(2):
        export(spark, store, settings, query=OTHER)
    assert lake.numbers("logs") == [0, 1, 2, 3, 4]
    assert lake.read("spans").num_rows == 5
    assert lake.read("metrics").num_rows == 5


def test_files_of_a_killed_attempt_are_removed(spark, store, lake):
    """And no others: a file of another batch may belong to the table."""
    store.otlp(1)
    logs = lake.root / "logs" / lake.files
    logs.mkdir(parents=True)
    (logs / f"{QUERY}-0000000000-0badcafe-00000-0x1-0.parquet").write_bytes(b"half of a fi")
    (logs / f"{QUERY}-0000000001-0badcafe-00000-0x1-0.parquet").write_bytes(b"another batch")
    export(spark, store, lake.settings())
    names = sorted(path.name[:57] for path in lake.data_files("logs"))
    assert len(names) == 2
    assert names[0] != f"{QUERY}-0000000000-0badcafe-"
    assert names[1].startswith(f"{QUERY}-0000000001-")


def test_a_batch_whose_files_were_removed_before_its_commit_is_written_again(spark, store, lake, monkeypatch):
    """A vacuum with a short retention may remove them while the pipeline is stopped."""
    store.otlp(1)
    settings = lake.settings()
    with monkeypatch.context() as patch:
        patch.setattr(lake.tables, "commit", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            export(spark, store, settings)
    for path in lake.data_files("logs"):
        path.unlink()
    with pytest.raises(CorruptionError, match="was decided but not committed"):
        export(spark, store, settings, query=OTHER)
    export(spark, store, settings)
    assert lake.numbers("logs") == [0, 1, 2, 3, 4]


def evolve(spark, store, settings, queries):
    for number, query in enumerate(queries):
        store.otlp(1, rows=1)
        chain = [SqlSettings(f"SELECT {query} FROM logs LIMIT 1", output="t")]
        export(spark, store, settings, chain, number=number)


def test_new_columns_are_added_and_missing_ones_are_null(spark, store, lake):
    """Also inside structs; a column that fits its type is cast."""
    settings = lake.settings()
    queries = [
        "bigint(1) AS a, named_struct('x', 'one') AS s",
        "2 AS b, named_struct('y', 3, 'x', 'two') AS s",
        "smallint(3) AS a",
    ]
    evolve(spark, store, settings, queries)
    rows = lake.read("t").select(["a", "s", "b"]).to_pylist()
    assert sorted(rows, key=str) == [
        {"a": 1, "s": {"x": "one", "y": None}, "b": None},
        {"a": 3, "s": None, "b": None},
        {"a": None, "s": {"x": "two", "y": 3}, "b": 2},
    ]


@pytest.mark.parametrize(
    ("queries", "changes", "reason"),
    [
        (("1 AS a", "'text' AS a"), "add", "the type of a column never changes"),
        (("1 AS a", "1 AS a, 2 AS b"), "refuse", r"other columns than the table \(b\)"),
        (("array(INTERVAL 1 DAY) AS a",), "add", "t.a has the type duration.*cannot store"),
        (("NULL AS a",), "add", "t.a has the type null.*cannot store"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(spark, store, lake, queries, changes, reason):
    """With an error that names the column; the table stays as it is."""
    settings = lake.settings(schema_changes=changes)
    with pytest.raises(UsageError, match=reason):
        evolve(spark, store, settings, queries)
    if len(queries) > 1:
        assert lake.read("t").to_pylist() == [{"a": 1}]


def test_rows_are_partitioned_by_columns_and_times(spark, store, lake):
    """The day is a column of the table; readers skip files of other partitions."""
    store.otlp(1)
    settings = lake.settings(partition_by=("day(at)", "service"))
    query = (
        "SELECT timestamp_seconds(time_unix_nano * 40000) AS at, time_unix_nano AS n, "
        "CASE WHEN time_unix_nano < 3 THEN 'a/b' WHEN time_unix_nano < 4 THEN NULL ELSE 'b' END AS service FROM logs"
    )
    export(spark, store, settings, [SqlSettings(query, output="t")])
    rows = sorted(lake.read("t").select(["n", "service"]).to_pylist(), key=lambda row: row["n"])
    assert rows == [{"n": n, "service": value} for n, value in enumerate(["a/b", "a/b", "a/b", None, "b"])]
    assert lake.fields("t") == ["at_day", "service"]
    assert len(lake.data_files("t")) == 3
    export(spark, store, settings)
    assert lake.fields("logs") == []
