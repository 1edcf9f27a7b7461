"""A consumer stops for minutes: its deliveries time out, its late answers count, and no message is lost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quiver.topics import TopicStore
from stopped_process import StoppedProcess

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.skipif(sys.platform == "win32", reason="no SIGSTOP"),
]

MINUTES_S = 600.0
TOPIC = "default/orders"
PROGRAM = """
from quiver.topics import TopicStore

topics = TopicStore.open(sys.argv[2], clock=clock)
log = topics.topic("default/orders")
for number in range(5):
    log.append(b"%d" % number)
subscription = topics.subscribe("default/orders", "billing", start="earliest")
consumer = subscription.consumer("one")
first = [consumer.receive(0) for _ in range(4)]
again = {}

def take_all():
    found = []
    while (delivery := consumer.receive(0)) is not None:
        found.append(delivery.offset)
        again[delivery.offset] = delivery
    return found
"""


def test_late_acknowledgements_count_and_late_refusals_do_not(tmp_path: Path) -> None:
    """
    An acknowledgement always counts. A refusal of a delivery that has timed out does not, because another consumer may
    be processing the message.
    """
    path = tmp_path / "topics"
    with StoppedProcess(tmp_path, PROGRAM, path) as process:
        assert process.ask("[one.offset for one in first]") == [0, 1, 2, 3]
        process.stop()
        process.go_on_after(MINUTES_S)
        assert process.ask("first[0].ack()") is None
        assert process.ask("take_all()") == [1, 2, 3, 4]
        assert process.ask("first[1].ack()") is None
        assert process.ask("first[2].nack(0)") is None
        assert process.ask("take_all()") == []
        assert process.ask("[again[offset].ack() for offset in (1, 2, 4)]") == [None] * 3
        assert process.ask("topics.close()") == ()
    with (
        TopicStore.open(path, background=False) as topics,
        topics.subscribe(TOPIC, "billing").consumer("two") as consumer,
    ):
        left = consumer.receive(0)
        assert left is not None
        assert left.offset == 3
        left.ack()
        assert consumer.receive(0) is None
