"""
Bundles that fail in the processors of an exporter are retried individually, until they succeed or the policy ends. No
Spark.
"""

import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest
from stores import logs_request, seal_requests

from quiver.bundle import BundleRef
from quiver.delivery.dead_letters import DeadLetters, read_dead_letters
from quiver.delivery.policy import Permanent, RetryPolicy, Transient
from quiver.errors import CapacityError, DeliveryHaltedError, DirectoryInUseError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.exporters.retry_queue import BundleExport, RetryQueue, individual_names
from quiver.spark.exporters.spark_errors import describe_error
from quiver.spark.processors.bad_bundle_filter import BadBundleFilter
from quiver.store.subscribers.retry_set import load_retry_set
from quiver.testing.clock import ManualClock

FAILED = Transient("PROCESSOR", "division by zero")
BAD = BundleRef(0, 1)


class Export:
    """An exporter of bundles with the current state of its processors and its destination."""

    def __init__(self):
        self.refused = set()
        self.is_down = False
        self.has = []
        self.tried = 0

    def __call__(self, batch, batch_id):
        raise AssertionError

    def probe(self, spark, bundles, *, views):
        assert views == {"logs"}
        if set(bundles["index"].to_pylist()) & self.refused:
            raise ZeroDivisionError("division by zero")

    def export_one(self, spark, bundle, name):
        self.tried += 1
        self.probe(spark, bundle, views={"logs"})
        if self.is_down:
            raise OSError(28, "no space left")
        self.has.append((bundle["segment"][0].as_py(), bundle["index"][0].as_py(), name))

    def exported_individually(self, names):
        return names & {name for _, _, name in self.has}


@pytest.fixture
def export():
    return Export()


@pytest.fixture
def clock():
    return ManualClock(waits="hold")


@pytest.fixture
def queue(store, export, clock):
    """Return a retry queue of a store with three bundles; the second fails in the processors."""
    seal_requests(store, *(logs_request([number]) for number in (1, 0, 3)))
    export.refused = {1}
    policy = RetryPolicy(initial_interval_s=2.0, max_interval_s=60.0, jitter=0.0, max_attempts=3)
    made = RetryQueue("out", policy, export=export, letters=DeadLetters, clock=clock, background=False)
    made.session = SimpleNamespace()
    yield made
    made.close()


def waiting(store):
    return [(entry.ref, entry.attempts, entry.reason) for entry in load_retry_set(REAL_FILES, store.root, "out")]


def test_an_exporter_matches_the_protocol_of_the_queue(export):
    """`BundleExport` is checked at run time."""
    assert isinstance(export, BundleExport)
    assert not isinstance(print, BundleExport)


def test_failed_bundles_are_durable_before_the_batch_continues(store, queue):
    """With the reason, and once each."""
    queue.add({(store.root, BAD): FAILED})
    assert waiting(store) == [(BAD, 1, "PROCESSOR: division by zero")]
    assert (queue.has(store.root, BAD), queue.has(store.root, BundleRef(0, 0)), queue.is_empty) == (True, False, False)


def test_a_bundle_is_exported_individually_when_it_succeeds(store, queue, export, clock):
    """When its retry is due, not before; then the queue is empty, and the retry set is closed."""
    queue.add({(store.root, BAD): FAILED})
    export.refused = set()
    assert (queue.drain(), export.has) == (0, [])
    clock.advance(2.0)
    assert queue.drain() == 1
    (name,) = individual_names("out", [(store.root, BAD)])
    assert export.has == [(0, 1, name)]
    assert (waiting(store), queue.is_empty) == ([], True)
    with_another = RetryQueue("out", RetryPolicy(), export=export, letters=DeadLetters, clock=clock, background=False)
    with_another.resume(store.root)
    with_another.close()


def test_an_exhausted_bundle_becomes_a_dead_letter(store, queue, export, clock):
    """After growing pauses; the dead letter has the reason, and the bundle leaves the queue."""
    queue.add({(store.root, BAD): FAILED})
    clock.advance(2.0)
    assert queue.drain() == 0
    assert waiting(store) == [(BAD, 2, "PROCESSOR: ZeroDivisionError: division by zero")]
    clock.advance(3.9)
    assert (queue.drain(), export.tried) == (0, 1)
    clock.advance(0.1)
    assert (queue.drain(), export.tried) == (1, 2)
    assert (waiting(store), export.has) == ([], [])
    (letter,) = read_dead_letters(REAL_FILES, store.root, "out")
    assert (letter.ref, letter.attempts) == (BAD, 3)
    assert letter.reason == "3 attempts failed; the last with PROCESSOR: ZeroDivisionError: division by zero"


def test_an_unavailable_destination_does_not_count_as_an_attempt(store, queue, export, clock, caplog):
    """The bundle passes the processors; the export is tried again after a pause."""
    queue.add({(store.root, BAD): FAILED})
    export.refused, export.is_down = set(), True
    clock.advance(2.0)
    for _ in range(3):
        assert queue.drain() == 0
    assert (waiting(store)[0][1], export.tried) == (1, 1)
    assert "cannot be exported: OSError: [Errno 28] no space left" in caplog.text
    export.is_down = False
    clock.advance(60.0)
    assert queue.drain() == 1


def test_an_undecodable_bundle_is_a_dead_letter_immediately(store, export, clock):
    """A retry cannot help; if a damaged set adds such a bundle, the drain finds it."""
    seal_requests(store, b"\xff\xff", logs_request([1]))
    with_policy = RetryQueue("out", RetryPolicy(), export=export, letters=DeadLetters, clock=clock, background=False)
    with_policy.session = SimpleNamespace()
    with_policy.add({(store.root, BundleRef(0, 0)): Permanent("UNDECODABLE", "bad")})
    assert with_policy.is_empty
    (letter,) = read_dead_letters(REAL_FILES, store.root, "out")
    assert letter.reason == "UNDECODABLE: bad"
    with open(f"{store.root}/quiver.retry.out", "wb") as file:
        file.write(b"QUIVER\0R damaged")
    with_policy.resume(store.root)
    assert with_policy.drain() == 2
    assert [(segment, index) for segment, index, _ in export.has] == [(0, 1)]
    assert [one.ref for one in read_dead_letters(REAL_FILES, store.root, "out")] == [BundleRef(0, 0)]
    with_policy.close()


def test_a_bundle_of_a_deleted_segment_leaves_the_queue(store, queue, clock):
    """It was dropped by policy, so nothing is left to export."""
    queue.add({(store.root, BundleRef(7, 0)): FAILED})
    clock.advance(2.0)
    assert (queue.drain(), waiting(store)) == (1, [])


def test_a_restart_continues_with_the_queue(store, queue, export, clock):
    """Including its attempts; two processes at once are refused."""
    queue.add({(store.root, BAD): FAILED})
    second = RetryQueue(
        "out", RetryPolicy(max_attempts=2), export=export, letters=DeadLetters, clock=clock, background=False
    )
    with pytest.raises(DirectoryInUseError):
        second.resume(store.root)
    queue.close()
    second.resume(store.root)
    assert second.has(store.root, BAD)
    assert second.drain() == 0, "without a session, nothing is exported"
    second.session = SimpleNamespace()
    clock.advance(2.0)
    assert second.drain() == 1
    assert len(read_dead_letters(REAL_FILES, store.root, "out")) == 1
    second.close()


def test_a_halt_stops_the_exporter(store, export, clock):
    """The batch raises an error; in the drain, the thread ends, and `halted` has the error."""
    seal_requests(store, *(logs_request([number]) for number in (1, 0)))
    export.refused = {1}
    policy = RetryPolicy(initial_interval_s=2.0, jitter=0.0, max_attempts=2, on_exhausted="halt")
    queue = RetryQueue("out", policy, export=export, clock=clock)
    queue.session = SimpleNamespace()
    with pytest.raises(DeliveryHaltedError, match="out halted at bundle 0:0"):
        queue.add({(store.root, BundleRef(0, 0)): Permanent("UNDECODABLE", "bad")})
    queue.close()
    queue = RetryQueue("out", policy, export=export, clock=clock)
    queue.session = SimpleNamespace()
    queue.add({(store.root, BAD): FAILED})
    clock.wait_for_waiters(1)
    clock.advance(2.0)
    thread = next(one for one in threading.enumerate() if one.name == "quiver-retries out")
    thread.join(30)
    assert "2 attempts failed" in str(queue.halted)
    queue.close()


PYTHON_ERROR = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/site-packages/quiver/spark/redaction.py", line 61, in __call__
    yield self.batch(batch)
  File "mine.py", line 9, in change
    return int(frame)
           ^^^^^^^^^^
ValueError: invalid literal for int() with base 10: 'x'
"""


PROXY = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/x/site-packages/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/x/quiver/spark/exporters.py", line 207, in export
    writer.save(path)
"""

NO_FORMAT = (
    PROXY
    + """py4j.protocol.Py4JJavaError: An error occurred while calling o645.save.
: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafka.
\tat org.apache.spark.sql.classic.DataFrameWriter.save(DataFrameWriter.scala:116)
Caused by: java.lang.ClassNotFoundException: kafka.DefaultSource
\t... 55 more

=== Streaming Query ===
Identifier: csv
"""
)

LOST_TASK = (
    PROXY
    + """py4j.protocol.Py4JJavaError: An error occurred while calling o782.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (h executor driver): java.sql.SQLException: no such host
\tat java.base/java.lang.Thread.run(Thread.java:840)
Driver stacktrace:
Caused by: java.net.SocketException: Connection reset
"""
)

COMPILED = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/stored.py", line 78, in stored_requests
    for data in whole.column("data"):
                ^^^^^^^^^^^^^^^^^^^^
  File "pyarrow/table.pxi", line 1740, in pyarrow.lib._Tabular._ensure_integer_index
KeyError: 'data'
=== Streaming Query ===
"""
"""Compiled code has no source line."""

OWN_ERROR = PROXY + "quiver.errors.UsageError: table logs has other columns than the view logs\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RuntimeError(NO_FORMAT),
            "SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafka.",
        ),
        (RuntimeError(LOST_TASK), "SQLException: no such host"),
        (RuntimeError(OWN_ERROR), "quiver.errors.UsageError: table logs has other columns than the view logs"),
        (
            RuntimeError(NO_FORMAT[len(PROXY) + 29 :]),
            "SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafka.",
        ),
        (RuntimeError("An error occurred while calling o1.x"), "RuntimeError: An error occurred while calling o1.x"),
        (RuntimeError(PYTHON_ERROR), "ValueError: invalid literal for int() with base 10: 'x'"),
        (
            ValueError("[DIVIDE_BY_ZERO] Division by zero.\n== SQL ==\n"),
            "ValueError: [DIVIDE_BY_ZERO] Division by zero.",
        ),
        (RuntimeError(COMPILED), "KeyError: 'data'"),
        (OSError(28, "no space"), "OSError: [Errno 28] no space"),
        (RuntimeError("Traceback (most recent call last):\nodd"), "odd"),
        (KeyError(), "KeyError: "),
        (ValueError("x" * 9999), f"ValueError: {'x' * 388}"),
    ],
)
def test_a_reason_is_one_line(error, said):
    """The line that explains the failure."""
    assert describe_error(error) == said


class SlowExport(Export):
    """An export that does not end before the test allows it."""

    def __init__(self):
        super().__init__()
        self.is_at_work, self.may_end = threading.Event(), threading.Event()

    def export_one(self, spark, bundle, name):
        self.is_at_work.set()
        assert self.may_end.wait(30)
        super().export_one(spark, bundle, name)


def test_a_restart_waits_for_a_bundle_that_is_being_exported(store, clock, monkeypatch):
    """
    `close` waits only briefly. Until the export ends, another process cannot open the queue; then the bundle is
    done.
    """
    monkeypatch.setattr("quiver.spark.exporters.retry_queue.CLOSE_S", 0.0)
    seal_requests(store, *(logs_request([number]) for number in (1, 0)))
    export = SlowExport()
    policy = RetryPolicy(initial_interval_s=2.0, jitter=0.0)
    first = RetryQueue("out", policy, export=export, letters=DeadLetters, clock=clock)
    first.session = SimpleNamespace()
    first.add({(store.root, BAD): FAILED})
    clock.wait_for_waiters(1)
    clock.advance(2.0)
    assert export.is_at_work.wait(30)
    thread = next(one for one in threading.enumerate() if one.name == "quiver-retries out")
    first.close()
    second = RetryQueue("out", policy, export=export, letters=DeadLetters, clock=clock, background=False)
    with pytest.raises(DirectoryInUseError):
        second.resume(store.root)
    export.may_end.set()
    thread.join(30)
    second.resume(store.root)
    assert (second.is_empty, waiting(store), len(export.has)) == (True, [], 1)
    second.close()


def test_a_capacity_error_of_the_exporter_is_not_a_bad_bundle(store):
    """The error applies to the exporter itself, so the processors are not run again to find a bad bundle."""

    def full(batch, batch_id):
        raise CapacityError("the store beside it")

    places = pa.table({"path": pa.array([], pa.string()), "segment": [], "index": []})
    batch = SimpleNamespace(sparkSession=None, select=lambda *_: SimpleNamespace(toArrow=lambda: places))
    with BadBundleFilter(full, "out", RetryPolicy(on_exhausted="drop"), background=False) as bad_bundles:
        with pytest.raises(CapacityError):
            bad_bundles(batch, 0)
        assert bad_bundles.halted is None
