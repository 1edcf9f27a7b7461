"""A callback is called when there is something to take: outside all locks, in its own thread. No test sleeps."""

import queue
import threading

import pytest
from registry_rig import ROOT, Bench

from quiver.bundle import BundleRef
from quiver.errors import DirectoryInUseError, StoreClosedError, UnknownSubscriberError
from quiver.store.subscribers.progress_store import SubscriberFile

PATIENCE_S = 30.0


class Called:
    """A callback that takes what there is, and the test's view of it."""

    def __init__(self, bench, subscriber, *, keep=False):
        self.bench = bench
        self.subscriber = subscriber
        self.keep = keep
        self.handles = queue.SimpleQueue()

    def __call__(self):
        # The registry's locks are free, or these would wait for ever.
        self.bench.registry.save()
        for handle in self.bench.refs(self.subscriber):
            if not self.keep:
                handle.ack()
            self.handles.put(handle)

    def next(self):
        return self.handles.get(timeout=PATIENCE_S)


def _bench():
    bench = Bench(waits="hold")
    return bench, bench.registry.register("a", "earliest")


def test_it_is_called_for_what_is_there_and_for_each_new_segment():
    bench, subscriber = _bench()
    bench.seal(0, 2)
    called = Called(bench, subscriber)
    stop = subscriber.on_bundle(called)
    assert [called.next().ref, called.next().ref] == [BundleRef(0, 0), BundleRef(0, 1)]
    bench.seal(1, 1)
    assert called.next().ref == BundleRef(1, 0)
    stop()


def test_it_is_called_when_the_time_of_a_deferral_has_come():
    bench, subscriber = _bench()
    bench.seal(0, 1)
    subscriber.next_bundle(timeout=0).defer(0.5)
    called = Called(bench, subscriber)
    stop = subscriber.on_bundle(called)
    bench.clock.wait_for_waiters(1)
    bench.clock.advance(0.4)
    bench.clock.wait_for_waiters(1)
    assert called.handles.empty()
    bench.clock.advance(0.1)
    assert called.next().ref == BundleRef(0, 0)
    stop()


@pytest.mark.parametrize("how", ["defer", "leave", "rewind", "collect"])
def test_it_is_called_when_a_bundle_comes_back(how):
    bench, subscriber = _bench()
    bench.seal(0, 1)
    handles = [subscriber.next_bundle(timeout=0)]
    called = Called(bench, subscriber)
    stop = subscriber.on_bundle(called)
    bench.clock.wait_for_waiters(1)
    assert called.handles.empty()
    if how == "defer":
        handles[0].defer()
    elif how == "leave":
        with handles[0]:
            pass
    elif how == "rewind":
        handles[0].ack()
        subscriber.rewind("earliest")
    else:
        handles.clear()
    assert called.next().ref == BundleRef(0, 0)
    stop()


def test_it_is_not_called_again_for_what_it_left_lying():
    """Only for news: one that takes nothing is not called in a loop."""
    bench, subscriber = _bench()
    bench.seal(0, 1)
    calls = queue.SimpleQueue()
    stop = subscriber.on_bundle(lambda: calls.put(1))
    calls.get(timeout=PATIENCE_S)
    bench.clock.wait_for_waiters(1)
    assert calls.empty()
    bench.seal(1, 1)
    calls.get(timeout=PATIENCE_S)
    stop()


def _started(subscriber, callback):
    """Threads of earlier tests may still be ending: the new one is ours."""
    before = set(threading.enumerate())
    stop = subscriber.on_bundle(callback)
    (thread,) = set(threading.enumerate()) - before
    return stop, thread


@pytest.mark.parametrize("end", ["stop", "unregister", "close"])
def test_it_ends_with_stop_with_the_subscriber_and_with_the_store(end):
    bench, subscriber = _bench()
    called = Called(bench, subscriber)
    stop, thread = _started(subscriber, called)
    bench.clock.wait_for_waiters(1)
    {"stop": stop, "unregister": lambda: bench.registry.unregister("a"), "close": bench.registry.close}[end]()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    if end == "close":
        with pytest.raises(StoreClosedError):
            subscriber.on_bundle(called)


def test_one_that_raises_is_not_called_again_and_harms_no_other(monkeypatch):
    raised = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.put(args.exc_value))
    bench, subscriber = _bench()
    other = bench.registry.register("b", "earliest")
    called = Called(bench, other)
    stop = other.on_bundle(called)

    def fail():
        raise ValueError("a bug of the consumer's")

    subscriber.on_bundle(fail)
    bench.seal(0, 1)
    assert str(raised.get(timeout=PATIENCE_S)) == "a bug of the consumer's"
    assert called.next().ref == BundleRef(0, 0)
    assert "quiver.subscriber.callback" in bench.observer.events
    bench.seal(1, 1)
    assert called.next().ref == BundleRef(1, 0)
    assert raised.empty()
    stop()


def test_it_takes_ownership_as_the_first_bundle_does():
    bench, subscriber = _bench()
    with SubscriberFile(bench.disk, ROOT, "a"), pytest.raises(DirectoryInUseError):
        subscriber.on_bundle(print)
    bench.registry.unregister("a")
    with pytest.raises(UnknownSubscriberError):
        subscriber.on_bundle(print)


def test_it_rests_while_another_process_works_and_goes_on_afterwards():
    bench, subscriber = _bench()
    called = Called(bench, subscriber)
    stop = subscriber.on_bundle(called)
    subscriber.release()
    bench.seal(0, 1)
    assert subscriber.next_bundle(timeout=0).ref == BundleRef(0, 0)
    assert called.next().ref == BundleRef(0, 0), "the handle above was dropped, so it is there to take"
    stop()
