"""The window knows recently stored requests, across threads and restarts, within bounded memory."""

import threading

from fake_store import wal_entry

from quiver.receivers.dedupe import DedupeWindow, request_digest
from quiver.testing.clock import ManualClock

NOW_NS = 1_700_000_000_000_000_000


def digests(count: int) -> list[bytes]:
    return [request_digest(60, bytes([number])) for number in range(count)]


def test_a_digest_depends_on_the_slot_and_every_byte():
    assert len(request_digest(60, b"data")) == 16
    assert request_digest(60, b"data") == request_digest(60, memoryview(b"data"))
    assert len({request_digest(60, b"data"), request_digest(61, b"data"), request_digest(60, b"datb")}) == 3


def test_a_stored_request_is_known_until_the_window_has_passed():
    clock = ManualClock()
    window = DedupeWindow(10, clock=clock)
    (digest,) = digests(1)
    assert window.begin(digest)
    window.finish(digest, stored=True)
    assert not window.begin(digest)
    clock.advance(10)
    assert not window.begin(digest)
    clock.advance(0.001)
    assert window.begin(digest)


def test_a_request_that_was_not_stored_is_not_known():
    window = DedupeWindow(10, clock=ManualClock())
    (digest,) = digests(1)
    assert window.begin(digest)
    window.finish(digest, stored=False)
    assert window.begin(digest)


def test_the_oldest_are_forgotten_first_when_there_are_too_many():
    window = DedupeWindow(10, entries_max=3, clock=ManualClock())
    known = digests(5)
    for digest in known:
        assert window.begin(digest)
        window.finish(digest, stored=True)
    assert len(window) == 3
    assert [window.begin(digest) for digest in known] == [True, True, False, False, False]


def test_expired_entries_take_no_memory():
    clock = ManualClock()
    window = DedupeWindow(10, clock=clock)
    for digest in digests(5):
        window.begin(digest)
        window.finish(digest, stored=True)
        clock.advance(4)
    assert len(window) == 3


def concurrent(*, stored: bool) -> list[bool]:
    """Return the result of `begin` in a thread that waited until the first had ended with *stored*."""
    clock = ManualClock(waits="hold")
    window = DedupeWindow(10, clock=clock)
    (digest,) = digests(1)
    assert window.begin(digest)
    messages: list[bool] = []
    second = threading.Thread(target=lambda: messages.append(window.begin(digest)))
    second.start()
    clock.wait_for_waiters(1)
    assert messages == []
    window.finish(digest, stored=stored)
    second.join(30)
    return messages


def test_a_request_in_flight_is_waited_for_and_its_success_is_shared():
    assert concurrent(stored=True) == [False]


def test_after_a_failure_in_flight_the_second_caller_tries_itself():
    assert concurrent(stored=False) == [True]


def test_the_window_is_rebuilt_from_entries_younger_than_it():
    clock = ManualClock(now_ns=NOW_NS)
    window = DedupeWindow(10, clock=clock)
    entries = [
        wal_entry(b"old", ingested_at_ns=NOW_NS - 10_000_000_001),
        wal_entry(b"young", ingested_at_ns=NOW_NS - 4_000_000_000),
        wal_entry(b"metrics", slot=62, ingested_at_ns=NOW_NS),
        wal_entry(b"from the future", ingested_at_ns=NOW_NS + 3_600_000_000_000),
    ]
    assert window.rebuild(entries) == 0
    assert window.begin(request_digest(60, b"old"))
    assert not window.begin(request_digest(60, b"young"))
    assert window.begin(request_digest(60, b"metrics"))
    assert not window.begin(request_digest(62, b"metrics"))
    assert not window.begin(request_digest(60, b"from the future"))
    clock.advance(6.5)
    assert window.begin(request_digest(60, b"young"))
    assert not window.begin(request_digest(62, b"metrics"))


def test_other_entries_are_skipped_and_unreadable_ones_counted():
    window = DedupeWindow(10, clock=ManualClock(now_ns=NOW_NS))
    broken = wal_entry(b"broken", ingested_at_ns=NOW_NS)
    broken.slots[0].payload = broken.slots[0].payload[:20]
    entries = [
        wal_entry(b"a", slot=30, ingested_at_ns=NOW_NS),
        wal_entry(b"b", fingerprint=bytes(32), ingested_at_ns=NOW_NS),
        broken,
    ]
    assert window.rebuild(entries) == 1
    assert len(window) == 0
