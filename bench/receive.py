"""
Receiving log records: our receivers beside an OpenTelemetry Collector with a file-backed queue.

One load generator sends the same requests of a thousand records, four at a time, over gRPC, and waits until each is
confirmed. *pass-through* keeps requests as they came, *convert_to_arrow* as OTAP tables, *OTAP* takes batches of an
OTAP stream. *ten records* sends ten times as many requests of ten records, *gzip* compressed requests; *grpcio* is the
same receiver with `grpc_transport: grpcio`. All of them confirm after a group sync. The Collector (`make
rival-collector`; left out when it was not built) puts them into the queue of an exporter whose far side is down, with
and without fsync; every receiver has to keep what it got. CPU is that of the receiving process.

    .venv/bin/python bench/receive.py [--rounds N] [--quick] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter

import grpc

import quiver
from quiver.otap import BatchStatus, StatusCode, StreamEncoder, decode_status, iter_bundles
from quiver.otap.tables.payload_schema import SIGNALS
from quiver.primitives.freed_memory import keeping_freed_memory
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.settings import OtlpSettings
from report import BenchParser, Quick, Report, Result, machine, noise, ratios, run_rounds_of_several
from telemetry import ROWS, log_request

COLLECTOR = Path(__file__).resolve().parents[1] / "build" / "bin" / "otelcol-rival"
FLOOR = "pass-through"
AIMS = f"{FLOOR}: 150,000 records/s of a core; OTAP: 0.7 of {FLOOR}; {FLOOR} ahead of the Collector with fsync"
AT_ONCE = 4
WARM_UP = 12
SMALL_ROWS = 10
SMALL_TIMES = 10
READY_S = 60.0
EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
CONFIG = """\
extensions:
  file_storage: {{directory: {directory}, create_directory: true, fsync: {fsync}}}
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: 127.0.0.1:{port}, max_recv_msg_size_mib: 16}}}}}}
exporters:
  otlp_grpc/out:
    endpoint: 127.0.0.1:{nowhere}
    tls: {{insecure: true}}
    retry_on_failure: {{max_elapsed_time: 0}}
    sending_queue: {{enabled: true, storage: file_storage, block_on_overflow: true, queue_size: 1000000}}
service:
  extensions: [file_storage]
  telemetry: {{metrics: {{level: none}}, logs: {{level: error, sampling: {{enabled: false}}}}}}
  pipelines: {{logs: {{receivers: [otlp], exporters: [otlp_grpc/out]}}}}
"""


def serve(handling: str, transport: str, directory: str) -> None:
    """What the receiving process does: print its port, receive until standard input ends."""
    with quiver.open(directory) as store:
        store.register("kept", start="earliest")
        store.activate()
        settings = OtlpSettings(listening_addr="127.0.0.1:0", otlp_handling=handling, transport=transport)
        with OtapGrpcReceiver(store, settings) as receiver:
            print(receiver.port, flush=True)
            sys.stdin.read()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def ours(handling: str, directory: Path, transport: str = "asyncio") -> Iterator[tuple[int, int]]:
    command = [sys.executable, __file__, "--serve", handling, transport, str(directory / "store")]
    environment = keeping_freed_memory(os.environ)  # as `quiver run` starts it
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def collector(directory: Path, *, fsync: bool) -> Iterator[tuple[int, int]]:
    port, nowhere = free_port(), free_port()
    config = directory / "collector.yaml"
    text = CONFIG.format(directory=directory / "queue", fsync=str(fsync).lower(), port=port, nowhere=nowhere)
    config.write_text(text)
    with (
        (directory / "collector.log").open("w") as log,
        subprocess.Popen([COLLECTOR, "--config", config], stdout=log, stderr=log) as process,
    ):
        try:
            until = perf_counter() + READY_S
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                if process.poll() is not None or perf_counter() > until:
                    raise SystemExit(f"the Collector did not start: {(directory / 'collector.log').read_text()}")
                time.sleep(0.05)
            yield process.pid, port
        finally:
            process.kill()
            process.wait(60)


def send_requests(port: int, requests: list[bytes], compression: grpc.Compression | None = None) -> None:
    """Four threads, each with one request on its way."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, ThreadPoolExecutor(AT_ONCE) as pool:
        export = channel.unary_unary(EXPORT)

        def send(data: bytes) -> bytes:
            return export(data, timeout=60, wait_for_ready=True, compression=compression)

        for reply in pool.map(send, requests):
            assert isinstance(reply, bytes)


def send_batches(pid: int, port: int, messages: list[bytes]) -> tuple[float, float]:
    """One stream with four batches on their way; return the seconds, and those of CPU, after the first few."""
    room = threading.Semaphore(AT_ONCE)

    def paced() -> Iterator[bytes]:
        for message in messages:
            room.acquire()
            yield message

    started = before = 0.0
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for number, data in enumerate(channel.stream_stream(SIGNALS["logs"].service)(paced(), timeout=600), 1):
            status = decode_status(data)
            assert isinstance(status, BatchStatus)
            assert status.code == StatusCode.OK, status
            if number == WARM_UP:
                started, before = perf_counter(), cpu_s(pid)
            room.release()
            if number == len(messages):
                return perf_counter() - started, cpu_s(pid) - before
    raise SystemExit("the stream ended early")


def otlp_contender(
    start: Callable[[Path], contextlib.AbstractContextManager[tuple[int, int]]],
    requests: list[bytes],
    *,
    rows: int = ROWS,
    compression: grpc.Compression | None = None,
) -> Callable[[Path], dict[str, float]]:
    def run(directory: Path) -> dict[str, float]:
        with start(directory) as (pid, port):
            send_requests(port, requests[:WARM_UP], compression)
            before, started = cpu_s(pid), perf_counter()
            send_requests(port, requests[WARM_UP:], compression)
            seconds = perf_counter() - started
            return figures(rows * (len(requests) - WARM_UP), seconds, cpu_s(pid) - before)

    return run


def otap_contender(requests: list[bytes], transport: str) -> Callable[[Path], dict[str, float]]:
    encoder = StreamEncoder("logs")
    bundles = [bundle for data in requests for bundle in iter_bundles(data, "logs")]
    messages = [batch.message for bundle in bundles for batch in encoder.encode(bundle.batches)]

    def run(directory: Path) -> dict[str, float]:
        with ours("pass_through", directory, transport) as (pid, port):
            return figures(ROWS * (len(messages) - WARM_UP), *send_batches(pid, port, messages))

    return run


def figures(rows: int, seconds: float, cpu: float) -> dict[str, float]:
    return {"records/s": rows / seconds, "records/s of a core": rows / max(cpu, 0.01)}


def table(found: dict[str, dict[str, Result]]) -> list[str]:
    lines = []
    for figure, results in found.items():
        for name, result in results.items():
            median, low, high = ratios(result, results[FLOOR])
            cost = f"{1e6 / result.median:.2f}" if figure == "records/s of a core" else ""
            lines.append(
                f"| {figure} | {name} | {median:.2f} | {low:.2f} to {high:.2f} | {result.median:,.0f} | {cost} | "
                f"{noise(result):.0%} |"
            )
    return lines


def main() -> None:
    parser = BenchParser(__doc__, quick=Quick(share=10))
    parser.add_argument("--requests", type=int, default=200, help="of a thousand records each")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.options()
    if options.serve:
        serve(*options.serve)
        return
    requests = [log_request(seed) for seed in range(WARM_UP + options.requests // options.share)]
    count = SMALL_TIMES * options.requests // options.share
    small = [log_request(seed, SMALL_ROWS) for seed in range(WARM_UP + count)]
    contenders = {
        FLOOR: otlp_contender(partial(ours, "pass_through"), requests),
        "convert_to_arrow": otlp_contender(partial(ours, "convert_to_arrow"), requests),
        "OTAP": otap_contender(requests, "asyncio"),
        "gzip": otlp_contender(partial(ours, "pass_through"), requests, compression=grpc.Compression.Gzip),
        "ten records": otlp_contender(partial(ours, "pass_through"), small, rows=SMALL_ROWS),
    }
    by_grpcio = partial(ours, "pass_through", transport="grpcio")
    contenders |= {
        f"{FLOOR}, grpcio": otlp_contender(by_grpcio, requests),
        "OTAP, grpcio": otap_contender(requests, "grpcio"),
        "gzip, grpcio": otlp_contender(by_grpcio, requests, compression=grpc.Compression.Gzip),
        "ten records, grpcio": otlp_contender(by_grpcio, small, rows=SMALL_ROWS),
    }
    if COLLECTOR.exists():
        for name, fsync in (("Collector, fsync", True), ("Collector, no fsync", False)):
            contenders[name] = otlp_contender(partial(collector, fsync=fsync), requests)
    with tempfile.TemporaryDirectory(prefix="bench-receive-", dir=Path.cwd()) as scratch:
        found = run_rounds_of_several(contenders, rounds=options.rounds, scratch=Path(scratch))
    report = Report(
        "receive",
        f"Measured by `bench/receive.py` ({machine()}; {options.rounds} rounds). A ratio is to {FLOOR} in the same "
        f"round. Aims: {AIMS}.",
        "figure", "receiver", f"ratio to {FLOOR}", "lowest to highest", "median", "µs of CPU a record", "own swing",
    )  # fmt: skip
    report.add(table(found))
    for figure, results in found.items():
        for name in ("convert_to_arrow", "OTAP"):
            report.compare(f"{name}, {figure}", results[name], results[FLOOR], "")
        for name in (FLOOR, "OTAP", "gzip", "ten records"):
            report.compare(f"gRPC server, {name}, {figure}", results[name], results[f"{name}, grpcio"], "")
        if "Collector, fsync" in results:
            report.compare(f"OTLP, {figure}", results[FLOOR], results["Collector, fsync"], "")
    report.finish(options.write)


if __name__ == "__main__":
    main()
