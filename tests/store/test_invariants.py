"""A bug that would break a promise stops the store before the step that would do harm."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from quiver import Bundle, Settings
from quiver.errors import InvariantError, StoreFailedError
from quiver.invariant import invariant
from quiver.store.opening import open_store
from quiver.store.sealing.schedule import Sealing
from quiver.store.store import Store


def bundle() -> Bundle:
    return Bundle({60: pa.record_batch({"n": [1]})})


def test_a_condition_that_holds_does_nothing() -> None:
    invariant(condition=True, what="never raised")


def test_a_broken_invariant_is_reported_as_a_bug() -> None:
    with pytest.raises(InvariantError, match="bug in Quiver, please report it: two and two are four") as raised:
        invariant(condition=False, what="two and two are four")
    assert isinstance(raised.value, StoreFailedError)
    assert raised.value.what == "two and two are four"


def lose_a_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the writer of segments report one bundle fewer than it was given."""
    write = Sealing.write

    def write_less(self: Sealing, open_log):
        info = write(self, open_log)
        return None if info is None else replace(info, bundle_count=info.bundle_count - 1)

    monkeypatch.setattr(Sealing, "write", write_less)


def test_the_log_keeps_what_a_segment_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "buffer", background=False)
    store.ingest(bundle())
    store.ingest(bundle(), durable=True)
    with monkeypatch.context() as patched:
        lose_a_bundle(patched)
        with pytest.raises(InvariantError, match="the log may forget only what segment 0 contains"):
            store.seal()
        assert store._wal.cursor == 0
    with pytest.raises(StoreFailedError):
        store.ingest(bundle())
    store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_background_thread_that_finds_a_bug_stops_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(store: Store) -> None:
        raise InvariantError("nothing is lost")

    monkeypatch.setattr(Store, "maintain", broken)
    store = open_store(tmp_path / "buffer", Settings(maintain_interval_s=0.01))
    store._background._maintainer.join(30)
    with pytest.raises(StoreFailedError):
        store.ingest(bundle())
    monkeypatch.undo()
    store.close()
