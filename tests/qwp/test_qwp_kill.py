"""Producers are killed while the server flaps: every stored row arrives, in order, repeated only where allowed."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from qwp_server import Close, QwpServer

from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.scan import Frame
from quiver.qwp import Sender
from quiver.qwp.slots.recovery import read_watermark, scan_slot
from quiver.qwp.wire.decoder import DecodedMessage, SymbolDictionary, decode_message
from quiver.qwp.wire.responses import Ok, encode_ok

pytestmark = [pytest.mark.kill, pytest.mark.timeout(900)]
CHILD = Path(__file__).with_name("qwp_kill_child.py")


@pytest.mark.parametrize(
    ("durability", "cycles", "seed"),
    [*(("memory", 50, seed) for seed in (1, 4, 5, 6)), ("flush", 60, 2), ("append", 40, 3)],
)
def test_every_stored_row_arrives(tmp_path, durability, cycles, seed):
    """
    Kill -9 at random, three hundred times: rows of a flush that returned reach the server, in order. A row is repeated
    only if it was sent and its confirmation was not recorded: no process starts before the first frame above the
    watermark at the time of the kill.
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
    open_from = [0]  # the first row that each process may send
    with QwpServer(answer) as server:
        keys = (
            f"ws::addr={server.address};sf_dir={tmp_path};sf_durability={durability};sf_max_bytes=4K;auto_flush=off;"
            "initial_connect_retry=async;reconnect_initial_backoff_millis=1;reconnect_max_backoff_millis=20;"
        )
        for cycle in range(cycles):
            first = _kept(journal)
            command = [sys.executable, str(CHILD), f"{keys}client_id={cycle};", str(first), str(journal)]
            child = subprocess.Popen(command, stderr=subprocess.PIPE)
            before = _kept(journal)
            while _kept(journal) == before and child.poll() is None:
                threading.Event().wait(0.005)
            threading.Event().wait(chance.random() * 0.2)
            child.kill()
            _, errors = child.communicate()
            assert child.returncode == -9, errors.decode()
            open_from.append(_first_unconfirmed(str(tmp_path / "default"), open_from[-1]))
        calm.set()
        kept = _kept(journal)
        with Sender.from_conf(f"{keys}client_id={cycles};") as sender:
            assert sender.wait_until_confirmed(sender.published_fsn, 60)
        values = []
        for life in server.lives:
            brought = [value for frame in life.frames for value in _values(life.decode(frame))]
            assert not brought or brought[0] >= open_from[int(life.headers["X-Qwp-Client-Id"])]
            values += brought
    assert kept > cycles
    assert set(values) >= set(range(kept))
    highest = -1
    for value in values:
        assert value <= highest + 1, "nothing is skipped"
        highest = max(highest, value)


def _values(message: DecodedMessage) -> list[int]:
    return [
        value
        for table in message.tables
        for value in next(column for column in table.columns if column.name == "v").values()
    ]


def _first_unconfirmed(slot: str, before: int) -> int:
    """Return the first row of the first frame after the watermark, or *before* without such a frame."""
    watermark = read_watermark(REAL_FILES, slot)
    for one in sorted(scan_slot(REAL_FILES, slot), key=lambda one: one.base):
        if one.scan is not None and one.next_fsn > watermark + 1:
            start, end = one.scan.payloads[max(0, watermark + 1 - one.base)]
            data = Path(one.path).read_bytes()[start:end]
            answer = decode_message(memoryview(data), SymbolDictionary())
            assert isinstance(answer, Frame)
            return _values(answer.value)[0]
    return before


def _kept(journal: Path) -> int:
    return int(journal.read_text(encoding="ascii").split("\n")[-2])
