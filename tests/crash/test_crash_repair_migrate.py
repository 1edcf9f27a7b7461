"""`migrate` between profiles and slot tables keeps data and progress; the next call continues after any crash."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from quiver import Adapter, CorruptionError, DirectoryInUseError, Settings, Store, UnsupportedFormatError
from quiver.bundle import OTAP, OTAP_CONFIG_HASH
from quiver.primitives.checksum import crc32
from quiver.primitives.scan import Frame
from quiver.store.format.progress import progress_checksum
from quiver.store.format.segment.file import (
    SegmentFooter,
    decode_segment_footer,
    encode_segment_footer,
    encode_segment_trailer,
)
from quiver.store.format.segment.ipc_table import decode_table, encode_table
from quiver.store.offline.migrate import migrate
from quiver.store.reading.check import check_store
from quiver.store.segment.reader import SegmentReader
from quiver.store.subscribers.progress_store import SubscriberFile
from quiver.store.wal.replay import find_wal_files
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from store_rig import open_manual, stamped

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/m"
BUNDLES = 14
WEATHER = Adapter("weather", {30: "readings"})


def opened(fs: CrashFileSystem, profile: Any, adapter: Adapter = OTAP) -> Store:
    settings = Settings(
        segment_bytes_max=900,
        wal_rotate_bytes=700,
        wal_bytes_max=60_000,
        wal_files_max=40,
        delete_grace_s=0.0,
        format_profile=profile,
    )
    return open_manual(fs, settings=settings, root=ROOT, adapter=adapter)


def made(profile: Any, adapter: Adapter = OTAP) -> CrashFileSystem:
    """
    Killed at work: `s` has resolved some bundles in the middle, some segments are deleted, some bundles are only
    logged.
    """
    fs = CrashFileSystem()
    store = opened(fs, profile, adapter)
    one, two = store.register("one", start="earliest"), store.register("two", start="earliest")
    for number in range(BUNDLES - 4):
        store.ingest(stamped(number), durable=True)
    store.seal()
    for subscriber, most in ((one, 7), (two, 3)):
        handles = [subscriber.next_bundle(timeout=0) for _ in range(most)]
        for handle in handles:
            assert handle is not None
            if handle.ref.index or handle.ref.segment == 0:
                handle.ack()
    store.maintain()
    for number in range(BUNDLES - 4, BUNDLES):
        store.ingest(stamped(number), durable=True)
    return fs.clone_after_kill()


def pending(fs: CrashFileSystem, profile: Any, adapter: Adapter = OTAP) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    with opened(fs.clone_after_kill(), profile, adapter) as store:
        store.seal()
        for name in ("one", "two"):
            subscriber = store.register(name)
            found[name] = []
            while (handle := subscriber.next_bundle(timeout=0)) is not None:
                found[name].append(handle.bundle[30]["n"][0].as_py())
                handle.ack()
    return found


def hashes(fs: CrashFileSystem) -> set[bytes | None]:
    return {file.config_hash for file in find_wal_files(fs, f"{ROOT}/wal")}


def checksums(fs: CrashFileSystem) -> set[str | None]:
    names = [f"{ROOT}/quiver.sub.{name}" for name in ("one", "two")]
    return {progress_checksum(memoryview(fs.read_all(name, size_max=1 << 20))) for name in names}


def with_item_counts(fs: CrashFileSystem) -> int:
    """Add the extra column to every segment without it, as the other engine does."""
    names = [name for name in fs.list_dir(f"{ROOT}/segments") if name.endswith(".qseg")]
    for name in names:
        path = f"{ROOT}/segments/{name}"
        view = memoryview(fs.read_all(path, size_max=1 << 30))
        answer = decode_segment_footer(view)
        assert isinstance(answer, Frame)
        footer = answer.value
        end = footer.manifest_offset + footer.manifest_length
        table = decode_table(view[footer.manifest_offset : end], what="manifest", at=0)
        assert isinstance(table, pa.RecordBatch)
        if "item_count" in table.schema.names:
            continue
        counts = pa.array([7] * table.num_rows, pa.uint64())
        wider = table.add_column(1, pa.field("item_count", pa.uint64(), nullable=False), counts)
        manifest = encode_table(wider)
        moved = SegmentFooter(
            footer.stream_count,
            footer.bundle_count,
            footer.directory_offset,
            footer.directory_length,
            footer.manifest_offset,
            len(manifest),
        )
        data = bytes(view[: footer.manifest_offset]) + manifest + encode_segment_footer(moved)
        fs.remove(path)
        file = fs.create(path, mode=0o440)
        file.pwrite(data + encode_segment_trailer(crc32(data)), 0)
        file.sync()
        file.close()
    fs.sync_dir(f"{ROOT}/segments")
    return len(names)


def item_counts(fs: CrashFileSystem) -> list[bool]:
    names = [name for name in fs.list_dir(f"{ROOT}/segments") if name.endswith(".qseg")]
    readers = [SegmentReader.open(fs, f"{ROOT}/segments/{name}") for name in names]
    return [reader.manifest.item_counts is not None for reader in readers]


@pytest.mark.parametrize(("before", "after"), [("spec", "otap"), ("otap", "spec")])
def test_data_and_progress_do_not_change(before: Any, after: Any) -> None:
    """Every subscriber still gets exactly its pending bundles; log and progress have the new profile."""
    fs = made(before)
    expected = pending(fs, before)
    done = migrate(fs, ROOT, profile=after, adapter=None, clock=ManualClock())

    assert done.sealed_bundles > 0
    assert (done.log_replaced, done.progress_rewritten) == (True, 2)
    assert hashes(fs) == {OTAP_CONFIG_HASH if after == "otap" else OTAP.config_hash}
    assert checksums(fs) == {"crc32" if after == "otap" else "crc32c"}
    assert pending(fs, after) == expected
    assert not check_store(fs, ROOT).damaged
    again = migrate(fs, ROOT, profile=after, adapter=None, clock=ManualClock())
    assert (again.sealed_bundles, again.log_replaced, again.progress_rewritten) == (0, False, 0)
    back = migrate(fs, ROOT, profile=before, adapter=None, clock=ManualClock())
    assert back.log_replaced
    assert pending(fs, before) == expected


def test_the_slot_table_changes() -> None:
    """A store of one adapter is refused with another, and accepted after the migration; the old one is then refused."""
    fs = made("spec")
    expected = pending(fs, "spec")
    with pytest.raises(UnsupportedFormatError):
        opened(fs.clone_after_kill(), "spec", WEATHER)
    migrate(fs, ROOT, profile="spec", adapter=WEATHER, clock=ManualClock())
    with pytest.raises(UnsupportedFormatError):
        opened(fs.clone_after_kill(), "spec")
    assert pending(fs, "spec", WEATHER) == expected
    # The current table need not be given.
    migrate(fs, ROOT, profile="spec", adapter=OTAP, clock=ManualClock())
    assert pending(fs, "spec") == expected


def test_the_extra_column_is_removed() -> None:
    """`spec` has no item_count: those segments are rewritten with the same contents."""
    fs = made("otap")
    expected = pending(fs, "otap")
    count = with_item_counts(fs)
    assert all(item_counts(fs))
    done = migrate(fs, ROOT, profile="spec", adapter=None, clock=ManualClock())

    # Segments sealed by the migration itself also have it, if the adapter can count items.
    assert done.segments_rewritten >= count > 1
    assert not any(item_counts(fs))
    assert pending(fs, "spec") == expected
    assert all(
        fs.stat(f"{ROOT}/segments/{name}").mode == 0o440
        for name in fs.list_dir(f"{ROOT}/segments")
        if name.endswith(".qseg")
    )


def test_stores_in_use_or_damaged_are_refused() -> None:
    """An open store, a subscriber at work elsewhere, a damaged file: reported, and nothing is changed."""
    fs = made("spec")
    with opened(fs, "spec"), pytest.raises(DirectoryInUseError, match="quiver store"):
        migrate(fs, ROOT, profile="otap", adapter=None, clock=ManualClock())
    with SubscriberFile(fs, ROOT, "one"), pytest.raises(DirectoryInUseError, match="subscriber one"):
        migrate(fs, ROOT, profile="otap", adapter=None, clock=ManualClock())
    path = f"{ROOT}/quiver.sub.one"
    data = fs.read_all(path, size_max=1 << 20)
    fs.remove(path)
    file = fs.create(path)
    file.pwrite(data[:-1], 0)
    file.close()
    with pytest.raises(CorruptionError, match="quiver repair"):
        migrate(fs, ROOT, profile="otap", adapter=None, clock=ManualClock())
    assert hashes(fs) == {OTAP.config_hash}


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("before", "after", "adapter"), [("spec", "otap", None), ("otap", "spec", WEATHER)])
def test_a_crash_at_every_step_is_finished_by_the_next_call(
    before: Any, after: Any, adapter: Adapter | None, stride: int
) -> None:
    """Power loss and kill at each step: the second call gets the result of the first; no bundle is lost or skipped."""
    fs = made(before)
    expected = pending(fs, before)
    if before == "otap":
        with_item_counts(fs)
    clones: list[tuple[str, CrashFileSystem]] = []

    def note(operation: str, path: str) -> None:
        label = f"step {len(clones)} ({operation} {path})"
        clones.append((label, fs.clone_after_crash(len(clones) % 4)))
        clones.append((label, fs.clone_after_kill()))

    fs.on_step = note
    migrate(fs, ROOT, profile=after, adapter=adapter, clock=ManualClock())
    fs.on_step = None
    assert len(clones) > 60
    for label, clone in clones[random.randrange(stride) :: stride]:
        migrate(clone, ROOT, profile=after, adapter=adapter, clock=ManualClock())
        end = clone.clone_after_crash(0)
        assert hashes(end) == {OTAP_CONFIG_HASH if after == "otap" else (adapter or OTAP).config_hash}, label
        assert checksums(end) == {"crc32" if after == "otap" else "crc32c"}, label
        assert after == "otap" or not any(item_counts(end)), label
        assert pending(end, after, adapter or OTAP) == expected, label
