"""`snapshot` while a writer acts between any two of its calls, `restore`, and a crash at every step of both."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from quiver import CorruptionError, Settings, Store, UsageError
from quiver import open as open_store
from quiver.primitives.scan import Frame
from quiver.spark.store.sink_options import SinkOptions
from quiver.store.format.names import parse_segment_name
from quiver.store.format.progress import decode_progress
from quiver.store.format.snapshot_list import SNAPSHOT_LIST
from quiver.store.reading.check import check_store
from quiver.store.snapshots.snapshot import check_snapshot, restore, snapshot
from quiver.store.staging.batches import commit_batch, stage
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from store_rig import drain, open_manual, stamped

pytestmark = pytest.mark.usefixtures("quiet")

SOURCE, COPY, BACK = "/live", "/copy", "/back"
SETTINGS = Settings(
    segment_bytes_max=1_000, wal_rotate_bytes=900, wal_bytes_max=60_000, wal_files_max=30, delete_grace_s=0.0
)
NAMES = ("fast", "slow")
IDENTITY = "00000000-0000-4000-8000-000000000000"


def opened(fs: Any, root: str, settings: Settings = SETTINGS) -> Store:
    return open_manual(fs, settings=settings, root=root)


class Work:
    """A store at work: ingests, seals, acknowledges and deletes, one action per call."""

    def __init__(self, fs: CrashFileSystem, settings: Settings = SETTINGS) -> None:
        self.fs = fs
        self.store = opened(fs, SOURCE, settings)
        self.subscribers = {name: self.store.register(name, start="earliest") for name in NAMES}
        self.accepted = 0
        self.acked: dict[str, set[int]] = {name: set() for name in NAMES}
        self._random = random.Random(7)

    def step(self) -> None:
        what = self._random.choice(("ingest", "ingest", "ingest", "flush", "fast", "fast", "slow", "maintain"))
        if what == "ingest":
            self.store.ingest(stamped(self.accepted), durable=True)
            self.accepted += 1
        elif what == "flush":
            self.store.seal()
        elif what == "maintain":
            self.store.maintain()
        else:
            self.ack(what, 4 if what == "fast" else 2)

    def ack(self, name: str, most: int) -> None:
        for _ in range(most):
            handle = self.subscribers[name].next_bundle(timeout=0)
            if handle is None:
                return
            self.acked[name].add(handle.bundle[30]["n"][0].as_py())
            handle.ack()


class Between:
    """A file system that lets the writer act before every n-th call of another user."""

    def __init__(self, fs: CrashFileSystem, work: Work, *, every: int, first: int) -> None:
        self._fs = fs
        self._work = work
        self._every = every
        self._calls = -first

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._fs, name)

        def after_the_writer(*arguments: Any, **named: Any) -> Any:
            self._calls += 1
            if self._calls % self._every == 0:
                self._work.step()
            return call(*arguments, **named)

        return after_the_writer


def worked(steps: int, settings: Settings = SETTINGS) -> tuple[CrashFileSystem, Work]:
    fs = CrashFileSystem()
    work = Work(fs, settings)
    for _ in range(steps):
        work.step()
    return fs, work


def check_restored(fs: CrashFileSystem, root: str, promised: int, acked: dict[str, set[int]], label: str) -> None:
    """Check that a store has everything promised and unacknowledged, and accepts and delivers new bundles."""
    report = check_store(fs, root)
    assert not report.damaged, f"{label}: {report.findings}"
    with opened(fs, root) as store:
        store.maintain()
        store.seal()
        for name in NAMES:
            got = drain(store, name)
            missing = set(range(promised)) - set(got) - acked[name]
            assert not missing, f"{label}: {name} misses {sorted(missing)}"
            assert len(got) == len(set(got)), f"{label}: {name} got {got}"
        store.ingest(stamped(9_999))
        store.seal()
        for name in NAMES:
            assert drain(store, name) == [9_999], f"{label}: {name} does not get what comes after"


def claims(fs: CrashFileSystem, root: str) -> None:
    """
    Check that progress in the copy names no segment above those in it, except one that every subscriber resolved while
    it was made, and that missing segments below them are resolved.
    """
    seqs = {parse_segment_name(name) for name in fs.list_dir(f"{root}/segments")} - {None}
    living = {parse_segment_name(name) for name in fs.list_dir(f"{SOURCE}/segments")}
    highest = max((seq for seq in seqs if seq is not None), default=None)
    for name in NAMES:
        data = fs.read_all(f"{root}/quiver.sub.{name}", size_max=1 << 20)
        answer = decode_progress(memoryview(data))
        assert isinstance(answer, Frame)
        if highest is not None:
            assert max(answer.value.entries, default=-1) <= highest
            assert living.isdisjoint(range(highest + 1, answer.value.oldest_incomplete))
            for seq in set(range(answer.value.oldest_incomplete, highest)) - seqs:
                entry = answer.value.entries.get(seq)
                assert entry is not None
                assert entry.bitmap.bit_count() == entry.bundle_count, f"{name} would wait for segment {seq}"


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_a_snapshot_of_a_working_store_is_complete(every: int) -> None:
    """For any action between two calls: everything accepted before is in the copy, or was acknowledged."""
    moved = 0
    for steps in (5, 40, 90):
        for first in range(min(every, 3)):
            fs, work = worked(steps + first)
            promised = work.accepted
            done = snapshot(Between(fs, work, every=every, first=first), SOURCE, COPY, now_ns=1)
            label = f"every {every}, from {first}, after {steps}"
            assert done.notes == [], label
            assert check_snapshot(fs, COPY)[1] == [], label
            claims(fs, COPY)
            acked = {name: set(numbers) for name, numbers in work.acked.items()}
            restored = restore(fs, COPY, BACK, identity=IDENTITY)
            assert restored.notes == [], label
            check_restored(fs, BACK, promised, acked, label)
            # The live store is not affected.
            for name in NAMES:
                work.ack(name, 10_000)
            work.store.seal()
            for name in NAMES:
                work.ack(name, 10_000)
                assert work.acked[name] == set(range(work.accepted)), label
            work.store.close()
            moved += work.accepted - promised
    assert moved > 0 or every == 7


class SinkWork(Work):
    """A Spark sink commits batches meanwhile, which the store imports with its maintenance."""

    def step(self) -> None:
        if self._random.random() < 0.3:
            self._commit()
        else:
            super().step()

    def _commit(self) -> None:
        fs: Any = self.fs
        rows = [{30: pa.record_batch({"n": pa.array([self.accepted], pa.int32())})}]
        place: dict[str, Any] = {"writer": "query", "batch": self.accepted}
        options = SinkOptions(path=SOURCE, slot=30)
        staged = stage(fs, SOURCE, rows, partition=0, attempt="a", options=options, clock=ManualClock(), **place)
        commit_batch(fs, SOURCE, staged=[staged], clock=ManualClock(), **place)
        self.accepted += 1


@pytest.mark.parametrize("every", [2, 5])
def test_a_snapshot_of_a_store_that_imports_batches_is_complete(every: int) -> None:
    """A committed batch is in the copy as it was staged, or as the segment it became: exactly once."""
    staged_copies = 0
    for steps in (8, 40, 90):
        for first in range(2):
            fs = CrashFileSystem()
            work = SinkWork(fs)
            for _ in range(steps + first):
                work.step()
            promised = work.accepted
            label = f"every {every}, from {first}, after {steps}"
            done = snapshot(Between(fs, work, every=every, first=first), SOURCE, COPY, now_ns=1)
            assert done.notes == [], label
            listed, problems = check_snapshot(fs, COPY)
            assert problems == [], label
            staged_copies += sum("incoming/" in file.path and file.path.endswith(".qseg") for file in listed.files)
            acked = {name: set(numbers) for name, numbers in work.acked.items()}
            restore(fs, COPY, BACK, identity=IDENTITY)
            check_restored(fs, BACK, promised, acked, label)
            work.store.close()
    assert staged_copies or every < 5


class Once(Between):
    """Lets the writer do much work right before the drop ledger is read: when all segments are copied."""

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._fs, name)

        def after_the_writer(*arguments: Any, **named: Any) -> Any:
            if name == "read_all" and arguments[0].endswith("quiver.drops") and self._calls == 0:
                self._calls = 1
                for _ in range(30):
                    self._work.step()
                self._work.store.seal()
                self._work.ack("fast", 100)
                self._work.store.maintain()
            return call(*arguments, **named)

        return after_the_writer


def test_numbers_are_never_used_again() -> None:
    """Segments that the writer sealed during the copy keep their numbers: the restored store starts above them."""
    fs, work = worked(60)
    snapshot(Once(fs, work, every=1, first=0), SOURCE, COPY, now_ns=1)
    restore(fs, COPY, BACK, identity=None)
    sealed = work.store.stats()["next_segment"]
    claims(fs, COPY)

    assert f"{sealed - 1:016d}.qseg" not in fs.list_dir(f"{COPY}/segments")
    with opened(fs, BACK) as store:
        assert store.stats()["next_segment"] >= sealed


def test_a_restored_store_has_a_new_identity_by_default() -> None:
    """So a Spark checkpoint of the old store is refused, which would skip numbers of the new one."""
    fs, work = worked(20)
    work.store.close()
    snapshot(fs, SOURCE, COPY, now_ns=1)
    restore(fs, COPY, BACK, identity=IDENTITY)
    restore(fs, COPY, "/same", identity=None)
    old = fs.read_all(f"{SOURCE}/quiver.id", size_max=99)

    assert fs.read_all(f"{BACK}/quiver.id", size_max=99) == f"{IDENTITY}\n".encode()
    assert fs.read_all("/same/quiver.id", size_max=99) == old


def test_a_damaged_snapshot_is_refused_with_its_path() -> None:
    """A missing file, a shorter one, a flipped byte: path and reason; no target is created by default."""
    fs, work = worked(60)
    work.store.close()
    snapshot(fs, SOURCE, COPY, now_ns=1)
    listed, _ = check_snapshot(fs, COPY)
    assert {"wal", "segments"} <= {file.path.partition("/")[0] for file in listed.files}
    for file in listed.files:
        path = f"{COPY}/{file.path}"
        data = fs.read_all(path, size_max=1 << 30)
        for damaged in (None, data[:-1], data[:9] + bytes([data[9] ^ 1]) + data[10:]):
            one = fs.clone_after_kill()
            one.remove(path)
            if damaged is not None:
                written = one.create(path)
                written.pwrite(damaged, 0)
                written.sync()
                written.close()
            with pytest.raises(CorruptionError, match=file.path.replace(".", r"\.")):
                restore(one, COPY, BACK, identity=None)
            assert not one.exists(BACK)
            done = restore(one, COPY, BACK, identity=None, damaged_too=True)
            assert any(path in note for note in done.notes)
            opened(one, BACK).close()


def test_wrong_arguments_are_refused() -> None:
    """A target that exists, a target inside the source, a source that is not a store."""
    fs, work = worked(5)
    work.store.close()
    with pytest.raises(UsageError, match="is inside"):
        snapshot(fs, SOURCE, f"{SOURCE}/copy", now_ns=1)
    snapshot(fs, SOURCE, COPY, now_ns=1)
    with pytest.raises(UsageError, match="exists"):
        snapshot(fs, SOURCE, COPY, now_ns=1)
    with pytest.raises(UsageError, match="exists"):
        restore(fs, COPY, SOURCE, identity=None)
    with pytest.raises(UsageError, match="not a finished snapshot"):
        restore(fs, SOURCE, BACK, identity=None)
    with pytest.raises(UsageError, match="no such directory"):
        snapshot(fs, "/nothing", BACK, now_ns=1)


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_a_crash_at_any_step_leaves_a_complete_target_or_none(profile: Any) -> None:
    """The next call succeeds, and the source does not change."""
    settings = replace(SETTINGS, format_profile=profile)
    fs, work = worked(60, settings)
    promised, acked = work.accepted, work.acked
    work.store.close()
    clones: list[tuple[str, CrashFileSystem]] = []

    def before(operation: str, path: str) -> None:
        label = f"step {len(clones)} ({operation} {path})"
        clones.append((label, fs.clone_after_crash(len(clones) % 4)))
        clones.append((label, fs.clone_after_kill()))

    fs.on_step = before
    snapshot(fs, SOURCE, COPY, now_ns=1)
    restore(fs, COPY, BACK, identity=None)
    fs.on_step = None
    assert len(clones) > 100
    for label, clone in clones[random.randrange(5) :: 5]:
        if not clone.exists(COPY):
            snapshot(clone, SOURCE, COPY, now_ns=1)
        assert clone.exists(f"{COPY}/{SNAPSHOT_LIST}"), label
        assert check_snapshot(clone, COPY)[1] == [], label
        if clone.exists(BACK):
            with pytest.raises(UsageError, match="exists"):  # this call makes its name durable
                restore(clone, COPY, BACK, identity=None)
        else:
            restore(clone, COPY, BACK, identity=None)
        after = clone.clone_after_crash(0)
        assert not check_store(after, SOURCE).damaged, label
        check_restored(after, BACK, promised, acked, label)


def test_a_crash_while_copying_two_cores_leaves_a_complete_target_or_none() -> None:
    """With both cores in it; the next call ends with everything."""
    fs = CrashFileSystem()
    with open_store(SOURCE, SETTINGS, cores=2, fs=fs, clock=ManualClock(), background=False) as store:
        store.register("slow", start="earliest")
        for number in range(12):
            store.ingest(stamped(number), durable=True)
        store.seal()
        for number in range(12, 15):
            store.ingest(stamped(number), durable=True)
        live = fs.clone_after_kill()
    clones: list[tuple[str, CrashFileSystem]] = []

    def before(operation: str, path: str) -> None:
        label = f"step {len(clones)} ({operation} {path})"
        clones.append((label, live.clone_after_crash(len(clones) % 4)))
        clones.append((label, live.clone_after_kill()))

    live.on_step = before
    snapshot(live, SOURCE, COPY, now_ns=1)
    restore(live, COPY, BACK, identity=None)
    live.on_step = None
    assert len(clones) > 60
    for label, clone in clones[random.randrange(7) :: 7]:
        if not clone.exists(COPY):
            snapshot(clone, SOURCE, COPY, now_ns=1)
        assert check_snapshot(clone, COPY)[1] == [], label
        if clone.exists(BACK):
            with pytest.raises(UsageError, match="exists"):  # this call makes its name durable
                restore(clone, COPY, BACK, identity=None)
        else:
            restore(clone, COPY, BACK, identity=IDENTITY)
        after = clone.clone_after_crash(0)
        got = []
        with open_store(BACK, SETTINGS, cores=2, fs=after, clock=ManualClock(), background=False) as restored:
            restored.seal()
            slow = restored.register("slow")
            while (handle := slow.next_bundle(timeout=0)) is not None:
                got.append(handle.bundle[30]["n"][0].as_py())
                handle.ack()
        assert sorted(got) == list(range(15)), label
