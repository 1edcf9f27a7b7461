"""
What an exporter's processors failed on is tried again by itself, until it passes or its policy has enough. No
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
    """An exporter of bundles, as its processors and its far side are just now."""

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
def held(store, export, clock):
    """What holds bundles of a store with three of them; the second does not pass the processors."""
    seal_requests(store, *(logs_request([number]) for number in (1, 0, 3)))
    export.refused = {1}
    policy = RetryPolicy(initial_interval_s=2.0, max_interval_s=60.0, jitter=0.0, max_attempts=3)
    made = RetryQueue("out", policy, export=export, letters=DeadLetters, clock=clock, background=False)
    made.session = SimpleNamespace()
    yield made
    made.close()


def waiting(store):
    return [(entry.ref, entry.attempts, entry.reason) for entry in load_retry_set(REAL_FILES, store.root, "out")]


def test_it_is_an_export_of_bundles(export):
    """As the sieve asks for one."""
    assert isinstance(export, BundleExport)
    assert not isinstance(print, BundleExport)


def test_what_failed_is_held_durably_before_the_batch_goes_on(store, held):
    """With the reason, and once."""
    held.add({(store.root, BAD): FAILED})
    assert waiting(store) == [(BAD, 1, "PROCESSOR: division by zero")]
    assert (held.has(store.root, BAD), held.has(store.root, BundleRef(0, 0)), held.is_empty) == (True, False, False)


def test_it_is_exported_by_itself_when_it_passes(store, held, export, clock):
    """When its time has come and not before; then nothing is held, and nothing kept open."""
    held.add({(store.root, BAD): FAILED})
    export.refused = set()
    assert (held.drain(), export.has) == (0, [])
    clock.advance(2.0)
    assert held.drain() == 1
    (name,) = individual_names("out", [(store.root, BAD)])
    assert export.has == [(0, 1, name)]
    assert (waiting(store), held.is_empty) == ([], True)
    with_another = RetryQueue("out", RetryPolicy(), export=export, letters=DeadLetters, clock=clock, background=False)
    with_another.resume(store.root)
    with_another.close()


def test_its_attempts_are_used_up(store, held, export, clock):
    """Each after a longer pause; then it is a letter with the reason, and held no more."""
    held.add({(store.root, BAD): FAILED})
    clock.advance(2.0)
    assert held.drain() == 0
    assert waiting(store) == [(BAD, 2, "PROCESSOR: ZeroDivisionError: division by zero")]
    clock.advance(3.9)
    assert (held.drain(), export.tried) == (0, 1)
    clock.advance(0.1)
    assert (held.drain(), export.tried) == (1, 2)
    assert (waiting(store), export.has) == ([], [])
    (letter,) = read_dead_letters(REAL_FILES, store.root, "out")
    assert (letter.ref, letter.attempts) == (BAD, 3)
    assert letter.reason == "3 attempts failed; the last with PROCESSOR: ZeroDivisionError: division by zero"


def test_a_far_side_that_is_down_costs_no_attempt(store, held, export, clock, caplog):
    """The bundle passes; what takes it is tried again after a pause."""
    held.add({(store.root, BAD): FAILED})
    export.refused, export.is_down = set(), True
    clock.advance(2.0)
    for _ in range(3):
        assert held.drain() == 0
    assert (waiting(store)[0][1], export.tried) == (1, 1)
    assert "cannot be exported: OSError: [Errno 28] no space left" in caplog.text
    export.is_down = False
    clock.advance(60.0)
    assert held.drain() == 1


def test_what_cannot_be_decoded_is_a_letter_at_once(store, export, clock):
    """Nothing is gained by trying again; one that came into the set by damage is found out there."""
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


def test_a_segment_that_is_gone_is_held_no_more(store, held, clock):
    """Policy gave it up; there is nothing left to export."""
    held.add({(store.root, BundleRef(7, 0)): FAILED})
    clock.advance(2.0)
    assert (held.drain(), waiting(store)) == (1, [])


def test_the_next_life_goes_on_with_it(store, held, export, clock):
    """With its attempts; two lives at once are refused."""
    held.add({(store.root, BAD): FAILED})
    second = RetryQueue(
        "out", RetryPolicy(max_attempts=2), export=export, letters=DeadLetters, clock=clock, background=False
    )
    with pytest.raises(DirectoryInUseError):
        second.resume(store.root)
    held.close()
    second.resume(store.root)
    assert second.has(store.root, BAD)
    assert second.drain() == 0, "it waits for a session"
    second.session = SimpleNamespace()
    clock.advance(2.0)
    assert second.drain() == 1
    assert len(read_dead_letters(REAL_FILES, store.root, "out")) == 1
    second.close()


def test_a_halt_stops_it(store, export, clock):
    """In the batch by an error; in the drain the thread ends, and says so to whoever looks."""
    seal_requests(store, *(logs_request([number]) for number in (1, 0)))
    export.refused = {1}
    policy = RetryPolicy(initial_interval_s=2.0, jitter=0.0, max_attempts=2, on_exhausted="halt")
    held = RetryQueue("out", policy, export=export, clock=clock)
    held.session = SimpleNamespace()
    with pytest.raises(DeliveryHaltedError, match="out halted at bundle 0:0"):
        held.add({(store.root, BundleRef(0, 0)): Permanent("UNDECODABLE", "bad")})
    held.close()
    held = RetryQueue("out", policy, export=export, clock=clock)
    held.session = SimpleNamespace()
    held.add({(store.root, BAD): FAILED})
    clock.wait_for_waiters(1)
    clock.advance(2.0)
    thread = next(one for one in threading.enumerate() if one.name == "quiver-retries out")
    thread.join(30)
    assert "2 attempts failed" in str(held.halted)
    held.close()


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
"""Of compiled code there is no line to show."""

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
    """The one that a person looks for."""
    assert describe_error(error) == said


class SlowExport(Export):
    """One that is at work until it is let go on."""

    def __init__(self):
        super().__init__()
        self.is_at_work, self.may_end = threading.Event(), threading.Event()

    def export_one(self, spark, bundle, name):
        self.is_at_work.set()
        assert self.may_end.wait(30)
        super().export_one(spark, bundle, name)


def test_the_next_life_waits_for_a_bundle_that_is_still_exported(store, clock, monkeypatch):
    """Who closes waits a moment only. Until its export has ended nobody else may try the bundle; then it is done."""
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


def test_an_exporter_without_room_blames_no_bundle(store):
    """What it says of itself is taken at its word: the processors are not run once more to find out."""

    def full(batch, batch_id):
        raise CapacityError("the store beside it")

    places = pa.table({"path": pa.array([], pa.string()), "segment": [], "index": []})
    batch = SimpleNamespace(sparkSession=None, select=lambda *_: SimpleNamespace(toArrow=lambda: places))
    with BadBundleFilter(full, "out", RetryPolicy(on_exhausted="drop"), background=False) as sieve:
        with pytest.raises(CapacityError):
            sieve(batch, 0)
        assert sieve.halted is None
