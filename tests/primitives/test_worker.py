"""A background thread runs turns when they are due or when woken, stops on request, and never dies silently."""

import queue
import threading

import pytest

from quiver.clock import SYSTEM_CLOCK
from quiver.observe import InMemoryObserver
from quiver.primitives.worker import FINISHED, Worker, WorkerDiedError
from quiver.testing.clock import ManualClock

PATIENCE_S = 30


class Rig:
    """A worker with a manual clock, whose turns the test observes."""

    def __init__(self, every, answers=()):
        self.clock = ManualClock(waits="hold")
        self.observer = InMemoryObserver()
        self.turns: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.answers = iter(answers)
        self.deaths: list[WorkerDiedError] = []
        self.worker = Worker(
            "quiver-test /somewhere", self.turn, every=every, on_death=self.deaths.append, clock=self.clock,
            observer=self.observer,
        )  # fmt: skip

    def turn(self):
        self.turns.put(self.clock.monotonic())
        answer = next(self.answers, None)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def next_turn(self):
        return self.turns.get(timeout=PATIENCE_S)

    def idle(self):
        self.clock.wait_for_waiters(1)
        return self.turns.empty()


@pytest.fixture
def uncaught(monkeypatch):
    """The exceptions that threads raised."""
    found = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda args: found.put(args.exc_value))
    return found


def test_turns_run_on_an_interval_and_earlier_when_woken():
    rig = Rig(10.0)
    rig.worker.start()
    rig.worker.start()
    assert rig.idle()
    rig.clock.advance(9.0)
    assert rig.idle()
    rig.worker.wake()
    assert rig.next_turn() == 9.0
    assert rig.idle()
    rig.clock.advance(10.0)
    assert rig.next_turn() == 19.0
    rig.worker.wake(4.0)
    rig.worker.wake(6.0)
    assert rig.idle()
    rig.clock.advance(4.0)
    assert rig.next_turn() == 23.0
    assert rig.worker.stop()
    assert not rig.worker.is_running


def test_without_an_interval_it_runs_when_woken_or_when_a_turn_requests_it():
    rig = Rig(None, [5.0])
    rig.worker.wake()  # before the start: not lost
    rig.worker.start()
    assert rig.next_turn() == 0.0
    assert rig.idle()
    rig.clock.advance(5.0)
    assert rig.next_turn() == 5.0
    assert rig.idle()
    rig.clock.advance(1e6)
    assert rig.idle()
    rig.worker.stop()


def test_a_wake_up_during_a_turn_requests_another_turn():
    rig = Rig(None)
    begun, go_on = threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return Rig.turn(rig)

    worker = Worker("slow", slow, every=None, on_death=rig.deaths.append, clock=rig.clock, observer=rig.observer)
    worker.wake()
    worker.start()
    assert begun.wait(PATIENCE_S)
    worker.wake()
    go_on.set()
    rig.next_turn()
    rig.next_turn()
    worker.stop()
    assert rig.turns.empty()


def test_it_ends_by_itself_when_its_work_is_finished():
    rig = Rig(0.0, [None, None, FINISHED])
    rig.worker.start()
    assert rig.worker.join(PATIENCE_S)
    assert rig.turns.qsize() == 3
    assert rig.worker.is_started
    assert rig.worker.died is None


def test_stop_is_idempotent_and_respects_its_timeout():
    started, go_on = threading.Event(), threading.Event()
    rig = Rig(0.0)

    def turn():
        started.set()
        return None if go_on.wait(PATIENCE_S) else FINISHED

    worker = Worker("busy", turn, every=0.0, on_death=rig.deaths.append, clock=SYSTEM_CLOCK, observer=rig.observer)
    worker.start()
    assert started.wait(PATIENCE_S)
    assert not worker.stop(0.0)
    go_on.set()
    assert worker.stop()
    assert worker.stop()
    worker.start()
    assert not worker.is_running
    assert rig.worker.stop()
    rig.worker.start()
    assert not rig.worker.is_started


def test_a_turn_can_stop_its_own_worker_and_pause():
    """A user's callback may close its caller; a pause ends at once when the worker is stopped."""
    rig = Rig(0.0)
    answers = []

    def work():
        answers.append(worker.pause(1000.0))
        answers.append(worker.stop())
        answers.append(worker.pause(1000.0))

    worker = Worker("own", work, every=0.0, on_death=rig.deaths.append, clock=rig.clock, observer=rig.observer)
    worker.start()
    rig.clock.wait_for_waiters(1)
    rig.clock.advance(1000.0)
    assert worker.join(PATIENCE_S)
    assert answers == [False, False, True]


def test_an_owner_without_a_thread_runs_turns_and_gets_their_errors():
    rig = Rig(1.0, [7.0, ZeroDivisionError("mine")])
    assert rig.worker.run_once() == 7.0
    with pytest.raises(ZeroDivisionError):
        rig.worker.run_once()
    assert not rig.deaths
    assert not rig.worker.is_started


@pytest.mark.parametrize("error", [RuntimeError("unforeseen"), MemoryError(), SystemExit(3)])
def test_the_death_of_a_thread_is_passed_to_the_owner_counted_and_reported(uncaught, caplog, error):
    """Also for an exception that `threading` ignores."""
    rig = Rig(0.0, [None, error])
    rig.worker.start()
    assert rig.worker.join(PATIENCE_S)
    assert rig.turns.qsize() == 2
    assert rig.deaths == [rig.worker.died]
    assert rig.worker.died.__cause__ is error
    assert type(error).__name__ in str(rig.worker.died)
    assert rig.observer.counts["quiver.worker.deaths_total", (("worker", "quiver-test"),)] == 1
    assert "quiver.worker.died worker=quiver-test /somewhere" in caplog.text
    assert uncaught.get(timeout=PATIENCE_S) is error


def test_an_owner_whose_reaction_fails_does_not_hide_the_death(uncaught, caplog):
    observer = InMemoryObserver()

    def fail(died):
        raise ValueError("not my day")

    def work():
        raise RuntimeError("unforeseen")

    worker = Worker("w", work, every=0.0, on_death=fail, clock=SYSTEM_CLOCK, observer=observer)
    worker.start()
    assert worker.join(PATIENCE_S)
    assert observer.total("quiver.worker.deaths_total") == 1
    assert "unforeseen" in caplog.text
    assert isinstance(uncaught.get(timeout=PATIENCE_S), ValueError)
