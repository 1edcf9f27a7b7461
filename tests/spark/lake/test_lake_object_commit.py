"""Objects become visible completely and once, and remain visible, when the process dies at any request."""

from __future__ import annotations

import pytest

from disk_files import PowerCut
from quiver.bundle import BundleRef
from quiver.errors import CorruptionError, ObjectsUnavailableError
from quiver.objects import ObjectLocation, open_objects
from quiver.objects.memory import MemoryObjects
from quiver.spark.exporters.parquet_commit import RECORDS_KEPT, StagedFile, individual_id
from quiver.spark.lake.object_commit import (
    LEFTOVER_AGE_NS,
    ObjectCommitter,
    individually_committed_objects,
    staged_batch_of,
)
from quiver.testing.clock import ManualClock
from quiver.testing.faultobjects import FaultObjects

QUERY = "c5026f74-7f8b-4a17-8beb-a452f78be02a"
OTHER = "99999999-7f8b-4a17-8beb-a452f78be02a"
STORE = "5c0f"
USED = ("copy", "delete", "get", "list", "put")
"""The operations of a commit; tasks also use `put_parts`."""

TABLES = ("logs/day=2026-01-31/service.name=a%20b", "spans/day=2026-01-31")


def committer(objects, query_id=QUERY, attempt="a", subscriber="exp", clock=None):
    made = ObjectCommitter(
        objects, query_id=query_id, stores=[STORE], subscriber=subscriber, clock=clock or ManualClock(),
        random=lambda: attempt,
    )  # fmt: skip
    made.recover()
    return made


def upload(objects, made, batch, tables=TABLES, query_id=QUERY):
    """Upload a part for each table, as tasks do."""
    parts = []
    with made.writing(batch) as prefix:
        for number, table in enumerate(tables):
            data = f"rows of {table} {batch}".encode()
            objects.put(f"_quiver/{query_id}/staged/{prefix}00000-{number}.part", data)
            parts.append(StagedFile(table, f"{prefix}00000-{number}.part", 1, len(data)))
    return parts


def export(objects, batch, attempt, query_id=QUERY):
    """Export one batch, as an exporter does after a restart."""
    made = committer(objects, query_id, attempt)
    if not made.is_committed(batch):
        made.commit(batch, upload(objects, made, batch, query_id=query_id), {STORE: BundleRef(batch + 1, 0)})


def visible(objects):
    """Return key → contents of the files that a reader of `**/*.parquet` sees."""
    return {i.key: objects.get(i.key, size_max=999) for i in objects.list_below("") if i.key.endswith(".parquet")}


def staged(objects):
    return [info.key for info in objects.list_below("_quiver") if "/staged/" in info.key]


EXPECTED = {
    f"{table}/c5026f74-{batch:010}-{number}.parquet": f"rows of {table} {batch}".encode()
    for batch in (0, 1)
    for number, table in enumerate(TABLES)
}
FIRST = {key: data for key, data in EXPECTED.items() if "-0000000000-" in key}


def requests_of_one_export():
    objects = FaultObjects(MemoryObjects(clock=ManualClock()))
    export(objects, 0, "a")
    objects.calls.clear()
    export(objects, 1, "b")
    return dict(objects.calls)


@pytest.fixture(
    params=["memory", *(pytest.param(name, marks=pytest.mark.emulators) for name in ("gcs_server", "azure_server"))]
)
def new_tier(request):
    """Return a function that returns an empty tier: in memory, or in the bucket of an emulator."""
    if request.param == "memory":
        return lambda: MemoryObjects(clock=ManualClock())
    server = request.getfixturevalue(request.param)
    return lambda: open_objects(ObjectLocation.from_url(server.url(), server.options()), check_access=False)


def test_a_kill_at_any_request_exports_a_batch_once(new_tier):
    """Before the record nothing of the batch is visible; after it, all files appear; never twice or partly."""
    total = sum(requests_of_one_export().values())
    assert total > 8
    for stop in range(total):
        for is_answer_lost in (False, True):
            inner = new_tier()
            export(inner, 0, "a")
            objects = FaultObjects(inner)
            seen = []

            def cut(operation, key, objects=objects, seen=seen, stop=stop, is_answer_lost=is_answer_lost):
                seen.append(operation)
                if len(seen) == stop + 1 and is_answer_lost:
                    objects.fail_on(operation, 1, how="lose_answer")
                if len(seen) == stop + (2 if is_answer_lost else 1):
                    raise PowerCut

            objects.on_call = cut
            with pytest.raises((PowerCut, ObjectsUnavailableError)):
                export(objects, 1, "b")
                raise PowerCut  # the last answer was not needed
            assert FIRST.items() <= visible(inner).items() <= EXPECTED.items()
            export(inner, 1, "c")
            assert visible(inner) == EXPECTED
            assert staged(inner) == []


@pytest.mark.parametrize(
    ("operation", "how"),
    [*((one, "fail") for one in USED), *((one, "lose_answer") for one in USED if one not in {"get", "list"})],
)
def test_a_request_that_fails_fails_the_batch_and_the_next_attempt_succeeds(operation, how):
    """Each request of each kind in turn, in a process that continues, as Spark does with the batch."""
    for call in range(1, requests_of_one_export()[operation] + 1):
        objects = FaultObjects(MemoryObjects(clock=ManualClock()))
        export(objects, 0, "a")
        objects.fail_on(operation, call, how=how)
        with pytest.raises(ObjectsUnavailableError):
            export(objects, 1, "b")
        objects.heal()
        assert FIRST.items() <= visible(objects).items() <= EXPECTED.items()
        export(objects, 1, "c")
        assert visible(objects) == EXPECTED
        assert staged(objects) == []


def test_of_two_drivers_with_the_same_batch_one_commits():
    """The other one, which divided the batch differently, publishes the files of the first and removes its own."""
    objects = MemoryObjects()
    one, two = committer(objects, attempt="one"), committer(objects, attempt="two")
    parts = upload(objects, one, 0)
    more = upload(objects, two, 0, tables=[*TABLES, "metrics"])
    files = one.commit(0, parts, {STORE: BundleRef(1, 0)})
    assert two.commit(0, more, {STORE: BundleRef(1, 0)}) == files
    assert visible(objects) == FIRST
    assert staged(objects) == []


def test_a_driver_that_was_replaced_can_still_commit():
    """The process that starts later does not remove the parts of a batch without a record."""
    objects = MemoryObjects()
    hung = committer(objects, attempt="hung")
    parts = upload(objects, hung, 0)
    again = committer(objects, attempt="again")
    hung.commit(0, parts, {STORE: BundleRef(1, 0)})
    assert again.is_committed(0)
    assert visible(objects) == FIRST


def test_parts_that_were_never_committed_are_removed_after_a_day():
    """Also those of a query whose checkpoint was lost; parts of a committed batch are published instead."""
    clock = ManualClock()
    objects = MemoryObjects(clock=clock)
    upload(objects, committer(objects, OTHER, clock=clock), 0, query_id=OTHER)
    made = committer(objects, attempt="b", clock=clock)
    parts = upload(objects, made, 0)
    made._publish = lambda *_: None
    made.commit(0, parts, {STORE: BundleRef(1, 0)})
    committer(objects, OTHER, clock=clock)
    assert len(staged(objects)) == 2
    clock.advance(LEFTOVER_AGE_NS / 1e9 + 1)
    committer(objects, individual_id("exp", "5c0f/1"), clock=clock)
    assert len(staged(objects)) == 2
    committer(objects, clock=clock)
    assert visible(objects) == FIRST
    assert staged(objects) == []


def test_files_of_a_failed_job_are_removed_immediately():
    """Only those of this attempt."""
    objects = MemoryObjects()
    upload(objects, committer(objects, attempt="a"), 0)
    made = committer(objects, attempt="b")
    with pytest.raises(PowerCut), made.writing(0) as prefix:
        objects.put(f"_quiver/{QUERY}/staged/{prefix}00000-0.part", b"rows")
        raise PowerCut
    assert [key.split("-")[-3] for key in staged(objects)] == ["a", "a"]


def test_a_new_query_continues_after_an_old_one():
    """Its newest record has the positions of all stores, also of those that had no data in its last batch."""
    objects = MemoryObjects()
    made = ObjectCommitter(objects, query_id=QUERY, stores=["one", "two"], subscriber="exp")
    made.recover()
    made.commit(0, upload(objects, made, 0), {"one": BundleRef(7, 0), "two": BundleRef(3, 2)})
    made.commit(1, upload(objects, made, 1), {"one": BundleRef(9, 0)})
    late = ObjectCommitter(objects, query_id=OTHER, stores=["two"], subscriber="exp")
    late.recover()
    assert late.exported_through == {"one": BundleRef(9, 0), "two": BundleRef(3, 2)}
    assert committer(objects, OTHER, subscriber="another").exported_through == {}


def test_single_bundles_are_committed_under_their_own_names():
    """A record shows that a bundle was exported; a crash after it is finished by the next start of the exporter."""
    objects = FaultObjects(MemoryObjects())
    name = individual_id("exp", "5c0f/3")
    made = committer(objects, name)
    parts = upload(objects, made, 0, query_id=name)
    objects.fail_on("copy", 1)
    with pytest.raises(ObjectsUnavailableError):
        made.commit(0, parts, {})
    assert individually_committed_objects(objects, {name, "apart-other"}) == {name}
    assert individually_committed_objects(objects, set()) == set()
    committer(objects)
    assert sorted(visible(objects)) == sorted(f"{t}/{name}-0000000000-{n}.parquet" for n, t in enumerate(TABLES))
    assert committer(objects).exported_through == {}


def test_old_records_are_removed():
    """The last hundred remain."""
    objects = MemoryObjects()
    made = committer(objects)
    for batch in range(RECORDS_KEPT + 3):
        made.commit(batch, upload(objects, made, batch), {STORE: BundleRef(batch + 1, 0)})
    records = [info.key for info in objects.list_below(f"_quiver/{QUERY}")]
    assert len(records) == RECORDS_KEPT
    assert records[0].endswith("/0000000003.json")


def test_a_batch_without_rows_commits_nothing():
    """There is no record and no file."""
    objects = MemoryObjects()
    assert committer(objects).commit(0, [], {STORE: BundleRef(1, 0)}) == ()
    assert list(objects.list_below("")) == []


def test_a_damaged_record_is_reported():
    """With its key."""
    objects = MemoryObjects()
    export(objects, 0, "a")
    objects.copy(f"_quiver/{QUERY}/0000000000.json", f"_quiver/{QUERY}/0000000007.json")
    with pytest.raises(CorruptionError, match="that of batch 0"):
        committer(objects)
    objects.put(f"_quiver/{QUERY}/0000000007.json", b"{}")
    with pytest.raises(CorruptionError, match=QUERY):
        committer(objects)


@pytest.mark.parametrize("data", [b"rows", b"rows of something longer than the record says, as after a bad copy"])
def test_a_copy_of_another_size_is_not_published_silently(data):
    """The part stays, so the copy is tried again."""
    objects = MemoryObjects()
    made = committer(objects)
    parts = upload(objects, made, 0)
    objects.put(f"_quiver/{QUERY}/staged/{parts[0].name}", data)
    with pytest.raises(ObjectsUnavailableError, match="size"):
        made.commit(0, parts, {STORE: BundleRef(1, 0)})
    assert len(staged(objects)) == 2


def test_names_of_parts_have_their_batch():
    """A name of another form is never removed as the part of an old batch."""
    assert staged_batch_of("_quiver/q/staged/0000000012-a-00000-1.part") == 12
    assert staged_batch_of("_quiver/q/staged/notes.txt") > 10**12
