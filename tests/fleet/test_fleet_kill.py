"""A node in its own process, killed with SIGKILL while it ingests, uploads and deletes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fleet_rig import FleetReader

import quiver
from quiver.objects.opening import open_objects
from quiver.settings import Settings
from waiting import wait_until

NODE = """
import itertools, sys
import quiver, store_rig
from quiver.settings import Settings

root, bucket, start = sys.argv[1:]
fleet = {"name": "edge-17", "subscribers": ["lake"], "seal": "100ms", "ack_poll": "50ms"}
settings = Settings.from_mapping({"cold": {"objects": bucket, "fleet": fleet}, "retention.delete_grace": 0})
with quiver.open(root, settings) as store:
    for number in itertools.count(int(start)):
        store.ingest(store_rig.numbered(number), durable=True)
        print(number, flush=True)
"""
READ_BEFORE_A_KILL = 150


@pytest.mark.parametrize("lives", [3, pytest.param(20, marks=[pytest.mark.kill, pytest.mark.timeout(900)])])
def test_confirmed_bundles_reach_the_reader_once(tmp_path: Path, lives: int) -> None:
    """However often the node dies: no confirmed bundle is lost, none is read twice, and nothing is left."""
    root, bucket, output = tmp_path / "node", tmp_path / "fleet", tmp_path / "output"
    reader = FleetReader(open_objects(str(bucket)))
    confirmed: set[int] = set()
    start = 0

    def progress() -> int:
        reader.read()
        reader.acknowledge()
        return sum(map(len, reader.numbers.values()))

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for life in range(lives):
        before = progress()
        with output.open("w") as stdout:
            node = subprocess.Popen(
                [sys.executable, "-c", NODE, str(root), str(bucket), str(start)], stdout=stdout, env=environment
            )
        try:
            wait_until(lambda: progress() >= before + READ_BEFORE_A_KILL + 37 * life or node.poll() is not None)
            assert node.poll() is None
        finally:
            node.kill()
            node.wait()
        confirmed.update(map(int, output.read_text().splitlines(keepends=False)))
        start = max(confirmed) + 2  # one more may be stored, without confirmation

    fleet = {"name": "edge-17", "subscribers": ["lake"], "ack_poll": "1us"}
    settings = Settings.from_mapping({"cold": {"objects": str(bucket), "fleet": fleet}, "retention.delete_grace": 0})
    with quiver.open(root, settings, background=False) as store:
        store.seal()
        for _ in range(4):
            store.maintain()
            progress()
        store.maintain()
        assert store.stats()["segments"] == 0
        assert store.stats()["cold"]["problem"] is None
    (numbers,) = reader.numbers.values()
    assert numbers == sorted(set(numbers))
    assert confirmed <= set(numbers)
    assert (reader.gone, reader.problems, reader.listed()) == ({}, {}, {})
