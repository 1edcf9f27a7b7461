"""`quiver qwp` inspects and drains slots, and `quiver inspect` describes their files."""

import contextlib
import json
import math
import os
import time
from decimal import Decimal
from ipaddress import IPv4Address
from uuid import UUID

import pytest
from qwp_server import QwpServer
from typer.testing import CliRunner

from quiver.cli.main import build_app
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.file_system import NotRegularFileError
from quiver.primitives.disk.real_files import REAL_FILES, RealFile
from quiver.qwp import Char, Geohash, Long256, Sender
from quiver.qwp.format.dead_letters import DeadLetterRecord
from quiver.qwp.rows import RowTable
from quiver.qwp.slots.inspection import inspect_slot
from quiver.qwp.slots.ring import RingSettings
from quiver.qwp.slots.slot import mark_failed, open_slot
from quiver.qwp.wire.message import encode_message


def message(*values, table="t"):
    made = RowTable(table)
    for value in values:
        made.append({"s": f"S{value}"}, {"v": value}, 1000 + value, bytes_max=10_000)
    return encode_message([made.pack()])


def fill(sf_dir, name, messages, *, letter=None, confirmed=None):
    slot = open_slot(
        REAL_FILES,
        str(sf_dir),
        name,
        RingSettings(segment_bytes=4096, bytes_max=1 << 20, append_deadline_s=1.0),
        observer=InMemoryObserver(),
    )
    for one in messages:
        slot.ring.append(one)
    if confirmed is not None:
        slot.ring.acknowledge(confirmed)
        slot.ring.maintain(force=True)
    if letter is not None:
        slot.keep_dead_letter(letter)
    slot.close()


@pytest.fixture
def sf_dir(tmp_path):
    """A slot with three messages, one of them confirmed; a slot marked as failed; and a foreign file."""
    root = tmp_path / "sf"
    root.mkdir()
    (root / "note.txt").write_text("mine")
    letter = DeadLetterRecord(7, time.time_ns(), 3, "no such column", message(9, table="gone"))
    fill(root, "edge-1", [message(1, 2), message(3), message(4, table="u")], confirmed=0, letter=letter)
    fill(root, "edge-2", [message(5)])
    mark_failed(REAL_FILES, str(root / "edge-2"), "no server in time")
    return root


def run(*arguments, code=0, env=None):
    found = CliRunner().invoke(build_app(), [str(one) for one in arguments], env=env)
    assert found.exit_code == code, found.output
    return found.stdout if not code or "--json" in arguments else found.output


def run_json(*arguments, code=0):
    return json.loads(run(*arguments, "--json", code=code))


def test_list_shows_backlog_and_holder(sf_dir):
    """Also the mark, as a table and as JSON."""
    one, two = run_json("qwp", "list", sf_dir)

    assert (one["slot"], one["backlog_frames"], one["confirmed"], one["dead_letters"]) == ("edge-1", 2, 0, 1)
    assert one["last_holder"] == str(os.getpid())
    assert 0 <= one["waits_s"] < 3600
    assert (one["held"], two["held"]) == (False, False)
    assert (two["slot"], two["failed"], two["backlog_frames"]) == ("edge-2", "no server in time", 1)
    text = run("qwp", "list", sf_dir)
    assert "edge-1" in text
    assert "no server in time" in text


def test_list_watch_polls(sf_dir, monkeypatch):
    """A line of JSON for each poll; unchanged segments are read once."""
    from quiver.qwp.slots import inspection

    scanned = []
    scan = inspection.scan_file
    monkeypatch.setattr(inspection, "scan_file", lambda fs, path: (scanned.append(path), scan(fs, path))[1])
    text = run("qwp", "list", sf_dir, "--watch", "--every", "1ms", "--count", 3, "--json")
    looks = [json.loads(line) for line in text.splitlines()]
    assert [[one["slot"] for one in look] for look in looks] == [["edge-1", "edge-2"]] * 3
    assert len(scanned) == 2
    assert run("qwp", "list", sf_dir, "--watch", "--every", "1ms", "--count", 2).count("no server in time") == 2
    assert "--count needs --watch" in run("qwp", "list", sf_dir, "--count", 2, code=2)


def test_a_poll_reads_only_changed_segments(sf_dir):
    """Appended frames and removed segments are detected."""
    known = {}
    assert inspect_slot(REAL_FILES, str(sf_dir), "edge-2", known).backlog == 1
    fill(sf_dir, "edge-2", [message(6), message(7)])
    assert inspect_slot(REAL_FILES, str(sf_dir), "edge-2", known).backlog == 3
    for path in (sf_dir / "edge-2").glob("*.sfa"):
        path.unlink()
    assert inspect_slot(REAL_FILES, str(sf_dir), "edge-2", known).backlog == 0
    assert known == {}


def test_inspect_shows_unconfirmed_rows_by_table(sf_dir):
    assert run_json("qwp", "inspect", sf_dir, "edge-1")["tables"] == {"t": 1, "u": 1}
    assert "unconfirmed rows" in run("qwp", "inspect", sf_dir, "edge-1")
    assert "has no slot edge-9; available: edge-1, edge-2" in run("qwp", "inspect", sf_dir, "edge-9", code=2)


def test_tail_prints_the_newest_rows(sf_dir):
    """One line each; optionally of one table."""
    rows = [json.loads(line) for line in run("qwp", "tail", sf_dir, "edge-1", "-n", 3).splitlines()]

    assert [(one["frame"], one["table"], one["row"]["v"]) for one in rows] == [(0, "t", 2), (1, "t", 3), (2, "u", 4)]
    (row,) = [json.loads(line) for line in run("qwp", "tail", sf_dir, "edge-1", "--table", "u").splitlines()]
    assert row["row"]["s"] == "S4"


def test_tail_prints_human_readable_values(tmp_path):
    """Every line is JSON, with arrays of any content."""
    keys = {"sf_dir": str(tmp_path), "initial_connect_retry": "async", "close_flush_timeout_millis": 0}
    columns = {
        "u": UUID("11111111-2222-3333-4444-555555555555"), "l": Long256(2**200), "i": IPv4Address("10.0.0.1"),
        "c": Char("z"), "b": b"\x00\xff", "g": Geohash(0b11010_00011, 10), "h": Geohash(5, 8), "d": Decimal("1.50"),
        "f": [[1.5, math.nan], [2.0, 3.0]], "n": [1, 2], "x": math.nan,
    }  # fmt: skip
    with Sender.connect(addr="127.0.0.1:1", **keys) as sender:
        sender.row("t", columns=columns, at=1_700_000_000_000_000_001)
        sender.row("t", columns={"x": 1.0})

    first, second = [json.loads(line, parse_constant=pytest.fail)["row"]
                     for line in run("qwp", "tail", tmp_path, "default").splitlines()]  # fmt: skip

    assert first == {
        "u": "11111111-2222-3333-4444-555555555555", "l": hex(2**200), "i": "10.0.0.1", "c": "z", "b": "00ff",
        "g": "u3", "h": "00000101", "d": "1.50", "f": [[1.5, None], [2.0, 3.0]], "n": [1, 2], "x": None,
        "timestamp": "2023-11-14 22:13:20.000000001+00:00",
    }  # fmt: skip
    assert (second["x"], second["c"], second["u"], second["f"]) == (1.0, None, None, None)


def test_dead_letters_have_the_reason(sf_dir):
    """Optionally with their rows."""
    (letter,) = run_json("qwp", "dead-letters", sf_dir, "edge-1")
    assert (letter["frame"], letter["reason"], letter["tables"]) == (7, "no such column", {"gone": 1})
    assert json.loads(run("qwp", "dead-letters", sf_dir, "edge-1", "--rows"))[0]["rows"]["gone"][0]["v"] == 9
    assert "no such column" in run("qwp", "dead-letters", sf_dir, "edge-1")


def test_drain_drains_all_unmarked_slots(sf_dir):
    """Confirmed frames are not sent again."""
    with QwpServer() as server:
        conf = f"ws::addr={server.address};"
        assert run_json("qwp", "drain", sf_dir, "--conf", conf) == [
            {"slot": "edge-1", "outcome": "drained", "reason": ""}
        ]
        assert server.frames == [message(3), message(4, table="u")]
        run("qwp", "drain", sf_dir, "edge-2", env={"QDB_CLIENT_CONF": conf})
        assert server.frames[-1] == message(5)
    assert [one["backlog_frames"] for one in run_json("qwp", "list", sf_dir)] == [0, 0]


def test_a_drain_that_fails_leaves_no_mark(sf_dir):
    """No server answers: the slot is unchanged, and the exit code is 1."""
    with QwpServer() as server:
        address = server.address
    conf = f"ws::addr={address};reconnect_max_duration_millis=50;reconnect_initial_backoff_millis=10;"
    done = CliRunner().invoke(build_app(), ["qwp", "drain", str(sf_dir), "edge-1", "--conf", conf, "--json"])
    (outcome,) = json.loads(done.stdout)
    assert (done.exit_code, outcome["outcome"]) == (1, "failed")
    assert "refused; 2 frames are waiting, retrying" in done.stderr
    assert next((one["failed"], one["backlog_frames"]) for one in run_json("qwp", "list", sf_dir)) == (None, 2)


def test_a_slot_in_use_is_skipped(sf_dir):
    """Its sender drains it."""
    settings = RingSettings(segment_bytes=4096, bytes_max=1 << 20, append_deadline_s=1.0)
    slot = open_slot(REAL_FILES, str(sf_dir), "edge-1", settings, observer=InMemoryObserver())
    try:
        (outcome,) = run_json("qwp", "drain", sf_dir, "edge-1", "--conf", "ws::addr=127.0.0.1:1;", code=1)
        held = {one["slot"]: one["held"] for one in run_json("qwp", "list", sf_dir)}
    finally:
        slot.close()
    assert (outcome["outcome"], str(os.getpid()) in outcome["reason"]) == ("skipped", True)
    assert held == {"edge-1": True, "edge-2": False}


def test_clear_failed_removes_the_mark(sf_dir):
    """For the named slots, or for all."""
    assert run_json("qwp", "clear-failed", sf_dir, "edge-1") == {"cleared": []}
    assert run_json("qwp", "clear-failed", sf_dir) == {"cleared": ["edge-2"]}
    assert not (sf_dir / "edge-2" / ".failed").exists()


def test_an_unreadable_slot_is_reported_and_not_changed(sf_dir):
    """Exit code 1, and the other slots are listed."""
    (segment,) = (sf_dir / "edge-2").glob("*.sfa")
    data = bytearray(segment.read_bytes())
    data[4] = 9
    segment.write_bytes(data)

    one, two = run_json("qwp", "list", sf_dir, code=1)
    assert (one["problem"], "version 9" in two["problem"]) == (None, True)
    assert segment.read_bytes() == data


def test_quiver_inspect_describes_the_files_of_a_slot(sf_dir):
    """Segments, watermark, dead letters; a torn tail is a warning, another version is damage."""
    slot = sf_dir / "edge-1"
    segment = min(slot.glob("*.sfa"))
    found = run_json("inspect", segment)
    assert (found["kind"], found["fields"]["frames"], found["fields"]["first_frame"]) == ("qwp segment", 3, 0)
    assert len(run_json("inspect", segment, "--rows", 2)["tables"]["frames"]) == 2
    assert run_json("inspect", slot / ".ack-watermark")["fields"] == {"confirmed": 0}
    assert run_json("inspect", slot / ".dead-letters")["tables"]["letters"][0]["reason"] == "no such column"

    data = bytearray(segment.read_bytes())
    end = found["fields"]["written_bytes"]
    data[end : end + 6] = b"\x01" * 6
    segment.write_bytes(data)
    assert run_json("inspect", segment)["problems"][0]["level"] == "warning"
    data[4] = 9
    segment.write_bytes(data)
    assert not run_json("inspect", segment, code=1)["intact"]


def test_quiver_inspect_describes_an_empty_slot(tmp_path):
    """The usual case: everything in it is confirmed."""
    open_slot(REAL_FILES, str(tmp_path), "edge", RingSettings(4096, 1 << 20, 1.0), observer=InMemoryObserver()).close()
    assert "an empty slot" in run("inspect", tmp_path / "edge")
    assert run_json("inspect", tmp_path / "edge") == []


def test_damage_in_the_middle_is_reported(sf_dir):
    """With path and offset, by all commands; it does not count as unused space."""
    (path,) = (sf_dir / "edge-1").glob("*.sfa")
    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.write_bytes(data)
    one = run_json("qwp", "list", sf_dir, code=1)[0]
    assert str(path) in one["problem"]
    assert "offset 24" in one["problem"]
    assert str(path) in run("qwp", "inspect", sf_dir, "edge-1", code=1)
    slot = open_slot(REAL_FILES, str(sf_dir), "edge-1", RingSettings(4096, 1 << 20, 1.0), observer=InMemoryObserver())
    slot.close()
    one = run_json("qwp", "list", sf_dir)[0]
    assert one["problem"] is None
    assert len(one["damaged_copies"]) == 1


def outcome(*arguments):
    """Return the output of the command. The only expected error is a file that cannot be opened."""
    found = CliRunner().invoke(build_app(), [str(one) for one in arguments])
    assert found.exception is None or isinstance(found.exception, (SystemExit, NotRegularFileError)), found.exception
    return found.output


SMALL_FILES = [".lock", ".lock.pid", ".ack-watermark", ".failed", ".symbol-dict", "sf-manifest.bin"]


@pytest.mark.parametrize("name", [*SMALL_FILES, ".dead-letters", "sf-0000000000000000.sfa"])
def test_a_pipe_instead_of_a_slot_file_blocks_nothing(sf_dir, name):
    """No command and no sender waits for the other end of the pipe, and the other slots are listed."""
    path = sf_dir / "edge-1" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)

    assert "edge-2" in outcome("qwp", "list", sf_dir)
    for command in ("inspect", "tail", "dead-letters"):
        outcome("qwp", command, sf_dir, "edge-1")
    outcome("inspect", sf_dir / "edge-1")
    outcome("inspect", path)
    conf = f"ws::addr=127.0.0.1:1;sf_dir={sf_dir};sender_id=edge-1;initial_connect_retry=async;"
    with contextlib.suppress(NotRegularFileError):
        Sender.from_conf(conf + "close_flush_timeout_millis=0;").close()


@pytest.mark.parametrize("name", SMALL_FILES)
def test_a_small_file_of_gigabytes_is_not_read(sf_dir, name, monkeypatch):
    """A lock, a mark or a watermark of that size takes no memory, and the other slots are listed."""
    with (sf_dir / "edge-1" / name).open("wb") as file:
        file.truncate(5 << 30)
    ordinary = RealFile.pread

    def pread(file, size, offset):
        assert min(size, file.size() - offset) < 1 << 20
        return ordinary(file, size, offset)

    monkeypatch.setattr(RealFile, "pread", pread)
    assert "edge-2" in outcome("qwp", "list", sf_dir)
    outcome("inspect", sf_dir / "edge-1")


def test_the_former_name_works_and_prints_a_deprecation_line(sf_dir):
    """On stderr only: the output for scripts does not change."""
    today = CliRunner().invoke(build_app(), ["qwp", "list", str(sf_dir), "--json"])
    former = CliRunner().invoke(build_app(), ["sf", "list", str(sf_dir), "--json"])
    assert former.exit_code == 0
    assert [one["slot"] for one in json.loads(former.stdout)] == [one["slot"] for one in json.loads(today.stdout)]
    assert former.stderr.splitlines() == [
        "quiver: `quiver sf` is deprecated and will be removed in the next release; use `quiver qwp`"
    ]
    assert not today.stderr


@pytest.mark.parametrize("command", ["list", "inspect", "drain", "clear-failed", "tail", "dead-letters"])
def test_the_former_name_has_every_command(command):
    # The lines are wrapped differently: the former name is shorter.
    assert (
        run("sf", command, "--help").split() == run("qwp", command, "--help").replace("quiver qwp", "quiver sf").split()
    )


def test_help_lists_only_the_new_name():
    names = [line.split()[0] for line in run("--help").splitlines() if line.startswith("  ") and line.split()]
    assert "qwp" in names
    assert "sf" not in names
