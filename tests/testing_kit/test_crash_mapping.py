"""Mappings in the crashing file system: a write is visible at once, durable after a sync, and torn by blocks."""

import pytest

from quiver.errors import StoreClosedError, UsageError
from quiver.testing.crash_nodes import BLOCK_BYTES
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem


def mapped(blocks=4, fs=None):
    fs = fs or CrashFileSystem()
    file = fs.create("/f")
    file.reserve(0, blocks * BLOCK_BYTES)
    file.sync()
    fs.sync_dir("/")
    return fs, file, file.map_write()


def contents(fs):
    return fs.read_all("/f", size_max=1 << 20)


def test_a_store_is_visible_and_not_durable():
    """Readers, other mappings and the next process see it; a power loss removes it."""
    fs, file, mapping = mapped()
    mapping.view()[5_000:5_004] = b"data"
    assert contents(fs)[5_000:5_004] == b"data"
    assert bytes(file.map_write().view()[5_000:5_004]) == b"data"
    assert contents(fs.clone_after_kill())[5_000:5_004] == b"data"
    assert contents(fs.clone_after_crash(0))[5_000:5_004] == bytes(4)
    assert contents(fs.clone_after_crash(1))[5_000:5_004] == b"data"
    mapping.sync()
    mapping.view()[0:4] = b"late"
    lost = contents(fs.clone_after_crash(0))
    assert (lost[5_000:5_004], lost[:4]) == (b"data", bytes(4))


def test_a_power_loss_keeps_any_of_the_blocks():
    """The first store may be lost while the last one survives; no block is partly written."""
    fs, _, mapping = mapped()
    for index in range(4):
        mapping.view()[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES] = b"x" * BLOCK_BYTES
    kept = set()
    for seed in range(60):
        found = contents(fs.clone_after_crash(seed))
        blocks = [found[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES] for index in range(4)]
        assert set(blocks) <= {b"x" * BLOCK_BYTES, bytes(BLOCK_BYTES)}
        kept.add(tuple(block[0] != 0 for block in blocks))
    assert any(not first and last for first, *_, last in kept)
    assert len(kept) > 4


def test_writes_and_stores_are_one_file():
    """The last change wins on both sides; truncating the file under the mapping is refused."""
    fs, file, mapping = mapped()
    view = mapping.view()
    view[:4] = b"aaaa"
    file.pwrite(b"bb", 1)
    assert bytes(view[:4]) == b"abba"
    view[0:1] = b"c"
    assert file.pread(4, 0) == b"cbba"
    with pytest.raises(UsageError):
        file.truncate(10)
    file.truncate(9 * BLOCK_BYTES)
    assert contents(fs)[:4] == b"cbba"


def test_after_a_failed_sync_only_rewritten_pages_reach_the_disk():
    """A second sync succeeds and does nothing; the pages must be written again."""
    disk = CrashFileSystem()
    fs, _, mapping = mapped(fs=FaultFileSystem(disk))
    mapping.view()[:4] = b"lost"
    fs.fail_on("sync", 1)
    with pytest.raises(OSError, match="Input/output"):
        mapping.sync()
    mapping.sync()
    assert contents(disk)[:4] == b"lost"
    assert contents(disk.clone_after_crash(1))[:4] == bytes(4)
    mapping.touch(0, 4)
    mapping.sync()
    assert contents(disk.clone_after_crash(0))[:4] == b"lost"


def test_a_closed_mapping():
    """Earlier stores stay; its view is refused; other mappings stay valid."""
    fs, file, mapping = mapped()
    other = file.map_write()
    mapping.view()[:4] = b"kept"
    mapping.close()
    mapping.close()
    with pytest.raises(StoreClosedError):
        mapping.view()
    assert bytes(other.view()[:4]) == b"kept"
    other.close()
    assert contents(fs)[:4] == b"kept"
