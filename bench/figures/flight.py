"""
Arrow Flight beside the same calls in the process: reading, ingest with acknowledgements, and subscriptions.

`quiver serve` runs in a process of its own, and the client is that of pyarrow. A scan in the process maps files and
copies nothing, so there are two figures for reading: rows that are only counted, and rows whose values are summed,
which reads every byte. A view is decoded from OTLP requests while it is read. The Flight server of pyarrow, which
serves the same batches from memory, shows what gRPC allows.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl

import quiver
from quiver.bundle import OTLP_SCHEMA, OTLP_SLOTS
from report import BenchParser, Quick, Report, Result, machine, noise, ratios, run_rounds_of_several
from telemetry import log_request

ROWS = 1 << 16
LARGE_BUNDLES = 96
REQUESTS = 96
"""Each of 1,000 log records."""
SMALL_ROWS = 200
SMALL_BUNDLES = 4_000
CLIENTS = 4
AIM = 0.5
INSIDE, FLIGHT, FOUR = "in the process", "Flight", f"Flight, {CLIENTS} clients"
PYARROW = "pyarrow's Flight server"
PYARROW_SERVER = """
import sys, pyarrow as pa, pyarrow.flight as fl, quiver

class Server(fl.FlightServerBase):
    def do_get(self, context, ticket):
        return fl.RecordBatchStream(tables[ticket.ticket])

reader = quiver.read(sys.argv[1])
tables = {
    b'{"slot": "logs"}': pa.Table.from_batches(list(reader.scan("logs"))),
    b'{"view": "logs"}': pa.Table.from_batches(list(reader.scan(view="logs"))),
}
server = Server("grpc://127.0.0.1:0")
print(f"grpc://127.0.0.1:{server.port}", flush=True)
server.serve()
"""


@dataclass(frozen=True)
class Sizes:
    """How much is read: bundles with numbers, and OTLP requests."""

    bundles: int
    requests: int

    @property
    def rows(self) -> int:
        return self.bundles * ROWS

    @property
    def records(self) -> int:
        return self.requests * 1_000


Figures = dict[str, float]
Contender = Callable[[Path], Figures]


def large_batch(seed: int) -> pa.RecordBatch:
    values = np.random.default_rng(seed)
    return pa.record_batch({"id": np.arange(ROWS) + seed, "value": values.random(ROWS)})


def small_batch() -> pa.RecordBatch:
    return pa.record_batch({"id": np.arange(SMALL_ROWS), "value": np.arange(SMALL_ROWS) / 7})


@contextmanager
def served(directory: Path, *, by_pyarrow: bool = False) -> Iterator[fl.FlightClient]:
    """Serve a store in another process, and yield a client."""
    arguments = [sys.executable, "-m", "quiver", "serve", str(directory), "--listen", "127.0.0.1:0"]
    if by_pyarrow:
        arguments = [sys.executable, "-c", PYARROW_SERVER, str(directory)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = re.search(r"grpc://\S+:\d+", process.stdout.readline() if process.stdout else "")
            if found is None:
                raise SystemExit("the server does not start")
            with fl.connect(found[0]) as client:
                yield client
        finally:
            process.kill()


def counted(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def summed(batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    for batch in batches:
        for column in batch.columns:
            pc.sum(column)
        rows += batch.num_rows
    return rows


def scans(read: Callable[[str, str], Iterable[pa.RecordBatch]], sizes: Sizes) -> Figures:
    """Return rows per second of a slot, counted and summed, and of a view."""
    found = {}
    for name, what, use, rows in (
        ("scan, rows counted", "slot", counted, sizes.rows),
        ("scan, values summed", "slot", summed, sizes.rows),
        ("scan of a view", "view", counted, sizes.records),
    ):
        started = perf_counter()
        if use(read(what, "logs")) != rows:
            raise SystemExit(f"{name}: rows are missing")
        found[name] = rows / (perf_counter() - started)
    return found


def of_flight(client: fl.FlightClient) -> Callable[[str, str], Iterator[pa.RecordBatch]]:
    return lambda what, name: (chunk.data for chunk in client.do_get(fl.Ticket(json.dumps({what: name}))))


def fill(directory: Path, bundles: int, requests: int) -> None:
    with quiver.open(directory) as store:
        for number in range(bundles):
            store.ingest(quiver.Bundle({"logs": large_batch(number)}))
        for seed in range(requests):
            data = pa.array([log_request(seed)], pa.binary())
            store.ingest(quiver.Bundle({OTLP_SLOTS["logs"]: pa.RecordBatch.from_arrays([data], schema=OTLP_SCHEMA)}))
        store.seal()


def put(client: fl.FlightClient, batch: pa.RecordBatch, count: int) -> None:
    """Put *batch* again and again, and wait for all acknowledgements."""
    writer, reader = client.do_put(fl.FlightDescriptor.for_path("logs"), batch.schema)
    acknowledged = []

    def read() -> None:
        while reader.read() is not None:
            acknowledged.append(1)

    reading_acks = threading.Thread(target=read)
    reading_acks.start()
    for _ in range(count):
        writer.write_batch(batch)
    writer.done_writing()
    reading_acks.join()
    writer.close()
    if len(acknowledged) != count:
        raise SystemExit("acknowledgements are missing")


def consume(client: fl.FlightClient, count: int) -> None:
    """Receive and acknowledge everything that a new subscriber has to process."""
    command = {"subscriber": "bench", "start": "earliest", "follow": False, "in_flight": 256}
    writer, chunks = client.do_exchange(fl.FlightDescriptor.for_command(json.dumps(command)))
    writer.begin(pa.schema([]))
    found = 0
    waiting: list[str] = []
    for chunk in chunks:
        waiting.append(json.loads(chunk.app_metadata.to_pybytes())["address"])
        pa.ipc.open_stream(chunk.data["ipc"][0].as_buffer()).read_next_batch()
        found += 1
        if len(waiting) == 64 or found == count:
            writer.write_metadata(json.dumps({"ack": waiting}).encode())
            waiting = []
    writer.close()
    if found != count:
        raise SystemExit("bundles are missing")


def inside(count: int) -> Contender:
    def run(directory: Path) -> Figures:
        batch = small_batch()
        with quiver.open(directory / "buffer") as store:
            started = perf_counter()
            for number in range(count):
                store.ingest(quiver.Bundle({"logs": batch}))
                if number % 16 == 15:
                    store.sync()
            store.sync()
            put_s = perf_counter() - started
            subscriber = store.register("bench", "earliest")
            started = perf_counter()
            found = 0
            while (handle := subscriber.next_bundle(0.0)) is not None:
                found += handle.bundle["logs"].num_rows
                handle.ack()
            took_s = perf_counter() - started
        if found != count * SMALL_ROWS:
            raise SystemExit("rows are missing")
        return {"put": count / put_s, "subscribe": count / took_s}

    return run


def over_flight(count: int, clients: int) -> Contender:
    def run(directory: Path) -> Figures:
        batch = small_batch()
        with served(directory / "buffer") as client:
            threads = [threading.Thread(target=put, args=(client, batch, count // clients)) for _ in range(clients)]
            started = perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            put_s = perf_counter() - started
            started = perf_counter()
            consume(client, count // clients * clients)
            took_s = perf_counter() - started
        return {"put": count / put_s, "subscribe": count / took_s}

    return run


UNITS = dict.fromkeys(("scan, rows counted", "scan, values summed", "scan of a view"), "rows/s")
UNITS |= {"put": "bundles/s", "subscribe": "bundles/s"}


def lines(figure: str, results: dict[str, Result]) -> Iterator[str]:
    for name, result in results.items():
        median, low, high = ratios(result, results[INSIDE])
        aim = f"{AIM:.2f}" if name == FLIGHT and figure.startswith("scan") else ""
        yield (
            f"| {figure} | {name} | {median:.2f} | {low:.2f} to {high:.2f} | {result.median:,.0f} {UNITS[figure]} | "
            f"{noise(result):.0%} | {aim} |"
        )


def main() -> None:
    options = BenchParser(__doc__, quick=Quick(share=20)).options()
    sizes = Sizes(max(LARGE_BUNDLES // options.share, 2), max(REQUESTS // options.share, 1))
    small = max(SMALL_BUNDLES // options.share, CLIENTS * 16)
    report = Report(
        "flight",
        f"Measured by `bench/figures/flight.py` ({machine()}; {options.rounds} rounds). Reading: {sizes.bundles} "
        f"bundles of {ROWS:,} rows with two numbers, and a view of {sizes.records:,} log records, sealed. Put and "
        f"subscribe: {small:,} bundles of {SMALL_ROWS} rows, synced at most 16 bundles later; a subscriber "
        "acknowledges all of them. A ratio is to the same calls in the process, in that round.",
        "what", "contender", "ratio", "lowest to highest", "rate (median)", "own swing", "aim",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-flight-", dir=Path.cwd()) as scratch:
        directory = Path(scratch) / "large"
        fill(directory, sizes.bundles, sizes.requests)
        with (
            served(directory) as client,
            served(directory, by_pyarrow=True) as other,
            quiver.read(directory) as reader,
        ):
            reading: dict[str, Contender] = {
                INSIDE: lambda _: scans(lambda what, name: reader.scan(**{what: name}), sizes),
                FLIGHT: lambda _: scans(of_flight(client), sizes),
                PYARROW: lambda _: scans(of_flight(other), sizes),
            }
            found = run_rounds_of_several(reading, rounds=options.rounds, scratch=Path(scratch))
        writing: dict[str, Contender] = {
            INSIDE: inside(small),
            FLIGHT: over_flight(small, 1),
            FOUR: over_flight(small, CLIENTS),
        }
        found |= run_rounds_of_several(writing, rounds=options.rounds, scratch=Path(scratch))
    for figure, results in found.items():
        report.add(lines(figure, results))
        report.compare(f"Flight, {figure}", results[FLIGHT], results[INSIDE], UNITS[figure])
    report.finish(options.write)


if __name__ == "__main__":
    main()
