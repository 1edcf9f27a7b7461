"""
Small stores on a real disk: sealed segments, a log with a rotated file, two subscribers; a single one, and two
cores.
"""

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
    """What is not sealed is in the log only: twelve bundles and three, `fast` has five of them, `slow` none."""
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
    """The directory of a store as a crash leaves it."""
    return left_by_a_crash(tmp_path_factory.mktemp("made") / "live")


@pytest.fixture(scope="session")
def made_cores(tmp_path_factory):
    """The same with two cores."""
    return left_by_a_crash(tmp_path_factory.mktemp("made") / "live", cores=2)


@pytest.fixture
def make_bundle():
    """First number → a bundle of twenty rows."""
    return bundle


@pytest.fixture
def store_dir(made_store, tmp_path):
    """A copy to damage."""
    copy = tmp_path / "store"
    shutil.copytree(made_store, copy)
    return copy


@pytest.fixture(params=["one", "cores"])
def any_dir(request, tmp_path):
    """A copy to work on, of a single store and of one of two cores."""
    copy = tmp_path / "store"
    shutil.copytree(request.getfixturevalue("made_store" if request.param == "one" else "made_cores"), copy)
    return copy


@pytest.fixture
def call():
    """Run the command in this process; whatever it is given, it never ends in a traceback."""

    def run(*arguments):
        result = CliRunner().invoke(entry.build_app(), [str(one) for one in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        return result

    return run
