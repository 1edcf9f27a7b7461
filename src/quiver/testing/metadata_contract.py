"""
The contract of metadata stores: inherit it and provide a store, to test an implementation against the port.

::

    class TestMyStore(MetadataContract):
        @pytest.fixture
        def store(self): ...           # a quiver.metadata.port.MetadataStore
        @pytest.fixture
        def root(self): ...            # a key prefix that is not used yet
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from quiver.errors import UsageError
from quiver.metadata.port import CHANGES_MAX, VALUE_BYTES_MAX, MetadataStore

__all__ = ["MetadataContract"]


def _require(condition: bool, promise: str) -> None:  # noqa: FBT001
    if not condition:
        raise AssertionError(f"broken promise: {promise}")


def _refused(call: Callable[[], object], promise: str) -> None:
    try:
        call()
    except UsageError:
        return
    raise AssertionError(f"broken promise: {promise}")


class MetadataContract:
    """Tests for every `MetadataStore`. Subclasses provide the fixtures ``store`` and ``root``."""

    def test_get_returns_committed_values(self, store: MetadataStore, root: str) -> None:
        """Values are returned unchanged, with the revision of their commit; revisions only grow."""
        _require(store.get(f"{root}k") is None, "an unwritten key does not exist")
        values = [b"", b"text", bytes(range(256)), "ü".encode()]
        revisions = []
        for value in values:
            revision = store.commit({f"{root}k": value})
            found = store.get(f"{root}k")
            _require(found is not None and found.value == value and found.key == f"{root}k", "the value is returned")
            _require(found is not None and found.revision == revision, "with its revision")
            revisions.append(revision or 0)
        _require(revisions == sorted(set(revisions)), "revisions grow")

    def test_a_commit_is_all_or_nothing(self, store: MetadataStore, root: str) -> None:
        """All keys change with one revision, or none changes."""
        first = store.commit({f"{root}a": b"1", f"{root}b": b"2"}) or 0
        _require({one.revision for one in store.range(root)} == {first}, "one revision for both")
        changes = {f"{root}a": b"x", f"{root}b": None, f"{root}c": b"x"}
        _require(store.commit(changes, expect={f"{root}a": first, f"{root}b": first + 999}) is None, "not as expected")
        _require([one.value for one in store.range(root)] == [b"1", b"2"], "nothing changed")
        _require(store.commit(changes, expect={f"{root}a": first, f"{root}b": first}) is not None, "as expected")
        _require([one.value for one in store.range(root)] == [b"x", b"x"], "everything changed")

    def test_revision_zero_expects_a_missing_key(self, store: MetadataStore, root: str) -> None:
        """Revision 0 means that the key does not exist, also after it was removed."""
        key = f"{root}k"
        first = store.commit({key: b"1"}, expect={key: 0})
        _require(first is not None, "the key did not exist")
        _require(store.commit({key: b"2"}, expect={key: 0}) is None, "the key exists now")
        _require(store.commit({key: None}, expect={key: first or 0}) is not None, "it is removed")
        _require(store.get(key) is None, "the key no longer exists")
        _require(store.commit({key: None}) is not None, "removing it again is fine")
        again = store.commit({key: b"3"}, expect={key: 0})
        _require(again is not None and again > (first or 0), "created again, with a new revision")
        _require(store.commit({}, expect={key: again or 0}) is not None, "a commit may only check")

    def test_ranges_are_in_order(self, store: MetadataStore, root: str) -> None:
        """Ranges are ordered by the bytes of the keys, below a prefix, from a start, up to a limit."""
        names = [
            "objects/00000000000000000009",
            "objects/00000000000000001000",
            "objects/cur",
            "objectsx",
            "ü",
            "z",
            "Z",
        ]
        keys = sorted((root + name for name in names), key=str.encode)
        store.commit(dict.fromkeys(reversed(keys), b"v"))
        _require([one.key for one in store.range(root)] == keys, "all, in order")
        objects = [key for key in keys if key.startswith(f"{root}objects/")]
        _require([one.key for one in store.range(f"{root}objects/")] == objects, "below a prefix")
        _require([one.key for one in store.range(f"{root}objects/", limit=2)] == objects[:2], "up to a limit")
        start = f"{root}objects/00000000000000000010"
        _require([one.key for one in store.range(f"{root}objects/", start=start)] == objects[1:], "from a start")
        _require(store.range(f"{root}objects/", start=f"{root}z") == [], "from after all")
        _require(store.range(f"{root}none") == [], "no such prefix")
        _refused(lambda: store.range(root, limit=0), "a limit is at least one")

    def test_values_beyond_the_limits_are_refused(self, store: MetadataStore, root: str) -> None:
        """Limits are the same for all stores, so that a move to another store loses nothing."""
        store.commit({f"{root}large": bytes(VALUE_BYTES_MAX)})
        found = store.get(f"{root}large")
        _require(found is not None and len(found.value) == VALUE_BYTES_MAX, "the largest value is returned")
        _refused(lambda: store.commit({f"{root}large": bytes(VALUE_BYTES_MAX + 1)}), "a larger one is refused")
        _refused(lambda: store.commit({"": b""}), "a key has characters")
        _refused(lambda: store.commit({"a\0b": b""}), "and no NUL")
        _refused(lambda: store.commit({f"{root}{n}": b"" for n in range(CHANGES_MAX + 1)}), "too many changes")
        _require(
            store.commit({f"{root}{n}": b"" for n in range(CHANGES_MAX)}) is not None, "the maximum number of changes"
        )

    def test_racing_commits_lose_nothing(self, store: MetadataStore, root: str) -> None:
        """Threads increment one number by compare-and-swap: every increment counts once."""
        key, rounds = f"{root}count", 10
        store.commit({key: b"0"})

        def count() -> None:
            for _ in range(rounds):
                while True:
                    found = store.get(key)
                    if found is None:
                        return
                    if store.commit({key: b"%d" % (int(found.value) + 1)}, expect={key: found.revision}):
                        break

        threads = [threading.Thread(target=count) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = store.get(key)
        _require(found is not None and found.value == b"30", "every increment counts once")
