"""`quiver aof`: dump, inspect, verify, tail, next to a live writer, and with damage of any kind."""

from __future__ import annotations

import base64
import json
import random

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import quiver
from quiver.aof import AofConfig, AofManager, TierConfig
from quiver.aof.format.describe import AOF_FILES
from quiver.aof.format.sink_batch import COMMITS, BatchStep, StagedPart, encode_begun
from quiver.cli.main import build_app
from quiver.clock import SYSTEM_CLOCK
from quiver.objects.directory import DirectoryObjects
from quiver.primitives.batch_notes import BatchCommit, begun_name, commit_name, part_directory
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.testing.faultobjects import FaultObjects


@pytest.fixture
def root(tmp_path):
    with AofManager.open(str(tmp_path / "aof"), background=False) as manager:
        log = manager.log("orders")
        for number in range(3):
            log.append_records([b"%d.%d" % (number, part) for part in range(3)], ext_id=number)
            if number < 2:
                log.force_rollover(timeout=5)
        manager.log("quiet")
    return tmp_path / "aof"


def run(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(build_app(), ["aof", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


def test_dump_prints_tables_or_json(root):
    """Tables for human readers, then one line of JSON."""
    text = run("dump", "--root", root)
    result = json.loads(text.splitlines()[-1])
    (orders, quiet) = result["logs"]
    assert (orders["name"], orders["tier0"]["segments"], orders["tier0"]["sealed"]) == ("orders", 3, 2)
    assert orders["queues"] == {"seal": 0, "upload": 0, "delete": 0, "sink": 0}
    assert orders["tier1"]["residency"]["resident_in_tier0"] == 2
    assert [one["state"] for one in orders["segments"]] == ["sealed", "sealed", "open"]
    assert quiet["segments"] == []
    assert "tier 0" in text
    assert json.loads(run("dump", "--root", root / "orders", "--json-only"))["logs"][0]["intact"]


def test_verify_reads_every_record(root):
    """Nine records; a flipped bit in a sealed one is damage, and after the end of the tail it is a torn tail."""
    assert "intact, 9 records" in run("verify", root)
    paths = sorted((root / "orders" / "segments").glob("*.seg"))
    data = bytearray(paths[-1].read_bytes())
    data[64 + 3 * 27] = 1
    paths[-1].write_bytes(data)
    (orders, _) = json.loads(run("verify", root, "--json"))
    assert [one["kind"] for one in orders["findings"]] == ["torn tail"]
    data = bytearray(paths[0].read_bytes())
    data[64 + 25] ^= 1
    paths[0].write_bytes(data)
    assert "DAMAGED" in run("verify", root, code=1)
    found = json.loads(run("verify", root, "--log", "orders", "--json", code=1))[0]["findings"]
    assert (found[0]["path"], found[0]["offset"], found[0]["kind"]) == (str(paths[0]), 64, "damaged")


def test_a_missing_segment_is_reported(root):
    """The record count in the next segment proves it."""
    sorted((root / "orders" / "segments").glob("*.seg"))[1].unlink()
    found = json.loads(run("verify", root, "--log", "orders", "--json", code=1))[0]["findings"]
    assert "records 3 to 5 of the log are in no segment" in found[0]["reason"]


def test_inspect_describes_each_kind_of_file(root):
    """And a directory."""
    reported = {}
    for path in sorted((root / "orders").rglob("*")):
        if path.is_file() and path.suffix in {".seg", ".sealed", ".json"}:
            one = json.loads(run("inspect", path, "--json"))
            reported[one["kind"]] = one
            assert one["intact"]
    assert set(reported) == {"aof segment", "aof pointer", "aof durability"}
    assert reported["aof segment"]["fields"]["records"] == 3
    assert len(reported["aof segment"]["tables"]["records"]) == 3
    assert "segments of orders" in run("inspect", root)
    path = next((root / "orders" / "segments").glob("*.seg"))
    assert "intact" in run("inspect", path)


def test_tail_prints_records_from_any_id(root):
    """Only durable records if requested."""
    rows = [json.loads(line) for line in run("tail", root, "--log", "orders", "--json").splitlines()]
    assert [row["payload"] for row in rows] == [f"{number}.{part}" for number in range(3) for part in range(3)]
    assert [row["ext_id"] for row in rows] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert run("tail", root, "--log", "orders", "--from", rows[7]["record_id"], "-n", 1).endswith("\t2.1\n")
    assert len(run("tail", root, "--log", "orders", "--durable").splitlines()) == 9
    assert "select one" in run("tail", root, code=2)
    assert "record id" in run("tail", root, "--log", "orders", "--from", "latest", code=2)
    assert "64 bits" in run("tail", root, "--log", "orders", "--from", 1 << 64, code=2)
    assert "no log 'x'" in run("tail", root, "--log", "x", code=2)


def test_tail_refuses_an_id_without_a_record(root):
    """It does not print the records of the next segment instead."""
    first = json.loads(run("tail", root, "--log", "orders", "-n", 1, "--json"))["record_id"]
    assert "none begins at" in run("tail", root, "--log", "orders", "--from", first + 1, code=2)


def test_tail_prints_lost_ranges(root):
    """Once with the range, on stderr; the other records are printed, and the exit code is 1."""
    paths = sorted((root / "orders" / "segments").glob("*_*_*.seg"))
    first = json.loads(run("tail", root, "--log", "orders", "-n", 1, "--json"))["record_id"]
    paths[1].unlink()
    with paths[2].open("r+b") as file:
        file.seek(64)
        file.write(bytes(4))
    done = CliRunner().invoke(build_app(), ["aof", "tail", str(root), "--log", "orders"])
    assert done.exit_code == 1
    assert [line.rpartition("\t")[2] for line in done.stdout.splitlines()] == ["0.0", "0.1", "0.2", "2.1", "2.2"]
    removed, damaged = done.stderr.splitlines()
    assert "3 records from" in removed
    assert f"records from {2 << 32 | 64} on are lost" in damaged
    paths[0].unlink()
    assert "is missing; the log continues with record" in run("tail", root, "--log", "orders", "--from", first, code=2)


def test_payloads_are_escaped(tmp_path):
    """Each record is one line, whichever bytes it has."""
    with AofManager.open(str(tmp_path), background=False) as manager:
        manager.log("orders").append_records(["é\x1b[2J\na\tb\0\x9b".encode(), b"\xff"])
    lines = run("tail", tmp_path, "--stream", "orders").splitlines()
    assert [one.split("\t", 3)[3] for one in lines] == ["é\\x1b[2J\\na\\tb\\x00\\x9b", "\\xff"]
    rows = [json.loads(line) for line in run("tail", tmp_path, "--log", "orders", "--json").splitlines()]
    assert rows[0]["payload"] == "é\x1b[2J\na\tb\0\x9b"
    assert "payload_base64" not in rows[0]
    assert base64.b64decode(rows[1]["payload_base64"]) == b"\xff"


def test_evict_and_hydrate_move_a_segment(root):
    """Its file is removed and restored; records stay the same, and dump shows the residency."""
    before = run("tail", root, "--log", "orders")
    result = json.loads(run("evict", root, 0, "--log", "orders", "--json"))
    assert result == [{"segment": 0, "residency": "staged_for_tier0"}]
    assert len(list((root / "orders" / "segments").glob("*.seg"))) == 2
    assert run("tail", root, "--log", "orders") == before
    assert "intact, 9 records" in run("verify", root)
    (orders, _) = json.loads(run("dump", "--root", root, "--json"))["logs"]
    assert [one["state"] for one in orders["segments"]] == ["warm", "sealed", "open"]
    assert (orders["tier0"]["segments"], orders["tier1"]["segments"]) == (2, 1)
    assert orders["tier1"]["residency"]["staged_for_tier0"] == 1
    assert "tier 1" in run("dump", "--root", root)
    chunk = next((root / "orders" / "manifest").rglob("*.mlog"))
    packed = next((root / "orders" / "warm").glob("*.zst"))
    assert json.loads(run("inspect", chunk, "--json"))["fields"]["records"] >= 3
    assert json.loads(run("inspect", packed, "--json"))["fields"]["frames"] == 2
    assert "newest" in run("evict", root, 1, "--log", "orders", code=2)
    assert "no sealed segment 7" in run("hydrate", root, 7, "--log", "orders", code=2)
    assert "select one" in run("hydrate", root, 0, code=2)
    assert "resident_in_tier0" in run("hydrate", root, 0, "--log", "orders")
    run("evict", root, 0, "--log", "orders")
    data = bytearray(packed.read_bytes())
    data[40] ^= 1
    packed.write_bytes(data)
    assert "DAMAGED" in run("verify", root, code=1)
    packed.unlink()
    assert "the only copy of a segment is missing" in run("verify", root, "--json", code=1)


def test_pending_uploads_of_a_live_writer_are_shown(tmp_path):
    """Segments that are packed but not uploaded."""
    objects = FaultObjects(DirectoryObjects(REAL_FILES, str(tmp_path / "cold"), clock=SYSTEM_CLOCK))
    config = AofConfig(compression="zstd", tiers=TierConfig(objects="named/by/hand"), preallocate_segments=1)
    root = tmp_path / "aof"
    with AofManager.open(str(root), config, background=False, objects=lambda: objects) as manager:
        log = manager.log("orders")
        for number in range(3):
            if number == 1:
                objects.fail_on("put_parts", 1, times=100)
            log.append_record_with_timeout(b"%d" % number, 5)
            log.force_rollover(timeout=5)
            manager.maintain()
        (result,) = json.loads(run("dump", root, "--json"))["logs"]
        assert result["queues"]["upload"] == log.tiers.snapshot().upload_queue_depth == 2
        assert "waiting to be uploaded" in " ".join(run("dump", root).split())


def test_committed_batches_of_sinks_are_shown(root):
    """Pending batches are counted; their notes are described like any file."""
    commit = COMMITS.encode(BatchCommit("q", 0, (StagedPart(f"{part_directory(0, 0, 'a')}/00000.part", 2, 50),)))
    path = root / "orders" / "incoming" / "q" / commit_name(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(commit)
    assert json.loads(run("dump", "--root", root, "--log", "orders", "--json"))["logs"][0]["queues"]["sink"] == 1
    result = json.loads(run("inspect", path, "--json"))
    assert (result["kind"], result["fields"]["parts"], result["tables"]["parts"][0]["records"]) == (
        "aof sink commit",
        1,
        2,
    )
    begun = path.with_name(begun_name(0))
    begun.write_bytes(encode_begun(BatchStep(0, 1, 2, 3)))
    assert json.loads(run("inspect", begun, "--json"))["fields"] == {
        "part": 0, "index": 1, "count": 2, "log_records": 3,
    }  # fmt: skip
    begun.write_bytes(commit)
    run("inspect", begun, code=1)


def test_commands_work_while_a_writer_has_the_log_open(tmp_path):
    """Written records are visible, synced ones are distinguished, and nothing is changed."""
    with AofManager.open(str(tmp_path), background=False) as manager:
        log = manager.log("orders")
        log.append_record(b"durable")
        log.flush()
        manager.maintain()
        log.append_record(b"written")
        assert len(run("tail", tmp_path, "--log", "orders").splitlines()) == 2
        assert run("tail", tmp_path, "--log", "orders", "--durable").endswith("durable\n")
        assert "intact, 2 records" in run("verify", tmp_path)


@pytest.mark.parametrize("command", ["dump", "verify", "inspect", "tail"])
def test_paths_without_a_log_are_refused(tmp_path, command):
    """With a sentence and exit code 2, without a traceback."""
    words = ["--root", tmp_path] if command == "dump" else [tmp_path]
    assert "holds no append-only log" in run(command, *words, code=2)


def test_the_directory_of_a_store_is_refused(tmp_path):
    """It has its own segments, in a directory of the same name, and none of its files belongs to an AOF2 log."""
    with quiver.open(tmp_path / "buf") as store:
        store.ingest(quiver.Bundle({30: pa.record_batch({"x": [1]})}), durable=True)
    for words in (["verify"], ["dump"], ["tail"]):
        assert "holds no append-only log" in run(*words, tmp_path / "buf", code=2)
    assert "not a file of an append-only log" in run("inspect", tmp_path / "buf" / "quiver.id", code=2)


def test_dump_takes_the_directory_as_argument_or_option(root):
    """As an argument like the other commands, and as an option as in the document; not both."""
    assert run("dump", root, "--json") == run("dump", "--root", root, "--json")
    assert "give the logs once" in run("dump", root, "--root", root, code=2)
    assert "give the logs once" in run("dump", code=2)


def test_damage_never_ends_in_a_traceback(root):
    """Any byte of any file is flipped, any file truncated: the command prints a result, with exit code 0 or 1."""
    random_bytes = random.Random(11)
    paths = [path for path in sorted((root / "orders").rglob("*")) if path.is_file()]
    for path in paths:
        complete = path.read_bytes()
        interesting = [*range(min(len(complete), 110)), *range(max(0, len(complete) - 96), len(complete))]
        for _ in range(2):
            data = bytearray(complete)
            if random_bytes.random() < 0.4:
                del data[random_bytes.randrange(len(data) + 1) :]
            elif data:
                data[random_bytes.choice(interesting)] ^= 1 << random_bytes.randrange(8)
            path.write_bytes(data)
            for words in (["verify", str(root)], ["dump", "--root", str(root)], ["tail", str(root), "--log", "orders"]):
                done = CliRunner().invoke(build_app(), ["aof", *words])
                assert done.exit_code in {0, 1}, (path, done.output)
            AOF_FILES.describe(str(path), memoryview(bytes(data)))
        path.write_bytes(complete)
    assert "intact, 9 records" in run("verify", root)
