"""Memory stays bounded by the open segment, the one being written, and a constant, for any amount of data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1024 * 1024

CHILD = """
import sys
import pyarrow as pa
import quiver

columns = {kind!r}
settings = quiver.Settings(segment_bytes_max=16 * 1024 * 1024, segment_open_s_max=3600)
payload = "y" * 1000
with quiver.open(sys.argv[1], settings) as store:
    for number in range(400):
        texts = pa.array([f"{{number}} {{row}} {{payload}}" for row in range(500)])
        if columns == "dictionary":
            texts = texts.dictionary_encode()
        big = pa.record_batch({{"n": pa.array(range(500)), "text": texts}})
        # Only a slice is stored: what it was sliced from must not stay in memory with it.
        store.ingest(quiver.Bundle({{30: big.slice(0, 400)}}))
(peak,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak.split()[1]) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("kind", ["plain", "dictionary"])
def test_memory_does_not_grow_with_the_amount_of_data(tmp_path: Path, kind: str) -> None:
    """160 MB pass through with segments of 16 MiB; the process never needs more than two of them and 256 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(kind=kind), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 2 * 16 * MIB + 256 * MIB


BACKLOG = """
import sys
import pyarrow as pa
import quiver
from quiver.store import catalog


def pages():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("RssFile")]
    return int(line.split()[1]) * 1024


catalog.MAPPED_BYTES_MAX = 16 * 1024 * 1024
settings = quiver.Settings(segment_bytes_max=4 * 1024 * 1024, segment_open_s_max=3600)
with quiver.open(sys.argv[1], settings, background=False) as store:
    subscriber = store.register("away", start="earliest", order={order!r})
    for number in range(100):
        rows = pa.record_batch({{"text": [f"{{number}} {{row}}" + "y" * 1000 for row in range(1000)]}})
        store.ingest(quiver.Bundle({{30: rows}}))
    store.seal()
    before, most, taken = pages(), 0, 0
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        taken += len(bytes(handle.bundle[30]["text"].buffers()[2])) // 1_000_000
        handle.nack(delay=3600)
        most = max(most, pages() - before)
    assert taken == 100, taken
    print(most)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the pages of files from /proc")
@pytest.mark.parametrize("order", ["oldest", "round_robin"])
def test_read_segments_do_not_stay_mapped(tmp_path: Path, order: str) -> None:
    """
    Upstream #2218: every segment that was read stayed mapped, and the process seemed to need the whole backlog. A
    hundred megabytes are read and deferred: only the newest mapped files stay in memory.
    """
    done = subprocess.run(
        [sys.executable, "-c", BACKLOG.format(order=order), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < (16 + 2 * 5 + 8) * MIB
