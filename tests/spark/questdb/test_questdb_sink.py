"""The sink `questdb` sends the rows of a frame to a QWP server, here our own receiver with a store."""

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import quiver
from quiver.bundle import QWP_SLOT, QWP_TABLE_KEY
from quiver.cli.main import build_app
from quiver.errors import SettingsError, UsageError
from quiver.receivers.qwp.receiver import QwpReceiver
from quiver.receivers.qwp.settings import QwpSettings
from quiver.spark.exporters.query import TableBatches
from quiver.spark.exporters.tables import exporter_of
from quiver.spark.questdb.export_settings import QuestdbSinkSettings
from quiver.spark.questdb.options import parse_questdb_options

pytestmark = pytest.mark.spark

QUERY = "c5026f74-7f8b-4a17-8beb-a452f78be02a"


@pytest.fixture
def server(tmp_path):
    """Yield a store with a QWP receiver, without a dedupe window, which would hide repetitions."""
    with quiver.open(str(tmp_path / "target")) as store:
        settings = QwpSettings(listening_addr="127.0.0.1:0", dedupe_window_s=0)
        with QwpReceiver(store, settings) as receiver:
            yield store, receiver


def rows_of(store, table="trades"):
    return [
        row
        for _, bundle in quiver.read(store.path).bundles()
        if bundle[QWP_SLOT].schema.metadata[QWP_TABLE_KEY].decode() == table
        for row in bundle[QWP_SLOT].to_pylist()
    ]


def conf(receiver, tmp_path, more="close_flush_timeout_millis=20000;"):
    return f"ws::addr=127.0.0.1:{receiver.port};sf_dir={tmp_path}/sf;{more}"


@pytest.fixture
def frame(spark):
    import quiver.spark

    quiver.spark.register(spark)
    at = datetime(2026, 1, 2, tzinfo=UTC)
    rows = [(f"S{number % 3}", number / 2, at) for number in range(40)]
    return spark.createDataFrame(rows, "sym string, price double, ts timestamp")


def write(frame, conf, **options):
    writer = frame.write.format("questdb").mode("append").option("conf", conf).option("table", "trades")
    for key, value in {"symbols": "sym", "at": "ts", **options}.items():
        writer = writer.option(key, value)
    writer.save()


def test_a_frame_is_written_once(frame, server, tmp_path):
    """Symbols as symbols, the time as the designated timestamp; repeating the write adds nothing."""
    store, receiver = server
    for _ in range(2):
        write(frame.repartition(2, "sym"), conf(receiver, tmp_path), txnAppId="job", txnVersion="1")

    rows = rows_of(store)
    assert sorted(row["price"] for row in rows) == [number / 2 for number in range(40)]
    assert {row["sym"] for row in rows} == {"S0", "S1", "S2"}
    assert {row["timestamp"].replace(tzinfo=UTC) for row in rows} == {datetime(2026, 1, 2, tzinfo=UTC)}
    ((_, bundle), *_) = quiver.read(store.path).bundles()
    assert pa.types.is_dictionary(bundle[QWP_SLOT].schema.field("sym").type)


def test_rows_are_stored_without_a_server_and_sent_with_the_next_write(frame, server, tmp_path):
    """
    Also rows of a partition that no longer has a task: the next write empties its slot.

    Frames that were sent before the end of the task, without a confirmation, are sent again.
    """
    store, receiver = server
    nowhere = f"ws::addr=127.0.0.1:1;sf_dir={tmp_path}/sf;close_flush_timeout_millis=0;"
    write(frame.repartition(3), nowhere, txnAppId="lost", txnVersion="1")
    assert rows_of(store) == []

    from typer.testing import CliRunner

    write(frame.coalesce(1).limit(1), conf(receiver, tmp_path), txnAppId="next", txnVersion="1")
    # A task that ends stops draining the slots of others; a user then drains them.
    drained = CliRunner().invoke(
        build_app(), ["qwp", "drain", f"{tmp_path}/sf", "--conf", f"ws::addr=127.0.0.1:{receiver.port};"]
    )
    assert drained.exit_code == 0, drained.output
    prices = [row["price"] for row in rows_of(store)]
    assert len(prices) >= 41
    assert set(prices) == {number / 2 for number in range(40)}


@pytest.mark.slow
def test_a_repeated_batch_of_a_stream_is_not_sent_twice(spark, frame, server, tmp_path):
    """The query dies after its last task, before the entry in the commit log."""
    store, receiver = server
    source = tmp_path / "in"
    frame.repartition(2, "sym").write.parquet(str(source))

    def run():
        query = (
            spark.readStream.schema(frame.schema).parquet(str(source)).writeStream.format("questdb")
            .option("conf", conf(receiver, tmp_path)).option("table", "trades").option("symbols", "sym")
            .option("at", "ts").option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True)
            .start()
        )  # fmt: skip
        assert query.awaitTermination(60)

    run()
    assert len(rows_of(store)) == 40
    for name in ("0", ".0.crc"):
        (tmp_path / "check" / "commits" / name).unlink(missing_ok=True)
    run()
    assert len(rows_of(store)) == 40


def test_wrong_options_are_refused_before_anything_is_written(frame):
    """The error has no password."""
    good = {"conf": "ws::addr=h:1;sf_dir=sf;username=u;password=secret;", "table": "t"}
    assert "secret" not in repr(parse_questdb_options(good))
    for change in ({"conf": ""}, {"table": ""}, {"symbols": "a,a"}, {"tabel": "t"}, {"txnAppId": "a"},
                   {"txnAppId": "a", "txnVersion": "-1"}):  # fmt: skip
        with pytest.raises(UsageError):
            parse_questdb_options(good | change)
    from quiver.spark.questdb.sink import QuestdbDataSource

    with pytest.raises(UsageError, match="sf_dir is missing"):
        QuestdbDataSource({**good, "conf": "ws::addr=h:1;"}).writer(frame.schema, overwrite=False)
    with pytest.raises(UsageError, match="no column nope; columns are sym, price, ts"):
        QuestdbDataSource({**good, "at": "nope"}).writer(frame.schema, overwrite=False)
    with pytest.raises(UsageError, match="table name 'a/b'"):
        QuestdbDataSource({**good, "table": "a/b"}).writer(frame.schema, overwrite=False)
    dotted = frame.withColumnRenamed("price", "price.usd").schema
    with pytest.raises(UsageError, match="column name 'price.usd'"):
        QuestdbDataSource(good).streamWriter(dotted, overwrite=False)
    with pytest.raises(UsageError, match="only added"):
        QuestdbDataSource(good).writer(frame.schema, overwrite=True)
    with pytest.raises(SettingsError):
        QuestdbDataSource({**good, "conf": "ws::addr=h:1;sf_dri=x;"}).streamWriter(frame.schema, overwrite=False)


@pytest.mark.slow
def test_telemetry_is_written_to_tables_once_per_batch(spark, store, server, tmp_path):
    """Logs and spans with their own times; attributes as JSON; repeating a batch adds nothing."""
    target, receiver = server
    store.otlp(3)
    settings = QuestdbSinkSettings(conf(receiver, tmp_path), table="otel_{table}", tables=("logs", "spans"))
    bundles = spark.read.format("quiver").option("mode", "bundles").load(store.root)
    for _ in range(2):
        exporter = exporter_of(settings, subscriber="exp")
        TableBatches(store.root, exporter, chain=()).export(bundles, 1, query=QUERY)

    logs, spans = rows_of(target, "otel_logs"), rows_of(target, "otel_spans")
    assert (len(logs), len(spans)) == (5, 5)
    assert "time_unix_nano" not in logs[0]
    assert rows_of(target, "otel_metrics") == []


def test_settings_of_the_exporter_are_checked():
    """Including the connect string, which is not shown."""
    good = QuestdbSinkSettings("ws::addr=h:1;sf_dir=sf;username=u;password=secret;")
    assert (good.table_of("logs"), "secret" in repr(good)) == ("logs", False)
    several = replace(good, conf="wss::addr=a,b:1;addr=c;sf_dir=sf;")
    assert several.addresses == ("a:9000", "b:1", "c:9000")
    for wrong, reason in (
        ({"conf": "http::addr=h;sf_dir=sf;"}, "conf: http"),
        ({"conf": "ws::addr=h;"}, "conf: sf_dir is missing"),
        ({"conf": "ws::sf_dir=sf;"}, "conf: addr is missing"),
        ({"conf": "ws::addr=h;sf_dir=sf;sender_idd=a;"}, "conf: unknown key sender_idd; did you mean sender_id"),
        ({"conf": "ws::addr=h:99999;sf_dir=sf;"}, "conf: addr"),
        ({"table": ""}, "may contain"),
        ({"table": "{tabel}"}, "may contain"),
        ({"table": "a/{table}"}, "table: table name 'a/logs'"),
    ):
        with pytest.raises(SettingsError, match=reason):
            replace(good, **wrong)
