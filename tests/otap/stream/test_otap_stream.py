"""Streams of this package: the encoder follows the rules for exporters, and dictionaries grow with the values."""

import pyarrow as pa
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from otap_equal import said
from otap_oracle import REQUESTS
from otap_ways import CASES, Line, bytes_of, parsed, restored, tables_of, weighed

from quiver.errors import UsageError
from quiver.otap.stream.arrow_message import ArrowPayload, decode_records, encode_records
from quiver.otap.stream.decoder import ArrowBatch, StreamDecoder, StreamLimits
from quiver.otap.stream.encoder import StreamEncoder
from quiver.otap.stream.ipc_messages import DICTIONARY, RECORD_BATCH, SCHEMA, parse_messages
from quiver.otap.tables.payload_schema import ENCODING
from quiver.otap.tables.to_otlp import request_of_tables
from quiver.primitives.scan import Damage


def logs(*texts: str):
    request = REQUESTS["logs"]()
    items = request.resource_logs.add()
    items.resource.attributes.add(key="service.name", value=AnyValue(string_value="s"))
    records = items.scope_logs.add().log_records
    for text in texts:
        records.add(severity_text=text, attributes=[KeyValue(key=text, value=AnyValue(string_value=text))])
    return request


def tables(*texts: str):
    return tables_of(logs(*texts).SerializeToString(), "logs")


def sent(line: Line, *texts: str) -> list:
    """Send records with these texts; return the encoded payloads."""
    before = len(line.messages)
    assert said(line.send(tables(*texts)), ordered=False) == said(logs(*texts), ordered=False)
    return [payload for message in line.messages[before:] for payload in decode_records(message).payloads]


def index_of(payload) -> pa.DataType:
    """Return the index type of severity_text in transport."""
    return pa.ipc.open_stream(payload.record).schema.field("severity_text").type


@pytest.mark.parametrize("case", weighed("logs_dict_reset", "metrics_growing", "logs_schema_changes"))
def test_checklist_18_the_root_comes_first_and_each_payload_is_one_record_batch(case):
    encoder = StreamEncoder(case["signal"], metric_metadata=True)
    ids = {}
    for name in case["otlp"]:
        for message in encoder.encode(tables_of(bytes_of(name), case["signal"])):
            payloads = decode_records(message.message).payloads
            assert payloads[0].payload in {10, 30, 40}
            assert len(message.message) < 4 * 1024 * 1024
            for payload in payloads:
                assert ids.setdefault(payload.schema_id, payload.payload) == payload.payload
                kinds = [piece.kind for piece in parse_messages(payload.record)]
                assert kinds[-1] == RECORD_BATCH
                assert set(kinds[:-1]) <= {SCHEMA, DICTIONARY}


def test_checklist_18_ids_have_the_default_encodings_without_metadata():
    line = Line("traces")
    line.send(tables_of(bytes_of(CASES["traces_rich"]["otlp"][0]), "traces"))
    for payload in decode_records(line.messages[0]).payloads:
        batch = pa.ipc.open_stream(payload.record).read_next_batch()
        structs = [field.type for field in batch.schema if pa.types.is_struct(field.type)]
        fields = [*batch.schema, *(child for struct in structs for child in struct)]
        assert not any(ENCODING in (field.metadata or {}) for field in fields)
        if payload.payload in {44, 45}:
            assert batch.schema.field("parent_id").type == pa.uint32()


def test_checklist_18_required_columns_have_no_null():
    line = Line("traces")
    line.send(tables_of(bytes_of(CASES["traces_empty_values"]["otlp"][1]), "traces"))
    for payload in decode_records(line.messages[0]).payloads:
        batch = pa.ipc.open_stream(payload.record).read_next_batch()
        for field, column in zip(batch.schema, batch.columns, strict=True):
            assert field.nullable or column.null_count == 0


def test_checklist_18_a_body_is_never_null_if_others_are_set():
    request = REQUESTS["logs"]()
    records = request.resource_logs.add().scope_logs.add().log_records
    records.add(body=AnyValue(string_value="x"))
    records.add()
    line = Line("logs")
    line.send(tables_of(request.SerializeToString(), "logs"))
    body = pa.ipc.open_stream(decode_records(line.messages[0]).payloads[0].record).read_next_batch().column("body")
    assert body.null_count == 0
    assert body.field("type").to_pylist() == [1, 0]


def test_checklist_18_each_pair_of_resource_and_scope_has_an_id():
    line = Line("metrics")
    line.send(tables_of(bytes_of(CASES["metrics_all_kinds"]["otlp"][0]), "metrics"))
    found = StreamDecoder("metrics").try_decode(line.messages[0]).tables[10]
    resources, scopes = (found.column(name).field("id").to_pylist() for name in ("resource", "scope"))
    assert len(set(zip(resources, scopes, strict=True))) == len(set(scopes))
    assert scopes == sorted(scopes)


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_payloads_are_compressed_as_configured(compression):
    line = Line("logs", payload_compression=compression)
    line.send(tables(*("x" * 500 + str(number) for number in range(50))))
    assert (len(line.messages[0]) < 12_000) == (compression == "zstd")


def test_an_unknown_compression_is_refused():
    with pytest.raises(UsageError, match="use one of zstd, none"):
        StreamEncoder("logs", payload_compression="snappy")


@pytest.mark.parametrize("end", [StreamEncoder, StreamDecoder])
def test_an_unknown_signal_is_refused(end):
    with pytest.raises(UsageError, match="unknown signal 'spans'; use one of logs, traces, metrics"):
        end("spans")


def test_values_already_sent_are_not_repeated():
    line = Line("logs")
    sent(line, "a", "b")
    (root, *_) = sent(line, "b", "a")
    assert [piece.kind for piece in parse_messages(root.record)] == [RECORD_BATCH]
    (root, *_) = sent(line, "c", "a")
    (grown, _) = parse_messages(root.record)
    assert (grown.kind, grown.rows, grown.is_delta) == (DICTIONARY, 1, True)


def test_a_dictionary_grows_from_8_to_16_bits_with_a_new_schema_id():
    line = Line("logs")
    (first, *_) = sent(line, *map(str, range(255)))
    assert index_of(first) == pa.dictionary(pa.uint8(), pa.string())
    sent(line, *map(str, range(255)))
    (second, *_) = sent(line, "one more")
    assert index_of(second) == pa.dictionary(pa.uint16(), pa.string())
    assert second.schema_id != first.schema_id
    (third, *_) = sent(line, "1")
    assert third.schema_id == second.schema_id


def texts_over(line: Line, texts: list[str]) -> pa.Schema:
    """Send records with only these texts; return the schema."""
    (batch,) = line.encoder.encode({30: severities(pa.array(texts))})
    found = line.decoder.try_decode(batch.message).tables[30].column("severity_text")
    assert (found.dictionary_decode() if pa.types.is_dictionary(found.type) else found).to_pylist() == texts
    return line.encoder._writers[30].schema.field("severity_text").type


def test_a_column_with_too_many_values_becomes_plain():
    line = Line("logs")
    for _ in range(2):
        assert texts_over(line, [*map(str, range(40_000))]) == pa.dictionary(pa.uint16(), pa.string())
    assert texts_over(line, [*map(str, range(40_000, 66_000))]) == pa.string()
    assert texts_over(line, ["1"]) == pa.string()


def test_a_column_whose_values_hardly_repeat_becomes_plain_with_its_second_batch():
    line = Line("logs")
    assert pa.types.is_dictionary(texts_over(line, [*map(str, range(200))]))
    assert texts_over(line, [*map(str, range(190, 390))]) == pa.string()
    assert texts_over(line, ["1", "1"]) == pa.string()


def test_small_batches_of_distinct_values_stay_dictionaries():
    """A few values are no reason to change the schema."""
    line = Line("logs")
    for start in range(0, 250, 10):
        assert pa.types.is_dictionary(texts_over(line, [*map(str, range(start, start + 10))]))


def test_a_column_of_values_that_repeat_from_batch_to_batch_stays_a_dictionary():
    line = Line("logs")
    for start in range(0, 2000, 200):
        assert pa.types.is_dictionary(texts_over(line, [*map(str, range(start // 2, start // 2 + 200))]))


def test_a_full_dictionary_of_repeated_values_is_emptied():
    line = Line("logs")
    for _ in range(7):
        texts_over(line, [*map(str, range(40_000))])
    assert texts_over(line, [*map(str, range(40_000, 80_000))]) == pa.dictionary(pa.uint16(), pa.string())
    (batch,) = line.encoder.encode({30: severities(pa.array(["new"]))})
    (root,) = decode_records(batch.message).payloads
    assert [(piece.rows, piece.is_delta) for piece in parse_messages(root.record)] == [(1, True), (1, False)]


def test_checklist_7_a_column_is_always_sent_after_the_first_time():
    line = Line("logs")
    sent(line, "a")
    request = REQUESTS["logs"]()
    request.resource_logs.add().scope_logs.add().log_records.add(event_name="e")
    line.send(tables_of(request.SerializeToString(), "logs"))
    ids = {decode_records(message).payloads[0].schema_id for message in line.messages}
    assert len(ids) == 2
    (third, *_) = sent(line, "a")
    assert third.schema_id in ids, "the column was taken away again"


def test_long_batches_become_several_messages():
    texts = [f"{number:060d}" for number in range(3_000)]
    line = Line("logs", payload_compression="none", message_bytes_max=200_000)
    arrived = line.send(tables(*texts))
    assert len(line.messages) > 1
    assert max(map(len, line.messages)) <= 200_000
    found = [record.severity_text for items in arrived.resource_logs for record in items.scope_logs[0].log_records]
    assert sorted(found) == texts


def test_a_record_that_is_too_large_is_refused_and_the_stream_continues():
    line = Line("logs", payload_compression="none", message_bytes_max=20_000)
    sent(line, "a")
    refused = line.encoder.try_encode(tables("x" * 30_000))
    assert isinstance(refused, Damage)
    assert "a record takes" in refused.reason
    sent(line, "b")


def test_metadata_of_metrics_is_not_sent_by_default():
    request = REQUESTS["metrics"]()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m", metadata=[KeyValue(key="k")])
    assert metric.metadata
    made = tables_of(request.SerializeToString(), "metrics")
    for reported in (False, True):
        (batch,) = StreamEncoder("metrics", metric_metadata=reported).encode(made)
        assert (26 in StreamDecoder("metrics").try_decode(batch.message).tables) == reported


# -- accepted and refused messages ------------------------------------------------------------------------


def wire(payload: int, batch: pa.RecordBatch, *, schema_id: str = "1", codec: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec))
    writer.write_batch(batch)
    return encode_records(0, [ArrowPayload(schema_id, payload, sink.getvalue().to_pybytes())])


def severities(values) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"severity_text": values})


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_checklist_9_buffers_may_be_plain_zstd_or_lz4(codec):
    decoder = StreamDecoder("logs")
    batch = decoder.try_decode(wire(30, severities(pa.array(["x"] * 1000)), codec=codec))
    assert restored(batch.tables, "logs").resource_logs[0].scope_logs[0].log_records[999].severity_text == "x"


@pytest.mark.parametrize("index", [pa.uint8(), pa.uint16(), pa.uint32(), pa.int8(), pa.int32()])
def test_checklist_8_dictionaries_of_any_index_with_nulls_inside_decode(index):
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2], index), pa.array(["a", None, "a"]))
    batch = StreamDecoder("logs").try_decode(wire(30, severities(values)))
    records = restored(batch.tables, "logs").resource_logs[0].scope_logs[0].log_records
    assert [record.severity_text for record in records] == ["a", "", "", "a"]


def test_checklist_8_an_empty_dictionary_is_later_replaced():
    line = Line("logs")
    request = REQUESTS["logs"]()
    records = request.resource_logs.add().scope_logs.add().log_records
    records.add(severity_text="a", attributes=[KeyValue(key="", value=AnyValue(string_value=""))])
    line.send(tables_of(request.SerializeToString(), "logs"))
    sent(line, "b")


def test_checklist_20_a_truncated_message_is_refused():
    data = bytes_of(CASES["logs_headers"]["otap"][0])
    for end in range(len(data)):
        cut = StreamDecoder("logs").try_decode(data[:end])
        # Truncated after a field of the outer message, it is a valid shorter message, refused for the missing fields.
        assert isinstance(cut, Damage) or set(cut.tables) < {1, 30, 31} or not cut.headers


@pytest.mark.parametrize("name", ["logs_headers", "rust_traces_rich", "metrics_zero_bounds"])
def test_checklist_20_flipped_bytes_are_refused_or_change_values(name):
    case = CASES[name]
    data = bytearray(bytes_of(case["otap"][0]))
    for at in range(0, len(data), 1 + len(data) // 60):
        data[at] ^= 0x55
        found = StreamDecoder(case["signal"]).try_decode(bytes(data))
        data[at] ^= 0x55
        if isinstance(found, Damage):
            assert found.reason
        else:
            request_of_tables(found.tables, case["signal"])


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_flipped_byte_of_a_recorded_message_gets_an_answer(case):
    """For each message of a stream, after the unchanged ones before it."""
    for number, name in enumerate(case["otap"][:3]):
        before = [bytes_of(earlier) for earlier in case["otap"][:number]]
        data = bytearray(bytes_of(name))
        for at in range(len(data)):
            for flip in (0x01, 0x80, 0xFF):
                decoder = StreamDecoder(case["signal"])
                for message in before:
                    assert isinstance(decoder.try_decode(message), ArrowBatch)
                data[at] ^= flip
                found = decoder.try_decode(bytes(data))
                data[at] ^= flip
                if isinstance(found, ArrowBatch):
                    request_of_tables(found.tables, case["signal"])


def test_a_refusal_ends_the_stream():
    decoder = StreamDecoder("logs")
    refused = decoder.try_decode(b"\xff")
    assert isinstance(refused, Damage)
    assert decoder.try_decode(bytes_of(CASES["logs_sdk"]["otap"][0])) is refused


def test_a_message_without_the_earlier_ones_is_refused():
    refused = StreamDecoder("logs").try_decode(bytes_of(CASES["logs_sdk"]["otap"][1]))
    assert isinstance(refused, Damage)
    assert "expected a schema, dictionaries, then one record batch" in refused.reason


def test_an_id_that_changes_its_type_is_refused():
    decoder = StreamDecoder("logs")
    assert isinstance(decoder.try_decode(wire(30, severities(["a"]))), ArrowBatch)
    refused = decoder.try_decode(wire(31, pa.RecordBatch.from_pydict({"key": ["a"]})))
    assert refused == Damage(0, "schema id '1' is already used by LOGS")


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"message_bytes_max": 100}, "bytes in a message; the limit is 100"),
        ({"inflated_bytes_max": 1000}, "bytes decompressed"),
        ({"dictionary_values_max": 10}, "a dictionary of 300 values; the limit is 10"),
        ({"dictionaries_bytes_max": 100}, "the dictionaries of the stream take"),
    ],
)
def test_limits_of_a_stream_are_enforced(limits, reason):
    (batch,) = StreamEncoder("logs").encode(tables(*map(str, range(300))))
    refused = StreamDecoder("logs", StreamLimits(**limits)).try_decode(batch.message)
    assert isinstance(refused, Damage)
    assert reason in refused.reason


def test_a_decompression_bomb_is_refused_before_decompression():
    zeros = pa.RecordBatch.from_pydict({"severity_text": pa.array(["\0" * 45_000_000] * 3)})
    message = wire(30, zeros, codec="zstd")
    assert len(message) < 100_000
    refused = StreamDecoder("logs").try_decode(message)
    assert isinstance(refused, Damage)
    assert "bytes decompressed" in refused.reason


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (pa.RecordBatch.from_pydict({str(at): [1] for at in range(65)}), "65 columns; the limit is 64"),
        (pa.RecordBatch.from_pydict({"x": [[[[[1]]]]]}), "column x nests too deep"),
        (pa.RecordBatch.from_pydict({"x": pa.nulls(1)}), "column x is null, which OTAP does not have"),
        (pa.RecordBatch.from_pydict({"id": ["a"]}), "LOGS: column id is string, not uint16"),
        (severities(["a"] * 65_536), "65536 rows; the limit is 65535"),
    ],
)
def test_invalid_schemas_are_refused(batch, reason):
    refused = StreamDecoder("logs").try_decode(wire(30, batch))
    assert isinstance(refused, Damage)
    assert reason in refused.reason


def test_tables_of_another_signal_are_refused():
    assert "do not belong to metrics" in StreamEncoder("metrics").try_encode(tables("a")).reason
    refused = StreamDecoder("metrics").try_decode(wire(30, severities(["a"])))
    assert refused == Damage(0, "payload type 30 does not belong to metrics")


def test_a_request_parses_as_sent():
    assert parsed(logs("a").SerializeToString(), "logs") == logs("a")


def test_integers_of_exemplars_are_plain():
    """One reader refuses a dictionary there, though its own schema has one."""
    request = REQUESTS["metrics"]()
    gauge = request.resource_metrics.add().scope_metrics.add().metrics.add(name="g").gauge
    for number in (7, 7, 8):
        gauge.data_points.add(as_int=number).exemplars.add(as_int=number, time_unix_nano=1)
    (batch,) = StreamEncoder("metrics").encode(tables_of(request.SerializeToString(), "metrics"))

    (sent,) = [one for one in decode_records(batch.message).payloads if one.payload == 19]
    assert pa.ipc.open_stream(sent.record).schema.field("int_value").type == pa.int64()
