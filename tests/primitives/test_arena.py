"""Arenas: regions do not overlap, blocks are reused."""

from __future__ import annotations

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.primitives import arena as arena_module
from quiver.primitives.arena import BLOCK_BYTES, Arena, BlockPool


@given(st.lists(st.integers(0, 3 * BLOCK_BYTES // 2), max_size=6))
def test_regions_keep_their_bytes(sizes: list[int]) -> None:
    """Also if they are larger than a block."""
    arena = Arena(BlockPool(keep_bytes_max=4 * BLOCK_BYTES))
    regions = []
    for number, size in enumerate(sizes):
        region = arena.take(size)
        assert len(region) == size
        if size:
            region[0] = region[-1] = number
        regions.append(region)
    for number, region in enumerate(regions):
        if len(region):
            assert region[0] == region[-1] == number
    del regions
    arena.release()


def test_released_blocks_are_reused() -> None:
    """The second arena allocates no memory."""
    pool = BlockPool(keep_bytes_max=BLOCK_BYTES)
    first = Arena(pool)
    first.take(5)[:] = memoryview(b"hello").cast("b")
    first.release()
    assert bytes(Arena(pool).take(5)) == b"hello"


def test_the_pool_keeps_no_more_than_its_limit() -> None:
    """Two blocks are returned, one is kept."""
    pool = BlockPool(keep_bytes_max=BLOCK_BYTES)
    blocks = [pool.borrow(10), pool.borrow(10)]
    blocks[0][0] = 7
    pool.give_back(blocks)
    assert pool.borrow(10)[0] == 7
    assert pool.borrow(10)[0] == 0


def test_the_newest_region_can_be_returned() -> None:
    """A refused append leaves no hole."""
    arena = Arena(BlockPool(keep_bytes_max=BLOCK_BYTES))
    arena.take(13)
    second = arena.take(100)
    second[0] = 9
    arena.untake(second)
    assert arena.take(100)[0] == 9


def test_a_pool_prepares_all_blocks_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with few bytes does not occupy a whole block."""
    mapped = []
    map_block = arena_module._map

    def mapping(nbytes: int, flags: int) -> mmap.mmap:
        mapped.append(flags)
        return map_block(nbytes, flags)

    monkeypatch.setattr(arena_module, "_map", mapping)
    pool = BlockPool(keep_bytes_max=BLOCK_BYTES)
    for nbytes in (10, BLOCK_BYTES, 2 * BLOCK_BYTES):
        pool.borrow(nbytes)
    assert mapped == [0, arena_module._POPULATE, arena_module._POPULATE]
