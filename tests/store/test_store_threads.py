"""Many threads at once, on a real disk: ingest, delivery, maintenance, registration and closing run concurrently."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from quiver import (
    Bundle,
    BundleUnavailableError,
    CapacityError,
    QuiverError,
    Settings,
    Store,
    StoreClosedError,
    UnknownSubscriberError,
    read,
)
from quiver import open as open_store
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.subscribers.progress_store import SubscriberFile
from quiver.store.subscribers.state import SegmentRef
from store_rig import number_of, small_settings

TIMEOUT_S = 60
SETTINGS = Settings(
    segment_bytes_max=6_000,
    segment_open_s_max=0.01,
    wal_rotate_bytes=5_000,
    wal_bytes_max=60_000,
    wal_flush_interval_s=0.001,
    maintain_interval_s=0.002,
    delete_grace_s=0.0,
)


@pytest.fixture(autouse=True)
def _watchdog() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    logging.disable(logging.NOTSET)


def numbered(number: int) -> Bundle:
    return Bundle({30: pa.record_batch({"n": pa.array([number]), "pad": ["x" * (number % 50)]})})


def race(*works: Callable[[], object]) -> None:
    """Run all at once; raise the first error."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def produce(store: Store, base: int, count: int) -> None:
    for number in range(base, base + count):
        store.ingest(numbered(number), durable=number % 7 == 0, timeout=TIMEOUT_S)


def consume(store: Store, name: str, into: list[int], total: int) -> None:
    """Consume until there are *total*; sometimes release a handle, defer or reject."""
    subscriber = store.register(name, start="earliest")
    turn = 0
    while len(into) < total:
        handle = subscriber.next_bundle(timeout=0.05)
        if handle is None:
            continue
        turn += 1
        if turn % 11 == 0:
            handle.nack(0.001)
        elif turn % 13 == 0:
            del handle
        else:
            number = number_of(handle.bundle)
            handle.reject() if turn % 17 == 0 else handle.ack()
            into.append(number)


@pytest.mark.parametrize("size_cap_bytes", [None, 40_000])
def test_concurrent_producers_and_consumers_get_every_bundle_once(tmp_path: Path, size_cap_bytes: int | None) -> None:
    """For each of two subscribers, each shared by two threads; the disk is empty at the end."""
    producers, each = 6, 150
    total = producers * each
    got: dict[str, list[int]] = {"a": [], "b": []}
    changes = {field: getattr(SETTINGS, field) for field in SETTINGS.__slots__}
    with open_store(tmp_path, Settings(**{**changes, "size_cap_bytes": size_cap_bytes})) as store:
        for name in got:
            store.register(name, start="earliest")
        stop = threading.Event()

        def upkeep() -> None:
            while not stop.is_set():
                store.seal()
                store.maintain()
                store.sync()
                store.stats()
                list(store.recent_wal_entries())
                stop.wait(0.005)

        def look() -> None:
            while not stop.is_set():
                found = [number_of(bundle) for _, bundle in read(tmp_path).bundles()]
                assert len(found) == len(set(found)), "a reader beside the writer saw a bundle twice"
                stop.wait(0.01)

        def everything() -> None:
            try:
                race(
                    *(lambda base=base: produce(store, base * 1000, each) for base in range(producers)),
                    *(lambda name=name: consume(store, name, got[name], total) for name in got for _ in range(2)),
                )
            finally:
                stop.set()

        race(everything, upkeep, look)
        store.maintain()
        assert len(store.internals.catalog) == 0
    for name, numbers in got.items():
        expected = {base * 1000 + number for base in range(producers) for number in range(each)}
        assert set(numbers) == expected, name
        assert len(numbers) == total, name


def test_the_order_of_each_producer_is_preserved(tmp_path: Path) -> None:
    """During any work of other threads."""
    with open_store(tmp_path, SETTINGS) as store:
        race(*(lambda base=base: produce(store, base * 1000, 120) for base in range(5)))
        store.seal()
        subscriber = store.register("s", start="earliest")
        got = []
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            got.append(number_of(handle.bundle))
            handle.ack()
    for base in range(5):
        assert [number for number in got if number // 1000 == base] == [base * 1000 + number for number in range(120)]


@pytest.mark.parametrize("durability", ["wal", "segment_only"])
@pytest.mark.parametrize("turn", range(6))
def test_close_during_any_call_loses_no_accepted_bundle(tmp_path: Path, durability: str, turn: int) -> None:
    """A call that is interrupted by close either completes or raises an error."""
    changes = {field: getattr(SETTINGS, field) for field in SETTINGS.__slots__}
    settings = small_settings(**{**changes, "durability": durability})
    store = open_store(tmp_path, settings)
    accepted: list[int] = []
    resolved: list[int] = []
    under_way = threading.Barrier(8)

    def until_closed(step: Callable[[int], object]) -> Callable[[], None]:
        def run() -> None:
            under_way.wait()
            number = 0
            while True:
                try:
                    step(number)
                except StoreClosedError:
                    return
                number += 1

        return run

    def ingest(base: int) -> Callable[[int], None]:
        def step(number: int) -> None:
            store.ingest(numbered(base + number), durable=number % 3 == 0, timeout=TIMEOUT_S)
            accepted.append(base + number)

        return step

    subscriber = store.register("s", start="earliest")

    def take(_number: int) -> None:
        handle = subscriber.next_bundle(timeout=None)
        assert handle is not None
        number = number_of(handle.bundle)
        handle.ack()
        resolved.append(number)

    def close() -> None:
        under_way.wait()
        while len(accepted) < 10 * turn:
            threading.Event().wait(0.001)
        store.close()

    def twice() -> None:
        under_way.wait()
        while not store._closed:
            threading.Event().wait(0.001)
        store.close()

    race(
        until_closed(ingest(0)),
        until_closed(ingest(100_000)),
        until_closed(take),
        until_closed(take),
        until_closed(lambda _number: store.seal()),
        until_closed(lambda _number: store.maintain()),
        close,
        twice,
    )
    with open_store(tmp_path, settings) as again:
        again.seal()
        left = again.register("s", start="earliest")
        while (handle := left.next_bundle(timeout=0)) is not None:
            resolved.append(number_of(handle.bundle))
            handle.ack()
    assert set(accepted) <= set(resolved)


def test_concurrent_registrations_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Unregistering during claims ends them with an error, and does not affect other subscribers."""
    total = 400
    got: list[int] = []
    with open_store(tmp_path, SETTINGS) as store:
        store.register("stays", start="earliest")
        done = threading.Event()

        def come_and_go(name: str) -> None:
            while not done.is_set():
                subscriber = store.register(name, start="earliest")
                try:
                    handle = subscriber.next_bundle(timeout=0.001)
                    if handle is not None:
                        handle.bundle  # noqa: B018 - reading is the point
                    store.unregister(name)
                    if handle is not None:
                        handle.ack()
                except (UnknownSubscriberError, BundleUnavailableError):
                    pass

        def stay() -> None:
            try:
                consume(store, "stays", got, total)
            finally:
                done.set()

        race(
            lambda: produce(store, 0, total),
            stay,
            lambda: come_and_go("guest"),
            lambda: come_and_go("other"),
        )
        assert sorted(got) == list(range(total))
        assert list(store.stats()["subscribers"]) == ["stays"]


def test_a_full_store_waits_for_another_process(tmp_path: Path) -> None:
    """
    Ingest waits at the cap, and continues as soon as the progress file of another process allows deletion. That process
    only uses the directory and the progress file.
    """
    changes = {field: getattr(SETTINGS, field) for field in SETTINGS.__slots__}
    settings = Settings(**{**changes, "size_cap_bytes": 30_000, "wal_bytes_max": 20_000})
    total = 600
    seen: list[int] = []
    with open_store(tmp_path, settings) as store:
        store.register("elsewhere", start="earliest")
        with pytest.raises(CapacityError) as refused:
            for number in range(total):
                store.ingest(numbered(number), timeout=0)
        assert refused.value.held_by == "elsewhere"
        first = number
        done = threading.Event()

        def elsewhere() -> None:
            with SubscriberFile(REAL_FILES, str(tmp_path), "elsewhere") as file:
                while len(seen) < total:
                    infos = read(tmp_path).segments()
                    file.know([SegmentRef(info.seq, info.bundle_count) for info in infos])
                    position = file.position()
                    for info in infos:
                        if info.seq < position.segment:
                            continue
                        seen.extend(
                            number_of(bundle) for ref, bundle in read(tmp_path).bundles() if ref.segment == info.seq
                        )
                        file.ack_through(info.seq + 1, 0)
                    file.save()
                    done.wait(0.005)

        def feed() -> None:
            for number in range(first, total):
                store.ingest(numbered(number), timeout=TIMEOUT_S)
            store.seal()

        race(elsewhere, feed)
    assert seen == list(range(total))


def test_a_moved_directory_causes_only_documented_errors(tmp_path: Path) -> None:
    """The directory of a running store is moved: its calls fail with our errors or those of the disk."""
    root = tmp_path / "store"
    store = open_store(root, SETTINGS)
    store.register("s", start="earliest")
    produce(store, 0, 50)
    root.rename(tmp_path / "elsewhere")
    failed = 0
    for number in range(2_000):
        try:
            store.ingest(numbered(number), timeout=0.01)
        except (QuiverError, OSError):
            failed += 1
            if failed > 20:
                break
    assert failed > 20
    with contextlib.suppress(QuiverError, OSError):
        store.close()
    with open_store(tmp_path / "elsewhere", SETTINGS) as again:
        again.seal()
        subscriber = again.register("s", start="earliest")
        found = set()
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            found.add(number_of(handle.bundle))
            handle.ack()
    assert found >= set(range(50))
