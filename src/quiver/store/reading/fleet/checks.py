"""The checks of `quiver fleet doctor`: findings for an operator. No disk and no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from quiver.counted import counted
from quiver.store.format.fleet.rejected import RejectedSegment
from quiver.store.reading.fleet.lag import lag_of
from quiver.store.reading.fleet.survey import FleetSurvey, ReaderPositions, SurveyedNode

__all__ = ["CHECKS", "FleetFinding", "FleetLimits", "check_fleet"]

FleetCheck = Literal[
    "silent", "conflict", "problem", "clock", "disk", "version", "chain", "rejected", "lag", "reader", "damaged"
]

CHECKS: dict[FleetCheck, str] = {
    "silent": "the node does not write its record: is it running, and can it reach the bucket?",
    "conflict": "another store has the same identity: see docs/howto/fleet.md, Two stores with one identity",
    "problem": "the node cannot upload, for the reason that it reports",
    "clock": "set the clock of the node; times of its data are wrong, nothing else depends on it",
    "disk": "the disk of the node fills up: start its readers, or raise retention.size_cap",
    "version": "install one version of Quiver on all nodes",
    "chain": "the rest of this node is not read: see docs/howto/fleet.md, Failures",
    "rejected": "a reader could not read it: see docs/howto/fleet.md, Nodes that stop",
    "lag": "the reader is too slow, or does not run",
    "reader": "nodes wait for a reader that never acknowledged: start it, or remove it from cold.fleet.subscribers",
    "damaged": "an object cannot be read; its writer replaces it",
}
"""The advice for each check."""

_REJECTED_MAX = 20
"""Of one node, this many rejected segments are reported one by one."""


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """
    From when on a figure is reported.

    Attributes:
        silent_s: a node wrote no record for longer. A running node writes one every ten minutes.
        clock_s: its clock differs by more from that of the object store.
        lag_s: the oldest segment that was not acknowledged is older.
        disk_share: it uses more of `retention.size_cap`.
        disk_free_bytes: its disk has less free space.
    """

    silent_s: float = 1800.0
    clock_s: float = 60.0
    lag_s: float = 3600.0
    disk_share: float = 0.9
    disk_free_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class FleetFinding:
    """
    A finding.

    Attributes:
        check: a key of `CHECKS`.
        identity: of the node; None if it concerns several.
        node: its name, or None.
        subscriber: the reader that it concerns, or None.
        problem: what was found.
        segment: the number of the segment that it concerns, or None.
    """

    check: FleetCheck
    identity: str | None
    node: str | None
    subscriber: str | None
    problem: str
    segment: int | None = None


def check_fleet(
    found: FleetSurvey,
    *,
    now_ns: int,
    limits: FleetLimits,
    rejected: Mapping[str, Sequence[RejectedSegment]] | None = None,
) -> list[FleetFinding]:
    """
    Return the findings: first those of the fleet, then those of one node after the other, then rejected segments.

    Args:
        found: the fleet.
        now_ns: the current time.
        limits: from when on a figure is reported.
        rejected: the segments that each reader rejected, by its name.
    """
    findings = [*_of_fleet(found)]
    findings += (one for node in found.nodes.values() for one in _of_node(found, node, now_ns, limits))
    for subscriber, segments in (rejected or {}).items():
        findings += _of_rejected(found, subscriber, segments)
    return findings


def _of_fleet(found: FleetSurvey) -> Iterator[FleetFinding]:
    records = [node.record for node in found.nodes.values() if node.record is not None]
    versions = Counter(record.version for record in records if record.state == "running")
    if len(versions) > 1:
        each = ", ".join(f"{count} with {version}" for version, count in versions.most_common())
        yield FleetFinding("version", None, None, None, f"running nodes have different versions: {each}")
    for reader in found.readers.values():
        waiting = sum(reader.subscriber in record.subscribers for record in records)
        if waiting and not reader.nodes and not reader.problems:
            problem = f"{counted(waiting, 'node')} waiting for it, and it has not acknowledged anything"
            yield FleetFinding("reader", None, None, reader.subscriber, problem)
        for problem in reader.problems:
            yield FleetFinding("damaged", None, None, reader.subscriber, problem)
    if found.strangers:
        problem = (
            f"{counted(len(found.strangers), 'object')} of no node in the inbox, for example {found.strangers[0][:200]}"
        )
        yield FleetFinding("damaged", None, None, None, problem)


def _of_node(found: FleetSurvey, node: SurveyedNode, now_ns: int, limits: FleetLimits) -> Iterator[FleetFinding]:
    finding = partial(_finding, node)
    if node.problem is not None:
        yield finding("damaged", node.problem)
    elif node.is_silent(now_ns, limits.silent_s):
        seen_s = node.seen_s(now_ns)
        yield finding("silent", "it has no record" if seen_s is None else f"its record is {seen_s:.0f} s old")
    yield from _of_record(node, limits)
    for reader in found.readers_of(node):
        yield from _of_lag(node, reader, now_ns, limits)


def _finding(node: SurveyedNode, check: FleetCheck, problem: str, subscriber: str | None = None) -> FleetFinding:
    return FleetFinding(check, node.identity, node.name, subscriber, problem)


def _of_record(node: SurveyedNode, limits: FleetLimits) -> Iterator[FleetFinding]:
    record, difference_s = node.record, node.clock_difference_s
    finding = partial(_finding, node)
    if record is None:
        return
    if record.state == "conflict":
        yield finding("conflict", record.problem or "another store wrote its record")
    elif record.problem is not None:
        yield finding("problem", record.problem)
    if difference_s is not None and abs(difference_s) > limits.clock_s:
        side = "ahead of" if difference_s > 0 else "behind"
        yield finding("clock", f"its clock is {abs(difference_s):.0f} s {side} that of the object store")
    cap_bytes = record.disk_cap_bytes
    if cap_bytes and record.disk_bytes > limits.disk_share * cap_bytes:
        yield finding("disk", f"it uses {record.disk_bytes / cap_bytes:.0%} of its cap")
    elif record.disk_free_bytes is not None and record.disk_free_bytes < limits.disk_free_bytes:
        yield finding("disk", f"its disk has {record.disk_free_bytes >> 20} MiB of free space")


def _of_lag(node: SurveyedNode, reader: ReaderPositions, now_ns: int, limits: FleetLimits) -> Iterator[FleetFinding]:
    finding = partial(_finding, node, subscriber=reader.subscriber)
    lag = lag_of(node.objects, reader.nodes.get(node.identity))
    if lag.problem is not None:
        yield finding("chain", f"{lag.problem}; {lag.unread_after_problem} objects are not read")
    age_s = 0.0 if lag.oldest_ns is None else (now_ns - lag.oldest_ns) / 1e9
    if age_s > limits.lag_s:
        yield finding("lag", f"{counted(lag.segments, 'segment')} waiting, the oldest for {age_s:.0f} s")


def _of_rejected(found: FleetSurvey, subscriber: str, rejected: Sequence[RejectedSegment]) -> Iterator[FleetFinding]:
    reader = found.readers[subscriber]
    by_node: dict[str, dict[int, RejectedSegment]] = {}
    for one in rejected:
        by_node.setdefault(one.identity, {})[one.segment] = one  # a batch that was replayed may have rejected it twice
    for identity, segments in sorted(by_node.items()):
        node, acked = found.nodes.get(identity), reader.nodes.get(identity)
        name = identity if node is None else node.name
        for number in sorted(segments)[:_REJECTED_MAX]:
            one = segments[number]
            is_waiting = acked is None or acked.position <= number
            what = "the node waits at it" if is_waiting else "later segments were read"
            problem = f"segment {number} was rejected as {one.cause}, and {what}: {one.reason}"
            yield FleetFinding("rejected", identity, name, subscriber, problem, number)
        if len(segments) > _REJECTED_MAX:
            problem = f"{len(segments) - _REJECTED_MAX} more segments were rejected, up to segment {max(segments)}"
            yield FleetFinding("rejected", identity, name, subscriber, problem)
