"""
Delivery before the seal, on and off: how soon a request is exported, and how many bytes are written for it.

One process stores a thousand requests a second and exports them with a `BundleForwarder` to a sender that confirms at
once; Spark is not involved. *unsealed* is the default, *sealed* is `deliver_unsealed: false`. The time is from the
return of `ingest` to the call of the sender. Written bytes are what the kernel counts for the process (`write_bytes`
in `/proc/self/io`), so the directory must be on a disk: with an exporter that keeps up, and with one that resolves
nothing. The log is synced by its timer; a sync for each request would write a page for each. The bytes received are
those of the requests.

    PYTHONPATH=bench .venv/bin/python bench/figures/early_delivery.py [--rounds N] [--quick] [--write PAGE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import quiver
from quiver.bundle import OTLP_SCHEMA, OTLP_SLOTS
from quiver.exporters.forward import BundleForwarder
from quiver.exporters.reply import Reply
from report import BenchParser, Quick, Report, Result, machine, noise, run_rounds_of_several
from telemetry import log_request

RATE = 1_000
ROWS_EACH = 20
DIFFERENT = 50
SECONDS = 20.0
DONE_S = 60.0
KINDS = {"unsealed": True, "sealed": False}
AIMS = "unsealed p50 under 30 ms; at most 1.1 bytes written per byte received when the exporter keeps up"
SHOWN = {
    "p50, ms": "{:.1f}",
    "p99, ms": "{:.1f}",
    "written per byte received": "{:.2f}",
    "written per byte received, exporter stopped": "{:.2f}",
    "µs of processor time a request": "{:.0f}",
    "µs of processor time a request, exporter stopped": "{:.0f}",
}


class Sender:
    """Confirms everything, and records when it came."""

    def __init__(self, count: int) -> None:
        self.at: list[float] = [0.0] * count
        self._left = count
        self._lock = threading.Lock()
        self.done = threading.Event()

    def send(self, _signal: str, request: bytes, _batch_id: str = "") -> Reply:
        now = perf_counter()
        with self._lock:
            self.at[int(bytes(request[-10:]))] = now
            self._left -= 1
            if not self._left:
                self.done.set()
        return Reply("confirmed")

    def close(self) -> None:
        """Nothing is open."""


def request_of(number: int, bodies: list[bytes]) -> bytes:
    """One of *bodies*, with the number as its last ten bytes."""
    last = ExportLogsServiceRequest()
    last.resource_logs.add().schema_url = f"{number:010d}"
    return bodies[number % len(bodies)] + last.SerializeToString()


def written_bytes() -> int:
    """The bytes that the kernel has sent to the disk for this process, or will."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def serve(kind: str, directory: str, seconds: str, consumer: str) -> None:
    """What the measured process does: print its figures as JSON."""
    count = int(RATE * float(seconds))
    bodies = [log_request(seed, ROWS_EACH) for seed in range(DIFFERENT)]
    requests = [request_of(number, bodies) for number in range(count)]
    sender = Sender(count)
    accepted: list[float] = []
    with contextlib.ExitStack() as opened:
        store: Any = opened.enter_context(quiver.open(directory, quiver.Settings(deliver_unsealed=KINDS[kind])))
        source = store.register("out", start="earliest")
        store.activate()
        if consumer == "keeps up":
            opened.enter_context(BundleForwarder(source, sender))
        written, spent, started = written_bytes(), process_time(), perf_counter()
        for number, request in enumerate(requests):
            sleep(max(0.0, started + number / RATE - perf_counter()))
            batch = pa.record_batch([pa.array([request], pa.binary())], schema=OTLP_SCHEMA)
            store.ingest(quiver.Bundle({OTLP_SLOTS["logs"]: batch}))
            accepted.append(perf_counter())
        if consumer == "keeps up" and not sender.done.wait(DONE_S):
            raise SystemExit("not all requests were exported")
        store.seal()
        store.maintain()
        spent = process_time() - spent
        written = written_bytes() - written
    times = sorted((at - since) * 1e3 for at, since in zip(sender.at, accepted, strict=True))
    figures = {"written": written / sum(map(len, requests)), "spent": spent / count * 1e6}
    if consumer == "keeps up":
        figures |= {"p50": statistics.median(times), "p99": times[-max(1, count // 100)]}
    print(json.dumps(figures))


def contender(kind: str, seconds: float) -> Callable[[Path], dict[str, float]]:
    def run(directory: Path) -> dict[str, float]:
        found = {}
        for consumer in ("keeps up", "behind"):
            command = [sys.executable, __file__, "--serve", kind, str(directory / consumer), str(seconds), consumer]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[consumer] = json.loads(done.stdout)
        fast, slow = found.values()
        values = [fast["p50"], fast["p99"], fast["written"], slow["written"], fast["spent"], slow["spent"]]
        return dict(zip(SHOWN, values, strict=True))

    return run


def table(found: dict[str, dict[str, Result]]) -> list[str]:
    lines = []
    for figure, results in found.items():
        show = SHOWN[figure].format
        for name, result in results.items():
            swing = f"{noise(result):.0%}" if result.median else ""
            lines.append(
                f"| {figure} | {name} | {show(result.median)} | {show(min(result.rates))} to "
                f"{show(max(result.rates))} | {swing} |"
            )
    return lines


def main() -> None:
    parser = BenchParser(__doc__, quick=Quick(share=20))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of steady load, for each consumer")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    options = parser.options()
    if options.serve:
        serve(*options.serve)
        return
    seconds = options.seconds / options.share
    with tempfile.TemporaryDirectory(prefix="bench-early-", dir=Path.cwd()) as scratch:
        contenders = {kind: contender(kind, seconds) for kind in KINDS}
        found = run_rounds_of_several(contenders, rounds=options.rounds, scratch=Path(scratch))
    report = Report(
        "early_delivery",
        f"Measured by `bench/figures/early_delivery.py` ({machine()}; {options.rounds} rounds of {seconds:g} s at "
        f"{RATE:,} requests of {ROWS_EACH} records a second). Aims: {AIMS}.",
        "figure", "delivery", "median", "lowest to highest", "own swing",
    )  # fmt: skip
    report.add(table(found))
    report.finish(options.write)


if __name__ == "__main__":
    main()
