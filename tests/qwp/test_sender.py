"""The sender through its public interface: over real sockets, to a server that may be slow, down, or an impostor."""

from __future__ import annotations

import datetime
import random
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from qwp_server import Close, QwpServer

from certificates import Authority
from quiver.errors import (
    CapacityError,
    PartialWriteError,
    SenderHaltedError,
    SettingsError,
    StoreClosedError,
    UsageError,
)
from quiver.observe import InMemoryObserver
from quiver.qwp import Category, Sender, SenderError
from quiver.qwp.slots.recovery import scan_slot
from quiver.qwp.wire.message import ROWS_MAX
from quiver.qwp.wire.responses import Ok, Refusal, encode_ok, encode_refusal
from quiver.testing.crashfs import CrashFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

QUICK = "reconnect_initial_backoff_millis=1;reconnect_max_backoff_millis=5;"


@pytest.fixture
def server() -> Iterator[QwpServer]:
    with QwpServer() as one:
        yield one


def rows_of(server: QwpServer) -> list[dict[str, Any]]:
    return [
        row for life in server.lives for frame in life.frames
        for table in life.decode(frame).tables for row in table.to_arrow().to_pylist()
    ]  # fmt: skip


def test_rows_of_many_tables_and_threads_arrive(server):
    """No rows are lost between threads, and each thread's rows stay in order."""
    with Sender.from_conf(f"ws::addr={server.address};auto_flush_rows=7;") as sender:

        def produce(name: str) -> None:
            for number in range(50):
                sender.row(name, symbols={"s": name}, columns={"v": number}, at=number)

        threads = [threading.Thread(target=produce, args=(f"t{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    by_table: dict[str, list[int]] = {}
    for row in rows_of(server):
        by_table.setdefault(row["s"], []).append(row["v"])
    assert by_table == {f"t{number}": list(range(50)) for number in range(4)}


def test_rows_flush_by_count_by_bytes_and_by_time(server):
    """Whichever comes first; without a trigger only `flush` does."""
    from quiver.testing.clock import ManualClock

    def published(keys: str, rows: int, **more: Any) -> int:
        sender = Sender.from_conf(f"ws::addr={server.address};{keys}", **more)
        for number in range(rows):
            sender.row("t", columns={"v": number, "x": "x" * 100}, at=None)
        found = sender.published_fsn
        sender.close()
        return found

    assert published("auto_flush_rows=10;auto_flush_interval=off;", 25) == 1
    assert published("auto_flush_rows=off;auto_flush_interval=off;auto_flush_bytes=1K;", 25) == 1
    assert published("auto_flush=off;", 25) == -1
    clock = ManualClock()
    sender = Sender.from_conf(f"ws::addr={server.address};auto_flush_rows=off;", clock=clock)
    sender.row("t", columns={"v": 1})
    clock.advance(0.05)
    sender.row("t", columns={"v": 2})
    assert sender.published_fsn == -1
    clock.advance(0.06)
    sender.row("t", columns={"v": 3})
    assert sender.published_fsn == 0
    sender.close()


def test_an_invalid_row_does_not_affect_others(server):
    """It is refused immediately; decimals that only fit into separate frames get separate frames."""
    from decimal import Decimal

    with Sender.from_conf(f"ws::addr={server.address};auto_flush=off;sf_max_bytes=4096;") as sender:
        sender.row("t", columns={"v": 1})
        with pytest.raises(UsageError):
            sender.row("t", columns={"v": "one"})
        with pytest.raises(UsageError, match="segment"):
            sender.row("t", columns={"w": "x" * 5000})
        with pytest.raises(UsageError):
            sender.row("bad name?", columns={"v": 1})
        sender.row("d", columns={"d": Decimal(10) ** 70})
        sender.row("d", columns={"d": Decimal("1e-70")})
        sender.row("t", columns={"v": 2})
        sender.flush()
        sender.row("t", columns={"v": "another type after a flush"})
        assert sender.wait_until_confirmed(sender.flush(), 10)
    rows = rows_of(server)
    assert sorted(str(row["v"]) for row in rows if "v" in row) == ["1", "2", "another type after a flush"]
    assert [row["d"] for row in rows if "d" in row] == [Decimal(10) ** 70, Decimal("1e-70")]


def test_timeout_s_still_works_with_a_warning(server):
    with Sender.from_conf(f"ws::addr={server.address};") as sender:
        sender.row("t", columns={"v": 1})
        fsn = sender.flush()
        with pytest.warns(DeprecationWarning, match=r"Sender.wait_until_confirmed\(timeout_s=\) is now timeout="):
            assert sender.wait_until_confirmed(fsn, timeout_s=10)
        assert sender.wait_until_confirmed(fsn, timeout=10)
        with pytest.raises(TypeError):
            sender.wait_until_confirmed(fsn, timeout=10, timeout_s=10)
        with pytest.warns(DeprecationWarning, match="timeout_s"), pytest.raises(TypeError):
            sender.wait_until_confirmed(fsn, 10, timeout_s=10)


def test_a_flush_larger_than_a_segment_is_split(server):
    """Into as many frames as needed, in order."""
    with Sender.from_conf(f"ws::addr={server.address};auto_flush=off;sf_max_bytes=4096;") as sender:
        for number in range(300):
            sender.row("t", symbols={"s": f"symbol {number}"}, columns={"v": number, "x": "é" * 30})
        sender.flush()
    assert len(server.frames) > 5
    assert max(map(len, server.frames)) <= 4096 - 32
    assert [row["v"] for row in rows_of(server)] == list(range(300))


def test_no_message_exceeds_the_server_limit():
    """The limit from the handshake applies, for rows and for tables."""
    with QwpServer(headers={"X-QWP-Max-Batch-Size": "3000"}) as server:
        with Sender.from_conf(f"ws::addr={server.address};auto_flush=off;") as sender:
            for number in range(300):
                sender.row("t", columns={"v": number, "x": "x" * 20})
            sender.flush()
            sender.table("t", pa.table({"v": range(300, 3000)}))
            with pytest.raises(UsageError, match="row"):
                sender.row("t", columns={"x": "x" * 3000})
        assert max(map(len, server.frames)) <= 3000
        assert [row["v"] for row in rows_of(server)] == list(range(3000))


def test_tables_arrive_row_by_row(server):
    """Arrow tables, batches and data frames, split into frames; buffered rows are sent first."""
    count = 30_000
    table = pa.table(
        {
            "ts": pa.array(range(count), pa.timestamp("us")),
            "v": range(count),
            "s": [f"s{number % 5}" for number in range(count)],
        }
    )
    with Sender.from_conf(f"ws::addr={server.address};sf_max_bytes=64K;") as sender:
        sender.row("t", columns={"v": -1})
        assert sender.table("t", table, symbols=["s"], at="ts") == count
        assert sender.table("t", table.slice(0, 10).to_batches()[0]) == 10
        assert sender.table("t", pd.DataFrame({"v": np.arange(3)})) == 3
        assert sender.table("t", pa.RecordBatchReader.from_batches(table.schema, table.slice(0, 2).to_batches())) == 2
        assert sender.table("t", table.slice(0, 0)) == 0
        with pytest.raises(UsageError, match="data frame"):
            sender.table("t", [1, 2, 3])
        with pytest.raises(UsageError, match="no column"):
            sender.table("t", table, at="nothing")
    values = [row["v"] for row in rows_of(server)]
    assert values == [-1, *range(count), *range(10), 0, 1, 2, 0, 1]
    assert count < ROWS_MAX


def test_a_table_that_does_not_fit_reports_the_stored_rows():
    """The caller continues after the stored rows."""
    with QwpServer(lambda *_: None) as server:
        keys = "sf_max_bytes=8K;sf_max_total_bytes=32K;sf_append_deadline_millis=10;close_flush_timeout_millis=0;"
        sender = Sender.from_conf(f"ws::addr={server.address};{keys}")
        table = pa.table({"v": range(50_000)})
        with pytest.raises(PartialWriteError) as error:
            sender.table("t", table)
        kept = error.value.rows_kept
        assert 0 < kept < 10_000
        server.wait_for(lambda: sum(len(life.frames) for life in server.lives) == sender.published_fsn + 1)
        sender.close()
        assert [row["v"] for row in rows_of(server)] == list(range(kept))


def test_a_server_that_flaps_gets_every_row_in_order(tmp_path):
    """
    It drops connections and confirms late, at random: every row arrives, in order, and only unconfirmed rows are
    repeated.
    """
    chance = random.Random(5)

    def answer(life: Any, sequence: int, frame: bytes) -> Any:
        if life.number >= 12:
            return encode_ok(Ok(sequence))
        is_last = life.decode(frame).tables[0].columns[0].values() == [299]
        if chance.random() < 0.1 or is_last:
            return Close(chance.choice([1000, 1001, 1006, 1006]))
        return encode_ok(Ok(sequence)) if chance.random() < 0.5 else None

    with QwpServer(answer) as server:
        keys = f"sf_dir={tmp_path};sf_max_bytes=4K;auto_flush=off;{QUICK}close_flush_timeout_millis=20000;"
        with Sender.from_conf(f"ws::addr={server.address};{keys}") as sender:
            for number in range(300):
                sender.row("t", columns={"v": number})
                sender.flush()
            assert sender.wait_until_confirmed(299, 30)
            assert sender.total_reconnects_succeeded == 12
        seen = [[row["v"] for frame in life.frames for table in life.decode(frame).tables
                 for row in table.to_arrow().to_pylist()] for life in server.lives]  # fmt: skip
    highest = -1
    for values in seen:
        if values:
            assert values == list(range(values[0], values[0] + len(values)))
            assert values[0] <= highest + 1
            highest = max(highest, values[-1])
    assert highest == 299
    assert sorted(path.name for path in (tmp_path / "default").iterdir()) == [".lock", ".lock.pid"]


def test_the_sender_fails_over_to_the_next_host(server):
    """If one is down, the other immediately gets the unconfirmed frames."""
    with QwpServer(lambda _life, sequence, _frame: encode_ok(Ok(sequence)) if sequence < 3 else Close(1006)) as first:
        keys = "auto_flush=off;reconnect_initial_backoff_millis=60000;reconnect_max_backoff_millis=60000;"
        with Sender.from_conf(f"ws::addr={first.address},{server.address};{keys}") as sender:
            for number in range(6):
                sender.row("t", columns={"v": number})
                sender.flush()
            assert sender.wait_until_confirmed(5, 20)
    values = [row["v"] for row in rows_of(server)]
    assert values == list(range(values[0], 6))
    assert values[0] <= 3


def test_a_retried_refusal_is_sent_again():
    """By category: here a transient internal error."""
    refusals = [3]

    def answer(_life: Any, sequence: int, _frame: bytes) -> bytes:
        if refusals[0]:
            refusals[0] -= 1
            return encode_refusal(Refusal(6, sequence, "busy"))
        return encode_ok(Ok(sequence))

    errors: list[SenderError] = []
    with QwpServer(answer) as server:
        keys = f"on_internal_error=retry;{QUICK}"
        with Sender.from_conf(f"ws::addr={server.address};{keys}", on_error=errors.append) as sender:
            sender.row("t", columns={"v": 1})
            assert sender.wait_until_confirmed(sender.flush(), 10)
        assert len(server.lives) == 4
    assert [error.category for error in errors] == [Category.INTERNAL_ERROR] * 3


@pytest.mark.parametrize("status", [404, 503])
def test_rows_wait_for_a_server_with_the_protocol(tmp_path, server, status):
    """They are stored, and sent once such a server answers."""
    server.refuse = (status, {})
    keys = f"sf_dir={tmp_path};initial_connect_retry=async;{QUICK}"
    with Sender.from_conf(f"ws::addr={server.address};{keys}") as sender:
        sender.row("t", columns={"v": 1})
        fsn = sender.flush()
        server.wait_for(lambda: server.requests > 2)
        assert sender.acked_fsn == -1
        server.refuse = None
        assert sender.wait_until_confirmed(fsn, 10)


def test_an_invalid_server_does_not_halt_the_sender(tmp_path):
    """It does not speak HTTP: try the next host, or retry later."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def rude() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-nonsense\r\n\r\n")

        thread = threading.Thread(target=rude)
        thread.start()
        with pytest.raises(SenderHaltedError, match="no WebSocket handshake"):
            Sender.from_conf(f"ws::addr=127.0.0.1:{listener.getsockname()[1]};")
        thread.join()


def test_each_durability_syncs_as_documented(tmp_path, server):
    """memory never, flush once per flush, append with every frame."""
    syncs: dict[str, int] = {}
    for durability in ("memory", "flush", "append"):
        disk = CrashFileSystem()
        sender = Sender.from_conf(
            f"ws::addr={server.address};sf_dir=/sf;sf_durability={durability};auto_flush=off;sf_max_bytes=4K;", fs=disk
        )
        sender.row("t", columns={"v": 0})
        sender.flush()
        steps: list[str] = []
        disk.on_step = lambda op, path, steps=steps: steps.append(op) if path.endswith(".sfa") else None
        for number in range(60):
            sender.row("t", columns={"v": number, "x": "x" * 100})
        sender.flush()
        disk.on_step = None
        # A new segment's header is synced once; a spare may have been created before or after.
        syncs[durability] = steps.count("sync") - (steps.count("create") if durability != "memory" else 0)
        frames = steps.count("pwrite")
        sender.close()
        assert frames >= 3
    assert syncs["memory"] == 0
    assert 0 < syncs["flush"] <= syncs["append"]


FLUSHED = "sf_dir=/sf;sf_durability=flush;sf_append_deadline_millis=0;close_flush_timeout_millis=0;auto_flush=off;"


def frames_after_a_power_loss(disk: CrashFileSystem, seed: int) -> int:
    return max(one.next_fsn for one in scan_slot(disk.clone_after_crash(seed=seed), "/sf/default"))


def test_stored_rows_of_a_table_survive_a_power_loss():
    """The caller continues after these rows, which a row that is too large follows."""
    disk = CrashFileSystem()
    with QwpServer(lambda *_: None) as server:
        sender = Sender.from_conf(f"ws::addr={server.address};{FLUSHED}sf_max_bytes=64K;", fs=disk)
        with pytest.raises(PartialWriteError):
            sender.table("t", pa.table({"x": [*["small"] * 5000, "large" * 20_000]}))
        found = [frames_after_a_power_loss(disk, seed) for seed in range(8)]
        sender.close()
    assert found == [sender.published_fsn + 1] * 8


def test_a_flush_syncs_rows_published_earlier(server):
    """The next row appends rows that waited for space, and is then refused: the flush must still sync."""
    gate = threading.Event()
    server.answer = lambda _life, sequence, _: encode_ok(Ok(sequence)) if gate.is_set() and sequence < 1 else None
    disk = CrashFileSystem()
    keys = f"{FLUSHED}sf_max_bytes=1K;sf_max_total_bytes=2K;{QUICK}"
    with Sender.from_conf(f"ws::addr={server.address};{keys}", fs=disk) as sender:
        for number in range(3):
            sender.row("t", columns={"v": number, "x": "x" * 500})
        with pytest.raises(CapacityError):
            sender.flush()
        gate.set()
        for life in server.lives:
            life.drop()
        while sender.published_fsn < 2:
            with suppress(CapacityError, UsageError):
                sender.row("t", columns={})
            threading.Event().wait(0.005)
        fsn = sender.flush()
        found = [frames_after_a_power_loss(disk, seed) for seed in range(8)]
    assert found == [fsn + 1] * 8


def test_a_closed_sender_refuses_calls(server):
    """Every call except close."""
    sender = Sender.connect(addr=server.address)
    sender.close()
    for call in (lambda: sender.row("t", columns={"v": 1}), sender.flush, sender.resume_after_halt):
        with pytest.raises(StoreClosedError):
            call()
    other = Sender.connect(addr=server.address)
    with pytest.raises(UsageError, match="not halted"):
        other.resume_after_halt()
    other.close()


def test_a_sender_is_configured_from_the_environment(server, monkeypatch):
    """By the variable of the official clients, or a mapping."""
    monkeypatch.setenv("QDB_CLIENT_CONF", f"ws::addr={server.address};")
    for sender in (Sender.from_env({"QDB_CLIENT_CONF": f"ws::addr={server.address};"}), Sender.from_env()):
        with sender:
            sender.row("t", columns={"v": 1})  # once `close` has drained the row, a connection existed
    assert len(server.lives) == 2
    with pytest.raises(SettingsError, match="QDB_CLIENT_CONF"):
        Sender.from_env({})


def test_timestamps_are_converted(server):
    """Nanoseconds, datetimes with a zone, and none; a datetime without a zone is refused."""
    instant = datetime.datetime(2024, 1, 2, 3, 4, 5, 678901, datetime.UTC)
    with Sender.from_conf(f"ws::addr={server.address};") as sender:
        sender.row("n", columns={"v": 1}, at=1_700_000_000_123_456_789)
        sender.row("d", columns={"v": 1}, at=instant)
        sender.row("s", columns={"v": 1})
        with pytest.raises(UsageError, match="zone"):
            sender.row("d", columns={"v": 1}, at=instant.replace(tzinfo=None))
    tables = {table.name: table for frame in server.frames for table in server.lives[0].decode(frame).tables}
    assert tables["n"].columns[-1].values() == [1_700_000_000_123_456_789]
    assert tables["d"].to_arrow()["timestamp"].to_pylist() == [instant]
    assert [column.name for column in tables["s"].columns] == ["v"]


def test_pandas_timestamps_keep_their_nanoseconds(server):
    """As in a data frame, also without a zone. NaT is refused immediately, without affecting other rows."""
    instant = pd.Timestamp("2024-01-02T03:04:05.123456789", tz="UTC")
    with Sender.from_conf(f"ws::addr={server.address};") as sender:
        sender.row("p", columns={"v": instant, "w": instant.tz_localize(None)}, at=instant)
        with pytest.raises(UsageError, match="NaT is not a timestamp"):
            sender.row("p", columns={"v": pd.NaT}, at=instant)
    (table,) = server.lives[0].decode(server.frames[0]).tables
    assert [column.values() for column in table.columns] == [[instant.value]] * 3


def test_tls_verifies_with_given_roots_and_warns_without_verification(tmp_path):
    """wss: the certificate is verified unless that is disabled, which is logged."""
    authority = Authority(tmp_path, "root")
    certificate, key = authority.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with QwpServer(tls=context) as server:
        address = f"localhost:{server.port}"
        with pytest.raises(SenderHaltedError, match="certificate"):
            Sender.from_conf(f"wss::addr={address};")
        with Sender.from_conf(f"wss::addr={address};tls_roots={authority.cert};") as sender:
            for number in range(50):
                sender.row("t", columns={"v": number, "x": "x" * 3000})
                sender.flush()
            assert sender.wait_until_confirmed(49, 20)
        events: list[str] = []
        observer = InMemoryObserver()
        observer.event = lambda name, **_: events.append(name)  # type: ignore[method-assign]
        Sender.from_conf(f"wss::addr={address};tls_verify=unsafe_off;", observer=observer).close()
        assert "qwp.tls_unverified" in events
        assert len(rows_of(server)) == 50


def test_messages_are_encoded_in_a_reused_buffer(server):
    """It starts with `init_buf_size` and grows as needed, up to `max_buf_size`."""
    keys = "init_buf_size=1K;max_buf_size=64K;sf_max_bytes=1M;auto_flush=off;"
    with Sender.from_conf(f"ws::addr={server.address};{keys}") as sender:
        buffer = sender._buffer
        assert buffer.size_bytes == 1024
        sender.row("t", columns={"v": 0})
        sender.flush()
        assert buffer.size_bytes == 1024
        for number in range(1, 40):
            sender.row("t", columns={"v": number, "x": "x" * 2500})
        sender.flush()
        assert 32 << 10 < buffer.size_bytes <= 64 << 10
        assert sender.wait_until_confirmed(sender.published_fsn, 20)
    assert max(map(len, server.frames)) <= 64 << 10
    assert [row["v"] for row in rows_of(server)] == list(range(40))


def test_messages_waiting_for_space_are_copies(server):
    """Messages that wait for space are not overwritten by later ones."""
    gate = threading.Event()
    server.answer = lambda _life, sequence, _frame: encode_ok(Ok(sequence)) if gate.is_set() else None
    keys = (
        "sf_max_bytes=1K;sf_max_total_bytes=2K;sf_append_deadline_millis=0;auto_flush=off;close_flush_timeout_millis=0;"
    )
    with Sender.from_conf(f"ws::addr={server.address};{keys}{QUICK}") as sender:
        for number in range(6):
            sender.row("t", columns={"v": number, "x": "x" * 500})
        with pytest.raises(CapacityError):
            sender.flush()
        gate.set()
        for life in server.lives:
            life.drop()
        fsn = None
        while fsn is None:
            with suppress(CapacityError):
                fsn = sender.flush()
            threading.Event().wait(0.005)
        assert sender.wait_until_confirmed(fsn, 20)
    seen = dict.fromkeys(row["v"] for row in rows_of(server))
    assert list(seen) == list(range(6))


def test_schemas_of_a_message_are_limited(server):
    """Only the older dialect numbers them: further tables are sent in another message."""
    keys = "quiver_dialect=schema;max_schemas_per_connection=2;auto_flush=off;"
    with Sender.from_conf(f"ws::addr={server.address};{keys}") as sender:
        for number in range(5):
            sender.row(f"t{number}", columns={f"v{number}": number})
        sender.row("alike", columns={"v0": 5})
        assert sender.wait_until_confirmed(sender.flush(), 20)
        assert sender.published_fsn == 3
    (life,) = server.lives
    assert [len(life.decode(frame).tables) for frame in life.frames] == [1, 2, 1, 2]


def test_counters_are_exported_as_metrics(server):
    """Refusals, lost connections and resent frames have the same numbers in both places."""

    def answer(life: Any, sequence: int, _frame: bytes) -> Any:
        if life.number == 0:
            return encode_refusal(Refusal(0x09, 0, "no")) if sequence == 0 else None
        return Close(1006) if life.number == 1 else encode_ok(Ok(sequence))

    server.answer = answer
    observer = InMemoryObserver()
    with Sender.from_conf(f"ws::addr={server.address};{QUICK}", observer=observer, on_error=lambda _: None) as sender:
        for number in range(5):
            sender.row("t", columns={"v": number})
            sender.flush()
        assert sender.wait_until_confirmed(4, 20)
    totals = {
        "frames_sent_total": sender.total_frames_sent,
        "frames_replayed_total": sender.total_frames_replayed,
        "server_errors_total": sender.total_server_errors,
        "reconnects_total": sender.total_reconnects_succeeded,
        "errors_told_total": sender.total_error_notifications_delivered,
        "errors_not_told_total": sender.dropped_error_notifications,
        "halts_total": 0,
    }
    assert {name: observer.total(f"quiver.qwp.{name}") for name in totals} == totals
    assert totals["server_errors_total"] == totals["errors_told_total"] == 1
    assert totals["reconnects_total"] == 2
    assert totals["frames_sent_total"] > 5
