"""
What the buffer costs on the way from a receiver to an OTLP exporter: the same pipeline with it and without.

One load generator sends requests of a thousand records, four at a time, over gRPC, to a process in the middle, which
passes them on over gRPC to a far side that confirms at once. *on* is `quiver run` with a persistence node: it logs
each request, confirms after a group sync, and forwards from memory. *off* is the same without one: bounded memory, no
log, no sync, and a request is confirmed as soon as it is in memory. *sealed* is *on* with `deliver_unsealed: false`.
*proxy* is no pipeline at all: gRPC's own server and client, each request passed on before it is confirmed, nothing
looked at and nothing kept. A rate is that of the far side, from the first request sent to the last one there; CPU is
that of the process in the middle. *sealed* waits for a segment to be sealed, which is a delay at the end and no work.

    .venv/bin/python bench/overhead.py [--rounds N] [--quick] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc

import quiver
from quiver.exporters.forward import BundleForwarder
from quiver.exporters.otlp_grpc import OtlpGrpcSender
from quiver.exporters.settings import ExporterSettings
from quiver.pipeline.config.limits import MemoryConfig
from quiver.primitives.freed_memory import keeping_freed_memory
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.settings import OtlpSettings
from report import BenchParser, Quick, Report, Result, machine, noise, ratios, run_rounds_of_several
from telemetry import ROWS, log_request

FLOOR, SEALED, PROXY = "off", "sealed", "proxy"
AIM = "on within 5 % of off in records a second"
AT_ONCE = 4
WARM_UP = 12
DONE_S = 120.0
SEGMENT_OPEN_S = 0.25
EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
OPTIONS = [("grpc.max_receive_message_length", 64 << 20)]
MEMORY = Path("/dev/shm")


class FarSide(grpc.GenericRpcHandler):
    """Confirms everything, and counts it."""

    def __init__(self) -> None:
        self.count = 0
        self.changed = threading.Condition()

    def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._take)

    def _take(self, _request: bytes, _context: Any) -> bytes:
        with self.changed:
            self.count += 1
            self.changed.notify_all()
        return b""

    def wait_for(self, count: int) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.count >= count, DONE_S):
                raise SystemExit(f"only {self.count} of {count} requests arrived")


class Proxy(grpc.GenericRpcHandler):
    """Passes on what it gets before it confirms it."""

    def __init__(self, sender: OtlpGrpcSender) -> None:
        self._sender = sender

    def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._pass_on)

    def _pass_on(self, request: bytes, context: Any) -> bytes:
        reply = self._sender.send("logs", request)
        if reply.outcome != "confirmed":
            context.abort(grpc.StatusCode.UNAVAILABLE, reply.message)
        return b""


def serve(kind: str, directory: str, far_port: str) -> None:
    """What the process in the middle does: print its port, pass on until standard input ends."""
    sender = OtlpGrpcSender(ExporterSettings(f"http://127.0.0.1:{far_port}"))
    if kind == PROXY:
        server = grpc.server(ThreadPoolExecutor(AT_ONCE), handlers=[Proxy(sender)], options=OPTIONS)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        print(port, flush=True)
        sys.stdin.read()
        server.stop(None)
        return
    settings = quiver.Settings(segment_open_s_max=SEGMENT_OPEN_S, delete_grace_s=0.0, deliver_unsealed=kind != SEALED)
    listening = OtlpSettings(listening_addr="127.0.0.1:0")
    if kind == FLOOR:  # as `quiver run` does without a persistence node
        settings, listening = MemoryConfig().settings(), replace(listening, ack="logged")
    with quiver.open(directory, settings) as store:
        source = store.register("out", start="earliest")
        store.activate()
        with (
            BundleForwarder(source, sender, in_flight_max=AT_ONCE),
            OtapGrpcReceiver(store, listening) as receiver,
        ):
            print(receiver.port, flush=True)
            sys.stdin.read()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def middle(kind: str, directory: Path, far_port: int) -> Iterator[tuple[int, int]]:
    command = [sys.executable, __file__, "--serve", kind, str(directory / "store"), str(far_port)]
    environment = keeping_freed_memory(os.environ)  # as `quiver run` starts it
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(60)


def send(port: int, requests: list[bytes]) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, ThreadPoolExecutor(AT_ONCE) as pool:
        export = channel.unary_unary(EXPORT)
        for reply in pool.map(lambda data: export(data, timeout=60, wait_for_ready=True), requests):
            assert isinstance(reply, bytes)


def contender(kind: str, requests: list[bytes]) -> Callable[[Path], dict[str, float]]:
    def run(directory: Path) -> dict[str, float]:
        with contextlib.ExitStack() as opened:
            if kind == FLOOR and MEMORY.is_dir():
                directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=MEMORY)))
            far = FarSide()
            server = grpc.server(ThreadPoolExecutor(AT_ONCE), handlers=[far], options=OPTIONS)
            far_port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            opened.callback(server.stop, None)
            pid, port = opened.enter_context(middle(kind, directory, far_port))
            send(port, requests[:WARM_UP])
            far.wait_for(WARM_UP)
            before, started = cpu_s(pid), perf_counter()
            send(port, requests[WARM_UP:])
            far.wait_for(len(requests))
            seconds, cpu = perf_counter() - started, cpu_s(pid) - before
        rows = (len(requests) - WARM_UP) * ROWS
        return {"records/s": rows / seconds, "records/s of a core": rows / max(cpu, 0.01)}

    return run


def table(found: dict[str, dict[str, Result]]) -> list[str]:
    lines = []
    for figure, results in found.items():
        for name, result in results.items():
            median, low, high = ratios(result, results[FLOOR])
            lines.append(
                f"| {figure} | {name} | {median:.2f} | {low:.2f} to {high:.2f} | {result.median:,.0f} | "
                f"{noise(result):.0%} |"
            )
    return lines


def main() -> None:
    parser = BenchParser(__doc__, quick=Quick(share=30))
    parser.add_argument("--requests", type=int, default=600, help="of a thousand records each")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.options()
    if options.serve:
        serve(*options.serve)
        return
    count = options.requests // options.share
    requests = [log_request(seed) for seed in range(WARM_UP + count)]
    contenders = {kind: contender(kind, requests) for kind in (FLOOR, "on", SEALED, PROXY)}
    with tempfile.TemporaryDirectory(prefix="bench-overhead-", dir=Path.cwd()) as scratch:
        found = run_rounds_of_several(contenders, rounds=options.rounds, scratch=Path(scratch))
    report = Report(
        "overhead",
        f"Measured by `bench/overhead.py` ({machine()}; {options.rounds} rounds of {count} requests). A ratio is to "
        f"{FLOOR} in the same round. Aim: {AIM}.",
        "figure", "buffer", f"ratio to {FLOOR}", "lowest to highest", "median", "own swing",
    )  # fmt: skip
    report.add(table(found))
    for figure, results in found.items():
        report.compare(f"buffer on, {figure}", results["on"], results[FLOOR], "")
    report.finish(options.write)


if __name__ == "__main__":
    main()
