"""The official Python client sends to our decoder, writes the same frames, and drains our slots; we drain its slots."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from qwp_server import QwpServer, confirm

from quiver.observe import InMemoryObserver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.qwp import Sender
from quiver.qwp.rows import RowTable
from quiver.qwp.slots.ring import RingSettings
from quiver.qwp.slots.slot import open_slot
from quiver.qwp.wire.arrow_columns import columns_of_batch
from quiver.qwp.wire.message import SymbolIds, TableData, encode_message

pytestmark = pytest.mark.usefixtures("quiet")

questdb = pytest.importorskip("questdb")
ROWS = 60


def _tables(server: QwpServer) -> list[Any]:
    return [table for life in server.lives for frame in life.frames for table in life.decode(frame).tables]


def _rows(server: QwpServer) -> list[dict[str, Any]]:
    return [row for table in _tables(server) for row in table.to_arrow().to_pylist()]


def _frame_of_ours(number: int, ids: SymbolIds | None) -> bytes:
    table = RowTable("ours")
    table.append({"s": f"y{number % 11}"}, {"v": number, "text": "é" * (number % 5)}, number, bytes_max=1000)
    return encode_message([table.pack()], shared=ids)


def test_rows_of_the_official_client_are_decoded():
    """Every row, including symbols that only earlier frames contain."""
    with QwpServer() as server:
        with questdb.Sender.from_conf(f"ws::addr={server.address};") as sender:
            for number in range(ROWS):
                sender.row(
                    "t", symbols={"s": f"S{number % 7}"}, columns={"v": number, "x": "é" * number},
                    at=questdb.TimestampNanos(10 + number),
                )  # fmt: skip
                if number % 9 == 0:
                    sender.flush()
        assert len(server.frames) > 5
        rows = _rows(server)
    assert [row["v"] for row in rows] == list(range(ROWS))
    assert [row["s"] for row in rows] == [f"S{number % 7}" for number in range(ROWS)]
    assert [row["x"] for row in rows] == ["é" * number for number in range(ROWS)]


FRAMES: dict[str, Any] = {
    "numbers": lambda: pd.DataFrame(
        {
            "i64": np.arange(200),
            "i32": np.arange(200, dtype=np.int32),
            "i8": (np.arange(200) % 100).astype(np.int8),
            "f64": np.arange(200) / 3,
            "f32": (np.arange(200) / 3).astype(np.float32),
            "nan": [None, 1.5] * 100,
            "b": np.arange(200) % 3 == 0,
            "nullable": pd.array([1, None] * 100, "Int64"),
        }
    ),
    "texts": lambda: pd.DataFrame(
        {
            "cat": pd.Categorical(["a", "bé", None, "a"] * 50),
            "text": ["x", None, "", "ü"] * 50,
            "ts": pd.date_range("2024", periods=200, freq="s"),
        }
    ),
    "arrow": lambda: pa.table(
        {
            "sym": pa.array(["u", "v", "u", "w"] * 50).dictionary_encode(),
            "s": pa.array(["1", None, "3", "4"] * 50),
            "l": pa.array(["1", "2", "3", "4"] * 50, pa.large_string()),
            "d": pa.array([1, 2, None, 4] * 50, pa.decimal128(20, 4)),
            "us": pa.array([1, 2, 3, None] * 50, pa.timestamp("us")),
            "ns": pa.array(range(200), pa.timestamp("ns")),
            "f": pa.array([1.5, None, 2.5, 3.5] * 50, pa.float32()),
        }
    ),
}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("at", [None, "stamp"])
def test_data_frames_of_the_official_client_equal_ours_byte_for_byte(name, at):
    """The same frame, nulls of every kind included."""
    data = FRAMES[name]()
    stamps = pd.date_range("2025", periods=200, freq="min")
    if isinstance(data, pd.DataFrame):
        data["stamp"] = stamps
    else:
        data = data.append_column("stamp", pa.array(stamps))
    with QwpServer() as server:
        with questdb.Sender.from_conf(f"ws::addr={server.address};") as sender:
            sender.dataframe(data, table_name="t", at=at or questdb.ServerTimestamp)
        theirs = next(frame for frame in server.frames if len(frame) > 100)
    table = pa.Table.from_pandas(data, preserve_index=False) if isinstance(data, pd.DataFrame) else data
    batch = table.combine_chunks().to_batches()[0]
    assert encode_message([TableData("t", 200, columns_of_batch(batch, at=at))]) == theirs


def _until(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.01)


@pytest.mark.parametrize("confirmed", [-1, 9, 30])
def test_the_official_client_drains_our_slot(tmp_path, confirmed):
    """Every unconfirmed frame arrives, in order, and the files are removed."""
    slot = open_slot(REAL_FILES, str(tmp_path), "ours", RingSettings(4096, 1 << 20, 0.0), observer=InMemoryObserver())
    ids = SymbolIds()
    for number in range(ROWS):
        slot.ring.append(_frame_of_ours(number, ids))
    slot.ring.acknowledge(confirmed)
    slot.ring.maintain(force=True)
    slot.close()
    oldest = min((tmp_path / "ours").glob("*.sfa"))
    assert (oldest.stat().st_size < 4096) == (confirmed == 30), "half of it is confirmed, so it is shorter"
    with QwpServer() as server:
        with questdb.Sender.from_conf(f"ws::addr={server.address};sf_dir={tmp_path};sender_id=ours;") as sender:
            sender.flush()
            _until(lambda: _rows_seen(server)[-1:] == [ROWS - 1])
        values = _rows_seen(server)
    # It discards a 16-byte watermark, so confirmed frames may be sent again.
    assert values == list(range(ROWS - len(values), ROWS))
    assert len(values) >= ROWS - confirmed - 1
    assert not list((tmp_path / "ours").glob("*.sfa"))


def _rows_seen(server: QwpServer) -> list[int]:
    with server.changed:
        found = []
        for life in server.lives:
            dictionary = type(life.dictionary)()
            for frame in list(life.frames):
                life.dictionary = dictionary
                found += [row["v"] for table in life.decode(frame).tables for row in table.to_arrow().to_pylist()]
        return found


def _leave_a_slot(server: QwpServer, directory: Path, rows_a_frame: int = 1) -> None:
    """Let the official client write rows without confirming them."""
    server.answer = lambda *_: None
    keys = "close_flush_timeout_millis=100;sf_max_segment_bytes=4096;auto_flush=off;"
    sender = questdb.Sender.from_conf(f"ws::addr={server.address};sf_dir={directory};sender_id=theirs;{keys}")
    sender.establish()
    for number in range(ROWS):
        sender.row("t", symbols={"s": f"z{number % 30}"}, columns={"v": number}, at=questdb.TimestampNanos(number))
        if number % rows_a_frame == rows_a_frame - 1:
            sender.flush()
    with pytest.raises(questdb.QuestDBError):
        sender.close()
    server.lives.clear()
    server.answer = confirm


def test_our_sender_drains_a_slot_of_the_official_client(tmp_path):
    """Frames that refer to symbols of earlier ones arrive complete, followed by our rows; then the slot is empty."""
    with QwpServer() as server:
        _leave_a_slot(server, tmp_path)
        assert (tmp_path / "theirs" / "sf-manifest.bin").exists()
        with Sender.from_conf(f"ws::addr={server.address};sf_dir={tmp_path};sender_id=theirs;") as sender:
            sender.row("t", symbols={"s": "new"}, columns={"v": ROWS}, at=1)
            assert sender.wait_until_confirmed(sender.flush(), 20)
        for life in server.lives:
            assert all(life.decode(frame).symbols_start == 0 for frame in life.frames)
        rows = _rows(server)
    assert [row["v"] for row in rows] == list(range(ROWS + 1))
    assert [row["s"] for row in rows] == [f"z{number % 30}" for number in range(ROWS)] + ["new"]
    assert sorted(path.name for path in (tmp_path / "theirs").iterdir()) == [".lock", ".lock.pid"]


def test_frames_of_the_official_client_are_split_for_a_lower_limit(tmp_path):
    """Frames built offline may exceed the limit of any server."""
    with QwpServer() as server:
        _leave_a_slot(server, tmp_path, rows_a_frame=10)
        server.headers["X-QWP-Max-Batch-Size"] = "70"
        with Sender.from_conf(f"ws::addr={server.address};sf_dir={tmp_path};sender_id=theirs;") as sender:
            assert sender.wait_until_confirmed(sender.published_fsn, 20)
        assert max(map(len, server.frames)) <= 70
        rows = _rows(server)
    assert [row["v"] for row in rows] == list(range(ROWS))
    assert [row["s"] for row in rows] == [f"z{number % 30}" for number in range(ROWS)]


def test_our_drainer_sends_an_orphan_of_the_official_client(tmp_path):
    """A drainer runs concurrently with our own slot."""
    with QwpServer() as server:
        _leave_a_slot(server, tmp_path)
        keys = f"sf_dir={tmp_path};sender_id=own;drain_orphans=on;"
        with Sender.from_conf(f"ws::addr={server.address};{keys}") as sender:
            _until(lambda: sender.total_background_drainers_succeeded == 1)
        assert [row["v"] for row in _rows(server)] == list(range(ROWS))
    assert sorted(path.name for path in (tmp_path / "theirs").iterdir()) == [".lock", ".lock.pid"]


def test_each_client_refuses_a_slot_that_the_other_has_open(tmp_path):
    """Both use the same locks."""
    with QwpServer() as server:
        keys = f"ws::addr={server.address};sf_dir={tmp_path};sender_id=shared;"
        with Sender.from_conf(keys), pytest.raises(questdb.QuestDBError):
            questdb.Sender.from_conf(keys).establish()
        theirs = questdb.Sender.from_conf(keys)
        theirs.establish()
        with pytest.raises(Exception, match="in use by process"):
            Sender.from_conf(keys)
        theirs.close()
