"""
A directory that is renamed while its store is open: the store detects and reports it, and writes nothing to the old
path.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import quiver
from quiver import StoreFailedError
from store_rig import numbered, numbers_of

SETTINGS = quiver.Settings(wal_rotate_bytes=2000, wal_bytes_max=100_000, segment_bytes_max=100_000)


def numbers(path: Path) -> list[int]:
    return numbers_of(quiver.read(path).bundles())


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("call", ["maintain", "seal", "rotate", "close"])
def test_another_store_at_the_old_path_is_not_changed(
    tmp_path: Path, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first store writes nothing to the old path; its accepted data is in the moved directory."""
    first = quiver.open(tmp_path / "buffer", SETTINGS, background=False)
    subscriber = first.register("s", start="earliest")
    first.ingest(numbered(0), durable=True)
    first.seal()
    handle = subscriber.next_bundle(timeout=0)
    assert handle is not None
    handle.ack()
    first.ingest(numbered(1), durable=True)
    (tmp_path / "buffer").rename(tmp_path / "moved")
    with quiver.open(tmp_path / "buffer", SETTINGS, background=False) as second:
        second.register("s", start="earliest")
        second.ingest(numbered(100), durable=True)
        before = files_of(tmp_path / "buffer")
        if call == "close":
            first.close()
        elif call == "rotate":
            with pytest.raises(StoreFailedError, match="moved or removed"):
                for number in range(2, 100):
                    first.ingest(numbered(number, size=500))
        else:
            with pytest.raises(StoreFailedError, match="moved or removed"):
                getattr(first, call)()
        if call != "close":
            with pytest.raises(StoreFailedError, match="open the directory where it is now"):
                first.ingest(numbered(2))
        first.close()
        assert files_of(tmp_path / "buffer") == before
    assert numbers(tmp_path / "buffer") == [100]
    with quiver.open(tmp_path / "moved", SETTINGS, background=False) as again:
        again.seal()
        assert numbers(tmp_path / "moved")[:2] == [0, 1]
    assert caplog.text.count("quiver.engine.moved") == 1


def test_a_name_in_a_moved_directory_is_not_confirmed(tmp_path: Path) -> None:
    """The first sync after a rotation makes the name of the new file durable; at the old path it would sync another."""
    first = quiver.open(tmp_path / "buffer", SETTINGS, background=False)
    number = 0
    while first.stats()["wal_files"] == 1:
        first.ingest(numbered(number, size=500))
        number += 1
    (tmp_path / "buffer").rename(tmp_path / "moved")
    (tmp_path / "buffer" / "wal").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(StoreFailedError, match="moved or removed"):
            first.sync()
    first.close()
    assert numbers(tmp_path / "moved") == list(range(number))


@pytest.mark.parametrize("has_failed", [False, True])
@pytest.mark.parametrize("call", ["register", "again", "take", "unregister", "drop_orphan", "rewind", "release"])
def test_subscribers_of_another_store_are_not_changed(tmp_path: Path, call: str, has_failed: bool) -> None:
    """Also when the move was detected before: nothing is locked, created or removed at the old path."""
    with quiver.open(tmp_path / "buffer", SETTINGS, background=False) as made:
        made.register("orphan", start="earliest")
    first = quiver.open(tmp_path / "buffer", SETTINGS, background=False)
    known, owned = first.register("known", start="earliest"), first.register("owned", start="earliest")
    first.ingest(numbered(0))
    first.seal()
    assert owned.next_bundle(timeout=0) is not None
    (tmp_path / "buffer").rename(tmp_path / "moved")
    with quiver.open(tmp_path / "buffer", SETTINGS, background=False) as second:
        for name in ("orphan", "known", "owned"):
            second.register(name, start="earliest")
        if has_failed:
            with pytest.raises(StoreFailedError):
                first.maintain()
        before = files_of(tmp_path / "buffer")
        with pytest.raises(StoreFailedError, match="moved or removed"):
            {
                "register": lambda: first.register("new"),
                "again": lambda: first.register("known"),
                "take": lambda: known.next_bundle(timeout=0),
                "unregister": lambda: first.unregister("known"),
                "drop_orphan": lambda: first.drop_orphan("orphan"),
                "rewind": lambda: first.rewind("known", "earliest"),
                "release": owned.release,
            }[call]()
        first.close()
        assert files_of(tmp_path / "buffer") == before


def test_a_removed_lock_file_is_detected(tmp_path: Path) -> None:
    """A second store could open the directory by now."""
    store = quiver.open(tmp_path, background=False)
    (tmp_path / "quiver.lock").unlink()
    with pytest.raises(StoreFailedError, match=r"quiver\.lock was removed"):
        store.maintain()
    store.close()


def test_a_move_is_detected_in_the_background(tmp_path: Path) -> None:
    """The next call raises an error."""
    store = quiver.open(tmp_path / "buffer")
    store.ingest(numbered(1))
    (tmp_path / "buffer").rename(tmp_path / "moved")
    with pytest.raises(StoreFailedError, match="moved or removed"):
        for number in range(1_000_000):
            store.ingest(numbered(number))
            store.sync()
    store.close()
