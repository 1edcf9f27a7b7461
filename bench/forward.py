"""
What the size of requests costs an OTLP exporter: requests as they were received, combined, and divided.

A store holds the same records three times over: as small requests of twelve records (or `--rows`), sent as they are
and combined to 256 KiB, and as requests of 6 MiB, which a gRPC server with default limits refuses, divided to 4 MiB. A
forwarder with four threads sends them to a gRPC server that confirms at once, with default limits, in a process of its
own. Measured is the time from the first request to the last acknowledgement, and the processor time of this process.

    .venv/bin/python bench/forward.py [--rows N] [--rounds N] [--quick] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import grpc
import pyarrow as pa

import quiver
from quiver.bundle import OTLP_SCHEMA, OTLP_SLOTS
from quiver.exporters.forward import BundleForwarder
from quiver.exporters.otlp_grpc import OtlpGrpcSender
from quiver.exporters.settings import ExporterSettings, RequestSizes
from quiver.observe import InMemoryObserver
from report import BenchParser, Quick, Report, Result, machine, noise, ratios, run_rounds_of_several
from telemetry import log_request

LARGE_ROWS = 16_000
AT_ONCE = 4
DONE_S = 120.0


class FarSide(grpc.GenericRpcHandler):
    """Confirms everything."""

    def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")


def serve() -> None:
    """What the process on the far side does: print its port, confirm until standard input ends."""
    server = grpc.server(ThreadPoolExecutor(AT_ONCE), handlers=[FarSide()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(None)


@contextlib.contextmanager
def far_side() -> Iterator[int]:
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(60)


def contender(requests: list[bytes], sizes: RequestSizes) -> Callable[[Path], dict[str, float]]:
    def run(directory: Path) -> dict[str, float]:
        observer = InMemoryObserver()
        with contextlib.ExitStack() as opened:
            sender: Any = OtlpGrpcSender(ExporterSettings(f"http://127.0.0.1:{opened.enter_context(far_side())}"))
            store = opened.enter_context(quiver.open(directory / "store"))
            source = store.register("out", start="earliest")
            store.activate()
            for request in requests:
                batch = pa.record_batch([pa.array([request], pa.binary())], schema=OTLP_SCHEMA)
                store.ingest(quiver.Bundle({OTLP_SLOTS["logs"]: batch}))
            store.seal()
            started, spent = perf_counter(), process_time()
            with BundleForwarder(source, sender, sizes=sizes, in_flight_max=AT_ONCE, observer=observer) as forwarder:
                if not forwarder.drained(DONE_S):
                    raise SystemExit(f"not all was sent: {forwarder.state()}")
                seconds, spent = perf_counter() - started, process_time() - spent
        total = observer.total
        return {
            "requests/s": total("quiver.exporter.batches_total") / seconds,
            "MB/s": total("quiver.exporter.bytes_total") / seconds / 1e6,
            "records/s": total("quiver.exporter.rows_total") / seconds,
            "µs of processor time a bundle": spent / len(requests) * 1e6,
        }

    return run


def table(found: dict[str, dict[str, Result]], floor: str) -> list[str]:
    lines = []
    for figure, results in found.items():
        for name, result in results.items():
            median, low, high = ratios(result, results[floor])
            lines.append(
                f"| {figure} | {name} | {median:.2f} | {low:.2f} to {high:.2f} | {result.median:,.0f} | "
                f"{noise(result):.0%} |"
            )
    return lines


def main() -> None:
    parser = BenchParser(__doc__, quick=Quick(share=12))
    parser.add_argument("--records", type=int, default=192_000, help="how many each contender sends")
    parser.add_argument("--rows", type=int, default=12, help="records in a small request")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.options()
    if options.serve:
        serve()
        return
    records = options.records // options.share
    # A hundred different requests are as good as thousands, and sooner made.
    made = [log_request(seed, options.rows) for seed in range(100)]
    small = [made[number % len(made)] for number in range(records // options.rows)]
    large = [log_request(0, LARGE_ROWS)] * (records // LARGE_ROWS)
    floor = f"{options.rows} records each, as received"
    contenders = {
        floor: contender(small, RequestSizes()),
        f"{options.rows} records each, combined to 256 KiB": contender(small, RequestSizes(batch_bytes_min=256 * 1024)),
        "16,000 records each, divided to 4 MiB": contender(large, RequestSizes()),
    }
    with tempfile.TemporaryDirectory(prefix="bench-forward-", dir=Path.cwd()) as scratch:
        found = run_rounds_of_several(contenders, rounds=options.rounds, scratch=Path(scratch))
    report = Report(
        "forward",
        f"Measured by `bench/forward.py` ({machine()}; {options.rounds} rounds of {records:,} records). A ratio is to "
        f"*{floor}* in the same round.",
        "figure", "requests", "ratio", "lowest to highest", "median", "own swing",
    )  # fmt: skip
    report.add(table(found, floor))
    report.finish(options.write)


if __name__ == "__main__":
    main()
