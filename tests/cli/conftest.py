"""Small stores on a real disk, with one core or two: sealed segments, a log with a rotated file, two subscribers."""

import shutil

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import quiver
from quiver.cli import main as entry


def bundle(first):
    rows = pa.record_batch({"n": pa.array(range(first, first + 20)), "s": pa.array([f"row {n}" for n in range(20)])})
    return quiver.Bundle({"logs": rows})


def left_by_a_crash(live, **how):
    """Return a copy of a store: twelve sealed bundles, three in the log; `fast` has five of them, `slow` none."""
    settings = quiver.Settings(segment_bytes_max=4000, wal_rotate_bytes=2000, wal_bytes_max=100_000)
    with quiver.open(live, settings, background=False, **how) as store:
        fast = store.register("fast", start="earliest")
        store.register("slow", start="earliest")
        for n in range(12):
            store.ingest(bundle(20 * n), durable=True)
        store.seal()
        for _ in range(5):
            fast.next_bundle(timeout=0).ack()
        store.maintain()
        for n in range(12, 15):
            store.ingest(bundle(20 * n), durable=True)
        left = live.with_name("left")
        shutil.copytree(live, left)
    return left


@pytest.fixture(scope="session")
def made_store(tmp_path_factory):
    """Return the directory of a store after a crash."""
    return left_by_a_crash(tmp_path_factory.mktemp("made") / "live")


@pytest.fixture(scope="session")
def made_cores(tmp_path_factory):
    """Return the directory of a store of two cores after a crash."""
    return left_by_a_crash(tmp_path_factory.mktemp("made") / "live", cores=2)


@pytest.fixture
def make_bundle():
    """Return a function that makes a bundle of twenty rows, from its first number."""
    return bundle


@pytest.fixture
def store_dir(made_store, tmp_path):
    """Return a copy of a store that a test may damage."""
    copy = tmp_path / "store"
    shutil.copytree(made_store, copy)
    return copy


@pytest.fixture(params=["one", "cores"])
def any_dir(request, tmp_path):
    """Return a copy that a test may change: of a store with one core, and of one with two."""
    copy = tmp_path / "store"
    shutil.copytree(request.getfixturevalue("made_store" if request.param == "one" else "made_cores"), copy)
    return copy


@pytest.fixture
def call():
    """Return a function that runs a command in this process and checks that it prints no traceback."""

    def run(*arguments):
        result = CliRunner().invoke(entry.build_app(), [str(one) for one in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        return result

    return run
