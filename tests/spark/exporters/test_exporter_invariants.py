"""A bug that would lose or repeat a bundle stops the exporter before the rest of the batch is exported. No Spark."""

from types import SimpleNamespace

import pytest
from stores import logs_request, seal_requests

from quiver.bundle import BundleRef
from quiver.delivery.policy import RetryPolicy, Transient
from quiver.errors import InvariantError
from quiver.spark.exporters.parquet_commit import ExportCommitter, StagedFile, part_prefix
from quiver.spark.exporters.retry_queue import RetryQueue
from quiver.spark.processors.bad_bundle_filter import BadBundleFilter
from quiver.testing.crashfs import CrashFileSystem

FAILED = Transient("PROCESSOR", "division by zero")
QUERY = "c5026f74-7f8b-4a17-8beb-a452f78be02a"


def test_failed_bundles_are_queued_durably(store, monkeypatch):
    seal_requests(store, logs_request([0]))
    queue = RetryQueue("out", RetryPolicy(on_exhausted="drop"), export=None)
    with monkeypatch.context() as patched:
        patched.setattr(queue, "_save", lambda: None)
        with pytest.raises(InvariantError, match="the rest of a batch is exported only after the retry set was saved"):
            queue.add({(store.root, BundleRef(0, 0)): FAILED})
    queue.add({(store.root, BundleRef(0, 0)): FAILED})
    assert queue.is_saved
    queue.close()


def test_a_batch_is_not_exported_before_its_failed_bundles_are_queued(store, monkeypatch):
    seal_requests(store, logs_request([0]))
    exported = []

    def export(batch, batch_id):
        exported.append(batch_id)
        raise ZeroDivisionError

    with BadBundleFilter(export, "out", RetryPolicy()) as bad_bundles:
        monkeypatch.setattr(bad_bundles, "_wanted", lambda batch: batch)
        monkeypatch.setattr(bad_bundles, "_failed", lambda *_: {(store.root, BundleRef(0, 0)): FAILED})
        monkeypatch.setattr(RetryQueue, "add", lambda *_: None)
        monkeypatch.setattr(RetryQueue, "is_saved", False)
        with pytest.raises(InvariantError, match="without its failed bundles only after they are queued"):
            bad_bundles(SimpleNamespace(sparkSession=None), 7)
    assert exported == [7]


def test_a_batch_is_committed_once():
    fs = CrashFileSystem()
    fs.make_dirs("/out/logs")
    committer = ExportCommitter(fs, "/out", query_id=QUERY, stores=["5c0f"], subscriber="exp")
    committer.recover()
    for attempt in "ab":
        fs.create(f"/out/logs/{part_prefix(QUERY, 3)}{attempt}.part").close()
    committer.commit(3, [StagedFile("logs", f"{part_prefix(QUERY, 3)}a.part", 1, 0)], {})
    before = fs.list_dir("/out/logs")
    with pytest.raises(InvariantError, match="batch 3 is committed once: its record names the files that count"):
        committer.commit(3, [StagedFile("logs", f"{part_prefix(QUERY, 3)}b.part", 1, 0)], {})
    assert fs.list_dir("/out/logs") == before
