"""An open log refuses every call in a forked child with a clear error, and continues normally in the parent."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import quiver
from clean_process import in_a_clean_process
from quiver.aof import AofManager
from quiver.errors import DirectoryInUseError, ForkError
from quiver.primitives import forked
from quiver.primitives.forked import refuse_in_children
from quiver.qwp import Sender
from quiver.topics import TopicStore

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # later Pythons warn of threads
]

BUNDLE = quiver.Bundle({30: pa.record_batch({"a": [1]})})


def in_child(work: Callable[[], object]) -> str:
    """Return the result of *work* in a forked child, or its error."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            text = str(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(write_end, text.encode())
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as end:
        text = end.read()
    os.waitpid(child, 0)
    return text


def refused(*calls: Callable[[], object] | tuple[object, str]) -> str:
    """Return which of *calls* did not raise `ForkError`, by number; an object and a name are looked up here."""
    passed = []
    for number, call in enumerate(calls):
        try:
            passed.append(f"{number}: {(getattr(*call) if isinstance(call, tuple) else call)()}")
        except ForkError:
            continue
    return ", ".join(passed) or "all refused"


class Thing:
    """An object that a process has open."""

    def __init__(self) -> None:
        self.value = 1

    def use(self) -> int:
        """Return what it has."""
        return self.value

    def close(self) -> None:
        """End it."""
        self.value = 0


@in_a_clean_process
def test_the_error_in_a_child_names_the_object_and_its_process():
    """A method that was looked up before the fork refuses, too."""
    thing = Thing()
    refuse_in_children(thing, "the log of a test")
    use = thing.use

    assert in_child(lambda: refused((thing, "use"), use, lambda: thing.value)) == "all refused"
    reported = in_child(lambda: f"{thing.use()}")
    assert reported.startswith(f"ForkError: the log of a test was opened by process {os.getpid()}, from which")
    assert (thing.use(), type(thing)) == (1, Thing)


@in_a_clean_process
def test_calls_that_a_child_makes_unintentionally_do_nothing():
    """The end of a `with` calls `close` in the child as well."""
    thing = Thing()
    refuse_in_children(thing, "the log of a test")

    assert in_child(lambda: (thing.close(), isinstance(thing, Thing))) == "(None, True)"
    assert thing.value == 1


@in_a_clean_process
def test_a_child_of_a_child_is_refused_and_its_own_things_work():
    """An object belongs to the process that opened it; one that a child opens belongs to the child."""

    def child() -> str:
        own = Thing()
        refuse_in_children(own, "the log of a child")
        return in_child(lambda: refused((thing, "use"), (own, "use"))) + f", own: {own.use()}"

    thing = Thing()
    refuse_in_children(thing, "the log of a test")
    assert in_child(child) == "all refused, own: 1"


@in_a_clean_process
def test_a_registered_object_can_be_garbage_collected():
    """Registering it does not keep it alive."""
    thing = Thing()
    refuse_in_children(thing, "the log of a test")
    assert thing in forked._named
    before = len(forked._named)
    del thing
    gc.collect()
    assert len(forked._named) < before


@pytest.mark.parametrize("cores", [None, 2])
@in_a_clean_process
def test_a_store_refuses_in_a_child(tmp_path: Path, cores: int | None) -> None:
    """Store, subscriber, handle and run; a handle that is dropped in the child returns nothing in the parent."""
    with quiver.open(tmp_path / "store", cores=cores) as store:
        subscriber = store.register("reader", start="earliest")
        for _ in range(8):
            store.ingest(BUNDLE)
        store.seal()
        runs = [subscriber.next_run(2, timeout=0) for _ in range(2)]
        held = [subscriber.next_bundle(timeout=0) for _ in range(2)]

        def child() -> str:
            reported = refused(
                lambda: store.ingest(BUNDLE), (store, "seal"), (store, "maintain"), (store, "stats"), held[0].ack,
                held[0].defer, lambda: held[1].bundle, lambda: store.register("other"), subscriber.next_bundle,
                lambda: list(runs[0]), runs[0].ack, runs[1].nack, subscriber.next_run,
            )  # fmt: skip
            with runs.pop():
                pass
            runs.clear()
            with held.pop():
                pass
            held.clear()
            gc.collect()
            store.close()
            try:
                quiver.open(tmp_path / "store", cores=cores)
            except DirectoryInUseError:
                return reported
            return "it was opened twice"

        assert in_child(child) == "all refused"
        for handle in held:
            assert handle.bundle == BUNDLE
            handle.ack()
        for run in runs:
            assert [bundle for _, bundle in run] == [BUNDLE] * 2
            run.ack()
        store.ingest(BUNDLE)
        store.seal()
        left = 0
        while handles := subscriber.next_bundles(9, timeout=0):
            left += len(handles)
            subscriber.ack_all(handles)
        assert left == 3
    assert sum(1 for _ in quiver.read(tmp_path / "store").bundles()) == 9


@in_a_clean_process
def test_topics_logs_and_senders_refuse_in_a_child(tmp_path: Path) -> None:
    """The other logs, and their objects."""
    conf = f"ws::addr=127.0.0.1:1;sf_dir={tmp_path / 'sf'};sender_id=e;initial_connect_retry=async;"
    with (
        TopicStore.open(tmp_path / "topics") as topics,
        AofManager.open(str(tmp_path / "aof")) as manager,
        Sender.from_conf(conf + "close_flush_timeout_millis=0;") as sender,
    ):
        log, records = topics.topic("default/x"), manager.log("x")
        subscription = topics.subscribe("default/x", "reader", start="earliest")

        def child() -> str:
            with records:  # the end of it is none in a child
                return refused(
                    lambda: log.append(b"x"), lambda: topics.topic("default/y"), lambda: subscription.consumer("c"),
                    lambda: records.append_record(b"x"), lambda: manager.log("y"),
                    lambda: sender.row("t", columns={"a": 1}, at=1), (sender, "flush"),
                )  # fmt: skip

        assert in_child(child) == "all refused"
        assert log.append(b"parent") == 0
        assert records.append_record(b"parent") >= 0
        sender.row("t", columns={"a": 1}, at=1)
