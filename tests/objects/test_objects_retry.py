"""Failed calls are retried, and an object of an attempt whose answer was lost is not taken for another's."""

from __future__ import annotations

from random import Random

import pytest

from quiver.errors import ObjectExistsError, ObjectsUnavailableError, UsageError
from quiver.objects.memory import MemoryObjects
from quiver.objects.retrying import RetryingObjects
from quiver.observe import InMemoryObserver
from quiver.primitives.backoff import Backoff
from quiver.testing.clock import ManualClock
from quiver.testing.faultobjects import OBJECT_OPERATIONS, FaultObjects

CALLS = {
    "put": lambda tier: tier.put("new", b"data").size_bytes == 4,
    "put_parts": lambda tier: tier.put_parts("new", lambda: [b"da", b"ta"]).size_bytes == 4,
    "get": lambda tier: tier.get("old", size_max=9) == b"bytes",
    "get_range": lambda tier: tier.get_range("old", 1, 2) == b"yt",
    "get_ranges": lambda tier: tier.get_ranges("old", [(0, 1), (4, 1)]) == [b"b", b"s"],
    "head": lambda tier: tier.head("old").size_bytes == 5,
    "list": lambda tier: [info.key for info in tier.list_below("")] == ["old"],
    "delete": lambda tier: tier.delete(["old"]) is None,
    "copy": lambda tier: tier.copy("old", "new").size_bytes == 5,
}


class Rig:
    def __init__(self, tries_max=4):
        self.memory = MemoryObjects()
        self.memory.put("old", b"bytes")
        self.clock = ManualClock()
        self.faults = FaultObjects(self.memory, clock=self.clock)
        self.observer = InMemoryObserver()
        backoff = Backoff(first_s=1.0, cap_s=3.0, jitter=0.0)
        self.tier = RetryingObjects(
            self.faults,
            clock=self.clock,
            observer=self.observer,
            backoff=backoff,
            tries_max=tries_max,
            random=Random(1),
        )


def test_every_operation_is_covered():
    """None is missing."""
    assert set(CALLS) == OBJECT_OPERATIONS


@pytest.mark.parametrize("operation", sorted(CALLS))
@pytest.mark.parametrize("how", ["fail", "lose_answer", "slow", "repeat"])
def test_transient_failures_are_retried(operation, how):
    """Two failures, and the third attempt returns the result."""
    rig = Rig()
    rig.faults.fail_on(operation, times=2, how=how)

    assert CALLS[operation](rig.tier)
    if how in {"fail", "lose_answer"}:
        assert rig.faults.calls[operation] == 3
        assert rig.clock.monotonic() == 3.0  # one second, then two
        assert rig.observer.total("quiver.objects.retries_total") == 2


@pytest.mark.parametrize("operation", sorted(CALLS))
def test_permanent_failures_are_raised(operation):
    """After the last attempt the caller gets the error, with operation and key."""
    rig = Rig()
    rig.faults.fail_on(operation, times=99)

    with pytest.raises(ObjectsUnavailableError) as raised:
        CALLS[operation](rig.tier)

    assert raised.value.operation == operation
    assert rig.faults.calls[operation] == 4
    assert rig.clock.monotonic() == 6.0  # 1 + 2 + 3: capped


@pytest.mark.parametrize("operation", ["put", "copy"])
def test_a_lost_answer_to_if_absent_is_recognized(operation):
    """The first attempt wrote the object, and the second one recognizes it."""
    rig = Rig()
    rig.faults.fail_on(operation, how="lose_answer")
    calls = {
        "put": lambda: rig.tier.put("new", b"bytes", if_absent=True),
        "copy": lambda: rig.tier.copy("old", "new", if_absent=True),
    }

    assert calls[operation]().size_bytes == 5
    assert rig.memory.get("new", size_max=9) == b"bytes"


@pytest.mark.parametrize("other", [b"BYTES", b"longer bytes"])
@pytest.mark.parametrize("operation", ["put", "copy"])
def test_an_object_of_another_caller_is_not_taken_for_ours(operation, other):
    """The attempt failed, and another caller's write came first: the caller gets the error."""
    rig = Rig()
    rig.faults.fail_on(operation)
    rig.faults.on_call = lambda called, key: rig.memory.put("new", other) if called == operation else None

    with pytest.raises(ObjectExistsError):
        if operation == "put":
            rig.tier.put("new", b"bytes", if_absent=True)
        else:
            rig.tier.copy("old", "new", if_absent=True)

    assert rig.memory.get("new", size_max=99) == other


def test_usage_errors_are_not_retried():
    """Only transient failures are."""
    rig = Rig()

    with pytest.raises(UsageError):
        rig.tier.get("old", size_max=1)

    assert rig.faults.calls["get"] == 1


def test_closing_ends_retries():
    """A log that closes does not wait for an unreachable server."""
    rig = Rig()
    rig.faults.fail_on("head", times=99)
    rig.tier.close()

    with pytest.raises(ObjectsUnavailableError):
        rig.tier.head("old")

    assert rig.faults.calls["head"] == 1


def test_the_fault_wrapper_rejects_unknown_operations():
    """A misspelt operation would never fail, and the test would pass."""
    with pytest.raises(UsageError):
        FaultObjects(MemoryObjects()).fail_on("puts")
    with pytest.raises(UsageError):
        FaultObjects(MemoryObjects()).fail_on("put", 0)


def test_truncated_reads_are_short():
    """A fault that the retry wrapper cannot detect: readers compare lengths."""
    rig = Rig()
    rig.faults.fail_on("get_range", how="truncate")

    assert rig.tier.get_range("old", 0, 4) == b"by"
    assert rig.tier.get_range("old", 0, 4) == b"byte"
