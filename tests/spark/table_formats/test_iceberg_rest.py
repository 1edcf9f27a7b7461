"""Iceberg tables in a real REST catalog, with their files in a bucket."""

import pytest
from pyiceberg.catalog import load_catalog
from table_exports import OTHER, QUERY, Killed, export

from ports import free_ports
from quiver.spark.table_formats.iceberg import IcebergTables
from quiver.spark.table_formats.settings import IcebergSettings
from s3_server import prepare_weed, start_weed, stop, wait_for
from waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("s3_server")]

WAREHOUSE = "warehouse"


@pytest.fixture(scope="module")
def rest_catalog(tmp_path_factory):
    """Return the settings of a server that has a bucket for tables, and their catalog."""
    folder = tmp_path_factory.mktemp("rest")
    binary, server, ports = prepare_weed(folder)
    (port,) = free_ports(1)
    flags = (f"-s3.port.iceberg={port}", f"-tableBucket={WAREHOUSE}")
    process = start_weed(binary, folder, server, ports, flags)
    try:
        catalog = f"http://127.0.0.1:{port}"
        wait_for(f"{catalog}/v1/config", process, folder / "weed.log")
        log = folder / "weed.log"  # it responds before it has the bucket
        wait_until(lambda: f"table bucket {WAREHOUSE}" in log.read_text(), describe=log.read_text)
        # A bucket for tables accepts nothing else.
        records = str(tmp_path_factory.mktemp("records"))
        login = {
            "warehouse": WAREHOUSE,
            "credential": f"{server.access_key}:{server.secret_key}",
            "oauth2-server-uri": f"{catalog}/v1/oauth/tokens",
        }
        yield {"options": server.options(), "catalog": catalog, "catalog_options": login, "records": records}
    finally:
        stop(process)


def test_a_rest_catalog_gets_each_batch_once(spark, store, rest_catalog, monkeypatch):
    """A driver that dies between record and commit is rolled forward by the next query."""
    store.otlp(1)
    settings = IcebergSettings(path=f"s3://{WAREHOUSE}/lake", partition_by=("day(time)",), **rest_catalog)
    for query in (QUERY, QUERY, OTHER):
        export(spark, store, settings, query=query)
    store.otlp(1)
    with monkeypatch.context() as patch:
        patch.setattr(IcebergTables, "commit", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            export(spark, store, settings, query=OTHER, number=1)
    export(spark, store, settings, query=QUERY, number=1)
    table = load_catalog("any", **settings.catalog_properties).load_table("telemetry.logs")
    assert sorted(table.scan().to_arrow()["time_unix_nano"].to_pylist()) == [*range(10)]
    assert table.location() == f"s3://{WAREHOUSE}/lake/logs"
