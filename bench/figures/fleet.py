"""
The costs of a query's driver by the number of nodes in a fleet: to list the bucket, to plan, to acknowledge.

    PYTHONPATH=bench:tests .venv/bin/python bench/figures/fleet.py [--write docs/howto/fleet.md]

The inbox is generated, in a real S3 server on this machine: one segment of each node waits. Only the driver's part
runs, without Spark, in a process of its own for each size, so that memory and descriptors are those of that size.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, process_time

from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.store.format.fleet.names import segment_key
from quiver.store.reading.fleet.options import FleetOptions
from quiver.store.reading.fleet.subscriber import FleetSubscriber
from report import BenchParser, Quick, Report, machine
from s3_server import prepare_weed, start_weed, stop

NODES = (100, 300, 1_000, 3_000, 10_000)
WRITERS = 8
COLUMNS = ("look_s", "plan_s", "commit_s", "again_s", "cpu_s", "memory_mib", "descriptors")
TITLES = ("look", "plan", "acknowledge", "look without data", "processor", "memory", "descriptors")


def fill(location: ObjectLocation, first: int, count: int) -> None:
    """Add nodes with one object each."""
    tier = open_objects(location)

    def one(number: int) -> None:
        identity = str(uuid.uuid5(uuid.NAMESPACE_URL, str(number)))
        tier.put(segment_key(identity, 0, number), b"x" * 64)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(one, range(first, first + count)))


def measure(location: ObjectLocation) -> dict[str, float]:
    """Run the driver's part of one batch; return seconds, memory and descriptors."""
    tier = open_objects(location)
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    options = FleetOptions(location, subscriber=f"bench-{uuid.uuid4().hex[:8]}", list_interval_s=0.0)
    subscriber = FleetSubscriber(tier, options, parallelism=8, name="bench")
    cpu_s = process_time()
    start = subscriber.initial()
    times = [perf_counter()]
    end = subscriber.latest(start, unlimited=True)
    times.append(perf_counter())
    tasks = subscriber.plan(start, end)
    times.append(perf_counter())
    subscriber.commit(end)
    times.append(perf_counter())
    again = subscriber.latest(end, unlimited=True)
    times.append(perf_counter())
    if again != end:
        raise SystemExit("the bucket changed")
    look_s, plan_s, commit_s, again_s = (b - a for a, b in itertools.pairwise(times))
    return {
        "nodes": sum(map(len, tasks)),
        "look_s": look_s,
        "again_s": again_s,
        "plan_s": plan_s,
        "commit_s": commit_s,
        "cpu_s": process_time() - cpu_s,
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "added_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mib,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }


def line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float, float]:
    """Return slope, intercept and R² of the least squares."""
    slope, intercept = statistics.linear_regression(xs, ys)
    spread = statistics.pvariance(ys)
    return slope, intercept, 1.0 if spread == 0 else statistics.correlation(xs, ys) ** 2


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        url, options = json.loads(sys.argv[2])
        print(json.dumps(measure(ObjectLocation.from_url(url, options))))
        return
    options = BenchParser(__doc__, rounds=3, quick=Quick(share=10)).options()
    sizes = [size // options.share for size in NODES]
    report = Report(
        "fleet",
        f"Measured by `bench/figures/fleet.py` ({machine()}; {options.rounds} rounds; SeaweedFS on the same machine; "
        "one waiting segment per node, all in one batch). The driver's part of a batch without Spark, medians: "
        "the look at the bucket that plans a batch and records it, the plan of the tasks, the acknowledgement of the "
        "batch, and a look without new data.",
        "nodes", *TITLES,
    )  # fmt: skip
    found: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-fleet-", dir=Path.cwd()) as scratch:
        binary, server, ports = prepare_weed(Path(scratch) / "s3")
        process = start_weed(binary, Path(scratch) / "s3", server, ports)
        try:
            url, filled = server.url(), 0
            for size in sizes:
                fill(ObjectLocation.from_url(url, server.options()), filled, size - filled)
                filled = size
                rows = []
                for _ in range(options.rounds):
                    command = [sys.executable, __file__, "--measure", json.dumps([url, server.options()])]
                    output = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout
                    rows.append(json.loads(output.splitlines()[-1]))
                if any(row["nodes"] != size for row in rows):
                    raise SystemExit(f"{size} nodes were made, and {rows[0]['nodes']} were found")
                found[size] = {name: statistics.median(row[name] for row in rows) for name in COLUMNS}
                one = found[size]
                times = " | ".join(f"{one[name]:.3f} s" for name in COLUMNS[:5])
                report.add([f"| {size:,} | {times} | {one['memory_mib']:.0f} MiB | {one['descriptors']:.0f} |"])
        finally:
            stop(process)
    report.add(
        [
            "",
            "Least squares over these sizes:",
            "",
            "| figure | per 1,000 nodes | intercept | R² |",
            "|---|---|---|---|",
        ]
    )
    for name, title, unit in zip(COLUMNS, TITLES, (*[" s"] * 5, " MiB", ""), strict=True):
        slope, intercept, fit = line(sizes, [found[size][name] for size in sizes])
        report.add([f"| {title} | {slope * 1000:.3g}{unit} | {intercept:.3g}{unit} | {fit:.3f} |"])
    report.finish(options.write)


if __name__ == "__main__":
    main()
