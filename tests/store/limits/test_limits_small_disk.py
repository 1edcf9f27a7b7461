"""
A disk that is smaller than the settings require: the log leaves space for the segment, so that data
flows through.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest
from limits_disk import SmallDisk

from quiver import Bundle, CapacityError, Store
from store_rig import numbered, open_small

pytestmark = pytest.mark.usefixtures("quiet")

MIB = 1 << 20
bundle_of = partial(numbered, size=20_000)


def opened(disk: SmallDisk, **changes: object) -> Store:
    large = {
        "segment_bytes_max": MIB,
        "wal_rotate_bytes": 2 * MIB,
        "wal_bytes_max": 256 * MIB,
        "segment_open_s_max": 1e6,
    }
    return open_small(disk, root="/small", **{**large, **changes})


class HonestDisk(SmallDisk):
    """Reports its free space."""

    def free_bytes(self, path: str) -> int:
        return max(0, self.capacity - self.used())


@pytest.mark.parametrize("durability", ["wal", "segment_only"])
@pytest.mark.parametrize("capacity", [MIB // 2, MIB, 3 * MIB // 2, 5 * MIB // 2])
def test_all_bundles_pass_a_disk_smaller_than_a_log_and_two_segments(capacity: int, durability: str) -> None:
    """
    A refused bundle is accepted once a subscriber has acknowledged: the log never has bundles that cannot be
    sealed.
    """
    disk = HonestDisk(capacity)
    got: list[int] = []
    with opened(disk, durability=durability) as store:
        subscriber = store.register("s", start="earliest")
        refused = 0
        for number in range(300):
            for _ in range(5):
                try:
                    store.ingest(bundle_of(number))
                except CapacityError as full:
                    assert full.what.startswith("the disk of /small is full (")
                    refused += 1
                else:
                    break
                while (handle := subscriber.next_bundle(timeout=0)) is not None:
                    got.append(handle.bundle[30]["n"][0].as_py())
                    handle.ack()
                store.maintain()
            else:
                raise AssertionError(f"bundle {number} never came in")
        assert refused
        store.seal()
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            got.append(handle.bundle[30]["n"][0].as_py())
            handle.ack()
    assert got == list(range(300))


def test_schemas_count_in_the_size_of_a_segment() -> None:
    """A file has each schema twice: with small bundles of different schemas, that is most of it."""
    disk = HonestDisk(3 * MIB)
    got = 0
    with opened(disk, segment_bytes_max=2 * MIB) as store:
        subscriber = store.register("s", start="earliest")
        for number in range(400):
            names = [f"column_{number}_{column}" for column in range(60)]
            bundle = Bundle({30: pa.record_batch({name: [1] for name in names})})
            for _ in range(3):
                try:
                    store.ingest(bundle)
                except CapacityError:
                    while (handle := subscriber.next_bundle(timeout=0)) is not None:
                        handle.ack()
                        got += 1
                    store.maintain()
                else:
                    break
            else:
                raise AssertionError(f"bundle {number} never came in")
        store.seal()
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            handle.ack()
            got += 1
    assert got == 400


def test_with_drop_oldest_a_small_disk_never_refuses() -> None:
    """The oldest segments are dropped; the newest are left."""
    disk = HonestDisk(3 * MIB)
    with opened(disk, size_cap_policy="drop_oldest") as store:
        store.register("s", start="earliest")
        for number in range(400):
            store.ingest(bundle_of(number))
        store.seal()
        subscriber = store.register("s", start="earliest")
        kept = []
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            kept.append(handle.bundle[30]["n"][0].as_py())
            handle.ack()
    assert kept == list(range(kept[0], 400))
    assert 0 < kept[0] < 400


def test_a_disk_without_a_known_size_is_used_until_enospc() -> None:
    """The store then reacts to ENOSPC."""

    class Silent(SmallDisk):
        def free_bytes(self, path: str) -> int:
            raise OSError(38, "Function not implemented", path)

    disk = Silent(MIB)
    with opened(disk) as store:
        with pytest.raises(CapacityError, match="the disk of"):
            for number in range(100):
                store.ingest(bundle_of(number))
        disk.capacity = 100 * MIB
