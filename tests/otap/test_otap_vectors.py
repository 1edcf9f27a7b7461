"""Recorded streams of other implementations decode to their requests."""

import pyarrow as pa
import pytest
from otap_equal import merged
from otap_ways import CASES, Line, bytes_of, parsed, restored, weighed

from quiver.otap.stream.arrow_message import decode_records
from quiver.otap.stream.decoder import ArrowBatch, StreamDecoder
from quiver.otap.stream.ipc_messages import DICTIONARY, SCHEMA, parse_messages
from quiver.otap.tables.payload_schema import ENCODING, TABLES

BY_NAME = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
EVERY_STREAM = pytest.mark.parametrize("case", weighed("logs_dict_reset", "metrics_growing", "logs_schema_changes"))
LOST_BY_ALL = {"empty_attributes", "map_order", "empty_buckets"}


def decoded(case) -> list[ArrowBatch]:
    decoder = StreamDecoder(case["signal"])
    found = [decoder.try_decode(bytes_of(name)) for name in case["otap"]]
    assert [batch for batch in found if not isinstance(batch, ArrowBatch)] == []
    return found


@BY_NAME
def test_checklist_16_a_recorded_stream_decodes_to_its_requests(case):
    losses = frozenset(case["losses"]) | LOST_BY_ALL
    for batch, name in zip(decoded(case), case["otlp"], strict=True):
        expected = parsed(bytes_of(name), case["signal"])
        assert merged(restored(batch.tables, case["signal"]), losses) == merged(expected, losses)


@EVERY_STREAM
def test_checklist_17_recorded_tables_are_sent_over_our_streams(case):
    """Tables of other programs, with their nulls and shared scope ids, are sorted, renumbered and sent."""
    line = Line(case["signal"])
    for batch in decoded(case):
        there = restored(batch.tables, case["signal"])
        assert merged(line.send(batch.tables), frozenset()) == merged(there, frozenset())


@BY_NAME
def test_checklist_21_decoded_tables_mark_their_ids_as_plain(case):
    for batch in decoded(case):
        for payload, table in batch.tables.items():
            for column in TABLES[payload].columns:
                at = table.schema.get_field_index(column.struct or column.name)
                if at < 0 or not column.default:
                    continue
                field = table.schema.field(at)
                if column.struct:
                    inner = field.type.get_field_index(column.leaf)
                    if inner < 0:
                        continue
                    field = field.type.field(inner)
                assert field.metadata[ENCODING] == b"plain"


def test_checklist_2_batches_are_counted_from_zero():
    assert [batch.batch_id for batch in decoded(CASES["logs_delta_dictionaries"])] == list(range(6))


def test_checklist_5_header_blocks_are_passed_on():
    """The second batch refers to headers of the first: a decoder needs all of them."""
    lengths = [len(batch.headers) for batch in decoded(CASES["logs_headers"])]
    assert lengths[0] > 30
    assert lengths[1] == 3


def records_of(name: str) -> list[tuple[str, int, list]]:
    return [
        (payload.schema_id, payload.payload, parse_messages(payload.record))
        for message in CASES[name]["otap"]
        for payload in decode_records(bytes_of(message)).payloads
    ]


@pytest.mark.parametrize("case", [case for case in CASES.values() if "schemas" in case], ids=lambda case: case["name"])
def test_checklist_8_the_ipc_messages_equal_the_recorded_ones(case):
    """Schemas, deltas and replacements are counted by parsing the IPC messages without Arrow."""
    schemas = deltas = replaced = 0
    seen = set()
    for schema_id, _, pieces in records_of(case["name"]):
        for piece in pieces:
            schemas += piece.kind == SCHEMA
            if piece.kind == DICTIONARY:
                deltas += piece.is_delta
                replaced += not piece.is_delta and (schema_id, piece.dictionary) in seen
                seen.add((schema_id, piece.dictionary))
    assert (schemas, deltas, replaced) == (
        case["schemas"], case["delta_dictionaries"], case["replaced_dictionaries"],
    )  # fmt: skip


def test_checklist_7_roots_come_first_or_later_depending_on_the_producer():
    first = {case["producer"]: decode_records(bytes_of(case["otap"][0])).payloads[0].payload for case in CASES.values()}
    assert first["rust"] in {1, 2}
    assert first["go"] in {10, 30, 40}


def test_checklist_9_buffers_are_decoded_with_and_without_compression():
    plain = parse_messages(decode_records(bytes_of(CASES["logs_no_ipc_compression"]["otap"][0])).payloads[0].record)
    packed = parse_messages(decode_records(bytes_of(CASES["logs_sdk"]["otap"][0])).payloads[0].record)
    assert plain[-1].bytes_inflated > 0
    assert packed[-1].bytes_inflated > 0
    assert isinstance(pa.Codec("zstd"), pa.Codec)
