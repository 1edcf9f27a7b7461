"""`DoPut`: each batch is stored as one bundle, and acknowledged when it is as safe as `ack` requires."""

import threading

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from flight_calls import command, put, rows, ticket

import quiver
from missing_offsets import KINDS, received
from quiver.bundle import lacks_offsets
from quiver.errors import StoreFailedError
from quiver.receivers.flight.bundles import rows_of_bundle
from quiver.receivers.flight.sources import served_store

LOGS = fl.FlightDescriptor.for_path("logs")


@pytest.mark.parametrize("ack", ["synced", "logged"])
def test_every_batch_is_stored_and_acknowledged(store, serve, ack):
    """In order, with the number that the client gave it, or its position in the stream."""
    client = serve(ack=ack)
    acks, error = put(client, LOGS, *(rows(first) for first in range(40)))
    assert (acks, error) == ([{"sequence": n} for n in range(40)], None)
    acks, error = put(client, command(slot="logs"), rows(40), rows(41), sequences=[7, 2**40])
    assert (acks, error) == ([{"sequence": 7}, {"sequence": 2**40}], None)
    found = client.do_get(ticket(slot="logs")).read_all()["id"].to_pylist()
    assert found == [first + n for first in range(42) for n in range(3)]
    assert [len(bundle["logs"]) for _, bundle in quiver.read(store.path).bundles()] == [3] * 42


def test_an_acknowledgement_waits_for_the_disk(store, serve, monkeypatch):
    """With `synced`, nothing is confirmed before the sync; streams that wait at the same time share one."""
    allowed, entered, syncs = threading.Event(), threading.Event(), []
    real = store.sync

    def sync():
        entered.set()
        assert allowed.wait(30)
        syncs.append(1)
        real()

    monkeypatch.setattr(type(store), "sync", lambda _self: sync())
    client = serve()
    writer, reader = client.do_put(LOGS, rows(0).schema, fl.FlightCallOptions(timeout=60))
    for first in range(5):
        writer.write_batch(rows(first))
    got = []
    reading = threading.Thread(target=lambda: got.extend(reader.read() for _ in range(5)))
    reading.start()
    assert entered.wait(30)
    assert got == []
    allowed.set()
    reading.join(30)
    assert len(got) == 5
    assert len(syncs) <= 5
    writer.close()


def test_a_failed_sync_confirms_nothing(serve, store, monkeypatch):
    def fail(_self):
        raise StoreFailedError("the disk is broken")

    monkeypatch.setattr(type(store), "sync", fail)
    acks, error = put(serve(), LOGS, rows(0), rows(1))
    assert acks == []
    assert "send it again: the disk is broken" in str(error)


def test_dictionaries_and_empty_batches(serve):
    """A batch without rows is acknowledged, and not stored."""
    words = [pa.array(found, pa.string()).dictionary_encode() for found in (["a", "b"], ["b", "c"], [])]
    batches = [pa.record_batch({"word": word}) for word in words]
    client = serve()
    acks, error = put(client, LOGS, *batches)
    assert (len(acks), error) == (3, None)
    assert client.do_get(ticket(slot="logs")).read_all()["word"].to_pylist() == ["a", "b", "b", "c"]


@pytest.mark.parametrize("kind", KINDS)
def test_empty_arrays_without_offsets_are_stored(store, serve, kind):
    """A client in Java may send them: pyarrow ends the process when it counts the size of some of them."""
    batch = received(KINDS[kind])
    client = serve()
    assert put(client, command(slot="logs"), batch) == ([{"sequence": 0}], None)
    bundle = rows_of_bundle(quiver.Bundle({"logs": batch}), quiver.OTAP)
    assert put(client, command(bundles=True), bundle) == ([{"sequence": 0}], None)
    assert client.do_get(ticket(slot="logs")).read_all().to_pylist() == batch.to_pylist() * 2
    for _, stored in store_bundles(store):
        assert not lacks_offsets(stored["logs"])


def test_complete_bundles_are_stored(store, serve):
    """A row for each slot, by number or name."""
    bundle = quiver.Bundle({"logs": rows(0), "log_attrs": rows(5, 9)})
    other = pa.record_batch(
        {"slot": ["spans"], "ipc": rows_of_bundle(quiver.Bundle({"logs": rows(1)}), quiver.OTAP)["ipc"]}
    )
    client = serve()
    acks, error = put(client, command(bundles=True), rows_of_bundle(bundle, quiver.OTAP))
    assert (acks, error) == ([{"sequence": 0}], None)
    assert put(client, command(bundles=True), other) == ([{"sequence": 0}], None)
    found = [bundle for _, bundle in store_bundles(store)]
    assert [sorted(one.slots) for one in found] == [[30, 31], [40]]
    assert found[0]["log_attrs"].equals(rows(5, 9))


def store_bundles(store):
    return list(quiver.read(store.path).bundles())


def stream_of(*batches):
    table = pa.Table.from_batches(batches)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


BAD_BUNDLES = {
    "other columns": (rows(0), "has the columns slot and ipc"),
    "an unknown slot": (pa.record_batch({"slot": ["log"], "ipc": [stream_of(rows(0))]}), "no slot named 'log'"),
    "a slot that is too large": (pa.record_batch({"slot": [64], "ipc": [stream_of(rows(0))]}), "64"),
    "twice the same": (pa.record_batch({"slot": [30, 30], "ipc": [stream_of(rows(0))] * 2}), "slot 30 is repeated"),
    "no stream": (pa.record_batch({"slot": [30], "ipc": [b"nothing"]}), "slot 30: IPC"),
    "two batches": (pa.record_batch({"slot": [30], "ipc": [stream_of(rows(0), rows(1))]}), "with one batch"),
    "null": (pa.record_batch({"slot": [30], "ipc": pa.array([None], pa.binary())}), "binary ipc in each row"),
}


@pytest.mark.parametrize("case", BAD_BUNDLES)
def test_an_invalid_bundle_is_refused(store, serve, case):
    """Earlier batches are stored and acknowledged."""
    batch, reason = BAD_BUNDLES[case]
    good = pa.record_batch([pa.array([30], pa.int64()), pa.array([stream_of(rows(0))])], ["slot", "ipc"])
    batches = [good, batch] if batch.schema == good.schema else [batch]
    acks, error = put(serve(), command(bundles=True), *batches)
    assert len(acks) == len(store_bundles(store)) == len(batches) - 1
    assert reason in str(error)
    assert f"batch {len(batches) - 1} of the stream" in str(error)


@pytest.mark.parametrize(
    ("descriptor", "reason"),
    [
        (command(), "a put needs a slot"),
        (command(slot="logs", bundles=True), "a put needs a slot"),
        (command(bundles=False), "a put needs a slot"),
        (command(slot="nope"), "no slot named 'nope'"),
        (command(slot="logs", columns=["id"]), "does not use columns"),
        (fl.FlightDescriptor.for_path("a", "b", "c"), "the path has 3 elements"),
    ],
    ids=["nothing", "both", "false", "slot", "columns", "path"],
)
def test_an_invalid_descriptor_is_refused(store, serve, descriptor, reason):
    acks, error = put(serve(), descriptor, rows(0))
    assert (acks, reason in str(error), store_bundles(store)) == ([], True, [])


def test_wrong_metadata_is_refused(store, serve):
    """The batches before it are acknowledged, and those after it are not stored."""
    acks, error = put(serve(), LOGS, *(rows(n) for n in range(5)), sequences=[0, 1, -1, 3, 4])
    assert acks == [{"sequence": 0}, {"sequence": 1}]
    assert "sequence must be a number" in str(error)
    assert len(store_bundles(store)) == 2


def test_large_batches_are_refused(store, serve):
    """On the wire, and after decompression."""
    client = serve(max_request_bytes=50_000, inflated_bytes_max=50_000)
    acks, error = put(client, LOGS, rows(0), rows(0, 10_000))
    assert (len(acks) < 2, "larger than max" in str(error)) == (True, True)
    options = fl.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    zeros = pa.record_batch({"id": np.zeros(10_000)})
    writer, _ = client.do_put(LOGS, zeros.schema, options)
    with pytest.raises(pa.ArrowInvalid, match="send smaller batches"):
        writer.write_batch(zeros)
        writer.close()
    assert len(store_bundles(store)) < 2


def test_a_full_store_ends_the_stream(tmp_path, opened, serve):
    """With UNAVAILABLE: the client sends what was not acknowledged again, later."""
    settings = quiver.Settings.from_mapping(
        {"retention.size_cap": "1MiB", "segment.target_size": "64KiB", "wal.rotation_target": "64KiB"}
    )
    small = opened.enter_context(quiver.open(tmp_path / "small", settings))
    small.register("slow", start="earliest")
    client = serve(served_store(tmp_path / "small", small), capacity_wait_s=0.0)
    batch = pa.record_batch({"id": np.random.default_rng(1).integers(0, 2**62, 10_000)})
    acks, error = put(client, command(store="small", slot="logs"), *[batch] * 40)
    assert isinstance(error, fl.FlightUnavailableError)
    assert "at capacity" in str(error)
    assert len(acks) == len(store_bundles(small)) < 40


def test_a_store_for_reading_refuses_writers(store, serve):
    store.ingest(quiver.Bundle({"logs": rows(0)}))
    client = serve(writable=False)
    acks, error = put(client, LOGS, rows(0))
    assert (acks, "for reading only" in str(error)) == ([], True)
    with pytest.raises(pa.ArrowException, match="for reading only"):
        list(client.do_action("maintain"))
    assert client.do_get(ticket(slot="logs")).read_all().num_rows == 3
