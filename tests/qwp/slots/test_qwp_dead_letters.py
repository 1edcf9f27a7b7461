"""Dead letters: stored in constant time, bounded, readable despite damage, resent, exported, removed."""

from __future__ import annotations

import json
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest
from qwp_server import Close, QwpServer, confirm
from typer.testing import CliRunner

from quiver.cli.main import build_app
from quiver.errors import SettingsError, TransientError
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.qwp import Sender, SenderSettings
from quiver.qwp.format import dead_letters as record_format
from quiver.qwp.format.dead_letters import DeadLetterRecord, encode_dead_letter, find_dead_letter
from quiver.qwp.format.names import dead_letters_name, number_of_dead_letters
from quiver.qwp.rows import RowTable
from quiver.qwp.slots.dead_letter_replay import replay_dead_letters
from quiver.qwp.slots.dead_letters import (
    DeadLetterFiles,
    DeadLettersDamage,
    count_dead_letters,
    dead_letters_of,
    read_dead_letters,
    remove_dead_letters,
)
from quiver.qwp.wire.message import Flags, encode_message
from quiver.qwp.wire.responses import Refusal, encode_refusal
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

SLOT = "/sf/edge"
PATH = f"{SLOT}/.dead-letters"
QUICK = "reconnect_initial_backoff_millis=1;reconnect_max_backoff_millis=5;reconnect_max_duration_millis=200;"


def letter(number: int, *, size: int = 100, reason: str = "no") -> DeadLetterRecord:
    return DeadLetterRecord(number, 1_700_000_000_000_000_000 + number, 3, reason, b"QWP1" + b"x" * size)


def disk() -> CrashFileSystem:
    fs = CrashFileSystem()
    fs.make_dirs(SLOT)
    return fs


def files_on(fs: Any, bytes_max: int = 1 << 20, observer: Any = None) -> DeadLetterFiles:
    return DeadLetterFiles(fs, SLOT, bytes_max, clock=ManualClock(), observer=observer or InMemoryObserver())


def numbers(fs: Any, directory: str = SLOT) -> list[int]:
    return [one.fsn for one in read_dead_letters(fs, directory)]


def names(fs: Any) -> list[str]:
    return [name for name in fs.list_dir(SLOT) if number_of_dead_letters(name) is not None]


# ── storing ──────────────────────────────────────────────────────────────────────────────────────────


class Counted:
    """A file system that counts the bytes read."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs
        self.read_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def open_write(self, path: str) -> Any:
        return CountedFile(self, self._fs.open_write(path))


class CountedFile:
    def __init__(self, counted: Counted, file: Any) -> None:
        self._counted, self._file = counted, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pread(self, size: int, offset: int) -> bytes:
        data: bytes = self._file.pread(size, offset)
        self._counted.read_bytes += len(data)
        return data


def test_an_append_reads_no_file():
    """However many letters exist; a new process reads one file of bounded size."""
    counted = Counted(disk())
    files = files_on(counted, 80_000)
    for number in range(200):
        assert files.keep(letter(number)) == 0
    assert counted.read_bytes == 0
    files.close()
    again = files_on(counted, 80_000)
    again.keep(letter(200))
    assert counted.read_bytes <= 10_000
    assert numbers(counted) == list(range(201))
    again.close()


def test_the_oldest_dead_letters_are_removed_for_the_newest_and_counted():
    """The total size stays below the limit."""
    fs, observer = disk(), InMemoryObserver()
    files = files_on(fs, 4000, observer)
    dropped = sum(files.keep(letter(number)) for number in range(100))
    kept = numbers(fs)
    assert kept == list(range(100 - len(kept), 100))
    assert len(kept) == count_dead_letters(fs, SLOT) == 100 - dropped
    assert dropped == observer.total("quiver.qwp.dead_letters_dropped_total")
    assert 3000 < sum(fs.stat(f"{SLOT}/{name}").size_bytes for name in names(fs)) <= 4000
    assert files.keep(letter(100, size=5000)) == 1
    assert numbers(fs) == kept
    files.close()


def test_a_large_unbounded_file_is_not_removed_for_one_dead_letter():
    """Only when newer letters use half of the limit."""
    fs = disk()
    old = files_on(fs, 1 << 20)
    for number in range(100):
        old.keep(letter(number))
    old.close()
    files = files_on(fs, 8000)
    assert files.keep(letter(100)) == 0
    assert numbers(fs) == list(range(101))
    assert sum(files.keep(letter(number)) for number in range(101, 200)) >= 100
    assert numbers(fs)[-1] == 199
    assert numbers(fs)[0] > 99
    files.close()


def test_stored_dead_letters_survive_a_crash_at_every_step():
    """For each call that returned; letters are also stored after the crash."""
    fs, kept, steps = disk(), [], 0

    def crash(_op: str, _path: str) -> None:
        nonlocal steps
        steps += 1
        there = set(numbers(fs)) & set(kept)
        for seed in range(3):
            after = fs.clone_after_crash(seed)
            later = files_on(after, 2000)
            found = numbers(after)
            assert there <= set(found)
            assert found == sorted(found)
            later.keep(letter(99))
            assert numbers(after)[-1] == 99
            later.close()

    files = files_on(fs, 2000)
    fs.on_step = crash
    for number in range(16):
        files.keep(letter(number))
        kept.append(number)
    fs.on_step = None
    files.close()
    assert steps > 30
    assert numbers(fs)[0] > 0


def test_a_disk_error_loses_no_stored_dead_letter():
    """For each write or sync; a failed letter does not count as stored."""
    for operation in ("pwrite", "sync", "sync_dir", "rename", "create"):
        for nth in range(1, 12):
            fs = disk()
            files = files_on(FaultFileSystem(fs, {operation: nth}))
            kept = []
            for number in range(12):
                with suppress(OSError):
                    files.keep(letter(number))
                    kept.append(number)
            files.close()
            assert len(kept) >= 11
            assert set(kept) <= set(numbers(fs.clone_after_crash(0)))


def test_a_torn_record_and_damage_hide_no_other_dead_letter():
    """They are not overwritten: the next letter is stored in another file."""
    fs = disk()
    files = files_on(fs)
    for number in range(4):
        files.keep(letter(number))
    files.close()
    data = bytearray(fs.read_all(PATH, size_max=1 << 20))
    size = len(encode_dead_letter(letter(0)))
    for at in (8 + size + 50, 8 + size + 4):  # in the message, and in its length
        flipped = bytearray(data)
        flipped[at] ^= 0x40
        file = fs.create_or_truncate(PATH)
        file.pwrite(bytes(flipped) + b"torn", 0)
        file.close()
        found = list(dead_letters_of(fs, SLOT))
        assert [one.letter.fsn for one in found if not isinstance(one, DeadLettersDamage)] == [0, 2, 3]
        (damage,) = [one for one in found if isinstance(one, DeadLettersDamage)]
        assert (damage.path, damage.offset) == (PATH, 8 + size)
        assert count_dead_letters(fs, SLOT) == 3
    files = files_on(fs)
    files.keep(letter(4))
    files.close()
    assert numbers(fs) == [0, 2, 3, 4]
    assert fs.read_all(PATH, size_max=1 << 20) == bytes(flipped) + b"torn"


def test_a_large_damaged_record_is_skipped_quickly(monkeypatch):
    """Not byte by byte: that would take minutes."""
    asked = []
    real = record_format.end_of_dead_letter
    monkeypatch.setattr(
        record_format, "end_of_dead_letter", lambda head, offset: asked.append(offset) or real(head, offset)
    )
    first, large, last = (
        encode_dead_letter(letter(number, size=size)) for number, size in ((0, 9), (1, 99_999), (2, 9))
    )
    damaged = large[:4] + b"\xff\xff\xff\xff" + large[8:]
    start = len(first)
    assert find_dead_letter(memoryview(first + damaged + last), start) == start + len(large)
    assert find_dead_letter(memoryview(first + large[:-1]), start) is None
    assert len(asked) < 100


@pytest.mark.parametrize("searched_at_once", [3, 50, 1 << 20])
def test_a_record_is_found_at_any_offset(monkeypatch, searched_at_once):
    """After any distance from the damage, among zeros, lengths and other bytes."""
    monkeypatch.setattr(record_format, "_SEARCHED_AT_ONCE", searched_at_once)
    record = encode_dead_letter(letter(7, size=20))
    for filler in (b"\0", b"\x14", b"\xff", record[:28], record[4:]):
        for distance in range(1, 70):
            before = (filler * 70)[:distance]
            if filler in {b"\0", b"\x14", b"\xff"}:
                assert find_dead_letter(memoryview(before + record + b"end"), 0) == distance
            else:
                assert find_dead_letter(memoryview(b"\xff" * 28 + before + record), 0) == 28 + distance
    assert find_dead_letter(memoryview(b"\xff" + record[:-1]), 0) is None


def test_files_stay_small_with_a_large_limit(monkeypatch):
    """There are more of them, and the oldest is still removed first."""
    monkeypatch.setattr("quiver.qwp.slots.dead_letters._SHARE_BYTES_MAX", 500)
    fs = disk()
    files = files_on(fs, 1 << 40)
    for number in range(40):
        assert files.keep(letter(number)) == 0
    files.close()
    assert max(fs.stat(f"{SLOT}/{name}").size_bytes for name in names(fs)) <= 700
    assert numbers(fs) == list(range(40))


def test_a_foreign_file_is_damage():
    """It is not changed."""
    fs = disk()
    file = fs.create(PATH)
    file.pwrite(b"something else", 0)
    file.close()
    files = files_on(fs)
    files.keep(letter(1))
    files.close()
    damage, kept = dead_letters_of(fs, SLOT)
    assert isinstance(damage, DeadLettersDamage)
    assert kept.letter.fsn == 1
    assert fs.read_all(PATH, size_max=100) == b"something else"


def test_dead_letter_file_names_round_trip():
    assert [dead_letters_name(number) for number in (0, 1, 12)] == [
        ".dead-letters", ".dead-letters-1", ".dead-letters-12",
    ]  # fmt: skip
    for name in (".dead-letters", ".dead-letters-7"):
        assert dead_letters_name(number_of_dead_letters(name)) == name
    for name in (".dead-letters-", ".dead-letters-0", ".dead-letters-01", ".dead-letters.lock", ".dead-letters.tmp"):
        assert number_of_dead_letters(name) is None


# ── removing ─────────────────────────────────────────────────────────────────────────────────────────


def ids(fs: Any) -> dict[int, str]:
    return {one.letter.fsn: one.id for one in dead_letters_of(fs, SLOT)}


def test_dead_letters_are_removed_while_a_sender_runs():
    """It continues with the changed file."""
    fs = disk()
    files = files_on(fs)
    for number in range(6):
        files.keep(letter(number))
    assert remove_dead_letters(fs, SLOT, {ids(fs)[2], ids(fs)[4], "9.00000000"}) == 2
    files.keep(letter(6))
    assert numbers(fs) == [0, 1, 3, 5, 6]
    assert remove_dead_letters(fs, SLOT) == 5
    assert names(fs) == []
    files.keep(letter(7))
    assert numbers(fs) == [7]
    files.close()


def test_removal_from_a_file_is_all_or_nothing():
    """A crash leaves it either unchanged or without the letters."""
    fs = disk()
    files = files_on(fs)
    for number in range(4):
        files.keep(letter(number))
    files.close()
    found = []

    def crash(_op: str, _path: str) -> None:
        found.extend(numbers(fs.clone_after_crash(seed)) for seed in range(3))

    fs.on_step = crash
    remove_dead_letters(fs, SLOT, {ids(fs)[1], ids(fs)[2]})
    assert found
    assert all(one in ([0, 1, 2, 3], [0, 3]) for one in found)
    assert numbers(fs.clone_after_crash(0)) == [0, 3]


def test_the_wait_for_the_lock_is_limited():
    """A sender uses another file; a command reports it."""
    fs = disk()
    files = files_on(fs)
    files.keep(letter(0))
    lock = fs.try_lock(f"{PATH}.lock", note="another process")
    files.keep(letter(1))
    with pytest.raises(TransientError):
        remove_dead_letters(fs, SLOT, clock=ManualClock())
    lock.release()
    files.keep(letter(2))
    assert numbers(fs) == [0, 1, 2]
    assert names(fs) == [".dead-letters", ".dead-letters-1"]
    files.close()


# ── dead letters of a sender ─────────────────────────────────────────────────────────────────────────


def message(*values: int, table: str = "t", text: str = "", deferred: bool = False) -> bytes:
    made = RowTable(table)
    for value in values:
        made.append({"s": f"S{value}"}, {"v": value, "x": text or f"{value}"}, value, bytes_max=100_000)
    data = bytearray(encode_message([made.pack()]))
    data[5] |= Flags.DEFER_COMMIT if deferred else 0
    return bytes(data)


def values(server: QwpServer) -> list[int]:
    return [
        row["v"] for life in server.lives for frame in life.frames
        for table in life.decode(frame).tables for row in table.to_arrow().to_pylist()
    ]  # fmt: skip


def refuse_odd(life: Any, sequence: int, data: bytes) -> Any:
    rows = [row["v"] for table in life.decode(data).tables for row in table.to_arrow().to_pylist()]
    if any(value % 2 for value in rows):
        return encode_refusal(Refusal(3, sequence, "odd"))
    return confirm(life, sequence, data)


def test_a_sender_counts_dropped_frames_and_dropped_dead_letters(tmp_path):
    """Within the configured limit; in memory no letters are stored."""
    for more in (f"sf_dir={tmp_path};quiver_dead_letters_max_bytes=400;", ""):
        observer = InMemoryObserver()
        with QwpServer(refuse_odd) as server:
            conf = f"ws::addr={server.address};auto_flush_rows=1;{more}{QUICK}"
            with Sender.from_conf(conf, on_error=lambda _: None, observer=observer) as sender:
                for value in range(20):
                    sender.row("t", columns={"v": value}, at=value)
                assert sender.wait_until_confirmed(19, 20)
                assert sender.total_frames_dropped == 10
                dropped = sender.total_dead_letters_dropped
        assert dropped == 10 - (len(numbers(REAL_FILES, f"{tmp_path}/default")) if more else 0)
        assert dropped > 0
        assert observer.total("quiver.qwp.frames_dropped_total") == 10
    kept = numbers(REAL_FILES, f"{tmp_path}/default")
    assert kept == list(range(21 - 2 * len(kept), 21, 2))


def test_the_limit_setting_has_a_default():
    """It is refused if dead letters are off."""
    assert SenderSettings.from_conf("ws::addr=h:1;").dead_letters_bytes_max == 256 << 20
    for keys in ("quiver_dead_letters_max_bytes=0;", "quiver_dead_letters=off;quiver_dead_letters_max_bytes=1M;"):
        with pytest.raises(SettingsError, match="quiver_dead_letters_max_bytes"):
            SenderSettings.from_conf(f"ws::addr=h:1;{keys}")


# ── replay ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def sf_dir(tmp_path):
    """A slot with six letters, of two tables, one of them part of a group."""
    directory = tmp_path / "edge"
    directory.mkdir()
    (directory / ".lock").touch()
    files = DeadLetterFiles(REAL_FILES, str(directory), 1 << 20, clock=ManualClock(), observer=InMemoryObserver())
    for number in range(6):
        data = message(number, number + 10, table="tu"[number % 2], deferred=number == 4)
        files.keep(DeadLetterRecord(number, 1000 + number, 3, "no such column", data))
    files.close()
    return tmp_path


def stored(sf_dir: Any) -> list[Any]:
    return list(dead_letters_of(REAL_FILES, f"{sf_dir}/edge"))


def settings(server: QwpServer) -> SenderSettings:
    return SenderSettings.from_conf(f"ws::addr={server.address};on_schema_error=halt;{QUICK}")


def test_accepted_dead_letters_are_removed(sf_dir):
    """In order; one of a group commits individually."""
    with QwpServer() as server:
        done = replay_dead_letters(settings(server), f"{sf_dir}/edge", stored(sf_dir))
        assert (done.taken, done.refused, done.left, done.halted) == (6, [], 0, None)
        assert values(server) == [value for number in range(6) for value in (number, number + 10)]
        assert not any(frame[5] & Flags.DEFER_COMMIT for frame in server.frames)
    assert stored(sf_dir) == []


def test_dead_letters_that_are_refused_again_stay_with_the_new_reason(sf_dir):
    """Regardless of the policies; the others are removed."""
    with QwpServer(refuse_odd) as server:
        done = replay_dead_letters(settings(server), f"{sf_dir}/edge", stored(sf_dir))
    assert (done.taken, done.left) == (3, 0)
    assert [(one.letter.fsn, one.letter.reason) for one in stored(sf_dir)] == [(1, "odd"), (3, "odd"), (5, "odd")]


@pytest.mark.parametrize("bytes_max", [1, 2000])
def test_a_dead_letter_that_is_refused_again_displaces_no_other_dead_letter(sf_dir, bytes_max):
    """Regardless of the limit in the connect string: the slot's sender may have a larger one."""
    with closing(
        DeadLetterFiles(REAL_FILES, f"{sf_dir}/edge", 8000, clock=ManualClock(), observer=InMemoryObserver())
    ) as files:
        for number in range(6, 30):
            files.keep(DeadLetterRecord(number, 1000 + number, 3, "no such column", message(number)))
    with QwpServer(refuse_odd) as server:
        bounded = replace(settings(server), dead_letters_bytes_max=bytes_max)
        done = replay_dead_letters(bounded, f"{sf_dir}/edge", stored(sf_dir)[9:10])
    assert (done.taken, len(done.refused), done.left) == (0, 1, 0)
    assert sorted((one.letter.fsn, one.letter.reason) for one in stored(sf_dir)) == [
        (number, "odd" if number == 9 else "no such column") for number in range(30)
    ]  # fmt: skip


def test_large_dead_letters_are_sent_in_pieces_or_stay(sf_dir):
    """Only the row above the limit stays."""
    files = DeadLetterFiles(REAL_FILES, f"{sf_dir}/edge", 1 << 20, clock=ManualClock(), observer=InMemoryObserver())
    rows = RowTable("t")
    for value in range(20, 26):
        rows.append({}, {"v": value, "x": "x" * (600 if value == 23 else 90)}, value, bytes_max=10_000)
    files.keep(DeadLetterRecord(9, 9, 3, "no", bytes(encode_message([rows.pack()]))))
    files.close()
    with QwpServer(headers={"X-QWP-Max-Batch-Size": "300"}) as server:
        done = replay_dead_letters(settings(server), f"{sf_dir}/edge", stored(sf_dir))
        assert values(server)[-5:] == [20, 21, 22, 24, 25]
    assert (done.taken, len(done.refused)) == (6, 1)
    (left,) = stored(sf_dir)
    assert left.letter.fsn == 9
    assert "the row has" in left.letter.reason


def test_dead_letters_are_kept_when_no_server_answers_or_the_connection_ends(sf_dir):
    """Letters that were confirmed before are removed."""
    nowhere = SenderSettings.from_conf(f"ws::addr=127.0.0.1:1;{QUICK}")
    done = replay_dead_letters(nowhere, f"{sf_dir}/edge", stored(sf_dir))
    assert (done.taken, done.left) == (0, 6)
    assert "127.0.0.1:1" in str(done.halted)
    with QwpServer(lambda *one: Close(1008, "policy") if one[1] == 2 else confirm(*one)) as server:
        done = replay_dead_letters(settings(server), f"{sf_dir}/edge", stored(sf_dir))
    assert (done.taken, done.left) == (2, 4)
    assert [one.letter.fsn for one in stored(sf_dir)] == [2, 3, 4, 5]


def test_dead_letters_are_resent_in_batches(sf_dir, monkeypatch):
    """This bounds the memory."""
    monkeypatch.setattr("quiver.qwp.slots.dead_letter_replay._BATCH_BYTES", 150)
    with QwpServer() as server:
        assert replay_dead_letters(settings(server), f"{sf_dir}/edge", stored(sf_dir)).taken == 6
        assert len(server.lives) > 1
    assert stored(sf_dir) == []


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────


def run(sf_dir: Any, *arguments: Any, code: int = 0) -> Any:
    command = ["qwp", "dead-letters", sf_dir, "edge", *arguments]
    found = CliRunner().invoke(build_app(), [str(one) for one in command])
    assert found.exit_code == code, found.output
    return json.loads(found.stdout) if "--json" in arguments else found.output


def test_list_and_show_print_dead_letters(sf_dir):
    """By letter, frame and table."""
    listed = run(sf_dir, "list", "--json")
    assert [(one["frame"], one["tables"]) for one in listed] == [(n, {"tu"[n % 2]: 2}) for n in range(6)]
    assert listed == run(sf_dir, "--json")
    assert listed[0]["letter"] in run(sf_dir)
    assert [one["frame"] for one in run(sf_dir, "list", "--table", "u", "--json")] == [1, 3, 5]
    (shown,) = run(sf_dir, "show", listed[3]["letter"], "--json")
    assert [row["v"] for row in shown["rows"]["u"]] == [3, 13]
    assert [one["frame"] for one in run(sf_dir, "show", 2, 4, "--json")] == [2, 4]
    assert "has no dead letter 17" in run(sf_dir, "show", 17, code=2)


def test_replay_reports_the_results(sf_dir):
    """It exits with 1 if letters are left."""
    with QwpServer(refuse_odd) as server:
        conf = f"ws::addr={server.address};{QUICK}"
        assert "1 dead letter accepted, 0 refused again" in run(sf_dir, "replay", 0, "--conf", conf)
        done = run(sf_dir, "replay", "--conf", conf, "--json", code=1)
        assert (done["taken"], [one["frame"] for one in done["refused"]], done["left"]) == (2, [1, 3, 5], 0)
    assert "refused: odd" not in run(sf_dir, "replay", "--conf", f"ws::addr=127.0.0.1:1;{QUICK}", code=1)
    assert len(stored(sf_dir)) == 3


def test_resend_is_the_deprecated_name_of_replay(sf_dir):
    with QwpServer() as server:
        done = run(sf_dir, "resend", "--conf", f"ws::addr={server.address};{QUICK}")
    assert "deprecated: resend is now replay" in done
    assert stored(sf_dir) == []


def test_export_writes_parquet(sf_dir):
    """One file per table, with the reason for each row; rows with other types are in a separate file."""
    files = DeadLetterFiles(REAL_FILES, f"{sf_dir}/edge", 1 << 20, clock=ManualClock(), observer=InMemoryObserver())
    other = RowTable("t")
    other.append({}, {"v": "text", "new": 1.5}, 7, bytes_max=1000)
    files.keep(DeadLetterRecord(9, 9, 3, "no such type", bytes(encode_message([other.pack()]))))
    files.close()
    out = sf_dir / "not" / "there"
    written = run(sf_dir, "export", "--to", out, "--json")
    assert {one["path"].rpartition("/")[2]: one["rows"] for one in written} == {
        "t.parquet": 6, "t-2.parquet": 1, "u.parquet": 6,
    }  # fmt: skip
    table = pq.read_table(out / "t.parquet")
    assert table["v"].to_pylist() == [0, 10, 2, 12, 4, 14]
    assert table["s"].to_pylist()[0] == "S0"
    assert set(table["dead_letter_reason"].to_pylist()) == {"no such column"}
    assert table["dead_letter"].to_pylist()[:2] == [stored(sf_dir)[0].id] * 2
    assert "use --force to overwrite it" in run(sf_dir, "export", "--to", out, code=2)
    run(sf_dir, "export", "--to", out, "--force")
    run(sf_dir, "export", "1", "--table", "u", "--to", out / "one.parquet")
    assert pq.read_table(out / "one.parquet")["v"].to_pylist() == [1, 11]
    assert "add --table NAME" in run(sf_dir, "export", "--to", out / "x.parquet", code=2)
    assert "--to DIRECTORY" in run(sf_dir, "export", code=2)
    assert "Not a directory" in run(sf_dir, "export", "--to", out / "t.parquet" / "x", code=2)
    assert len(stored(sf_dir)) == 7


def test_clear_removes_the_named_dead_letters_or_all(sf_dir):
    """Damage is removed only with all of them."""
    assert run(sf_dir, "clear", 0, 1, "--json") == {"removed": 2}
    assert run(sf_dir, "clear", "--table", "u", "--json") == {"removed": 2}
    path = sf_dir / "edge" / ".dead-letters"
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    assert "damaged at offset 8" in run(sf_dir, code=1)
    assert run(sf_dir, "clear", "--json") == {"removed": 1}
    assert not path.exists()
    assert run(sf_dir, "--json") == []
