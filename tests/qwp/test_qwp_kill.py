"""
Producers killed while the server flaps: every row that was kept arrives, in order, repeated only where it may be.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from qwp_server import Close, QwpServer

from quiver.qwp import Sender
from quiver.qwp.wire.responses import Ok, encode_ok

pytestmark = [pytest.mark.kill, pytest.mark.timeout(900)]
CHILD = Path(__file__).with_name("qwp_kill_child.py")


@pytest.mark.parametrize(("durability", "cycles", "seed"), [("memory", 30, 1), ("flush", 15, 2), ("append", 10, 3)])
def test_every_kept_row_arrives(tmp_path, durability, cycles, seed):
    """
    kill -9 at random, again and again: what a flush returned for reaches the server. A row comes twice only when it
    was sent and its confirmation had not been written down.
    """
    chance = random.Random(seed)
    calm = threading.Event()

    def answer(life: Any, sequence: int, _frame: bytes) -> Any:
        throw = 1.0 if calm.is_set() else chance.random()
        if throw < 0.02:
            return Close(chance.choice([1000, 1001, 1006, 1011]))
        return None if throw < 0.3 else encode_ok(Ok(sequence))

    journal = tmp_path / "kept"
    journal.write_text("0\n", encoding="ascii")
    with QwpServer(answer) as server:
        keys = (
            f"ws::addr={server.address};sf_dir={tmp_path};sf_durability={durability};sf_max_bytes=4K;auto_flush=off;"
            "initial_connect_retry=async;reconnect_initial_backoff_millis=1;reconnect_max_backoff_millis=20;"
        )
        for _ in range(cycles):
            first = _kept(journal)
            command = [sys.executable, str(CHILD), keys, str(first), str(journal)]
            child = subprocess.Popen(command, stderr=subprocess.PIPE)
            before = _kept(journal)
            while _kept(journal) == before and child.poll() is None:
                threading.Event().wait(0.005)
            threading.Event().wait(chance.random() * 0.2)
            child.kill()
            _, errors = child.communicate()
            assert child.returncode == -9, errors.decode()
        calm.set()
        kept = _kept(journal)
        with Sender.from_conf(keys) as sender:
            assert sender.wait_until_confirmed(sender.published_fsn, 60)
        values = [
            value for life in server.lives for frame in life.frames
            for table in life.decode(frame).tables
            for value in next(column for column in table.columns if column.name == "v").values()
        ]  # fmt: skip
    assert kept > cycles
    assert set(values) >= set(range(kept))
    highest = -1
    for value in values:
        assert value <= highest + 1, "nothing is skipped"
        highest = max(highest, value)


def _kept(journal: Path) -> int:
    return int(journal.read_text(encoding="ascii").split("\n")[-2])
