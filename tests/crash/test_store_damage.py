"""
Every file of a store truncated at any byte, and with any byte flipped: never a wrong result, never a hang.

Each run of the default suite tests another sample of the bytes; the slow tests cover every byte.

The directory under test has rotated log files, sealed segments that the log still covers and others that it does
not, a subscriber that has resolved a part, a cursor and a floor file.
"""

from __future__ import annotations

import contextlib
from functools import partial

import pytest

from lanes import every, with_stride
from quiver import Bundle, BundleUnavailableError, CorruptionError, QuiverError, Settings, read
from quiver.bundle import BundleRef
from quiver.testing.crashfs import CrashFileSystem
from store_rig import open_manual, stamped

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/b"
BUNDLES = 11
SETTINGS = Settings(segment_bytes_max=1_000, wal_rotate_bytes=700, wal_bytes_max=40_000, delete_grace_s=0.0)
opened = partial(open_manual, settings=SETTINGS, root=ROOT)


def number_of(bundle: Bundle) -> int:
    number = bundle[30]["n"][0].as_py()
    assert bundle == stamped(number), "a bundle came back changed"
    return number


@pytest.fixture(scope="module")
def directory() -> CrashFileSystem:
    """A store killed while working: bundles 0 to 10, of which `s` has acknowledged the first two, durably."""
    fs = CrashFileSystem()
    store = opened(fs)
    subscriber = store.register("s", start="earliest")
    for number in range(BUNDLES):
        store.ingest(stamped(number))
        if number == 4:
            for _ in range(2):
                handle = subscriber.next_bundle(timeout=0)
                assert handle is not None
                handle.ack()
            store.maintain()
    return fs.clone_after_kill()


def data_files(fs: CrashFileSystem) -> list[str]:
    found = [f"{ROOT}/{name}" for name in fs.list_dir(ROOT) if name.startswith("quiver.sub.s")]
    for room in ("wal", "segments"):
        found += [f"{ROOT}/{room}/{name}" for name in fs.list_dir(f"{ROOT}/{room}")]
    return [path for path in found if not path.endswith(".lock")]


def contents(fs: CrashFileSystem) -> tuple[list[int], list[int]]:
    """The bundles that a reader without a writer sees, and those that a recovered store delivers."""
    reader = read(ROOT, fs=fs)
    seen = [number_of(bundle) for _, bundle in reader.bundles()]
    store = opened(fs)
    store.seal()
    refs = [
        BundleRef(info.seq, index) for info in store.internals.catalog.segments() for index in range(info.bundle_count)
    ]
    kept = []
    for ref in refs:
        with contextlib.suppress(BundleUnavailableError, CorruptionError):  # quarantined when its checksum was wrong
            kept.append(number_of(store.internals.catalog.bundle(ref)))
    got = []
    subscriber = store.register("s", start="earliest")
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        got.append(number_of(handle.bundle))
        handle.ack()
    store.close()
    assert set(got) <= set(kept)
    return seen, kept


def test_the_directory_has_every_kind_of_file(directory: CrashFileSystem) -> None:
    """Otherwise the tests below would check less than they claim."""
    names = {path.rpartition("/")[2] for path in data_files(directory)}
    assert {"quiver.wal", "quiver.wal.cursor", "quiver.sub.s"} <= names
    assert any(name.endswith(".qseg") for name in names)
    assert contents(directory.clone_after_kill()) == (list(range(BUNDLES)), list(range(BUNDLES)))


def lost_at_most(path: str) -> int:
    """The number of bundles that one damaged byte may lose: those of one segment, or one entry of the log."""
    return 4 if path.endswith(".qseg") else 1


@with_stride(33)
def test_a_flipped_byte_loses_at_most_its_entry_or_segment(directory: CrashFileSystem, stride: int) -> None:
    """Everything else is delivered unchanged, in order, once; or opening is refused with path and offset."""
    refused = 0
    for path in data_files(directory):
        size = directory.stat(path).size_bytes
        for offset in every(stride, range(size)):
            fs = directory.clone_after_kill()
            flip(fs, path, offset)
            try:
                seen, kept = contents(fs)
            except QuiverError as error:
                refused += 1
                assert path in str(error), f"{path} at {offset}: {error}"
                assert refused < 60, f"{path} at {offset}: {error}"
                continue
            for what in (seen, kept):
                assert sorted(set(what)) == sorted(what), f"{path} at {offset}: twice: {what}"
                missing = set(range(BUNDLES)) - set(what)
                assert len(missing) <= lost_at_most(path), f"{path} at {offset}: {sorted(missing)} are missing"
                assert set(what) <= set(range(BUNDLES))


@with_stride(51)
def test_a_truncated_file_loses_at_most_the_removed_part(directory: CrashFileSystem, stride: int) -> None:
    """Truncated at every byte, including to an empty file."""
    for path in data_files(directory):
        size = directory.stat(path).size_bytes
        for length in {0, *every(stride, range(size))}:
            fs = directory.clone_after_kill()
            cut(fs, path, length)
            try:
                seen, kept = contents(fs)
            except QuiverError as error:
                assert path in str(error), f"{path} cut to {length}: {error}"
                continue
            for what in (seen, kept):
                assert sorted(set(what)) == sorted(what), f"{path} cut to {length}: twice: {what}"
                assert set(what) <= set(range(BUNDLES))
                if not path.rpartition("/")[2].startswith("quiver.wal"):
                    assert len(set(range(BUNDLES)) - set(what)) <= lost_at_most(path), f"{path} cut to {length}"


def flip(fs: CrashFileSystem, path: str, offset: int) -> None:
    data = bytearray(fs.read_all(path, size_max=1 << 30))
    data[offset] ^= 0x41
    rewrite(fs, path, bytes(data))


def cut(fs: CrashFileSystem, path: str, length: int) -> None:
    rewrite(fs, path, fs.read_all(path, size_max=1 << 30)[:length])


def rewrite(fs: CrashFileSystem, path: str, data: bytes) -> None:
    fs.remove(path)  # a sealed segment is read-only
    file = fs.create(path)
    file.pwrite(data, 0)
    file.sync()
    file.close()
