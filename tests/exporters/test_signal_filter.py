"""An exporter with `signals` sends these; it acknowledges and counts the others, also while its destination is down."""

import pyarrow as pa
import pytest
from fake_destination import FakeSender, FakeSource, otlp_bundle
from hypothesis import given
from hypothesis import strategies as st
from test_request_sizes import logs

from quiver.bundle import OTAP, OTLP_SLOTS, QWP_SLOT, Bundle
from quiver.delivery.policy import RetryPolicy
from quiver.delivery.signal_filter import OTHER, SIGNALS, SignalFilter, check_signals
from quiver.delivery.undelivered import Undelivered
from quiver.errors import CorruptionError, SettingsError
from quiver.exporters.forward import BundleForwarder
from quiver.exporters.reply import Reply
from quiver.exporters.settings import RequestSizes
from quiver.observe import InMemoryObserver
from quiver.primitives.backoff import Backoff
from quiver.testing.clock import ManualClock

UNAVAILABLE = Reply("retry", "UNAVAILABLE", "no")
COMBINING = RequestSizes(batch_bytes_min=10_000)
ROW = pa.record_batch({"n": [1]})

numbers = st.lists(st.sampled_from([1, 2, 10, 30, 31, 40, 41, QWP_SLOT, 60, 61, 62, 63]), unique=True)
wanted_signals = st.lists(st.sampled_from(SIGNALS), min_size=1, unique=True)


class Forwarding:
    """A forwarder of some signals over scripted bundles, called step by step."""

    def __init__(self, *bundles, signals=("logs",), answer=None, sizes=None) -> None:
        self.clock = ManualClock()
        self.source = FakeSource(self.clock, *bundles)
        self.sender = FakeSender(answer)
        self.observer = InMemoryObserver()
        backoff = Backoff(first_s=1.0, cap_s=4.0, jitter=0.0)
        undelivered = Undelivered("out", RetryPolicy.of_backoff(backoff, on_exhausted="drop"), clock=self.clock)
        self.forwarder = BundleForwarder(
            self.source, self.sender, undelivered=undelivered, clock=self.clock, observer=self.observer,
            sizes=sizes, signals=SignalFilter(signals),
        )  # fmt: skip

    def run(self) -> None:
        while self.forwarder.forward_one():
            pass

    def skipped(self, signal: str) -> int:
        attributes = (("exporter", "out"), ("signal", signal))
        return self.observer.counts["quiver.exporter.skipped_bundles_total", attributes]


def of(signal: str, number: int = 0) -> Bundle:
    return otlp_bundle(logs(f"{signal} {number}"), signal=signal)


@pytest.mark.parametrize("sizes", [None, COMBINING])
def test_only_these_signals_are_sent(sizes):
    """One by one and combined; every bundle is acknowledged once, and those of other signals are counted."""
    bundles = [of(signal, number) for number in range(5) for signal in SIGNALS]
    forwarding = Forwarding(*bundles, signals=("logs", "metrics"), sizes=sizes)
    forwarding.run()

    assert forwarding.source.outcomes == dict.fromkeys(range(15), "acked")
    assert {signal for signal, _ in forwarding.sender.sent} == {"logs", "metrics"}
    assert b"".join(data for signal, data in forwarding.sender.sent if signal == "logs") == b"".join(
        logs(f"logs {number}") for number in range(5)
    )
    assert [forwarding.skipped(signal) for signal in SIGNALS] == [0, 5, 0]


def test_a_bundle_of_several_signals_is_sent_in_part():
    """The part is what becomes a dead letter, too: the rest belongs to other exporters."""
    both = Bundle(dict(of("logs").batches) | dict(of("traces").batches))
    forwarding = Forwarding(both)
    forwarding.run()

    assert [signal for signal, _ in forwarding.sender.sent] == ["logs"]
    assert (forwarding.source.outcomes, forwarding.skipped("traces")) == ({0: "acked"}, 1)
    assert SignalFilter(["logs"]).part(both).slots == (60,)
    assert SignalFilter(["logs", "traces"]).part(both) is both


def test_an_outage_delays_only_what_is_sent():
    """Bundles of other signals neither wait for the destination, nor use up the attempts to find it up again."""
    bundles = [of("logs", number) for number in range(6)] + [of("traces", number) for number in range(50)]
    forwarding = Forwarding(*bundles, of("logs", 9), answer=lambda *_: UNAVAILABLE)
    forwarding.run()
    assert forwarding.forwarder.state().is_down
    assert not forwarding.source.outcomes

    forwarding.clock.advance(2.0)
    forwarding.run()
    sent = len(forwarding.sender.sent)
    assert sent > 4
    for _ in range(30):
        forwarding.clock.advance(2.0)
        forwarding.run()
    assert forwarding.source.outcomes == dict.fromkeys(range(6, 56), "acked")
    forwarding.sender.answer = None
    forwarding.clock.advance(10.0)
    forwarding.run()
    forwarding.clock.advance(10.0)
    forwarding.run()
    assert len(forwarding.source.outcomes) == 57
    assert forwarding.skipped("traces") == 50


def test_a_retry_counts_a_skipped_part_once():
    """The count is of bundles, not of attempts."""
    both = Bundle(dict(of("logs").batches) | dict(of("traces").batches))
    answers = iter([UNAVAILABLE, UNAVAILABLE, Reply("confirmed")])
    forwarding = Forwarding(both, answer=lambda *_: next(answers))
    for _ in range(3):
        forwarding.run()
        forwarding.clock.advance(10.0)

    assert forwarding.source.outcomes == {0: "acked"}
    assert forwarding.skipped("traces") == 1


@pytest.mark.parametrize("sizes", [None, COMBINING])
def test_a_damaged_bundle_is_not_skipped(sizes):
    """Its signals are unknown: it is reported like without `signals`."""
    forwarding = Forwarding(of("traces"), CorruptionError("/x", 0, "bad"), of("traces"), sizes=sizes)
    forwarding.run()

    assert forwarding.source.outcomes.pop(1).startswith("rejected")
    assert forwarding.source.outcomes == {0: "acked", 2: "acked"}


def test_data_that_belongs_to_no_signal_is_skipped():
    """A QWP table is not logs: without `signals`, an OTLP exporter refuses it as something that it cannot represent."""
    forwarding = Forwarding(Bundle({QWP_SLOT: ROW}), of("logs"))
    forwarding.run()

    assert forwarding.source.outcomes == {0: "acked", 1: "acked"}
    assert forwarding.skipped(OTHER) == 1


@given(numbers, wanted_signals)
def test_every_slot_passes_or_is_counted(slots, signals):
    """Shared slots pass with a slot of a signal, and only then."""
    slots = sorted(slots)
    found = SignalFilter(signals)
    passing = found.wanted(slots)
    shared = [slot for slot in slots if slot in {1, 2}]
    named = {slot: OTAP.signals.get(slot, OTHER) for slot in slots if slot not in shared}

    expected = [slot for slot in named if named[slot] in signals]
    assert passing == (sorted(expected + shared) if expected else [])
    assert set(found.unwanted(slots)) == set(named.values()) - set(signals)
    assert found.has_wanted(slots) == bool(passing)


@pytest.mark.parametrize(
    ("given_signals", "reason"),
    [
        (["spans"], "there is no signal spans; did you mean traces?"),
        (["log"], "there is no signal log; known are logs, traces, metrics"),
        (["logs", "logs"], "logs is listed twice"),
        ([], "an empty list would deliver nothing"),
        ([["logs"]], "there is no signal"),
    ],
)
def test_other_names_are_refused(given_signals, reason):
    """A misspelled signal would silently deliver nothing."""
    with pytest.raises(SettingsError, match=reason):
        check_signals(given_signals)


def test_signals_have_one_order():
    """That of the slots, so that two spellings of one setting are equal."""
    assert check_signals(["metrics", "logs"]) == ("logs", "metrics")
    assert tuple(OTLP_SLOTS) == SIGNALS
