"""Parquet files become visible completely and once, and remain visible, after a crash at any step."""

import json

import pytest

from disk_files import PowerCut
from quiver.bundle import BundleRef
from quiver.errors import CorruptionError
from quiver.spark.exporters.commit_records import encode_record
from quiver.spark.exporters.parquet_commit import (
    RECORDS_KEPT,
    ExportCommitter,
    ExportRecord,
    StagedFile,
    committed_individually,
    individual_id,
    part_prefix,
)
from quiver.testing.crashfs import CrashFileSystem

QUERY = "c5026f74-7f8b-4a17-8beb-a452f78be02a"
OTHER = "99999999-7f8b-4a17-8beb-a452f78be02a"
STORE = "5c0f"


def committer(fs, query_id=QUERY, store=STORE, subscriber="exp"):
    made = ExportCommitter(fs, "/out", query_id=query_id, stores=[store], subscriber=subscriber)
    made.recover()
    return made


def write_parts(fs, query_id, batch, attempt, tables=("logs", "spans")):
    """Write a hidden file per table, as tasks do; its content is synced, its name is not."""
    parts = []
    for table in tables:
        fs.make_dirs(f"/out/{table}")
        name = f"{part_prefix(query_id, batch)}{attempt}.part"
        file = fs.create_or_truncate(f"/out/{table}/{name}")
        file.pwrite(f"rows of {table} {batch}".encode(), 0)
        file.sync()
        file.close()
        parts.append(StagedFile(table, name, 1, len(f"rows of {table} {batch}")))
    return parts


def visible(fs):
    """Return path → contents of the files that readers see; hidden names are excluded."""
    seen = {}
    for table in ("logs", "spans"):
        if fs.exists(f"/out/{table}"):
            for name in fs.list_dir(f"/out/{table}"):
                if not name.startswith((".", "_")):
                    seen[f"{table}/{name}"] = fs.read_all(f"/out/{table}/{name}", size_max=1000)
    return seen


def hidden(fs):
    """Return parts that were neither renamed nor removed."""
    return [name for table in ("logs", "spans") for name in fs.list_dir(f"/out/{table}") if name.endswith(".part")]


def export(fs, batch, attempt, query_id=QUERY):
    """Export one batch, as an exporter does after a restart."""
    made = committer(fs, query_id)
    if not made.is_committed(batch):
        made.commit(batch, write_parts(fs, query_id, batch, attempt), {STORE: BundleRef(batch + 1, 0)})


def fresh():
    fs = CrashFileSystem()
    fs.make_dirs("/out")
    return fs


def steps_of_one_export():
    fs, steps = fresh(), []
    export(fs, 0, "a")
    fs.on_step = lambda op, path: steps.append(op)
    export(fs, 1, "a")
    return len(steps)


EXPECTED = {
    f"{table}/c5026f74-{batch:010}-{number}.parquet": f"rows of {table} {batch}".encode()
    for batch in (0, 1)
    for number, table in enumerate(("logs", "spans"))
}


def test_a_crash_at_any_step_exports_a_batch_once():
    """Before the commit record nothing of the batch is visible; after it, all files appear; never twice or partly."""
    total = steps_of_one_export()
    assert total > 10
    for stop in range(total):
        for seed in range(4):
            fs = fresh()
            export(fs, 0, "a")
            counted = iter(range(total))

            def cut(op, path, counted=counted, stop=stop):
                if next(counted) == stop:
                    raise PowerCut

            fs.on_step = cut
            with pytest.raises(PowerCut):
                export(fs, 1, "b")
            after = fs.clone_after_crash(seed)
            assert visible(after).items() <= EXPECTED.items()
            assert visible(after).items() >= {k: v for k, v in EXPECTED.items() if "-0000000000-" in k}.items()
            export(after, 1, "c")
            assert visible(after) == EXPECTED
            assert hidden(after) == []
            export(after, 1, "d")
            assert visible(after.clone_after_crash(seed)) == EXPECTED


def test_files_of_a_failed_job_are_removed_immediately():
    """Only those of its batch; files of another batch and of other queries stay."""
    fs = fresh()
    first = committer(fs)
    with first.writing(0):
        parts = write_parts(fs, QUERY, 0, "a")
    write_parts(fs, OTHER, 1, "a")
    with pytest.raises(PowerCut), first.writing(1):
        write_parts(fs, QUERY, 1, "a")
        raise PowerCut
    assert sorted(hidden(fs)) == sorted([*(part.name for part in parts), *[f"{part_prefix(OTHER, 1)}a.part"] * 2])
    first.commit(0, parts, {})
    with first.writing(1):
        again = write_parts(fs, QUERY, 1, "b")
    first.commit(1, again, {})
    assert visible(fs) == EXPECTED


def test_a_crash_during_recovery_changes_nothing():
    """Recovery may be interrupted at any step, and is then repeated."""
    base = fresh()
    export(base, 0, "a")

    def cut_at(stop):
        counted = iter(range(10_000))

        def cut(op, path):
            if next(counted) == stop:
                raise PowerCut

        return cut

    # Stop directly after the record, with both parts still hidden.
    made = committer(base)
    parts = write_parts(base, QUERY, 1, "b")
    renames = []

    def stop_at_first_part(op, path):
        if op == "rename" and path.startswith("/out/logs/"):
            renames.append(path)
            raise PowerCut

    base.on_step = stop_at_first_part
    with pytest.raises(PowerCut):
        made.commit(1, parts, {STORE: BundleRef(2, 0)})
    assert renames
    base.on_step = None
    for stop in range(30):
        fs = base.clone_after_crash(stop)
        fs.on_step = cut_at(stop)
        try:
            committer(fs)
        except PowerCut:
            after = fs.clone_after_crash(stop)
        else:
            after = fs
        after.on_step = None
        assert visible(after).items() <= EXPECTED.items()
        assert committer(after).is_committed(1)
        assert visible(after) == EXPECTED


def export_apart(fs, name, attempt):
    """Export one bundle individually, as the retry queue does."""
    made = committer(fs, name)
    if not made.is_committed(0):
        made.commit(0, write_parts(fs, name, 0, attempt), {})


@pytest.mark.parametrize("stop", range(24))
def test_an_individual_bundle_is_exported_once(stop):
    """After a crash at any step it is complete, and the files that the query is writing are not changed."""
    one, other = (individual_id("exp", f"{STORE}/0:{index}") for index in (1, 2))
    fs = fresh()
    export(fs, 0, "a")
    running = write_parts(fs, QUERY, 1, "b")
    export_apart(fs, other, "a")
    before = visible(fs)
    for part in running:
        fs.sync_dir(f"/out/{part.table}")
    left = iter(range(stop))

    def cut(*_step):
        if next(left, None) is None:
            raise PowerCut

    fs.on_step = cut
    try:
        export_apart(fs, one, "a")
    except PowerCut:
        fs = fs.clone_after_crash(stop)
    fs.on_step = None
    assert committed_individually(fs, "/out", {one, other}) >= {other}
    export_apart(fs, one, "b")
    export_apart(fs, one, "c")
    assert committed_individually(fs, "/out", {one, other, "apart-x"}) == {one, other}
    assert len(visible(fs)) == len(before) + 2
    assert sorted(hidden(fs)) == sorted(part.name for part in running)
    made = committer(fs)
    assert made.exported_through == {STORE: BundleRef(1, 0)}, "it has no information about other bundles"
    assert hidden(fs) == []


def test_a_new_query_continues_where_the_old_one_stopped():
    """After the loss of a checkpoint, committed batches are completed and not exported again."""
    fs = fresh()
    export(fs, 0, "a")
    made = committer(fs)
    parts = write_parts(fs, QUERY, 1, "b")
    record = ExportRecord(1, "exp", {STORE: BundleRef(7, 3)}, tuple((p, f"x-{i}.parquet") for i, p in enumerate(parts)))
    fs.make_dirs(f"/out/_quiver/{QUERY}")
    file = fs.create(f"/out/_quiver/{QUERY}/0000000001.json")
    file.pwrite(record.encode(), 0)
    file.close()
    write_parts(fs, QUERY, 2, "never committed")
    again = committer(fs, OTHER)
    assert again.exported_through == {STORE: BundleRef(7, 3)}
    assert {"logs/x-0.parquet", "spans/x-1.parquet"} <= set(visible(fs))
    assert not [name for name in fs.list_dir("/out/logs") if name.endswith(".part")]
    assert made.exported_through == {STORE: BundleRef(1, 0)}


@pytest.mark.parametrize(("store", "subscriber"), [("other", "exp"), (STORE, "other"), ("unknown", "exp")])
def test_other_stores_and_subscribers_are_independent(store, subscriber):
    """Their batches are neither completed nor counted, and their files stay."""
    fs = fresh()
    export(fs, 0, "a")
    write_parts(fs, QUERY, 1, "still being written")
    other = committer(fs, OTHER, store, subscriber)
    assert other.exported_through == {}
    assert [name for name in fs.list_dir("/out/logs") if name.endswith(".part")]


def test_an_empty_batch_writes_nothing():
    """No record, no directory, no file."""
    fs = fresh()
    assert committer(fs).commit(0, [], {}) == ()
    assert fs.list_dir(f"/out/_quiver/{QUERY}") == []
    assert fs.list_dir("/out") == ["_quiver"]


def test_old_records_are_removed():
    """The last hundred stay."""
    fs = fresh()
    made = committer(fs)
    for batch in range(RECORDS_KEPT + 5):
        made.commit(batch, write_parts(fs, QUERY, batch, "a", ("logs",)), {STORE: BundleRef(batch + 1, 0)})
    names = fs.list_dir(f"/out/_quiver/{QUERY}")
    assert len(names) == RECORDS_KEPT
    assert names[0] == "0000000005.json"


def test_a_damaged_record_is_reported():
    """Truncated anywhere, or with any byte flipped: an error, never another batch."""
    fs = fresh()
    made = committer(fs)
    made.commit(0, write_parts(fs, QUERY, 0, "a"), {STORE: BundleRef(1, 0)})
    path = f"/out/_quiver/{QUERY}/0000000000.json"
    data = fs.read_all(path, size_max=10_000)
    good = ExportRecord.decode(data, path)
    for cut in range(len(data)):
        with pytest.raises(CorruptionError):
            ExportRecord.decode(data[:cut], path)
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]
        try:
            assert ExportRecord.decode(flipped, path) == good
        except CorruptionError:
            continue
    newer = json.loads(data)
    newer["record"]["v"] = 3
    with pytest.raises(CorruptionError, match="checksum"):
        ExportRecord.decode(json.dumps(newer).encode(), path)


def test_a_record_of_version_1_is_read():
    """It names one store and one position."""
    body = {"batch": 4, "store": STORE, "subscriber": "exp", "through": {"seq": 7, "idx": 3}, "files": []}
    data = encode_record(1, body)
    assert ExportRecord.decode(data, "record") == ExportRecord(4, "exp", {STORE: BundleRef(7, 3)}, ())


def test_every_core_has_its_position():
    """A record belongs to an exporter if it names one of its stores; a new query continues in each of them."""
    fs = fresh()
    made = ExportCommitter(fs, "/out", query_id=QUERY, stores=["a", "b"], subscriber="exp", suffix=".jsonl")
    made.recover()
    made.commit(0, write_parts(fs, QUERY, 0, "a"), {"a": BundleRef(1, 0), "b": BundleRef(4, 2)})
    made.commit(1, write_parts(fs, QUERY, 1, "a"), {"b": BundleRef(5, 0)})
    assert all(name.endswith(".jsonl") for name in visible(fs))
    again = ExportCommitter(fs, "/out", query_id=OTHER, stores=["a", "b", "c"], subscriber="exp")
    again.recover()
    assert again.exported_through == {"a": BundleRef(1, 0), "b": BundleRef(5, 0)}
