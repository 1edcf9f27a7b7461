"""
Memory stays bounded: the open segment, the one being written, and a fixed rest, however much goes through.
"""

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
def test_memory_does_not_grow_with_what_went_through(tmp_path: Path, kind: str) -> None:
    """160 MB go through with segments of 16 MiB; the process never needs more than two of them and 256 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(kind=kind), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 2 * 16 * MIB + 256 * MIB
