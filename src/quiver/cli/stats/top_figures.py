"""
The figures of `quiver top`: a pipeline's metrics, directory, state file, and the ends of its logs.

Each snapshot is compared with the previous one to compute rates. The only request to the pipeline is for its metrics,
and everything else is shown even without them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quiver.cli.reports import Reported, reported
from quiver.cli.stats.store import StoreStats, SubscriberStats, collect_stats
from quiver.cli.stats.waiting import Waiting, waiting_of
from quiver.delivery.dead_letters import count_dead_letters
from quiver.errors import TransientError, UsageError
from quiver.pipeline.companion_stores import find_companion_stores
from quiver.primitives.disk.file_system import FileSystem

__all__ = [
    "Flow",
    "PipelineSnapshot",
    "ProcessState",
    "Received",
    "Sample",
    "Showing",
    "fetch_samples",
    "load_state",
    "parse_samples",
    "showing",
    "store_places",
    "take_snapshot",
]

ENDPOINT_BYTES_MAX = 16 * 1024 * 1024
STATE_BYTES_MAX = 1024 * 1024
LOG_TAIL_BYTES = 64 * 1024
ERRORS_SHOWN_MAX = 5
ENDPOINT_TIMEOUT_S = 2.0

STATE_NAME = "state.json"
_TROUBLE = (" WARNING ", " ERROR ", " CRITICAL ")
_OWN = " quiver"
"""The name of the logger in lines of Quiver."""

_TRACEBACK = "Traceback (most recent call last)"

FAILURES = "quiver_exporter_failures_total"
RECEIVED_RECORDS = "quiver_receiver_items_total"
RECEIVED_BYTES = "quiver_receiver_bytes_total"

FLOWS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("records received", RECEIVED_RECORDS, ("buffer", "receiver", "signal")),
    ("bytes received", RECEIVED_BYTES, ("buffer", "receiver", "signal")),
    ("OTLP requests", "quiver_receiver_requests_total", ("buffer", "receiver", "signal", "outcome")),
    ("OTAP batches", "quiver_receiver_batches_total", ("buffer", "receiver", "signal", "outcome")),
    ("ingest refused or delayed", "quiver_ingest_throttle_total", ()),
    ("segments sealed", "quiver_segment_sealed_total", ()),
    ("segments deleted", "quiver_gc_evictions_total", ("reason",)),
    ("acknowledged", "quiver_subscriber_acked_bundles_total", ("subscriber",)),
    ("dropped", "quiver_subscriber_dropped_bundles_total", ("subscriber", "reason")),
    ("requests sent", "quiver_exporter_requests_total", ("exporter", "outcome")),
    ("rows exported", "quiver_exporter_rows_total", ("exporter",)),
    ("failed attempts", FAILURES, ("exporter", "type")),
    ("given up", "quiver_exporter_given_up_total", ("exporter", "how")),
)
"""The flows to show: label, counter, and the attributes that distinguish its lines."""

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of Prometheus text."""

    name: str
    labels: Labels
    value: float

    def label(self, name: str) -> str:
        """Return a label's value, empty without it."""
        return dict(self.labels).get(name, "")


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process of the pipeline, from the state file."""

    name: str
    state: str
    pid: int | None
    starts: int
    last_exit: str


@dataclass(frozen=True)
class PipelineSnapshot:
    """
    A snapshot of a pipeline.

    Attributes:
        at_s: the time in monotonic seconds.
        samples: the metrics; empty if the port did not answer.
        problem: why there are no samples or no directory; empty otherwise.
        waiting: subscriber → its pending retries, if any.
        reports: exporter → its last success and failure, if it has reported.
        dead_letters: exporter → the number of its dead letters, if any.
        buffer: the name of the buffer of the directory, if the pipeline has several.
    """

    at_s: float
    samples: tuple[Sample, ...]
    subscribers: tuple[SubscriberStats, ...]
    disk_bytes: int
    nodes: tuple[ProcessState, ...]
    errors: tuple[str, ...]
    problem: str = ""
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    reports: Mapping[str, Reported] = field(default_factory=dict)
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    buffer: str = ""

    def values(self, name: str) -> list[float]:
        """Return the values of one metric of the directory."""
        return [
            sample.value
            for sample in self.samples
            if sample.name == name and sample.label("buffer") in {"", self.buffer}
        ]

    def total(self, name: str) -> float | None:
        """Return the sum of one metric of the directory; None if it is missing."""
        values = self.values(name)
        return sum(values) if values else None


@dataclass(frozen=True, slots=True)
class Flow:
    """One counter, or one of its lines: the total since the start of the pipeline, and the rate per second."""

    what: str
    of: str
    total: int
    per_second: float | None


@dataclass(frozen=True, slots=True)
class Received:
    """
    The records and bytes that a receiver has stored since the start of the pipeline, and their rates per second. A rate
    is None until there are two snapshots.
    """

    records: int
    records_per_second: float | None
    bytes: int
    bytes_per_second: float | None


@dataclass(frozen=True)
class Showing:
    """The displayed data: a snapshot and the changes since the previous one."""

    nodes: tuple[ProcessState, ...]
    flows: tuple[Flow, ...]
    subscribers: tuple[SubscriberStats, ...]
    disk: Mapping[str, float | None]
    errors: tuple[str, ...]
    problem: str = ""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Acknowledged bundles per second, by subscriber."""
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    """Pending retries, by subscriber."""
    reports: Mapping[str, Reported] = field(default_factory=dict)
    """The last success and failure, by exporter."""
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    """The number of dead letters, by exporter."""
    received: Mapping[str, Received] = field(default_factory=dict)
    """By receiver; the only receiver of a pipeline has the empty name, because its counts do not name it."""


def parse_samples(text: str) -> tuple[Sample, ...]:
    """
    Return the samples of the pipeline in Prometheus *text*.

    Raises:
        TransientError: it is not Prometheus text.
        ModuleNotFoundError: the extra `metrics` is not installed.
    """
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - an extra

    try:
        return tuple(
            Sample(sample.name, tuple(sorted(sample.labels.items())), float(sample.value))
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith("quiver_")
        )
    except ValueError as error:
        raise TransientError(f"the answer is not in the Prometheus format: {error}") from error


def fetch_samples(endpoint: str) -> tuple[Sample, ...]:
    """
    Request the metrics at *endpoint*, ``host:port``.

    Raises:
        TransientError: there is no answer, or it is not in the Prometheus format.
    """
    import http.client  # noqa: PLC0415 - for this alone

    connection = http.client.HTTPConnection(endpoint, timeout=ENDPOINT_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read(ENDPOINT_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise TransientError(f"no metrics from {endpoint}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise TransientError(f"no metrics from {endpoint}: HTTP status {answer.status}")
    return parse_samples(body.decode(errors="replace"))


def take_snapshot(
    fs: FileSystem, directory: str, run_dir: str, endpoint: str | None, *, at_s: float, now_ns: int
) -> PipelineSnapshot:
    """Take a snapshot. Missing parts are left out and described in `problem`."""
    problems = []
    samples: tuple[Sample, ...] = ()
    state = load_state(fs, run_dir)
    for address in _endpoints(state, endpoint):
        try:
            samples += fetch_samples(address)
        except TransientError as error:
            problems.append(str(error))
    subscribers: tuple[SubscriberStats, ...] = ()
    waiting: dict[str, Waiting] = {}
    reports: dict[str, Reported] = {}
    dead_letters: Counter[str] = Counter()
    disk_bytes = None
    for place in store_places(fs, directory, state):
        try:
            found = collect_stats(fs, place, now_ns=now_ns)
        except UsageError as error:
            if not state:
                raise
            problems.append(f"not yet: {error}")  # the pipeline is just starting
            continue
        if disk_bytes is None:
            disk_bytes = found.segment_bytes + found.wal_bytes
        subscribers += found.subscribers
        problems += found.unreadable
        waits = _waiting(fs, found, now_ns)
        problems += [one.retry_problem for one in waits.values() if one.retry_problem is not None]
        waiting = {**waits, **waiting}
        of_store = _reports(fs, found)
        problems += [one.report_problem for one in of_store.values() if one.report_problem is not None]
        reports = {**of_store, **reports}
        dead_letters.update(_count_dead_letters(fs, found))
    if disk_bytes is None:
        problems.append(f"{directory} does not exist yet")
    nodes = _nodes(state)
    errors = [f"{node.name}: {line}" for node in nodes for line in _trouble(fs, f"{run_dir}/{node.name}.log")]
    return PipelineSnapshot(
        at_s,
        samples,
        subscribers,
        disk_bytes or 0,
        nodes,
        tuple(errors[-ERRORS_SHOWN_MAX:]),
        "; ".join(problems),
        waiting,
        reports,
        dict(dead_letters),  # `asdict` cannot copy a Counter
        _buffer_of(directory, state),
    )


def _buffers(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the directories of the buffers of the pipeline, by name."""
    reports = state.get("buffers")
    return {name: one for name, one in reports.items() if isinstance(one, str)} if isinstance(reports, dict) else {}


def _buffer_of(directory: str, state: Mapping[str, Any]) -> str:
    """Return the name of the buffer in *directory*; empty if it is unknown."""
    real = os.path.realpath(directory)
    return next((name for name, one in _buffers(state).items() if os.path.realpath(one) == real), "")


def store_places(fs: FileSystem, directory: str, state: Mapping[str, Any]) -> list[str]:
    """Return the stores to read: the given one, its companion stores, and others of the pipeline."""
    others = list(_buffers(state).values())
    # Older versions wrote paths relative to the working directory of the run.
    named = [directory, *find_companion_stores(fs, directory), *filter(os.path.isabs, others)]
    found: dict[str, str] = {}
    for one in named:
        if fs.exists(one):
            found.setdefault(os.path.realpath(one), one)
    return list(found.values())


def _waiting(fs: FileSystem, found: StoreStats, now_ns: int) -> dict[str, Waiting]:
    """Return the pending retries of each subscriber, over all cores, if any."""
    roots = [core.directory for core in found.cores]
    reports = {one.subscriber: waiting_of(fs, roots, one.subscriber, now_ns=now_ns) for one in found.subscribers}
    return {name: one for name, one in reports.items() if one != Waiting()}


def _reports(fs: FileSystem, found: StoreStats) -> dict[str, Reported]:
    roots = [core.directory for core in found.cores]
    reports = {one.subscriber: reported(fs, roots, one.subscriber) for one in found.subscribers}
    return {name: one for name, one in reports.items() if one != Reported()}


def _count_dead_letters(fs: FileSystem, found: StoreStats) -> dict[str, int]:
    counts = {
        one.subscriber: sum(count_dead_letters(fs, core.directory, one.subscriber) for core in found.cores)
        for one in found.subscribers
    }
    return {name: count for name, count in counts.items() if count}


def load_state(fs: FileSystem, run_dir: str) -> Mapping[str, Any]:
    """Return the state file, without parts of another form than `quiver run` writes; empty if it cannot be read."""
    try:
        state = json.loads(fs.read_all(f"{run_dir}/{STATE_NAME}", size_max=STATE_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    if not isinstance(state, dict):
        return {}
    return {key: value for key, value in state.items() if key not in _FORMS or _FORMS[key](value)}


def _is_graph(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    nodes, edges = value.get("nodes"), value.get("edges")
    return (
        isinstance(nodes, list)
        and isinstance(edges, list)
        and all(isinstance(one, dict) and {"name", "kind", "note"} <= one.keys() for one in nodes)
        and all(isinstance(text, str) for one in nodes for text in one.values())
        and all(isinstance(edge, list) and len(edge) == 2 for edge in edges)
    )


def _is_list_of_events(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict) and isinstance(one.get("at_ns"), int) and isinstance(one.get("what"), str)
        for one in value
    )


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and value.rpartition(":")[2].isdecimal()


_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "buffers": lambda value: isinstance(value, dict),
    "children": lambda value: (
        isinstance(value, dict)
        and all(isinstance(one, dict) and isinstance(one.get("starts", 0), int) for one in value.values())
    ),
    "cores": lambda value: value is None or isinstance(value, int),
    "disk_cap": lambda value: value is None or isinstance(value, int),
    "events": _is_list_of_events,
    "graph": _is_graph,
    "metrics": lambda value: value is None or _is_address(value),
    "size_caps": lambda value: isinstance(value, dict),
}
"""The form of each part of the state file that is read here: another program may have written a file of this name."""


def _endpoints(state: Mapping[str, Any], endpoint: str | None) -> list[str]:
    """Return all metrics endpoints: *endpoint* or that of the state file, and consecutive ports for several cores."""
    reports = state.get("metrics")
    first = endpoint or reports
    if not first:
        return []
    host, _, port = first.rpartition(":")
    cores = int(state.get("cores") or 1) if reports and reports.rpartition(":")[2] == port else 1
    if cores == 1 or not port.isdecimal():
        return [first]
    return [f"{host}:{int(port) + core}" for core in range(cores)]


def _nodes(state: Mapping[str, Any]) -> tuple[ProcessState, ...]:
    return tuple(
        ProcessState(
            name, str(one.get("state")), one.get("pid"), int(one.get("starts", 0)), str(one.get("last_exit", ""))
        )
        for name, one in state.get("children", {}).items()
    )


def _trouble(fs: FileSystem, path: str) -> list[str]:
    """Return the last warnings and errors in a log."""
    try:
        file = fs.open_read(path)
    except OSError:
        return []
    try:
        tail = file.pread(LOG_TAIL_BYTES, max(0, file.size() - LOG_TAIL_BYTES))
    finally:
        file.close()
    found = []
    is_inside = False
    for line in tail.decode(errors="replace").splitlines():
        # In a traceback, the line after the frames is the error.
        if any(word in line for word in _TROUBLE) or (is_inside and line and not line[0].isspace()):
            found.append(line.strip())
            is_inside = False
        is_inside = is_inside or line.startswith(_TRACEBACK)
    # Spark logs one failure in many lines, and Quiver in one, which must be among the last lines.
    own = [at for at, line in enumerate(found) if _OWN in line][-ERRORS_SHOWN_MAX:]
    others = [at for at, line in enumerate(found) if _OWN not in line]
    return [found[at] for at in sorted([*own, *others[max(len(others) + len(own) - ERRORS_SHOWN_MAX, 0) :]])]


def showing(now: PipelineSnapshot, before: PipelineSnapshot | None) -> Showing:
    """Return the data to display for *now*; rates are since *before*, and None without it."""
    flows = tuple(_flows(now, before))
    rates = {flow.of: flow.per_second for flow in flows if flow.what == "acknowledged" and flow.per_second is not None}
    disk = {
        "bytes": int(now.total("quiver_core_bytes") or now.disk_bytes),
        "of_the_cap": max(now.values("quiver_core_cap_fraction"), default=None),
        "log_bytes": _whole(now.total("quiver_wal_bytes")),
        "open_bytes": _whole(now.total("quiver_segment_open_bytes")),
        "segments": _whole(now.total("quiver_segment_files")),
        "quarantined": _whole(now.total("quiver_quarantine_files")),
    }
    return Showing(
        now.nodes,
        flows,
        now.subscribers,
        disk,
        now.errors,
        now.problem,
        rates,
        now.waiting,
        now.reports,
        now.dead_letters,
        _received(now, before),
    )


def _whole(amount: float | None) -> int | None:
    return None if amount is None else int(amount)


def _received(now: PipelineSnapshot, before: PipelineSnapshot | None) -> dict[str, Received]:
    """Return what each receiver has stored; those that poll a log count no records, and are not included."""
    records, size = (
        {of: (int(value), rate) for of, value, rate in _rates(now, before, name, ("receiver",))}
        for name in (RECEIVED_RECORDS, RECEIVED_BYTES)
    )
    # Both are counted for each request.
    return {of: Received(*records[of], *size[of]) for of in records if of in size}


def _flows(now: PipelineSnapshot, before: PipelineSnapshot | None) -> Iterable[Flow]:
    for what, name, apart in FLOWS:
        for of, value, rate in _rates(now, before, name, apart):
            if value or name != FAILURES:  # every exporter has a counter of each type
                yield Flow(what, of, int(value), rate)


def _rates(
    now: PipelineSnapshot, before: PipelineSnapshot | None, name: str, apart: tuple[str, ...]
) -> Iterator[tuple[str, float, float | None]]:
    """Yield the lines of the counter *name*: what distinguishes each, its value, and its rate per second."""
    passed_s = 0.0 if before is None else now.at_s - before.at_s
    earlier = {} if before is None else _by(before.samples, name, apart)
    for of, value in sorted(_by(now.samples, name, apart).items()):
        rate = None
        if passed_s > 0 and before is not None and before.samples:
            # A counter that decreased was reset by a restart: its value is the increase since then.
            gained = value - earlier.get(of, 0.0)
            rate = (gained if gained >= 0 else value) / passed_s
        yield of, value, rate


def _by(samples: Sequence[Sample], name: str, apart: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in samples:
        if sample.name == name:
            of = " ".join(filter(None, map(sample.label, apart)))
            found[of] = found.get(of, 0.0) + sample.value
    return found
