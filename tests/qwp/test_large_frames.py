"""Frames that are larger than the server accepts: avoided where possible, otherwise split."""

from __future__ import annotations

import random
from typing import Any

import pytest
from qwp_server import Close, QwpServer
from vector_values import GROUPS, frame

from quiver.errors import UsageError
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.scan import Damage, Frame
from quiver.qwp import Category, Policy, Sender, SenderError
from quiver.qwp.connection.fitting import FrameFitter
from quiver.qwp.connection.session import Confirm, Drop, Reconnect, Session, SessionSettings
from quiver.qwp.rows import RowTable
from quiver.qwp.slots.dead_letters import read_dead_letters
from quiver.qwp.slots.ring import RingSettings
from quiver.qwp.slots.slot import open_slot
from quiver.qwp.wire.decoder import SymbolDictionary, decode_message, decode_symbol_delta
from quiver.qwp.wire.message import BATCH_BYTES_DEFAULT, Flags, encode_message, with_all_symbols
from quiver.qwp.wire.pieces import as_group, split_message
from quiver.qwp.wire.responses import DurableAck, Ok, Refusal, encode_durable_ack, encode_ok, encode_refusal

pytestmark = pytest.mark.usefixtures("quiet")

MIB = 1 << 20
OFFLINE = "ws::addr=127.0.0.1:1;initial_connect_retry=async;close_flush_timeout_millis=0;"
QUICK = "reconnect_initial_backoff_millis=1;reconnect_max_backoff_millis=5;close_flush_timeout_millis=20000;"


def message(start: int, stop: int, *, size: int = 100, table: str = "t") -> bytes:
    made = RowTable(table)
    for value in range(start, stop):
        made.append({"s": f"S{value % 3}"}, {"v": value, "x": "x" * size}, 1000 + value, bytes_max=10 * MIB)
    return bytes(encode_message([made.pack()]))


def slot_with(tmp_path: Any, *messages: bytes) -> None:
    slot = open_slot(
        REAL_FILES, str(tmp_path), "edge", RingSettings(4 * MIB, 64 * MIB, 0.0), observer=InMemoryObserver()
    )
    for one in messages:
        slot.ring.append(one)
    slot.close()


class Strict(QwpServer):
    """Has a message limit, confirms groups atomically, and refuses the messages in `refuses`, once or always."""

    def __init__(self, bytes_max: int, *, refuses: Any = lambda rows: False, durable: bool = False) -> None:
        headers = {"X-QWP-Max-Batch-Size": str(bytes_max)} | ({"X-QWP-Durable-Ack": "enabled"} if durable else {})
        super().__init__(self._take, headers=headers)
        self._bytes_max = bytes_max
        self._refuses = refuses
        self._is_durable = durable
        self._dictionaries: dict[int, SymbolDictionary] = {}
        self._groups: dict[int, list[Any]] = {}
        self._deaf: set[int] = set()
        self._transactions = 0
        self.rows: list[Any] = []
        self.refused = 0

    def _take(self, life: Any, sequence: int, data: bytes) -> Any:
        if len(data) > self._bytes_max:
            return Close(1009, "too big")
        answer = decode_message(memoryview(data), self._dictionaries.setdefault(life.number, SymbolDictionary()))
        assert isinstance(answer, Frame)
        rows = [row["v"] for table in answer.value.tables for row in table.to_arrow().to_pylist()]
        if life.number in self._deaf:
            return None  # as servers do after a refusal
        if self._refuses(rows):
            self.refused += 1
            self._deaf.add(life.number)
            return encode_refusal(Refusal(3, sequence, "no such column"))
        group = self._groups.setdefault(life.number, [])
        group += rows
        if answer.value.flags & Flags.DEFER_COMMIT:
            return None
        self.rows += group
        group.clear()
        self._transactions += 1
        tables = {"t": self._transactions}
        return [
            encode_ok(Ok(sequence, tables)),
            *([encode_durable_ack(DurableAck(tables))] if self._is_durable else []),
        ]


def drain(server: QwpServer, tmp_path: Any, keys: str = "", **components: Any) -> list[SenderError]:
    errors: list[SenderError] = []
    conf = f"ws::addr={server.address};sf_dir={tmp_path};sender_id=edge;{QUICK}{keys}"
    with Sender.from_conf(conf, on_error=errors.append, **components) as sender:
        assert sender.wait_until_confirmed(sender.published_fsn, 20)
    return errors


def letters(tmp_path: Any) -> list[Any]:
    return [
        (letter.fsn, letter.reason, [row["v"] for table in decode_message(memoryview(letter.message)).value.tables
                                      for row in table.to_arrow().to_pylist()])
        for letter in read_dead_letters(REAL_FILES, f"{tmp_path}/edge")
    ]  # fmt: skip


# ── frames as they are built ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["rows", "table"])
def test_frames_that_are_built_offline_fit_any_server(tmp_path, how):
    """No server has announced its limit, and the segments are larger."""
    import pandas as pd

    with Sender.from_conf(f"{OFFLINE}sf_dir={tmp_path};sender_id=edge;auto_flush=off;sf_max_bytes=16M;") as sender:
        if how == "rows":
            for value in range(5000):
                sender.row("t", symbols={"s": "a"}, columns={"v": value, "x": "x" * 1000}, at=value)
            sender.flush()
        else:
            sender.table("t", pd.DataFrame({"v": range(5000), "x": ["x" * 1000] * 5000}))
        with pytest.raises(UsageError):
            sender.row("t", columns={"x": "x" * (16 * MIB)})
    with Strict(BATCH_BYTES_DEFAULT) as server:
        assert drain(server, tmp_path) == []
    assert server.rows == list(range(5000))
    assert len(server.lives) == 1


def test_a_single_row_may_be_larger_until_a_server_announces_its_limit(tmp_path):
    """It gets its own frame: some servers accept it."""
    with Sender.from_conf(f"{OFFLINE}sf_dir={tmp_path};sender_id=edge;") as sender:
        for value in range(3):
            sender.row("t", columns={"v": value, "x": "x" * (3 * MIB if value == 1 else 10)}, at=value)
    with Strict(16 * MIB) as server:
        assert drain(server, tmp_path) == []
        assert server.rows == [0, 1, 2]


# ── stored frames ────────────────────────────────────────────────────────────────────────────────────────


def test_a_frame_above_the_limit_is_sent_in_pieces(tmp_path):
    """All rows arrive in order, as one group, and so do the later frames."""
    observer = InMemoryObserver()
    slot_with(tmp_path, message(0, 10), message(10, 36_000, size=90), message(36_000, 36_010))
    with Strict(BATCH_BYTES_DEFAULT) as server:
        assert drain(server, tmp_path, observer=observer) == []
        frames = server.lives[0].frames
    assert server.rows == list(range(36_010))
    assert len(server.lives) == 1
    assert [data[5] & Flags.DEFER_COMMIT for data in frames] == [0, *[1] * (len(frames) - 3), 0, 0]
    assert observer.total("quiver.qwp.frames_split_total") == 1
    assert letters(tmp_path) == []


def test_a_row_above_the_limit_becomes_a_dead_letter(tmp_path):
    """Alone in its frame, or among others; the other rows arrive."""
    row = message(7, 8, size=4000)
    made = RowTable("t")
    for value in range(20, 30):
        made.append({}, {"v": value, "x": "x" * (3500 if value == 25 else 10)}, value, bytes_max=MIB)
    slot_with(tmp_path, message(0, 3), row, message(10, 12), bytes(encode_message([made.pack()])), message(40, 42))
    with Strict(3000) as server:
        errors = drain(server, tmp_path)
    assert server.rows == [0, 1, 2, 10, 11, *range(20, 25), *range(26, 30), 40, 41]
    assert len(server.lives) == 1
    assert [(fsn, values) for fsn, _, values in letters(tmp_path)] == [(1, [7]), (3, [25])]
    assert all(
        "the row has" in reason and "the server takes at most 3000" in reason for _, reason, _ in letters(tmp_path)
    )
    assert [(one.category, one.applied_policy, one.status, one.from_fsn) for one in errors] == [
        (Category.TOO_LARGE, Policy.DROP, -1, 1), (Category.TOO_LARGE, Policy.DROP, -1, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("durable", [False, True])
def test_a_refused_piece_is_dropped_and_the_others_are_sent_again(tmp_path, durable):
    """As a group without it; also when it was the last piece, which commits."""
    for refused in (0, 25, 99):
        place = tmp_path / str(refused)
        slot_with(place, message(-5, 0), message(0, 100), message(100, 105))
        with Strict(2000, refuses=lambda rows, bad=refused: bad in rows, durable=durable) as server:
            errors = drain(server, place, "request_durable_ack=on;" if durable else "")
        ((fsn, reason, skipped),) = letters(place)
        assert (fsn, reason, refused in skipped) == (1, "no such column", True)
        assert server.rows == [value for value in range(-5, 105) if value not in skipped]
        assert [one.category for one in errors] == [Category.SCHEMA_MISMATCH]
        assert server.refused == 1


def test_a_group_is_sent_again_after_its_connection_broke(tmp_path):
    """No part of it was committed."""
    slot_with(tmp_path, message(0, 100), message(100, 105))
    with Strict(2000) as server:
        take, broken = server.answer, []

        def break_once(life: Any, sequence: int, data: bytes) -> Any:
            if sequence == 3 and not broken:
                broken.append(life)
                return Close(1006)
            return take(life, sequence, data)

        server.answer = break_once
        assert drain(server, tmp_path) == []
    assert server.rows == list(range(105))
    assert len(server.lives) == 2


def test_the_next_server_may_have_another_limit(tmp_path):
    """Pieces are split for the connected server; a row that is too large for one may fit the other."""
    fitter = FrameFitter()
    data = message(0, 100)
    first = fitter.fit(5, data, 4000)
    fitter.leave_out(5, data, 0)
    assert [len(fitter.fit(5, data, limit).messages) for limit in (4000, 10_000, 0)] == [len(first.messages) - 1] * 3
    smaller = fitter.fit(5, data, 2000)
    assert rows_of(smaller.messages) == list(range(100))
    fitter.confirmed(5)
    assert fitter.fit(5, data, 0).messages == [data]


def test_an_unreadable_frame_above_the_limit_becomes_a_dead_letter(tmp_path):
    """It would otherwise close every connection."""
    unreadable = bytearray(message(0, 100))
    unreadable[5] |= 0x40
    slot_with(tmp_path, message(0, 1), bytes(unreadable), message(1, 2))
    with Strict(2000) as server:
        errors = drain(server, tmp_path)
    assert server.rows == [0, 1]
    assert "splitting failed: unknown flags" in errors[0].message
    (letter,) = read_dead_letters(REAL_FILES, f"{tmp_path}/edge")
    assert (letter.fsn, letter.message) == (1, bytes(unreadable))


# ── pieces ───────────────────────────────────────────────────────────────────────────────────────────


def rows_of(messages: Any) -> list[Any]:
    return [
        row["v"] for data in messages
        for table in decode_message(memoryview(data)).value.tables for row in table.to_arrow().to_pylist()
    ]  # fmt: skip


def written(message: Any) -> list[Any]:
    return [(table.name, repr(row)) for table in message.tables for row in table.to_arrow().to_pylist()]


def schema(table: Any) -> list[Any]:
    return [(column.name, column.type, column.scale) for column in table.columns]


@pytest.mark.parametrize("group", GROUPS)
def test_pieces_have_the_rows_of_the_message(group):
    """Every recorded frame of the official client, complete, in a few pieces and row by row."""
    dictionary = SymbolDictionary()
    for one in GROUPS[group]["frames"]:
        data = frame(one["file"])
        message = decode_message(memoryview(data), dictionary).value
        delta = decode_symbol_delta(memoryview(data)).value
        alone = with_all_symbols(data, dictionary.entries, (delta.end, delta.start + len(delta.symbols)))
        for bytes_max in (len(alone), len(alone) // 3 + 1, *([1] if message.tables[0].rows < 100 else [])):
            pieces = split_message(memoryview(alone), bytes_max).value
            read = [decode_message(memoryview(piece.message)).value for piece in pieces]
            assert [row for piece in read for row in written(piece)] == written(message)
            assert all(len(piece.message) <= bytes_max or piece.rows == 1 for piece in pieces)
            columns = [
                [(column.name, column.type, column.scale) for column in table.columns] for table in message.tables
            ]
            assert all(
                [(column.name, column.type, column.scale) for column in table.columns] in columns
                for piece in read for table in piece.tables
            )  # fmt: skip


def test_a_small_message_is_one_identical_piece():
    """Also in the older dialect."""
    table = RowTable("t")
    for value in range(5):
        table.append({"s": f"S{value}"}, {"v": value}, value, bytes_max=1000)
    for dialect in ("inline", "schema"):
        data = bytes(encode_message([table.pack()], dialect=dialect))
        (piece,) = split_message(memoryview(data), len(data)).value
        assert piece.message == data
        assert as_group([piece.message], data) == [data]


def test_a_message_without_rows_still_commits():
    """Its symbols would exceed any limit."""
    from quiver.qwp.wire.message import MESSAGE_HEADER

    commit = MESSAGE_HEADER.pack(b"QWP1", 1, Flags.DELTA_SYMBOLS, 0, 2) + b"\0\0"
    large = with_all_symbols(commit, ["x" * 100] * 50, (14, 50))
    assert FrameFitter().fit(0, large, 1000).messages == [commit]
    assert isinstance(split_message(memoryview(commit[:-1] + b"\x05"), 1000), Damage)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────


def told(session: Session, answer: Any) -> list[Any]:
    encode = {Ok: encode_ok, Refusal: encode_refusal, DurableAck: encode_durable_ack}[type(answer)]
    return session.receive(encode(answer), 0.0, published_fsn=99)


@pytest.mark.parametrize("seed", range(20))
def test_a_frame_is_confirmed_with_the_last_of_its_messages(seed):
    """Any mixture of frames sent as one message, as several, and not at all."""
    chance = random.Random(seed)
    session = Session(SessionSettings())
    session.connected(acked_fsn=4, durable_ack=False, now=0.0)
    ends: dict[int, int] = {}  # frame → its last message
    sequence = -1
    skipped = set()
    for fsn in range(5, 45):
        assert session.next_fsn == fsn
        messages = chance.choice([0, 1, 1, 1, 2, 5])
        if messages:
            session.sent(0.0, messages)
            sequence += messages
            ends[fsn] = sequence
        else:
            skipped.add(fsn)
            session.skipped()
    confirmed = 4
    for number in range(sequence + 1):
        actions = told(session, Ok(number))
        while confirmed + 1 in skipped or ends.get(confirmed + 1, 999) <= number:
            confirmed += 1
        assert actions in ([], [Confirm(confirmed)])
    assert confirmed == 44


def test_a_refusal_names_the_piece():
    """It confirms the frames before the refused one."""
    session = Session(SessionSettings())
    session.connected(acked_fsn=-1, durable_ack=False, now=0.0)
    for messages in (1, 3, 1):
        session.sent(0.0, messages)
    drop, confirm, again = told(session, Refusal(3, 2, "no"))
    assert isinstance(drop, Drop)
    assert (drop.error.from_fsn, drop.piece, confirm) == (1, 1, Confirm(0))
    assert isinstance(again, Reconnect)


def test_a_dropped_frame_confirms_nothing_before_it():
    """Sent frames are not confirmed because a later one cannot be sent."""
    session = Session(SessionSettings())
    session.connected(acked_fsn=-1, durable_ack=False, now=0.0)
    session.sent(0.0)
    assert session.skipped() == []
    session.sent(0.0)
    session.connected(acked_fsn=-1, durable_ack=False, now=0.0)
    assert session.next_fsn == 0
    session.sent(0.0)
    assert session.next_fsn == 2
    assert told(session, Ok(0)) == [Confirm(1)]
