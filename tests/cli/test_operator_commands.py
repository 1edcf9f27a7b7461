"""The commands that change a directory: for a single store and for one of two cores, checked through the library."""

import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quiver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.cores.instances import instance_roots
from quiver.store.format import names
from quiver.store.format.names import retry_set_name
from quiver.store.subscribers.retry_set import load_retry_set

ALL = list(range(300))


def numbers(directory):
    """Every number in the bundles of the directory, in any order."""
    found = []
    for root in instance_roots(REAL_FILES, str(directory)):
        for _, bundle in quiver.read(root).bundles():
            found += bundle["logs"]["n"].to_pylist()
    return sorted(found)


def pending(directory, call):
    """Subscriber → pending bundles, according to `stats`."""
    found = json.loads(call("stats", directory, "--json").output)
    return {one["subscriber"]: one["lag_bundles"] for one in found["subscribers"]}


def opened(directory, **settings):
    cores = {"cores": 2} if (directory / "core_0").is_dir() else {}
    return quiver.open(directory, quiver.Settings(**settings), background=False, **cores)


def test_stats_sums_over_the_cores(any_dir, call):
    """The same figures for any number of cores; each core has a separate line."""
    found = json.loads(call("stats", any_dir, "--json").output)

    assert (found["bundles"], found["quarantine_files"]) == (12, 0)
    assert pending(any_dir, call) == {"fast": 7, "slow": 12}
    assert sum(core["bundles"] for core in found["cores"]) == 12
    assert ("core_1" in call("stats", any_dir).output) == (len(found["cores"]) == 2)


def test_verify_reads_every_core(any_dir, call):
    """Sums, and a finding in any of them."""
    result = call("verify", any_dir, "--json")
    found = json.loads(result.output)
    assert (result.exit_code, found["damaged"], found["segment_bundles"]) == (0, False, 12)

    segment = max(any_dir.rglob("*.qseg"))
    segment.chmod(0o600)
    segment.write_bytes(segment.read_bytes()[:-1])
    result = call("verify", any_dir, "--json")
    assert result.exit_code == 1
    assert [one["path"] for one in json.loads(result.output)["findings"]] == [str(segment)]
    assert "1 damaged" in call("verify", any_dir).output


def test_repair_reports_repairs_and_losses(any_dir, call):
    """A damaged segment that is not in the log: a copy is kept, the rest is readable, and `verify` succeeds."""
    segment = min(any_dir.rglob("*.qseg"))
    segment.chmod(0o600)
    damaged = bytearray(segment.read_bytes())
    damaged[200] ^= 0x41
    segment.write_bytes(damaged)
    would = call("repair", any_dir, "--dry-run")
    assert (would.exit_code, segment.read_bytes()) == (1, bytes(damaged))
    assert "planned:" in would.output
    assert "nothing was changed" in would.output
    found = json.loads(call("repair", any_dir, "--json").output)
    (mend,) = [one for report in found for one in report["repairs"] if one["path"] == str(segment)]

    assert "bundles" in mend["lost"]
    assert any(path.read_bytes() == bytes(damaged) for path in any_dir.rglob("quarantine/*"))
    left = numbers(any_dir)
    assert 0 < len(left) < 300
    assert set(left) < set(ALL)
    assert call("verify", any_dir).exit_code == 0
    again = call("repair", any_dir)
    assert (again.exit_code, again.output.count(": nothing to repair; nothing is damaged")) == (0, len(found))


def test_repair_of_an_open_store_is_refused(any_dir, call):
    """The error names its process; nothing is changed."""
    with opened(any_dir):
        result = call("repair", any_dir)
    assert result.exit_code == 1
    assert "quiver store" in result.output
    assert numbers(any_dir) == ALL


def test_a_damaged_retry_set_is_reported_and_repaired(store_dir, call):
    """All bundles that may have been in it are retried; a dry run changes nothing."""
    damaged = store_dir / retry_set_name("slow")
    damaged.write_bytes(bytes(range(100)))
    listed = call("subscribers", store_dir, "--json")
    reported = {one["subscriber"]: one["retry_problem"] for one in json.loads(listed.output)}
    assert (listed.exit_code, reported["fast"]) == (1, None)
    assert str(damaged) in reported["slow"]
    assert "planned:" in call("repair", store_dir, "--dry-run").output
    assert damaged.read_bytes() == bytes(range(100))
    to_come = pending(store_dir, call)["slow"]

    mended = call("repair", store_dir)
    assert (mended.exit_code, "created again" in mended.output) == (0, True)
    found = load_retry_set(REAL_FILES, str(store_dir), "slow")
    assert (len(found), {entry.attempts for entry in found}) == (to_come, {1})
    assert [path.read_bytes() for path in (store_dir / "quarantine").glob("quiver.retry.slow*")] == [bytes(range(100))]
    assert call("verify", store_dir).exit_code == 0


def test_subscribers_are_listed_rewound_and_dropped(any_dir, call):
    """A rewound subscriber gets its bundles again; a dropped one is removed; the others do not change."""
    listed = json.loads(call("subscribers", any_dir, "--json").output)
    assert {one["subscriber"] for one in listed} == {"fast", "slow"}
    assert {one["is_owned"] for one in listed} == {False}
    rows = [line for line in call("subscribers", any_dir, "list").output.splitlines() if " slow " in line]
    assert rows
    assert all(" none " in row for row in rows)  # the owner

    rewound = json.loads(call("subscribers", any_dir, "rewind", "fast", "--to", "earliest", "--json").output)
    assert sum(one["bundles_again"] for one in rewound) == 5
    assert pending(any_dir, call) == {"fast": 12, "slow": 12}
    dropped = call("subscribers", any_dir, "drop", "slow")
    assert "slow was dropped" in dropped.output
    assert pending(any_dir, call) == {"fast": 12}
    assert call("subscribers", any_dir, "drop", "slow").exit_code == 2


def test_subscribers_at_work_are_refused(any_dir, call):
    """For both `rewind` and `drop`."""
    with opened(any_dir) as store:
        fast = store.register("fast")
        handles = [fast.next_bundle(timeout=0) for _ in range(10)]
        for action in (("drop", "fast"), ("rewind", "fast", "--to", "earliest")):
            result = call("subscribers", any_dir, *action)
            assert result.exit_code == 1
            assert "fast" in result.output
        assert pending(any_dir, call)["fast"] == 7
    assert len(handles) == 10


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "fast"],
        ["drop"],
        ["rewind", "fast"],
        ["drop", "fast", "--to", "1"],
        ["rewind", "fast", "--to", "99"],
        ["rewind", "fast", "--to", "soon"],
        ["rewind", "../fast", "--to", "1"],
        ["dropp", "fast"],
    ],
)
def test_wrong_arguments_of_subscribers_are_refused(made_store, arguments, call):
    """With a message and exit code 2."""
    result = call("subscribers", made_store, *arguments)
    assert (result.exit_code, len(result.output.strip().splitlines())) == (2, 1)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl"])
def test_export_writes_every_row(any_dir, tmp_path, suffix, call):
    """In the format of the suffix, within the given times; existing files are replaced only on request."""
    to = tmp_path / f"out.{suffix}"
    result = call("export", any_dir, "--slot", "logs", "--to", to, "--json")
    read = {
        "parquet": lambda: pq.read_table(to),
        "arrow": lambda: pa.ipc.open_file(to).read_all(),
        "jsonl": lambda: pa.Table.from_pylist([json.loads(line) for line in to.read_text().splitlines()]),
    }[suffix]

    assert (result.exit_code, json.loads(result.output)["rows"]) == (0, 300)
    table = read()
    assert table.schema.names == ["n", "s"]
    assert sorted(table["n"].to_pylist()) == ALL
    assert call("export", any_dir, "--slot", "logs", "--to", to).exit_code == 2
    assert (
        call("export", any_dir, "--slot", "30", "--columns", "n", "--since", "1h", "--to", to, "--force").exit_code == 0
    )
    assert read().schema.names == ["n"]
    none = call("export", any_dir, "--slot", "logs", "--until", "1h", "--to", to, "--force", "--json")
    assert (none.exit_code, json.loads(none.output)["rows"]) == (0, 0)
    assert not list(tmp_path.glob("*.tmp"))


def test_an_exported_file_has_the_requested_mode(store_dir, tmp_path, call):
    """For any umask, and from the moment the file exists."""
    to = tmp_path / "x.jsonl"
    before = os.umask(0o077)
    try:
        assert call("export", store_dir, "--slot", "logs", "--to", to, "--file-mode", "0644").exit_code == 0
        assert to.stat().st_mode & 0o777 == 0o644
        os.umask(0)
        assert call("export", store_dir, "--slot", "logs", "--to", to, "--force", "--file-mode", "600").exit_code == 0
        assert to.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    for mode in ("0700", "0060", "7", "rw"):
        wrong = call("export", store_dir, "--slot", "logs", "--to", tmp_path / "y.jsonl", "--file-mode", mode)
        assert (wrong.exit_code, "--file-mode" in wrong.output) == (2, True)


def test_export_skips_and_reports_damage(store_dir, tmp_path, call):
    """Exit code 1; all other rows are exported."""
    segment = min(store_dir.rglob("*.qseg"))
    segment.chmod(0o600)
    segment.write_bytes(segment.read_bytes()[:-1])
    result = call("export", store_dir, "--slot", "logs", "--to", tmp_path / "x.parquet")

    assert result.exit_code == 1
    assert str(segment) in result.output
    assert 0 < pq.read_table(tmp_path / "x.parquet").num_rows < 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["--to", "x.csv", "--slot", "logs"],
        ["--to", "x.parquet"],
        ["--to", "x.parquet", "--slot", "logs", "--view", "logs"],
        ["--to", "no/such/x.parquet", "--slot", "logs"],
        ["--to", "x.parquet", "--slot", "nothing"],
        ["--to", "x.parquet", "--slot", "31"],
        ["--to", "x.parquet", "--view", "logs"],
        ["--to", "x.parquet", "--view", "spans", "--since", "1h"],
        ["--to", "x.parquet", "--slot", "logs", "--since", "soon"],
    ],
)
def test_wrong_arguments_of_export_are_refused(made_store, tmp_path, monkeypatch, arguments, call):
    """With a message and exit code 2, without a file."""
    monkeypatch.chdir(tmp_path)
    result = call("export", made_store, *arguments)
    assert (result.exit_code, len(result.output.strip().splitlines())) == (2, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_is_restored(any_dir, tmp_path, call):
    """With all accepted bundles and the positions of all subscribers; the snapshot is never opened or changed."""
    copy, back = tmp_path / "copy", tmp_path / "back"
    taken = json.loads(call("snapshot", any_dir, copy, "--check", "--json").output)
    assert (taken["problems"], taken["path"]) == ([], str(copy))
    assert call("verify", copy).exit_code == 0
    assert call("inspect", copy / "quiver.snapshot").exit_code == 0
    for command in (["repair", copy], ["migrate", copy, "--profile", "otap"], ["subscribers", copy, "drop", "slow"]):
        refused = call(*command)
        assert (refused.exit_code, "quiver restore" in refused.output) == (2, True)
    with pytest.raises(quiver.UsageError, match="quiver restore"):
        opened(copy)
    assert call("restore", copy, back).exit_code == 0

    known = [path.read_text() for directory in (any_dir, back) for path in directory.rglob("quiver.id")]
    assert len(set(known)) == len(known), "each core is also a separate store"
    assert numbers(back) == ALL
    assert pending(back, call) == {"fast": 7, "slow": 12}
    with opened(back) as store:
        store.seal()
        slow = store.register("slow")
        got = []
        while (handle := slow.next_bundle(timeout=0)) is not None:
            got += handle.bundle["logs"]["n"].to_pylist()
            handle.ack()
    assert sorted(got) == ALL
    assert call("verify", copy).exit_code == 0
    assert numbers(any_dir) == ALL


LEFT_OUT = {
    "RESERVE": "made anew at open",
    "STORE_LOCK": "who has it open",
    "WAL_NEXT": "a leftover",
    "EARLY_PROGRESS": "a restored store assigns other numbers",
    "SEGMENT_FLOOR": "written for the snapshot",
    "COLD_LIST": "not needed: a snapshot has what is in it",
    "COLD_MARK": "says that there is a cold list, which a snapshot has not",
}


def test_a_snapshot_knows_every_kind_of_file(store_dir, tmp_path, call):
    """Each new kind must be decided here: it is copied, or there is a reason not to."""
    files = {
        key: getattr(names, key)
        for key in names.__all__
        if key.isupper() and isinstance(getattr(names, key), str) and not key.endswith("_DIR")
    }
    per_subscriber = [name("slow") for name in (names.progress_name, names.retry_set_name, names.skip_ledger_name)]
    for name in {*files.values(), *per_subscriber} - {files[key] for key in LEFT_OUT}:
        if not any(store_dir.rglob(name)):
            (store_dir / name).write_bytes(b"x")
    assert call("snapshot", store_dir, tmp_path / "copy").exit_code == 0

    copied = {path.name for path in (tmp_path / "copy").rglob("*")}
    assert {key for key, name in files.items() if name not in copied} <= set(LEFT_OUT)
    assert copied >= set(per_subscriber)


def test_a_damaged_snapshot_is_reported_and_refused(store_dir, tmp_path, call):
    """By path; it is restored only on request."""
    copy, back = tmp_path / "copy", tmp_path / "back"
    call("snapshot", store_dir, copy)
    log = copy / "wal" / "quiver.wal"
    log.write_bytes(log.read_bytes()[:-3])
    verified = call("verify", copy)
    assert verified.exit_code == 1
    assert f"differs from the snapshot's list: {log}" in verified.output
    refused = call("restore", copy, back)
    assert (refused.exit_code, back.exists()) == (1, False)
    assert call("restore", copy, back, "--damaged-too").exit_code == 1
    assert len(numbers(back)) == 280
    complete = copy / "quiver.snapshot"
    complete.write_bytes(complete.read_bytes()[:-30])
    assert call("restore", copy, tmp_path / "other").exit_code == 1
    complete.unlink()
    assert call("restore", copy, tmp_path / "other").exit_code == 2


def test_a_snapshot_of_an_open_store_is_complete(any_dir, tmp_path, call):
    """Taken between two bundles."""
    with opened(any_dir) as store:
        assert call("snapshot", any_dir, tmp_path / "copy", "--check").exit_code == 0
        assert store.stats() is not None
    assert call("restore", tmp_path / "copy", tmp_path / "back").exit_code == 0
    assert numbers(tmp_path / "back") == ALL


def test_migrate_works_in_both_directions(any_dir, tmp_path, call):
    """Data and progress do not change, under the other profile and under another slot table."""
    there = json.loads(call("migrate", any_dir, "--profile", "otap", "--json").output)
    assert {one["profile"] for one in there} == {"otap"}
    assert numbers(any_dir) == ALL
    with opened(any_dir, format_profile="otap"):
        pass
    table = tmp_path / "weather.json"
    table.write_text('{"name": "weather", "slots": {"30": "readings"}}')
    assert call("migrate", any_dir, "--profile", "spec", "--adapter", table).exit_code == 0
    with pytest.raises(quiver.UnsupportedFormatError, match="weather|hash"):
        opened(any_dir).close()
    assert call("migrate", any_dir, "--profile", "spec", "--adapter", "otap").exit_code == 0
    with opened(any_dir):
        pass
    assert pending(any_dir, call) == {"fast": 10, "slow": 15}


@pytest.mark.parametrize("text", ["", "[]", '{"name": 1}', '{"name": "a", "slots": {"x": "y"}}', "\x00"])
def test_migrate_refuses_an_invalid_adapter(any_dir, tmp_path, text, call):
    """The error has an example; nothing is changed."""
    table = tmp_path / "a.json"
    table.write_text(text)
    result = call("migrate", any_dir, "--profile", "spec", "--adapter", table)
    assert (result.exit_code, '"slots"' in result.output) == (2, True)
    assert call("migrate", any_dir, "--profile", "spec", "--adapter", tmp_path / "none.json").exit_code == 2
    assert numbers(any_dir) == ALL


def test_inspect_shows_every_file(any_dir, call):
    """As a table and as JSON, with its kind; no kind is unknown."""
    with opened(any_dir):
        pass
    kinds = set()
    for path in sorted(any_dir.rglob("*")):
        if path.is_file():
            found = json.loads(call("inspect", path, "--json").output)
            assert found["intact"], path
            assert found["kind"] != "unknown", path
            assert found["kind"] in call("inspect", path).output
            kinds.add(found["kind"])
    assert {"wal", "cursor", "segment", "progress", "identity", "lock"} <= kinds


def test_inspect_accepts_damaged_copies_in_quarantine(store_dir, call):
    """They are listed, but do not cause exit code 1."""
    segment = min(store_dir.rglob("*.qseg"))
    segment.chmod(0o600)
    segment.write_bytes(segment.read_bytes()[:-1])
    assert call("inspect", store_dir).exit_code == 1
    call("repair", store_dir)
    result = call("inspect", store_dir, "--json")

    assert result.exit_code == 0
    assert "kept copy" in {one["kind"] for one in json.loads(result.output)}


def test_a_refused_snapshot_leaves_nothing(store_dir, tmp_path, call):
    """A snapshot inside its store or over another directory is refused before any write."""
    (tmp_path / "taken").mkdir()
    before = sorted(store_dir.rglob("*"))
    for target in (store_dir / "copy", tmp_path / "taken", store_dir):
        assert call("snapshot", store_dir, target).exit_code == 2
    assert sorted(store_dir.rglob("*")) == before
    shutil.rmtree(tmp_path / "taken")
    assert call("snapshot", store_dir, tmp_path / "taken").exit_code == 0
