"""
A fleet on this machine: 20 nodes, one bucket, one Spark query. Two nodes are killed, one is cloned, one is offline.

    python examples/fleet_demo.py [DIRECTORY]

The bucket is a directory. Every node is a process with a store; it prints the number of each bundle that is on disk.
In the end, the table compares these numbers with the rows in the Parquet files. Exits with 1 unless each is there once.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.dataset as ds

import quiver
from quiver.objects import open_objects
from quiver.settings import Settings

NODES = 20
BEFORE_KILL = 40
AFTER_KILL = 40
PACE_S = 0.2
WAIT_S = 300.0
SLOT = 30
KILLED, CLONED, OFFLINE = (4, 11), 7, 15
COLUMNS = "node string, number bigint"
pause = time.sleep


def run_node(name: str, root: str, bucket: str, start: int) -> None:
    """Be a node: store a bundle, print its number, until standard input ends a first time; then wait for the reader."""
    fleet = {"name": name, "subscribers": ["lake"], "seal": "1s", "ack_poll": "1s"}
    settings = Settings.from_mapping({"cold": {"objects": bucket, "fleet": fleet}, "retention.delete_grace": 0})
    stop = Path(f"{root}.stop")
    with quiver.open(root, settings) as store:
        for number in itertools.count(start):
            if stop.exists():
                break
            batch = pa.record_batch({"node": [name], "number": [number]})
            store.ingest(quiver.Bundle({SLOT: batch}), durable=True)
            print(number, flush=True)
            pause(PACE_S)
        store.seal()  # what is in memory is not counted as left
        while (left := _left(store.stats())) > 0 or store.lag("lake").pending_bundles > 0:
            pause(0.5)
        print("left", left, flush=True)


def _left(figures) -> int:
    """Return how many segments are on the disk and in the bucket, or are being removed there."""
    return figures["segments"] + figures["cold"]["segments"] + figures["cold"]["leaving"]


def run_clone(root: str, bucket: str) -> None:
    """Be the copy of a node's disk: print why it does not upload."""
    fleet = {"name": "clone", "subscribers": ["lake"], "seal": "1s"}
    settings = Settings.from_mapping({"cold": {"objects": bucket, "fleet": fleet}})
    with quiver.open(root, settings) as store:
        while (figures := store.stats()["cold"])["fleet"]["conflict"] is None:
            pause(0.1)
        print(figures["fleet"]["conflict"], flush=True)


def run_query(bucket: str, output: str, checkpoint: str) -> None:
    """Write what the fleet has to Parquet files, until the process is stopped."""
    import quiver.spark

    spark = quiver.spark.session("fleet-demo")
    quiver.spark.register(spark)
    rows = (
        spark.readStream.format("quiver-fleet")
        .option("path", bucket)
        .option("subscriber", "lake")
        .option("slot", str(SLOT))
        .option("listInterval", "1s")
        .schema(COLUMNS)
        .load()
    )
    query = rows.writeStream.format("parquet").option("path", output).option("checkpointLocation", checkpoint)
    query.trigger(processingTime="1 second").start().awaitTermination()


class Demo:
    """The processes and the directories of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket, self.output = folder / "bucket", folder / "parquet"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def root(self, number: int) -> Path:
        return self.folder / f"node-{number:02d}"

    def confirmed(self, number: int) -> set[int]:
        """The numbers of the bundles that the node confirmed, over all its lives."""
        lines = Path(f"{self.root(number)}.out").read_text().splitlines()
        return {int(line) for line in lines if line.isdigit()}

    def start(self, key: str, role: str, *arguments: object, output: Path) -> None:
        command = [sys.executable, __file__, f"--{role}", *map(str, arguments)]
        with output.open("ab") as log, (self.folder / f"{key}.err").open("ab") as errors:
            self.running[key] = subprocess.Popen(command, stdout=log, stderr=errors, start_new_session=True)

    def start_node(self, number: int) -> None:
        bucket = self.folder / "mount" if number == OFFLINE else self.bucket
        output = Path(f"{self.root(number)}.out")
        # One more bundle may be stored that was not confirmed.
        start = max(self.confirmed(number), default=-2) + 2 if output.exists() else 0
        self.start(f"node-{number:02d}", "node", f"edge-{number:02d}", self.root(number), bucket, start, output=output)

    def kill(self, key: str) -> None:
        process = self.running.pop(key)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def wait(self, description: str, is_done) -> None:
        print(f"… {description}", flush=True)
        deadline = time.monotonic() + WAIT_S
        while not is_done():
            ended = [key for key, one in self.running.items() if one.poll() not in {None, 0}]
            if ended:
                raise SystemExit(f"{', '.join(ended)} ended: see {self.folder}/*.err")
            if time.monotonic() > deadline:
                raise SystemExit(f"this did not happen within {WAIT_S:.0f} s; see {self.folder}")
            pause(0.5)

    def read(self) -> Counter[tuple[str, int]]:
        """The rows in the Parquet files that Spark's sink has committed: those in its log."""
        log = self.output / "_spark_metadata"
        batches = [one for one in log.iterdir() if one.name[0].isdigit()] if log.exists() else []
        lines = [line for one in batches for line in one.read_text().splitlines()[1:]]
        files = sorted({urlsplit(json.loads(line)["path"]).path for line in lines})
        if not files:
            return Counter()
        table = ds.dataset(files, format="parquet").to_table()
        return Counter(zip(table["node"].to_pylist(), table["number"].to_pylist(), strict=True))

    def objects(self) -> list[str]:
        tier = open_objects(str(self.bucket), writable=False)
        return [one.key for one in tier.list_below("inbox") if "/quarantine/" not in one.key]

    def missing(self) -> int:
        rows = self.read()
        return sum((f"edge-{number:02d}", one) not in rows for number in range(NODES) for one in self.confirmed(number))

    def run(self) -> bool:
        """Run everything; return whether each confirmed bundle was read once."""
        for number in range(NODES):
            self.start_node(number)
        self.wait(
            f"{NODES} nodes store {BEFORE_KILL} bundles each; node {OFFLINE} has no connection to the bucket",
            lambda: all(Path(f"{self.root(one)}.out").exists() and len(self.confirmed(one)) >= BEFORE_KILL
                        for one in range(NODES)),
        )  # fmt: skip
        for number in (*KILLED, CLONED):
            self.kill(f"node-{number:02d}")
        copy = self.folder / "clone"
        shutil.copytree(self.root(CLONED), copy)
        uploaded = set(self.objects())
        identity = (copy / "quiver.id").read_text().strip()
        for number in (*KILLED, CLONED):
            self.start_node(number)
        self.wait(
            f"nodes {KILLED[0]} and {KILLED[1]} were killed and start again; the disk of node {CLONED} is copied",
            lambda: any(identity in key for key in set(self.objects()) - uploaded),
        )
        self.start("clone", "clone", copy, self.bucket, output=self.folder / "clone.out")
        self.wait("the copy starts, and finds that its identity is in use", lambda: self.running["clone"].poll() == 0)
        self.running.pop("clone")
        check = self.folder / "checkpoint"
        self.start("query", "query", self.bucket, self.output, check, output=self.folder / "query.out")
        self.wait("the query starts", self.read)
        self.wait(
            f"{AFTER_KILL} more bundles each",
            lambda: all(len(self.confirmed(one)) >= BEFORE_KILL + AFTER_KILL for one in range(NODES)),
        )
        (self.folder / "mounted").symlink_to(self.bucket)
        (self.folder / "mounted").rename(self.folder / "mount")
        for number in range(NODES):
            Path(f"{self.root(number)}.stop").touch()
        nodes = [key for key in self.running if key.startswith("node")]
        self.wait(
            f"node {OFFLINE} is connected; all rows are read, and the reader's acknowledgements free the disks",
            lambda: all(self.running[key].poll() == 0 for key in nodes) and self.missing() == 0,
        )
        self.kill("query")
        return self.report((self.folder / "clone.out").read_text().strip())

    def report(self, clone: str) -> bool:
        rows, total = self.read(), Counter[str]()
        print(f"\n{'node':<10}{'':<12}{'confirmed':>10}{'read':>8}{'missing':>9}{'duplicated':>12}{'left':>6}")
        special = {**dict.fromkeys(KILLED, "killed"), CLONED: "cloned", OFFLINE: "offline"}
        for number in range(NODES):
            name = f"edge-{number:02d}"
            found = {one: count for (node, one), count in rows.items() if node == name}
            confirmed = self.confirmed(number)
            left = Path(f"{self.root(number)}.out").read_text().rpartition("left ")[2].strip()
            counts = {
                "confirmed": len(confirmed),
                "read": len(found),
                "missing": len(confirmed - found.keys()),
                "duplicated": sum(count - 1 for count in found.values()),
                "left": int(left),
            }
            total.update(counts)
            print(f"{name:<10}{special.get(number, ''):<12}" + _columns(counts))
        print(f"{'total':<22}" + _columns(total))
        print(f"\nobjects left in the bucket: {len(self.objects())}")
        print(f"the clone: {clone}")
        return not (total["missing"] or total["duplicated"] or total["left"] or self.objects())

    def stop(self) -> None:
        for key in list(self.running):
            if self.running[key].poll() is None:
                self.kill(key)


def _columns(counts) -> str:
    widths = {"confirmed": 10, "read": 8, "missing": 9, "duplicated": 12, "left": 6}
    return "".join(f"{counts[name]:>{width}}" for name, width in widths.items())


def main(directory: str = "fleet-demo-run") -> None:
    folder = Path(directory).absolute()
    if folder.exists() and not (folder / "mark").exists():
        raise SystemExit(f"{folder} exists, and is not of an earlier run: name another directory")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bucket").mkdir(parents=True)
    (folder / "mark").touch()
    (folder / "mount").symlink_to(folder / "unreachable" / "bucket")
    demo = Demo(folder)
    try:
        is_right = demo.run()
    finally:
        demo.stop()
    raise SystemExit(0 if is_right else 1)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--node", name, root, bucket, start]:
            run_node(name, root, bucket, int(start))
        case ["--clone", root, bucket]:
            run_clone(root, bucket)
        case ["--query", bucket, output, checkpoint]:
            run_query(bucket, output, checkpoint)
        case words:
            main(*words)
