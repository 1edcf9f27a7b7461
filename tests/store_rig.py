"""
Stores for tests: open one without threads, ingest bundles that contain a number, and read the numbers back.

The test moves the clock and calls `seal` and `maintain` itself. A module that always passes the same arguments binds
them once with `functools.partial`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import pyarrow as pa

from quiver.bundle import OTAP, Adapter, Bundle, BundleRef
from quiver.errors import CapacityError
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.settings import Settings
from quiver.store.cores.store import MultiCoreStore
from quiver.store.cores.subscriber import MultiCoreSubscriber
from quiver.store.opening import open_store
from quiver.store.reading.read import read
from quiver.store.store import Store
from quiver.store.subscribers.subscriber import Subscriber
from quiver.testing.clock import ManualClock

ROOT = "/buffer"
LOGS = 30
"""The slot of the batch with the number."""


def small_settings(**changes: object) -> Settings:
    """Return settings of a small store; without a log, what concerns the log is left out, as it would be refused."""
    small = {"segment_bytes_max": 4_000, "wal_rotate_bytes": 8_000, "wal_bytes_max": 80_000, "delete_grace_s": 0.0}
    given: dict[str, object] = {**small, **changes}
    if given.get("durability") == "segment_only":
        given = {name: value for name, value in given.items() if not name.startswith("wal_")}
    return Settings(**given)  # type: ignore[arg-type]


def open_manual(
    fs: FileSystem,
    *,
    settings: Settings,
    clock: ManualClock | None = None,
    observer: Observer | None = None,
    root: str = ROOT,
    adapter: Adapter = OTAP,
) -> Store:
    """Open a store without threads, on a clock that the test moves."""
    return open_store(
        root,
        settings,
        fs=fs,
        clock=clock or ManualClock(),
        observer=observer or InMemoryObserver(),
        adapter=adapter,
        background=False,
    )


def open_small(
    fs: FileSystem,
    clock: ManualClock | None = None,
    *,
    observer: Observer | None = None,
    root: str = ROOT,
    **changes: object,
) -> Store:
    """Open a store with `small_settings`, without threads, on a clock that the test moves."""
    return open_manual(fs, settings=small_settings(**changes), clock=clock, observer=observer, root=root)


def numbered(number: int, size: int = 50) -> Bundle:
    """Return a bundle of one row: its number, and *size* bytes of text."""
    return Bundle({LOGS: pa.record_batch({"n": pa.array([number]), "pad": pa.array(["x" * size])})})


def stamped(number: int) -> Bundle:
    """Return a bundle of one row and nothing but its number, with a time of ingest that follows from the number."""
    return Bundle({LOGS: pa.record_batch({"n": pa.array([number], pa.int32())})}, ingested_at_ns=5 + number)


def number_of(bundle: Bundle) -> int:
    """Return the number of a bundle."""
    return int(bundle[LOGS]["n"][0].as_py())


def fill(store: Store, numbers: Iterable[int]) -> None:
    """Ingest a bundle for each of *numbers*."""
    for number in numbers:
        store.ingest(numbered(number))


def ingest_until_full(
    store: Store, start: int = 0, most: int = 2_000, *, bundle_of: Callable[[int], Bundle] = numbered
) -> tuple[int, CapacityError]:
    """Ingest bundles from *start* on until the store refuses one; return its number and the error."""
    for number in range(start, start + most):
        try:
            store.ingest(bundle_of(number))
        except CapacityError as full:
            return number, full
    raise AssertionError(f"the store accepted {most} bundles")


def acknowledge(
    subscriber: Subscriber | MultiCoreSubscriber, most: int = 10_000, *, number_of: Callable[[Bundle], int] = number_of
) -> list[int]:
    """Acknowledge up to *most* bundles; return their numbers in the order of delivery."""
    numbers: list[int] = []
    while len(numbers) < most and (handle := subscriber.next_bundle(timeout=0)) is not None:
        numbers.append(number_of(handle.bundle))
        handle.ack()
    return numbers


def drain(
    store: Store | MultiCoreStore,
    name: str = "s",
    most: int = 10_000,
    *,
    start: Literal["earliest", "latest"] = "earliest",
    number_of: Callable[[Bundle], int] = number_of,
) -> list[int]:
    """Register subscriber *name* and acknowledge up to *most* sealed bundles; return their numbers."""
    return acknowledge(store.register(name, start=start), most, number_of=number_of)


def sealed_refs(store: Store) -> list[BundleRef]:
    """Return the reference of each bundle in a segment, in order."""
    return [
        BundleRef(info.seq, index) for info in store.internals.catalog.segments() for index in range(info.bundle_count)
    ]


def sealed_numbers(store: Store, number_of: Callable[[Bundle], int] = number_of) -> list[int]:
    """Return the number of each bundle in a segment, in order."""
    return [number_of(store.internals.catalog.bundle(ref)) for ref in sealed_refs(store)]


def numbers_of(bundles: Iterable[tuple[BundleRef, Bundle]]) -> list[int]:
    """Return the numbers of all rows that a reader returns."""
    return [number for _, bundle in bundles for number in bundle[LOGS]["n"].to_pylist()]


def read_numbers(fs: FileSystem, root: str = ROOT) -> list[int]:
    """Return the numbers that a reader sees in the files of a store."""
    return numbers_of(read(root, fs=fs).bundles())
