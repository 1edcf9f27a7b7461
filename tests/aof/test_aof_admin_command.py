"""`quiver aof seal|flush|upload|segments|manifest`: administration of logs that no process has open."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from quiver.aof import AofConfig, AofManager, TierConfig
from quiver.cli.main import build_app


def run(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(build_app(), ["aof", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def root(tmp_path):
    config = AofConfig(tiers=TierConfig(tier0_max_bytes=0, objects=str(tmp_path / "cold")))
    with AofManager.open(str(tmp_path / "aof"), config, background=False) as manager:
        log = manager.log("orders")
        for number in range(4):
            log.append_record_with_timeout(b"%d" % number, 5)
            log.force_rollover(timeout=5)
        log.append_record(b"open")
        manager.maintain()
    return tmp_path / "aof"


def states(root, *words) -> dict[int, str]:
    result = json.loads(run("segments", "list", root, "--json", *words))
    return {one["segment"]: one["state"] for one in result["segments"]}


def test_seal_and_flush_work_without_a_writer(root):
    """Once each; while a writer has the log, they are refused with a message, because the writer does both itself."""
    assert json.loads(run("flush", root, "--json")) == {"log": "orders", "durable_records": 5}
    assert json.loads(run("seal", root, "--json")) == {"log": "orders", "sealed": 4}
    assert json.loads(run("seal", root, "--json"))["sealed"] is None
    assert "orders" in run("seal", root)
    with AofManager.open(str(root), background=False):
        for command in ("seal", "flush"):
            assert "is in use by" in run(command, root, code=1)
    assert "5 records" in run("verify", root)


def test_upload_uploads_segments_without_an_object(tmp_path):
    """For every log, including the active segment; remaining segments are reported, with exit code 1."""
    for name in ("orders", "trades"):
        with AofManager.open(str(tmp_path / "aof"), background=False) as manager:
            manager.log(name).append_record(b"one")
    root, cold = tmp_path / "aof", tmp_path / "cold"
    assert "--objects" in run("upload", root, code=2)
    with AofManager.open(str(root), background=False):
        assert "is in use by" in run("upload", root, "--objects", cold, code=1)
    (row,) = json.loads(run("upload", root, "--log", "orders", "--objects", cold, "--json"))
    assert row == {"log": "orders", "uploaded": 1, "left": 0, "problem": ""}
    rows = json.loads(run("upload", root, "--objects", cold, "--json"))
    assert [(one["log"], one["uploaded"]) for one in rows] == [("orders", 0), ("trades", 1)]
    assert "not read" not in run("verify", root, "--objects", cold)
    assert "2 segments" not in run("restore", tmp_path / "new", "--objects", cold)
    assert run("verify", tmp_path / "new", "--objects", cold).count("intact, 1 record\n") == 2


def test_a_damaged_segment_is_not_uploaded(tmp_path):
    """The reason has the position of the damage."""
    root, cold = tmp_path / "aof", tmp_path / "cold"
    with AofManager.open(str(root), background=False) as manager:
        manager.log("orders").append_records([b"one", b"two"])
        manager.log("orders").force_rollover(timeout=5)
    (path,) = root.glob("orders/segments/*.seg")
    data = bytearray(path.read_bytes())
    data[64 + 24] ^= 1
    path.write_bytes(data)
    (row,) = json.loads(run("upload", root, "--objects", cold, "--json", code=1))
    assert (row["uploaded"], row["left"]) == (0, 1)
    assert path.name in row["problem"]


def test_segments_lists_the_copies_by_tier(root):
    """Each with its copies."""
    assert states(root) == {0: "warm", 1: "warm", 2: "warm", 3: "sealed", 4: "open"}
    assert list(states(root, "--tier", 0)) == [3, 4]
    assert list(states(root, "--tier", 1)) == [0, 1, 2]
    assert states(root, "--tier", 2) == {}
    (first, *_) = json.loads(run("segments", "list", root, "--json"))["segments"]
    assert first["packed_bytes"] > 0
    assert first["object"]
    assert first["file_bytes"] is None
    assert "segments of orders" in run("segments", "list", root)


def test_segments_deletes_the_oldest_first(root, tmp_path):
    """Only with --force and including their objects, and never from the middle."""
    assert "--force" in run("segments", "delete", root, 0, code=2)
    assert "hole" in run("segments", "delete", root, 1, "--force", code=2)
    assert "no sealed segment 9" in run("segments", "delete", root, 9, "--force", code=2)
    result = json.loads(run("segments", "delete", root, 0, "--force", "--json"))
    assert result == {"log": "orders", "deleted": [0], "objects_left": 1}
    result = json.loads(run("segments", "delete", root, 1, "--force", "--json", "--objects", tmp_path / "cold"))
    assert result["objects_left"] == 0
    assert list(states(root)) == [2, 3, 4]
    assert len([one for one in (tmp_path / "cold").rglob("*.zst") if one.is_file()]) == 2
    assert "intact" in run("verify", root)


@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_repair_completes_a_manifest_log(root, how):
    """Missing entries are registered from existing copies; then the manifest is complete, and no record is lost."""
    before = run("tail", root)
    assert json.loads(run("manifest", "check", root, "--json"))[0]["problems"] == []
    for chunk in (root / "orders" / "manifest").rglob("*.mlog"):
        if how == "gone":
            chunk.unlink()
        else:
            data = bytearray(chunk.read_bytes())
            data[len(data) // 2] ^= 1
            chunk.write_bytes(data)
    assert json.loads(run("manifest", "check", root, "--json", code=1))[0]["problems"]
    run("manifest", "check", root, "--repair", "--objects", root.parent / "cold")
    assert "manifest logs" in run("manifest", "check", root)
    assert run("tail", root) == before
    assert "intact" in run("verify", root)


def test_help_and_wrong_use_are_explained(root):
    """Every command has a help page; a path without a log is reported in a sentence."""
    for words in (["seal"], ["flush"], ["segments", "list"], ["segments", "delete"], ["manifest", "check"]):
        assert "Usage" in run(*words, "--help")
        rest = [7, "--force"] if words[-1] == "delete" else []
        assert "holds no append-only log" in run(*words, root.parent / "cold", *rest, code=2)
