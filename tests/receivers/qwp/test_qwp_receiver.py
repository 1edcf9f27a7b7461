"""QuestDB clients, ours and the official one, on a real socket with a real store."""

import shutil
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from qwp_clients import HERE, answer, client, message, receiving, rows_of, send
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import connect

import quiver
from quiver.bundle import QWP_SLOT
from quiver.errors import SettingsError
from quiver.objects.location import ObjectLocation
from quiver.qwp import Sender
from quiver.qwp.wire.message import MESSAGE_HEADER, Flags
from quiver.qwp.wire.responses import DurableAck, Ok, Refusal, Status
from quiver.receivers.qwp.intake import QwpIntake
from quiver.receivers.qwp.receiver import QwpReceiver
from quiver.receivers.security import AuthSettings, SecuritySettings, TlsSettings
from quiver.settings import Settings
from quiver.store.opening import open_store
from quiver.testing.clock import ManualClock

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def store(tmp_path):
    with quiver.open(str(tmp_path / "buffer"), settings=Settings(segment_open_s_max=600)) as opened:
        yield opened


COMMIT = MESSAGE_HEADER.pack(b"QWP1", 1, Flags.DELTA_SYMBOLS, 0, 2) + b"\0\0"


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────


def test_confirmed_rows_of_our_sender_are_in_the_log(store):
    """Tables by name, in one slot, without a seal."""
    with receiving(store) as receiver:
        with Sender.from_conf(f"ws::addr=127.0.0.1:{receiver.port};") as sender:
            for number in range(20):
                sender.row("trades", symbols={"sym": f"S{number % 3}"}, columns={"price": number / 2}, at=number + 1)
            sender.row("other", columns={"x": 1}, at=5)
        found = rows_of(store)
    assert [row["price"] for table, row in found if table == "trades"] == [number / 2 for number in range(20)]
    assert [row["sym"] for table, row in found if table == "trades"] == [f"S{number % 3}" for number in range(20)]
    assert [row["x"] for table, row in found if table == "other"] == [1]


def test_the_official_client_needs_no_change(store, tmp_path):
    """Rows and frames are accepted, with and without its store and forward; its symbols arrive in several messages."""
    questdb = pytest.importorskip("questdb")
    pandas = pytest.importorskip("pandas")
    with receiving(store) as receiver:
        address = f"ws::addr=127.0.0.1:{receiver.port};"
        for conf in (address, f"{address}sf_dir={tmp_path}/sf;sender_id=a;"):
            with questdb.Sender.from_conf(conf) as sender:
                for number in range(50):
                    sender.row(
                        "t",
                        symbols={"s": f"S{number % 7}"},
                        columns={"v": number},
                        at=questdb.TimestampNanos(10 + number),
                    )
                    if number % 9 == 0:
                        sender.flush()
        with questdb.Sender.from_conf(address) as sender:
            frame = pandas.DataFrame({"n": range(1000), "at": pandas.date_range("2025", periods=1000, freq="s")})
            sender.dataframe(frame, table_name="frame", at="at")
        found = rows_of(store)
    # The second sender sends the same as the first, but is another one.
    assert sorted(row["v"] for table, row in found if table == "t") == sorted([*range(50), *range(50)])
    assert {row["s"] for table, row in found if table == "t"} == {f"S{number}" for number in range(7)}
    assert sorted(row["n"] for table, row in found if table == "frame") == list(range(1000))


def test_the_official_client_may_pool_its_connections(store, tmp_path):
    """It connects for queries before it sends a row. Queries are refused with a message, and rows are accepted."""
    questdb = pytest.importorskip("questdb")
    pandas = pytest.importorskip("pandas")
    with receiving(store) as receiver:
        address = f"ws::addr=127.0.0.1:{receiver.port};"
        for conf in (address, f"{address}sf_dir={tmp_path}/sf;sender_id=a;"):
            with questdb.connect(conf) as database:
                with database.sender() as sender:
                    sender.row("t", columns={"v": 1}, at=questdb.TimestampNanos(1))
                with pytest.raises(questdb.QuestDBError, match="answers no queries"):
                    database.query("SELECT 1").to_pandas()
                frame = pandas.DataFrame({"v": [2, 3], "at": pandas.date_range("2025", periods=2, freq="s")})
                database.dataframe(frame, table_name="t", at="at")
    assert sorted(row["v"] for _, row in rows_of(store)) == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("data", [b"", b"\x10\0", message(1), b"QWP1"], ids=["empty", "short", "rows", "header"])
def test_an_invalid_query_ends_a_query_connection(store, data):
    """Rows are not accepted there."""
    with receiving(store) as receiver, client(receiver, "/read/v1") as connection:
        assert connection.recv(10).startswith(b"QWP1")
        connection.send(data)
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(10)
    assert closed.value.rcvd.code == 1002
    assert not rows_of(store)


def test_one_ok_covers_all_earlier_messages(store):
    """A sequence from 0; each table with the number of its newest bundle."""
    with receiving(store) as receiver, client(receiver) as connection:
        for number in range(5):
            connection.send(message(number))
        last = -1
        while last < 4:
            ok = answer(connection)
            assert isinstance(ok, Ok)
            assert ok.sequence > last
            assert ok.tables == {"t": ok.sequence}
            last = ok.sequence
    assert [row["v"] for _, row in rows_of(store)] == list(range(5))


def test_a_group_is_confirmed_atomically(store):
    """Deferred messages are stored, and confirmed with the commit."""
    with receiving(store) as receiver, client(receiver) as connection:
        assert send(connection, message(0)) == Ok(0, {"t": 0})
        connection.send(message(1, flags=Flags.DEFER_COMMIT))
        connection.send(message(2, flags=Flags.DEFER_COMMIT))
        with pytest.raises(TimeoutError):
            connection.recv(0.3)
        assert send(connection, COMMIT) == Ok(3, {"t": 2})


def test_durable_means_sealed(store):
    """The acknowledgement of the log comes first; the durable one once a segment has the rows."""
    headers = {"X-QWP-Request-Durable-Ack": "true"}
    with receiving(store) as receiver, client(receiver, additional_headers=headers) as connection:
        assert connection.response.headers["X-QWP-Durable-Ack"] == "enabled"
        assert send(connection, message(1)) == Ok(0, {"t": 0})
        with pytest.raises(TimeoutError):
            connection.recv(0.3)
        store.seal()
        assert answer(connection) == DurableAck({"t": 0})
        store.ingest(quiver.Bundle({QWP_SLOT: store_batch()}))
        assert send(connection, message(2)) == Ok(1, {"t": 2})


def store_batch():
    import pyarrow as pa

    return pa.record_batch([pa.array([1])], names=["a"])


def test_the_wait_for_durability_is_limited(store):
    """Then the open segment is sealed for it: our sender drains, too."""
    settings = replace(HERE, durable_wait_s=0.05)
    with receiving(store, settings) as receiver:
        conf = f"ws::addr=127.0.0.1:{receiver.port};request_durable_ack=on;close_flush_timeout_millis=20000;"
        with Sender.from_conf(conf) as sender:
            sender.row("t", columns={"v": 1}, at=1)
        assert len(store.internals.catalog) == 1


def test_a_restart_does_not_delay_durable_acknowledgements(tmp_path):
    """Resent rows are recognized from the log, and are sealed for a waiting client even if nothing new arrives."""
    settings = Settings(segment_open_s_max=600)
    with quiver.open(str(tmp_path / "buffer"), settings=settings) as store:
        before = QwpIntake(store, HERE)
        before.open().take([message(1)])
        shutil.copytree(tmp_path / "buffer", tmp_path / "after")  # the state if the process dies now
        before.close()
    with quiver.open(str(tmp_path / "after"), settings=settings) as store:
        intake = QwpIntake(store, HERE)
        assert intake.open().take([message(1)]).tables == {"t": 0}
        assert intake.durable_through(seal=False) == -1
        assert intake.durable_through(seal=True) == 0
        assert len(rows_of(store)) == 1
        intake.close()


def test_durable_tier_means_in_the_object_tier(tmp_path):
    """A sealed segment is not enough: its object was read back before the acknowledgement."""
    settings = Settings(segment_open_s_max=600, cold_objects=ObjectLocation.from_url(str(tmp_path / "cold")))
    headers = {"X-QWP-Request-Durable-Ack": "true"}
    with (
        open_store(str(tmp_path / "buffer"), settings, background=False) as store,
        receiving(store, replace(HERE, durable="tier")) as receiver,
        client(receiver, additional_headers=headers) as connection,
    ):
        assert send(connection, message(1)) == Ok(0, {"t": 0})
        store.seal()
        with pytest.raises(TimeoutError):
            connection.recv(0.3)
        assert send(connection, message(2)) == Ok(1, {"t": 1})
        store.maintain()  # uploads the first segment; the second row is not sealed yet
        assert answer(connection) == DurableAck({"t": 0})
        store.seal()
        store.maintain()
        assert answer(connection) == DurableAck({"t": 1})


def test_a_slow_tier_causes_no_small_segments():
    """For a waiting client the open segment is sealed once per `durable_wait_s`, not ten times a second."""
    sealed = []
    waiting = {"waiting_sequence": 0}
    store = SimpleNamespace(
        settings=SimpleNamespace(cold_objects="file:///cold"),
        internals=SimpleNamespace(
            catalog=SimpleNamespace(segments=lambda: [SimpleNamespace(sequence_last=number) for number in sealed])
        ),
        seal=lambda: sealed.append(intake._newest),
        stats=lambda: {"cold": waiting},
    )
    clock = ManualClock()
    intake = QwpIntake(store, replace(HERE, durable="tier", dedupe_window_s=0, durable_wait_s=5.0), clock=clock)
    for number in range(120):  # a row and a tick every tenth of a second
        intake.stored(number)
        assert intake.durable_through(seal=True) == -1
        clock.advance(0.1)
    assert len(sealed) == 3
    waiting["waiting_sequence"] = None
    assert intake.durable_through(seal=False) == sealed[-1]
    waiting["waiting_sequence"] = 3
    assert intake.durable_through(seal=False) == sealed[-1], "a confirmation must not be withdrawn"


def test_durable_tier_needs_a_tier(store):
    """Reported when the receiver is created."""
    with pytest.raises(SettingsError, match="cold.objects"):
        QwpReceiver(store, replace(HERE, durable="tier"))


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_invalid_message_is_refused_and_nothing_after_it_is_stored(store):
    """With its number; earlier messages are stored."""
    with receiving(store) as receiver, client(receiver) as connection:
        assert isinstance(send(connection, message(1)), Ok)
        refusal = send(connection, message(2)[:-1])
        assert isinstance(refusal, Refusal)
        assert (refusal.status, refusal.sequence) == (Status.PARSE_ERROR, 1)
        connection.send(message(3))
        with pytest.raises(TimeoutError):
            connection.recv(0.2)
    assert [row["v"] for _, row in rows_of(store)] == [1]


def test_a_gap_in_the_symbols_has_its_own_status(store):
    """A client may send the complete dictionary and continue."""
    data = bytearray(message(2))
    data[12] = 9
    with receiving(store) as receiver, client(receiver) as connection:
        assert send(connection, bytes(data)).status == Status.DICTIONARY_GAP


def test_a_few_bytes_never_become_gigabytes(store):
    """A row of nulls takes a bit on the wire."""
    rows, columns = 1_000_000, 60
    body = bytearray(b"\x01t" + b"\xc0\x84\x3d" + bytes([columns]))
    for number in range(columns):
        body += b"\x02" + f"{number:02d}".encode() + b"\x0d"
    body += (b"\x01" + b"\xff" * (rows // 8)) * columns
    data = MESSAGE_HEADER.pack(b"QWP1", 1, 0, 1, len(body)) + body
    with receiving(store) as receiver, client(receiver) as connection:
        refusal = send(connection, bytes(data))
    assert refusal.status == Status.PARSE_ERROR
    assert "bytes; the limit is" in refusal.text


@pytest.mark.parametrize("data", ["a text", b"x" * 2_000_000], ids=["text", "large"])
def test_invalid_data_ends_the_connection(store, data):
    """With the matching close code."""
    settings = replace(HERE, max_request_bytes=1_000_000)
    with receiving(store, settings) as receiver, client(receiver) as connection:
        assert connection.response.headers["X-QWP-Max-Batch-Size"] == "1000000"
        with suppress(ConnectionClosed):
            connection.send(data)
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(10)
        assert closed.value.rcvd.code == (1003 if isinstance(data, str) else 1009)


@pytest.mark.parametrize(("path", "status"), [("/", 404), ("/exec", 404), ("/write/v3", 404)])
def test_other_paths_are_not_found(store, path, status):
    """With a hint to the right path."""
    with receiving(store) as receiver, pytest.raises(InvalidStatus) as refused, client(receiver, path):
        pass
    assert refused.value.response.status_code == status


def test_a_plain_request_is_refused_with_upgrade_required(store):
    """It is not a WebSocket request."""
    with receiving(store) as receiver, socket.create_connection(("127.0.0.1", receiver.port)) as plain:
        plain.sendall(b"GET /write/v4 HTTP/1.1\r\nHost: x\r\n\r\n")
        plain.settimeout(10)
        assert plain.recv(100).startswith(b"HTTP/1.1 426 ")


def test_a_client_without_credentials_is_rejected(store):
    """Token or password; our sender and the plain client."""
    security = SecuritySettings(auth=AuthSettings(tokens=("secret",), users={"ada": "lovelace"}))
    with receiving(store, replace(HERE, security=security)) as receiver:
        for headers in ({}, {"Authorization": "Bearer other"}):
            with pytest.raises(InvalidStatus) as refused, client(receiver, additional_headers=headers):
                pass
            assert refused.value.response.status_code == 401
            assert "Bearer" in refused.value.response.headers["WWW-Authenticate"]
        for number, shown in enumerate(("token=secret", "username=ada;password=lovelace")):
            with Sender.from_conf(f"ws::addr=127.0.0.1:{receiver.port};{shown};") as sender:
                sender.row("t", columns={"v": number}, at=1)
    assert [row["v"] for _, row in rows_of(store)] == [0, 1]


def test_tls_accepts_a_client_certificate(store, authority, server_files, client_files):
    """As on every port of our receivers."""
    cert, key = server_files
    tls = TlsSettings(cert_file=str(cert), key_file=str(key), client_ca_file=str(authority.cert))
    with receiving(store, replace(HERE, security=SecuritySettings(tls=tls))) as receiver:
        context = ssl.create_default_context(cafile=str(authority.cert))
        context.check_hostname = False
        context.load_cert_chain(*map(str, client_files))
        with connect(f"wss://127.0.0.1:{receiver.port}/write/v4", ssl=context, compression=None) as connection:
            assert isinstance(send(connection, message(1)), Ok)
    assert len(rows_of(store)) == 1


def test_reading_pauses_while_the_client_does_not_read(store):
    """Answers do not accumulate: eventually it cannot send any more."""
    ping = b"\x89\xfd\0\0\0\0" + b"x" * 125
    upgrade = b"GET /write/v4 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    upgrade += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + b"A" * 22 + b"==\r\n\r\n"
    with receiving(store) as receiver, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        deaf.connect(("127.0.0.1", receiver.port))
        deaf.sendall(upgrade)
        deaf.settimeout(1)
        with pytest.raises(TimeoutError):
            for _ in range(2000):
                deaf.sendall(ping * 500)
        with client(receiver) as connection:
            assert isinstance(send(connection, message(1)), Ok)


def test_connections_are_limited(store):
    """A connection above the limit is closed immediately."""
    with receiving(store, replace(HERE, connections_max=1)) as receiver, client(receiver) as connection:
        with pytest.raises((OSError, EOFError, WebSocketException)), client(receiver, open_timeout=2):
            pass
        assert isinstance(send(connection, message(1)), Ok)


def test_conflicting_settings_are_refused():
    for change in ({"max_request_bytes": 0}, {"tables_bytes_max": 1}, {"receiving_bytes_max": 1}, {"ack": "never"},
                   {"durable_wait_s": 0}, {"durable": "elsewhere"}, {"listening_addr": "0.0.0.0:1"}):  # fmt: skip
        with pytest.raises(SettingsError):
            replace(HERE, **change)


# ── a store that refuses ─────────────────────────────────────────────────────────────────────────────────


def test_a_full_store_makes_the_client_wait(store):
    """No refusal, because some clients treat it as final: an answer once there is space."""
    from quiver.errors import CapacityError

    real = store.ingest
    refused = threading.Event()

    def full(bundle, **options):
        if not refused.is_set():
            refused.set()
            raise CapacityError("full", retry_after_s=0.01)
        return real(bundle, **options)

    store.ingest = full
    try:
        with receiving(store) as receiver, client(receiver) as connection:
            assert send(connection, message(1)) == Ok(0, {"t": 0})
    finally:
        del store.ingest
    assert refused.is_set()
    assert len(rows_of(store)) == 1


def test_a_failed_store_ends_the_connection_and_refuses_new_ones_for_a_while(store):
    """The client keeps its rows."""

    def broken(bundle, **options):
        raise OSError(5, "no disk")

    store.ingest = broken
    try:
        with receiving(store) as receiver:
            with client(receiver) as connection, pytest.raises(ConnectionClosed) as closed:
                send(connection, message(1))
            assert closed.value.rcvd.code == 1001
            with pytest.raises(InvalidStatus) as refused, client(receiver):
                pass
            assert refused.value.response.status_code == 503
    finally:
        del store.ingest
