"""The cache contains the newest messages without a gap, never more than its limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.topics.cache import MessageCache

SIZES = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 400)), max_size=60)


@given(SIZES, st.sampled_from([1, 2, 3, 16, 17, 50]), st.sampled_from([1, 10, 100, 1000, 100_000]), st.integers(0, 9))
def test_the_cache_contains_the_newest_messages(sizes, count_max, bytes_max, first_offset):
    """It equals the end of a list, up to the limits less one block; the newest message stays, however large it is."""
    cache = MessageCache(count_max=count_max, bytes_max=bytes_max, first_offset=first_offset)
    every: list[bytes] = []
    for number, size in enumerate(sizes):
        every.append(bytes([number % 251]) * size)
        cache.add(every[-1])
        count = len(cache)
        assert 1 <= count <= count_max
        assert cache.nbytes == sum(map(len, every[-count:]))
        assert cache.nbytes <= bytes_max or count == 1
        assert cache.first_offset == first_offset + len(every) - count
        if len(every) > count:
            block = max(1, count_max // 16)
            assert (
                count + block >= count_max
                or cache.nbytes + bytes_max // 16 + max(map(len, every)) > bytes_max * 15 // 16
            )
    for offset in range(first_offset, first_offset + len(every) + 2):
        for most in (1, 7, 1000):
            found = cache.take(offset, count_max=most)
            removed = offset < cache.first_offset
            assert found == ([] if removed else every[offset - first_offset :][:most])


@pytest.mark.parametrize("count_max", [1, 16, 1024])
def test_eviction_keeps_a_full_cache_nearly_full(count_max):
    """It evicts one block at a time, a sixteenth of the cache."""
    cache = MessageCache(count_max=count_max, bytes_max=1 << 20, first_offset=0)
    for _ in range(5 * count_max):
        cache.add(b"x")
        if cache.first_offset:
            assert len(cache) > count_max - 2 * max(1, count_max // 16)
