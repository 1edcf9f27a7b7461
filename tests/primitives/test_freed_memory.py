"""The settings with which processes keep the memory that they free."""

import os
import subprocess
import sys

from quiver.primitives.freed_memory import KEEP_FREED_MEMORY, keeping_freed_memory

FAULTS_OF_TEN_BATCHES = """
import resource
import pyarrow as pa, pyarrow.compute as pc
column = pa.nulls(1 << 20, pa.int64()).fill_null(1)  # 8 MiB
def batch():
    columns = [pc.add(column, 1) for _ in range(8)]
    blocks = [bytearray(1 << 20) for _ in range(64)]
for _ in range(3):
    batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(environment):
    command = [sys.executable, "-c", FAULTS_OF_TEN_BATCHES]
    return int(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)


def test_the_next_batch_reuses_the_pages_of_the_last():
    """Without the settings, blocks that are freed cause a page fault for each of their pages, 16,384 a batch."""
    default = {name: value for name, value in os.environ.items() if name not in KEEP_FREED_MEMORY}
    assert faults(keeping_freed_memory(default)) < 16_384
    assert faults(default) > 5 * 16_384


def test_settings_of_the_user_take_precedence():
    own = {"MIMALLOC_PURGE_DELAY": "10", "PATH": "/bin"}
    assert keeping_freed_memory(own) == own
    assert keeping_freed_memory({"PATH": "/bin"}) == {"PATH": "/bin", **KEEP_FREED_MEMORY}
