"""pyarrow's client reads slots, views and tables over Flight, and gets a clear error for everything else."""

import json

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from fake_store import log_request
from flight_calls import command, rows, ticket

import quiver
from http2_client import Http2Client, message
from quiver.bundle import OTLP_SCHEMA, QWP_SLOT, QWP_TABLE_KEY
from quiver.http2 import frames as h2
from quiver.receivers.flight.batches import BatchDecoder, BatchLimits
from quiver.receivers.flight.messages import SERVICE, decode_flight_data, encode_bytes
from quiver.receivers.flight.sources import served_store


def test_a_slot_is_read_as_the_scan_returns_it(store, serve):
    """Sealed bundles, and those in the log; with dictionaries that change, other columns, and rows without any."""
    words = pa.array(["a", "b", None]).dictionary_encode()
    others = pa.array(["c", "a", "c"]).dictionary_encode()
    store.ingest(quiver.Bundle({"logs": rows(0, word=words)}))
    store.ingest(quiver.Bundle({"logs": rows(3, word=others)}))
    store.seal()
    store.ingest(quiver.Bundle({"logs": rows(6, host=["x", "y", "z"])}))
    client = serve()

    table = client.do_get(ticket(slot="logs")).read_all()
    assert table.equals(store.scan("logs").to_table())
    assert table["id"].to_pylist() == list(range(9))
    assert client.do_get(ticket(slot=30, columns=["host"])).read_all().column_names == ["host"]
    assert client.do_get(ticket(slot="spans")).read_all().num_rows == 0


def test_batches_are_divided_into_messages_of_bounded_size(store, serve):
    """Go's clients refuse messages above 4 MiB; a row that is larger than the size is sent alone."""
    store.ingest(quiver.Bundle({"logs": rows(0, 10_000)}))
    store.ingest(quiver.Bundle({"logs": rows(10_000, 2, text=["x" * 50_000, "y"])}))
    client = serve(message_bytes=16_000)
    found = [chunk.data for chunk in client.do_get(ticket(slot="logs"))]
    assert sum(batch.num_rows for batch in found) == 10_002
    assert len(found) > 5
    assert max(batch.nbytes for batch in found if batch.num_rows > 1) < 20_000


def test_times_select_bundles(store, serve):
    """As nanoseconds or in RFC 3339, of ingestion or of the events."""
    day = pa.array([0, 86_400 * 10**9], pa.timestamp("ns", "UTC"))
    store.ingest(quiver.Bundle({"logs": pa.record_batch({"time": day})}))
    client = serve()
    for start in ("1970-01-02T00:00:00Z", 86_400 * 10**9):
        assert client.do_get(ticket(slot="logs", start=start, by="event")).read_all().num_rows == 1
    assert client.do_get(ticket(slot="logs", end="1970-01-02T00:00:00+00:00")).read_all().num_rows == 0


def test_a_view_and_a_table_are_read(store, serve):
    data = pa.array([log_request("hello")], pa.binary())
    store.ingest(quiver.Bundle({60: pa.RecordBatch.from_arrays([data], schema=OTLP_SCHEMA)}))
    trades = rows(0).replace_schema_metadata({QWP_TABLE_KEY: b"trades"})
    store.ingest(quiver.Bundle({QWP_SLOT: trades}))
    client = serve()
    found = client.do_get(ticket(view="logs", columns=["body"])).read_all()
    assert [body["string_value"] for body in found["body"].to_pylist()] == ["hello"]
    assert client.do_get(ticket(table="trades")).read_all()["id"].to_pylist() == [0, 1, 2]


def test_discovery_returns_tickets_that_can_be_read(store, serve, tmp_path):
    """For every slot, table and view that has data, of every store."""
    store.ingest(quiver.Bundle({"logs": rows(0)}))
    data = pa.array([log_request("hello")], pa.binary())
    store.ingest(quiver.Bundle({60: pa.RecordBatch.from_arrays([data], schema=OTLP_SCHEMA)}))
    with quiver.open(tmp_path / "other") as other:
        other.ingest(quiver.Bundle({"spans": rows(0), 5: rows(0)}))
    client = serve(served_store(tmp_path / "other", name="two"))

    found = {}
    for info in client.list_flights():
        (endpoint,) = info.endpoints
        assert endpoint.locations == []
        found[info.descriptor.path and tuple(info.descriptor.path)] = info
        assert client.do_get(endpoint.ticket).read_all().schema.equals(info.schema)
    assert {(b"buffer", b"logs"), (b"buffer", b"otlp_logs"), (b"two", b"spans"), (b"two", b"5")} < set(found)

    by_path = fl.FlightDescriptor.for_path("buffer", "logs")
    assert client.get_schema(by_path).schema.names == ["id"]
    info = client.get_flight_info(by_path)
    assert (info.descriptor, info.total_records) == (by_path, -1)
    assert json.loads(info.endpoints[0].ticket.ticket) == {"slot": "logs", "store": "buffer", "version": 1}
    info = client.get_flight_info(command(store="two", slot="spans", columns=["id"], start="2020-01-01T00:00:00Z"))
    assert client.do_get(info.endpoints[0].ticket).read_all().num_rows == 3


INVALID = {
    "not JSON": (b"\xff", "not a JSON object"),
    "not an object": (b"[1]", "not a JSON object"),
    "deep": (b"[" * 60_000, "not a JSON object"),
    "too large": (b" " * 70_000, "the maximum is 65536"),
    "another version": (b'{"version": 2}', "version 2 of commands is unknown"),
    "nothing": (b"{}", "give one of slot, view and table"),
    "both": (b'{"slot": "logs", "view": "logs"}', "give one of"),
    "a misspelt key": (b'{"slto": "logs"}', "do you mean slot?"),
    "a key of another call": (b'{"slot": "logs", "subscriber": "s"}', "does not use subscriber"),
    "a topic of a server without topics": (b'{"topic": "default/orders"}', "start it with --topics DIR"),
    "an unknown slot": (b'{"slot": "log"}', "no slot named 'log'"),
    "an unknown column": (b'{"slot": "logs", "columns": ["no"]}', "no column 'no'"),
    "columns as text": (b'{"slot": "logs", "columns": "id"}', "must be a list"),
    "a time without a zone": (b'{"slot": "logs", "start": "2026-01-01T00:00:00"}', "start must be"),
    "a huge number": (b'{"slot": "logs", "start": 1' + b"0" * 5000 + b"}", "not a JSON object"),
    "a word as a time": (b'{"slot": "logs", "start": "earliest"}', "must be a time"),
    "an unknown view": (b'{"view": "trace"}', "trace"),
    "text for a switch": (b'{"slot": "logs", "strict": 1}', "true or false"),
}


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_ticket_is_refused_with_the_reason(store, serve, case):
    store.ingest(quiver.Bundle({"logs": rows(0)}))
    data, reason = INVALID[case]
    client = serve()
    with pytest.raises(pa.ArrowInvalid) as raised:
        client.do_get(fl.Ticket(data)).read_all()
    assert reason in str(raised.value)
    assert client.do_get(ticket(slot="logs")).read_all().num_rows == 3


def test_a_store_is_named_when_there_are_several(store, serve, tmp_path):
    quiver.open(tmp_path / "other").close()
    client = serve(served_store(tmp_path / "other"))
    with pytest.raises(pa.ArrowInvalid, match="one of buffer, other"):
        client.do_get(ticket(slot="logs")).read_all()
    with pytest.raises(KeyError, match="no store 'nope' here"):
        client.do_get(ticket(slot="logs", store="nope")).read_all()
    with pytest.raises(quiver.UsageError, match="NAME=DIR"):
        serve(served_store(tmp_path / "other", name="buffer"))


def test_damage_ends_a_scan_unless_it_is_to_be_left_out(store, serve, tmp_path):
    for first in (0, 3):
        store.ingest(quiver.Bundle({"logs": rows(first)}))
        store.seal()
    path = min((tmp_path / "buffer" / "segments").glob("*.qseg"))
    data = bytearray(path.read_bytes())
    data[data.index((1).to_bytes(8, "little") + (2).to_bytes(8, "little"))] ^= 0xFF
    path.write_bytes(data)
    client = serve()
    with pytest.raises(fl.FlightInternalError, match=r"[Dd]ata loss"):
        client.do_get(ticket(slot="logs")).read_all()
    assert client.do_get(ticket(slot="logs", strict=False)).read_all()["id"].to_pylist() == [3, 4, 5]


def test_a_large_message_is_refused_before_it_is_read(store, serve):
    """Even the first bytes of a message declare its size."""
    client = serve(max_request_bytes=100_000)
    with pytest.raises(pa.ArrowInvalid, match="larger than max"):
        client.do_get(fl.Ticket(b" " * 200_000)).read_all()


def test_a_client_that_does_not_read_is_ended(store, serve, observer):
    """Its stream holds files and memory; other clients are served meanwhile."""
    store.ingest(quiver.Bundle({"logs": rows(0, 500_000)}))
    client = serve(stream_idle_s=0.5)
    with Http2Client(serve.port) as slow:
        slow.call(f"/{SERVICE}/DoGet", message(encode_bytes(b'{"slot": "logs"}')))
        assert client.do_get(ticket(slot="logs")).read_all().num_rows == 500_000
        assert slow.status()[0] == 4  # DEADLINE_EXCEEDED
    assert observer.total("quiver.receiver.calls_total") == 2


def test_a_client_that_reads_late_gets_every_byte(store, serve):
    """The windows allow everything at once; the socket takes a part of it, and the rest follows in order."""
    store.ingest(quiver.Bundle({"logs": rows(0, 400_000)}))
    client = serve()
    with Http2Client(serve.port, settings=((h2.INITIAL_WINDOW_SIZE, 1 << 30),)) as late:
        late.send(h2.window_frame(0, 1 << 30))
        late.call(f"/{SERVICE}/DoGet", message(encode_bytes(b'{"slot": "logs"}')))
        assert client.do_get(ticket(slot="logs")).read_all().num_rows == 400_000
        assert late.status() == (0, "")
        decoder = BatchDecoder(BatchLimits(1 << 30, 1 << 30))
        found = [decoder.take(decode_flight_data(data)) for data in late.messages()]
    assert pa.Table.from_batches(found[1:]).equals(store.scan("logs").to_table())
