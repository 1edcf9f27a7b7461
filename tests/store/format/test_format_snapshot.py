"""The list of a snapshot: golden bytes, and answers to anything else."""

import json
import re
from pathlib import Path

import pytest

from quiver.primitives.checksum import crc32
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.store.format import snapshot_list
from quiver.store.format.snapshot_list import Snapshot, SnapshotFile, decode_snapshot_list, encode_snapshot_list

PAGE = (Path(__file__).parents[3] / "docs" / "formats" / "snapshot.md").read_text(encoding="utf-8")
SNAPSHOT = Snapshot(
    1_700_000_000_000_000_000,
    "3e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11",
    (
        SnapshotFile("segments/0000000000000000.qseg", 4096, None),
        SnapshotFile("wal/quiver.wal", 38, 0xDEADBEEF),
    ),
)
GOLDEN = re.findall(r"^```text\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)[0].encode()


def answer(data):
    return decode_snapshot_list(memoryview(data))


def signed(value):
    line = json.dumps(value).encode()
    return line + f"\n{crc32(line):08x}\n".encode()


def listed(*paths):
    files = [{"path": path, "size_bytes": 1, "crc32": 7} for path in paths]
    return signed({"quiver_snapshot": 1, "taken_at_ns": 1, "store": "", "files": files})


def test_the_example_of_the_page_is_what_is_written():
    """Bytes and value, in both directions, for every order of the files."""
    turned = Snapshot(SNAPSHOT.taken_at_ns, SNAPSHOT.store, SNAPSHOT.files[::-1])

    assert encode_snapshot_list(turned) == GOLDEN
    assert answer(GOLDEN) == Frame(SNAPSHOT, len(GOLDEN))


def test_the_page_names_every_key_and_the_limit():
    """The tables are those of the code; each page has the same parts."""
    found = json.loads(GOLDEN.splitlines()[0])
    keys = [*found, *(f"files.{key}" for key in found["files"][0])]
    assert re.findall(r"^\| ([\w.]+) \| (?:number|string|array)", PAGE, re.MULTILINE) == keys
    (limit,) = re.findall(r"^\| bytes of the list \| (\d+) \|", PAGE, re.MULTILINE)
    assert int(limit) == snapshot_list.SNAPSHOT_LIST_BYTES_MAX
    for part in ("## Versions", "## Profiles", "## Where the format is silent"):
        assert PAGE.count(part) == 1


def test_every_prefix_asks_for_more():
    """A list that is cut anywhere is never taken for a whole one."""
    for size in range(len(GOLDEN)):
        assert isinstance(answer(GOLDEN[:size]), NeedMore), size


def test_no_flipped_byte_passes():
    """Every byte is covered by the checksum, or is it."""
    for offset in range(len(GOLDEN)):
        for mask in (0x01, 0x20, 0x80):
            damaged = bytearray(GOLDEN)
            damaged[offset] ^= mask
            assert not isinstance(answer(damaged), Frame), offset


def test_nothing_may_follow():
    """A list with trailing junk is refused."""
    assert isinstance(answer(GOLDEN + b"x"), Damage)
    assert isinstance(answer(GOLDEN + GOLDEN), Damage)


def test_keys_that_are_not_known_are_ignored():
    """A later version may add some."""
    found = json.loads(GOLDEN.splitlines()[0])
    found["host"] = "a"
    found["files"][0]["mode"] = 288

    assert answer(signed(found)).value == SNAPSHOT


def test_another_version_is_refused_in_words():
    """It is not guessed at."""
    found = answer(signed({"quiver_snapshot": 2, "files": []}))

    assert isinstance(found, Damage)
    assert "unsupported version" in found.reason


@pytest.mark.parametrize("path", ["", "/etc/x", "../x", "a/../x", "a//b", "a/", ".hidden", "a\\b", "a\0b", "a\nb", "é"])
def test_no_path_leads_out_of_the_snapshot(path):
    """A list from anywhere may be restored: nothing is written beside the target."""
    assert isinstance(answer(listed("wal/quiver.wal", path)), Damage)


def test_no_file_stands_twice():
    """It is ambiguous which of the two is meant."""
    assert isinstance(answer(listed("a", "a")), Damage)


@pytest.mark.parametrize(
    "value",
    [
        {"quiver_snapshot": 1},
        {"quiver_snapshot": 1, "taken_at_ns": -1, "store": "", "files": []},
        {"quiver_snapshot": 1, "taken_at_ns": True, "store": "", "files": []},
        {"quiver_snapshot": 1, "taken_at_ns": 1, "store": None, "files": []},
        {"quiver_snapshot": 1, "taken_at_ns": 1, "store": "", "files": {}},
        {"quiver_snapshot": 1, "taken_at_ns": 1, "store": "", "files": [7]},
        {"quiver_snapshot": 1, "taken_at_ns": 1, "store": "", "files": [{"path": "a", "size_bytes": 2**64}]},
        {"quiver_snapshot": 1, "taken_at_ns": 1, "store": "", "files": [{"path": 1, "size_bytes": 1, "crc32": 1}]},
        {"quiver_snapshot": 1, "taken_at_ns": 1, "store": "", "files": [{"path": "a", "size_bytes": 1, "crc32": "x"}]},
    ],
)
def test_values_of_another_kind_are_damage(value):
    """Even with the right checksum: an attacker who can write there can compute it."""
    assert isinstance(answer(signed(value)), Damage)


def test_what_is_no_json_is_damage():
    """Also when it is nested beyond all reason."""
    for line in (b'{"quiver_snapshot": 1', b'{"quiver_snapshot": ' + b"[" * 100_000):
        assert isinstance(answer(line + f"\n{crc32(line):08x}\n".encode()), Damage)
