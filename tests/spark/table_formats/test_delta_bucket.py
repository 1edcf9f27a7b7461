"""Delta tables in a bucket of a real S3 server, and in a container of an emulator of Azure."""

import pytest
from deltalake import DeltaTable
from table_exports import OTHER, QUERY, Killed, export

from emulators.azure import ACCOUNT, AzureServer
from quiver.errors import AccessDeniedError, SettingsError
from quiver.spark.table_formats.delta import DeltaTables
from quiver.spark.table_formats.settings import DeltaSettings

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("s3_server")]


def storage(server):
    if isinstance(server, AzureServer):
        address = {"endpoint": server.options()["endpoint"], "allow_http": "true"}
        return {"account_name": ACCOUNT, "account_key": server.account_key, **address}
    return {
        "endpoint": server.endpoint,
        "region": "us-east-1",
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
        "allow_http": "true",
    }


def numbers(server, url, table="logs"):
    found = DeltaTable(f"{url}/{table}", storage_options=storage(server)).to_pyarrow_table(columns=["time_unix_nano"])
    return sorted(found[0].to_pylist())


@pytest.mark.parametrize("kind", ["s3_server", pytest.param("azure_server", marks=pytest.mark.emulators)])
def test_tables_in_a_bucket_get_each_batch_once(spark, store, request, monkeypatch, kind):
    """With the options of object stores; a driver that dies between record and commit is rolled forward."""
    server = request.getfixturevalue(kind)
    store.otlp(1)
    url = server.url()
    settings = DeltaSettings(path=url, options=server.options(), partition_by=("day(time)",))
    for query in (QUERY, QUERY, OTHER):
        export(spark, store, settings, query=query)
    assert numbers(server, url) == [0, 1, 2, 3, 4]
    store.otlp(1)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTables, "commit", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            export(spark, store, settings, query=OTHER, number=1)
    export(spark, store, settings, query=QUERY, number=1)
    assert numbers(server, url) == [*range(10)]


def test_wrong_credentials_are_reported_without_secrets(spark, store, s3_server):
    """Before anything is written."""
    store.otlp(1)
    settings = DeltaSettings(path=s3_server.url(), options=s3_server.options(secret_key="wrong" * 8))
    with pytest.raises((AccessDeniedError, SettingsError)) as caught:
        export(spark, store, settings)
    assert "wrong" not in str(caught.value)
