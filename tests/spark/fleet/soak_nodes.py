"""
A process with many nodes of a fleet, which can be killed: `python soak_nodes.py FOLDER LOCATION FIRST COUNT`.

Each node stores a numbered bundle every second, and appends the number to its file when the bundle is on disk. A new
life continues after the numbers that its nodes confirmed. When the file `stop` exists, nothing more is stored, and the
process ends when its nodes have nothing left on their disks and in the bucket.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from pathlib import Path

import pyarrow as pa

import quiver
from quiver.errors import CapacityError
from quiver.objects.location import ObjectLocation
from quiver.settings import Settings
from quiver.store.store import Store

SLOT = 30


def confirmed(folder: Path, number: int) -> list[int]:
    """The numbers that a node confirmed; the last line may be incomplete after a kill."""
    path = folder / f"confirmed-{number}"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [int(line) for line in lines if line.strip().isdigit() and line.endswith("\n")]


def left(store: Store) -> int:
    """How many segments are on the disk, in the bucket, or being removed there."""
    figures = store.stats()
    return int(figures["segments"] + figures["cold"]["segments"] + figures["cold"]["leaving"])


def main(folder: Path, location: ObjectLocation, first: int, count: int) -> None:
    """Run the nodes *first* to *first* + *count* - 1."""
    pause = threading.Event()
    with contextlib.ExitStack() as opened:
        stores, files, numbers = [], [], []
        for number in range(first, first + count):
            settings = Settings(
                cold_objects=location,
                fleet_name=f"edge-{number}",
                fleet_subscribers=("lake",),
                fleet_seal_s=10.0,
                fleet_ack_poll_s=10.0,
                delete_grace_s=0.0,
                segment_bytes_max=1 << 20,
                wal_rotate_bytes=1 << 20,
                wal_bytes_max=8 << 20,
            )
            stores.append(opened.enter_context(quiver.open(folder / f"node-{number}", settings)))
            # One more bundle may be stored that was not confirmed, and the last line may be incomplete.
            numbers.append(max(confirmed(folder, number), default=-2) + 2)
            files.append(opened.enter_context((folder / f"confirmed-{number}").open("a")))
            files[-1].write("\n")
        while not (folder / "stop").exists():
            for at, store in enumerate(stores):
                batch = pa.record_batch({"node": [f"edge-{first + at}"], "number": [numbers[at]]})
                with contextlib.suppress(CapacityError):
                    store.ingest(quiver.Bundle({SLOT: batch}), durable=True)
                    files[at].write(f"{numbers[at]}\n")
                    files[at].flush()
                    numbers[at] += 1
            pause.wait(1.0)
        for store in stores:
            store.seal()
        while any(left(store) or store.lag("lake").pending_bundles for store in stores):
            pause.wait(1.0)


if __name__ == "__main__":
    url, options = json.loads(sys.argv[2])
    main(Path(sys.argv[1]), ObjectLocation.from_url(url, options), int(sys.argv[3]), int(sys.argv[4]))
