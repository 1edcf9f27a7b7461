"""
The contract of object tiers: inherit it and provide a tier, to test an implementation against the port.

::

    class TestMyTier(ObjectTierContract):
        @pytest.fixture
        def tier(self): ...            # a quiver.objects.port.ObjectTier, empty
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

from quiver.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectsUnavailableError,
    UsageError,
)
from quiver.objects.port import ObjectTier

__all__ = ["ObjectTierContract"]

_PART_BYTES = 5 << 20
"""The minimum part size of multipart uploads, except for the last part."""


def _require(condition: bool, promise: str) -> None:  # noqa: FBT001
    if not condition:
        raise AssertionError(f"broken promise: {promise}")


def _refused(kind: type[Exception], call: Callable[[], object], promise: str) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"broken promise: {promise}")


def _keys(tier: ObjectTier, prefix: str, after: str = "") -> list[str]:
    return [info.key for info in tier.list_below(prefix, after=after)]


class ObjectTierContract:
    """Tests for every `ObjectTier`. Subclasses provide the fixture ``tier``."""

    def test_get_returns_what_was_put(self, tier: ObjectTier) -> None:
        """Objects are read completely and in ranges; any buffer is accepted, also an empty one."""
        for key, data in (
            ("a/one", b"hello"),
            ("a/two", memoryview(b"hello")),
            ("a/none", b""),
            ("x", bytearray(b"h")),
        ):
            info = tier.put(key, data)
            _require(info.key == key and info.size_bytes == len(data), "put describes the object")
            _require(tier.get(key, size_max=5) == bytes(data), "get returns the bytes")
        _require(tier.get_range("a/one", 1, 3) == b"ell", "a range is a part")
        _require(tier.get_range("a/one", 3, 99) == b"lo", "a range ends at the object's end")
        _require(tier.get_range("a/one", 5, 1) == b"", "a range past the end is empty")
        _require(tier.get_range("a/none", 0, 1) == b"", "an empty object has no bytes")
        _require(tier.get_ranges("a/one", [(0, 1), (4, 1), (1, 2), (9, 2)]) == [b"h", b"o", b"el", b""], "many ranges")
        _require(tier.get_ranges("a/one", []) == [], "no ranges, no pieces")
        _refused(UsageError, lambda: tier.get("a/one", size_max=4), "an object above size_max is refused")

    def test_a_put_replaces_all(self, tier: ObjectTier) -> None:
        """A shorter object replaces a longer one completely and has another etag."""
        before = tier.put("k", b"a long object")
        after = tier.put("k", b"short")
        _require(tier.get("k", size_max=99) == b"short", "only the new object is left")
        _require(before.etag is None or before.etag != after.etag, "the etag changes")
        _require(tier.head("k") == after, "head returns the same as put")

    def test_a_put_if_absent_never_replaces(self, tier: ObjectTier) -> None:
        """The second put is refused and changes nothing."""
        tier.put("k", b"first", if_absent=True)
        _refused(ObjectExistsError, lambda: tier.put("k", b"second", if_absent=True), "the second is refused")
        _require(tier.get("k", size_max=99) == b"first", "the first stays")

    def test_one_of_two_concurrent_puts_if_absent_wins(self, tier: ObjectTier) -> None:
        """Threads race for one key: exactly one succeeds, and the object has its bytes."""
        won: list[bytes] = []
        start = threading.Barrier(2)

        def race(name: bytes) -> None:
            start.wait()
            try:
                tier.put("race", name, if_absent=True)
            except ObjectExistsError:
                return
            won.append(name)

        threads = [threading.Thread(target=race, args=(b"%d" % number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _require(len(won) == 1 and tier.get("race", size_max=9) == won[0], "one wins")

    def test_a_put_if_match_replaces_one_version(self, tier: ObjectTier) -> None:
        """Only the object with the etag is replaced; a changed or removed one is left as it is."""
        first = tier.put("k", b"first")
        if first.etag is None:
            return
        second = tier.put("k", b"second", if_match=first.etag)
        _require(tier.get("k", size_max=99) == b"second" and tier.head("k") == second, "the match is replaced")
        _refused(ObjectChangedError, lambda: tier.put("k", b"third", if_match=first.etag), "another version is refused")
        _require(tier.get("k", size_max=99) == b"second", "a refused put changes nothing")
        tier.delete(["k"])
        _refused(ObjectChangedError, lambda: tier.put("k", b"4th", if_match=second.etag), "a missing object is refused")
        _refused(ObjectNotFoundError, lambda: tier.head("k"), "a refused put creates nothing")

    def test_one_of_two_concurrent_puts_if_match_wins(self, tier: ObjectTier) -> None:
        """Threads replace one version: exactly one succeeds, and the object has its bytes."""
        etag = tier.put("race", b"before").etag
        won: list[bytes] = []
        start = threading.Barrier(2)

        def race(name: bytes) -> None:
            start.wait()
            try:
                tier.put("race", name, if_match=etag)
            except (ObjectChangedError, ObjectsUnavailableError):
                return
            won.append(name)

        threads = [threading.Thread(target=race, args=(b"%d" % number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _require(len(won) == 1 and tier.get("race", size_max=9) == won[0], "one wins")

    def test_missing_objects_are_errors(self, tier: ObjectTier) -> None:
        """Calls that need an existing object raise ObjectNotFoundError; a folder is not an object."""
        tier.put("folder/k", b"")
        for key in ("missing", "folder", "folder/k/below"):
            _refused(ObjectNotFoundError, partial(tier.get, key, size_max=9), "nothing to get")
            _refused(ObjectNotFoundError, partial(tier.get_range, key, 0, 1), "no range")
            _refused(ObjectNotFoundError, partial(tier.head, key), "nothing to describe")
            _refused(ObjectNotFoundError, partial(tier.copy, key, "other"), "nothing to copy")
        _refused(ObjectNotFoundError, lambda: tier.get_ranges("missing", [(0, 1)]), "no ranges")
        _require(_keys(tier, "") == ["folder/k"], "nothing was made")

    def test_parts_become_one_object(self, tier: ObjectTier) -> None:
        """Parts of any size are joined, for uploads of many parts, one part and none."""
        pieces = [bytes([number]) * (1 << 20) for number in range(12)]
        info = tier.put_parts("big", lambda: iter(pieces), part_bytes=_PART_BYTES, parallel=2)
        _require(info.size_bytes == 12 << 20, "all parts are in it")
        for number in range(12):
            _require(tier.get_range("big", (number << 20) - 1 if number else 0, 2)[-1] == number, "in their order")
        tier.put_parts("small", lambda: [b"a", b"", b"bc"], part_bytes=_PART_BYTES)
        _require(tier.get("small", size_max=9) == b"abc", "small parts are joined")

    def test_an_error_of_the_parts_leaves_the_object_unchanged(self, tier: ObjectTier) -> None:
        """The caller's error is raised, and the key is unchanged."""
        tier.put("k", b"before")

        def broken(count: int) -> Iterator[bytes]:
            for _ in range(count):
                yield bytes(_PART_BYTES)
            raise FileNotFoundError("no more")

        for count in (0, 1, 3):
            for key in ("k", "new"):
                call = partial(tier.put_parts, key, partial(broken, count), part_bytes=_PART_BYTES)
                _refused(FileNotFoundError, call, "the error is raised")
        _require(tier.get("k", size_max=99) == b"before", "the old object stays")
        _require(_keys(tier, "") == ["k"], "no partial object has a key")

    def test_lists_are_in_order(self, tier: ObjectTier) -> None:
        """Listings are ordered by the bytes of the keys, below a folder, after a key; a folder is not a name prefix."""
        keys = sorted(["a/b", "a/b/c", "a-b", "a/c.dnb1", "a.b", "ab", "a/Z", "h/k=x%2Fz", "z/00000000000000000010"])
        for key in reversed([key for key in keys if key != "a/b"]):
            tier.put(key, key.encode())
        keys.remove("a/b")
        _require(_keys(tier, "") == keys, "all, in order")
        _require(_keys(tier, "a") == _keys(tier, "a/") == ["a/Z", "a/b/c", "a/c.dnb1"], "a folder")
        _require(_keys(tier, "a", "a/Z") == ["a/b/c", "a/c.dnb1"], "after a key")
        _require(_keys(tier, "a", "a/aa") == ["a/b/c", "a/c.dnb1"], "after a key that does not exist")
        _require(_keys(tier, "a", "b") == [], "after all")
        _require(_keys(tier, "none") == [], "no such folder")
        _require([info.size_bytes for info in tier.list_below("z")] == [22], "with their sizes")

    def test_delete_is_idempotent(self, tier: ObjectTier) -> None:
        """Many keys are deleted in one call; missing ones are ignored."""
        for number in range(7):
            tier.put(f"d/{number}", b"x")
        tier.delete([f"d/{number}" for number in range(5)] + ["d/9", "none/such"])
        _require(_keys(tier, "") == ["d/5", "d/6"], "the others stay")
        tier.delete(["d/5", "d/5"])
        tier.delete([])
        tier.delete(["d/9"])
        _require(_keys(tier, "") == ["d/6"], "another delete is fine")

    def test_a_copy_is_independent(self, tier: ObjectTier) -> None:
        """A copy replaces its target unless if_absent is set, and does not follow its source."""
        tier.put("from", b"bytes")
        _require(tier.copy("from", "to/there").size_bytes == 5, "copy describes the target")
        _refused(ObjectExistsError, lambda: tier.copy("from", "to/there", if_absent=True), "the target exists already")
        tier.copy("from", "to/new", if_absent=True)
        tier.put("from", b"changed")
        _require(tier.get("to/there", size_max=9) == tier.get("to/new", size_max=9) == b"bytes", "copies stay")
        tier.copy("from", "to/there")
        _require(tier.get("to/there", size_max=9) == b"changed", "a copy may replace")

    def test_invalid_keys_are_refused(self, tier: ObjectTier) -> None:
        """A key never leads out of the location, and means the same in every location."""
        for key in (
            "",
            "/a",
            "a/",
            "a//b",
            "../a",
            "a/../b",
            ".a",
            "a/.b",
            "a b",
            "a\\b",
            "a\n",
            "ä",
            "%2e%2e/a",
            "x" * 999,
        ):
            for call in (
                partial(tier.put, key, b""),
                partial(tier.get, key, size_max=1),
                partial(tier.head, key),
                partial(tier.delete, [key]),
                partial(tier.put_parts, key, list),
            ):
                _refused(UsageError, call, f"{key!r} is refused")
        _refused(UsageError, lambda: tier.get_range("a", -1, 1), "a range begins inside the object")
        _refused(UsageError, lambda: tier.get_range("a", 0, 0), "a range has bytes")
        _refused(UsageError, lambda: list(tier.list_below("../a")), "a folder must be valid, too")
