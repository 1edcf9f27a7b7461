"""A callback is called when bundles are available: without any lock held, in its own thread. No test sleeps."""

import queue
import threading

import pytest
from registry_rig import ROOT, Bench

from quiver.bundle import BundleRef
from quiver.errors import DirectoryInUseError, StoreClosedError, UnknownSubscriberError
from quiver.store.subscribers.progress_store import SubscriberFile

PATIENCE_S = 30.0


class Called:
    """A callback that claims the available bundles, and what the test sees of it."""

    def __init__(self, bench, subscriber, *, keep=False):
        self.bench = bench
        self.subscriber = subscriber
        self.keep = keep
        self.handles = queue.SimpleQueue()

    def __call__(self):
        # The registry's locks are free, or these calls would wait forever.
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


def test_a_callback_is_called_for_the_backlog_and_each_new_segment():
    bench, subscriber = _bench()
    bench.seal(0, 2)
    called = Called(bench, subscriber)
    stop = subscriber.on_bundle(called)
    assert [called.next().ref, called.next().ref] == [BundleRef(0, 0), BundleRef(0, 1)]
    bench.seal(1, 1)
    assert called.next().ref == BundleRef(1, 0)
    stop()


def test_a_callback_is_called_when_a_deferral_ends():
    bench, subscriber = _bench()
    bench.seal(0, 1)
    subscriber.next_bundle(timeout=0).nack(0.5)
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
def test_a_callback_is_called_for_a_returned_bundle(how):
    bench, subscriber = _bench()
    bench.seal(0, 1)
    handles = [subscriber.next_bundle(timeout=0)]
    called = Called(bench, subscriber)
    stop = subscriber.on_bundle(called)
    bench.clock.wait_for_waiters(1)
    assert called.handles.empty()
    if how == "defer":
        handles[0].nack()
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


def test_a_callback_is_not_called_again_for_bundles_it_did_not_claim():
    """Only new bundles cause a call: a callback that claims nothing is not called in a loop."""
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
    """Threads of earlier tests may still be running: the new one is ours."""
    before = set(threading.enumerate())
    stop = subscriber.on_bundle(callback)
    (thread,) = set(threading.enumerate()) - before
    return stop, thread


@pytest.mark.parametrize("end", ["stop", "unregister", "close"])
def test_a_callback_ends_with_stop_the_subscriber_or_the_store(end):
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


def test_a_callback_that_raises_is_stopped_and_others_continue(monkeypatch):
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


def test_a_callback_takes_ownership_like_the_first_delivery():
    bench, subscriber = _bench()
    with SubscriberFile(bench.disk, ROOT, "a"), pytest.raises(DirectoryInUseError):
        subscriber.on_bundle(print)
    bench.registry.unregister("a")
    with pytest.raises(UnknownSubscriberError):
        subscriber.on_bundle(print)


def test_a_callback_pauses_while_another_process_owns_the_subscriber():
    bench, subscriber = _bench()
    called = Called(bench, subscriber)
    stop = subscriber.on_bundle(called)
    subscriber.release()
    bench.seal(0, 1)
    assert subscriber.next_bundle(timeout=0).ref == BundleRef(0, 0)
    assert called.next().ref == BundleRef(0, 0), "the handle above was dropped, so it is there to take"
    stop()
