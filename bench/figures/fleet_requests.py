"""
The costs of one node of a fleet: requests, counted on the wire of a real S3 server, their price, and processor time.

    PYTHONPATH=bench:tests .venv/bin/python bench/figures/fleet_requests.py [--write docs/howto/fleet.md]

The hours of the requests are those of a clock that the script advances; the minute of the processor is a real one. The
reader acknowledges once a minute, by itself, so its requests are not counted.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa

import quiver
from counting_proxy import CountingProxy
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.objects.port import ObjectTier
from quiver.store.format.fleet.acks import AckedNode, encode_acks
from quiver.store.format.fleet.names import acks_key, inbox_folder, parse_inbox_key
from quiver.store.opening import open_store
from quiver.testing.clock import ManualClock
from report import BenchParser, Quick, Report, machine
from s3_server import S3Server, prepare_weed, start_weed, stop

SEALS_S = (10.0, 60.0, 300.0, 900.0)
STEP_S = 5.0
HOURS = 2.0
MONTH_HOURS = 730
IDLE_S = 30.0
BILLED_AS_PUT = ("PUT", "POST", "LIST")
BILLED_AS_GET = ("GET", "GET range", "HEAD")


def settings_of(url: str, server: S3Server, endpoint: str, seal_s: float) -> quiver.Settings:
    return quiver.Settings(
        cold_objects=ObjectLocation.from_url(url, {**server.options(), "endpoint": endpoint}),
        fleet_name="edge-17",
        fleet_subscribers=("lake",),
        fleet_seal_s=seal_s,
        delete_grace_s=0.0,
    )


def acknowledge(tier: ObjectTier, identity: str) -> None:
    """Acknowledge everything in the bucket, as a reader does after its commit."""
    found = [parse_inbox_key(info.key, info.size_bytes) for info in tier.list_below(inbox_folder(identity))]
    objects = [one[1] for one in found if one is not None and one[1].crc32 is not None]
    if objects:
        last = max(objects, key=lambda one: one.last)
        position = AckedNode(identity, last.last + 1, (last.last, last.crc32 or 0))
        tier.put(acks_key("lake", identity[:2]), encode_acks(identity[:2], 1, [position]))


def counted(
    root: Path, server: S3Server, proxy: CountingProxy, seal_s: float, hours: float, *, is_idle: bool
) -> Counter:
    """Return the requests of one node in these hours, with a bundle every few seconds unless it is idle."""
    clock, url = ManualClock(), server.url()
    reader = open_objects(ObjectLocation.from_url(url, server.options()))
    batch = quiver.Bundle({30: pa.record_batch({"n": pa.array(range(1000))})})
    with open_store(
        str(root), settings_of(url, server, proxy.endpoint, seal_s), clock=clock, background=False
    ) as store:
        store.maintain()
        identity = (root / "quiver.id").read_text().strip()
        proxy.reset()
        for step in range(int(hours * 3600 / STEP_S)):
            if not is_idle:
                store.ingest(batch)
            clock.advance(STEP_S)
            store.maintain()
            if step % int(60 / STEP_S) == 0:
                acknowledge(reader, identity)
        return Counter(proxy.requests)


def idle_processor(root: Path, server: S3Server, seconds: float) -> float:
    """Return the share of a core that a node without data needs, with its threads."""
    with quiver.open(root, settings_of(server.url(), server, server.endpoint, 60.0)):
        time.sleep(min(5.0, seconds))
        began, began_cpu = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        return (time.process_time() - began_cpu) / (time.perf_counter() - began)


def main() -> None:
    parser = BenchParser(__doc__, rounds=1, quick=Quick(share=10))
    parser.add_argument("--put-price", type=float, default=0.005, help="of 1,000 PUT, POST and LIST requests")
    parser.add_argument("--get-price", type=float, default=0.0004, help="of 1,000 GET and HEAD requests")
    options = parser.options()
    hours = HOURS / options.share
    report = Report(
        "fleet_requests",
        f"Measured by `bench/figures/fleet_requests.py` ({machine()}): requests of one node with a bundle of 8 kB "
        f"every {STEP_S:.0f} seconds, in {hours:g} hours of its clock, at a proxy in front of SeaweedFS. Prices are "
        f"examples: {options.put_price:g} for 1,000 PUT and LIST, {options.get_price:g} for 1,000 GET and HEAD "
        "requests (`--put-price`, `--get-price`); deletions are free.",
        "`cold.fleet.seal`", "PUT and LIST an hour", "GET and HEAD an hour", "deletions an hour",
        "a node and month", "10,000 nodes and month",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-fleet-", dir=Path.cwd()) as scratch:
        binary, server, ports = prepare_weed(Path(scratch) / "s3")
        process = start_weed(binary, Path(scratch) / "s3", server, ports)
        try:
            with CountingProxy(server.endpoint).running() as proxy:
                for number, (seal_s, is_idle) in enumerate([*((one, False) for one in SEALS_S), (60.0, True)]):
                    root = Path(scratch) / f"node{number}"
                    found = counted(root, server, proxy, seal_s, hours, is_idle=is_idle)
                    puts = sum(found[kind] for kind in BILLED_AS_PUT) / hours
                    gets = sum(found[kind] for kind in BILLED_AS_GET) / hours
                    price = (puts * options.put_price + gets * options.get_price) / 1000 * MONTH_HOURS
                    name = f"{seal_s:g} s" + (", without data" if is_idle else "")
                    deletes = found["DELETE"] / hours
                    prices = f"${price:.3f} | ${price * 10_000:,.0f}"
                    report.add([f"| {name} | {puts:,.0f} | {gets:,.0f} | {deletes:,.0f} | {prices} |"])
            # Without the proxy, whose threads are in this process.
            idle_share = idle_processor(Path(scratch) / "idle", server, IDLE_S / options.share)
        finally:
            stop(process)
    report.add(["", f"A node without data uses {idle_share:.3%} of a core."])
    report.finish(options.write)


if __name__ == "__main__":
    main()
