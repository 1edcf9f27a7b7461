"""The columns of a view in Parquet: which have dictionaries and statistics, and that every path is one of the file."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from quiver.otap import VIEWS, decode_requests, view_schema
from quiver.otap.views.parquet_options import parquet_options


def written(table):
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **parquet_options(table.schema)) as writer:
        writer.write_table(table)
    return pq.ParquetFile(pa.BufferReader(sink.getvalue()))


def columns(file):
    group = file.metadata.row_group(0)
    return {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}


@pytest.fixture
def rows():
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="host").value.string_value = "a"
    scope = resource.scope_logs.add()
    for number in range(4):
        record = scope.log_records.add(time_unix_nano=number + 1, severity_text="INFO")
        record.trace_id = bytes([number + 1]) * 16
        record.body.string_value = f"text {number}"
        record.attributes.add(key="size").value.int_value = number
        record.attributes.add(key="method").value.string_value = "GET"
    return pa.Table.from_batches([decode_requests([request.SerializeToString()], "logs").batch])


@pytest.mark.parametrize("name", VIEWS)
def test_every_path_is_a_column_of_the_file(name):
    """A misspelled path would have no effect."""
    schema = view_schema(name)
    file = written(schema.empty_table())
    known = {file.schema.column(at).path for at in range(len(file.schema))}
    options = parquet_options(schema)
    assert set(options["use_dictionary"]) < known
    assert set(options["write_statistics"]) < known
    assert file.schema_arrow.equals(schema)


def test_repeated_values_have_a_dictionary_and_others_none(rows):
    """Keys, attributes and severities repeat; times, ids, numbers and texts of records hardly do."""
    found = columns(written(rows))
    has = {path for path, column in found.items() if column.has_dictionary_page}
    assert {"severity_text", "attributes.key_value.key", "attributes.key_value.value.string_value"} <= has
    assert {"resource_attributes.key_value.key", "resource_attributes.key_value.value.string_value"} <= has
    assert has.isdisjoint({"time", "time_unix_nano", "trace_id", "body.string_value"})
    assert "attributes.key_value.value.int_value" not in has


def test_columns_outside_of_maps_have_statistics(rows):
    """Readers skip row groups by them."""
    found = columns(written(rows))
    assert found["time_unix_nano"].statistics.max == 4
    assert found["trace_id"].statistics.min == "01" * 16
    assert not any(column.is_stats_set for path, column in found.items() if ".key_value." in path)


def test_the_file_contains_the_rows(rows):
    assert written(rows).read().equals(rows)


def test_other_columns_keep_dictionary_and_statistics():
    """Also lists, large lists and dictionaries, in a table that is no view."""
    table = pa.table(
        {
            "name": pa.array(["a", "a"]).dictionary_encode(),
            "sizes": pa.array([[1, 2], [1]], pa.large_list(pa.int32())),
            "pair": pa.array([[1.5, 2.5], [1.5, 2.5]], pa.list_(pa.float64(), 2)),
        }
    )
    file = written(table)
    found = columns(file)
    assert [column.has_dictionary_page for column in found.values()] == [True, True, True]
    assert [column.is_stats_set for column in found.values()] == [True, False, False]
    assert file.read().equals(table)
