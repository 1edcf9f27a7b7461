"""Rows that a QWP client resends are stored once; equal rows of several clients are stored for each of them."""

import shutil
import sqlite3
import threading
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest
from qwp_clients import (
    HERE,
    LossyProxy,
    answer,
    client,
    drop,
    message,
    receiving,
    send,
    values_of,
)
from websockets.exceptions import ConnectionClosed

import quiver
from ports import free_port
from quiver.observe import InMemoryObserver
from quiver.pipeline.config.qwp import QwpReceiverConfig
from quiver.pipeline.config.receiver_place import ReceiverPlace
from quiver.qwp import Sender
from quiver.qwp.wire.message import Flags
from quiver.qwp.wire.responses import Ok
from quiver.receivers.qwp.intake import QwpIntake
from quiver.receivers.qwp.ledger import LEDGER_NAME
from quiver.receivers.qwp.replay import sender_key
from quiver.receivers.settings import KeepaliveSettings
from quiver.settings import Settings
from quiver.testing.clock import ManualClock
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("quiet")

SETTINGS = Settings(segment_open_s_max=600)


@pytest.fixture
def store(tmp_path):
    with quiver.open(str(tmp_path / "buffer"), settings=SETTINGS) as opened:
        yield opened


@contextmanager
def taking(store, settings=HERE, **components):
    """An intake without a port."""
    with closing(QwpIntake(store, settings, **components)) as intake:
        yield intake


def acknowledge(one):
    """Receive the confirmations as a client, and acknowledge them."""
    reported = heard_of(one)
    one.pong(reported)


def heard_of(one):
    """A confirmation is sent; return the ping before it."""
    one.record_confirmation()
    return one.ping()


def broken(one):
    one.silence()
    one.close()


# ── the official client ──────────────────────────────────────────────────────────────────────────────


def official():
    return pytest.importorskip("questdb")


def rows_to(sender, *values):
    for value in values:
        sender.row("t", columns={"v": value}, at=official().TimestampNanos(1000 + value))
        sender.flush()


def test_equal_rows_of_several_clients_are_all_stored(store):
    """Concurrently, and one after the other: every confirmed row is stored."""
    with receiving(store) as receiver:
        conf = f"ws::addr=127.0.0.1:{receiver.port};"
        senders = [official().Sender.from_conf(conf) for _ in range(3)]
        for sender in senders:
            sender.establish()
            rows_to(sender, 1, 2)
        for sender in senders:
            sender.close()
        for _ in range(3):
            with official().Sender.from_conf(conf) as sender:
                rows_to(sender, 1, 2)
    assert sorted(values_of(store)) == [1] * 6 + [2] * 6


@pytest.mark.parametrize("slot", [False, True], ids=["memory", "slot"])
def test_a_client_that_missed_the_answer_resends_and_is_stored_once(store, tmp_path, slot):
    """Its connection breaks after everything was stored and confirmed, and the confirmations are lost."""
    with receiving(store) as receiver, LossyProxy(receiver.port) as proxy:
        conf = f"ws::addr=127.0.0.1:{proxy.port};" + (f"sf_dir={tmp_path}/sf;sender_id=a;" if slot else "")
        with official().Sender.from_conf(conf) as sender:
            rows_to(sender, 0, 1)
            proxy.lose_answers()
            rows_to(sender, *range(2, 20))
            wait_until(lambda: len(values_of(store)) == 20)
            proxy.cut()
            rows_to(sender, *range(20, 25))
        assert proxy.accepted > 1
    assert sorted(values_of(store)) == list(range(25))


def test_a_client_reconnects_after_the_receiver_was_killed(tmp_path):
    """The rows are in a sealed segment by then, and no longer in the log."""
    path = tmp_path / "buffer"
    with quiver.open(str(path), settings=SETTINGS) as store, receiving(store) as receiver:
        with LossyProxy(receiver.port) as proxy:
            conf = f"ws::addr=127.0.0.1:{proxy.port};sf_dir={tmp_path}/sf;close_flush_timeout_millis=100;"
            sender = official().Sender.from_conf(conf)
            sender.establish()
            proxy.lose_answers()
            rows_to(sender, *range(10))
            wait_until(lambda: len(values_of(store)) == 10)
            store.seal()
            store.ingest(quiver.Bundle({"logs": quiver_batch()}))
            store.seal()
            shutil.copytree(path, tmp_path / "after")
        with pytest.raises(official().QuestDBError):
            sender.close()
    with quiver.open(str(tmp_path / "after"), settings=SETTINGS) as store, receiving(store) as receiver:
        conf = f"ws::addr=127.0.0.1:{receiver.port};sf_dir={tmp_path}/sf;"
        with official().Sender.from_conf(conf) as sender:
            rows_to(sender, 10)
        assert sorted(values_of(store)) == list(range(11))


@pytest.mark.timeout(60)
def test_a_reconnecting_client_is_recognized_with_any_number_of_cores(tmp_path):
    """Confirmations are lost and connections break repeatedly: each row is stored once, in order."""
    config = QwpReceiverConfig(listening_addr=f"127.0.0.1:{free_port()}")
    path = str(tmp_path / "buffer")
    with ExitStack() as stack:
        receivers = []
        for core in range(4):
            store = stack.enter_context(quiver.open(path, SETTINGS, cores=4, core=core)).core(core)
            place = ReceiverPlace(store, InMemoryObserver(), cores=4, core=core)
            receivers += [stack.enter_context(one) for one in config.receivers(place)]
        proxy = stack.enter_context(LossyProxy(receivers[0].port))
        conf = f"ws::addr=127.0.0.1:{proxy.port};reconnect_initial_backoff_millis=1;reconnect_max_backoff_millis=5;"
        with Sender.from_conf(conf) as sender:
            proxy.loses_answers_from = b"\x89"  # the ping before a confirmation; handshakes succeed
            for value in range(12):
                sender.row("t", columns={"v": value}, at=1000 + value)
                sender.flush()
                wait_until(lambda count=value: len(in_cores(path)) > count)
                wait_until(lambda count=value: proxy.lossy_connections > count)
                proxy.cut()
            proxy.loses_answers_from = None
            proxy.cut()
        assert in_cores(path) == list(range(12))
        assert proxy.accepted > 12
        assert not any(one.settings.share_port for one in receivers)


def in_cores(path):
    found = (bundle for core in range(4) for _, bundle in quiver.read(f"{path}/core_{core}").bundles())
    return [row["v"] for bundle in found for row in bundle[50].to_pylist()]


def quiver_batch():
    import pyarrow as pa

    return pa.record_batch([pa.array([1])], names=["a"])


# ── connections ──────────────────────────────────────────────────────────────────────────────────────


def test_unanswered_rows_are_recognized_on_the_next_connection(store):
    """In order, up to the first new table; from then on all tables are new."""
    with receiving(store) as receiver, LossyProxy(receiver.port) as proxy:
        with client(proxy) as connection:
            for number in range(2):
                assert isinstance(send(connection, message(number)), Ok)
            proxy.lose_answers()
            for number in (2, 3):
                connection.send(message(number))
            wait_until(lambda: len(values_of(store)) == 4)
            proxy.cut()
        with client(proxy) as connection:
            for number in (2, 3, 4, 0):
                assert isinstance(send(connection, message(number)), Ok)
    assert values_of(store) == [0, 1, 2, 3, 4, 0]


def test_equal_rows_on_one_connection_are_distinct(store):
    """A client never resends on the connection where the first copy was not lost."""
    with receiving(store) as receiver, client(receiver) as connection:
        for _ in range(3):
            assert isinstance(send(connection, message(7)), Ok)
    assert len(values_of(store)) == 3


@pytest.mark.parametrize("at", [1000, None])
def test_rows_that_a_client_knows_to_be_stored_are_not_expected_again(store, at):
    """It closed the connection after it had answered: equal rows are from another client."""
    with receiving(store) as receiver:
        for _ in range(3):
            with client(receiver) as connection:
                assert isinstance(send(connection, message(1, at=at)), Ok)
    assert len(values_of(store)) == 3


def test_two_open_connections_with_equal_rows_are_two_clients(store):
    """Message by message, concurrently."""
    with receiving(store) as receiver, client(receiver) as one, client(receiver) as other:
        for number in range(5):
            assert isinstance(send(one, message(number)), Ok)
            assert isinstance(send(other, message(number)), Ok)
            assert isinstance(send(other, message(10 + number)), Ok)
            assert isinstance(send(one, message(10 + number)), Ok)
    assert sorted(values_of(store)) == sorted([*range(5), *range(10, 15)] * 2)


def test_the_wait_for_a_vanished_host_is_limited(store):
    """Its connection looks open, but does not answer: the rows of its next one are not stored twice."""
    settings = replace(HERE, keepalive=KeepaliveSettings(ping_timeout_s=0.2))
    with receiving(store, settings) as receiver, LossyProxy(receiver.port) as proxy, client(proxy) as vanished:
        proxy.lose_answers()
        vanished.send(message(1))
        wait_until(lambda: len(values_of(store)) == 1)
        with client(receiver) as connection:
            assert isinstance(send(connection, message(1)), Ok)
            assert isinstance(send(connection, message(2)), Ok)
        with pytest.raises(ConnectionClosed):
            vanished.recv(10)
    assert values_of(store) == [1, 2]


def test_without_deduplication_everything_is_stored(store):
    """Disabled with 0."""
    with receiving(store, replace(HERE, dedupe_window_s=0)) as receiver, LossyProxy(receiver.port) as proxy:
        for _ in range(2):
            with client(proxy) as connection:
                connection.send(message(1))
                wait_until(lambda: values_of(store))
                drop(connection)
        wait_until(lambda: len(values_of(store)) == 2)


def test_a_connection_that_breaks_repeatedly_stores_each_row_once(store):
    """Our sender, with a receiver that is restarted on the same port."""
    with receiving(store) as receiver:
        settings = replace(HERE, listening_addr=f"127.0.0.1:{receiver.port}")
        sender = Sender.from_conf(
            f"ws::addr=127.0.0.1:{receiver.port};auto_flush_rows=1;reconnect_initial_backoff_millis=10;"
            "reconnect_max_backoff_millis=50;close_flush_timeout_millis=20000;"
        )
        for number in range(30):
            sender.row("t", columns={"v": number}, at=number + 1)
    for turn in range(1, 4):
        with receiving(store, settings):
            for number in range(turn * 30, turn * 30 + 30):
                sender.row("t", columns={"v": number}, at=number + 1)
    with receiving(store, settings):
        sender.close()
    assert values_of(store) == list(range(120))


class Gated:
    """A store that accepts nothing until `gate` is set; `entered` is set when a caller waits."""

    def __init__(self, store):
        self._store = store
        self.gate, self.entered = threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(self._store, name)

    def ingest(self, bundle):
        self.entered.set()
        assert self.gate.wait(30)
        return self._store.ingest(bundle)


@pytest.mark.parametrize("at", [1000, None])
def test_the_queue_of_a_broken_connection_is_not_stored_in_addition_to_resent_rows(store, at):
    """The client reconnects while messages of the first connection are still queued, and is faster."""
    gated = Gated(store)
    with receiving(gated) as receiver:
        with client(receiver) as connection:
            for number in range(200):
                connection.send(message(number, at=at))
            assert gated.entered.wait(30)
            drop(connection)
        with client(receiver) as connection:
            for number in range(200):
                connection.send(message(number, at=at))
            gated.gate.set()
            while answer(connection).sequence < 199:
                pass
    assert values_of(store) == list(range(200))


# ── step by step, without a port ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("at", [1000, None])
@pytest.mark.parametrize("begun", [0, 1, 2])
def test_a_reconnecting_client_replaces_its_broken_connection(store, begun, at):
    """Message by message, without threads: its stored tables are recognized, and it stores nothing more."""
    messages = [message(number, at=at) for number in range(4)]
    with taking(store) as intake:
        old, new = intake.open(), intake.open()
        old.take(messages[:begun])
        old.silence()
        assert new.take(messages[:3]).done == 3
        found = old.take(messages[begun:])
        assert (found.outcome, found.done) == ("replaced", begun)
        old.close()
        assert new.take(messages[3:]).done == 4
    assert values_of(store) == [0, 1, 2, 3]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("before", [0, 2])
def test_a_connection_that_ends_during_storage_records_every_table(store, before, restarts):
    """As when a receiver stops. Tables being stored are recognized later, and the client resends the rest."""
    messages = [message(number) for number in range(4)]
    gated = Gated(store)
    with taking(gated) as intake:
        one = intake.open()
        gated.gate.set()
        one.take(messages[:before])
        gated.gate.clear()
        gated.entered.clear()
        worker = threading.Thread(target=one.take, args=(messages[before:],))
        worker.start()
        assert gated.entered.wait(30)
        one.silence()
        one.close()
        gated.gate.set()
        worker.join()
        assert one.take(messages).outcome == "unavailable"
        if not restarts:
            two = intake.open()
            assert two.take(messages).done == 4
    if restarts:
        with taking(store) as intake:
            assert intake.open().take(messages).done == 4
    assert values_of(store) == [0, 1, 2, 3]


def test_a_possibly_broken_connection_is_pinged_first(store):
    """The later one waits; then the answer proves two clients, or the end of the other one proves one."""
    with taking(store) as intake:
        one, two, three = (intake.open() for _ in range(3))
        one.take([message(0)])
        asked = two.take([message(0), message(1)])
        assert (asked.outcome, asked.done, asked.asked) == ("unproven", 0, {one.number})
        one.is_alive()
        assert two.take([message(0), message(1)]).done == 2
        asked = three.take([message(1)])
        assert (asked.outcome, asked.asked) == ("unproven", {two.number})
        broken(two)
        assert three.take([message(1)]).done == 1
    assert values_of(store) == [0, 0, 1]


def test_the_earlier_of_two_connections_is_pinged_when_the_later_one_was_faster(store):
    """Its remaining tables are stored when it answers, and left to the other one when it is over."""
    with taking(store) as intake:
        slow, slower, fast = (intake.open() for _ in range(3))
        assert fast.take([message(0)]).done == 1
        for one in (slow, slower):
            asked = one.take([message(0)])
            assert (asked.outcome, asked.asked) == ("unproven", {one.number})
        slow.is_alive()
        assert slow.take([message(0)]).done == 1
        slower.silence()
        assert slower.take([message(0)]).outcome == "replaced"
    assert values_of(store) == [0, 0]


def test_connections_of_other_senders_are_never_pinged(store):
    """By client id, by host, by credential."""
    keys = {
        sender_key("a", "10.0.0.1", []),
        sender_key("b", "10.0.0.1", []),
        sender_key(None, "10.0.0.1", []),
        sender_key(None, "10.0.0.2", []),
        sender_key(None, "10.0.0.2", ["Basic x"]),
    }
    assert len(keys) == 5
    assert sender_key("a", "10.0.0.1", []) == sender_key("a", "10.0.0.9", []), "a client with an id may change its host"
    with taking(store) as intake:
        for key in keys:
            one = intake.open(key)
            assert one.take([message(0)]).done == 1
    assert values_of(store) == [0] * 5


def test_unconfirmed_rows_may_be_resent_by_another_sender(store):
    """But only once: no stored row is confirmed to two clients."""
    with taking(store) as intake:
        lost = intake.open(b"host 1")
        lost.take([message(0), message(1)])
        broken(lost)
        for key in (b"host 2", b"host 3"):
            other = intake.open(key)
            assert other.take([message(0), message(1)]).done == 2
            acknowledge(other)
            broken(other)
    assert values_of(store) == [0, 1, 0, 1]


def test_confirmed_rows_are_only_recognized_from_the_same_sender(store):
    """It may have missed the confirmation; another sender certainly did not send these rows."""
    with taking(store) as intake:
        one = intake.open(b"a")
        one.take([message(0)])
        heard_of(one)
        broken(one)
        assert intake.open(b"b").take([message(0)]).tables == {"t": 1}
        assert intake.open(b"a").take([message(0)]).tables == {"t": 0}
    assert values_of(store) == [0, 0]


def test_confirmed_rows_without_a_timestamp_never_count_as_resent(store):
    """Two heartbeats may be equal; an unconfirmed one is resent."""
    with taking(store) as intake:
        one = intake.open()
        one.take([message(0, at=None)])
        heard_of(one)
        one.take([message(1, at=None)])
        broken(one)
        assert intake.open().take([message(0, at=None), message(1, at=None)]).done == 2
    assert values_of(store) == [0, 1, 0]


def test_a_client_that_waits_for_durability_resends_undurable_rows(store):
    """It received the confirmation of the log, but keeps its rows."""
    with taking(store) as intake:
        one = intake.open()
        for number in range(3):
            one.take([message(number)])
            one.record_confirmation(durable=True)
            one.pong(one.ping())
        one.record_durable(0)
        one.pong(one.ping())
        one.close(in_order=True)
        assert intake.open().take([message(1), message(2)]).done == 2
        assert values_of(store) == [0, 1, 2]
        one = intake.open()
        one.take([message(3)])
        one.record_confirmation(durable=True)
        one.record_durable(3)
        one.pong(one.ping())
        one.close(in_order=True)
        assert intake.open().take([message(3)]).done == 1
    assert values_of(store) == [0, 1, 2, 3, 3]


def test_a_group_that_was_not_committed_is_sent_again(store):
    """Its messages are stored, and confirmed with the last of them."""
    with taking(store) as intake:
        one = intake.open()
        one.take([message(0), message(1, flags=Flags.DEFER_COMMIT)])
        acknowledge(one)
        one.close(in_order=True)
        assert intake.open().take([message(1, flags=Flags.DEFER_COMMIT), message(2)]).done == 2
    assert values_of(store) == [0, 1, 2]


def test_a_client_may_reconnect_days_later_unless_limited(store):
    """By the time since the end of its connection."""
    for number, (window_s, expected) in enumerate([(None, 1), (3600, 2)]):
        clock = ManualClock()
        with taking(store, replace(HERE, dedupe_window_s=window_s), clock=clock) as intake:
            one = intake.open()
            one.take([message(0, table=f"t{number}")])
            broken(one)
            clock.advance(3 * 86_400)
            assert intake.open().take([message(0, table=f"t{number}")]).done == 1
        assert len(values_of(store, f"t{number}")) == expected


def test_the_remembered_bytes_of_a_connection_are_limited(store, monkeypatch):
    """To what a client may buffer; the number of tables is limited in total. The oldest are forgotten first."""
    monkeypatch.setattr("quiver.receivers.qwp.replay._TRIM_BYTES", 1000)
    size = len(message(100))
    with taking(store, replace(HERE, dedupe_bytes_max=5000)) as intake:
        intake.open().take([message(100 + number) for number in range(300)])
        assert 5000 // size <= len(intake.replay) <= 6000 // size + 1
    monkeypatch.setattr("quiver.receivers.qwp.ledger._EVICTED_AT_ONCE", 50)
    with taking(store, replace(HERE, dedupe_entries_max=100)) as intake:
        for turn in range(2):
            one = intake.open()
            one.take([message(1000 * turn + number) for number in range(60)])
            broken(one)
            assert 50 < len(intake.replay) <= 100
        assert intake.open(b"x").take([message(20)]).tables == {"t": 420}
        assert intake.open(b"x").take([message(1059)]).tables == {"t": 419}


def test_acknowledged_rows_are_soon_forgotten(store, monkeypatch):
    """Except a few segments: the client has removed the others."""
    monkeypatch.setattr("quiver.receivers.qwp.replay._KNOWN_BYTES", 5000)
    monkeypatch.setattr("quiver.receivers.qwp.replay._TRIM_BYTES", 1000)
    size = len(message(100))
    with taking(store) as intake:
        one = intake.open()
        for turn in range(10):
            one.take([message(100 + number) for number in range(50 * turn, 50 * turn + 50)])
            acknowledge(one)
        assert 5000 // size <= len(intake.replay) <= 5000 // size + 80


# ── from one process to the next ─────────────────────────────────────────────────────────────────────


def copied(tmp_path, store, name):
    """The store as found if the process died now."""
    return shutil.copytree(store.path, tmp_path / name)


def test_the_ledger_survives_a_killed_process(store, tmp_path):
    """The senders of its connections, and the confirmations on those that had ended."""
    with taking(store) as intake:
        ended, known, living = intake.open(b"a"), intake.open(b"a"), intake.open(b"a")
        for number, one in enumerate((ended, known, living)):
            one.take([message(number)])
        acknowledge(known)
        known.close(in_order=True)
        broken(ended)
        intake.open().take([message(9)])
        after = copied(tmp_path, store, "after")
    with quiver.open(str(after), settings=SETTINGS) as later, taking(later) as intake:
        assert intake.open(b"b").take([message(2)]).tables == {"t": 4}, "the receipt of its confirmations is unknown"
        assert intake.open(b"b").take([message(0)]).tables == {"t": 0}, "it got no confirmations"
        assert intake.open(b"a").take([message(1)]).tables == {"t": 5}, "the client knows it"
        assert intake.open(b"a").take([message(2)]).tables == {"t": 2}


def test_tables_missing_in_the_ledger_are_read_from_the_log(store, tmp_path):
    """The process died between the two; the next client that resends a table counts as its sender."""
    with taking(store) as intake:
        intake.open(b"a").take([message(0)])
        without = copied(tmp_path, store, "without")
        intake.open(b"a").take([message(1), message(2, at=None)])
        after = copied(tmp_path, store, "after")
    for name in (LEDGER_NAME, f"{LEDGER_NAME}-wal"):
        shutil.copy(without / name, after / name)
    with quiver.open(str(after), settings=SETTINGS) as later, taking(later) as intake:
        assert intake.open(b"c").take([message(1)]).tables == {"t": 1}
        assert intake.open(b"c").take([message(0)]).tables == {"t": 3}
        assert intake.open(b"c").take([message(2, at=None)]).tables == {"t": 4}


def test_a_stopped_receiver_reads_nothing_from_the_log(store):
    """The ledger has all tables that it stored; others are not its responsibility."""
    with taking(store) as intake:
        one = intake.open()
        one.take([message(0)])
        acknowledge(one)
        one.close(in_order=True)
    with taking(store) as intake:
        assert len(intake.replay) == 0
        assert intake.open(b"other").take([message(0)]).done == 1
    assert values_of(store) == [0, 0]


def test_rows_that_the_store_lost_do_not_count_as_stored(store, tmp_path):
    """After a power loss the ledger may be ahead of the log."""
    with taking(store) as intake:
        before = copied(tmp_path, store, "before")
        one = intake.open()
        one.take([message(0)])
        broken(one)
        intake.replay.commit()
        for name in (LEDGER_NAME, f"{LEDGER_NAME}-wal"):
            shutil.copy(f"{store.path}/{name}", before / name)
    with quiver.open(str(before), settings=SETTINGS) as later, taking(later) as intake:
        assert intake.open().take([message(0)]).done == 1
        assert values_of(later) == [0]


def test_an_unreadable_ledger_is_quarantined(store, tmp_path):
    """Junk, a later version, a directory: rows may be repeated, but none is lost or refused."""
    path = tmp_path / "buffer" / LEDGER_NAME
    for number, kind in enumerate(["junk", "version", "directory"]):
        if kind == "junk":
            path.write_bytes(b"junk" * 1000)
        elif kind == "version":
            with closing(sqlite3.connect(path)) as database:
                database.execute("PRAGMA user_version = 99")
        else:
            path.unlink()
            path.mkdir()
        observer = InMemoryObserver()
        with taking(store, observer=observer) as intake:
            assert intake.open().take([message(number)]).done == 1
        assert path.is_file()
        aside = path.with_name(f"{LEDGER_NAME}.damaged")
        assert aside.exists()
        shutil.rmtree(aside) if aside.is_dir() else aside.unlink()
    assert values_of(store) == [0, 1, 2]


def test_two_receivers_of_a_store_have_separate_files(store, tmp_path):
    """The second one uses the next name."""
    with taking(store) as first, taking(store) as second:
        for intake in (first, second):
            assert intake.open().take([message(0)]).done == 1
    names = {path.name for path in (tmp_path / "buffer").glob(f"{LEDGER_NAME}*")}
    assert names == {LEDGER_NAME, f"{LEDGER_NAME}-2"}


def test_an_unwritable_file_does_not_stop_the_receiver(store):
    """It is counted and reported; rows resent meanwhile are stored again."""
    observer = InMemoryObserver()
    with taking(store, observer=observer) as intake:
        one = intake.open()
        one.take([message(0)])
        intake.replay._ledger._database.execute("PRAGMA query_only = 1")
        assert one.take([message(1)]).done == 2
        assert observer.total("quiver.receiver.replay_ledger_failures_total") > 0
        intake.replay._ledger._database.execute("PRAGMA query_only = 0")
        assert one.take([message(2)]).done == 3
    assert values_of(store) == [0, 1, 2]
