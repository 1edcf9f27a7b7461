"""A registry over a disk in memory, with segments that exist only as numbers."""

import pyarrow as pa

from quiver.bundle import Bundle, BundleRef
from quiver.errors import CorruptionError
from quiver.observe import InMemoryObserver
from quiver.store.figures import subscriber_figures
from quiver.store.format.drop_ledger import DroppedSegment
from quiver.store.subscribers.state import SegmentRef
from quiver.store.subscribers.subscriber import SubscriberCalls
from quiver.store.subscribers.subscribers import Subscribers
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"


class Observed(InMemoryObserver):
    """Also records events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.reported: list[dict[str, object]] = []

    def event(self, name, *, level=20, **attributes):
        self.events.append(name)
        self.reported.append({"name": name, **attributes})


class Registry(SubscriberCalls):
    """The parts of a store that its subscribers use, without the store."""

    def __init__(self, subscribers):
        self._subscribers = subscribers

    def __getattr__(self, name):
        return getattr(self._subscribers, name)

    def stats(self):
        return subscriber_figures(self._subscribers)


class Bench:
    """The store's part of its subscribers. *options* are those of `Subscribers`."""

    def __init__(self, disk=None, *, waits="skip", segments=(), next_seq=0, **options):
        self.disk = disk or CrashFileSystem()
        if not self.disk.exists(ROOT):
            self.disk.make_dirs(ROOT)
        self.clock = ManualClock(waits=waits)
        self.observer = Observed()
        self.unreadable: set[BundleRef] = set()
        self.reads: list[BundleRef] = []
        self.registry = Registry(
            Subscribers(
                self.disk,
                ROOT,
                segments=segments,
                next_seq=next_seq,
                load=self.load,
                clock=self.clock,
                observer=self.observer,
                **options,
            )
        )

    def load(self, place):
        ref = BundleRef(*place)
        self.reads.append(ref)
        if ref in self.unreadable:
            raise CorruptionError(f"{ROOT}/segments/{ref.segment}", 0, "checksum mismatch")
        return Bundle({60: pa.record_batch({"data": pa.array([str(ref).encode()])})})

    def seal(self, seq, count):
        self.registry.sealed(SegmentRef(seq, count))

    def refs(self, subscriber):
        """Claim everything that is pending."""
        handles = []
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            handles.append(handle)
        return handles

    def ack_all(self, subscriber):
        for handle in self.refs(subscriber):
            handle.ack()

    def flip(self, name, at=15):
        """Damage a file of the root."""
        path = f"{ROOT}/{name}"
        byte = self.disk.read_all(path, size_max=1 << 20)[at]
        file = self.disk.open_write(path)
        file.pwrite(bytes([byte ^ 0xFF]), at)
        file.sync()


def names(handles):
    return [str(handle.ref) for handle in handles]


def dropped(seq, count, reason="size"):
    return DroppedSegment(seq, count, 1000, reason, 0)


def crash_states(disk, work, *, seeds=6):
    """Yield every disk that a power loss at any step of *work* can leave, with the number of steps."""
    states = []
    disk.on_step = lambda op, path: states.extend(disk.clone_after_crash(seed) for seed in range(seeds))
    try:
        work()
    finally:
        disk.on_step = None
    states.extend(disk.clone_after_crash(seed) for seed in range(seeds))
    return states
