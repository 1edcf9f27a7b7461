"""`quiver serve`, killed with SIGKILL: no acknowledged batch is lost, and no durable answer is asked for again."""

import contextlib
import itertools
import json
import re
import subprocess
import sys
import threading

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from flight_calls import command, rows, ticket

KILLS = 2
CLIENTS = 3
OPTIONS = fl.FlightCallOptions(timeout=60)


def started(*directories):
    """Start a server in a process of its own. Return the process and a client."""
    arguments = [sys.executable, "-m", "quiver", "serve", *map(str, directories), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    address = re.search(r"grpc://127.0.0.1:\d+", process.stdout.readline())[0]
    return process, fl.connect(address)


def put_until_killed(client, first, acked, enough):
    """Put batches from number *first* until the server is gone. Add what it acknowledged to *acked*."""
    writer, reader = client.do_put(command(slot="logs"), rows(0).schema, OPTIONS)

    def read():
        with contextlib.suppress(pa.ArrowException, OSError):
            while (ack := reader.read()) is not None:
                acked.append(json.loads(ack.to_pybytes())["sequence"])
                if len(acked) % 50 == 0:
                    enough.set()

    reading = threading.Thread(target=read)
    reading.start()
    with contextlib.suppress(pa.ArrowException, OSError):
        for number in itertools.count(first):
            writer.write_with_metadata(rows(number, 1), json.dumps({"sequence": number}).encode())
    reading.join()


def test_acknowledged_batches_survive(tmp_path):
    """Killed in the middle of streams, several times."""
    acked, number = [], 0
    for _ in range(KILLS):
        process, client = started(tmp_path / "buffer")
        with process, client:
            enough = threading.Event()
            firsts = range(number, number + CLIENTS * 1_000_000, 1_000_000)
            putting = [
                threading.Thread(target=put_until_killed, args=(client, first, acked, enough)) for first in firsts
            ]
            for thread in putting:
                thread.start()
            assert enough.wait(60)
            process.kill()
            for thread in putting:
                thread.join()
        number += 10_000_000
    process, client = started(tmp_path / "buffer")
    with process, client:
        stored = client.do_get(ticket(slot="logs"), OPTIONS).read_all()["id"].to_pylist()
        process.kill()
    assert len(acked) >= KILLS * 50
    assert set(acked) <= set(stored)
    assert len(set(stored)) == len(stored)


def test_durable_answers_survive(tmp_path):
    """Everything else is delivered again: at least once, and never lost."""
    total, answered = 300, []
    process, client = started(tmp_path / "buffer")
    with process, client:
        writer, reader = client.do_put(command(slot="logs"), rows(0).schema, OPTIONS)
        for number in range(total):
            writer.write_batch(rows(number, 1))
            reader.read()
        writer.close()
        process.kill()
    for _ in range(KILLS):
        process, client = started(tmp_path / "buffer")
        with process, client:
            delivered, writer = consume(client, 60)
            list(client.do_action("maintain", OPTIONS))
            process.kill()
            close(writer)
        assert set(delivered).isdisjoint(answered)
        answered += delivered
    process, client = started(tmp_path / "buffer")
    with process, client:
        delivered, writer = consume(client, total - len(answered))
        process.kill()
        close(writer)
    assert sorted(answered + delivered) == list(range(total))


def consume(client, count):
    """Acknowledge *count* bundles. Return the ids in them, and the open stream."""
    writer, reader = client.do_exchange(command(subscriber="s", start="earliest"), OPTIONS)
    writer.begin(pa.schema([]))
    found = []
    for number in range(count):
        chunk = reader.read_chunk()
        (row,) = chunk.data.to_pylist()
        found += pa.ipc.open_stream(row["ipc"]).read_all()["id"].to_pylist()
        address = json.loads(chunk.app_metadata.to_pybytes())["address"]
        writer.write_metadata(json.dumps({"ack": [address]}).encode())
        if number == count - 1:
            # A refused answer proves that the server has read all earlier ones.
            writer.write_metadata(json.dumps({"ack": ["none"]}).encode())
            with pytest.raises(pa.ArrowInvalid):
                while True:
                    reader.read_chunk()
    return found, writer


def close(writer):
    with contextlib.suppress(pa.ArrowException, OSError):
        writer.close()


def produce_until_killed(client, stored, enough):
    """Produce numbered messages from number *stored* until the server is gone. Return the first unanswered number."""
    writer, reader = client.do_put(command(topic="default/orders", producer="edge-1"), MESSAGE.schema, OPTIONS)
    answered = [stored]

    def read():
        with contextlib.suppress(pa.ArrowException, OSError):
            while (ack := reader.read()) is not None:
                answered.append(json.loads(ack.to_pybytes())["sequence"] + 2)
                if len(answered) == 50:
                    enough.set()

    reading = threading.Thread(target=read)
    reading.start()
    with contextlib.suppress(pa.ArrowException, OSError):
        for number in itertools.count(stored, 2):
            batch = pa.record_batch({"payload": [str(number), str(number + 1)]})
            writer.write_with_metadata(batch, json.dumps({"sequence": number}).encode())
    reading.join()
    return answered[-1]


MESSAGE = pa.record_batch({"payload": ["0", "1"]})


def test_a_producer_appends_each_message_once(tmp_path):
    """It sends everything again that was not acknowledged; the server was killed in the middle of a stream."""
    number = 0
    for _ in range(KILLS):
        process, client = started("--topics", tmp_path / "topics")
        with process, client:
            enough = threading.Event()
            killer = threading.Thread(target=lambda enough=enough, process=process: enough.wait(60) and process.kill())
            killer.start()
            number = produce_until_killed(client, number, enough)
            killer.join()
    process, client = started("--topics", tmp_path / "topics")
    with process, client:
        writer, reader = client.do_put(command(topic="default/orders", producer="edge-1"), MESSAGE.schema, OPTIONS)
        writer.write_with_metadata(MESSAGE, b'{"sequence": 0}')
        assert json.loads(reader.read().to_pybytes())["count"] == 0
        writer.close()
        found = client.do_get(ticket(topic="default/orders"), OPTIONS).read_all()["payload"].to_pylist()
        process.kill()
    assert len(found) >= number >= KILLS * 50
    assert found == [str(one).encode() for one in range(len(found))]
