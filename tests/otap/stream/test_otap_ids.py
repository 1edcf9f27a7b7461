"""Transport encoding of ids: each rule against a slow implementation, row by row."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from otap_ways import restored

from quiver.otap.conversion_errors import ConversionError
from quiver.otap.stream.transport_ids import plain_ids
from quiver.otap.stream.transport_order import sorted_tables, wire_rows
from quiver.otap.tables.payload_schema import ENCODING, TABLES

QUICK = settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
U16, U32 = pa.uint16(), pa.uint32()


def parents(payload: int, columns: dict, encoding: str | None = None, width: pa.DataType = U16) -> list[int]:
    """Return the plain parents of a table whose parent_id is as given in *columns*."""
    metadata = {ENCODING: encoding} if encoding else None
    fields = [pa.field("parent_id", width, metadata=metadata)]
    arrays = [pa.array(columns.pop("parent_id"), width)]
    for name, values in columns.items():
        array = values if isinstance(values, pa.Array) else pa.array(values, TABLES[payload].by_name[name].type)
        fields.append(pa.field(name, array.type))
        arrays.append(array)
    decoded = plain_ids(payload, pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))
    assert decoded.schema.field("parent_id").metadata[ENCODING] == b"plain"
    return decoded.column("parent_id").to_pylist()


def ids(values: list, encoding: str | None, width: pa.DataType = U16, payload: int = 30) -> list:
    field = pa.field("id", width, metadata={ENCODING: encoding} if encoding else None)
    batch = pa.RecordBatch.from_arrays([pa.array(values, width)], schema=pa.schema([field]))
    return plain_ids(payload, batch).column("id").to_pylist()


def test_checklist_10_ids_are_deltas_unless_the_field_states_an_encoding():
    assert ids([0, 1, None, 2], None) == [0, 1, None, 3]
    assert ids([0, 1, None, 2], "delta") == [0, 1, None, 3]
    assert ids([0, 1, None, 2], "plain") == [0, 1, None, 2]
    assert ids([5, 65_535], None) == [5, 4]
    assert ids([5, 2**32 - 1], None, U32, 42) == [5, 4]


def test_checklist_10_the_encoding_applies_inside_resource_and_scope():
    for reported, expected in ((None, [0, 1, 2]), (b"delta", [0, 1, 2]), (b"plain", [0, 1, 1])):
        field = pa.field("id", U16, metadata={ENCODING: reported} if reported else None)
        struct = pa.StructArray.from_arrays([pa.array([0, 1, 1], U16)], fields=[field])
        found = plain_ids(30, pa.RecordBatch.from_pydict({"resource": struct, "scope": struct}))
        for name in ("resource", "scope"):
            assert found.column(name).field("id").to_pylist() == expected
            assert found.schema.field(name).type.field("id").metadata[ENCODING] == b"plain"


def test_checklist_10_an_unknown_encoding_is_refused():
    with pytest.raises(ConversionError, match="column id has the unknown encoding b'zigzag'"):
        ids([0], "zigzag")
    with pytest.raises(ConversionError, match="column id has the unknown encoding b'quasidelta'"):
        ids([0], "quasidelta")


def test_checklist_10_parents_of_points_are_deltas():
    assert parents(11, {"parent_id": [0, 0, 1, 2]}) == [0, 0, 1, 3]


def test_checklist_12_a_null_struct_has_no_ids():
    struct = pa.StructArray.from_arrays(
        [pa.array([0, 1, 1], U16)], fields=[pa.field("id", U16, nullable=False)], mask=pa.array([False, True, False])
    )
    found = plain_ids(30, pa.RecordBatch.from_pydict({"resource": struct}))
    assert [row and row["id"] for row in found.column("resource").to_pylist()] == [0, None, 1]


def test_checklist_11_attributes_are_equal_by_key_type_and_active_value():
    row = {"parent_id": [1, 1], "key": ["k", "k"], "type": [1, 1], "str": ["v", "v"]}
    assert parents(31, dict(row)) == [1, 2]
    assert parents(31, {**row, "key": ["k", "l"]}) == [1, 1]
    assert parents(31, {**row, "str": ["v", "w"]}) == [1, 1]
    assert parents(31, {**row, "type": [1, 2]}) == [1, 1]
    assert parents(31, {**row, "int": [1, 2]}) == [1, 2], "columns of other types do not count"
    assert parents(31, {**row, "str": [None, ""]}) == [1, 2], "null is the empty string"


@pytest.mark.parametrize("kind", [0, 5, 6])
def test_checklist_11_empty_values_maps_and_arrays_never_equal(kind):
    row = {"parent_id": [1, 1], "key": ["k", "k"], "type": [kind, kind], "ser": [b"\x9f\xff"] * 2}
    assert parents(31, row) == [1, 1]


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 7])
def test_checklist_11_an_absent_column_counts_as_zeros(kind):
    assert parents(31, {"parent_id": [1, 1], "key": ["k", "k"], "type": [kind, kind]}) == [1, 2]


def test_checklist_11_doubles_compare_as_numbers_do():
    row = {"parent_id": [1, 1, 1, 1], "key": ["k"] * 4, "type": [3] * 4, "double": [0.0, -0.0, math.nan, math.nan]}
    assert parents(31, row) == [1, 2, 1, 1]


def test_checklist_11_dictionaries_with_equal_values_twice_compare_by_value():
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.uint8()), ["k", "k", "l"])
    row = {"parent_id": [1, 1, 1], "key": keys, "type": [4] * 3, "bool": [True] * 3}
    assert parents(31, row) == [1, 2, 1]


def test_checklist_11_events_compare_by_name_and_links_by_trace():
    assert parents(42, {"parent_id": [1, 1, 1], "name": ["a", "a", None]}) == [1, 2, 1]
    assert parents(42, {"parent_id": [1, 1, 1], "name": [None, "", "a"]}) == [1, 2, 1]
    assert parents(43, {"parent_id": [1, 1, 1], "trace_id": [bytes(16), None, b"\1" * 16]}) == [1, 2, 1]


def test_checklist_11_exemplars_compare_by_value():
    row = {"parent_id": [1] * 7, "int_value": [None, None, 3, 3, None, None, 0]}
    row["double_value"] = [None, None, None, None, 3.0, 3.0, None]
    assert parents(19, row, width=U32) == [1, 2, 1, 2, 1, 2, 1]


VALUES = st.sampled_from(
    [(0, None), (1, "a"), (1, ""), (2, 7), (3, 0.0), (3, -0.0), (3, math.nan), (4, True), (7, b"x")]
)
ROWS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["k", "l"]), VALUES), max_size=12)
ARMS = {1: "str", 2: "int", 3: "double", 4: "bool", 7: "bytes"}


def attribute_table(rows) -> pa.RecordBatch:
    table = TABLES[31].by_name
    columns = {
        "parent_id": pa.array([parent for parent, _, _ in rows], U16),
        "key": pa.array([key for _, key, _ in rows], pa.string()),
        "type": pa.array([kind for _, _, (kind, _) in rows], pa.uint8()),
    }
    for kind, name in ARMS.items():
        columns[name] = pa.array([value if found == kind else None for _, _, (found, value) in rows], table[name].type)
    fields = [
        pa.field(n, a.type, metadata={ENCODING: "plain"} if n == "parent_id" else None) for n, a in columns.items()
    ]
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))


def slow_parents(columns, *, total: bool) -> list[int]:
    """Decode parents slowly; *total* compares doubles by their bits, as one of the readers does."""
    found: list[int] = []
    before = None
    for at, written in enumerate(columns["parent_id"].to_pylist()):
        kind = columns["type"][at].as_py()
        value = columns[ARMS[kind]][at].as_py() if kind in ARMS else object()
        if kind == 3 and total:
            value = (value, math.copysign(1, value)) if not math.isnan(value) else "nan"
        key = (kind, columns["key"][at].as_py(), value)
        same = before is not None and all(one == other for one, other in zip(key, before, strict=True))
        found.append(((found[-1] if same else 0) + written) & 0xFFFF)
        before = key
    return found


def as_rows(columns, parents_found) -> list:
    names = ("key", "type", *ARMS.values())
    return sorted(repr((parent, *(columns[n][at].as_py() for n in names))) for at, parent in enumerate(parents_found))


@QUICK
@given(ROWS, st.data())
def test_checklist_11_every_reader_decodes_encoded_parents(rows, data):
    """By numeric equality and, where rows allow it, by bitwise equality."""
    resource = pa.StructArray.from_arrays([pa.array([0] * 6, U16)], ["id"])
    roots = pa.RecordBatch.from_pydict({"id": pa.array([0] + [1] * 5, U16), "resource": resource})
    table = attribute_table(rows)
    written = wire_rows(sorted_tables({30: roots, 31: table}, "logs"), "logs", 0, 6).get(31)
    if not rows:
        assert written is None
        return
    plain = {name: table.column(name) for name in table.schema.names}
    expected = as_rows(plain, plain["parent_id"].to_pylist())
    assert as_rows(written, slow_parents(written, total=False)) == expected
    odd = sum(kind == 3 and (math.isnan(value) or math.copysign(1, value) < 0) for _, _, (kind, value) in rows)
    others = sum(kind != 3 for _, _, (kind, _) in rows)
    if odd <= others:
        assert as_rows(written, slow_parents(written, total=True)) == expected


def test_root_rows_are_grouped_by_resource_and_ids_do_not_decrease():
    resource = pa.array(
        [{"id": 7}, {"id": 3}, {"id": 7}], pa.struct([pa.field("id", U16, metadata={ENCODING: "plain"})])
    )
    root_id = pa.field("id", U16, metadata={ENCODING: "plain"})
    roots = pa.RecordBatch.from_arrays(
        [pa.array([9, None, 4], U16), resource, pa.array([1, 2, 3], pa.int32())],
        schema=pa.schema([root_id, pa.field("resource", resource.type), pa.field("severity_number", pa.int32())]),
    )
    found = wire_rows(sorted_tables({30: roots}, "logs"), "logs", 0, 3)[30]
    assert found["severity_number"].to_pylist() == [2, 1, 3]
    assert found["resource.id"].to_pylist() == [0, 1, 0]
    assert found["id"].to_pylist() == [None, 0, 1]
    assert len(restored({30: roots}, "logs").resource_logs) == 2


def test_sixteen_bit_ids_wrap_around():
    values = np.array([65_535, 1, 65_535], np.uint16)
    assert parents(42, {"parent_id": values, "name": ["a"] * 3}) == [65_535, 0, 65_535]
