"""The former names of the store's API work for one release, with a warning."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiver


def bundle() -> quiver.Bundle:
    return quiver.Bundle({60: pa.record_batch({"n": [1]})})


def claimed(store: quiver.Store) -> tuple[quiver.Subscriber, Any]:
    """Return a subscriber with one bundle, and the claim on it."""
    subscriber = store.register("s", start="earliest")
    store.ingest(bundle())
    store.seal()
    handle = subscriber.next_bundle(timeout=0)
    assert handle is not None
    return subscriber, handle


@pytest.mark.parametrize("cores", [None, 2])
def test_flush_is_the_former_name_of_seal(tmp_path: Path, cores: int | None) -> None:
    with quiver.open(tmp_path / "buffer", cores=cores) as store:
        subscriber = store.register("s", start="earliest")
        store.ingest(bundle())
        with pytest.warns(DeprecationWarning, match="seal"):
            store.flush()
        assert subscriber.lag().pending_bundles == 1


@pytest.mark.parametrize("cores", [None, 2])
def test_why_is_the_former_name_of_the_reason_of_a_rejection(tmp_path: Path, cores: int | None) -> None:
    with quiver.open(tmp_path / "buffer", cores=cores) as store:
        subscriber, handle = claimed(store)
        with pytest.warns(DeprecationWarning, match=r"reject\(reason=\)"):
            handle.reject(why="no such table")
        assert subscriber.lag().is_drained


@pytest.mark.parametrize("cores", [None, 2])
def test_defer_is_the_former_name_of_nack(tmp_path: Path, cores: int | None) -> None:
    with quiver.open(tmp_path / "buffer", cores=cores) as store:
        subscriber, handle = claimed(store)
        with pytest.warns(DeprecationWarning, match=r"nack\(delay\)"):
            handle.defer(3600)
        assert subscriber.lag().deferred_bundles == 1


@pytest.mark.parametrize("cores", [None, 2])
def test_lag_replaces_the_look_ups_of_a_subscriber(tmp_path: Path, cores: int | None) -> None:
    with quiver.open(tmp_path / "buffer", cores=cores) as store:
        subscriber = store.register("s", start="earliest")
        store.ingest(bundle())
        store.seal()
        lag = subscriber.lag()
        assert (lag.pending_bundles, lag.oldest_incomplete_segment, lag.segments) == (1, 0, (0,))
        assert lag.seconds >= 0
        assert lag.size_bytes > 0
        with pytest.warns(DeprecationWarning, match="pending_bundles"):
            assert subscriber.pending_bundle_count() == 1
        with pytest.warns(DeprecationWarning, match="is_drained"):
            assert not subscriber.is_drained()
        with pytest.warns(DeprecationWarning, match="pending_bundles"):
            assert store.pending_bundle_count("s") == 1


def test_lag_replaces_the_look_ups_of_segments(tmp_path: Path) -> None:
    with quiver.open(tmp_path / "buffer") as store:
        subscriber = store.register("s", start="earliest")
        store.ingest(bundle())
        store.seal()
        assert store.segment_sequences() == [0]
        for owner, args in ((subscriber, ()), (store, ("s",))):
            with pytest.warns(DeprecationWarning, match=r"lag\(.*\)\.oldest_incomplete_segment"):
                assert owner.oldest_incomplete_segment(*args) == 0
            with pytest.warns(DeprecationWarning, match=r"lag\(.*\)\.segments"):
                assert owner.segment_sequences(*args) == [0]
